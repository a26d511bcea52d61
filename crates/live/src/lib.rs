//! The live loop: the stages of the stream that need a model.
//!
//! ```text
//!   impressions ─┬────────────────────────────► join ─► examples ─► Examples ─► train teacher, train students
//!                └─► Augmenter (a teacher) ─► words ─┘                                     │
//!                         ▲                                                                │
//!                         └────────────────────────── registry ◄─────────────── publish ◄──┘
//! ```
//!
//! The log, its records and the joiner are `stream`'s, which knows no model; training is `train`'s, which knows no log.
//! Here they meet. Nothing here reads a clock: whoever waits does so at a [`Stop`].

pub mod answers;
pub mod augment;
pub mod board;
pub mod examples;
#[cfg(feature = "parquet")]
pub mod export;
pub mod file;
pub mod ledger;
pub mod page;
pub mod recent;
mod skipping;
mod stop;
pub mod traffic;
pub mod watch;

pub use stop::{End, Stop, on_signal};
