//! The event log: what every backend can do, and how records are numbered.
//!
//! The embedded backend is a [directory of segments](directory::DirectoryLog); with the feature `nats` there is also
//! one on NATS JetStream. Every backend passes one suite of tests (`tests/suite/log.rs`).
//!
//! ```text
//!   topic "impressions"
//!     partition 0    0 1 2 3 4 5 ...      an offset names a record for ever; old ones go by time and size
//!     partition 1    0 1 2 ...
//!   group "joiner"   cursor of (topic, partition): the first record that it has not done yet
//! ```

pub mod address;
mod checksum;
mod cursor;
mod cursors;
pub mod directory;
pub mod disk;
mod frame;
#[cfg(feature = "nats")]
pub mod jetstream;
mod options;
mod partition;
mod segment;
mod synced;

use std::{io, path::PathBuf};

use thiserror::Error;

pub use checksum::checksum;
pub use cursor::{Cursor, CursorError};
pub use directory::DirectoryLog;

/// A record's number in its partition.
pub type Offset = u64;

/// A record to append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// When it happened, in milliseconds since 1970; retention goes by it.
    pub time_ms: u64,
    /// What happened.
    pub payload: &'a [u8],
}

/// A record that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored<'a> {
    /// Its number.
    pub offset: Offset,
    /// When it happened.
    pub time_ms: u64,
    /// What happened.
    pub payload: &'a [u8],
}

impl Stored<'_> {
    /// A checksum of its time and payload, never 0: what a cursor remembers of the last record before it.
    pub fn sum(&self) -> u64 {
        let sum = crc32c::crc32c_append(crc32c::crc32c(&self.time_ms.to_le_bytes()), self.payload);
        1 << 32 | u64::from(sum)
    }
}

/// Records that were read together, in memory that serves again.
#[derive(Debug, Clone, Default)]
pub struct Records {
    /// Grows and never shrinks; `filled` of it was read.
    bytes: Vec<u8>,
    filled: usize,
    /// The number of the first; the others follow without gaps.
    first: Offset,
    entries: Vec<Entry>,
    payload_bytes: usize,
}

/// Where a record stands in the bytes of [`Records`].
#[derive(Debug, Clone, Copy)]
struct Entry {
    time_ms: u64,
    start: usize,
    length: u32,
}

impl Entry {
    fn range(&self) -> std::ops::Range<usize> {
        self.start..self.start + self.length as usize
    }
}

impl Records {
    /// How many.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of all payloads.
    pub fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    /// All, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Stored<'_>> + DoubleEndedIterator {
        self.entries.iter().enumerate().map(|(place, entry)| Stored {
            offset: self.first + place as u64,
            time_ms: entry.time_ms,
            payload: &self.bytes[entry.range()],
        })
    }

    /// The last.
    pub fn last(&self) -> Option<Stored<'_>> {
        self.iter().next_back()
    }

    /// Drops all but the first `count`.
    pub fn truncate(&mut self, count: usize) {
        self.entries.truncate(count);
        self.payload_bytes = self.entries.iter().map(|entry| entry.length as usize).sum();
    }

    /// Adds the record that follows the last, or any as the first.
    fn push(&mut self, record: Stored<'_>) {
        if self.is_empty() {
            self.first = record.offset;
        }
        assert_eq!(record.offset, self.first + self.len() as u64, "records have no gaps");
        let (start, end) = (self.filled, self.filled + record.payload.len());
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[start..end].copy_from_slice(record.payload);
        self.filled = end;
        self.payload_bytes += record.payload.len();
        self.entries.push(Entry { time_ms: record.time_ms, start, length: record.payload.len() as u32 });
    }

    /// Whether a read with this limit is to stop.
    fn is_full(&self, limit: Limit) -> bool {
        !self.is_empty() && (self.len() >= limit.records.max(1) || self.payload_bytes >= limit.bytes)
    }

    fn clear(&mut self) {
        self.filled = 0;
        self.entries.clear();
        self.payload_bytes = 0;
    }
}

/// When appended records are on disk for certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// When `append` returns: nothing that was acknowledged is lost in a power cut.
    EveryAppend,
    /// After so many bytes, and when [`Log::sync`] is called: a power cut may lose what came since.
    EveryBytes(u64),
    /// When the system likes. A crash of the process loses nothing; a power cut may.
    Never,
}

