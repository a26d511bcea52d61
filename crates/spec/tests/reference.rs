//! The reference page in docs/ is the one that the code writes.

use std::{fs, path::PathBuf};

use campanile_spec::config::reference_page;

#[test]
fn the_reference_page_is_current() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/job.md");
    let page = fs::read_to_string(&path).unwrap_or_default();
    assert!(page == reference_page(), "docs/job.md is out of date: run `cargo xtask reference`");
}
