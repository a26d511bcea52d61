//! The rows of a served table: as trained, or narrower.
//!
//! Halves take half the memory and bytes about a quarter, and the scores move a little; the others are exact.
//! How much a model's scores move is for `campanile publish --gate` and `campanile eval` to say on its own data.

use std::ops::Range;

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
        let mut table = ServedTable::zeroed(spec, storage)?;
        match &mut table {
            ServedTable::Wide(table) => checkpoint.load_table_through(buffer, table, Load::Rows)?,
            ServedTable::Bytes(table) => checkpoint.load_table_through(buffer, table, Load::Rows)?,
        }
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
    pub fn with_delta(&self, delta: &Delta) -> Result<Option<ServedTable>, SnapshotError> {
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
            return Err(TableError::RowOutside { table, row, start: 0, end: row_count, row_count }.into());
        }
        let mut copy = ServedTable::zeroed(spec, storage)?;
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

/// Rows of one byte an element (`kernels::pool::bytes`).
#[derive(Debug)]
pub(crate) struct ByteTable {
    spec: TableSpec,
    rows: Slab,
    isa: Isa,
    /// Always empty: these rows are never trained, so nobody takes a checkpoint of them.
    cut: Option<Cut>,
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
        Ok(ByteTable { spec: spec.clone(), rows, isa: Isa::detect(), cut: None })
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
