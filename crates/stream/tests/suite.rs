//! The event log on every backend, and the stages that stand on it.

#[path = "suite/broker.rs"]
#[cfg(feature = "nats")]
mod broker;
#[path = "suite/chain.rs"]
mod chain;
#[path = "suite/clocks.rs"]
mod clocks;
#[path = "suite/durable.rs"]
mod durable;
#[path = "suite/join.rs"]
mod join;
#[path = "suite/log.rs"]
mod log;
#[path = "suite/simulated.rs"]
mod simulated;
