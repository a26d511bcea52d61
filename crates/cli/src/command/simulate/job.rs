//! A job on machines that were measured: what a step would take flat, by the ways of towers and with modules; or, where runs
//! were measured, predicted against measured.
//!
//! The prices are the planner's; beside runs, with the placements that training takes by itself. No measured time of a run
//! enters them.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use campanile_planner::{Splits, TableLoad, by_towers::seated, predict_ways};
use campanile_spec::{
    Plan, TowerVariant,
    cluster::Cluster,
    config::{Job, Pipeline, WireFormat},
    topology::{Link, Topology},
};
use serde_json::{Value, json};

use crate::{
    args::simulate::SimulateArguments,
    command::{
        plan::{read_topology, resized},
        prep,
        towers::expected::with_towers,
        write_report,
    },
    job_file,
    pricing::{self, Question},
};

/// Rows of the training data that tell how often ids come.
const SAMPLE_ROWS: u64 = 65_536;

/// Of a full Ethernet frame on a shaped link, the bytes that a program sent.
const PAYLOAD: f64 = 1448.0 / 1514.0;

/// A prediction is called good within this share of what was measured.
const GOOD: f64 = 0.2;

/// One measured run.
#[derive(Debug, Clone, PartialEq)]
struct Run {
    hosts: usize,
    ranks_per_host: usize,
    variant: TowerVariant,
    ratio: usize,
    /// 0 where the link had no limit of its own.
    link_mbit: f64,
    forward: WireFormat,
    backward: WireFormat,
    step_ms: f64,
}

/// A run beside what was predicted for it.
struct Compared {
    run: Run,
    predicted_ms: f64,
    /// Whether a topology of this very shape was measured.
    same_shape: bool,
}

/// Runs the command for a job.
pub fn run(arguments: &SimulateArguments) -> Result<()> {
    let job = job_file::read(&arguments.model)?;
    let topologies: Vec<Topology> =
        arguments.topology.iter().map(|path| measured_topology(path)).collect::<Result<_>>()?;
    if !arguments.towers.is_empty() || arguments.csv.is_some() || arguments.plots.is_some() {
        bail!(
            "--towers, --csv and --plots are for described models; a job has a tower for every host, or its own"
        );
    }
    for (path, topology) in arguments.topology.iter().zip(&topologies).filter(|_| !arguments.quiet) {
        pricing::without_price(topology).iter().for_each(|line| print!("{}: {line}", path.display()));
    }
    let prepared = prep::prepared(&job, true)?;
    let loads = pricing::loads(&job, Some(&prepared.train), SAMPLE_ROWS)?;
    let Some(path) = &arguments.measured else { return expected(arguments, &job, &loads, &topologies) };
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read the runs {}", path.display()))?;
    let runs = read_runs(&text).with_context(|| format!("{}", path.display()))?;
    let compared: Vec<Compared> =
        runs.into_iter().map(|run| compare(&job, &loads, &topologies, run)).collect::<Result<_>>()?;
    if !arguments.quiet {
        print!("{}", table(&compared));
    }
    let report: Vec<Value> = compared.iter().map(Compared::report).collect();
    write_report(arguments.report.as_deref(), &json!({ "command": "simulate", "compared": report }))
}

