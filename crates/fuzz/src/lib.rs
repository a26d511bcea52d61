//! Spoilt input for every reader of foreign bytes.
//!
//! ```text
//!   our own writers ─► good input ─► spoilt: bytes, numbers, fields, lines ─► sealed again ─► the reader
//!                                                                                                │
//!         no panic, no hang, memory in proportion to the input, a refusal in words ◄─────────────┘
//! ```
//!
//! A case is a seed and a number, and follows from nothing else, so every failure can be had again by the line that it
//! prints. Checksums are put right after spoiling, for whoever writes a file can do so too.
//!
//! The tests run some thousand cases of each reader; `cargo run --release --package campanile-fuzz -- all --seconds 3600`
//! gives each an hour.

mod allocator;
pub mod campaign;
pub mod model;
pub mod mutate;
mod random;
pub mod readers;

pub use campaign::{Campaign, Finding, Reader, Tally};
pub use random::Random;
