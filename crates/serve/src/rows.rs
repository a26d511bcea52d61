//! The rows of a served table.

use campanile_spec::{FeatureBags, Pooling, RowFormat, SparseOptimizer, TableSpec};
use campanile_tables::{
    Table,
    checkpoint::{Checkpoint, Load},
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
}

/// The rows of one table; immutable once loaded.
#[derive(Debug)]
pub(crate) struct ServedTable {
    table: Table,
}

impl ServedTable {
    /// Reads all rows of a table.
    pub fn load(
        checkpoint: &Checkpoint,
        spec: &TableSpec,
        storage: RowStorage,
    ) -> Result<ServedTable, SnapshotError> {
        let format = match storage {
            RowStorage::AsTrained => spec.format,
            RowStorage::F32 => RowFormat::F32,
            RowStorage::F16 => RowFormat::F16,
        };
        let spec = TableSpec { format, ..spec.clone() };
        // Plain descent keeps no state beside the rows, so the table takes the memory of its rows alone.
        let mut table = Table::zeroed(&spec, 0..spec.row_count, 0..spec.dim, &SparseOptimizer::Sgd)?;
        checkpoint.load_table(&mut table, Load::Rows)?;
        Ok(ServedTable { table })
    }

    /// Bytes of the rows.
    pub fn bytes(&self) -> u64 {
        self.table.memory_bytes()
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
        let pooled = self.table.pool(pooling, bags, out, stride, offset);
        assert!(pooled.is_ok(), "a request's rows are checked when it is filled: {pooled:?}");
    }
}
