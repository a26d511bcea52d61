//! The dense maths: MLP, interaction, cross net, heads, losses; forward and backward side by side.
//!
//! This room does not know how many ranks there are, and holds no rows: it takes dense inputs and pooled
//! vectors of a grain of samples, and gives logits, or gradients. [`Network`] is the whole of it for a caller;
//! `network/` has one short file per model, `layer/` one per kind of layer.

pub mod adapter;
pub mod distil;
pub mod error;
pub mod loss;
pub mod network;
pub mod optimizer;
pub mod parameters;
pub mod workspace;

mod graph;
mod layer;

pub use error::ModelError;
pub use layer::copy::Journey;
pub use network::Network;
pub use parameters::Parameter;
pub use workspace::Workspace;
