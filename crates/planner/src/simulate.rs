//! The cluster simulator: what a training step would take on machines that nobody has rented yet.
//!
//! ```text
//!   Workload ─► load: bytes and operations of one rank ─┐
//!   Cluster  ─► exchange: what bytes cost on its links ──┼─► step: flat, SPTT, towers ─► text, CSV
//!            ─► memory: what fits where, who serves ids ─┘
//! ```
//!
//! All ranks are alike: tables, towers and samples are taken to be spread evenly, and what that leaves out is one key of the
//! cluster's file (`row_overhead`). The formulas stand beside the code; the figures are in the files. docs/simulator.md says
//! what is assumed, and how far from published figures it comes out.

pub mod exchange;
pub mod load;
pub mod memory;
pub mod step;
pub mod sweep;
pub mod text;

pub use self::{
    memory::{Fit, fit},
    step::{Setting, SettingError, Step, Variant, step},
    sweep::{Point, csv, points},
};