/// What steps would take, for every topology, number of ranks and ratio.
fn expected(
    arguments: &SimulateArguments,
    job: &Job,
    loads: &[TableLoad],
    topologies: &[Topology],
) -> Result<()> {
    let sizes: Vec<Option<usize>> = match &arguments.ranks[..] {
        [] => vec![None],
        some => some.iter().copied().map(Some).collect(),
    };
    let mut report = Vec::new();
    for (path, topology) in arguments.topology.iter().zip(topologies) {
        for &ranks in &sizes {
            let topology = resized(topology.clone(), ranks)?;
            for &ratio in &arguments.ratio {
                if ratio < 1.0 || ratio.fract() != 0.0 {
                    bail!("--ratio {ratio}: vectors of a job become shorter by a whole number");
                }
                let run = Run {
                    hosts: topology.hosts,
                    ranks_per_host: topology.ranks_per_host,
                    variant: TowerVariant::Towers,
                    ratio: ratio as usize,
                    link_mbit: 0.0,
                    forward: job.run.exchange.forward,
                    backward: job.run.exchange.backward,
                    step_ms: 0.0,
                };
                let question = Question { topology: &topology, loads, splits: Splits::Allowed, method: None };
                let priced = pricing::price_variants(&job_of(job, &run)?, &question)?;
                if !arguments.quiet {
                    println!(
                        "{} on {}: {} hosts of {} ranks, batches of {}, compression ratio {ratio}\n",
                        arguments.model.display(),
                        path.display(),
                        run.hosts,
                        run.ranks_per_host,
                        job.run.batch_size
                    );
                    println!("{}", pricing::comparison(&priced));
                }
                report.push(json!({
                    "topology": path,
                    "hosts": run.hosts,
                    "ranks_per_host": run.ranks_per_host,
                    "compression_ratio": ratio,
                    "variants": pricing::comparison_report(&priced),
                }));
            }
        }
    }
    write_report(arguments.report.as_deref(), &json!({ "command": "simulate", "expected": report }))
}

fn measured_topology(path: &Path) -> Result<Topology> {
    let text = super::read(path, "topology")?;
    if Cluster::is_meant(&text) {
        bail!(
            "{} describes a cluster, and a job is priced on measured rates; measure with `campanile bench topology`",
            path.display()
        );
    }
    read_topology(path)
}

/// A CSV with a line of names; names that are not known are left alone.
fn read_runs(text: &str) -> Result<Vec<Run>> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let Some((_, names)) = lines.next() else { bail!("there is no line with the names of the columns") };
    let names: Vec<&str> = names.split(',').map(str::trim).collect();
    let wanted = ["hosts", "ranks_per_host", "variant", "cr", "link_mbit", "step_ms"];
    if let Some(missing) = wanted.iter().find(|name| !names.contains(*name)) {
        bail!("there is no column `{missing}`; wanted are {}", wanted.join(", "));
    }
    lines
        .map(|(number, line)| read_run(&names, line).with_context(|| format!("line {}", number + 1)))
        .collect()
}

fn read_run(names: &[&str], line: &str) -> Result<Run> {
    let values: Vec<&str> = line.split(',').map(str::trim).collect();
    let value = |name: &str| {
        let place = names.iter().position(|known| *known == name)?;
        values.get(place).copied().filter(|value| !value.is_empty())
    };
    let number = |name: &str| -> Result<f64> {
        let value = value(name).ok_or_else(|| anyhow!("`{name}` is empty"))?;
        let parsed = value.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
        parsed.ok_or_else(|| anyhow!("`{name}` is {value}: a number from 0 on is wanted"))
    };
    let count = |name: &str| -> Result<usize> {
        match number(name)? {
            count if count >= 1.0 && count.fract() == 0.0 => Ok(count as usize),
            other => bail!("`{name}` is {other}: a whole number from 1 on is wanted"),
        }
    };
    let format = |name: &str| match value(name) {
        None | Some("f32") => Ok(WireFormat::F32),
        Some("f16") => Ok(WireFormat::F16),
        Some("bf16") => Ok(WireFormat::Bf16),
        Some("int8") => Ok(WireFormat::Int8),
        Some(other) => Err(anyhow!("`{name}` is {other}: f32, f16, bf16 or int8 is wanted")),
    };
    let variant = match value("variant") {
        Some("flat") => TowerVariant::Flat,
        Some("sptt") => TowerVariant::Sptt,
        Some("towers") => TowerVariant::Towers,
        other => bail!("`variant` is {}: flat, sptt or towers is wanted", other.unwrap_or("empty")),
    };
    Ok(Run {
        hosts: count("hosts")?,
        ranks_per_host: count("ranks_per_host")?,
        variant,
        ratio: count("cr")?,
        link_mbit: number("link_mbit")?,
        forward: format("forward")?,
        backward: format("backward")?,
        step_ms: number("step_ms")?,
    })
}

