//! An ONNX model: row numbers and dense inputs in, logits and probabilities out.
//!
//! | input | shape | what |
//! |---|---|---|
//! | `dense` | `[batch, dense]`, float | dense inputs after their transforms |
//! | a feature's name | `[batch, ids]`, int64 | rows of the bag; −1 where there is none, so bags are filled up with it |
//! | `NAME.weights` | `[batch, ids]`, float | for features with weighted pooling only |
//!
//! Tables are `f32` whatever the checkpoint's format, which is exact, and a model of more than 1 GiB keeps its
//! weights in `FILE.data` beside it, since protobuf ends at 2 GiB.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
};

use campanile_spec::{ModelSpec, Pooling};

use super::{
    graph::{Element, Graph, Side},
    networks::{self, Inputs},
};
use crate::Snapshot;

/// Why a model could not be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// Two inputs of the exported model would have the same name.
    #[error("the input `{name}` would exist twice in the exported model; rename the feature")]
    SameName {
        /// The name.
        name: String,
    },
    /// Rows that are not kept as floats.
    #[error("open the snapshot with rows of 32-bit floats to export it")]
    NarrowRows,
    /// The disk would not write.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Models up to this many bytes are one file.
const ONE_FILE_BYTES_MAX: u64 = 1 << 30;

/// Writes a snapshot as an ONNX model; it must hold its rows as `f32`.
///
/// # Errors
/// When names collide or the disk fails.
pub fn write_onnx(snapshot: &Snapshot, path: &Path) -> Result<(), ExportError> {
    let data_path = path.with_extension("onnx.data");
    let data_name = data_path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let beside = (snapshot.bytes() > ONE_FILE_BYTES_MAX).then_some(data_name.as_str());
    let spec = snapshot.model();
    check_names(spec)?;
    let mut graph = Graph::default();
    let inputs = add_inputs(&mut graph, snapshot, beside)?;
    for (parameter, values) in snapshot.dense_weights() {
        graph.floats(&parameter.name, &parameter.shape, values, beside);
    }
    let logits = networks::logits(&mut graph, spec, &inputs);
    graph.named_node("Identity", &[&logits], &[], "logits");
    graph.named_node("Sigmoid", &[&logits], &[], "probabilities");
    let shape = [Side::Free("batch"), Side::Fixed(spec.tasks.len())];
    graph.output("logits", Element::F32, &shape);
    graph.output("probabilities", Element::F32, &shape);
    let (model, data) = graph.into_model(&snapshot.version().model);
    if !data.is_empty() {
        write(&data_path, &data)?;
    }
    write(path, &model)
}

/// Declares the inputs, adds the tables, and pools every bag.
fn add_inputs(graph: &mut Graph, snapshot: &Snapshot, beside: Option<&str>) -> Result<Inputs, ExportError> {
    let spec = snapshot.model();
    let mut inputs = Inputs { dense: None, pooled: Vec::new() };
    if spec.dense_count > 0 {
        graph.input("dense", Element::F32, &[Side::Free("batch"), Side::Fixed(spec.dense_count)]);
        inputs.dense = Some("dense".to_owned());
    }
    for (place, table) in spec.tables.iter().enumerate() {
        let rows = snapshot.table_floats(place).ok_or(ExportError::NarrowRows)?;
        graph.floats(&table_name(spec, place), &[table.row_count as usize, table.dim], rows, beside);
    }
    graph.floats("zero", &[1], &[0.0], None);
    graph.floats("one", &[1], &[1.0], None);
    for feature in 0..spec.features.len() {
        inputs.pooled.push(pooled(graph, spec, feature));
    }
    Ok(inputs)
}

/// The vector of a feature: rows that are not there weigh nothing.
fn pooled(graph: &mut Graph, spec: &ModelSpec, feature: usize) -> String {
    let own = &spec.features[feature];
    // What follows a teacher reads the ids of the feature that it belongs to, which are an input already.
    let source = spec.ids_of(feature);
    let given = &spec.features[source].name;
    let ids = format!("{given}.ids");
    let shape = [Side::Free("batch"), Side::Free(ids.as_str())];
    if source == feature {
        graph.input(given, Element::I64, &shape);
    }
    let none = graph.integers(&[0]);
    let row = graph.node("Max", &[given, &none], &[]);
    let table = table_name(spec, own.table.0 as usize);
    let rows = graph.node("Gather", &[&table, &row], &[("axis", 0)]);
    let absent = graph.node("Less", &[given, &none], &[]);
    let there = graph.node("Where", &[&absent, "zero", "one"], &[]);
    let weight = match own.pooling {
        Pooling::Sum | Pooling::Mean => there.clone(),
        Pooling::Weighted => {
            let given = format!("{}.weights", own.name);
            graph.input(&given, Element::F32, &shape);
            graph.node("Mul", &[&there, &given], &[])
        }
    };
    let last = graph.integers(&[2]);
    let weight = graph.node("Unsqueeze", &[&weight, &last], &[]);
    let weighted = graph.node("Mul", &[&rows, &weight], &[]);
    let by_id = graph.integers(&[1]);
    let sum = graph.node("ReduceSum", &[&weighted, &by_id], &[("keepdims", 0)]);
    if own.pooling != Pooling::Mean {
        return sum;
    }
    let count = graph.node("ReduceSum", &[&there, &by_id], &[("keepdims", 1)]);
    let count = graph.node("Max", &[&count, "one"], &[]);
    graph.node("Div", &[&sum, &count], &[])
}

fn table_name(spec: &ModelSpec, place: usize) -> String {
    format!("table.{}", spec.tables[place].name)
}

/// Weights, inputs and constants share one space of names.
fn check_names(spec: &ModelSpec) -> Result<(), ExportError> {
    let mut names: Vec<String> =
        ["dense", "zero", "one", "half", "logits", "probabilities"].map(String::from).into();
    for feature in &spec.features {
        for name in [feature.name.clone(), format!("{}.weights", feature.name)] {
            if names.contains(&name) {
                return Err(ExportError::SameName { name });
            }
            names.push(name);
        }
    }
    Ok(())
}

pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), ExportError> {
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|source| ExportError::Write { path: path.to_owned(), source })
}
