//! Ranks talking: the [`Communicator`] and its backends.
//!
//! This room moves bytes between ranks and knows no tables. Only it links MPI, and it builds without it: the
//! feature `mpi` adds ranks as processes to ranks as threads.

pub mod buffer;
pub mod communicator;
mod host;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod threads;

pub use buffer::Buffer;
pub use communicator::{CommError, Communicator, Pending};
pub use host::host_name;
