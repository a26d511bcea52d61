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

pub mod protocol;
pub mod features;
pub mod source;
pub mod models;
pub mod queue;
pub mod engine;
pub mod rest;
pub mod grpc;
pub mod listener;
pub mod security;
pub mod server;
pub mod feature_log;
pub mod metrics;
pub mod histogram;
pub mod dashboard;
pub mod metadata;
pub mod journal;
mod clock;
mod error;

/// The messages of the protocol, compiled from `proto/inference.proto`.
pub mod proto {
    tonic::include_proto!("inference");
}

pub use error::ServeError;
