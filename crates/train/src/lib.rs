//! The loop: a step, evaluation, metrics, checkpoints, resume.
//!
//! There is no maths here: rows are `tables`', the network is `model`'s. [`step::step`] is one function on one
//! page; [`run::train`] is what happens around it.

pub mod clock;
mod error;
pub mod evaluate;
pub mod event_file;
pub mod gradient_tree;
pub mod journal;
pub mod loader;
pub mod memory;
pub mod metrics;
pub mod observe;
pub mod plan_of;
pub mod predictions;
pub mod rank;
pub mod ranks;
pub mod resume;
pub mod run;
pub mod same;
pub mod scores;
pub mod step;
mod teaching;
mod towers;
pub mod trial;
pub mod verify;
mod warnings;

pub use error::TrainError;
