//! What a step asks of one rank, whatever the machine: multiplications and weights of the dense network and of tower
//! modules, floats of vectors, bytes of rows.
//!
//! With `F` vectors of `N` floats, and `D = N / CR` floats of each that a tower hands on:
//!
//! ```text
//!   dlrm     bottom's layers, its last D wide; (F+1)² D for the dots; top's layers on D + F(F+1)/2 inputs
//!   dcn      bottom's layers; cross layers on X = bottom + F D inputs: 2 r X each, or X²; deep layers on X inputs
//!   project  F N D for the towers, N D weights of one
//!   cross    towers of F_t N floats: 2 r F_t N (or their square) a layer, and F_t N · F_t D for the projection
//! ```

use campanile_spec::{
    CrossRank,
    workload::{DenseNetwork, ModuleKind, SplitKind, Workload},
};

/// Operations of training per multiplication of the forward pass: two for each, three times.
pub const FLOPS_PER_MULTIPLICATION: f64 = 6.0;

/// Work of something dense.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Dense {
    /// Multiplications of a sample's forward pass.
    pub multiplications: f64,
    /// Weights.
    pub weights: f64,
}

impl Dense {
    fn layer(&mut self, inputs: f64, outputs: f64) {
        self.multiplications += inputs * outputs;
        self.weights += (inputs + 1.0) * outputs;
    }

    /// Layers one after the other; the width of the last.
    fn layers(&mut self, inputs: f64, outputs: impl IntoIterator<Item = f64>) -> f64 {
        outputs.into_iter().fold(inputs, |inputs, outputs| {
            self.layer(inputs, outputs);
            outputs
        })
    }

    fn cross(&mut self, layers: usize, rank: CrossRank, width: f64) {
        for _ in 0..layers {
            match rank {
                CrossRank::Full => self.layer(width, width),
                CrossRank::Low(rank) => {
                    self.multiplications += 2.0 * rank as f64 * width;
                    self.weights += (2.0 * rank as f64 + 1.0) * width;
                }
            }
        }
    }
}

/// Floats of one sample's vectors.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Floats {
    /// Of tables that are spread whole: their pooled vectors travel.
    pub pooled: f64,
    /// Of tables that are cut by rows: partial vectors are summed over the ranks that share them.
    pub summed: f64,
}

impl Floats {
    /// Of all vectors.
    pub fn all(&self) -> f64 {
        self.pooled + self.summed
    }
}

/// Floats of one sample's vectors.
pub fn floats(workload: &Workload) -> Floats {
    let mut floats = Floats::default();
    for group in &workload.table {
        let width = (group.count * group.dim) as f64;
        match group.split {
            SplitKind::Tables => floats.pooled += width,
            SplitKind::Rows => floats.summed += width,
        }
    }
    floats
}

/// Bytes of one sample's ids.
pub fn id_bytes(workload: &Workload) -> f64 {
    workload.table.iter().map(|group| group.count as f64 * group.ids * workload.id_bytes).sum()
}

/// The network above the towers, when what they hand on is shorter by `ratio`.
pub fn network(workload: &Workload, ratio: f64) -> Dense {
    let features = workload.feature_count() as f64;
    let handed_on = floats(workload).all() / ratio;
    let mut dense = Dense::default();
    let widths = |widths: &[usize]| widths.iter().map(|width| *width as f64).collect::<Vec<f64>>();
    match &workload.network {
        DenseNetwork::Dlrm { dense_count, bottom, top } => {
            let mut bottom = widths(bottom);
            if let Some(last) = bottom.last_mut() {
                *last = handed_on / features;
            }
            let width = dense.layers(*dense_count as f64, bottom);
            dense.multiplications += (features + 1.0) * (features + 1.0) * width;
            let pairs = features * (features + 1.0) / 2.0;
            dense.layers(width + pairs, widths(top).into_iter().chain([1.0]));
        }
        DenseNetwork::Dcn { dense_count, bottom, cross_layers, cross_rank, deep } => {
            let width = dense.layers(*dense_count as f64, widths(bottom)) + handed_on;
            dense.cross(*cross_layers, *cross_rank, width);
            dense.layers(width, widths(deep).into_iter().chain([1.0]));
        }
        DenseNetwork::Counted { forward_mflop, million_weights } => {
            dense.multiplications = forward_mflop * 1e6 / 2.0;
            dense.weights = million_weights * 1e6;
        }
    }
    dense
}

/// The modules of all towers for a sample, and the weights of one tower's.
pub fn modules(workload: &Workload, towers: usize, ratio: f64) -> Dense {
    let towers = towers as f64;
    let (all, features) = (floats(workload).all(), workload.feature_count() as f64);
    let mut dense = Dense::default();
    match workload.module {
        ModuleKind::None => {}
        ModuleKind::Project => {
            let (dim, width) = (all / features, all / features / ratio);
            dense.multiplications = features * dim * width;
            dense.weights = dim * width;
        }
        ModuleKind::Cross { layers, rank } => {
            let input = all / towers;
            dense.cross(layers, rank, input);
            dense.multiplications += input * input / ratio;
            dense.weights += input * input / ratio;
            dense.multiplications *= towers;
        }
    }
    dense
}
