//! The cluster simulator: held to figures by hand, to limits, to a published-by-specification table, and to its own text.

#[path = "simulate/bench.rs"]
mod bench;
#[path = "simulate/by_hand.rs"]
mod by_hand;
#[path = "simulate/golden.rs"]
mod golden;
#[path = "simulate/properties.rs"]
mod properties;
