//! `campanile bench planner`: how even, how fast and how near to the best plans are; no ranks, no data.

mod described;

use std::time::Instant;

use anyhow::{Result, bail};
use campanile_planner::{DenseWork, Planned, Request, Splits, TableLoad, Wire, plan};
use campanile_spec::{
    FeatureSpec, Heads, ModelSpec, NetworkSpec, Pooling, Precision, RowFormat, RowInit, SparseOptimizer,
    TableId, TableSpec, Towers, topology::Topology,
};
use serde_json::{Value, json};

use super::random::Random;

use crate::{
    args::planning::PlannerBenchArguments,
    command::{plan::read_topology, write_report},
    format,
};

/// Rates of a server with eight ranks, measured once; only their proportions matter here.
const SERVER: &str = include_str!("../../../../../examples/cluster/topology.toml");

const BATCH_SIZE: usize = 8192;
const RANKS_PER_HOST: usize = 8;

/// How the standard optimizer moves rows.
const OPTIMIZER: SparseOptimizer = SparseOptimizer::RowwiseAdagrad { epsilon: 1e-8, initial: 0.0 };

/// Runs the command.
pub fn run(arguments: &PlannerBenchArguments) -> Result<()> {
    let rates = match &arguments.topology {
        Some(path) => read_topology(path)?,
        None => Topology::parse(SERVER)?,
    };
    if let Some(path) = &arguments.prices {
        println!("{:#}", described::place_prices(path)?);
        return Ok(());
    }
    if let Some(path) = &arguments.case {
        println!("{:#}", described::plan_case(path, arguments.plan.as_deref(), rates)?);
        return Ok(());
    }
    if arguments.tables == 0 || !arguments.ranks.is_multiple_of(RANKS_PER_HOST) || arguments.ranks == 0 {
        bail!("--tables must be at least 1, and --ranks a multiple of {RANKS_PER_HOST}");
    }
    let topology = Topology {
        hosts: arguments.ranks / RANKS_PER_HOST,
        ranks_per_host: RANKS_PER_HOST,
        memory_mib_per_rank: 16 << 10,
        cross_host: Some(rates.between_hosts()),
        ..rates
    };
    println!(
        "{} tables with log-normal costs over {} ranks",
        format::count(arguments.tables as u64),
        arguments.ranks
    );
    println!("  splits   seed  max/mean  above the bound  planned in");
    let mut lines = Vec::new();
    for splits in [Splits::Allowed, Splits::Never] {
        for seed in 1..=arguments.seeds {
            lines.push(one(arguments.tables, seed, &topology, &splits)?);
        }
    }
    write_report(arguments.report.as_deref(), &json!({ "command": "bench planner", "plans": lines }))
}

fn one(tables: usize, seed: u64, topology: &Topology, splits: &Splits) -> Result<Value> {
    let case = Case::log_normal(tables, seed);
    let request = case.request(topology, splits.clone());
    let start = Instant::now();
    let planned = plan(&request)?;
    let seconds = start.elapsed().as_secs_f64();
    let balance = planned.prediction.load_max() / planned.prediction.load_mean();
    let above = 100.0 * (planned.prediction.load_max() / (planned.bound.time() as f64 * 1e-12) - 1.0);
    let words = if *splits == Splits::Never { "never" } else { "allowed" };
    let reason = bound_words(&case.model, &planned);
    println!("  {words:<7}  {seed:>4}  {balance:>8.3}  {above:>13.2} %  {seconds:>8.2} s{reason}");
    Ok(json!({
        "splits": words, "seed": seed, "max_over_mean": balance, "above_bound_percent": above,
        "planning_seconds": seconds, "max_seconds": planned.prediction.load_max(),
        "bound_seconds": planned.bound.time() as f64 * 1e-12,
    }))
}

/// Says when one table alone is the bound.
fn bound_words(model: &ModelSpec, planned: &Planned) -> String {
    match planned.bound.largest {
        Some((table, time)) if time > planned.bound.mean => {
            format!("; the bound is table `{}` alone", model.tables[table].name)
        }
        _ => String::new(),
    }
}

/// Tables with what a batch asks of them.
struct Case {
    model: ModelSpec,
    loads: Vec<TableLoad>,
    batch_size: usize,
    dense: DenseWork,
}

impl Case {
    fn new(tables: Vec<(TableSpec, f64)>, batch_size: usize) -> Case {
        let loads = tables.iter().map(|(table, ids)| TableLoad::even(table, 1, *ids)).collect();
        let feature = |(place, (table, _)): (usize, &(TableSpec, f64))| FeatureSpec {
            name: table.name.clone(),
            table: TableId(place as u32),
            pooling: Pooling::Sum,
        };
        let model = ModelSpec {
            dense_count: 0,
            features: tables.iter().enumerate().map(feature).collect(),
            tables: tables.into_iter().map(|(table, _)| table).collect(),
            tasks: Vec::new(),
            network: NetworkSpec::LogisticRegression,
            heads: Heads::Shared,
            precision: Precision::F32,
            towers: Towers::default(),
            followers: Vec::new(),
        };
        Case { model, loads, batch_size, dense: DenseWork::default() }
    }

    /// Rows and ids vary by orders of magnitude, dims by a factor of eight.
    fn log_normal(count: usize, seed: u64) -> Case {
        let mut random = Random(seed);
        let table = |number: usize| {
            let dim = [16, 32, 64, 128][(random.unit() * 4.0) as usize];
            let rows = (100_000.0 * random.log_normal()) as u64 + 1;
            (table(format!("t{number:04}"), rows, dim), 10.0 * random.log_normal())
        };
        Case::new((0..count).map(table).collect(), BATCH_SIZE)
    }

    fn request<'a>(&'a self, topology: &'a Topology, splits: Splits) -> Request<'a> {
        Request {
            model: &self.model,
            optimizer: &OPTIMIZER,
            batch_size: self.batch_size,
            topology,
            loads: &self.loads,
            dense: &self.dense,
            wire: Wire::F32,
            splits,
            may_copy: true,
            method: None,
        }
    }
}

fn table(name: String, row_count: u64, dim: usize) -> TableSpec {
    TableSpec { name, row_count, dim, format: RowFormat::F32, init: RowInit::Zeros }
}
