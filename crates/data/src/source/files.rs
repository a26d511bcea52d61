//! Which files the job means: patterns resolved, in natural order, with what identifies their contents.

use std::{
    cmp::Ordering,
    collections::HashMap,
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt},
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
    /// The file behind the path, whatever the job calls it and wherever the program was started.
    pub identity: FileIdentity,
    /// The split of its rows, unless the rows themselves decide.
    pub split: Split,
}

/// What tells two files apart that have the same name, length and time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct FileIdentity {
    /// The path without links and dots.
    pub path: PathBuf,
    /// CRC-32C of [`SAMPLES`] stretches of the contents, evenly spread.
    pub sample: u32,
}

/// Stretches of a file that are looked at for its identity; together at most 1 MiB.
const SAMPLES: u64 = 16;

/// Bytes of one stretch.
const SAMPLE_BYTES: u64 = 64 << 10;

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
    let mut found: Vec<InputFile> = Vec::new();
    // A file is the same by any name: by device and number of the file, links included.
    let mut named: HashMap<(u64, u64), (&str, Split)> = HashMap::new();
    for (split, patterns) in
        [(Split::Train, &files.train), (Split::Valid, &files.valid), (Split::Test, &files.test)]
    {
        for pattern in patterns {
            for path in matches(pattern)? {
                let facts = fs::metadata(&path).context("look at", &path)?;
                let again = named.insert((facts.dev(), facts.ino()), (pattern, split));
                if let Some((first, first_split)) = again {
                    let (first_split, split) = (name_of(first_split), name_of(split));
                    let (first, pattern) = (first.to_owned(), pattern.clone());
                    return Err(DataError::FileTwice { path, first, first_split, pattern, split });
                }
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
    paths.sort_by(|a, b| natural_order(&a.to_string_lossy(), &b.to_string_lossy()).then_with(|| a.cmp(b)));
    if paths.is_empty() { Err(DataError::NoMatch { pattern: pattern.into() }) } else { Ok(paths) }
}

fn name_of(split: Split) -> &'static str {
    match split {
        Split::Train => "train",
        Split::Valid => "valid",
        Split::Test => "test",
    }
}

/// Runs of digits compare as numbers, everything else as text: `day_2` comes before `day_10`.
fn natural_order(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    loop {
        let (digits_a, digits_b) = (digits(a), digits(b));
        let order = match (digits_a.is_empty(), digits_b.is_empty()) {
            (false, false) => {
                let number =
                    |digits: &[u8]| digits.iter().position(|&digit| digit != b'0').unwrap_or(digits.len());
                let (number_a, number_b) = (&digits_a[number(digits_a)..], &digits_b[number(digits_b)..]);
                (a, b) = (&a[digits_a.len()..], &b[digits_b.len()..]);
                number_a.len().cmp(&number_b.len()).then_with(|| number_a.cmp(number_b))
            }
            _ => match (a.split_first(), b.split_first()) {
                (Some((first_a, rest_a)), Some((first_b, rest_b))) => {
                    (a, b) = (rest_a, rest_b);
                    first_a.cmp(first_b)
                }
                _ => return a.len().cmp(&b.len()),
            },
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

fn digits(text: &[u8]) -> &[u8] {
    &text[..text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len())]
}

fn describe(path: PathBuf, split: Split) -> Result<InputFile, DataError> {
    let facts = fs::metadata(&path).context("look at", &path)?;
    if facts.len() == 0 {
        return Err(DataError::EmptyFile { path });
    }
    let modified =
        facts.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    let identity = FileIdentity {
        path: fs::canonicalize(&path).context("find", &path)?,
        sample: sample(&path, facts.len())?,
    };
    let modified = (modified.as_secs(), modified.subsec_nanos());
    Ok(InputFile { path, bytes: facts.len(), modified, identity, split })
}

/// A checksum of some of the contents: a file changed in place with its time kept is mostly noticed.
fn sample(path: &Path, bytes: u64) -> Result<u32, DataError> {
    let file = File::open(path).context("open", path)?;
    let (mut sum, mut stretch) = (0, vec![0; SAMPLE_BYTES.min(bytes) as usize]);
    let last = bytes - stretch.len() as u64;
    // Small files are looked at as a whole: their stretches touch.
    let stretches = SAMPLES.min(bytes.div_ceil(SAMPLE_BYTES));
    for index in 0..stretches {
        let at = if stretches == 1 {
            0
        } else {
            (u128::from(last) * u128::from(index) / u128::from(stretches - 1)) as u64
        };
        file.read_exact_at(&mut stretch, at).context("read", path)?;
        sum = crc32c::crc32c_append(sum, &stretch);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_count() {
        let mut names =
            ["day_10", "day_2", "day_1", "day_02b", "day_002", "a10b2", "a10b10", "a9", "day", "day_"];
        names.sort_by(|a, b| natural_order(a, b).then_with(|| a.cmp(b)));
        assert_eq!(
            names,
            ["a9", "a10b2", "a10b10", "day", "day_", "day_1", "day_002", "day_2", "day_02b", "day_10"]
        );
    }

    /// The same name, length, time and contents, seen from another directory, are another set of the cache.
    #[test]
    fn a_file_is_known_by_where_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["a", "b"].map(|name| {
            let directory = folder.path().join(name);
            fs::create_dir(&directory).unwrap();
            let path = directory.join("day.csv");
            fs::write(&path, "y,x\n0,1\n").unwrap();
            File::options().write(true).open(&path).unwrap().set_modified(UNIX_EPOCH).unwrap();
            // As a job names it that is started in that directory.
            InputFile { path: "day.csv".into(), ..describe(path, Split::Train).unwrap() }
        });
        assert_ne!(files[0], files[1]);
        let [a, b] = files.map(|file| (file.path, file.bytes, file.modified, file.identity.sample));
        assert_eq!(a, b, "nothing else tells them apart");
    }
}
