//! Logistic regression and factorization machine: cheap baselines without hidden layers.
//!
//! A row holds one block of floats for each task: its weight, and in a machine its factors. Tasks share no
//! weights, so `heads` makes no difference here.

use campanile_spec::ModelSpec;

use crate::{ModelError, graph::Graph, workspace::Place};

pub(super) fn build_logistic_regression(spec: &ModelSpec, graph: &mut Graph) -> Result<Place, ModelError> {
    let tasks = spec.tasks.len();
    let wanted = || format!("{tasks}, one weight for each task");
    check_rows(spec, "logistic regression", |dim| dim == tasks, wanted)?;
    build(spec, graph)
}

pub(super) fn build_machine(spec: &ModelSpec, graph: &mut Graph) -> Result<Place, ModelError> {
    let (tasks, first) = (spec.tasks.len(), spec.features.first().map_or(0, |_| spec.table_of(0).dim));
    let wanted = || {
        format!("the same for all features: for each of {tasks} task(s) one weight and at least one factor")
    };
    let fits = |dim: usize| dim == first && dim.is_multiple_of(tasks) && dim / tasks >= 2;
    check_rows(spec, "a factorization machine", fits, wanted)?;
    build(spec, graph)
}

fn build(spec: &ModelSpec, graph: &mut Graph) -> Result<Place, ModelError> {
    let logits = graph.buffer(spec.tasks.len());
    let dim = spec.features.first().map_or(spec.tasks.len(), |_| spec.table_of(0).dim);
    graph.factorization(dim, logits)?;
    Ok(logits)
}

fn check_rows(
    spec: &ModelSpec,
    model: &'static str,
    fits: impl Fn(usize) -> bool,
    wanted: impl Fn() -> String,
) -> Result<(), ModelError> {
    for (index, feature) in spec.features.iter().enumerate() {
        let table = spec.table_of(index);
        if !fits(table.dim) {
            let (feature, name) = (feature.name.clone(), table.name.clone());
            return Err(ModelError::RowWidth {
                feature,
                table: name,
                found: table.dim,
                model,
                wanted: wanted(),
            });
        }
    }
    Ok(())
}
