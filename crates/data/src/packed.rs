//! The packed file: fixed-width columns in checksummed blocks, uncompressed, in the layout of a batch.
//!
//! Everything is little-endian. A file is written front to back and the index comes last, so that an
//! interrupted one can be continued; it appears under its name only when it is complete.
//!
//! ```text
//!   "CAMPACK1"  header length, checksum, JSON      block 0   block 1   ...   index   trailer
//! ```
//!
//! Every block but the last has the same number of rows, so a row's block is a division. `docs/format-packed.md`
//! gives every byte.

pub(crate) mod block;
mod read;
mod write;

use serde::{Deserialize, Serialize};

use crate::rows::Schema;
pub(crate) use read::PackedFile;
pub use read::{BlockSummary, PackedSummary, inspect};
pub(crate) use write::{PackedWriter, Suspended};

const MAGIC: &[u8; 8] = b"CAMPACK1";
const END_MAGIC: &[u8; 8] = b"CAMPEND1";
const TRAILER_BYTES: u64 = 40;
const INDEX_ENTRY_BYTES: usize = 24;

/// The JSON at the head of a packed file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Header {
    /// The columns.
    pub schema: Schema,
    /// Rows of every block but the last.
    pub block_rows: usize,
    /// Fingerprint of the transforms that made the rows.
    pub transforms: String,
}

/// Where a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockEntry {
    /// First byte of the block's own header.
    pub offset: u64,
    /// Bytes of the payload.
    pub bytes: u32,
    /// Rows.
    pub rows: u32,
    /// CRC-32C of the payload.
    pub checksum: u32,
}
