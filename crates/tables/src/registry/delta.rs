//! A delta: the rows that differ between two checkpoints, and the dense weights of the later one.
//!
//! Two checkpoints of a model have the same files, so rows are compared as bytes, file by file: exact, and
//! nothing has to be remembered while training. It costs reading both once, at the rate of the disk or of the
//! page cache, and the memory of one file of each and of the rows that changed.

use std::path::{Path, PathBuf};

use campanile_spec::RowFormat;
use safetensors::{Dtype, SafeTensors};

use super::{Kind, RegistryError, Release, Result, TableChange, release::check_file};
use crate::{
    checkpoint::{
        Checkpoint, CheckpointError, TableLayout,
        convert::convert,
        header::Header,
        layout::{dtype_name, file_stem},
    },
    plain_file,
};

/// The changed rows of one table, in rising order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ChangedRows {
    /// Which rows.
    pub index: Vec<u32>,
    /// Their stored bytes, one row after the other.
    pub bytes: Vec<u8>,
}

/// A published delta, ready to be read.
#[derive(Debug, Clone)]
pub struct Delta {
    path: PathBuf,
    release: Release,
}

impl Delta {
    /// Opens the delta of a version.
    ///
    /// # Errors
    /// If the version is damaged or is whole.
    pub fn open(path: &Path) -> Result<Delta> {
        let release = Release::read(path)?;
        if release.kind == Kind::Whole {
            let problem = "it is a whole version, not a delta".to_owned();
            return Err(RegistryError::Damaged { path: path.to_owned(), problem });
        }
        Ok(Delta { path: path.to_owned(), release })
    }

    /// What it is.
    pub fn release(&self) -> &Release {
        &self.release
    }

    /// The changed rows of a table in a format of the caller's; none if no row changed. Every byte is checked.
    ///
    /// # Errors
    /// If the file is damaged, or the rows have another dim than `dim`.
    pub fn changed_rows(&self, table: &str, dim: usize, format: RowFormat) -> Result<ChangedRows> {
        let Some(change) = self.release.tables.iter().find(|change| change.name == table) else {
            return Ok(ChangedRows::default());
        };
        let (path, bytes) = self.read(&change.file)?;
        let damaged = |problem: String| RegistryError::Damaged { path: path.clone(), problem };
        if change.dim != dim {
            return Err(damaged(format!("its rows have {} floats, the base has {dim}", change.dim)));
        }
        let file = SafeTensors::deserialize(&bytes).map_err(|error| damaged(error.to_string()))?;
        let tensor = |name: &str, dtype: Dtype, shape: &[usize]| {
            let tensor = file.tensor(name).map_err(|error| damaged(error.to_string()))?;
            if tensor.dtype() != dtype || tensor.shape() != shape {
                return Err(damaged(format!("tensor `{name}` is not {dtype:?} of shape {shape:?}")));
            }
            Ok(tensor.data())
        };
        let count = change.changed as usize;
        let index = bytemuck::pod_collect_to_vec(tensor("index", Dtype::U32, &[count])?);
        let stored = tensor("rows", dtype_of(change.format), &[count, dim])?;
        Ok(ChangedRows { index, bytes: convert(stored, change.format, format).into_owned() })
    }

    /// The dense weights, one tensor after the other in the order of [`Release::dense`].
    ///
    /// # Errors
    /// If the file is damaged.
    pub fn dense_values(&self) -> Result<Vec<f32>> {
        let mut values = Vec::new();
        if self.release.dense.is_empty() {
            return Ok(values);
        }
        let (path, bytes) = self.read(crate::checkpoint::DenseKind::Weights.file_name())?;
        let damaged = |problem: String| RegistryError::Damaged { path: path.clone(), problem };
        let file = SafeTensors::deserialize(&bytes).map_err(|error| damaged(error.to_string()))?;
        for entry in &self.release.dense {
            let tensor = file.tensor(&entry.name).map_err(|error| damaged(error.to_string()))?;
            if tensor.dtype() != Dtype::F32 || tensor.shape() != entry.shape {
                return Err(damaged(format!(
                    "tensor `{}` is not F32 of shape {:?}",
                    entry.name, entry.shape
                )));
            }
            values.extend(bytemuck::pod_collect_to_vec::<u8, f32>(tensor.data()));
        }
        Ok(values)
    }

