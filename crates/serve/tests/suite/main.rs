//! What the serving room promises, tried on models that were really trained.

mod exported;
mod followers;
mod offline;
mod published;
mod requests;
mod students;
mod trained;
