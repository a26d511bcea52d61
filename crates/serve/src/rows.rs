//! The rows of a served table: as trained, or narrower.
//!
//! Halves take half the memory and bytes about a quarter, and the scores move a little; the others are exact.
//! How much a model's scores move is for `campanile publish --gate` and `campanile eval` to say on its own data.

use std::{ops::Range, path::Path};

use campanile_kernels::{
    Isa,
    pool::{self, Place, Pool, bytes},
};
use campanile_spec::{FeatureBags, Pooling, RowFormat, SparseOptimizer, TableSpec};
use campanile_tables::{
    Cut, Table, TableError,
    checkpoint::{Checkpoint, Load, TableLayout},
    cut::RowStore,
    memory_available,
    registry::Delta,
    slab::Slab,
};

use crate::SnapshotError;

/// How a snapshot holds rows. The arithmetic is `f32` in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RowStorage {
    /// As the checkpoint has them: scores have the bits of the offline evaluation.
    #[default]
    AsTrained,
    /// 32-bit floats.
    F32,
    /// IEEE halves, rounded to the nearest.
    F16,
    /// One byte an element, with a step and a least value for each row.
    Int8,
}

/// The rows of one table; immutable once loaded.
#[derive(Debug)]
pub(crate) enum ServedTable {
    /// In a format of the checkpoint's.
    Wide(Table),
    /// In bytes.
    Bytes(ByteTable),
}

impl ServedTable {
    /// Reads all rows of a table through `buffer`, which holds a file of it.
    pub fn load(
        checkpoint: &Checkpoint,
        spec: &TableSpec,
        storage: RowStorage,
        buffer: &mut Vec<u8>,
    ) -> Result<ServedTable, SnapshotError> {
        // Before any memory is asked for.
        checkpoint.matching_layout(&TableLayout::new(spec, &SparseOptimizer::Sgd), Load::Rows)?;
        let no_table = |source| SnapshotError::Table { path: checkpoint.path().to_owned(), source };
        let mut table = ServedTable::zeroed(spec, storage).map_err(no_table)?;
        match &mut table {
            ServedTable::Wide(table) => checkpoint.load_table_through(buffer, table, Load::Rows)?,
            ServedTable::Bytes(table) => checkpoint.load_table_through(buffer, table, Load::Rows)?,
        }
        match &mut table {
            ServedTable::Wide(table) => finite(table.spec(), 0, table.row_bytes(table.rows())),
            ServedTable::Bytes(table) => table.trouble.take().map_or(Ok(()), Err),
        }
        .map_err(|odd| odd.of(checkpoint.path()))?;
        Ok(table)
    }

    /// A table with the first values of its rows.
    pub fn first(spec: &TableSpec, storage: RowStorage, seed: u64) -> Result<ServedTable, TableError> {
        let mut table = ServedTable::zeroed(spec, storage)?;
        match &mut table {
            ServedTable::Wide(wide) => {
                *wide = Table::new(&wide.spec().clone(), wide.rows(), &SparseOptimizer::Sgd, seed)?;
            }
            ServedTable::Bytes(narrow) => {
                let wide = Table::new(&narrow.spec, 0..narrow.spec.row_count, &SparseOptimizer::Sgd, seed)?;
                narrow.write_rows(wide.rows(), wide.row_bytes(wide.rows()), &[]);
            }
        }
        Ok(table)
    }

    fn zeroed(spec: &TableSpec, storage: RowStorage) -> Result<ServedTable, TableError> {
        let format = match storage {
            RowStorage::AsTrained => spec.format,
            RowStorage::F32 | RowStorage::Int8 => RowFormat::F32,
            RowStorage::F16 => RowFormat::F16,
        };
        let spec = TableSpec { format, ..spec.clone() };
        if storage == RowStorage::Int8 {
            return ByteTable::zeroed(&spec).map(ServedTable::Bytes);
        }
        // Plain descent keeps no state beside the rows, so the table takes the memory of its rows alone.
        Table::zeroed(&spec, 0..spec.row_count, 0..spec.dim, &SparseOptimizer::Sgd).map(ServedTable::Wide)
    }

