//! From a job to what the planner is asked: statistics of the data, the work of the dense network, the wire; and the job
//! flat, by the ways of towers, and with modules, side by side.

use anyhow::Result;
use campanile_data::Dataset;
use campanile_kernels::Isa;
use campanile_model::{Network, optimizer};
use campanile_planner::{
    DenseWork, Prediction, Request, Splits, TableLoad, Wire, compare::compare, place::Method, plan,
    plan_by_towers, statistics,
};
use campanile_spec::{
    Batch, Distil, NetworkSpec, PIPELINE_CHUNKS, Plan, Precision, TowerVariant, config::Job,
    topology::Topology,
};
use serde_json::{Value, json};

/// Rows that are read at once.
const READ_ROWS: u64 = 8192;

/// Batches of a rank in memory beside those that are ready: one at work, one being read, one looked ahead to.
const BATCHES_AT_WORK: usize = 3;

/// What the first rows of the training data ask of every table.
pub fn loads(job: &Job, data: Option<&Dataset>, rows: u64) -> Result<Vec<TableLoad>> {
    let model = &job.run.model;
    let mut batches = Vec::new();
    if let Some(data) = data.filter(|_| rows > 0) {
        // Of fewer rows than a batch has, nobody could say how many are different in a batch.
        let rows = rows.max(job.run.batch_size as u64).min(data.row_count());
        let mut reader = data.reader()?;
        let mut start = 0;
        while start < rows {
            let end = (start + READ_ROWS).min(rows);
            let mut batch = Batch::default();
            reader.read(0, start..end, &mut batch)?;
            batches.push(batch);
            start = end;
        }
    }
    Ok(statistics::loads(model, &batches))
}

/// The dense network, without tower modules, and all else that a rank holds whatever the plan.
pub fn dense_work(job: &Job, rank_count: usize, loads: &[TableLoad]) -> Result<DenseWork> {
    let (run, model) = (&job.run, &job.run.model);
    let whole = Network::new(model, Isa::detect())?;
    let above =
        model.has_tower_modules().then(|| Network::above_towers(model, &Distil::default(), Isa::detect()));
    let above = above.transpose()?;
    let network = above.as_ref().unwrap_or(&whole);
    let matrices = network.parameters().iter().filter(|parameter| parameter.shape.len() == 2);
    let ranks = rank_count as f64;
    let grains_of_rank = (run.grain_count as f64 / ranks).max(2.0);
    let operand = match model.precision {
        Precision::F32 => 1.0,
        Precision::Bf16 => 0.5,
    };
    let state = optimizer::state_names(&run.dense.optimizer).len() as f64;
    // The weights, a gradient for every level of the tree, two packed copies, the rank's slice of the state, and
    // slices on their way to the others and back.
    let travelling = if rank_count == 1 { 0.0 } else { 2.0 * (ranks - 1.0) / ranks };
    let floats_per_parameter =
        1.0 + grains_of_rank.log2().floor() + 2.0 * operand + state / ranks + travelling;
    let grain_samples = run.batch_size.div_ceil(run.grain_count);
    let ids: f64 = loads.iter().map(|load| load.ids_per_sample * if load.weighted { 8.0 } else { 4.0 }).sum();
    let columns = model.dense_count + model.features.len() + model.tasks.len() + 4;
    let sample_bytes = columns as f64 * 4.0 + ids;
    let batches = (job.process.batches_ahead + BATCHES_AT_WORK) as f64 * run.batch_size as f64 / ranks;
    Ok(DenseWork {
        products: matrices.map(|parameter| (parameter.shape[1], parameter.shape[0])).collect(),
        interaction_flops: network.forward_flops_per_sample() - network.forward_gemm_flops_per_sample(),
        interaction_width: match &model.network {
            NetworkSpec::Dlrm { bottom, .. } => model.interaction_width(bottom),
            _ => model.interaction_width(&[]),
        }
        .max(1),
        parameter_count: network.parameter_count(),
        // Of a pair of grains the second adds to the first; only pairs are added over all weights.
        gradient_sums: (run.grain_count as f64 / ranks / 2.0 - 1.0).max(0.0),
        chunks: PIPELINE_CHUNKS.min(run.grain_count / rank_count).max(1),
        columns_read: model.dense_count + model.features.len() + model.tasks.len(),
        floats_per_parameter,
        fixed_bytes: whole.workspace(grain_samples).bytes() as u64 + (batches * sample_bytes) as u64,
    })
}

/// How vectors and gradients travel.
pub fn wire(job: &Job) -> Wire {
    Wire { forward: job.run.exchange.forward, backward: job.run.exchange.backward }
}

