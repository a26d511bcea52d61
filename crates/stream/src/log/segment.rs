//! A segment: a file of records, appended to and never changed.
//!
//! ```text
//!   head     "CAMPLOG1" | first offset u64                                          16 bytes
//!   record   payload bytes u32 | crc32c u32 | time u64 | payload                    16 bytes and the payload
//! ```
//!
//! Numbers are little-endian; the checksum covers length, time and payload. Offsets are counted, not stored. The last
//! record of the last segment may be unfinished, because it is being written or a crash cut it short: it was never
//! acknowledged, and the next writer removes it. A record that does not fit and has bytes behind it is damage.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use super::{Entry, Limit, LogError, Offset, PAYLOAD_BYTES_MAX, Record, Records};

const MAGIC: &[u8; 8] = b"CAMPLOG1";
pub(super) const HEAD_BYTES: u64 = 16;
const RECORD_HEAD: usize = 16;

/// Bytes read at once: few calls, and what was read is still in the cache when it is checked.
const WINDOW_BYTES: usize = 512 << 10;

/// The name of the segment that starts at an offset; names sort as offsets do.
pub(super) fn file_name(first: Offset) -> String {
    format!("{first:020}.log")
}

/// The head of a new segment.
pub(super) fn head(first: Offset) -> [u8; HEAD_BYTES as usize] {
    let mut head = [0; HEAD_BYTES as usize];
    head[..8].copy_from_slice(MAGIC);
    head[8..].copy_from_slice(&first.to_le_bytes());
    head
}

/// Adds a record to bytes that will be written at once.
pub(super) fn encode(record: &Record<'_>, out: &mut Vec<u8>) {
    let length = (record.payload.len() as u32).to_le_bytes();
    let time = record.time_ms.to_le_bytes();
    out.extend_from_slice(&length);
    out.extend_from_slice(&checksum(length, time, record.payload).to_le_bytes());
    out.extend_from_slice(&time);
    out.extend_from_slice(record.payload);
}

fn checksum(length: [u8; 4], time: [u8; 8], payload: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&length), &time);
    crc32c::crc32c_append(crc, payload)
}

/// A walk through a segment's records.
pub(super) struct Walk {
    path: PathBuf,
    file: File,
    /// Where the next record starts.
    byte: u64,
    offset: Offset,
}

impl Walk {
    /// Opens a segment at its first record.
    pub fn open(path: &Path) -> Result<Walk, LogError> {
        let failed = |source| LogError::Io { path: path.to_owned(), action: "read", source };
        let mut file = File::open(path).map_err(failed)?;
        let mut head = [0; HEAD_BYTES as usize];
        match file.read_exact(&mut head) {
            // A crash may come before the head is written; then there are no records either.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => head = self::head(first_of(path)),
            other => other.map_err(failed)?,
        }
        let (magic, first) = head.split_at(8);
        if magic != MAGIC || first != first_of(path).to_le_bytes() {
            let problem = "it does not begin as a segment of its name".to_owned();
            return Err(LogError::Damaged { path: path.to_owned(), byte: 0, problem });
        }
        Ok(Walk { path: path.to_owned(), file, byte: HEAD_BYTES, offset: first_of(path) })
    }

    /// Goes on at a record whose place is known.
    pub fn jump(&mut self, offset: Offset, byte: u64) {
        (self.offset, self.byte) = (offset, byte);
    }

    /// The number of the next record.
    pub fn offset(&self) -> Offset {
        self.offset
    }

    /// Where the next record starts.
    pub fn byte(&self) -> u64 {
        self.byte
    }

