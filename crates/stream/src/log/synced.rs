//! How far a partition is on disk for certain: the writer's note in the lock file, and what a reader has synced itself.

use std::{
    fs::{self, File},
    io::ErrorKind,
    path::{Path, PathBuf},
};

use super::{
    LogError, Offset,
    disk::Disk,
    partition::{io_error, segments},
    segment,
};

/// Bytes of a note: first record of the segment, synced bytes, and what shows that it is whole.
const NOTE_BYTES: usize = 24;

fn note_sum(first: Offset, bytes: u64) -> u64 {
    !(first.rotate_left(32) ^ bytes)
}

/// Notes in the lock file how far a segment is on disk for certain.
pub(super) fn write_note(disk: &Disk, lock: &File, path: &Path, bytes: u64) -> Result<(), LogError> {
    let first = segment::first_of(path);
    let mut note = [0; NOTE_BYTES];
    for (place, value) in [first, bytes, note_sum(first, bytes)].into_iter().enumerate() {
        note[place * 8..][..8].copy_from_slice(&value.to_le_bytes());
    }
    disk.write_at(lock, &path.with_file_name("lock"), &note, 0)
}

/// How far a segment is on disk for certain, as the lock file notes it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Synced {
    first: Offset,
    bytes: u64,
}

impl Synced {
    /// Reads the note, which is empty where nothing was synced yet.
    pub fn read(directory: &Path) -> Result<Synced, LogError> {
        let path = directory.join("lock");
        let note = match fs::read(&path) {
            Ok(note) => note,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(io_error(&path, "read")(error)),
        };
        let number = |at: usize| note.get(at..at + 8)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        Ok(match (number(0), number(8), number(16)) {
            // Earlier programs wrote no sum.
            (Some(first), Some(bytes), None) if note.len() == 16 => Synced { first, bytes },
            (Some(first), Some(bytes), Some(sum)) if sum == note_sum(first, bytes) => Synced { first, bytes },
            _ => Synced::default(),
        })
    }

    /// The synced bytes of the last of these segments, if they are noted; the segment that the note names must be there.
    pub fn of(self, directory: &Path, segments: &[PathBuf]) -> Result<Option<u64>, LogError> {
        let last = segments.last().map(|path| segment::first_of(path));
        if self.bytes > 0 && last.is_none_or(|last| last < self.first) {
            let path = directory.join(segment::file_name(self.first));
            let problem = format!(
                "it was on disk up to byte {}, and is not there now; records from {} on are gone",
                self.bytes, self.first
            );
            return Err(LogError::Damaged { path, byte: 0, problem });
        }
        // A note on a segment before the last says nothing of the last.
        let of_last = if last == Some(self.first) { self.bytes } else { 0 };
        Ok((self.bytes > 0).then_some(of_last))
    }
}

/// What a reader has put on disk of a partition that another process writes.
#[derive(Default)]
pub(super) struct Tail {
    /// The last segment then, and how long it was.
    synced: Synced,
}

impl Tail {
    /// Puts on disk what the writer has not noted as synced.
    pub fn sync(&mut self, disk: &Disk, directory: &Path) -> Result<(), LogError> {
        let noted = Synced::read(directory)?;
        let known = if (noted.first, noted.bytes) > (self.synced.first, self.synced.bytes) {
            noted
        } else {
            self.synced
        };
        let (mut reached, mut is_new) = (known, false);
        for path in segments(directory)?.iter().filter(|path| segment::first_of(path) >= known.first) {
            let first = segment::first_of(path);
            let file = match File::open(path) {
                // Another process has just removed it.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                file => file.map_err(io_error(path, "open"))?,
            };
            let bytes = file.metadata().map_err(io_error(path, "look at"))?.len();
            if first == known.first && bytes <= known.bytes {
                continue;
            }
            disk.sync(&file, path)?;
            is_new |= first > known.first || known.bytes == 0;
            reached = Synced { first, bytes };
        }
        if is_new {
            disk.sync_dir(directory)?;
        }
        self.synced = reached;
        Ok(())
    }
}
