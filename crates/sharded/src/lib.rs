//! Where a plan meets ranks: ids to the owners of rows, pooled vectors back, gradients forth.
//!
//! This room holds no rows and does no maths; it knows who must send what to whom.

pub mod exchange;
pub mod reduce;
mod route;

pub use exchange::{Exchange, ShardedError};