    /// Takes records until a limit is reached or nothing more is there. Payloads are read straight to where the
    /// caller gets them.
    pub fn take(&mut self, limit: Limit, out: &mut Records) -> Result<Stop, LogError> {
        let (first, first_byte) = (out.filled, self.byte);
        loop {
            if out.is_full(limit) {
                return Ok(Stop::Limit);
            }
            // Where the next record stands in `out`, of which bytes up to `there` have been read.
            let at = first + (self.byte - first_byte) as usize;
            let there = out.filled;
            let needed = match parse(&out.bytes[at..there]) {
                Parsed::Record { time_ms, bytes } => {
                    let payload = at + RECORD_HEAD..at + RECORD_HEAD + bytes;
                    out.payload_bytes += bytes;
                    out.entries.push(Entry { offset: self.offset, time_ms, payload });
                    self.byte += (RECORD_HEAD + bytes) as u64;
                    self.offset += 1;
                    continue;
                }
                Parsed::Short(needed) => needed - (there - at),
                Parsed::Wrong(problem, bytes) => return self.wrong(problem, bytes),
            };
            let wanted =
                limit.bytes.saturating_sub(out.payload_bytes).clamp(needed, WINDOW_BYTES.max(needed));
            let byte = first_byte + (there - first) as u64;
            if self.read_more(byte, wanted, out)? < needed {
                return Ok(Stop::End);
            }
        }
    }

    /// Reads up to `count` bytes of the file behind what `out` has, and says how many there were.
    fn read_more(&self, byte: u64, count: usize, out: &mut Records) -> Result<usize, LogError> {
        let start = out.filled;
        if out.bytes.len() < start + count {
            out.bytes.resize(start + count, 0);
        }
        while out.filled < start + count {
            let place = byte + (out.filled - start) as u64;
            match self.file.read_at(&mut out.bytes[out.filled..start + count], place) {
                Ok(0) => break,
                Ok(read) => out.filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(LogError::Io { path: self.path.clone(), action: "read", source }),
            }
        }
        Ok(out.filled - start)
    }

    /// A record that does not fit: unfinished if the file ends with it, damaged otherwise.
    fn wrong(&self, problem: &'static str, record_bytes: usize) -> Result<Stop, LogError> {
        let end = self.byte + record_bytes as u64;
        let failed = |source| LogError::Io { path: self.path.clone(), action: "look at", source };
        let unfinished = self.file.metadata().map_err(failed)?.len() <= end;
        Ok(if unfinished { Stop::End } else { Stop::Damaged(problem) })
    }
}

/// Why a walk stopped taking records.
pub(super) enum Stop {
    /// It took as many as it may.
    Limit,
    /// Nothing more is there, or only the beginning of a record.
    End,
    /// Bytes that are no record.
    Damaged(&'static str),
}

enum Parsed {
    Record {
        time_ms: u64,
        bytes: usize,
    },
    /// So many bytes are needed to say more.
    Short(usize),
    /// What is wrong, and the bytes that the record claims.
    Wrong(&'static str, usize),
}

fn parse(bytes: &[u8]) -> Parsed {
    let Some(head) = bytes.first_chunk::<RECORD_HEAD>() else { return Parsed::Short(RECORD_HEAD) };
    let word = |at: usize| [head[at], head[at + 1], head[at + 2], head[at + 3]];
    let (length, crc) = (word(0), u32::from_le_bytes(word(4)));
    let time: [u8; 8] = std::array::from_fn(|at| head[8 + at]);
    let count = u32::from_le_bytes(length) as usize;
    if count > PAYLOAD_BYTES_MAX {
        return Parsed::Wrong("a record's length is above the limit", 0);
    }
    let Some(payload) = bytes.get(RECORD_HEAD..RECORD_HEAD + count) else {
        return Parsed::Short(RECORD_HEAD + count);
    };
    if checksum(length, time, payload) != crc {
        return Parsed::Wrong("a record's checksum does not fit", RECORD_HEAD + count);
    }
    Parsed::Record { time_ms: u64::from_le_bytes(time), bytes: count }
}

/// The first offset of a segment, which is its name.
pub(super) fn first_of(path: &Path) -> Offset {
    path.file_stem().and_then(|stem| stem.to_str()?.parse().ok()).unwrap_or(0)
}
