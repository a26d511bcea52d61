//! Reading a checkpoint, on any number of ranks and in any precision.
//!
//! A file is read whole (64 MiB at most for a table's), checked against its checksum, and only then believed:
//! no row of a damaged file ever reaches a table.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read},
    ops::Range,
    path::{Path, PathBuf},
};

use safetensors::{Dtype, SafeTensors};

use super::{
    CheckpointError, DenseTensor, FileEntry, Manifest, Result, TableLayout, TensorEntry,
    convert::convert,
    finite,
    layout::StateRun,
    manifest::{MANIFEST_FILE, hex},
    write::{DenseKind, DenseLayout},
};
use crate::{cut::RowStore, plain_file};

/// Bytes that are read before they are added to the checksum: they are still in the core's own cache then.
const READ_BYTES: usize = 256 << 10;

/// What to take from a table's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Rows and optimizer state, to go on training.
    RowsAndState,
    /// Rows alone, to evaluate, to serve, or to train on with another optimizer; the state stays as it is.
    Rows,
}

/// A published checkpoint, its manifest checked.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
}

impl Checkpoint {
    /// Reads the manifest, and checks it and the length of every file.
    ///
    /// # Errors
    /// If `path` is no checkpoint, or a file is missing, cut short or too long; the error names it.
    pub fn open(path: &Path) -> Result<Checkpoint> {
        let manifest_path = path.join(MANIFEST_FILE);
        let bytes = plain_file::read(&manifest_path).map_err(|source| read_error(&manifest_path, source))?;
        let manifest = Manifest::decode(&manifest_path, &bytes)?;
        for file in &manifest.files {
            let file_path = path.join(&file.name);
            let found = fs::metadata(&file_path).map_err(|source| read_error(&file_path, source))?.len();
            if found != file.bytes {
                return Err(CheckpointError::Length { path: file_path, found, wanted: file.bytes });
            }
        }
        Ok(Checkpoint { path: path.to_owned(), manifest })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it is.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Reads every byte and compares it with the checksums, and every number, which must be finite; returns how many
    /// bytes that were.
    ///
    /// # Errors
    /// The first file that does not match, or that holds a number which is none.
    pub fn verify_all(&self) -> Result<u64> {
        let mut looked_at = BTreeSet::new();
        let mut buffer = Vec::new();
        for table in self.manifest.tables.iter().filter(|table| table.row_count > 0) {
            for file in 0..table.file_count() {
                let (name, rows) = (table.file_name(file), table.rows_of_file(file));
                let path = self.read_verified(&name, &mut buffer)?;
                let tensors = TableTensors::parse(&path, &buffer, table, rows.end - rows.start)?;
                let (columns, first_row) = (0..table.dim, rows.start);
                let state: Vec<f32> = bytemuck::pod_collect_to_vec(tensors.state);
                finite::Rows { table, columns, first_row, rows: tensors.rows, state: &state }.check(&path)?;
                looked_at.insert(name);
            }
        }
        for kind in [DenseKind::Weights, DenseKind::State] {
            let path = self.path.join(kind.file_name());
            for tensor in self.dense(kind)? {
                let entry = TensorEntry { name: tensor.name, shape: tensor.shape };
                finite::check_dense(&path, &[entry], 0, &tensor.values)?;
                looked_at.insert(kind.file_name().to_owned());
            }
        }
        for entry in self.manifest.files.iter().filter(|entry| !looked_at.contains(&entry.name)) {
            self.read_verified(&entry.name, &mut buffer)?;
        }
        Ok(self.manifest.bytes())
    }

    /// Fills the rows that `table` holds, in its own format; reads only the files that these rows lie in.
    ///
    /// # Errors
    /// If the checkpoint has no such table, or one of another shape or (for [`Load::RowsAndState`]) another
    /// optimizer; or if a file is damaged. The table may then be filled in part.
    pub fn load_table<T: RowStore>(&self, table: &mut T, load: Load) -> Result<()> {
        self.load_table_through(&mut Vec::new(), table, load)
    }

    /// As [`Checkpoint::load_table`], through a buffer of the caller's: who loads many tables has the system find the
    /// memory for a file once, not once a table.
    ///
    /// # Errors
    /// As [`Checkpoint::load_table`].
    pub fn load_table_through<T: RowStore>(
        &self,
        buffer: &mut Vec<u8>,
        table: &mut T,
        load: Load,
    ) -> Result<()> {
        let wanted = table.layout();
        let layout = self.matching_layout(&wanted, load)?;
        let held = table.held();
        for file in 0..layout.file_count() {
            let rows = layout.rows_of_file(file);
            let (start, end) = (rows.start.max(held.start), rows.end.min(held.end));
            if start >= end {
                continue;
            }
            let path = self.read_verified(&layout.file_name(file), buffer)?;
            let tensors = TableTensors::parse(&path, buffer, layout, rows.end - rows.start)?;
            // In steps of a piece, so that a conversion does not double the file in memory.
            let step = layout.piece_rows();
            for first in (start..end).step_by(step as usize) {
                let run = first..end.min(first + step);
                let place = (run.start - rows.start) as usize..(run.end - rows.start) as usize;
                let row_bytes = layout.row_bytes();
                let elements = &tensors.rows[place.start * row_bytes..place.end * row_bytes];
                let elements = convert(elements, layout.format, wanted.format);
                let elements = columns_of(elements, &wanted, &table.columns());
                let state = match load {
                    Load::RowsAndState => {
                        let state_bytes = layout.state_floats() * size_of::<f32>();
                        let bytes = &tensors.state[place.start * state_bytes..place.end * state_bytes];
                        state_of_columns(bytemuck::pod_collect_to_vec(bytes), &wanted, &table.columns())
                    }
                    Load::Rows => present_state(table, run.clone(), &wanted),
                };
                table.write_rows(run, &elements, &state);
            }
        }
        Ok(())
    }

    /// The elements of a dense file, checked to hold exactly `wanted.tensors`, one tensor after the other in
    /// that order.
    ///
    /// # Errors
    /// If the checkpoint has other tensors, or the file is damaged.
    pub fn dense_values(&self, wanted: &DenseLayout) -> Result<Vec<f32>> {
        let path = self.path.join(wanted.kind.file_name());
        let mut tensors: BTreeMap<String, DenseTensor> =
            self.dense(wanted.kind)?.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
        let mut values = Vec::with_capacity(wanted.element_count() as usize);
        for entry in &wanted.tensors {
            let Some(tensor) = tensors.remove(&entry.name) else {
                return Err(CheckpointError::NoTensor { path, tensor: entry.name.clone() });
            };
            if tensor.shape != entry.shape {
                let (tensor, found, wanted) = (entry.name.clone(), tensor.shape, entry.shape.clone());
                return Err(CheckpointError::ShapeChanged { path, tensor, found, wanted });
            }
            values.extend(tensor.values);
        }
        match tensors.into_keys().next() {
            Some(tensor) => Err(CheckpointError::ExtraTensor { path, tensor }),
            None => Ok(values),
        }
    }

    /// The tensors of one dense file in the order in which they were written; none if it was not written.
    ///
    /// # Errors
    /// If the file is damaged.
    pub fn dense(&self, kind: DenseKind) -> Result<Vec<DenseTensor>> {
        let entries = match kind {
            DenseKind::Weights => &self.manifest.dense,
            DenseKind::State => &self.manifest.dense_state,
        };
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        let mut bytes = Vec::new();
        let path = self.read_verified(kind.file_name(), &mut bytes)?;
        let file = SafeTensors::deserialize(&bytes).map_err(|error| malformed(&path, error))?;
        let mut tensors = Vec::with_capacity(entries.len());
        for entry in entries {
            let tensor = file
                .tensor(&entry.name)
                .map_err(|_| CheckpointError::NoTensor { path: path.clone(), tensor: entry.name.clone() })?;
            if tensor.dtype() != Dtype::F32 || tensor.shape() != entry.shape {
                let problem = format!("tensor `{}` is not F32 of shape {:?}", entry.name, entry.shape);
                return Err(CheckpointError::Malformed { path, problem });
            }
            tensors.push(DenseTensor {
                name: entry.name.clone(),
                shape: entry.shape.clone(),
                values: bytemuck::pod_collect_to_vec(tensor.data()),
            });
        }
        Ok(tensors)
    }

    /// The checkpoint's layout of a table, if it can be loaded into `wanted`.
    ///
    /// # Errors
    /// If the checkpoint has no such table, or one of another shape or (for [`Load::RowsAndState`]) another
    /// optimizer.
    pub fn matching_layout(&self, wanted: &TableLayout, load: Load) -> Result<&TableLayout> {
        let (path, table) = (self.path.clone(), wanted.name.clone());
        let Some(layout) = self.manifest.table(&table) else {
            let names: Vec<String> =
                self.manifest.tables.iter().map(|table| format!("`{}`", table.name)).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(CheckpointError::NoTable { path, table, known });
        };
        if layout.dim != wanted.dim {
            let (found, wanted) = (layout.dim, wanted.dim);
            return Err(CheckpointError::DimChanged { path, table, found, wanted });
        }
        if layout.row_count != wanted.row_count {
            let (found, wanted) = (layout.row_count, wanted.row_count);
            return Err(CheckpointError::RowCountChanged { path, table, found, wanted });
        }
        if load == Load::RowsAndState && layout.state != wanted.state {
            let (found, wanted) = (layout.state_words(), wanted.state_words());
            return Err(CheckpointError::StateChanged { path, table, found, wanted });
        }
        let is_ftrl = layout.state.iter().any(|column| column.name == "z");
        if load == Load::RowsAndState && is_ftrl && self.manifest.version < 2 {
            return Err(CheckpointError::FtrlOfVersion1 { path: self.path.clone(), table });
        }
        Ok(layout)
    }

    /// Reads a whole file in place of what `bytes` holds, and returns its path for later messages.
    pub(super) fn read_verified(&self, name: &str, bytes: &mut Vec<u8>) -> Result<PathBuf> {
        let path = self.path.join(name);
        let Some(entry) = self.manifest.file(name) else {
            let problem = format!("the manifest does not list `{name}`");
            return Err(CheckpointError::Malformed { path: self.path.join(MANIFEST_FILE), problem });
        };
        let mut file = File::open(&path).map_err(|source| read_error(&path, source))?;
        let found = file.metadata().map_err(|source| read_error(&path, source))?.len();
        if found != entry.bytes {
            return Err(CheckpointError::Length { path, found, wanted: entry.bytes });
        }
        // What an earlier file left is written over, so that only a longer file costs zeros.
        bytes.resize(found as usize, 0);
        let mut crc = 0;
        for step in bytes.chunks_mut(READ_BYTES) {
            file.read_exact(step).map_err(|source| read_error(&path, source))?;
            crc = crc32c::crc32c_append(crc, step);
        }
        check(&path, entry, found, crc)?;
        Ok(path)
    }
}

/// The bytes of a table file's two tensors.
pub(super) struct TableTensors<'a> {
    pub rows: &'a [u8],
    state: &'a [u8],
}

