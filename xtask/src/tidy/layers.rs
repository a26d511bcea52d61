//! The drawing of the rooms is true: who may use whom stands in ARCHITECTURE.md, and the manifests agree.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Room to the rooms it uses.
pub type Layers = BTreeMap<String, BTreeSet<String>>;

/// The heading above the table that is checked; planned rooms stand under another.
const HEADING: &str = "## The rooms";

/// Compares the table with the manifests.
pub fn complaints(root: &Path) -> Vec<String> {
    let page = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap_or_default();
    let mut manifests = BTreeMap::new();
    for entry in fs::read_dir(root.join("crates")).into_iter().flatten().flatten() {
        let room = entry.file_name().to_string_lossy().into_owned();
        if let Ok(manifest) = fs::read_to_string(entry.path().join("Cargo.toml")) {
            manifests.insert(room, manifest);
        }
    }
    compare(&drawn(&page), &built(&manifests))
}

/// The table of the page: the room in the first column, what it uses in the last.
pub fn drawn(page: &str) -> Layers {
    let chapter = page.split_once(HEADING).map_or("", |(_, rest)| rest);
    let chapter = chapter.split("\n## ").next().unwrap_or_default();
    let mut layers = Layers::new();
    for line in chapter.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if let (Some(room), Some(uses)) = (cells.first(), cells.last()) {
            let uses = quoted(uses).into_iter().collect();
            layers.insert(room.trim_matches('`').to_owned(), uses);
        }
    }
    layers
}

/// The words in backticks.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// What the manifests say; dependencies of tests do not count.
pub fn built(manifests: &BTreeMap<String, String>) -> Layers {
    let rooms_of = |manifest: &String| {
        let table: toml::Table = manifest.parse().unwrap_or_default();
        let names = table.get("dependencies").and_then(|used| used.as_table()).into_iter().flatten();
        names.filter_map(|(name, _)| name.strip_prefix("campanile-").map(str::to_owned)).collect()
    };
    manifests.iter().map(|(room, manifest)| (room.clone(), rooms_of(manifest))).collect()
}

/// Every difference, with what to change.
pub fn compare(drawn: &Layers, built: &Layers) -> Vec<String> {
    let mut complaints = Vec::new();
    for (room, uses) in built {
        let Some(allowed) = drawn.get(room) else {
            complaints
                .push(format!("ARCHITECTURE.md: add a row for `{room}` to the table under `{HEADING}`"));
            continue;
        };
        for extra in uses.difference(allowed) {
            complaints.push(format!(
                "crates/{room}/Cargo.toml uses `{extra}`, which the row of `{room}` in ARCHITECTURE.md does not allow: add \
                 `{extra}` to its last column if the drawing should change, or drop the dependency"
            ));
        }
        for gone in allowed.difference(uses) {
            complaints.push(format!(
                "ARCHITECTURE.md says that `{room}` uses `{gone}`, but its manifest does not: take it out of the row of `{room}`"
            ));
        }
        if uses.contains("oracle") {
            complaints.push(format!(
                "crates/{room}/Cargo.toml: `oracle` is for tests; use it under [dev-dependencies]"
            ));
        }
    }
    for room in drawn.keys().filter(|room| !built.contains_key(*room)) {
        complaints.push(format!(
            "ARCHITECTURE.md: there is no room `{room}`; take its row out, or list it as planned"
        ));
    }
    complaints
}
