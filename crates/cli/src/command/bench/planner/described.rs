//! Tables, or prices, that another program describes as JSON: so that two planners can be held to one model of cost.

use std::{path::Path, time::Instant};

use anyhow::{Context, Result, bail};
use campanile_planner::{
    Prediction, Splits,
    choices::{Choice, Kind, Price, Spread},
    plan, predict,
    search::{Bound, Shape, search},
};
use campanile_spec::{Plan, Returns, topology::Topology};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{Case, table};

/// Tables on a cluster; rates come from a topology.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseFile {
    hosts: usize,
    ranks_per_host: usize,
    memory_mib_per_rank: u64,
    batch_size: usize,
    tables: Vec<CaseTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseTable {
    name: String,
    rows: u64,
    dim: usize,
    /// Ids of a sample.
    ids: f64,
}

/// Plans the tables of a file, and prices another plan for them if there is one.
pub fn plan_case(path: &Path, other: Option<&Path>, rates: Topology) -> Result<Value> {
    let file: CaseFile = read(path)?;
    let topology = Topology {
        hosts: file.hosts,
        ranks_per_host: file.ranks_per_host,
        memory_mib_per_rank: file.memory_mib_per_rank,
        cross_host: Some(rates.between_hosts()),
        ..rates
    };
    let tables = file.tables.into_iter().map(|t| (table(t.name, t.rows, t.dim), t.ids));
    let case = Case::new(tables.collect(), file.batch_size);
    let request = case.request(&topology, Splits::Allowed);
    let start = Instant::now();
    let planned = plan(&request)?;
    let seconds = start.elapsed().as_secs_f64();
    let figures = |prediction: &Prediction| {
        let memory = (0..prediction.ranks.len()).map(|rank| prediction.memory_of(rank)).max();
        json!({
            "max_seconds": prediction.load_max(),
            "mean_seconds": prediction.load_mean(),
            "memory_bytes_max": memory,
        })
    };
    let mut answer = json!({
        "ours": figures(&planned.prediction),
        "planning_seconds": seconds,
        "bound_seconds": planned.bound.time() as f64 * 1e-12,
        "plan": planned.plan.to_toml(&case.model),
    });
    if let Some(other) = other {
        let text =
            std::fs::read_to_string(other).with_context(|| format!("cannot read {}", other.display()))?;
        let other = Plan::parse(&text, &case.model, topology.rank_count())
            .with_context(|| format!("{}", other.display()))?;
        answer["other"] = figures(&predict(&request, &other));
    }
    Ok(answer)
}

/// Parts with somebody else's prices.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PricesFile {
    hosts: usize,
    ranks_per_host: usize,
    memory_bytes: u64,
    tables: Vec<Vec<PricedChoice>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PricedChoice {
    spread: SpreadName,
    /// Picoseconds and bytes of every part.
    parts: Vec<(u64, u64)>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SpreadName {
    Ranks,
    Hosts,
    Everywhere,
}

/// Finds the best assignment of parts that somebody else has priced.
pub fn place_prices(path: &Path) -> Result<Value> {
    let file: PricesFile = read(path)?;
    let shape = Shape {
        hosts: file.hosts,
        ranks_per_host: file.ranks_per_host,
        capacity: file.memory_bytes,
        method: None,
    };
    let ranks = shape.rank_count();
    for (number, choice) in
        file.tables.iter().enumerate().flat_map(|(n, all)| all.iter().map(move |c| (n, c)))
    {
        let parts = choice.parts.len();
        let fits = match choice.spread {
            SpreadName::Ranks => (1..=ranks).contains(&parts),
            SpreadName::Hosts => parts > 0 && parts.is_multiple_of(shape.ranks_per_host) && parts <= ranks,
            SpreadName::Everywhere => parts == ranks,
        };
        if !fits {
            bail!(
                "{}: table {number}: {parts} parts over {:?} of {ranks} ranks",
                path.display(),
                choice.spread
            );
        }
    }
    let tables: Vec<Vec<Choice>> = file.tables.iter().map(|all| all.iter().map(choice).collect()).collect();
    let start = Instant::now();
    let found = search(&tables, shape).with_context(|| format!("{}: nothing fits", path.display()))?;
    let mean = found.loads.iter().map(|load| load.time).sum::<u64>() as f64 / ranks as f64;
    Ok(json!({
        "max_seconds": found.time_max() as f64 * 1e-12,
        "mean_seconds": mean * 1e-12,
        "bound_seconds": Bound::new(&tables, ranks).time() as f64 * 1e-12,
        "planning_seconds": start.elapsed().as_secs_f64(),
        "method": found.method.name(),
        "choices": found.choices,
        "ranks": found.ranks,
    }))
}

fn choice(priced: &PricedChoice) -> Choice {
    let part = |&(time, memory): &(u64, u64)| Price { time, memory };
    Choice {
        // What a part is does not matter to the search.
        kind: Kind::Whole(Returns::Pooled),
        spread: match priced.spread {
            SpreadName::Ranks => Spread::Ranks,
            SpreadName::Hosts => Spread::Hosts,
            SpreadName::Everywhere => Spread::Everywhere,
        },
        parts: priced.parts.iter().map(part).collect(),
        everywhere: Price::default(),
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{}", path.display()))
}
