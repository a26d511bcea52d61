//! Chores as a library, so that tests can call them: `cargo test` and `cargo xtask` see the same rules.

pub mod reference;
pub mod stages;
pub mod tidy;
pub mod wishes;

use std::path::{Path, PathBuf};

/// The folder that holds the workspace's `Cargo.toml`.
pub fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}
