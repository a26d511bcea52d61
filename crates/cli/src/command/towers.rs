//! `campanile towers`: which features belong together, learned, written and drawn.

pub mod expected;
mod pictures;
mod probe;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use campanile_planner::towers::{
    Affinity, Partition, Proposal, Strategy, Wanted, adjusted_rand_index, baselines, propose,
    score::{Score, score},
};
use campanile_spec::{Bytes, ModelSpec, config::Job, world::WorldSpec};
use serde_json::{Value, json};

use crate::{
    args::towers::{BalanceName, StrategyName, TowersArguments},
    command::{prep, write_report},
    job_file,
};

/// Dimensions of the points that are clustered, at most.
const DIMENSIONS: usize = 8;

/// Beginnings of the search.
const RESTARTS: usize = 16;

/// Runs the command.
pub fn run(arguments: &TowersArguments) -> Result<()> {
    let job = job_file::read(&arguments.job)?;
    if !job.run.follow.is_none() {
        bail!("tables that follow a teacher cannot live in towers yet: leave [run.follow] out of the job");
    }
    let features = job.run.model.features.len();
    if arguments.towers == 0 || arguments.towers > features {
        bail!(
            "--towers {}: the job has {features} features, so there can be from 1 to {features}",
            arguments.towers
        );
    }
    let output = arguments.output.clone().unwrap_or_else(|| job.process.output_dir.join("towers"));
    std::fs::create_dir_all(&output).with_context(|| format!("cannot make {}", output.display()))?;
    let prepared = prep::prepared(&job, arguments.quiet)?;
    let measured = probe::measure(&job, &prepared, arguments, &output)?;
    let weights = weights(&job.run.model, arguments.balance, &measured.ids_per_sample);
    let wanted = Wanted {
        towers: arguments.towers,
        strategy: match arguments.strategy {
            StrategyName::Coherent => Strategy::Coherent,
            StrategyName::Diverse => Strategy::Diverse,
        },
        weights,
        tolerance: if arguments.balance == BalanceName::Features { 0.0 } else { arguments.tolerance },
        dimensions: DIMENSIONS,
        restarts: RESTARTS,
        seed: arguments.seed,
    };
    let proposal = propose(&measured.affinity, &wanted)?;
    let names: Vec<&str> = job.run.model.features.iter().map(|feature| feature.name.as_str()).collect();
    let files = write_files(&output, arguments, (&measured.affinity, &proposal), &names)?;
    let scored = compare(&job, &measured.affinity, &wanted, &proposal)?;
    let truth = prepared.train.synthetic().map(|world| of_groups(world.hidden_groups(), &names));
    let width = module_width(&job.run.model, arguments);
    let expected = Expected::new(&job.run.model, arguments);
    let priced = expected::on_topology(arguments, (&job, &prepared), &proposal.partition, width)?;
    if !arguments.quiet {
        print_towers(&proposal, &names);
        print_scores(&scored, truth.as_deref());
        expected.print(arguments);
        if let Some(priced) = &priced {
            print!("{}", priced.text);
        }
        for file in &files {
            println!("{}", file.display());
        }
    }
    let report = json!({
        "command": "towers",
        "features": names,
        "towers": proposal.partition,
        "map_stress": proposal.map_stress,
        "affinity": (0..features).map(|i| (0..features).map(|j| measured.affinity.at(i, j)).collect()).collect::<Vec<Vec<f64>>>(),
        "hidden_groups": truth,
        "partitions": scored.iter().map(|one| one.report(truth.as_deref())).collect::<Vec<_>>(),
        "expected": expected.report(),
        "on_topology": priced.map(|priced| priced.report),
        "probe": measured.checkpoint,
        "files": files,
    });
    write_report(arguments.report.as_deref(), &report)
}

/// What each feature weighs.
fn weights(model: &ModelSpec, balance: BalanceName, ids_per_sample: &[f64]) -> Vec<f64> {
    let dim = |feature: usize| model.table_of(feature).dim as f64;
    let weight = |feature: usize| match balance {
        BalanceName::Features => 1.0,
        // A feature whose bags were all empty in the sample still has a vector.
        BalanceName::Lookups => dim(feature) * ids_per_sample[feature].max(0.01),
        BalanceName::Width => dim(feature),
    };
    (0..model.features.len()).map(weight).collect()
}

/// The group of every feature that the job sees; a world's groups may have more.
fn of_groups(groups: &[Vec<usize>], names: &[&str]) -> Partition {
    let has = |group: &Vec<usize>, name: &str| group.iter().any(|f| WorldSpec::sparse_name(*f) == name);
    names.iter().map(|name| groups.iter().position(|group| has(group, name)).unwrap_or(0)).collect()
}

/// A partition by name, and what it is worth.
struct Scored {
    name: &'static str,
    partition: Partition,
    score: Score,
}

impl Scored {
    fn report(&self, truth: Option<&[usize]>) -> Value {
        let index = truth.map(|truth| adjusted_rand_index(&self.partition, truth));
        json!({ "name": self.name, "towers": self.partition, "score": self.score, "rand_index_to_truth": index })
    }
}

