//! `campanile plan`: where every table goes and why, from the job, a sample of its data and a measured topology.

mod check;

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context, Result, bail};
use campanile_planner::{
    Planned, Prediction, Request, Splits, by_towers::seated, explain, explain_prices, place::Method, plan,
    plan_by_towers, predict_ways,
};
use campanile_spec::{Plan, config::Job, topology::Topology};
use campanile_train::TrainError;
use serde_json::{Value, json};

use crate::{
    args::planning::{MethodName, PlanArguments},
    command::{prep, write_report},
    job_file,
    measure::{self, Settings},
    place::Place,
    pricing::{self, Question},
};

/// Runs the command.
pub fn run(arguments: &PlanArguments, place: &Place) -> Result<()> {
    let asked = place.together(Asked::read(arguments, place))?;
    let job = &asked.job;
    let quiet = arguments.quiet || !place.is_first();
    let needs_data = arguments.sample > 0 || arguments.check;
    let prepared = match needs_data {
        true => Some(place.first_then_others(|| prep::prepared_with_pulse(job, quiet, place.pulse()))?),
        false => None,
    };
    let topology = asked.topology(arguments, place)?;
    let data = prepared.as_ref().map(|prepared| &prepared.train);
    let loads = pricing::loads(job, data, arguments.sample)?;
    let dense = pricing::dense_work(job, topology.rank_count(), &loads)?;
    let (splits, method) = (splits(job, arguments)?, arguments.method.map(method));
    let question = Question { topology: &topology, loads: &loads, splits, method };
    let request = pricing::request(job, &question, &dense);
    let answer = answer(&request, arguments)?;
    let variants = match job.run.model.towers.is_empty() {
        true => Vec::new(),
        false => pricing::price_variants(job, &question)?,
    };
    if place.is_first() {
        print!("{}", answer.text);
        if !variants.is_empty() {
            print!("\n{}", pricing::comparison(&variants));
        }
        if let Some(line) = pricing::without_price(&topology).filter(|_| !arguments.quiet) {
            print!("\n{line}");
        }
    }
    let mut report = report(&request, &answer);
    report["variants"] = pricing::comparison_report(&variants);
    place.only_first(|| write_plan(arguments, job, &answer.plan))?;
    if let Some(prepared) = prepared.as_ref().filter(|_| arguments.check) {
        report["check"] = check::run(arguments, place, (job, prepared), &request, &answer.plan)?;
    }
    if !place.is_first() {
        return Ok(());
    }
    write_report(arguments.report.as_deref(), &report)
}

/// What the files say.
struct Asked {
    job: Job,
    topology: Option<Topology>,
}

impl Asked {
    fn read(arguments: &PlanArguments, place: &Place) -> Result<Asked> {
        let job = job_file::read(&arguments.job)?;
        let topology = arguments.topology.as_deref().map(read_topology).transpose()?;
        let topology = topology.map(|topology| resized(topology, arguments.ranks)).transpose()?;
        if let (Some(processes), Some(topology)) = (place.processes(), &topology)
            && processes != topology.rank_count()
        {
            bail!(
                "mpirun started {processes} processes, and the topology has {} ranks; add --ranks {processes}",
                { topology.rank_count() }
            );
        }
        Ok(Asked { job, topology })
    }

    /// The file's, or what is measured now on the ranks that a run would have.
    fn topology(&self, arguments: &PlanArguments, place: &Place) -> Result<Topology> {
        if let Some(topology) = &self.topology {
            return Ok(topology.clone());
        }
        let mut job = self.job.clone();
        if let Some(ranks) = arguments.ranks {
            job.process.threads = ranks;
        }
        let settings = settings(&job);
        let measured = place.ranks(&job)?.run(|comm, _| -> Result<_, TrainError> {
            let shape = measure::shape(comm)?;
            Ok(Some(measure::topology(shape, &[measure::reading(comm, settings)?])))
        })?;
        measured.context("no rank measured anything")
    }
}

/// What to measure for a job: layers with the samples of its grains.
fn settings(job: &Job) -> Settings {
    Settings { grain_samples: job.run.batch_size.div_ceil(job.run.grain_count), ..Settings::default() }
}

/// Reads and checks a topology file.
pub fn read_topology(path: &Path) -> Result<Topology> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the topology {}", path.display()))?;
    Topology::parse(&text).with_context(|| format!("{}", path.display()))
}

