//! Rows in: Criteo TSV, CSV, Parquet and synthetic worlds become [`Batch`](campanile_spec::Batch)es.
//!
//! Training reads one form only, the packed one: [`prepare`] turns raw files into it in bounded memory, and
//! a [`Reader`] gives any run of positions of any epoch, which is all that resuming and ranks need.
//!
//! ```text
//!   raw files ─► source (chunks) ─► decode + transforms ─► packed blocks ─► Dataset ─► Reader ─► Batch
//! ```

mod error;
mod half;
mod value;

#[cfg(feature = "parquet")]
pub mod columnar;
pub mod logged;
pub mod teacher;
pub mod transforms;
pub mod world;

mod decode;
mod rows;
mod source;
mod text;
mod unknown;

mod dataset;
mod packed;
mod prep;

pub use dataset::{Dataset, Reader};
pub use decode::{LabelCounts, Observed, WEIGHT_MAX};
pub use error::{BadReason, BadRow, DataError, RowUnit};
pub use packed::{BlockSummary, PackedSummary, inspect};
pub use prep::{IdCounts, PrepOptions, PrepPhase, PrepProgress, Prepared, Reread, SkippedRows, prepare};
pub use transforms::{Raw, Transforms};
pub use unknown::UnknownIds;
