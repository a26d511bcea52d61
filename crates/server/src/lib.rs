//! The network around scoring: KServe v2 over REST and gRPC, queues, logs, metrics, security.
//!
//! ```text
//!   REST  ─┐                                        ┌─► feature log
//!          ├─► protocol ─► features ─► engine ◄──► queue ◄── scoring threads (serve::Scorer)
//!   gRPC  ─┘   tensors      rows        │
//!                                     models ◄── source (registry or checkpoints), followed by one thread
//! ```
//!
//! No score is computed here: `serve` does that, with the bits of the offline evaluation. This room decides who may
//! ask, how much may wait, which snapshot answers, and what is noted.

mod background;
mod body;
pub mod budget;
pub mod client;
mod clock;
pub mod dashboard;
pub mod engine;
mod error;
mod farewell;
pub mod feature_log;
pub mod features;
pub mod follower;
pub mod grpc;
pub mod histogram;
pub mod journal;
pub mod listener;
pub mod metadata;
pub mod metrics;
pub mod models;
pub mod open_files;
pub mod passage;
pub mod places;
pub mod protocol;
pub mod queue;
pub mod rest;
pub mod security;
pub mod server;
pub mod source;
mod together;
pub mod traces;

/// The messages of the protocol, compiled from `proto/inference.proto`.
#[expect(missing_docs, reason = "written by the compiler of the protocol, which explains the fields itself")]
pub mod proto {
    tonic::include_proto!("inference");
}

pub use error::ServeError;
