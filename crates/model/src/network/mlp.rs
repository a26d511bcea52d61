//! A plain MLP on the dense inputs and all vectors side by side.

use campanile_spec::ModelSpec;

use super::heads;
use crate::{ModelError, graph::Graph, workspace::Place};

pub(super) fn build(spec: &ModelSpec, graph: &mut Graph, hidden: &[usize]) -> Result<Place, ModelError> {
    let (dense, pooled) = (graph.dense(), graph.pooled());
    let input = graph.buffer(dense.width + pooled.width);
    graph.copy(dense, input.columns(0, dense.width));
    graph.copy(pooled, input.columns(dense.width, pooled.width));
    heads::build(spec, graph, input, None, hidden)
}