fn compare(job: &Job, loads: &[TableLoad], topologies: &[Topology], run: Run) -> Result<Compared> {
    let (topology, same_shape) = topology_of(topologies, &run)?;
    let job = job_of(job, &run)?;
    let question = Question { topology: &topology, loads, splits: Splits::Allowed, method: None };
    let dense = pricing::dense_work(&job, topology.rank_count(), loads)?;
    let request = pricing::request(&job, &question, &dense);
    let plan = match (run.variant, seated(&request)) {
        (TowerVariant::Flat, _) => Plan::balanced(&job.run.model, topology.rank_count()),
        (_, Ok(seating)) => seating.plan(&job.run.model),
        (_, Err(problem)) => bail!("{} on {} hosts: {problem}", name(run.variant), run.hosts),
    };
    let prediction = predict_ways(&request, &plan);
    let seconds = match job.process.pipeline {
        Pipeline::Off => prediction.step_seconds,
        Pipeline::On | Pipeline::Auto => prediction.overlapped_seconds,
    };
    Ok(Compared { run, predicted_ms: seconds * 1e3, same_shape })
}

/// The topology that was measured on the run's shape, or else the first with its shape changed; with the run's link.
fn topology_of(topologies: &[Topology], run: &Run) -> Result<(Topology, bool)> {
    let same =
        |topology: &&Topology| topology.hosts == run.hosts && topology.ranks_per_host == run.ranks_per_host;
    let found = topologies.iter().find(same);
    let Some(mut topology) = found.or(topologies.first()).cloned() else { bail!("there is no topology") };
    (topology.hosts, topology.ranks_per_host) = (run.hosts, run.ranks_per_host);
    if run.hosts > 1 && run.link_mbit > 0.0 {
        // The ranks of a host share its link; a rank cannot send faster than it did without a limit.
        let shaped = run.link_mbit * 1e6 / 8.0 * PAYLOAD / run.ranks_per_host as f64;
        let before = topology.between_hosts();
        let unlimited = topology.cross_host.map_or(f64::INFINITY, |link| link.bytes_per_second);
        let bytes_per_second = shaped.min(unlimited);
        // A byte takes the processor as long as before, and the link longer.
        let work = (1.0 - before.hidden_share) * bytes_per_second / before.bytes_per_second;
        topology.cross_host = Some(Link {
            latency_seconds: before.latency_seconds,
            bytes_per_second,
            hidden_share: (1.0 - work).clamp(0.0, 1.0),
            message_seconds: before.message_seconds,
        });
    }
    if run.hosts > 1 && topology.cross_host.is_none() {
        bail!(
            "a run on {} hosts without `link_mbit`, and no topology says what an exchange between hosts costs; measure \
             one on several hosts",
            run.hosts
        );
    }
    Ok((topology, found.is_some()))
}

/// The job of a run: a tower for every host, which hands on vectors that are shorter by the ratio.
fn job_of(job: &Job, run: &Run) -> Result<Job> {
    let model = &job.run.model;
    let features = model.features.len();
    let dim = model.tables.iter().map(|table| table.dim).max().unwrap_or(1);
    if run.ratio > dim || run.hosts > features {
        bail!(
            "a ratio of {} and {} towers: vectors have {dim} floats, and there are {features} features",
            run.ratio,
            { run.hosts }
        );
    }
    let cut = |tower: usize| tower * features / run.hosts;
    let tower = |feature: usize| (0..run.hosts).rev().find(|&tower| cut(tower) <= feature).unwrap_or(0);
    let partition: Vec<usize> = match &model.towers.list {
        own if own.len() == run.hosts => (0..features)
            .map(|feature| own.iter().position(|tower| tower.features.contains(&feature)).unwrap_or(0))
            .collect(),
        _ => (0..features).map(tower).collect(),
    };
    let mut job = pricing::with_variant(&with_towers(job, &partition, dim / run.ratio), run.variant);
    (job.run.exchange.forward, job.run.exchange.backward) = (run.forward, run.backward);
    Ok(job)
}

