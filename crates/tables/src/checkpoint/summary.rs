//! What is in a checkpoint, for a person (`Display`) or a report (`Serialize`).

use std::{
    fmt,
    path::{Path, PathBuf},
};

use campanile_spec::Bytes;
use serde::Serialize;
use serde_json::Value;

use super::{Checkpoint, Result, TensorEntry, layout::dtype_name, write::DenseKind};

/// What is in a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Where it is.
    pub path: PathBuf,
    /// The version of its format.
    pub version: u32,
    /// Steps that were trained.
    pub step: u64,
    /// Where the data goes on.
    pub cursor: Value,
    /// A hash of all that changes results.
    pub run_hash: String,
    /// A hash of the transforms.
    pub transforms: String,
    /// The tables.
    pub tables: Vec<TableSummary>,
    /// The dense weights.
    pub dense: Vec<TensorEntry>,
    /// Their elements in all.
    pub dense_elements: u64,
    /// Bytes of the dense weights and their state.
    pub dense_bytes: u64,
    /// Number of files, the manifest not counted.
    pub file_count: usize,
    /// Bytes of those files.
    pub bytes: u64,
}

/// One table of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TableSummary {
    /// Its name.
    pub name: String,
    /// Its rows.
    pub row_count: u64,
    /// Floats in a row.
    pub dim: usize,
    /// `F32`, `F16` or `BF16`.
    pub format: &'static str,
    /// What the optimizer keeps beside a row, in words.
    pub state: String,
    /// Number of files.
    pub file_count: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Describes the checkpoint at `path`; reads the manifest alone.
///
/// # Errors
/// As [`Checkpoint::open`].
pub fn describe(path: &Path) -> Result<Summary> {
    let checkpoint = Checkpoint::open(path)?;
    let manifest = checkpoint.manifest();
    let bytes_of = |name: &str| manifest.file(name).map_or(0, |file| file.bytes);
    let table = |table: &super::TableLayout| TableSummary {
        name: table.name.clone(),
        row_count: table.row_count,
        dim: table.dim,
        format: dtype_name(table.format),
        state: table.state_words(),
        file_count: table.file_count(),
        bytes: (0..table.file_count()).map(|file| bytes_of(&table.file_name(file))).sum(),
    };
    Ok(Summary {
        path: path.to_owned(),
        version: manifest.version,
        step: manifest.step,
        cursor: manifest.cursor.clone(),
        run_hash: manifest.run_hash.clone(),
        transforms: manifest.transforms.clone(),
        tables: manifest.tables.iter().map(table).collect(),
        dense_elements: manifest.dense.iter().map(TensorEntry::element_count).sum(),
        dense: manifest.dense.clone(),
        dense_bytes: bytes_of(DenseKind::Weights.file_name()) + bytes_of(DenseKind::State.file_name()),
        file_count: manifest.files.len(),
        bytes: manifest.bytes(),
    })
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "checkpoint {}", self.path.display())?;
        writeln!(f, "  step        {}", self.step)?;
        writeln!(f, "  cursor      {}", self.cursor)?;
        writeln!(f, "  run         {}", self.run_hash)?;
        writeln!(f, "  transforms  {}", self.transforms)?;
        writeln!(
            f,
            "  files       {} with {}, format version {}",
            self.file_count,
            Bytes(self.bytes),
            self.version
        )?;
        writeln!(
            f,
            "  dense       {} tensors with {} weights, {} with state",
            self.dense.len(),
            self.dense_elements,
            Bytes(self.dense_bytes)
        )?;
        let name_width = self.tables.iter().map(|table| table.name.chars().count()).max().unwrap_or(0).max(5);
        writeln!(
            f,
            "  {:name_width$}  {:>12}  {:>5}  {:4}  {:>10}  state",
            "table", "rows", "dim", "as", "size"
        )?;
        for table in &self.tables {
            let TableSummary { name, row_count, dim, format, state, bytes, .. } = table;
            writeln!(
                f,
                "  {name:name_width$}  {row_count:>12}  {dim:>5}  {format:4}  {:>10}  {state}",
                Bytes(*bytes)
            )?;
        }
        Ok(())
    }
}
