//! One rank's rows: storage, initialisation, optimizers, checkpoints

pub mod checkpoint;
pub mod cut;
pub mod error;
pub mod memory;
mod plain_file;
pub mod registry;
pub mod slab;
pub mod table;

pub use checkpoint::CheckpointError;
pub use cut::Cut;
pub use error::TableError;
pub use memory::{memory_available, memory_needed, memory_of_rows};
pub use registry::{Registry, RegistryError};
pub use table::{GradientBlock, Table, UpdateReport, UpdateScratch, UpdateStep};