    fn read(&self, name: &str) -> Result<(PathBuf, Vec<u8>)> {
        let path = self.path.join(name);
        let Some(entry) = self.release.files.iter().find(|file| file.name == name) else {
            let problem = format!("its description does not list `{name}`");
            return Err(RegistryError::Damaged { path: self.path.clone(), problem });
        };
        check_file(&path, entry)?;
        let bytes =
            plain_file::read(&path).map_err(|source| RegistryError::Read { path: path.clone(), source })?;
        if bytes.len() as u64 != entry.bytes || super::sealed::hex(crc32c::crc32c(&bytes)) != entry.crc32c {
            let problem = "it changed while it was read".to_owned();
            return Err(RegistryError::Damaged { path, problem });
        }
        Ok((path, bytes))
    }
}

/// Whether the rows of two checkpoints can be compared one by one.
pub(super) fn comparable(old: &Checkpoint, new: &Checkpoint) -> bool {
    let (old, new) = (old.manifest(), new.manifest());
    let same_rows = |a: &TableLayout, b: &TableLayout| {
        (&a.name, a.row_count, a.dim, a.format, a.rows_per_file)
            == (&b.name, b.row_count, b.dim, b.format, b.rows_per_file)
    };
    old.tables.len() == new.tables.len()
        && old.tables.iter().zip(&new.tables).all(|(a, b)| same_rows(a, b))
        && old.dense == new.dense
        && old.job["run"]["model"] == new.job["run"]["model"]
        && old.extra["transforms"] == new.extra["transforms"]
}

/// The rows of a table that differ, with their new bytes.
pub(super) fn compare(old: &Checkpoint, new: &Checkpoint, table: &TableLayout) -> Result<ChangedRows> {
    let mut changed = ChangedRows::default();
    let (mut old_file, mut new_file) = (Vec::new(), Vec::new());
    let width = table.row_bytes();
    for file in 0..table.file_count() {
        let before = stored(old, table, file, &mut old_file)?;
        let after = stored(new, table, file, &mut new_file)?;
        if before == after {
            continue;
        }
        let first = table.rows_of_file(file).start as u32;
        for (place, (a, b)) in before.chunks_exact(width).zip(after.chunks_exact(width)).enumerate() {
            if a != b {
                changed.index.push(first + place as u32);
                changed.bytes.extend_from_slice(b);
            }
        }
    }
    Ok(changed)
}

fn stored<'a>(
    checkpoint: &Checkpoint,
    table: &TableLayout,
    file: u64,
    buffer: &'a mut Vec<u8>,
) -> Result<&'a [u8], CheckpointError> {
    // The layout is the checkpoint's own: state may differ between the two, and stands before the rows.
    let own = checkpoint.manifest().table(&table.name).unwrap_or(table);
    checkpoint.stored_rows(own, file, buffer)
}

/// The file of a table's changed rows.
pub(super) fn file_of(table: &TableLayout, changed: &ChangedRows) -> (TableChange, Vec<u8>) {
    let count = changed.index.len() as u64;
    let mut bytes = Header::default()
        .metadata(&[("table", &table.name)])
        .tensor("index", "U32", &[count], 4)
        .tensor(
            "rows",
            dtype_name(table.format),
            &[count, table.dim as u64],
            table.format.element_bytes() as u64,
        )
        .into_bytes();
    bytes.extend_from_slice(bytemuck::cast_slice(&changed.index));
    bytes.extend_from_slice(&changed.bytes);
    let change = TableChange {
        name: table.name.clone(),
        file: format!("delta-{}.safetensors", file_stem(&table.name)),
        changed: count,
        dim: table.dim,
        format: table.format,
    };
    (change, bytes)
}

fn dtype_of(format: RowFormat) -> Dtype {
    match format {
        RowFormat::F32 => Dtype::F32,
        RowFormat::F16 => Dtype::F16,
        RowFormat::Bf16 => Dtype::BF16,
    }
}
