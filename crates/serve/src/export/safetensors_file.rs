//! One safetensors file with every weight: tables as `table.NAME`, dense weights by their own names.

use std::path::Path;

use safetensors::{Dtype, View, serialize_to_file};
use serde_json::json;
use std::{borrow::Cow, collections::HashMap};

use super::onnx::ExportError;
use crate::Snapshot;

/// Some floats and their shape.
struct Floats<'a> {
    shape: Vec<usize>,
    values: &'a [f32],
}

impl View for Floats<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        bytemuck::cast_slice(self.values).into()
    }

    fn data_len(&self) -> usize {
        size_of_val(self.values)
    }
}

/// Writes all weights of a snapshot, which must hold its rows as `f32`, to one file. The metadata has the model's
/// description (`model`, JSON), the step and the fingerprint of the transforms.
///
/// # Errors
/// When the rows are not floats or the disk fails.
pub fn write_safetensors(snapshot: &Snapshot, path: &Path) -> Result<(), ExportError> {
    let spec = snapshot.model();
    let mut tensors = Vec::new();
    for (place, table) in spec.tables.iter().enumerate() {
        let values = snapshot.table_floats(place).ok_or(ExportError::NarrowRows)?;
        let shape = vec![table.row_count as usize, table.dim];
        tensors.push((format!("table.{}", table.name), Floats { shape, values }));
    }
    for (parameter, values) in snapshot.dense_weights() {
        tensors.push((parameter.name.clone(), Floats { shape: parameter.shape.clone(), values }));
    }
    let version = snapshot.version();
    let metadata = HashMap::from([
        ("format".to_owned(), "pt".to_owned()),
        ("model".to_owned(), json!(spec).to_string()),
        ("step".to_owned(), version.step.to_string()),
        ("transforms".to_owned(), version.transforms.clone()),
    ]);
    serialize_to_file(tensors, Some(metadata), path)
        .map_err(|error| ExportError::Write { path: path.to_owned(), source: std::io::Error::other(error) })
}
