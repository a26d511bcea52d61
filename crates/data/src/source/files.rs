//! Which files the job means: patterns resolved, in sorted order, with what identifies their contents.

use std::{
    fs,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use campanile_spec::{
    config::DataFiles,
    data::{Split, SplitSpec},
};
use serde::Serialize;

use crate::error::{DataError, IoContext};

/// A raw file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct InputFile {
    pub path: PathBuf,
    pub bytes: u64,
    /// Seconds and nanoseconds since 1970, for noticing that the file changed.
    pub modified: (u64, u32),
    /// The split of its rows, unless the rows themselves decide.
    pub split: Split,
}

/// The files of a job, training files first. Only a split by file reads files for other splits.
pub(crate) fn resolve(files: &DataFiles, split: &SplitSpec) -> Result<Vec<InputFile>, DataError> {
    let kind = match split {
        SplitSpec::ByFile => None,
        SplitSpec::ByRow { .. } => Some("by row"),
        SplitSpec::ByTime { .. } => Some("by time"),
        SplitSpec::ByHash { .. } => Some("by hash"),
    };
    if let Some(kind) = kind {
        for (split, patterns) in [("valid", &files.valid), ("test", &files.test)] {
            if !patterns.is_empty() {
                return Err(DataError::FilesNotSplit { split, kind });
            }
        }
    }
    let mut found = Vec::new();
    for (split, patterns) in
        [(Split::Train, &files.train), (Split::Valid, &files.valid), (Split::Test, &files.test)]
    {
        for pattern in patterns {
            for path in matches(pattern)? {
                found.push(describe(path, split)?);
            }
        }
    }
    if !found.iter().any(|file| file.split == Split::Train) {
        return Err(DataError::NoFiles);
    }
    Ok(found)
}

fn matches(pattern: &str) -> Result<Vec<PathBuf>, DataError> {
    // A file whose name looks like a pattern is still that file.
    if Path::new(pattern).is_file() {
        return Ok(vec![pattern.into()]);
    }
    if !pattern.contains(['*', '?', '[']) {
        return Err(DataError::FileNotFound { path: pattern.into() });
    }
    let bad = |reason: String| DataError::BadPattern { pattern: pattern.into(), reason };
    let mut paths = Vec::new();
    for entry in glob::glob(pattern).map_err(|error| bad(error.to_string()))? {
        let path = entry.map_err(|error| bad(error.to_string()))?;
        if path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    if paths.is_empty() { Err(DataError::NoMatch { pattern: pattern.into() }) } else { Ok(paths) }
}

fn describe(path: PathBuf, split: Split) -> Result<InputFile, DataError> {
    let facts = fs::metadata(&path).context("look at", &path)?;
    if facts.len() == 0 {
        return Err(DataError::EmptyFile { path });
    }
    let modified =
        facts.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    Ok(InputFile { path, bytes: facts.len(), modified: (modified.as_secs(), modified.subsec_nanos()), split })
}