    /// A copy with the changed rows of a delta; `None` if the delta changes none of them.
    ///
    /// The table is in use meanwhile, so it cannot change itself: the copy takes its memory once more, until
    /// the old snapshot is let go.
    pub fn with_delta(&self, delta: &Delta, path: &Path) -> Result<Option<ServedTable>, SnapshotError> {
        let failed = |source| SnapshotError::Table { path: path.to_owned(), source };
        let (spec, storage) = match self {
            ServedTable::Wide(table) => (table.spec(), RowStorage::AsTrained),
            ServedTable::Bytes(table) => (&table.spec, RowStorage::Int8),
        };
        let changed = delta.changed_rows(&spec.name, spec.dim, spec.format)?;
        if changed.index.is_empty() {
            return Ok(None);
        }
        if let Some(row) = changed.index.iter().find(|row| u64::from(**row) >= spec.row_count) {
            let (table, row, row_count) = (spec.name.clone(), u64::from(*row), spec.row_count);
            return Err(failed(TableError::RowOutside { table, row, start: 0, end: row_count, row_count }));
        }
        let mut copy = ServedTable::zeroed(spec, storage).map_err(failed)?;
        match (self, &mut copy) {
            (ServedTable::Wide(old), ServedTable::Wide(new)) => {
                new.write_rows(old.rows(), old.row_bytes(old.rows()), &[]);
            }
            (ServedTable::Bytes(old), ServedTable::Bytes(new)) => {
                new.rows.bytes_mut().copy_from_slice(old.rows.bytes());
            }
            _ => unreachable!("a copy is held as its original"),
        }
        let width = spec.dim * spec.format.element_bytes();
        for (row, bytes) in changed.index.iter().zip(changed.bytes.chunks_exact(width)) {
            let run = u64::from(*row)..u64::from(*row) + 1;
            finite(spec, run.start, bytes).map_err(|odd| odd.of(path))?;
            match &mut copy {
                ServedTable::Wide(table) => table.write_rows(run, bytes, &[]),
                ServedTable::Bytes(table) => table.write_rows(run, bytes, &[]),
            }
        }
        Ok(Some(copy))
    }

    /// Bytes of the rows.
    pub fn bytes(&self) -> u64 {
        match self {
            ServedTable::Wide(table) => table.memory_bytes(),
            ServedTable::Bytes(table) => table.rows.bytes().len() as u64,
        }
    }

    /// All rows, if they are held as `f32`.
    pub fn floats(&self) -> Option<&[f32]> {
        match self {
            ServedTable::Wide(table) if table.spec().format == RowFormat::F32 => {
                Some(bytemuck::cast_slice(table.row_bytes(table.rows())))
            }
            _ => None,
        }
    }

    /// Pools bags whose rows are known to be in the table.
    pub fn pool(
        &self,
        pooling: Pooling,
        bags: &FeatureBags<'_>,
        out: &mut [f32],
        stride: usize,
        offset: usize,
    ) {
        let fine = match self {
            ServedTable::Wide(table) => table.pool(pooling, bags, out, stride, offset).is_ok(),
            ServedTable::Bytes(table) => table.pool(pooling, bags, out, Place { stride, offset }),
        };
        assert!(fine, "a request's rows are checked when it is filled");
    }
}

/// An element that is no finite number.
#[derive(Debug)]
struct OddElement {
    table: String,
    row: u64,
    element: usize,
}

impl OddElement {
    fn of(self, path: &Path) -> SnapshotError {
        let OddElement { table, row, element } = self;
        SnapshotError::NotFinite { path: path.to_owned(), table, row, element }
    }
}

/// Elements that are looked at together for one that is no finite number.
const FINITE_BLOCK: usize = 1024;

/// Refuses rows, from row `first` on, with an element that is no finite number: every score that they touch would be none
/// either, and a row of bytes would even hide it.
fn finite(spec: &TableSpec, first: u64, rows: &[u8]) -> Result<(), OddElement> {
    // Infinities and what is no number have all bits of the exponent.
    let exponent = match spec.format {
        RowFormat::F32 => 0x7f80_0000,
        RowFormat::F16 => 0x7c00,
        RowFormat::Bf16 => 0x7f80,
    };
    let found = match spec.format {
        RowFormat::F32 => {
            first_with(rows.as_chunks::<4>().0, |bits| u32::from_le_bytes(*bits) & exponent == exponent)
        }
        _ => first_with(rows.as_chunks::<2>().0, |bits| {
            u32::from(u16::from_le_bytes(*bits)) & exponent == exponent
        }),
    };
    found.map_or(Ok(()), |place| {
        let (table, row) = (spec.name.clone(), first + (place / spec.dim) as u64);
        Err(OddElement { table, row, element: place % spec.dim })
    })
}

fn first_with<T>(values: &[T], is_wanted: impl Fn(&T) -> bool + Copy) -> Option<usize> {
    let has = |block: &[T]| block.iter().fold(false, |found, value| found | is_wanted(value));
    let block = values.chunks(FINITE_BLOCK).position(has)?;
    Some(block * FINITE_BLOCK + values[block * FINITE_BLOCK..].iter().position(is_wanted)?)
}

/// Rows of one byte an element (`kernels::pool::bytes`).
#[derive(Debug)]
pub(crate) struct ByteTable {
    spec: TableSpec,
    rows: Slab,
    isa: Isa,
    /// Always empty: these rows are never trained, so nobody takes a checkpoint of them.
    cut: Option<Cut>,
    /// The first row that was written with an element that is no finite number.
    trouble: Option<OddElement>,
}

