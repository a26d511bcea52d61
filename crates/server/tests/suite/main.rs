//! A real server on this machine, asked by real clients, with models that were really trained.

mod clients;
mod crowds;
mod faults;
mod fixture;
mod infer;
mod observe;
mod overload;
mod security;
mod swap;
