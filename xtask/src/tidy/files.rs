//! The project's own text files.

use std::{fs, path::Path};

/// A text file of the project.
#[derive(Debug, Clone)]
pub struct File {
    /// From the root, with `/` between folders.
    pub path: String,
    /// What it says.
    pub text: String,
}

/// What is read: the kinds of text that people write here.
const EXTENSIONS: &[&str] = &["rs", "toml", "md", "py", "sh", "txt"];

/// Folders that hold no text of ours.
const SKIPPED: &[&str] = &[".git", "runs", "data", "venv", "work", "node_modules", "__pycache__"];

/// All text files, by path. Build folders, outputs of runs, and hidden folders other than `.ci` and `.cargo`
/// are left out.
pub fn project_files(root: &Path) -> Vec<File> {
    let mut files = Vec::new();
    walk(root, "", &mut files);
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

fn walk(folder: &Path, prefix: &str, files: &mut Vec<File>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
        let is_hidden = name.starts_with('.') && name != ".ci" && name != ".cargo";
        if entry.path().is_dir() {
            // `data` is a room, but at the root it is where people put their logs.
            let is_skipped = SKIPPED.contains(&&*name) && (prefix.is_empty() || name != "data");
            if !is_hidden && !is_skipped && !name.starts_with("target") {
                walk(&entry.path(), &path, files);
            }
            continue;
        }
        let is_text = path.rsplit_once('.').is_some_and(|(_, extension)| EXTENSIONS.contains(&extension));
        if (is_text || path == ".ci/run")
            && !is_hidden
            && let Ok(text) = fs::read_to_string(entry.path())
        {
            files.push(File { path, text });
        }
    }
}