/// How a topic is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicOptions {
    /// Partitions; cannot be changed later.
    pub partitions: u32,
    /// Bytes after which a new segment begins; whole segments are what retention removes.
    pub segment_bytes: u64,
    /// Records older than this may go; 0 keeps all.
    pub keep_ms: u64,
    /// Bytes of a partition above which the oldest may go; 0 keeps all.
    pub keep_bytes: u64,
    /// When records are on disk for certain.
    pub sync: Sync,
}

impl Default for TopicOptions {
    /// One partition, segments of 64 MiB, everything kept, on disk every 4 MiB.
    fn default() -> TopicOptions {
        TopicOptions {
            partitions: 1,
            segment_bytes: 64 << 20,
            keep_ms: 0,
            keep_bytes: 0,
            sync: Sync::EveryBytes(4 << 20),
        }
    }
}

/// How much one read may return; at least one record comes if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Records.
    pub records: usize,
    /// Bytes of payloads: no more records are looked for when there are so many. What was appended together may come together,
    /// so there can be some 64 KiB more.
    pub bytes: usize,
}

/// The longest payload, so that a damaged length cannot ask for all memory.
pub const PAYLOAD_BYTES_MAX: usize = 64 << 20;

/// Why a log could not do what was asked.
#[derive(Debug, Error)]
pub enum LogError {
    /// The system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A file does not hold what was written.
    #[error("{} is damaged at byte {byte}: {problem}; restore it from a copy, or remove it and lose its records", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        byte: u64,
        /// What is wrong.
        problem: String,
    },
    /// A file that another version of the program wrote.
    #[error(
        "{} is a segment of format `{found}`, and this program reads and writes `{wanted}`; let the program that wrote the log finish with it, and begin a new one", path.display()
    )]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// How it begins.
        found: String,
        /// How it would have to.
        wanted: &'static str,
    },
    /// There is no such topic.
    #[error("there is no topic `{topic}` in {}; it has {known}", path.display())]
    NoTopic {
        /// The log.
        path: PathBuf,
        /// What was asked for.
        topic: String,
        /// What there is.
        known: String,
    },
    /// There is no such partition.
    #[error("topic `{topic}` has {count} partitions, and partition {partition} was asked for")]
    NoPartition {
        /// The topic.
        topic: String,
        /// What was asked for.
        partition: u32,
        /// How many there are.
        count: u32,
    },
    /// A topic exists with another number of partitions.
    #[error(
        "topic `{topic}` has {found} partitions, not {wanted}; their number cannot change, make another topic"
    )]
    OtherPartitions {
        /// The topic.
        topic: String,
        /// How many it has.
        found: u32,
        /// How many were asked for.
        wanted: u32,
    },
    /// An address that is none.
    #[error("`{address}` is not the address of a log: {problem}")]
    BadAddress {
        /// What was given.
        address: String,
        /// What is wrong.
        problem: String,
    },
    /// A name that cannot be a directory's.
    #[error(
        "`{name}` cannot be the name of a topic or group: use 1 to 100 letters, digits, `-`, `_` and `.`, not `.` first"
    )]
    BadName {
        /// The name.
        name: String,
    },
    /// An append or a sync failed before.
    #[error(
        "{}: an append or a sync failed before, and what is on disk is not known; see to the disk and start again", path.display()
    )]
    WriterFailed {
        /// The segment.
        path: PathBuf,
    },
    /// Somebody else writes to the partition.
    #[error("{} is being written by another process; one writer at a time", path.display())]
    Busy {
        /// The lock.
        path: PathBuf,
    },
    /// The record was removed: by retention, or by somebody on the server.
    #[error(
        "topic `{topic}`, partition {partition}: record {offset} is gone, the oldest kept after it is {start}"
    )]
    Gone {
        /// The topic.
        topic: String,
        /// The partition.
        partition: u32,
        /// What was asked for.
        offset: Offset,
        /// The oldest that is there.
        start: Offset,
    },
    /// A server refused, or cannot be reached.
    #[error("cannot {action} {url}: {problem}")]
    Remote {
        /// The server.
        url: String,
        /// What was tried.
        action: &'static str,
        /// What it said.
        problem: String,
    },
    /// A payload that is too long.
    #[error("a payload of {bytes} bytes is above the limit of {PAYLOAD_BYTES_MAX}; cut it up")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
}

