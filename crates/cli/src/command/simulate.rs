//! `campanile simulate`: a training step on clusters that are described and not rented.

mod job;
mod pictures;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use campanile_planner::simulate::{
    Point, Variant, csv, points,
    sweep::{Asked, POINTS_MAX},
    text,
};
use campanile_spec::{cluster::Cluster, workload::Workload};
use serde_json::{Value, json};

use self::pictures::Axis;
use crate::{args::simulate::SimulateArguments, command::write_report};

/// Ranks of a described cluster where the user names none.
const RANKS: usize = 64;

/// Runs the command.
pub fn run(arguments: &SimulateArguments) -> Result<()> {
    let text = read(&arguments.model, "model")?;
    if !Workload::is_meant(&text) {
        return job::run(arguments);
    }
    let workload = Workload::parse(&text).with_context(|| format!("{}", arguments.model.display()))?;
    let clusters: Vec<(PathBuf, Cluster)> = arguments
        .topology
        .iter()
        .map(|path| Ok((path.clone(), read_cluster(path)?)))
        .collect::<Result<_>>()?;
    let asked = Asked {
        ranks: if arguments.ranks.is_empty() { vec![RANKS] } else { arguments.ranks.clone() },
        towers: arguments.towers.clone(),
        ratios: arguments.ratio.clone(),
    };
    let count = asked.ranks.len() * asked.towers.len().max(1) * asked.ratios.len();
    if count > POINTS_MAX {
        bail!(
            "{count} combinations of --ranks, --towers and --ratio: at most {POINTS_MAX} are simulated at once"
        );
    }
    let mut all = Vec::new();
    for (path, cluster) in &clusters {
        let simulated = points(cluster, &workload, &asked)
            .with_context(|| format!("{} on {}", arguments.model.display(), path.display()))?;
        all.push(simulated);
    }
    if !arguments.quiet {
        print(&all);
    }
    write_files(arguments, &clusters, &all, &asked)?;
    let flat: Vec<Value> = all.iter().flatten().map(report).collect();
    write_report(arguments.report.as_deref(), &json!({ "command": "simulate", "points": flat }))
}

fn read(path: &Path, what: &str) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read the {what} {}", path.display()))
}

fn read_cluster(path: &Path) -> Result<Cluster> {
    let text = read(path, "cluster")?;
    if !Cluster::is_meant(&text) {
        bail!(
            "{} is a measured topology, and a description of a cluster is wanted; take one of examples/simulate/clusters \
             as a beginning",
            path.display()
        );
    }
    Cluster::parse(&text).with_context(|| format!("{}", path.display()))
}

/// One setting in full; of several a line each.
fn print(all: &[Vec<Point<'_>>]) {
    for (number, points) in all.iter().enumerate() {
        if number > 0 {
            println!();
        }
        match &points[..] {
            [one] => print!("{}", text::table(one)),
            many => print!("{}", text::lines(many)),
        }
    }
}

fn write_files(
    arguments: &SimulateArguments,
    clusters: &[(PathBuf, Cluster)],
    all: &[Vec<Point<'_>>],
    asked: &Asked,
) -> Result<()> {
    let mut written = Vec::new();
    if let Some(path) = &arguments.csv {
        let flat: Vec<Point<'_>> = all.iter().flatten().cloned().collect();
        std::fs::write(path, csv(&flat)).with_context(|| format!("cannot write {}", path.display()))?;
        written.push(path.clone());
    }
    if let Some(folder) = &arguments.plots {
        let axis = axis(asked)?;
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        for ((path, _), points) in clusters.iter().zip(all) {
            let stem = path.file_stem().map_or_else(|| "cluster".into(), |stem| stem.to_string_lossy());
            let file = folder.join(format!("step-{stem}.svg"));
            pictures::steps(&file, points, axis)
                .with_context(|| format!("cannot draw {}", file.display()))?;
            written.push(file);
        }
        let file = folder.join("speed-up.svg");
        pictures::speed_up(&file, all, axis).with_context(|| format!("cannot draw {}", file.display()))?;
        written.push(file);
    }
    if !arguments.quiet && !written.is_empty() {
        println!();
        written.iter().for_each(|path| println!("{}", path.display()));
    }
    Ok(())
}

/// What changes from point to point.
fn axis(asked: &Asked) -> Result<Axis> {
    let lists = [
        (Axis::Ranks, asked.ranks.len()),
        (Axis::Ratio, asked.ratios.len()),
        (Axis::Towers, asked.towers.len()),
    ];
    let long: Vec<Axis> = lists.into_iter().filter(|(_, count)| *count > 1).map(|(axis, _)| axis).collect();
    match &long[..] {
        [] => Ok(Axis::Ranks),
        [one] => Ok(*one),
        _ => {
            bail!("--plots shows one list: give several values to one of --ranks, --towers and --ratio only")
        }
    }
}

fn report(point: &Point<'_>) -> Value {
    let setting = &point.setting;
    let fit = setting.fit();
    let tiers: Vec<Value> = fit
        .tiers
        .iter()
        .map(|tier| json!({ "name": tier.name, "bytes": tier.bytes, "capacity": tier.capacity, "id_share": tier.id_share }))
        .collect();
    let variants: Vec<Value> = Variant::ALL
        .into_iter()
        .map(|variant| {
            json!({
                "variant": variant,
                "step_seconds": point.step(variant).seconds(),
                "exposed_seconds": point.step(variant).exposed(),
                "samples_per_second": point.samples_per_second(variant),
                "speed_up": point.speed_up(variant),
                "parts": point.step(variant),
            })
        })
        .collect();
    json!({
        "model": setting.workload.name,
        "cluster": setting.cluster.name,
        "ranks": setting.ranks(),
        "hosts": setting.hosts,
        "towers": setting.towers,
        "compression_ratio": setting.ratio,
        "table_bytes": fit.bytes,
        "missing_bytes": fit.missing,
        "tiers": tiers,
        "variants": variants,
    })
}
