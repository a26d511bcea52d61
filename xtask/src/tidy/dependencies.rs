//! What we build on: versions stand in one place. What may be built on at all is `deny.toml`'s to say.

use std::{fs, path::Path};

/// Checks the manifests.
pub fn complaints(root: &Path) -> Vec<String> {
    let mut complaints = Vec::new();
    for entry in fs::read_dir(root.join("crates")).into_iter().flatten().flatten() {
        let path = format!("crates/{}/Cargo.toml", entry.file_name().to_string_lossy());
        if let Ok(manifest) = fs::read_to_string(root.join(&path)) {
            complaints.extend(manifest_complaints(&path, &manifest));
        }
    }
    complaints
}

/// Versions stand in the workspace's manifest only.
pub fn manifest_complaints(path: &str, manifest: &str) -> Vec<String> {
    let table: toml::Table = manifest.parse().unwrap_or_default();
    let mut complaints = Vec::new();
    for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
        for (name, given) in table.get(kind).and_then(|used| used.as_table()).into_iter().flatten() {
            if given.get("workspace").and_then(|value| value.as_bool()) != Some(true) {
                complaints.push(format!(
                    "{path}: `{name}` has a version of its own; put it into [workspace.dependencies] and write \
                     `{name}.workspace = true`"
                ));
            }
        }
    }
    complaints
}
