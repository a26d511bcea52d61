//! DCN-v2: cross layers `x ← x0 * (W x + b) + x` on everything side by side, and a deep MLP.
//!
//! `W` is a square matrix, or `U V` through a few columns. The deep MLP stands on the cross net's output
//! (stacked), or beside it on the same input (parallel), and then the logits see both outputs.

use campanile_spec::{CrossRank, DcnStructure, ModelSpec};

use super::{heads, towers};
use crate::{
    ModelError,
    graph::{Graph, Tail},
    workspace::Place,
};

/// The cross net's shape.
pub(super) struct CrossNet {
    pub layers: usize,
    pub rank: CrossRank,
    pub structure: DcnStructure,
}

pub(super) fn build(
    spec: &ModelSpec,
    graph: &mut Graph,
    vectors: &[towers::Vector],
    net: CrossNet,
    (bottom, deep): (&[usize], &[usize]),
) -> Result<Place, ModelError> {
    let (dense, width) = (graph.dense(), towers::width_of(vectors));
    let first = if spec.dense_count == 0 { 0 } else { bottom.last().copied().unwrap_or(spec.dense_count) };
    let x0 = graph.buffer(first + width);
    if first > 0 && !bottom.is_empty() {
        graph.mlp_into("bottom", dense, bottom, x0.columns(0, first))?;
    } else {
        graph.copy(dense, x0.columns(0, first));
    }
    towers::copy(graph, vectors, x0.columns(first, width));
    let x = cross_layers(graph, x0, "cross", (net.layers, net.rank))?;
    match net.structure {
        DcnStructure::Stacked => heads::build(spec, graph, x, None, deep),
        DcnStructure::Parallel => heads::build(spec, graph, x0, Some(x), deep),
    }
}

/// Cross layers named `prefix.0` and so on; also those of a tower.
pub(super) fn cross_layers(
    graph: &mut Graph,
    x0: Place,
    prefix: &str,
    (layers, rank): (usize, CrossRank),
) -> Result<Place, ModelError> {
    let mut x = x0;
    for layer in 0..layers {
        let prefix = format!("{prefix}.{layer}");
        let u = graph.buffer(x0.width);
        match rank {
            CrossRank::Full => graph.linear((&prefix, "weight"), x, u, Tail::Bias)?,
            CrossRank::Low(rank) => {
                let thin = graph.buffer(rank);
                graph.linear((&prefix, "v"), x, thin, Tail::Bare)?;
                graph.linear((&prefix, "u"), thin, u, Tail::Bias)?;
            }
        }
        x = graph.cross(x0, u, x);
    }
    Ok(x)
}
