//! Checkpoints: everything a run needs to go on, as files that plain `safetensors` reads.
//!
//! ```text
//!   checkpoints/
//!     step-000000001234/                 published by one rename; never changed afterwards
//!       manifest.json                    step, cursor, job, layout, length and checksum of every file
//!       dense.safetensors                dense weights by name
//!       dense_state.safetensors          their optimizer state
//!       table-user-00000.safetensors     rows 0..n of table `user`, and their state
//!       table-user-00001.safetensors     …
//!     step-000000002468.writing/         under way; swept away if the run dies
//! ```
//!
//! The row range of a file follows from the table alone, so ranks, plans and precisions can change between
//! writing and loading. A checkpoint is a consistent cut ([`crate::cut`]) that a thread per rank writes while
//! the training goes on:
//!
//! 1. rank 0 calls [`prepare`]; then every rank begins a [`Sweep`] over its tables at the same step;
//! 2. between steps every rank calls [`Sweep::advance`]: some rows are copied, unless the queue is full;
//! 3. when all ranks are [`Progress::Written`], rank 0 calls [`publish`] with what each rank's
//!    [`Sweep::finish`] returned; on any rank's error rank 0 calls [`discard`] instead;
//! 4. [`prune`] removes old ones. [`latest`] finds where to go on, after [`clean`] has swept up.
//!
//! Invariants: a directory named `step-N` is complete (every byte is on disk before the rename); every byte of
//! it is covered by a checksum, and an error about it names the file; nothing here holds more than a few pieces
//! of [`PIECE_BYTES_MAX`] and the pre-images of the cut. The bytes are described in `docs/format.md`.

pub(crate) mod convert;
mod directory;
mod disk;
mod error;
mod finite;
pub(crate) mod header;
pub(crate) mod layout;
mod manifest;
mod read;
mod rows;
mod summary;
mod sweep;
#[cfg(test)]
mod tests;
mod write;

pub use directory::{Held, clean, discard, hold, latest, list, prepare, prune, publish};
pub use error::CheckpointError;
pub use layout::{FILE_PIECES, PIECE_BYTES_MAX, StateColumn, TableLayout};
pub use manifest::{ColumnPart, FORMAT_VERSION, FileEntry, FilePart, Manifest, TensorEntry, Written};
pub use read::{Checkpoint, Load};
pub use summary::{Summary, TableSummary, describe};
pub use sweep::{Limits, Progress, Sweep};
pub use write::{CheckpointWriter, DenseKind, DenseLayout, DenseTensor, Offer, Piece, QUEUE_PIECES_MAX};

/// What a checkpoint does, or why not.
pub type Result<T, E = CheckpointError> = std::result::Result<T, E>;

const _: () = assert!(cfg!(target_endian = "little"), "safetensors files hold little-endian numbers");