/// The job as one of its variants: flat, by the ways of towers, or with modules. Without modules vectors keep their length,
/// so a DLRM's bottom network ends with that length too.
pub fn with_variant(job: &Job, variant: TowerVariant) -> Job {
    let mut job = job.clone();
    let model = &mut job.run.model;
    let had_modules = model.tower_modules().next().is_some();
    model.towers.variant = variant;
    let has_modules = model.tower_modules().next().is_some();
    let width = match has_modules {
        true => model.interaction_width(&[]),
        false => (0..model.features.len()).map(|feature| model.table_of(feature).dim).max().unwrap_or(1),
    };
    if had_modules != has_modules
        && let NetworkSpec::Dlrm { bottom, .. } = &mut model.network
        && let Some(last) = bottom.last_mut()
    {
        *last = width;
    }
    job
}

/// A variant, planned and priced, or why not.
pub struct Priced {
    /// Which.
    pub variant: TowerVariant,
    /// Its plan and what that costs.
    pub found: Result<(Plan, Prediction), String>,
}

impl Priced {
    /// Its name in a table.
    pub fn name(&self) -> &'static str {
        match self.variant {
            TowerVariant::Flat => "flat",
            TowerVariant::Sptt => "sptt",
            TowerVariant::Towers => "towers",
        }
    }

    fn price(&self) -> Result<&Prediction, &str> {
        self.found.as_ref().map(|(_, prediction)| prediction).map_err(String::as_str)
    }
}

/// What all variants have in common.
pub struct Question<'a> {
    /// What the cluster can do.
    pub topology: &'a Topology,
    /// One per table.
    pub loads: &'a [TableLoad],
    /// Which tables may be split.
    pub splits: Splits,
    /// Place parts by this method only.
    pub method: Option<Method>,
}

/// Plans and prices the job flat, by the ways of towers, and with modules if it has any.
///
/// # Errors
/// When the network cannot be built.
pub fn price_variants(job: &Job, question: &Question<'_>) -> Result<Vec<Priced>> {
    let mut all = Vec::new();
    for variant in [TowerVariant::Flat, TowerVariant::Sptt, TowerVariant::Towers] {
        if variant == TowerVariant::Towers
            && with_variant(job, variant).run.model.tower_modules().next().is_none()
        {
            continue;
        }
        all.push(Priced { variant, found: price_variant(&with_variant(job, variant), question)? });
    }
    Ok(all)
}

fn price_variant(job: &Job, question: &Question<'_>) -> Result<Result<(Plan, Prediction), String>> {
    let dense = dense_work(job, question.topology.rank_count(), question.loads)?;
    let request = request(job, question, &dense);
    if job.run.model.towers.variant == TowerVariant::Flat {
        let planned = plan(&request).map(|planned| (planned.plan, planned.prediction));
        return Ok(planned.map_err(|problem| problem.to_string()));
    }
    let planned = plan_by_towers(&request).map(|by| (by.plan, by.prediction));
    Ok(planned.map_err(|problem| problem.to_string()))
}

/// What the planner is asked for a job.
pub fn request<'a>(job: &'a Job, question: &Question<'a>, dense: &'a DenseWork) -> Request<'a> {
    Request {
        model: &job.run.model,
        optimizer: &job.run.sparse.optimizer,
        batch_size: job.run.batch_size,
        topology: question.topology,
        loads: question.loads,
        dense,
        wire: wire(job),
        splits: question.splits.clone(),
        may_copy: true,
        method: question.method,
    }
}

/// A line on what the topology's file has no price for; `None` where it has all.
pub fn without_price(topology: &Topology) -> Option<String> {
    let missing = topology.without_price();
    (!missing.is_empty()).then(|| {
        format!(
            "the topology has no {}: what that prices counts as nothing; `campanile bench topology` measures it\n",
            missing.join(", ")
        )
    })
}

/// The variants side by side.
pub fn comparison(all: &[Priced]) -> String {
    let columns: Vec<(&str, Result<&Prediction, &str>)> =
        all.iter().map(|priced| (priced.name(), priced.price())).collect();
    compare(&columns)
}

/// The same for reports.
pub fn comparison_report(all: &[Priced]) -> Value {
    let one = |priced: &Priced| match priced.price() {
        Ok(price) => json!({
            "variant": priced.name(),
            "step_seconds": price.step_seconds,
            "overlapped_seconds": price.overlapped_seconds,
            "cross_host_bytes": price.ranks.iter().map(|rank| rank.cross_host_bytes).sum::<f64>(),
            "in_host_bytes": price.ranks.iter().map(|rank| rank.in_host_bytes).sum::<f64>(),
            "exchange_seconds": price.exchange_seconds(),
            "compute_seconds": price.compute_seconds(),
        }),
        Err(why) => json!({ "variant": priced.name(), "no_price": why }),
    };
    all.iter().map(one).collect()
}
