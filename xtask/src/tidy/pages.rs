//! Pages and examples: what they name exists, and each example says how to run it.

use std::path::Path;

use super::File;

/// Folders at the root; a word in backticks that begins with one is a path.
const FOLDERS: &[&str] =
    &["crates/", "docs/", "examples/", "bench/", "testbed/", "xtask/", ".ci/", ".cargo/"];

/// Checks one file.
pub fn complaints(root: &Path, file: &File) -> Vec<String> {
    let mut complaints = example_complaints(file);
    if file.path.ends_with(".md") {
        let exists = |path: &str| root.join(path).exists();
        complaints.extend(path_complaints(file, &exists));
    }
    complaints
}

/// Paths that a page names and that are not there.
pub fn path_complaints(file: &File, exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut complaints = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        // "in a new `file`" tells the reader to make it.
        let pieces: Vec<&str> = line.split('`').collect();
        let quoted = pieces.chunks_exact(2).filter(|pair| !pair[0].ends_with("new ")).map(|pair| pair[1]);
        let named = quoted.filter_map(path_in_words);
        let linked = links(line).filter_map(|link| resolve(folder, link));
        for path in named.map(str::to_owned).chain(linked).filter(|path| !exists(path)) {
            complaints.push(format!(
                "{}:{}: there is no {path}; correct the path or add the file",
                file.path,
                index + 1
            ));
        }
    }
    complaints
}

/// The path in a piece of code, such as `campanile train examples/first.toml`.
fn path_in_words(code: &str) -> Option<&str> {
    let word = code.split_whitespace().find(|word| FOLDERS.iter().any(|folder| word.starts_with(folder)))?;
    let path = word.split("::").next()?.trim_end_matches([',', '.', ':', ')', '/']);
    // Patterns and placeholders name no file, and a Python environment is made by its script.
    let names_no_file = ["*", "<", "{", "…", "...", "NNNN", "/venv"].iter().any(|part| path.contains(part));
    (!names_no_file).then_some(path)
}

/// The targets of Markdown links.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// A link's path from the root; `None` for other sites and for places on the same page.
fn resolve(folder: &str, link: &str) -> Option<String> {
    let path = link.split('#').next().filter(|path| !path.is_empty() && !path.contains("://"))?;
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// An example opens by saying how to run it.
pub fn example_complaints(file: &File) -> Vec<String> {
    let Some((folder, name)) = file.path.rsplit_once('/') else { return Vec::new() };
    let is_job = folder == "examples" && name.ends_with(".toml");
    let is_program = folder.ends_with("/examples") && name.ends_with(".rs");
    let first = file.text.lines().next().unwrap_or_default();
    // The loop has a command of its own.
    let command = if name == "live.toml" { "live" } else { "train" };
    if is_job && first != format!("# Run with `campanile {command} {}`", file.path) {
        return vec![format!(
            "{}: its first line must be \"# Run with `campanile {command} {}`\"",
            file.path, file.path
        )];
    }
    if is_program
        && !file
            .text
            .lines()
            .take_while(|line| line.starts_with("//!"))
            .any(|line| line.contains("Run with `"))
    {
        return vec![format!(
            "{}: its module doc must say \"Run with `cargo run --example ...`\"",
            file.path
        )];
    }
    Vec::new()
}