/// The topology with another number of ranks: whole hosts, or a part of one.
pub fn resized(mut topology: Topology, ranks: Option<usize>) -> Result<Topology> {
    let Some(ranks) = ranks else { return Ok(topology) };
    let per_host = topology.ranks_per_host;
    if ranks == 0 || (ranks > per_host && !ranks.is_multiple_of(per_host)) {
        bail!("--ranks {ranks}: a host has {per_host} ranks; ask for fewer than that, or for whole hosts");
    }
    (topology.hosts, topology.ranks_per_host) = ((ranks / per_host).max(1), per_host.min(ranks));
    if topology.hosts > 1 && topology.cross_host.is_none() {
        bail!(
            "--ranks {ranks} needs {} hosts, and the topology does not say what an exchange between hosts costs; add \
             [cross_host] to it, or measure on several hosts",
            topology.hosts
        );
    }
    Ok(topology)
}

fn splits(job: &Job, arguments: &PlanArguments) -> Result<Splits> {
    let names: BTreeSet<String> = arguments.whole.iter().cloned().collect();
    let tables = &job.run.model.tables;
    if let Some(name) = names.iter().find(|name| tables.iter().all(|table| table.name != **name)) {
        let known: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
        bail!("--whole {name}: the job has no such table; it has {}", known.join(", "));
    }
    Ok(match (arguments.no_splits, names.is_empty()) {
        (true, _) => Splits::Never,
        (false, false) => Splits::NotOf(names),
        (false, true) => Splits::Allowed,
    })
}

fn method(name: MethodName) -> Method {
    match name {
        MethodName::Greedy => Method::Greedy,
        MethodName::Differencing => Method::Differencing,
        MethodName::LargestFirst => Method::LargestFirst,
    }
}

/// A plan, and what is said of it.
struct Answer {
    plan: Plan,
    planned: Option<Planned>,
    prediction: Prediction,
    text: String,
}

fn answer(request: &Request<'_>, arguments: &PlanArguments) -> Result<Answer> {
    let Some(path) = &arguments.price else {
        if seated(request).is_ok() {
            let by = plan_by_towers(request)?;
            let text = explain_prices(request, &by.plan, &by.prediction);
            return Ok(Answer { plan: by.plan, planned: None, prediction: by.prediction, text });
        }
        let planned = plan(request)?;
        return Ok(Answer {
            plan: planned.plan.clone(),
            text: explain(request, &planned),
            prediction: planned.prediction.clone(),
            planned: Some(planned),
        });
    };
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read the plan {}", path.display()))?;
    let plan = Plan::parse(&text, request.model, request.topology.rank_count())
        .with_context(|| format!("{}", path.display()))?;
    let prediction = predict_ways(request, &plan);
    let text = explain_prices(request, &plan, &prediction);
    Ok(Answer { plan, planned: None, prediction, text })
}

fn write_plan(arguments: &PlanArguments, job: &Job, plan: &Plan) -> Result<()> {
    let Some(path) = &arguments.out else { return Ok(()) };
    let (ranks, grains) = (plan.rank_count, job.run.grain_count);
    if !ranks.is_power_of_two() || !grains.is_multiple_of(ranks) {
        bail!(
            "{}: the job's {grains} grains can be spread over powers of two up to {grains} only, not over {ranks} ranks; \
             change --ranks, or set run.grains",
            path.display()
        );
    }
    std::fs::write(path, plan.to_toml(&job.run.model))
        .with_context(|| format!("cannot write the plan {}", path.display()))?;
    if !arguments.quiet {
        println!();
        println!("written to {}; to train by it: plan = \"{}\" in [process]", path.display(), path.display());
    }
    Ok(())
}

fn report(request: &Request<'_>, answer: &Answer) -> Value {
    let prediction = &answer.prediction;
    let place = |(table, placement): (&campanile_spec::TableSpec, &campanile_spec::Placement)| json!({ "table": table.name, "placement": placement.to_string(), "shards": placement.shards.len() });
    json!({
        "command": "plan",
        "ranks": answer.plan.rank_count,
        "method": answer.planned.as_ref().map(|planned| planned.method.name()),
        "bound_seconds": answer.planned.as_ref().map(|planned| planned.bound.time() as f64 * 1e-12),
        "load_max_seconds": prediction.load_max(),
        "load_mean_seconds": prediction.load_mean(),
        "tables": request.model.tables.iter().zip(&answer.plan.placements).map(place).collect::<Vec<_>>(),
        "statistics": request.loads,
        "prediction": prediction,
    })
}
