//! What we build on: one registry, no crate twice without a reason, versions in one place.

use std::{collections::BTreeMap, fs, path::Path};

/// Crates that may stand in the tree in several versions, and why.
const SEVERAL_VERSIONS: &[(&str, &str)] = &[
    ("cpufeatures", "the keys of NATS, which the feature nats needs, are behind"),
    ("foldhash", "comes with each of the two releases of hashbrown"),
    ("getrandom", "pulled in by hashing and temporary files of others; small"),
    ("hashbrown", "pulled in by Parquet and by indexmap"),
    ("itertools", "bindgen, which the feature mpi builds with, is behind"),
    ("r-efi", "for UEFI targets only; never built here"),
    ("rand", "the keys of NATS, which the feature nats needs, are behind"),
    ("rand_chacha", "comes with each of the two releases of rand"),
    ("rand_core", "comes with each of the two releases of rand"),
    ("shlex", "bindgen, which the feature mpi builds with, is behind"),
    ("syn", "derive macros are moving from 2 to 3"),
    ("windows-sys", "for Windows only"),
    ("windows-targets", "for Windows only"),
];

/// Checks the lock file and the manifests.
pub fn complaints(root: &Path) -> Vec<String> {
    let lock = fs::read_to_string(root.join("Cargo.lock")).unwrap_or_default();
    let mut complaints = lock_complaints(&lock);
    for entry in fs::read_dir(root.join("crates")).into_iter().flatten().flatten() {
        let path = format!("crates/{}/Cargo.toml", entry.file_name().to_string_lossy());
        if let Ok(manifest) = fs::read_to_string(root.join(&path)) {
            complaints.extend(manifest_complaints(&path, &manifest));
        }
    }
    complaints
}

/// Several versions of one crate, and crates from elsewhere than the registry.
pub fn lock_complaints(lock: &str) -> Vec<String> {
    let table: toml::Table = lock.parse().unwrap_or_default();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut complaints = Vec::new();
    for package in table.get("package").and_then(|packages| packages.as_array()).into_iter().flatten() {
        let text = |key: &str| package.get(key).and_then(|value| value.as_str());
        let (Some(name), Some(version)) = (text("name"), text("version")) else { continue };
        versions.entry(name).or_default().push(version);
        if let Some(source) = text("source").filter(|source| !source.starts_with("registry+")) {
            complaints
                .push(format!("Cargo.lock: {name} comes from {source}; use a release from the registry"));
        }
    }
    let allowed = |name: &str| SEVERAL_VERSIONS.iter().any(|(known, _)| *known == name);
    for (name, versions) in versions.iter().filter(|(name, versions)| versions.len() > 1 && !allowed(name)) {
        complaints.push(format!(
            "Cargo.lock: {name} stands in the tree as {}; align the versions, or add it with a reason to \
             SEVERAL_VERSIONS in xtask/src/tidy/dependencies.rs",
            versions.join(" and ")
        ));
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
