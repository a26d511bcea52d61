//! Numeric loops on slices: matrix products, pooling, updates, interactions, conversions.
//!
//! This room knows no table and no configuration, and is the only one with SIMD `unsafe`. Every loop has a
//! scalar twin that *is* its specification; other levels return the twin's bits, or say by how much they may
//! differ.

pub mod isa;
pub mod matrix;

pub mod cross;
pub mod elementwise;
pub mod gemm;
pub mod interact;

pub use isa::Isa;
