//! The event log on every backend, and the stages that stand on it.

#[path = "suite/broker.rs"]
#[cfg(feature = "nats")]
mod broker;
#[path = "suite/join.rs"]
mod join;
#[path = "suite/log.rs"]
mod log;
