//! Chores as a library, so that tests can call them: `cargo test` and `cargo xtask` see the same rules.

pub mod reference;
pub mod skew;
pub mod stages;
pub mod tidy;
pub mod wishes;

use std::{
    env,
    path::{Path, PathBuf},
};

/// The folder that holds the workspace's `Cargo.toml`.
pub fn workspace_root() -> PathBuf {
    // What cargo says now comes before what it said when this was built: a shared target folder, or a checkout that moved,
    // may hold a program that was built somewhere else.
    let here = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().map_or_else(|| here.clone(), Path::to_owned)
}