/// What every event log can do. All methods may be called from any thread.
pub trait Log: Send + std::marker::Sync {
    /// Makes a topic, unless it is there.
    ///
    /// # Errors
    /// When it is there with another number of partitions, or cannot be made.
    fn create(&self, topic: &str, options: TopicOptions) -> Result<(), LogError>;

    /// How a topic is kept.
    ///
    /// # Errors
    /// When it is not there, or cannot be asked about.
    fn options(&self, topic: &str) -> Result<TopicOptions, LogError>;

    /// A number that no other topic has: a log that was made anew has others. 0 for topics of earlier programs, which have none.
    ///
    /// # Errors
    /// When the topic is not there, or cannot be asked about.
    fn identity(&self, topic: &str) -> Result<u64, LogError>;

    /// Appends records, in order, and returns the number of the first. Either all are appended or, after a crash, a
    /// first part of them.
    ///
    /// # Errors
    /// When they cannot be written; what was there stays.
    fn append(&self, topic: &str, partition: u32, records: &[Record<'_>]) -> Result<Offset, LogError>;

    /// Reads records from `from` on into `out`, which is emptied first; leaves it empty at the end of the log.
    ///
    /// # Errors
    /// When `from` is gone, or a file is damaged.
    fn read(
        &self,
        topic: &str,
        partition: u32,
        from: Offset,
        limit: Limit,
        out: &mut Records,
    ) -> Result<(), LogError>;

    /// The oldest record that is kept, and the number that the next one will get.
    ///
    /// # Errors
    /// When the log cannot be read.
    fn range(&self, topic: &str, partition: u32) -> Result<std::ops::Range<Offset>, LogError>;

    /// Reads the last record into `out`, which stays empty if there is none: it tells a stage how far it was when it
    /// crashed.
    ///
    /// # Errors
    /// When the log cannot be read.
    fn last(&self, topic: &str, partition: u32, out: &mut Records) -> Result<(), LogError> {
        let range = self.range(topic, partition)?;
        out.clear();
        if range.is_empty() {
            return Ok(());
        }
        self.read(topic, partition, range.end - 1, Limit { records: 1, bytes: 1 }, out)
    }

    /// Says that a group has done all records before `next`.
    ///
    /// # Errors
    /// When it cannot be written; the cursor from before stays.
    fn commit(&self, group: &str, topic: &str, partition: u32, next: Offset) -> Result<(), LogError>;

    /// The first record that a group has not done; 0 for a group that has done nothing.
    ///
    /// # Errors
    /// When it cannot be read.
    fn committed(&self, group: &str, topic: &str, partition: u32) -> Result<Offset, LogError>;

    /// Puts everything appended so far on disk.
    ///
    /// # Errors
    /// When the disk fails.
    fn sync(&self) -> Result<(), LogError>;

    /// Puts everything that one partition has now on disk, whoever appended it: a reader may do so for what it has read and
    /// its writer has not synced yet.
    ///
    /// # Errors
    /// When the disk fails.
    fn sync_topic(&self, topic: &str, partition: u32) -> Result<(), LogError> {
        let _ = (topic, partition);
        self.sync()
    }

    /// Removes records before `before`, as far as they can go without the others: for a topic whose one reader needs them no
    /// more. The last record is never renumbered. Returns the oldest record that is left.
    ///
    /// # Errors
    /// When they cannot be removed.
    fn trim(&self, topic: &str, partition: u32, before: Offset) -> Result<Offset, LogError>;

    /// Removes what the topics' options no longer keep, as of `now_ms`; returns how many records went.
    ///
    /// # Errors
    /// When a file cannot be removed.
    fn retain(&self, now_ms: u64) -> Result<u64, LogError>;
}

/// Checks a name that becomes part of a path or a subject.
pub(crate) fn check_name(name: &str) -> Result<(), LogError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 100 || name.starts_with('.') || !name.chars().all(fits) {
        return Err(LogError::BadName { name: name.to_owned() });
    }
    Ok(())
}