impl ByteTable {
    fn zeroed(spec: &TableSpec) -> Result<ByteTable, TableError> {
        let bytes = spec.row_count * bytes::row_bytes(spec.dim) as u64;
        let slab = usize::try_from(bytes).ok().and_then(|bytes| Slab::zeroed(bytes).ok());
        let rows = slab.and_then(|mut slab| slab.touch().ok().map(|()| slab));
        let rows = rows.ok_or_else(|| TableError::Memory {
            table: spec.name.clone(),
            row_count: spec.row_count,
            dim: spec.dim,
            needed_bytes: bytes,
            available_bytes: memory_available().unwrap_or(0),
        })?;
        Ok(ByteTable { spec: spec.clone(), rows, isa: Isa::detect(), cut: None, trouble: None })
    }

    fn pool(&self, pooling: Pooling, bags: &FeatureBags<'_>, out: &mut [f32], place: Place) -> bool {
        let how = match pooling {
            Pooling::Sum => Pool::Sum,
            Pooling::Mean => Pool::Mean,
            Pooling::Weighted => Pool::Weighted,
        };
        let bags = pool::Bags { offsets: bags.offsets, rows: bags.rows, weights: bags.weights };
        bytes::pool(self.isa, (self.rows.bytes(), self.spec.dim), bags, how, (out, place)).is_ok()
    }
}

impl RowStore for ByteTable {
    fn layout(&self) -> TableLayout {
        TableLayout::new(&self.spec, &SparseOptimizer::Sgd)
    }

    fn held(&self) -> Range<u64> {
        0..self.spec.row_count
    }

    fn columns(&self) -> Range<usize> {
        0..self.spec.dim
    }

    /// There is no state, and nobody asks for the rows.
    fn copy_rows(&self, _: Range<u64>, _: &mut [u8], _: &mut [f32]) {}

    fn write_rows(&mut self, rows: Range<u64>, from: &[u8], _: &[f32]) {
        let (dim, width) = (self.spec.dim, bytes::row_bytes(self.spec.dim));
        self.trouble = self.trouble.take().or_else(|| finite(&self.spec, rows.start, from).err());
        let to = &mut self.rows.bytes_mut()[rows.start as usize * width..rows.end as usize * width];
        let mut row = vec![0.0; dim];
        for (from, to) in from.chunks_exact(dim * 4).zip(to.chunks_exact_mut(width)) {
            for (value, bytes) in row.iter_mut().zip(from.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
            bytes::quantise(&row, to);
        }
    }

    fn cut(&mut self) -> &mut Option<Cut> {
        &mut self.cut
    }
}

#[cfg(test)]
mod tests {
    use campanile_spec::RowInit;

    use super::*;

    /// Four rows of three elements, of which one is `value`.
    fn rows_with(format: RowFormat, value: f32) -> Vec<u8> {
        let bits = value.to_bits();
        let element = match format {
            RowFormat::F32 => bits.to_le_bytes().to_vec(),
            RowFormat::Bf16 => ((bits >> 16) as u16).to_le_bytes().to_vec(),
            RowFormat::F16 if value.is_finite() => 0x3c00u16.to_le_bytes().to_vec(),
            RowFormat::F16 if value.is_nan() => 0x7e00u16.to_le_bytes().to_vec(),
            RowFormat::F16 => 0xfc00u16.to_le_bytes().to_vec(),
        };
        let mut rows = vec![0; 12 * element.len()];
        rows[10 * element.len()..][..element.len()].copy_from_slice(&element);
        rows
    }

    #[test]
    fn rows_that_are_not_finite_are_refused_by_name_in_every_storage() {
        for format in [RowFormat::F32, RowFormat::F16, RowFormat::Bf16] {
            let spec =
                TableSpec { name: "user".into(), row_count: 700, dim: 3, format, init: RowInit::Zeros };
            for (value, is_fine) in [(1.0, true), (f32::NAN, false), (f32::NEG_INFINITY, false)] {
                let rows = rows_with(format, value);
                let direct = finite(&spec, 500, &rows).map_err(|odd| odd.of(Path::new("v7")).to_string());
                let mut said = vec![direct];
                if format == RowFormat::F32 {
                    // What is held as bytes is given as floats.
                    let mut bytes = ByteTable::zeroed(&spec).unwrap();
                    bytes.write_rows(500..504, &rows, &[]);
                    let odd = bytes.trouble.take().map_or(Ok(()), Err);
                    said.push(odd.map_err(|odd| odd.of(Path::new("v7")).to_string()));
                }
                for said in said {
                    match said {
                        Ok(()) => assert!(is_fine, "{value} of {format:?}"),
                        Err(words) => {
                            let wanted = "v7: table `user`, row 503: element 1 is not a finite number";
                            assert!(!is_fine && words.starts_with(wanted), "{value} of {format:?}: {words}");
                        }
                    }
                }
            }
        }
    }
}
