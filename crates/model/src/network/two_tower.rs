//! Two towers: what the user brings and what the item brings meet in one dot for each task.
//!
//! ```text
//!   user's inputs ──► MLP ──► x ──► u of each task ┐
//!                                                  ├──► u · v, the logit
//!   item's inputs ──► MLP ──► y ──► v of each task ┘
//! ```
//!
//! The heads that learn from a teacher are vectors of their own on `x` and `y`.

use campanile_kernels::interact::Vectors;
use campanile_spec::{Heads, ModelSpec};

use super::{heads::TEACHER_HEADS, towers::Vector};
use crate::{
    ModelError,
    graph::{Graph, Tail},
    workspace::Place,
};

/// The description's keys.
pub(super) struct Sides<'a> {
    pub item_features: &'a [String],
    pub item_dense: &'a [usize],
    pub user: &'a [usize],
    pub item: &'a [usize],
    pub width: usize,
}

pub(super) fn build(
    spec: &ModelSpec,
    graph: &mut Graph,
    above: &[Vector],
    sides: &Sides<'_>,
) -> Result<Place, ModelError> {
    if spec.has_tower_modules() {
        return Err(ModelError::TowersInTowers);
    }
    let user = gather((spec, graph), above, sides, false)?;
    let item = gather((spec, graph), above, sides, true)?;
    let (distil, task_count) = (graph.distil, spec.tasks.len());
    let logits = graph.buffer(task_count * (1 + distil.extra_heads()));
    let mut lasts: Vec<[Place; 2]> = Vec::new();
    for (number, task) in spec.tasks.iter().enumerate() {
        let last = match (spec.heads, lasts.first()) {
            (Heads::Shared, Some(first)) => *first,
            (Heads::Shared, None) => {
                [graph.mlp("user", user, sides.user)?, graph.mlp("item", item, sides.item)?]
            }
            (Heads::Separate, _) => [
                graph.mlp(&format!("user.{}", task.name), user, sides.user)?,
                graph.mlp(&format!("item.{}", task.name), item, sides.item)?,
            ],
        };
        let names = ["user", "item"].map(|side| format!("{side}.vector.{}", task.name));
        meet(graph, &names, last, sides.width, logits.columns(number, 1))?;
        lasts.push(last);
    }
    for (kind, head) in TEACHER_HEADS[..distil.extra_heads()].iter().enumerate() {
        for (number, task) in spec.tasks.iter().enumerate() {
            let scaled = lasts[number].map(|last| {
                let x = graph.buffer(last.width);
                graph.scaled(last, x, distil.gradient_scale);
                x
            });
            let names = ["user", "item"].map(|side| format!("{head}.{side}.vector.{}", task.name));
            let logit = logits.columns((1 + kind) * task_count + number, 1);
            meet(graph, &names, scaled, sides.width, logit)?;
        }
    }
    Ok(logits)
}

/// The dot of one vector of each side.
fn meet(
    graph: &mut Graph,
    names: &[String; 2],
    [x, y]: [Place; 2],
    width: usize,
    logit: Place,
) -> Result<(), ModelError> {
    let shape = Vectors { count: 2, width };
    let vectors = graph.buffer(shape.floats());
    graph.linear((&names[0], "weight"), x, vectors.columns(0, width), Tail::Bias)?;
    graph.linear((&names[1], "weight"), y, vectors.columns(width, width), Tail::Bias)?;
    graph.interaction(shape, vectors, logit);
    Ok(())
}

/// The inputs of one side, side by side: its dense ones, then its vectors.
fn gather(
    (spec, graph): (&ModelSpec, &mut Graph),
    above: &[Vector],
    sides: &Sides<'_>,
    of_item: bool,
) -> Result<Place, ModelError> {
    let dense = graph.dense();
    let columns: Vec<Place> = (0..dense.width)
        .filter(|place| sides.item_dense.contains(place) == of_item)
        .map(|place| dense.columns(place, 1))
        .collect();
    // What follows a teacher by an item's ids is the item's.
    let is_items = |name: &str| sides.item_features.iter().any(|own| own == spec.ids_name(name));
    let is_mine = |vector: &&Vector| is_items(&vector.name) == of_item;
    let vectors = above.iter().filter(is_mine).map(|vector| vector.place);
    let parts: Vec<Place> = columns.into_iter().chain(vectors).collect();
    if parts.is_empty() {
        return Err(ModelError::EmptySide { side: if of_item { "item" } else { "user" } });
    }
    let input = graph.buffer(parts.iter().map(|part| part.width).sum());
    let mut start = 0;
    for part in parts {
        graph.copy(part, input.columns(start, part.width));
        start += part.width;
    }
    Ok(input)
}
