//! Where a plan meets ranks: ids to the owners of rows, pooled vectors back, gradients forth.
//!
//! This room holds no rows and does no maths of its own; it knows who must send what to whom.

mod chunks;
pub mod exchange;
mod gradients;
mod ids;
pub mod reduce;
mod route;
pub mod shares;
mod split;
pub mod towers;
mod update;
mod vectors;

pub use exchange::{Exchange, Manner, ShardedError};
pub use shares::Shares;
pub use towers::{Circles, TowerExchange};
