//! Time and events: the event log, its records, and the stages that need no model.
//!
//! A log is topics of records in partitions, each numbered from zero without gaps. Stages of the live loop read from
//! a cursor, write to other topics, and commit how far they are. What a stage writes carries how far it had read, so
//! that after a crash it goes on exactly where its output ends (see [`log::Log::last`]).

pub mod join;
pub mod log;
pub mod records;
pub mod stage;
pub mod topics;