impl<'a> TableTensors<'a> {
    pub fn parse(
        path: &Path,
        bytes: &'a [u8],
        layout: &TableLayout,
        row_count: u64,
    ) -> Result<TableTensors<'a>> {
        let file = SafeTensors::deserialize(bytes).map_err(|error| malformed(path, error))?;
        let dtype = match layout.format {
            campanile_spec::RowFormat::F32 => Dtype::F32,
            campanile_spec::RowFormat::F16 => Dtype::F16,
            campanile_spec::RowFormat::Bf16 => Dtype::BF16,
        };
        let tensor = |name: &str, dtype: Dtype, width: usize| -> Result<&'a [u8]> {
            let tensor = file.tensor(name).map_err(|error| malformed(path, error))?;
            if tensor.dtype() != dtype || tensor.shape() != [row_count as usize, width] {
                let problem = format!("tensor `{name}` is not {dtype:?} of shape [{row_count}, {width}]");
                return Err(CheckpointError::Malformed { path: path.to_owned(), problem });
            }
            Ok(tensor.data())
        };
        let rows = tensor("rows", dtype, layout.dim)?;
        let state = match layout.state_floats() {
            0 => &[],
            floats => tensor("state", Dtype::F32, floats)?,
        };
        Ok(TableTensors { rows, state })
    }
}