/// The learned partition beside those that learned nothing, and the job's own if it has one.
fn compare(job: &Job, affinity: &Affinity, wanted: &Wanted, proposal: &Proposal) -> Result<Vec<Scored>> {
    let (features, towers) = (affinity.features(), wanted.towers);
    let mut all = vec![
        ("learned", proposal.partition.clone()),
        ("round robin", baselines::round_robin(features, towers)),
        ("random", baselines::random(features, towers, wanted.seed)),
        ("by size", baselines::by_size(&wanted.weights, towers)),
    ];
    let own = &job.run.model.towers.list;
    if !own.is_empty() {
        let tower = |feature: usize| own.iter().position(|tower| tower.features.contains(&feature));
        all.push(("the job's", (0..features).map(|feature| tower(feature).unwrap_or(0)).collect()));
    }
    let scored = |(name, partition): (&'static str, Partition)| -> Result<Scored> {
        let score = score(affinity, &partition, &wanted.weights)?;
        Ok(Scored { name, partition, score })
    };
    all.into_iter().map(scored).collect()
}

fn print_towers(proposal: &Proposal, names: &[&str]) {
    for tower in 0..proposal.score.sizes.len() {
        println!("tower {tower}: {}", features_of(&proposal.partition, names, tower).join(", "));
    }
}

fn features_of<'a>(partition: &[usize], names: &[&'a str], tower: usize) -> Vec<&'a str> {
    names.iter().zip(partition).filter(|(_, of)| **of == tower).map(|(name, _)| *name).collect()
}

fn print_scores(scored: &[Scored], truth: Option<&[usize]>) {
    let of_truth = if truth.is_some() { "  Rand index to the hidden groups" } else { "" };
    println!("\n  {:12}  {:>6}  {:>6}  {:>9}{of_truth}", "partition", "inside", "across", "imbalance");
    for Scored { name, partition, score } in scored {
        let index = truth.map(|truth| format!("  {:>9.3}", adjusted_rand_index(partition, truth)));
        println!(
            "  {name:12}  {:>6.3}  {:>6.3}  {:>9.2}{}",
            score.inside,
            score.across,
            score.imbalance,
            index.unwrap_or_default()
        );
    }
    println!("  (mean affinity of pairs inside towers and across; the heaviest tower over the mean)\n");
}

/// What crosses hosts for one sample, one way, by the formulas of docs/towers.md.
struct Expected {
    hosts: usize,
    width: usize,
    compression_ratio: f64,
    flat_bytes: f64,
    tower_bytes: f64,
}

impl Expected {
    fn new(model: &ModelSpec, arguments: &TowersArguments) -> Expected {
        let hosts = arguments.hosts.unwrap_or(arguments.towers).max(1);
        let width = module_width(model, arguments);
        let handed_on = model.features.len() * width;
        let across = (hosts - 1) as f64 / hosts as f64 * size_of::<f32>() as f64;
        Expected {
            hosts,
            width,
            compression_ratio: model.pooled_width() as f64 / handed_on.max(1) as f64,
            flat_bytes: model.pooled_width() as f64 * across,
            tower_bytes: handed_on as f64 * across,
        }
    }

    fn print(&self, arguments: &TowersArguments) {
        println!(
            "expected on {} host(s), one way, for a sample: {} across hosts flat and with the ways of towers alone,",
            self.hosts,
            Bytes(self.flat_bytes as u64)
        );
        println!(
            "  {} with modules that hand on {} floats a feature: compression ratio {:.2}",
            Bytes(self.tower_bytes as u64),
            self.width,
            self.compression_ratio
        );
        if arguments.width.is_none() {
            println!("  (choose another with --width)");
        }
    }

    fn report(&self) -> Value {
        json!({
            "hosts": self.hosts,
            "module_width": self.width,
            "compression_ratio": self.compression_ratio,
            "flat_bytes_per_sample": self.flat_bytes,
            "tower_bytes_per_sample": self.tower_bytes,
        })
    }
}

/// What a tower hands on for a feature: as asked, or a quarter of the widest row.
fn module_width(model: &ModelSpec, arguments: &TowersArguments) -> usize {
    let widest = model.tables.iter().map(|table| table.dim).max().unwrap_or(1);
    arguments.width.unwrap_or((widest / 4).max(1))
}

fn write_files(
    output: &Path,
    arguments: &TowersArguments,
    (affinity, proposal): (&Affinity, &Proposal),
    names: &[&str],
) -> Result<Vec<PathBuf>> {
    let [text, heat, map] = ["towers.toml", "affinity.svg", "map.svg"].map(|name| output.join(name));
    let toml = toml_text(arguments, &proposal.partition, names);
    std::fs::write(&text, toml).with_context(|| format!("cannot write {}", text.display()))?;
    pictures::heat_map(&heat, affinity, &proposal.partition, names)
        .with_context(|| format!("cannot draw {}", heat.display()))?;
    pictures::map(&map, proposal, names).with_context(|| format!("cannot draw {}", map.display()))?;
    Ok(vec![text, heat, map])
}

/// The section to add to the job.
fn toml_text(arguments: &TowersArguments, partition: &[usize], names: &[&str]) -> String {
    let towers = partition.iter().max().map_or(0, |last| last + 1);
    let module = match arguments.width {
        Some(width) => format!("{{ kind = \"ensemble\", per_feature = 1, mixed = 0, width = {width} }}"),
        None => "\"identity\"".to_owned(),
    };
    let mut text = format!(
        "# Learned by `campanile towers {}`; add it to the job. With modules, the model's interaction must have their\n\
         # width; see docs/models.md.\n[run.towers]\nvariant = \"towers\"   # or \"sptt\", or \"flat\"\nmodule = {module}\n",
        arguments.job.display()
    );
    for tower in 0..towers {
        let features: Vec<String> =
            features_of(partition, names, tower).iter().map(|name| format!("{name:?}")).collect();
        let features = features.join(", ");
        text.push_str(&format!(
            "\n[[run.towers.tower]]\nname = \"tower_{tower}\"\nfeatures = [{features}]\n"
        ));
    }
    text
}
