//! The whole model, forward, backward and updates, in one plain file; for tests only.
//!
//! Read [`oracle`] first if you are new here: it is everything that training computes, with nothing that
//! makes it fast. Every equivalence test compares the engine with it, bit for bit.

mod distil;
mod elementary;
mod matrix;
mod moves;
pub mod oracle;
mod sums;
mod towers;
mod two_towers;
mod wire;

pub use moves::Row;
pub use oracle::{Oracle, Parameter, Step};
