//! Where tables go: from a model, statistics of its data and a measured topology to a plan, and why.
//!
//! There are no ranks here, no clock and no I/O: the same input gives the same plan and the same text, byte for
//! byte, on every rank.
//!
//! ```text
//!   statistics ─┐
//!   topology   ─┼─► choices: every placement of every table, priced ─► search: which, and on which rank ─► explain
//!   model      ─┘          (estimate)                                    (place: greedy and differencing)
//! ```

pub mod by_towers;
pub mod choices;
pub mod compare;
pub mod estimate;
pub mod explain;
pub mod place;
pub mod plan;
pub mod remedies;
pub mod request;
pub mod search;
pub mod simulate;
pub mod statistics;
pub mod towers;

pub use by_towers::{plan_by_towers, predict_ways};
pub use estimate::{Prediction, predict};
pub use explain::{explain, explain_prices};
pub use plan::{Planned, plan};
pub use remedies::DoesNotFit;
pub use request::{DenseWork, Request, Splits, Wire};
pub use statistics::TableLoad;
