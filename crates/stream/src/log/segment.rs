//! A segment: a file of frames, appended to and never changed.
//!
//! ```text
//!   head     "CAMPLOG2" | first offset u64        16 bytes
//!   frames   records that were appended together, under one checksum: see `frame`
//! ```
//!
//! Offsets are counted, not stored. The last frame of the last segment may be unfinished, because it is being written or a
//! crash cut it short: it was never acknowledged, and the next writer removes it. A frame that does not fit and has bytes
//! behind it is damage.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use super::{
    Limit, LogError, Offset, Records,
    frame::{self, Parsed},
};

const FORMAT: &str = "CAMPLOG2";
/// How every format of a segment begins.
const FAMILY: &[u8] = b"CAMPLOG";
pub(super) const HEAD_BYTES: u64 = 16;

/// Bytes read at once: few calls, and what was read is still in the cache when it is checked.
const WINDOW_BYTES: usize = 128 << 10;

/// The name of the segment that starts at an offset; names sort as offsets do.
pub(super) fn file_name(first: Offset) -> String {
    format!("{first:020}.log")
}

/// Whether a file is named as a segment is; other files are none of ours.
pub(super) fn is_name(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_str() == Some(&file_name(first_of(path))))
}

/// The head of a new segment.
pub(super) fn head(first: Offset) -> [u8; HEAD_BYTES as usize] {
    let mut head = [0; HEAD_BYTES as usize];
    head[..8].copy_from_slice(FORMAT.as_bytes());
    head[8..].copy_from_slice(&first.to_le_bytes());
    head
}

/// A walk through a segment's records.
pub(super) struct Walk {
    path: PathBuf,
    file: File,
    /// Where the next frame starts.
    byte: u64,
    /// The number of its first record.
    offset: Offset,
    /// Records before that, of a frame that was taken in part: they are checked, and need not be read again.
    rest: Records,
    /// How many of those were taken since.
    rest_taken: usize,
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
        let (format, first) = head.split_at(8);
        if format.starts_with(FAMILY) && format != FORMAT.as_bytes() {
            let found = String::from_utf8_lossy(format).into_owned();
            return Err(LogError::OtherFormat { path: path.to_owned(), found, wanted: FORMAT });
        }
        if format != FORMAT.as_bytes() || first != first_of(path).to_le_bytes() {
            let problem = "it does not begin as a segment of its name".to_owned();
            return Err(LogError::Damaged { path: path.to_owned(), byte: 0, problem });
        }
        let (rest, rest_taken) = (Records::default(), 0);
        Ok(Walk { path: path.to_owned(), file, byte: HEAD_BYTES, offset: first_of(path), rest, rest_taken })
    }

    /// Goes on at a frame whose place is known.
    pub fn jump(&mut self, (offset, byte): (Offset, u64)) {
        (self.offset, self.byte, self.rest_taken) = (offset, byte, self.rest.len());
    }

    /// The number of the next record.
    pub fn offset(&self) -> Offset {
        self.offset - (self.rest.len() - self.rest_taken) as u64
    }

    /// Where the next frame starts, and the number of its first record.
    pub fn place(&self) -> (Offset, u64) {
        (self.offset, self.byte)
    }

    /// Takes records until a limit is reached or nothing more is there. Payloads are read straight to where the
    /// caller gets them.
    pub fn take(&mut self, limit: Limit, out: &mut Records) -> Result<Stop, LogError> {
        self.take_rest(limit, out);
        // Where the next frame stands in `out`.
        let mut at = out.filled;
        loop {
            if out.is_full(limit) {
                return Ok(Stop::Limit);
            }
            let needed = match frame::parse(&out.bytes[at..out.filled]) {
                Parsed::Frame(frame) => {
                    let (bytes, count) = (frame.bytes(), frame.len());
                    let payload_bytes = out.payload_bytes + frame.payload_bytes();
                    let entries = frame.entries(at);
                    if out.entries.is_empty() {
                        out.first = self.offset;
                    }
                    out.entries.extend(entries);
                    out.payload_bytes = payload_bytes;
                    self.byte += bytes as u64;
                    self.offset += count as u64;
                    at += bytes;
                    if out.entries.len() > limit.records.max(1) {
                        self.keep_rest(limit, out);
                    }
                    continue;
                }
                Parsed::Short(needed) => needed - (out.filled - at),
                Parsed::Wrong(problem, bytes) => return self.wrong(problem, bytes),
            };
            // Bytes above the limit would be read again the next time.
            let wanted = limit.bytes.saturating_sub(out.payload_bytes + (out.filled - at));
            let wanted = wanted.clamp(needed, WINDOW_BYTES.max(needed));
            let byte = self.byte + (out.filled - at) as u64;
            if self.read_more(byte, wanted, out)? < needed {
                return Ok(Stop::End);
            }
        }
    }

    /// Takes what is left of a frame that was read before.
    fn take_rest(&mut self, limit: Limit, out: &mut Records) {
        for record in self.rest.iter().skip(self.rest_taken) {
            if out.is_full(limit) {
                return;
            }
            out.push(record);
            self.rest_taken += 1;
        }
    }

    /// Puts aside those records that are above the limit of records. Bytes are not cut so: a frame is all the more that comes.
    fn keep_rest(&mut self, limit: Limit, out: &mut Records) {
        self.rest.clear();
        self.rest_taken = 0;
        out.iter().skip(limit.records.max(1)).for_each(|record| self.rest.push(record));
        out.truncate(limit.records.max(1));
    }

    /// Reads up to `count` bytes of the file behind what `out` has, and says how many there were.
    fn read_more(&self, byte: u64, count: usize, out: &mut Records) -> Result<usize, LogError> {
        let start = out.filled;
        // A length is believed as far as the file goes: a damaged one asks for no more memory than there are bytes.
        let count = if count > WINDOW_BYTES { count.min(self.left_from(byte)?) } else { count };
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

    /// Bytes of the file from a place on.
    fn left_from(&self, byte: u64) -> Result<usize, LogError> {
        let failed = |source| LogError::Io { path: self.path.clone(), action: "look at", source };
        let length = self.file.metadata().map_err(failed)?.len();
        Ok(usize::try_from(length.saturating_sub(byte)).unwrap_or(usize::MAX))
    }

    /// A frame that does not fit: unfinished if the file ends with it, damaged otherwise.
    fn wrong(&self, problem: &'static str, frame_bytes: usize) -> Result<Stop, LogError> {
        let end = self.byte + frame_bytes as u64;
        let failed = |source| LogError::Io { path: self.path.clone(), action: "look at", source };
        let unfinished = self.file.metadata().map_err(failed)?.len() <= end;
        Ok(if unfinished { Stop::End } else { Stop::Damaged(problem) })
    }
}

/// Why a walk stopped taking records.
pub(super) enum Stop {
    /// It took as many as it may.
    Limit,
    /// Nothing more is there, or only the beginning of a frame.
    End,
    /// Bytes that are no frame.
    Damaged(&'static str),
}

/// The first offset of a segment, which is its name.
pub(super) fn first_of(path: &Path) -> Offset {
    path.file_stem().and_then(|stem| stem.to_str()?.parse().ok()).unwrap_or(0)
}
