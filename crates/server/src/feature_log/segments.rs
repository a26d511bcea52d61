//! A log as files in a directory: segments of records, each with its length and checksum.
//!
//! ```text
//!   features-00001731715200000000-0000.log     by the time of its first record, in microseconds
//!   "CMPNLOG1"  ( u32 length | u32 crc32c of the bytes | bytes )*
//! ```
//!
//! Records are only ever added at the end. A crash, or a full disk, can leave a record cut at the end of a segment;
//! after a failure the writer cuts the file back to its last whole record, or leaves it and begins another. A
//! reader stops at the first record that is not whole and says where.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use thiserror::Error;

use super::{Record, RecordError, Room, Sink};

/// How a segment begins.
pub const SEGMENT_MAGIC: &[u8; 8] = b"CMPNLOG1";
/// A record beyond this is damage, or would be unreadable later.
const RECORD_BYTES_MAX: usize = 64 << 20;

/// Writes segments.
#[derive(Debug)]
pub struct Segments {
    directory: PathBuf,
    segment_bytes_max: u64,
    room: Room,
    open: Option<Segment>,
    buffer: Vec<u8>,
    begun: u32,
}

#[derive(Debug)]
struct Segment {
    file: File,
    /// Bytes of whole records that the system has.
    bytes: u64,
}

impl Segments {
    /// A log in a directory, which is made if it is not there, for its owner alone: records are what clients sent. A new
    /// segment begins after so many bytes; the whole directory has at most `total_bytes_max`.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn new(directory: &Path, segment_bytes_max: u64, total_bytes_max: u64) -> io::Result<Segments> {
        make_own(directory)?;
        let (directory, room) = (directory.to_owned(), Room::new(directory, total_bytes_max));
        Ok(Segments { directory, segment_bytes_max, room, open: None, buffer: Vec::new(), begun: 0 })
    }

    /// The segments of a directory, oldest first.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn list(directory: &Path) -> io::Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with("features-") && name.ends_with(".log") {
                paths.push(path);
            }
        }
        paths.sort();
        Ok(paths)
    }

    fn segment(&mut self, time_us: u64) -> io::Result<()> {
        if self.open.as_ref().is_some_and(|open| open.bytes < self.segment_bytes_max) {
            return Ok(());
        }
        self.open = None;
        let name = format!("features-{time_us:020}-{:04}.log", self.begun % 10_000);
        self.begun += 1;
        let path = self.directory.join(name);
        let mut file = own_file().open(&path)?;
        if let Err(error) = file.write_all(SEGMENT_MAGIC) {
            // A full disk must not be littered with empty segments as well.
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        self.open = Some(Segment { file, bytes: SEGMENT_MAGIC.len() as u64 });
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        let Some(open) = &mut self.open else {
            self.buffer.clear();
            return Ok(());
        };
        let written = open.file.write_all(&self.buffer);
        let length = self.buffer.len() as u64;
        self.buffer.clear();
        if let Err(error) = written {
            // Some of it may be there: only whole records may stay.
            let whole = open.bytes;
            let mended =
                open.file.set_len(whole).and_then(|()| open.file.seek(io::SeekFrom::Start(whole)).map(drop));
            if mended.is_err() {
                self.open = None;
            }
            return Err(error);
        }
        open.bytes += length;
        Ok(())
    }
}

impl Sink for Segments {
    fn append(&mut self, record: &Record) -> io::Result<()> {
        if self.buffer.is_empty() {
            self.segment(record.time_us)?;
        }
        let start = self.buffer.len();
        self.buffer.extend([0; 8]);
        record.encode(&mut self.buffer);
        let (length, checksum) = (self.buffer.len() - start - 8, crc32c::crc32c(&self.buffer[start + 8..]));
        if length > RECORD_BYTES_MAX {
            self.buffer.truncate(start);
            return Err(io::Error::other(format!(
                "a record of {length} bytes; the limit is {RECORD_BYTES_MAX}"
            )));
        }
        if let Err(error) = self.room.take(length as u64 + 8) {
            self.buffer.truncate(start);
            return Err(error);
        }
        self.buffer[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
        self.buffer[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() { Ok(()) } else { self.write() }
    }
}

/// Makes a directory that only its owner may read; one that is there stays as it is.
///
/// # Errors
/// When it cannot be made.
pub fn make_own(directory: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(directory)
}

/// How a file is made that only its owner may read.
fn own_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Why a segment cannot be read on.
#[derive(Debug, Error)]
pub enum SegmentError {
    /// The system's word.
    #[error("{}: {source}", path.display())]
    Io {
        /// The segment.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not a segment of ours.
    #[error("{} does not begin like a feature log; is it one?", path.display())]
    Magic {
        /// The file.
        path: PathBuf,
    },
    /// A record does not match its checksum, or is cut.
    #[error("{}: the record at byte {offset} is cut or does not match its checksum; what is before it is whole", path.display())]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// Where the record begins.
        offset: u64,
    },
    /// A record makes no sense.
    #[error("{}: the record at byte {offset}: {source}", path.display())]
    Record {
        /// The segment.
        path: PathBuf,
        /// Where the record begins.
        offset: u64,
        /// Why.
        source: RecordError,
    },
}

/// Reads the records of one segment in order.
#[derive(Debug)]
pub struct SegmentReader {
    path: PathBuf,
    file: io::BufReader<File>,
    offset: u64,
}

impl SegmentReader {
    /// Opens a segment.
    ///
    /// # Errors
    /// When it cannot be read or is none.
    pub fn open(path: &Path) -> Result<SegmentReader, SegmentError> {
        let io = |source| SegmentError::Io { path: path.to_owned(), source };
        let mut file = io::BufReader::new(File::open(path).map_err(io)?);
        let mut magic = [0; 8];
        let is_ours = file.read_exact(&mut magic).is_ok() && magic == *SEGMENT_MAGIC;
        if !is_ours {
            return Err(SegmentError::Magic { path: path.to_owned() });
        }
        Ok(SegmentReader { path: path.to_owned(), file, offset: 8 })
    }

    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// When it is cut or damaged.
    pub fn next_record(&mut self) -> Result<Option<Record>, SegmentError> {
        let damaged = || SegmentError::Damaged { path: self.path.clone(), offset: self.offset };
        let mut head = Vec::with_capacity(8);
        let io = |source| SegmentError::Io { path: self.path.clone(), source };
        (&mut self.file).take(8).read_to_end(&mut head).map_err(io)?;
        let [l0, l1, l2, l3, c0, c1, c2, c3] = match head[..] {
            [] => return Ok(None),
            _ => <[u8; 8]>::try_from(head).map_err(|_| damaged())?,
        };
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if length > RECORD_BYTES_MAX {
            return Err(damaged());
        }
        let mut bytes = Vec::new();
        (&mut self.file).take(length as u64).read_to_end(&mut bytes).map_err(io)?;
        if bytes.len() != length || crc32c::crc32c(&bytes) != u32::from_le_bytes([c0, c1, c2, c3]) {
            return Err(damaged());
        }
        let record = Record::decode(Bytes::from(bytes)).map_err(|source| SegmentError::Record {
            path: self.path.clone(),
            offset: self.offset,
            source,
        })?;
        self.offset += 8 + length as u64;
        Ok(Some(record))
    }
}
