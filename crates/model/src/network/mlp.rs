//! A plain MLP on the dense inputs and all vectors side by side.

use campanile_spec::ModelSpec;

use super::{heads, towers};
use crate::{ModelError, graph::Graph, workspace::Place};

pub(super) fn build(
    spec: &ModelSpec,
    graph: &mut Graph,
    vectors: &[towers::Vector],
    hidden: &[usize],
) -> Result<Place, ModelError> {
    let (dense, width) = (graph.dense(), towers::width_of(vectors));
    let input = graph.buffer(dense.width + width);
    graph.copy(dense, input.columns(0, dense.width));
    towers::copy(graph, vectors, input.columns(dense.width, width));
    heads::build(spec, graph, input, None, hidden)
}