fn present_state<T: RowStore>(table: &T, rows: Range<u64>, layout: &TableLayout) -> Vec<f32> {
    let count = (rows.end - rows.start) as usize;
    let columns = table.columns();
    let floats = layout.state_floats_of(&columns);
    // A served table has no state, and copying its rows out to see that would take as long as writing them.
    if floats == 0 {
        return Vec::new();
    }
    let mut state = vec![0.0; count * floats];
    let row_bytes = columns.len() * layout.format.element_bytes();
    table.copy_rows(rows, &mut vec![0; count * row_bytes], &mut state);
    state
}

/// Some columns of whole rows.
fn columns_of<'a>(rows: Cow<'a, [u8]>, layout: &TableLayout, columns: &Range<usize>) -> Cow<'a, [u8]> {
    if columns.len() == layout.dim {
        return rows;
    }
    let element = layout.format.element_bytes();
    let part = columns.start * element..columns.end * element;
    rows.chunks_exact(layout.row_bytes()).flat_map(|row| &row[part.clone()]).copied().collect()
}

/// The state of some columns, from the state of whole rows.
fn state_of_columns(state: Vec<f32>, layout: &TableLayout, columns: &Range<usize>) -> Vec<f32> {
    if columns.len() == layout.dim || state.is_empty() {
        return state;
    }
    let runs: Vec<StateRun> = layout.state_runs(columns).collect();
    let part = |row: &[f32]| -> Vec<f32> {
        runs.iter().flat_map(|run| row[run.whole..][..run.floats].iter().copied()).collect()
    };
    state.chunks_exact(layout.state_floats()).flat_map(part).collect()
}

fn check(path: &Path, entry: &FileEntry, bytes: u64, crc: u32) -> Result<()> {
    if bytes != entry.bytes {
        return Err(CheckpointError::Length { path: path.to_owned(), found: bytes, wanted: entry.bytes });
    }
    let (found, wanted) = (hex(crc), entry.crc32c.clone());
    if found != wanted {
        return Err(CheckpointError::Damaged { path: path.to_owned(), found, wanted });
    }
    Ok(())
}

fn read_error(path: &Path, source: io::Error) -> CheckpointError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound => CheckpointError::Missing { path },
        _ => CheckpointError::Read { path, source },
    }
}

fn malformed(path: &Path, error: safetensors::SafeTensorError) -> CheckpointError {
    CheckpointError::Malformed { path: path.to_owned(), problem: error.to_string() }
}
