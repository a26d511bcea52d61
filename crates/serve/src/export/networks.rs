//! The networks as ONNX nodes: the same formulas as `model::network`, one function a model.

use campanile_spec::{CrossRank, DcnStructure, Heads, ModelSpec, NetworkSpec};

use super::{
    graph::Graph,
    towers::{self, Vector},
};

/// Names of the values that a network reads; empty where the model has none.
pub(super) struct Inputs {
    /// `[batch, dense]`.
    pub dense: Option<String>,
    /// `[batch, dim]` of each feature.
    pub pooled: Vec<String>,
}

/// Adds the network and returns the name of its logits `[batch, tasks]`.
pub(super) fn logits(graph: &mut Graph, spec: &ModelSpec, inputs: &Inputs) -> String {
    let above = towers::vectors_above(graph, spec, inputs);
    match &spec.network {
        NetworkSpec::Dlrm { bottom, top } => dlrm(graph, spec, (inputs, &above), bottom, top),
        NetworkSpec::Dcn { bottom, cross_layers, cross_rank, structure, deep } => {
            let first = inputs.dense.as_ref().map(|dense| mlp(graph, "bottom", dense, bottom.len()));
            let x0 = side_by_side(graph, first, &names(&above));
            let crossed = cross(graph, "cross", &x0, (*cross_layers, *cross_rank));
            match structure {
                DcnStructure::Stacked => heads(graph, spec, &crossed, None, deep.len()),
                DcnStructure::Parallel => heads(graph, spec, &x0, Some(&crossed), deep.len()),
            }
        }
        NetworkSpec::Mlp { hidden } => {
            let x = side_by_side(graph, inputs.dense.clone(), &names(&above));
            heads(graph, spec, &x, None, hidden.len())
        }
        NetworkSpec::TwoTower { item_features, item_dense, user, item, .. } => {
            let inputs = [false, true].map(|of_item| {
                let columns: Vec<i64> = (0..spec.dense_count)
                    .filter(|place| item_dense.contains(place) == of_item)
                    .map(|place| place as i64)
                    .collect();
                let dense = inputs.dense.as_ref().filter(|_| !columns.is_empty()).map(|dense| {
                    let columns = graph.integers(&columns);
                    graph.node("Gather", &[dense, &columns], &[("axis", 1)])
                });
                let is_items = |name: &str| item_features.iter().any(|own| own == spec.ids_name(name));
                let mine = above.iter().filter(|vector| is_items(&vector.name) == of_item);
                let mine: Vec<String> = mine.map(|vector| vector.value.clone()).collect();
                side_by_side(graph, dense, &mine)
            });
            two_towers(graph, spec, &inputs, [user.len(), item.len()])
        }
        NetworkSpec::LogisticRegression | NetworkSpec::FactorizationMachine => {
            factorization(graph, spec, inputs)
        }
    }
}

fn names(vectors: &[Vector]) -> Vec<String> {
    vectors.iter().map(|vector| vector.value.clone()).collect()
}

fn dlrm(
    graph: &mut Graph,
    spec: &ModelSpec,
    (inputs, above): (&Inputs, &[Vector]),
    bottom: &[usize],
    top: &[usize],
) -> String {
    let first = inputs.dense.as_ref().map(|dense| mlp(graph, "bottom", dense, bottom.len()));
    let width = spec.interaction_width(bottom);
    let mut vectors = Vec::new();
    for vector in above {
        let projected = match vector.width == width {
            true => vector.value.clone(),
            false => {
                let weight = format!("project.{}.weight", vector.name);
                graph.node("Gemm", &[&vector.value, &weight], &[("transB", 1)])
            }
        };
        vectors.push(projected);
    }
    let count = spec.vector_widths().len() + usize::from(first.is_some());
    let side = side_by_side(graph, first.clone(), &vectors);
    let shape = graph.integers(&[-1, count as i64, width as i64]);
    let cube = graph.node("Reshape", &[&side, &shape], &[]);
    let turned = transposed(graph, &side, count, width);
    let dots = graph.node("MatMul", &[&cube, &turned], &[]);
    let flat = graph.integers(&[-1, (count * count) as i64]);
    let dots = graph.node("Reshape", &[&dots, &flat], &[]);
    let pairs: Vec<i64> = (0..count).flat_map(|i| (0..i).map(move |j| (i * count + j) as i64)).collect();
    let pairs = graph.integers(&pairs);
    let pairs = graph.node("Gather", &[&dots, &pairs], &[("axis", 1)]);
    let x = side_by_side(graph, first, &[pairs]);
    heads(graph, spec, &x, None, top.len())
}

