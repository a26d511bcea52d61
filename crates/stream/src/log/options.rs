//! How a topic is kept, as text in a file of its directory. A topic without that file is not there.

use std::{
    fs::{self, File},
    io::{ErrorKind, Read},
    path::Path,
};

use super::{
    LogError, Sync, TopicOptions,
    disk::{Disk, Locked},
    partition::io_error,
};

/// Where a topic's identity comes from.
const CHANCE: &str = "/dev/urandom";

/// The most partitions of a topic that are believed: each takes memory as soon as the topic is opened.
const PARTITIONS_MAX: u64 = 1 << 16;

/// Writes the options of a new topic, with an identity of its own. Of two processes that do so at once one comes first, and the
/// other leaves what that one wrote.
pub(super) fn write(disk: &Disk, directory: &Path, options: &TopicOptions) -> Result<(), LogError> {
    let (path, beside) = (directory.join("options"), directory.join("options.new"));
    let file = disk.open(&beside)?;
    file.lock().map_err(io_error(&beside, "lock"))?;
    let Locked(file) = &Locked(file);
    if path.exists() {
        return Ok(());
    }
    let text = format!("{}identity {}\n", text_of(options), new_identity()?);
    disk.set_len(file, &beside, 0)?;
    disk.write_at(file, &beside, text.as_bytes(), 0)?;
    // The bytes are on disk before their name is.
    disk.sync(file, &beside)?;
    disk.rename(&beside, &path)?;
    disk.sync_dir(directory)
}

/// A number that no other topic has.
fn new_identity() -> Result<u64, LogError> {
    let failed = io_error(Path::new(CHANCE), "read");
    let mut bytes = [0; 8];
    File::open(CHANCE).and_then(|mut file| file.read_exact(&mut bytes)).map_err(failed)?;
    Ok(u64::from_le_bytes(bytes).max(1))
}

fn text_of(options: &TopicOptions) -> String {
    let sync = match options.sync {
        Sync::EveryAppend => "append".to_owned(),
        Sync::EveryBytes(bytes) => bytes.to_string(),
        Sync::Never => "never".to_owned(),
    };
    let TopicOptions { partitions, segment_bytes, keep_ms, keep_bytes, .. } = options;
    format!(
        "partitions {partitions}\nsegment_bytes {segment_bytes}\nkeep_ms {keep_ms}\nkeep_bytes {keep_bytes}\nsync {sync}\n"
    )
}

/// The options of a topic and its identity, 0 for one of an earlier program; nothing if the topic is not there.
pub(super) fn read(directory: &Path) -> Result<Option<(TopicOptions, u64)>, LogError> {
    let path = directory.join("options");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        // A stray file among the topics is none either.
        Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => {
            return Ok(None);
        }
        Err(error) => return Err(io_error(&path, "read")(error)),
    };
    let found = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    let value = |key: &str| found(key).ok_or_else(|| damaged(&path, format!("`{key}` is missing")));
    let number = |key: &str| {
        let found = value(key)?;
        found.parse::<u64>().map_err(|_| damaged(&path, format!("`{key} {found}` is no number")))
    };
    let options = TopicOptions {
        partitions: match number("partitions")? {
            count @ 1..=PARTITIONS_MAX => count as u32,
            count => return Err(damaged(&path, format!("{count} partitions; 1 to {PARTITIONS_MAX} can be"))),
        },
        segment_bytes: number("segment_bytes")?,
        keep_ms: number("keep_ms")?,
        keep_bytes: number("keep_bytes")?,
        sync: match value("sync")? {
            "append" => Sync::EveryAppend,
            "never" => Sync::Never,
            _ => Sync::EveryBytes(number("sync")?),
        },
    };
    let identity = if found("identity").is_some() { number("identity")? } else { 0 };
    Ok(Some((options, identity)))
}

fn damaged(path: &Path, problem: String) -> LogError {
    LogError::Damaged { path: path.to_owned(), byte: 0, problem }
}
