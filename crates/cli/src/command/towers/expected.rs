//! What learned towers would bring on a measured topology: the planner's own prices.

use anyhow::{Context, Result};
use campanile_data::Prepared;
use campanile_planner::Splits;
use campanile_spec::{
    Bytes, ModelSpec, NetworkSpec, TowerModule, TowerSpec, TowerVariant, Towers, config::Job,
};
use serde_json::{Value, json};

use crate::{
    args::towers::TowersArguments,
    command::plan::{read_topology, resized},
    pricing::{self, Priced, Question},
};

/// Rows of the training data that tell how often ids come.
const SAMPLE_ROWS: u64 = 65_536;

/// What to say, and what to report.
pub struct OnTopology {
    /// For the terminal.
    pub text: String,
    /// For the report.
    pub report: Value,
}

/// Prices the learned towers where a topology was given.
pub fn on_topology(
    arguments: &TowersArguments,
    (job, prepared): (&Job, &Prepared),
    partition: &[usize],
    width: usize,
) -> Result<Option<OnTopology>> {
    let Some(path) = &arguments.topology else { return Ok(None) };
    let topology = resized(read_topology(path)?, arguments.ranks)?;
    let loads = pricing::loads(job, Some(&prepared.train), SAMPLE_ROWS)?;
    let question = Question { topology: &topology, loads: &loads, splits: Splits::Allowed, method: None };
    let priced = pricing::price_variants(&with_towers(job, partition, width), &question)
        .context("cannot price the learned towers")?;
    let mut text = format!(
        "expected on {} ({} hosts of {} ranks), batches of {}\n\n{}",
        path.display(),
        topology.hosts,
        topology.ranks_per_host,
        job.run.batch_size,
        pricing::comparison(&priced)
    );
    if let Some((flat, towers)) = bytes_across(&priced) {
        let saved = Bytes((flat - towers).max(0.0) as u64);
        let share = if flat > 0.0 { 100.0 * (flat - towers) / flat } else { 0.0 };
        text += &format!("towers save {saved} of what crosses hosts in a step ({share:.0} %)\n");
    }
    text += &pricing::without_price(&topology).unwrap_or_default();
    text.push('\n');
    Ok(Some(OnTopology { text, report: json!({ "variants": pricing::comparison_report(&priced) }) }))
}

/// Bytes between hosts, flat and in the last variant that has a price.
fn bytes_across(priced: &[Priced]) -> Option<(f64, f64)> {
    let bytes = |priced: &Priced| {
        let (_, prediction) = priced.found.as_ref().ok()?;
        Some(prediction.ranks.iter().map(|rank| rank.cross_host_bytes).sum::<f64>())
    };
    Some((bytes(priced.first()?)?, bytes(priced.last()?)?))
}

/// The job with these towers, each with a module that hands on vectors of `width` floats where the network takes that.
pub fn with_towers(job: &Job, partition: &[usize], width: usize) -> Job {
    let mut job = pricing::with_variant(job, TowerVariant::Flat);
    let model = &mut job.run.model;
    let count = partition.iter().max().map_or(0, |last| last + 1);
    let features = |tower: usize| (0..partition.len()).filter(move |&feature| partition[feature] == tower);
    let module = module(model, width);
    let list = (0..count).map(|tower| TowerSpec {
        name: format!("tower_{tower}"),
        features: features(tower).collect(),
        module,
    });
    model.towers = Towers { variant: TowerVariant::Flat, module_rate: 1.0, list: list.collect() };
    pricing::with_variant(&job, TowerVariant::Towers)
}

fn module(model: &ModelSpec, width: usize) -> TowerModule {
    let first = model.tables.first().map_or(0, |table| table.dim);
    let alike = model.tables.iter().all(|table| table.dim == first);
    match model.network {
        NetworkSpec::Dlrm { .. } | NetworkSpec::Dcn { .. } | NetworkSpec::Mlp { .. } if alike => {
            TowerModule::Ensemble { per_feature: 1, mixed: 0, width }
        }
        _ => TowerModule::Identity,
    }
}
