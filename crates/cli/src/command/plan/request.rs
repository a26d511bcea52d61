//! From a job to what the planner is asked: statistics of the data, the work of the dense network, the wire.

use anyhow::Result;
use campanile_data::Dataset;
use campanile_kernels::Isa;
use campanile_model::{Network, optimizer};
use campanile_planner::{DenseWork, TableLoad, Wire, statistics};
use campanile_spec::{
    Batch, Precision,
    config::{Job, WireFormat},
};

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

/// The dense network and all else that a rank holds whatever the plan.
pub fn dense_work(job: &Job, rank_count: usize, loads: &[TableLoad]) -> Result<DenseWork> {
    let (run, model) = (&job.run, &job.run.model);
    let network = Network::new(model, Isa::detect())?;
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
        interaction_width: model.tables.iter().map(|table| table.dim).max().unwrap_or(1),
        parameter_count: network.parameter_count(),
        floats_per_parameter,
        fixed_bytes: network.workspace(grain_samples).bytes() as u64 + (batches * sample_bytes) as u64,
    })
}

/// Bytes of a float on its way.
pub fn wire(job: &Job) -> Wire {
    let bytes = |format| match format {
        WireFormat::F32 => 4.0,
        WireFormat::F16 | WireFormat::Bf16 => 2.0,
        // A byte an element, and a scale and an offset for every 32.
        WireFormat::Int8 => 1.25,
    };
    Wire { forward: bytes(job.run.exchange.forward), backward: bytes(job.run.exchange.backward) }
}
