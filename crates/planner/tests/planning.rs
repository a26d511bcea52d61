//! The planner as a whole: every plan is whole and fits, the same input gives the same plan, loads are even, and the
//! text is what it was.

#[path = "planning/balance.rs"]
mod balance;
#[path = "planning/bench.rs"]
mod bench;
#[path = "planning/by_towers.rs"]
mod by_towers;
#[path = "planning/golden.rs"]
mod golden;
#[path = "planning/prices.rs"]
mod prices;
#[path = "planning/properties.rs"]
mod properties;
