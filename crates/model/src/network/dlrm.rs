//! DLRM: bottom MLP on the dense inputs, dots of all pairs of vectors, top MLP.
//!
//! ```text
//!   vectors  [ bottom | feature 0 | feature 1 | … ]     projected features and the bottom MLP write in place
//!               │ copy          │ dots of all pairs
//!   input    [ bottom | pairs ……………………………… ]     read by the heads
//! ```

use campanile_kernels::interact::Vectors;
use campanile_spec::ModelSpec;

use super::heads;
use crate::{
    ModelError,
    graph::{Graph, Tail},
    workspace::Place,
};

pub(super) fn build(
    spec: &ModelSpec,
    graph: &mut Graph,
    bottom: &[usize],
    top: &[usize],
) -> Result<Place, ModelError> {
    let has_dense = usize::from(spec.dense_count > 0);
    let dims = (0..spec.features.len()).map(|feature| spec.table_of(feature).dim);
    let width = match (bottom.last(), has_dense) {
        (Some(&width), _) => width,
        (None, 0) => dims.max().unwrap_or(0),
        (None, _) => return Err(ModelError::NoBottom { dense_count: spec.dense_count }),
    };
    let shape = Vectors { count: spec.features.len() + has_dense, width };
    if shape.count < 2 {
        return Err(ModelError::NothingToInteract { vectors: shape.count });
    }
    let vectors = graph.buffer(shape.floats());
    let input = graph.buffer(has_dense * width + shape.pairs());
    let (dense, first) = (graph.dense(), vectors.columns(0, width));
    if has_dense > 0 {
        graph.mlp_into("bottom", dense, bottom, first)?;
    }
    place_features(spec, graph, vectors.columns(has_dense * width, spec.features.len() * width), width)?;
    if has_dense > 0 {
        graph.copy(first, input.columns(0, width));
    }
    graph.interaction(shape, vectors, input.columns(has_dense * width, shape.pairs()));
    heads::build(spec, graph, input, None, top)
}

/// Puts the features' vectors side by side: projected where a table has another dim; neighbours that need
/// no projection are copied together.
fn place_features(spec: &ModelSpec, graph: &mut Graph, to: Place, width: usize) -> Result<(), ModelError> {
    let (offsets, pooled) = (spec.pooled_offsets(), graph.pooled());
    let needs_projection = |feature: usize| spec.table_of(feature).dim != width;
    let mut feature = 0;
    while feature < spec.features.len() {
        let mut end = feature + 1;
        if needs_projection(feature) {
            let name = format!("project.{}", spec.features[feature].name);
            let from = pooled.columns(offsets[feature], offsets[end] - offsets[feature]);
            graph.linear((&name, "weight"), from, to.columns(feature * width, width), Tail::Bare)?;
        } else {
            while end < spec.features.len() && !needs_projection(end) {
                end += 1;
            }
            let floats = (end - feature) * width;
            graph.copy(pooled.columns(offsets[feature], floats), to.columns(feature * width, floats));
        }
        feature = end;
    }
    Ok(())
}
