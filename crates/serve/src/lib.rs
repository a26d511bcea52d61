//! The answer: immutable snapshots, requests by feature name, scores with the bits of the offline evaluation.
//!
//! ```text
//!   checkpoint ──open──► Snapshot (immutable, shared) ──inputs──► Request (raw values become rows here)
//!                            │                                        │
//!                            └────────────► Scorer (one a thread) ◄───┘ ──► Scores: logits, probabilities
//! ```
//!
//! A server holds an `Arc<Snapshot>` per model and swaps the `Arc` when a newer one is published; an answer is
//! scored by exactly the snapshot that was handed to [`Scorer::score`]. Several requests may share one call:
//! no score depends on what else is in it. Requests and scorers keep their memory, so a server that keeps a
//! few of each allocates nothing in its steady state.
//!
//! This room never changes a snapshot in use, and never reaches `comm` or `sharded`.

pub mod embedding;
mod error;
pub mod export;
pub mod inputs;
pub mod request;
pub mod scorer;
pub mod snapshot;

mod rows;

pub use embedding::Projection;
pub use error::{RequestError, SnapshotError};
pub use inputs::{Input, Inputs};
pub use request::{Request, Side};
pub use rows::RowStorage;
pub use scorer::{Scorer, Scores};
pub use snapshot::{Options, Snapshot, Version};
