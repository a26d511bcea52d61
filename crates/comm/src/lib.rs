//! Ranks talking: the [`Communicator`] and its backends.
//!
//! This room moves bytes between ranks and knows no tables. Only it will link MPI, and it builds without it.

pub mod buffer;
pub mod communicator;
mod host;
pub mod threads;

pub use buffer::Buffer;
pub use communicator::{CommError, Communicator, Pending};
pub use host::host_name;
