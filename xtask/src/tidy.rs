//! The house rules that a compiler does not check, as an ordinary test.
//!
//! Each rule is a pure function from text to complaints, so that a test can show it fires. A complaint names
//! the file and says what to change.

pub mod dependencies;
mod files;
pub mod layers;
pub mod pages;
pub mod source;

use std::path::Path;

pub use files::{File, project_files};

/// Everything that is wrong in the project.
pub fn complaints(root: &Path) -> Vec<String> {
    let files = project_files(root);
    let mut complaints = layers::complaints(root);
    complaints.extend(dependencies::complaints(root));
    for file in &files {
        complaints.extend(source::complaints(file));
        complaints.extend(pages::complaints(root, file));
    }
    complaints
}