/// `[batch, width, count]` from `count` vectors side by side, by choosing columns: `Transpose` needs a list as
/// its attribute, and this writer has none.
fn transposed(graph: &mut Graph, side: &str, count: usize, width: usize) -> String {
    let columns: Vec<i64> = (0..width)
        .flat_map(|element| (0..count).map(move |vector| (vector * width + element) as i64))
        .collect();
    let columns = graph.integers(&columns);
    let turned = graph.node("Gather", &[side, &columns], &[("axis", 1)]);
    let shape = graph.integers(&[-1, width as i64, count as i64]);
    graph.node("Reshape", &[&turned, &shape], &[])
}

/// Cross layers whose weights are named `prefix.0` and so on.
pub(super) fn cross(graph: &mut Graph, prefix: &str, x0: &str, (layers, rank): (usize, CrossRank)) -> String {
    let mut x = x0.to_owned();
    for layer in 0..layers {
        let weight = |name: &str| format!("{prefix}.{layer}.{name}");
        let u = match rank {
            CrossRank::Full => {
                graph.node("Gemm", &[&x, &weight("weight"), &weight("bias")], &[("transB", 1)])
            }
            CrossRank::Low(_) => {
                let thin = graph.node("Gemm", &[&x, &weight("v")], &[("transB", 1)]);
                graph.node("Gemm", &[&thin, &weight("u"), &weight("bias")], &[("transB", 1)])
            }
        };
        let product = graph.node("Mul", &[x0, &u], &[]);
        x = graph.node("Add", &[&product, &x], &[]);
    }
    x
}

/// Hidden layers with ReLU.
fn mlp(graph: &mut Graph, prefix: &str, x: &str, layers: usize) -> String {
    let mut x = x.to_owned();
    for layer in 0..layers {
        let y = linear(graph, &format!("{prefix}.{layer}"), &x);
        x = graph.node("Relu", &[&y], &[]);
    }
    x
}

fn linear(graph: &mut Graph, prefix: &str, x: &str) -> String {
    let (weight, bias) = (format!("{prefix}.weight"), format!("{prefix}.bias"));
    graph.node("Gemm", &[x, &weight, &bias], &[("transB", 1)])
}

/// One head for all tasks, or one for each.
fn heads(graph: &mut Graph, spec: &ModelSpec, x: &str, beside: Option<&str>, hidden: usize) -> String {
    let prefixes = match spec.heads {
        Heads::Shared => vec!["top".to_owned()],
        Heads::Separate => spec.tasks.iter().map(|task| format!("head.{}", task.name)).collect(),
    };
    let mut logits = Vec::new();
    for prefix in prefixes {
        let last = match beside {
            None => mlp(graph, &prefix, x, hidden),
            Some(beside) if hidden == 0 => beside.to_owned(),
            Some(beside) => {
                let deep = mlp(graph, &prefix, x, hidden);
                side_by_side(graph, Some(beside.to_owned()), &[deep])
            }
        };
        logits.push(linear(graph, &format!("{prefix}.{hidden}"), &last));
    }
    side_by_side(graph, None, &logits)
}

