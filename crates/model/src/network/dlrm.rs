//! DLRM: bottom MLP on the dense inputs, dots of all pairs of vectors, top MLP.
//!
//! ```text
//!   vectors  [ bottom | feature 0 | feature 1 | … ]     projected features and the bottom MLP write in place
//!               │ copy          │ dots of all pairs
//!   input    [ bottom | pairs ……………………………… ]     read by the heads
//! ```

use campanile_kernels::interact::Vectors;
use campanile_spec::ModelSpec;

use super::{
    heads,
    towers::{Vector, run_from},
};
use crate::{
    ModelError,
    graph::{Graph, Tail},
    workspace::Place,
};

pub(super) fn build(
    spec: &ModelSpec,
    graph: &mut Graph,
    above: &[Vector],
    (bottom, top): (&[usize], &[usize]),
) -> Result<Place, ModelError> {
    let has_dense = usize::from(spec.dense_count > 0);
    if bottom.is_empty() && has_dense > 0 {
        return Err(ModelError::NoBottom { dense_count: spec.dense_count });
    }
    let width = spec.interaction_width(bottom);
    let shape = Vectors { count: above.len() + has_dense, width };
    if shape.count < 2 {
        return Err(ModelError::NothingToInteract { vectors: shape.count });
    }
    let vectors = graph.buffer(shape.floats());
    let input = graph.buffer(has_dense * width + shape.pairs());
    let (dense, first) = (graph.dense(), vectors.columns(0, width));
    if has_dense > 0 {
        graph.mlp_into("bottom", dense, bottom, first)?;
    }
    place_vectors(graph, above, vectors.columns(has_dense * width, above.len() * width), width)?;
    if has_dense > 0 {
        graph.copy(first, input.columns(0, width));
    }
    graph.interaction(shape, vectors, input.columns(has_dense * width, shape.pairs()));
    heads::build(spec, graph, input, None, top)
}

/// Puts the vectors side by side: projected where one has another width; neighbours that need no projection are
/// copied together.
fn place_vectors(graph: &mut Graph, above: &[Vector], to: Place, width: usize) -> Result<(), ModelError> {
    let mut next = 0;
    while next < above.len() {
        let vector = &above[next];
        let mut end = next + 1;
        if vector.place.width == width {
            let same = above[next..].iter().take_while(|vector| vector.place.width == width).count();
            let (run, count) = run_from(&above[next..next + same]);
            end = next + count;
            graph.copy(run, to.columns(next * width, run.width));
        } else {
            let name = format!("project.{}", vector.name);
            graph.linear((&name, "weight"), vector.place, to.columns(next * width, width), Tail::Bare)?;
        }
        next = end;
    }
    Ok(())
}
