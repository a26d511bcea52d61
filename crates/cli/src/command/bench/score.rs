//! `campanile bench score`: latency of scoring on one thread.

use std::{
    io::{BufRead, Write},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use campanile_kernels::{Isa, peak};
use campanile_serve::{Options, Request, RowStorage, Scorer, Scores, Side, Snapshot};
use campanile_spec::{Bags, Precision, config::Job};
use serde_json::{Value, json};

use super::workload;
use crate::{
    args::{
        BenchArch, BenchConfig, BenchPrecision, TrainBenchArguments,
        publishing::{BenchRows, ScoreBenchArguments},
    },
    command::write_report,
    format,
};

/// Different requests that are scored in turn.
const REQUESTS: usize = 32;

/// How often the core's own limit is measured between requests, and with how much work: about ten microseconds.
const LIMIT_EVERY: Duration = Duration::from_millis(5);
const LIMIT_ROUNDS: usize = 5_000;

/// Runs the command.
pub fn run(arguments: &ScoreBenchArguments) -> Result<()> {
    let snapshot = snapshot(arguments)?;
    let mut bench = Bench { snapshot, scorer: Scorer::new(), scores: Scores::default(), sets: Vec::new() };
    for &batch in &arguments.batch {
        bench.add(arguments, batch)?;
    }
    if arguments.serve_rounds {
        return bench.serve_rounds();
    }
    let mut lines = Vec::new();
    println!("{:>7}  {:>10}  {:>10}  {:>14}  {:>12}", "samples", "p50", "p99", "samples/s", "of the limit");
    for &batch in &arguments.batch {
        let figures = bench.round(batch, arguments.seconds)?;
        let us = |key: &str| figures[key].as_f64().unwrap_or_default();
        let rate = (batch as f64 / us("p50_us") * 1e6) as u64;
        println!(
            "{batch:>7}  {:>7.1} us  {:>7.1} us  {:>14}  {:>10.0} %",
            us("p50_us"),
            us("p99_us"),
            format::count(rate),
            100.0 * us("limit_p50_us") / us("p50_us")
        );
        lines.push(figures);
    }
    write_report(arguments.report.as_deref(), &json!({ "command": "bench score", "lines": lines }))
}

struct Bench {
    snapshot: Snapshot,
    scorer: Scorer,
    scores: Scores,
    /// Requests by their number of samples.
    sets: Vec<(usize, Vec<Request>)>,
}

impl Bench {
    /// Fills requests of `batch` samples.
    fn add(&mut self, arguments: &ScoreBenchArguments, batch: usize) -> Result<()> {
        let inputs = self.snapshot.inputs();
        let mut requests = Vec::new();
        let samples = workload::batches(&training(arguments, batch * REQUESTS));
        let samples = samples.first().context("no batch was made")?;
        for number in 0..REQUESTS {
            let mut part = samples.slice(number * batch..(number + 1) * batch);
            if arguments.shrink > 1 {
                part.bags = shrunk(&part.bags, arguments.shrink);
            }
            let mut request = Request::new();
            if arguments.user_once {
                request.begin(inputs, batch)?;
                for column in 0..workload::DENSE {
                    request.dense(column, Side::Once, &part.dense[column..=column])?;
                }
                for feature in 0..workload::TABLES {
                    let rows = part.bags.feature(feature).rows;
                    match feature % 2 {
                        0 => request.rows(feature, Side::Once, &[1], &rows[..1])?,
                        _ => request.rows(feature, Side::Each, &vec![1; batch], rows)?,
                    }
                }
                request.finish()?;
            } else {
                request.prepared(inputs, &part.dense, &part.bags)?;
            }
            requests.push(request);
        }
        self.sets.push((batch, requests));
        Ok(())
    }

    /// Scores for about so long, and says how long each request took, and how long its multiplications and additions would
    /// take at the core's limit: measured between the requests, because neighbours and clocks change it.
    fn round(&mut self, batch: usize, seconds: f64) -> Result<Value> {
        let Some((_, requests)) = self.sets.iter().find(|(size, _)| *size == batch) else {
            bail!("requests of {batch} samples were not made; name them with --batch");
        };
        for request in requests.iter().cycle().take(8) {
            self.scorer.score(&self.snapshot, &[request], &mut self.scores)?;
        }
        let (isa, precision) = (Isa::detect(), self.snapshot.model().precision);
        let flops = batch as f64 * self.snapshot.forward_flops_per_sample() as f64;
        let (mut times, mut limits) = (Vec::new(), Vec::new());
        let (begin, span) = (Instant::now(), Duration::from_secs_f64(seconds));
        let mut limit_due = begin;
        for request in requests.iter().cycle() {
            let start = Instant::now();
            self.scorer.score(&self.snapshot, &[request], &mut self.scores)?;
            let end = Instant::now();
            times.push((end - start).as_secs_f64() * 1e6);
            if end >= limit_due {
                let operations = match precision {
                    Precision::F32 => peak::multiply_adds(isa, LIMIT_ROUNDS),
                    Precision::Bf16 => peak::bf16_multiply_adds(isa, LIMIT_ROUNDS),
                };
                limits.push(end.elapsed().as_secs_f64() / operations * flops * 1e6);
                limit_due = end + LIMIT_EVERY;
            }
            if end - begin >= span {
                break;
            }
        }
        let wall = begin.elapsed().as_secs_f64();
        let samples = times.len() * batch;
        times.sort_by(f64::total_cmp);
        limits.sort_by(f64::total_cmp);
        let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
        Ok(json!({
            "batch": batch, "requests": times.len(), "samples": samples, "wall_s": wall,
            "p50_us": at(0.5), "p99_us": at(0.99), "min_us": at(0.0),
            "limit_p50_us": limits[limits.len() / 2], "limit_min_us": limits[0],
        }))
    }

    fn serve_rounds(&mut self) -> Result<()> {
        let mut out = std::io::stdout();
        writeln!(out, "ready")?;
        out.flush()?;
        for line in std::io::stdin().lock().lines() {
            let line = line?;
            let words: Vec<&str> = line.split_whitespace().collect();
            let ["go", seconds, batch] = words[..] else { bail!("`{line}` is not `go SECONDS BATCH`") };
            let figures = self.round(batch.parse()?, seconds.parse()?)?;
            writeln!(out, "{figures}")?;
            out.flush()?;
        }
        Ok(())
    }
}

/// The standard model with the first values of its weights.
fn snapshot(arguments: &ScoreBenchArguments) -> Result<Snapshot> {
    let job = Job::parse(&job_text(arguments))?;
    let options = Options {
        rows: match arguments.rows {
            BenchRows::F32 => RowStorage::F32,
            BenchRows::F16 => RowStorage::F16,
            BenchRows::Int8 => RowStorage::Int8,
        },
        precision: Some(match arguments.precision {
            BenchPrecision::F32 => Precision::F32,
            BenchPrecision::Bf16 => Precision::Bf16,
        }),
        ..Options::default()
    };
    Ok(Snapshot::untrained(&job, "standard", &options)?)
}

/// The same ids in tables with fewer rows.
fn shrunk(bags: &Bags, by: u64) -> Bags {
    let samples = bags.sample_count();
    let counts = workload::rows();
    let rows = (0..bags.feature_count()).flat_map(|feature| {
        let count = (counts[feature] / by).max(1) as u32;
        bags.feature(feature).rows.iter().map(move |row| row % count)
    });
    Bags::one_row_each(bags.feature_count(), samples, rows.collect())
}

fn job_text(arguments: &ScoreBenchArguments) -> String {
    let (dim, bottom, top) = match arguments.config {
        BenchConfig::Kaggle => (16, "[512, 256, 64, 16]", "[512, 256]"),
        BenchConfig::Terabyte => (128, "[512, 256, 128]", "[1024, 1024, 512, 256]"),
    };
    let dense: String =
        (0..workload::DENSE).map(|column| format!("[[run.data.dense]]\nname = \"i{column}\"\n")).collect();
    let sparse: String = workload::rows()
        .iter()
        .enumerate()
        .map(|(table, rows)| {
            let rows = (rows / arguments.shrink).max(1);
            format!("[[run.data.sparse]]\nname = \"t{table:02}\"\nmap = \"direct\"\nrows = {rows}\n")
        })
        .collect();
    format!(
        "[run]\nbatch_size = 64\n[run.data]\nkind = \"csv\"\n[[run.data.label]]\nname = \"click\"\n{dense}{sparse}\
         [run.tables]\ndim = {dim}\ninit = {{ kind = \"uniform\", bound = 0.01 }}\n\
         [run.model]\nkind = \"dlrm\"\nbottom = {bottom}\ntop = {top}\n\
         [run.sparse]\nlearning_rate = 0.01\n[run.dense]\noptimizer = \"adagrad\"\nlearning_rate = 0.01\n\
         [process.data]\ntrain = [\"none\"]\n"
    )
}

/// The ids of the training benchmark, in batches of this size.
fn training(arguments: &ScoreBenchArguments, batch: usize) -> TrainBenchArguments {
    TrainBenchArguments {
        config: arguments.config,
        arch: BenchArch::Dot,
        ids: 1,
        batch,
        precision: arguments.precision,
        threads: 1,
        grains: 1,
        seconds: 0.0,
        all: false,
        serve_rounds: false,
        report: None,
    }
}
