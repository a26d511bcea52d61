//! Why a table could not do what it was asked.

use campanile_spec::Bytes;
use thiserror::Error;

/// Why a table could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TableError {
    /// A bag names a row that this part of the table does not hold.
    #[error(
        "table `{table}`: row {row} is not among rows {start}..{end} (the table has {row_count}); \
         hash ids to rows, or raise row_count"
    )]
    RowOutside {
        /// The table.
        table: String,
        /// The row.
        row: u64,
        /// First row held.
        start: u64,
        /// One past the last row held.
        end: u64,
        /// Rows of the whole table.
        row_count: u64,
    },
    /// The machine does not have the memory.
    #[error(
        "table `{table}`: {row_count} rows of {dim} need {needed} of memory with their optimizer state, and \
         {available} are free; take fewer rows, a smaller dim, a 16-bit format or a row-wise optimizer",
        needed = Bytes(*needed_bytes),
        available = Bytes(*available_bytes)
    )]
    Memory {
        /// The table.
        table: String,
        /// Rows of this part.
        row_count: u64,
        /// Floats in a row.
        dim: usize,
        /// Bytes of rows and state.
        needed_bytes: u64,
        /// Bytes that the system would give.
        available_bytes: u64,
    },
    /// The table's description is not possible.
    #[error("table `{table}`: {what}")]
    Spec {
        /// The table.
        table: String,
        /// What is wrong.
        what: String,
    },
}