/// A vector of each tower for each task, and their dot.
fn two_towers(graph: &mut Graph, spec: &ModelSpec, inputs: &[String; 2], hidden: [usize; 2]) -> String {
    let sides = ["user", "item"];
    let shared = match spec.heads {
        Heads::Shared => Some([0, 1].map(|side| mlp(graph, sides[side], &inputs[side], hidden[side]))),
        Heads::Separate => None,
    };
    let last_axis = graph.integers(&[1]);
    let mut logits = Vec::new();
    for task in &spec.tasks {
        let vectors = [0, 1].map(|side| {
            let own = || format!("{}.{}", sides[side], task.name);
            let last = match &shared {
                Some(shared) => shared[side].clone(),
                None => mlp(graph, &own(), &inputs[side], hidden[side]),
            };
            linear(graph, &format!("{}.vector.{}", sides[side], task.name), &last)
        });
        let products = graph.node("Mul", &[&vectors[0], &vectors[1]], &[]);
        logits.push(graph.node("ReduceSum", &[&products, &last_axis], &[("keepdims", 1)]));
    }
    side_by_side(graph, None, &logits)
}

/// `linear + Σ w + ½ Σ ((Σ v)² - Σ v²)`, a block of floats for each task.
fn factorization(graph: &mut Graph, spec: &ModelSpec, inputs: &Inputs) -> String {
    let (tasks, features) = (spec.tasks.len(), spec.features.len());
    let own = inputs.dense.as_ref().map(|dense| linear(graph, "linear", dense));
    if features == 0 {
        return own.unwrap_or_else(|| "linear.bias".to_owned());
    }
    let dim = spec.table_of(0).dim;
    let block = dim / tasks;
    let side = side_by_side(graph, None, &inputs.pooled);
    let shape = graph.integers(&[-1, features as i64, dim as i64]);
    let rows = graph.node("Reshape", &[&side, &shape], &[]);
    let by_feature = graph.integers(&[1]);
    let sums = graph.node("ReduceSum", &[&rows, &by_feature], &[("keepdims", 0)]);
    let columns = |first: usize, count: usize| -> Vec<i64> {
        (0..tasks).flat_map(|task| (first..first + count).map(move |c| (task * block + c) as i64)).collect()
    };
    let firsts = graph.integers(&columns(0, 1));
    let mut logits = graph.node("Gather", &[&sums, &firsts], &[("axis", 1)]);
    if block > 1 {
        let squared_rows = graph.node("Mul", &[&rows, &rows], &[]);
        let squares = graph.node("ReduceSum", &[&squared_rows, &by_feature], &[("keepdims", 0)]);
        let squared_sums = graph.node("Mul", &[&sums, &sums], &[]);
        let pairs = graph.node("Sub", &[&squared_sums, &squares], &[]);
        let factors = graph.integers(&columns(1, block - 1));
        let pairs = graph.node("Gather", &[&pairs, &factors], &[("axis", 1)]);
        let shape = graph.integers(&[-1, tasks as i64, block as i64 - 1]);
        let pairs = graph.node("Reshape", &[&pairs, &shape], &[]);
        let by_factor = graph.integers(&[2]);
        let pairs = graph.node("ReduceSum", &[&pairs, &by_factor], &[("keepdims", 0)]);
        graph.floats("half", &[1], &[0.5], None);
        let pairs = graph.node("Mul", &[&pairs, "half"], &[]);
        logits = graph.node("Add", &[&logits, &pairs], &[]);
    }
    let own = own.unwrap_or_else(|| "linear.bias".to_owned());
    graph.node("Add", &[&logits, &own], &[])
}

/// Columns of several values side by side.
pub(super) fn side_by_side(graph: &mut Graph, first: Option<String>, others: &[String]) -> String {
    let all: Vec<&str> = first.iter().chain(others).map(String::as_str).collect();
    match all[..] {
        [one] => one.to_owned(),
        _ => graph.node("Concat", &all, &[("axis", 1)]),
    }
}
