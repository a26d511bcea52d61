//! Files in, batches out: every source, every split, bad input, kills and memory.

mod bad_input;
#[cfg(feature = "parquet")]
mod columnar;
mod corruption;
mod csv;
mod fixture;
mod memory;
#[cfg(feature = "parquet")]
mod parquet;
mod quotes;
mod reread;
mod resume;
mod sources;
mod splits;
mod teacher;
#[cfg(feature = "parquet")]
mod values;
