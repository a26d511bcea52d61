//! Two towers, in plain loops: the inputs of the user's and of the item's side, and the dots in which they meet.

use campanile_spec::{Heads, ModelSpec};

use crate::oracle::{DENSE, Op, Tail, Tape};

/// The user's inputs side by side and the item's: the dense ones, then the vectors.
pub(crate) fn inputs(
    spec: &ModelSpec,
    tape: &mut Tape,
    above: Vec<(usize, String)>,
    item_features: &[String],
    item_dense: &[usize],
) -> [usize; 2] {
    let mut inputs = [Vec::new(), Vec::new()];
    for place in 0..spec.dense_count {
        let column = tape.push(Op::Columns(DENSE, place..place + 1));
        inputs[usize::from(item_dense.contains(&place))].push(column);
    }
    for (vector, name) in above {
        let is_items = item_features.iter().any(|own| own == spec.ids_name(&name));
        inputs[usize::from(is_items)].push(vector);
    }
    inputs.map(|parts| tape.push(Op::Beside(parts)))
}

/// An MLP on the inputs of each side, and for each task the dot of a vector of each. The teacher's heads are such dots too.
pub(crate) fn dots(
    spec: &ModelSpec,
    tape: &mut Tape,
    inputs: [usize; 2],
    hidden: [(&str, &Vec<usize>); 2],
    width: usize,
) -> usize {
    let mut lasts: Vec<[usize; 2]> = Vec::new();
    let mut logits = Vec::new();
    let dot = |tape: &mut Tape, head: &str, last: [usize; 2], task: &str| {
        let names = hidden.map(|(side, _)| format!("{head}{side}.vector.{task}"));
        let vectors = [0, 1].map(|i| tape.linear(&names[i], "weight", last[i], width, Tail::Bias));
        // The user's vector is the first of the pair.
        tape.push(Op::Dots(vectors.to_vec()))
    };
    for task in &spec.tasks {
        let last = match (spec.heads, lasts.first()) {
            (Heads::Shared, Some(first)) => *first,
            (Heads::Shared, None) => [0, 1].map(|i| tape.mlp(hidden[i].0, inputs[i], hidden[i].1)),
            (Heads::Separate, _) => {
                [0, 1].map(|i| tape.mlp(&format!("{}.{}", hidden[i].0, task.name), inputs[i], hidden[i].1))
            }
        };
        lasts.push(last);
        logits.push(dot(tape, "", last, &task.name));
    }
    let distil = tape.distil;
    for kind in &["auxiliary.", "adapted."][..distil.extra_heads()] {
        for (task, last) in spec.tasks.iter().zip(&lasts) {
            let scaled = last.map(|last| tape.push(Op::Scaled(last, distil.gradient_scale)));
            logits.push(dot(tape, kind, scaled, &task.name));
        }
    }
    tape.push(Op::Beside(logits))
}
