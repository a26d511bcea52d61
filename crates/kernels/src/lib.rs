//! Numeric loops on slices: matrix products, pooling, updates, interactions, conversions.
//!
//! This room knows no table and no configuration, and is the only one with SIMD `unsafe`. Every loop has a
//! scalar twin that *is* its specification; other levels return the twin's bits, or say by how much they may
//! differ.

pub mod codec;
pub mod half;
pub mod isa;
mod lanes;
pub mod matrix;
pub mod merge;
pub mod pool;
pub mod random;
pub mod update;

pub mod cross;
pub mod elementwise;
pub mod gemm;
pub mod interact;
pub mod peak;

mod buffer;
mod simd;
#[cfg(test)]
mod values;

pub use isa::{Isa, Level};
