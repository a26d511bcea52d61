//! The layers above the interaction: one MLP for all tasks, or one for each.

use std::ops::Range;

use campanile_spec::{Heads, ModelSpec};

use crate::{
    ModelError,
    graph::{Graph, Tail},
    workspace::Place,
};

/// The heads that learn from a teacher: from what it says, and from that as corrected by an adapter.
pub(super) const TEACHER_HEADS: [&str; 2] = ["auxiliary", "adapted"];

/// Whether a weight belongs to a head that learns from a teacher.
pub(super) fn is_teachers(name: &str) -> bool {
    let first = name.split('.').next();
    TEACHER_HEADS.iter().any(|head| first == Some(head))
}

/// Every head: hidden layers on `input`, then its logits. `beside`, if there is one, is put in front of the
/// last hidden layer's output for the logits (DCN's parallel cross net); without hidden layers the logits see
/// only that.
pub(super) fn build(
    spec: &ModelSpec,
    graph: &mut Graph,
    input: Place,
    beside: Option<Place>,
    hidden: &[usize],
) -> Result<Place, ModelError> {
    let (distil, task_count) = (graph.distil, spec.tasks.len());
    let logits = graph.buffer(task_count * (1 + distil.extra_heads()));
    let mut lasts = Vec::new();
    for (prefix, tasks) in heads(spec) {
        let last = match beside {
            None => graph.mlp(&prefix, input, hidden)?,
            Some(beside) if hidden.is_empty() => beside,
            Some(beside) => {
                let deep = hidden[hidden.len() - 1];
                let both = graph.buffer(beside.width + deep);
                graph.mlp_into(&prefix, input, hidden, both.columns(beside.width, deep))?;
                graph.copy(beside, both.columns(0, beside.width));
                both
            }
        };
        let own = logits.columns(tasks.start, tasks.len());
        graph.linear((&format!("{prefix}.{}", hidden.len()), "weight"), last, own, Tail::Bias)?;
        graph.hidden.push(last);
        lasts.push((prefix, tasks, last));
    }
    teacher_heads(graph, &lasts, logits, task_count)?;
    Ok(logits)
}

/// The heads that learn from a teacher: linear in what the serving logits are linear in. They come last, so that
/// the weights that are served are the first ones.
fn teacher_heads(
    graph: &mut Graph,
    lasts: &[(String, Range<usize>, Place)],
    logits: Place,
    task_count: usize,
) -> Result<(), ModelError> {
    let distil = graph.distil;
    for (kind, name) in TEACHER_HEADS[..distil.extra_heads()].iter().enumerate() {
        for (prefix, tasks, last) in lasts {
            let x = graph.buffer(last.width);
            graph.scaled(*last, x, distil.gradient_scale);
            let own = logits.columns((1 + kind) * task_count + tasks.start, tasks.len());
            graph.linear((&format!("{name}.{prefix}"), "weight"), x, own, Tail::Bias)?;
        }
    }
    Ok(())
}

/// The heads' names and the tasks that each predicts.
fn heads(spec: &ModelSpec) -> Vec<(String, Range<usize>)> {
    match spec.heads {
        Heads::Shared => vec![("top".to_string(), 0..spec.tasks.len())],
        Heads::Separate => {
            let name = |(task, spec): (usize, &campanile_spec::TaskSpec)| {
                (format!("head.{}", spec.name), task..task + 1)
            };
            spec.tasks.iter().enumerate().map(name).collect()
        }
    }
}
