//! The layers above the interaction: one MLP for all tasks, or one for each.

use std::ops::Range;

use campanile_spec::{Heads, ModelSpec};

use crate::{
    ModelError,
    graph::{Graph, Tail},
    workspace::Place,
};

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
    let logits = graph.buffer(spec.tasks.len());
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
    }
    Ok(logits)
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
