//! What the planner is asked.

use std::collections::BTreeSet;

use campanile_spec::{ModelSpec, SparseOptimizer, config::WireFormat, topology::Topology};
use serde::{Deserialize, Serialize};

use crate::{place::Method, statistics::TableLoad};

/// A model on a topology, and what its data asks of it.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The model.
    pub model: &'a ModelSpec,
    /// How rows move; decides the state beside them.
    pub optimizer: &'a SparseOptimizer,
    /// Samples of a global batch.
    pub batch_size: usize,
    /// What the cluster can do.
    pub topology: &'a Topology,
    /// One per table.
    pub loads: &'a [TableLoad],
    /// The dense network, the same on every rank; of a model with tower modules, what is above them.
    pub dense: &'a DenseWork,
    /// How vectors and gradients travel.
    pub wire: Wire,
    /// Which tables may be split.
    pub splits: Splits,
    /// Whether small tables may be copied to all ranks; the ways of towers have no copies.
    pub may_copy: bool,
    /// Place parts by this method only; `None` takes the best of all.
    pub method: Option<Method>,
}

/// The work of the dense network.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct DenseWork {
    /// Layers as (inputs, outputs).
    pub products: Vec<(usize, usize)>,
    /// Operations of a sample's forward pass outside matrix products: the interaction.
    pub interaction_flops: u64,
    /// The width of the vectors that meet there.
    pub interaction_width: usize,
    /// All dense weights.
    pub parameter_count: usize,
    /// How often a rank adds the gradients of all dense weights to others, along the tree of its grains.
    pub gradient_sums: f64,
    /// In how many chunks a rank's samples travel in a pipeline.
    pub chunks: usize,
    /// Columns of a sample that are read: dense inputs, features, labels.
    pub columns_read: usize,
    /// Floats that a rank keeps per dense weight: itself, its gradients, state and packed copies.
    pub floats_per_parameter: f64,
    /// Bytes of a rank that do not depend on the plan: the program, batches read ahead, working memory.
    pub fixed_bytes: u64,
}

/// How vectors and gradients travel.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Wire {
    /// Pooled vectors, to the samples.
    pub forward: WireFormat,
    /// Gradients, to the owners.
    pub backward: WireFormat,
}

/// Which tables may be split or copied.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Splits {
    /// All.
    #[default]
    Allowed,
    /// All but these.
    NotOf(BTreeSet<String>),
    /// None.
    Never,
}

impl Request<'_> {
    /// Seconds for the metrics of all samples: all ranks wait for the first, which judges them.
    pub(crate) fn judge_seconds(&self) -> f64 {
        let tasks = self.model.tasks.len() as f64;
        self.batch_size as f64 * tasks * self.topology.compute.judge_ns * 1e-9
    }

    /// Seconds of one processor to read a rank's samples.
    pub(crate) fn read_seconds(&self) -> f64 {
        let compute = &self.topology.compute;
        let ids: f64 = self.loads.iter().map(|load| load.ids_per_sample).sum();
        let sample = self.dense.columns_read as f64 * compute.read_column_ns + ids * compute.read_id_ns;
        self.local_samples() * sample * 1e-9
    }

    /// Seconds of the rank that sends vectors and takes their gradients: so many floats are encoded, and as many decoded.
    pub(crate) fn sender_seconds(&self, vectors: f64, gradients: f64) -> f64 {
        let compute = &self.topology.compute;
        let (encode, decode) = (compute.codec(self.wire.forward).0, compute.codec(self.wire.backward).1);
        (vectors * encode + gradients * decode) * 1e-9
    }

    /// Seconds of the rank that takes vectors and sends their gradients.
    pub(crate) fn taker_seconds(&self, floats: f64) -> f64 {
        let compute = &self.topology.compute;
        floats * (compute.codec(self.wire.forward).1 + compute.codec(self.wire.backward).0) * 1e-9
    }

    /// Weights of all tower modules.
    pub(crate) fn module_weights(&self) -> f64 {
        self.model.tower_modules().map(|tower| tower.weight_count(self.model) as f64).sum()
    }

    /// Exchanges that a pipeline adds: there and back, vectors travel in chunks.
    pub(crate) fn chunk_exchanges(&self) -> f64 {
        2.0 * (self.dense.chunks.max(1) - 1) as f64
    }

    /// Samples of one rank.
    pub fn local_samples(&self) -> f64 {
        self.batch_size as f64 / self.topology.rank_count() as f64
    }

    /// Whether a table may be split.
    pub fn may_split(&self, table: &str) -> bool {
        match &self.splits {
            Splits::Allowed => true,
            Splits::NotOf(names) => !names.contains(table),
            Splits::Never => false,
        }
    }
}

impl Wire {
    /// 32-bit floats both ways.
    pub const F32: Wire = Wire { forward: WireFormat::F32, backward: WireFormat::F32 };

    /// Bytes of a float on its way.
    pub fn bytes(format: WireFormat) -> f64 {
        match format {
            WireFormat::F32 => 4.0,
            WireFormat::F16 | WireFormat::Bf16 => 2.0,
            // A byte an element, and a scale and an offset for every 32.
            WireFormat::Int8 => 1.25,
        }
    }
}

/// What the dense network takes a rank in a step.
pub(crate) struct DenseSeconds {
    /// Its samples, forward and backward.
    pub network: f64,
    /// Exchange and update of the weights.
    pub weights: f64,
    /// The part of that exchange behind which there is time to compute.
    pub weights_hideable: f64,
}

/// Prices the dense network. Weights of tower modules come on top where all ranks have them.
pub(crate) fn dense_seconds(request: &Request<'_>, module_weights: f64) -> DenseSeconds {
    let (dense, compute) = (request.dense, &request.topology.compute);
    let per_sample: f64 = dense
        .products
        .iter()
        .map(|&(inputs, outputs)| {
            let rate = compute.layer_flops_per_second(inputs, outputs, request.model.precision);
            6.0 * (inputs * outputs) as f64 / rate
        })
        .sum();
    let dots = compute.products(dense.interaction_width as f64).dots_flops_per_second;
    let bytes = (dense.parameter_count as f64 + module_weights) * 4.0;
    let mut network = request.local_samples() * (per_sample + 3.0 * dense.interaction_flops as f64 / dots);
    network += compute.copy_seconds(dense.gradient_sums * bytes);
    // Every weight is packed for the step and its gradient is read and written.
    let mut weights = compute.copy_seconds(4.0 * bytes);
    let mut weights_hideable = 0.0;
    let topology = request.topology;
    let ranks = topology.rank_count() as f64;
    if ranks > 1.0 {
        let elsewhere = (topology.hosts as f64 - 1.0) / topology.hosts as f64;
        let own_host = (ranks - 1.0) / ranks - elsewhere;
        for (link, share) in [(topology.in_host, own_host), (topology.between_hosts(), elsewhere)] {
            let seconds = 2.0 * bytes * share / link.bytes_per_second;
            weights += seconds;
            weights_hideable += seconds * link.hidden_share;
        }
    }
    DenseSeconds { network, weights, weights_hideable }
}