fn name(variant: TowerVariant) -> &'static str {
    match variant {
        TowerVariant::Flat => "flat",
        TowerVariant::Sptt => "sptt",
        TowerVariant::Towers => "towers",
    }
}

fn wire(format: WireFormat) -> &'static str {
    match format {
        WireFormat::F32 => "f32",
        WireFormat::F16 => "f16",
        WireFormat::Bf16 => "bf16",
        WireFormat::Int8 => "int8",
    }
}

impl Compared {
    fn off(&self) -> f64 {
        self.predicted_ms / self.run.step_ms - 1.0
    }

    fn report(&self) -> Value {
        let run = &self.run;
        json!({
            "hosts": run.hosts,
            "ranks_per_host": run.ranks_per_host,
            "variant": name(run.variant),
            "compression_ratio": run.ratio,
            "forward": wire(run.forward),
            "backward": wire(run.backward),
            "link_mbit": run.link_mbit,
            "measured_ms": run.step_ms,
            "predicted_ms": self.predicted_ms,
            "same_shape_measured": self.same_shape,
        })
    }
}

/// The flat run with plain vectors behind the same links.
fn flat_of<'a>(all: &'a [Compared], run: &Run) -> Option<&'a Compared> {
    all.iter().find(|other| {
        let flat = &other.run;
        flat.variant == TowerVariant::Flat
            && (flat.hosts, flat.ranks_per_host) == (run.hosts, run.ranks_per_host)
            && flat.link_mbit == run.link_mbit
            && (flat.forward, flat.backward) == (WireFormat::F32, WireFormat::F32)
    })
}

fn table(all: &[Compared]) -> String {
    let mut out = String::from(
        "shape    link      variant   CR  vectors       measured   predicted   off by   speed-up: measured, predicted\n",
    );
    for compared in all {
        let run = &compared.run;
        let link = if run.link_mbit > 0.0 { format!("{} Mbit", run.link_mbit) } else { "-".to_owned() };
        let speeds = flat_of(all, run).map_or_else(String::new, |flat| {
            let measured = flat.run.step_ms / run.step_ms;
            format!("{measured:>8.2}x {:>8.2}x", flat.predicted_ms / compared.predicted_ms)
        });
        let line = format!(
            "{:<8} {link:<9} {:<8} {:>3}  {:<10} {:>9.1} ms {:>8.1} ms {:>+6.0} %{} {speeds}",
            format!("{}x{}", run.hosts, run.ranks_per_host),
            name(run.variant),
            run.ratio,
            format!("{}, {}", wire(run.forward), wire(run.backward)),
            run.step_ms,
            compared.predicted_ms,
            100.0 * compared.off(),
            if compared.same_shape { " " } else { "*" },
        );
        out += line.trim_end();
        out.push('\n');
    }
    let mut off: Vec<f64> = all.iter().map(|compared| compared.off().abs()).collect();
    off.sort_by(f64::total_cmp);
    let good = off.iter().filter(|off| **off <= GOOD).count();
    out += &format!(
        "{good} of {} within {:.0} %; half of them within {:.0} %\n",
        off.len(),
        100.0 * GOOD,
        100.0 * off.get(off.len() / 2).copied().unwrap_or_default()
    );
    if all.iter().any(|compared| !compared.same_shape) {
        out += "* no topology of this shape was measured: rates of another, where more or fewer ranks share the cores\n";
    }
    out
}
