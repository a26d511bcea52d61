//! A text file, plain or compressed, cut into chunks of complete records.

use std::{
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{Body, CHUNK_BYTES, InputFile, RECORD_BYTES_MAX, Taken};
use crate::{
    decode::Decoder,
    error::{DataError, IoContext},
    text::{self, TextLayout},
};

/// How a file is compressed, by its first bytes; its name does not matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Zstd,
}

/// An open text file.
pub(super) struct TextFile {
    path: PathBuf,
    text: Box<dyn Read + Send>,
    compression: Compression,
    bytes_read: Arc<AtomicU64>,
    layout: Arc<TextLayout>,
    delimiter: u8,
    quotes: bool,
    /// Text that was read but belongs to the next chunk.
    carry: Vec<u8>,
    offset: u64,
    header_lines: u64,
    ended: bool,
}

impl TextFile {
    /// Criteo's format, from `offset` on.
    pub fn criteo(file: &InputFile, decoder: &Decoder, offset: u64) -> Result<TextFile, DataError> {
        let layout = TextLayout::criteo(decoder, &file.path)?;
        let mut text = TextFile::open(file, layout, b'\t', false)?;
        text.skip_to(offset)?;
        Ok(text)
    }

    /// CSV with a header, from `offset` on; 0 means after the header.
    pub fn csv(
        file: &InputFile,
        (delimiter, quotes): (u8, bool),
        decoder: &Decoder,
        offset: u64,
    ) -> Result<TextFile, DataError> {
        // The layout follows from the header, which is read through the same decompressor.
        let mut text = TextFile::open(file, TextLayout::none(), delimiter, quotes)?;
        let header = text.take_header()?;
        text.layout = Arc::new(TextLayout::from_header(&header, (delimiter, quotes), decoder, &file.path)?);
        if offset > 0 {
            text.header_lines = 0;
            text.skip_to(offset)?;
        }
        Ok(text)
    }

    fn open(
        file: &InputFile,
        layout: TextLayout,
        delimiter: u8,
        quotes: bool,
    ) -> Result<TextFile, DataError> {
        let path = &file.path;
        let mut raw = File::open(path).context("open", path)?;
        let mut magic = [0; 4];
        let mut known = 0;
        while known < 4 {
            match raw.read(&mut magic[known..]).context("read", path)? {
                0 => break,
                count => known += count,
            }
        }
        raw.seek(SeekFrom::Start(0)).context("seek in", path)?;
        let compression = match magic {
            [0x1f, 0x8b, ..] => Compression::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => Compression::Zstd,
            _ => Compression::None,
        };
        let bytes_read = Arc::new(AtomicU64::new(0));
        let counted = CountedRead { inner: raw, bytes: Arc::clone(&bytes_read) };
        let text: Box<dyn Read + Send> = match compression {
            Compression::None => Box::new(counted),
            Compression::Gzip => {
                Box::new(flate2::bufread::MultiGzDecoder::new(BufReader::with_capacity(64 << 10, counted)))
            }
            Compression::Zstd => Box::new(zstd::Decoder::new(counted).context("decompress", path)?),
        };
        Ok(TextFile {
            path: path.clone(),
            text,
            compression,
            bytes_read,
            layout: Arc::new(layout),
            delimiter,
            quotes,
            carry: Vec::new(),
            offset: 0,
            header_lines: 0,
            ended: false,
        })
    }

    /// The next chunk, in `buffer`'s memory.
    pub fn next(&mut self, mut buffer: Vec<u8>) -> Result<Option<Taken>, DataError> {
        buffer.clear();
        buffer.append(&mut self.carry);
        let mut wanted = CHUNK_BYTES;
        let end = loop {
            self.fill(&mut buffer, wanted)?;
            if self.ended {
                self.check_quotes(&buffer)?;
                break buffer.len();
            }
            match text::cut(&buffer, self.delimiter, self.quotes) {
                0 if buffer.len() >= RECORD_BYTES_MAX => return Err(self.long_record()),
                0 => wanted = buffer.len() * 2,
                end => break end,
            }
        };
        if buffer.is_empty() {
            return Ok(None);
        }
        self.carry.extend_from_slice(&buffer[end..]);
        buffer.truncate(end);
        self.offset += end as u64;
        let body = Body::Text { bytes: buffer, layout: Arc::clone(&self.layout) };
        let bytes_done = self.bytes_read.load(Ordering::Relaxed);
        let header_lines = std::mem::take(&mut self.header_lines);
        Ok(Some(Taken { body, end: self.offset, bytes_done, header_lines }))
    }

    /// The rest of the file must not end inside a quoted cell, which would swallow rows.
    fn check_quotes(&self, rest: &[u8]) -> Result<(), DataError> {
        let open = if self.quotes { text::unclosed_quote(rest, self.delimiter) } else { None };
        let Some(open) = open else { return Ok(()) };
        let line = first_line_at(&self.path, self.offset + open as u64, self.compression).unwrap_or(0);
        Err(DataError::UnclosedQuote { path: self.path.clone(), line })
    }

    /// Reads until the buffer has `wanted` bytes or the file ends.
    fn fill(&mut self, buffer: &mut Vec<u8>, wanted: usize) -> Result<(), DataError> {
        let mut filled = buffer.len();
        buffer.resize(wanted.max(filled), 0);
        while filled < buffer.len() && !self.ended {
            match self.text.read(&mut buffer[filled..]) {
                Ok(0) => self.ended = true,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.damaged(error)),
            }
        }
        buffer.truncate(filled);
        Ok(())
    }

    fn take_header(&mut self) -> Result<Vec<u8>, DataError> {
        let mut buffer = Vec::new();
        let mut wanted = 4096;
        let end = loop {
            self.fill(&mut buffer, wanted)?;
            if let Some(end) = first_record_end(&buffer, self.delimiter, self.quotes) {
                break end;
            }
            if self.ended {
                break buffer.len();
            }
            if buffer.len() >= RECORD_BYTES_MAX {
                return Err(self.long_record());
            }
            wanted = buffer.len() * 2;
        };
        self.carry = buffer.split_off(end);
        self.offset = end as u64;
        self.header_lines = memchr::memchr_iter(b'\n', &buffer).count() as u64;
        Ok(buffer)
    }

    /// Goes to an offset between two chunks: a plain file seeks, a compressed one is read up to it.
    fn skip_to(&mut self, offset: u64) -> Result<(), DataError> {
        if offset == 0 {
            return Ok(());
        }
        if self.compression == Compression::None {
            let mut raw = File::open(&self.path).context("open", &self.path)?;
            raw.seek(SeekFrom::Start(offset)).context("seek in", &self.path)?;
            self.bytes_read.store(offset, Ordering::Relaxed);
            self.text = Box::new(CountedRead { inner: raw, bytes: Arc::clone(&self.bytes_read) });
            self.carry.clear();
            self.ended = false;
        } else {
            let carried = (offset - self.offset).min(self.carry.len() as u64);
            self.carry.drain(..carried as usize);
            let missing = offset - self.offset - carried;
            let skipped = io::copy(&mut (&mut self.text).take(missing), &mut io::sink());
            skipped.map_err(|error| self.damaged(error))?;
        }
        self.offset = offset;
        Ok(())
    }

    fn damaged(&self, error: io::Error) -> DataError {
        let format = match self.compression {
            Compression::None => {
                return DataError::Io { action: "read", path: self.path.clone(), reason: error };
            }
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        };
        DataError::Damaged { path: self.path.clone(), format, reason: error.to_string() }
    }

    fn long_record(&self) -> DataError {
        let line = first_line_at(&self.path, self.offset, self.compression).unwrap_or(0);
        DataError::LongRecord { path: self.path.clone(), line, limit: RECORD_BYTES_MAX }
    }
}

/// Where the first record ends, if it does.
fn first_record_end(bytes: &[u8], delimiter: u8, quotes: bool) -> Option<usize> {
    let mut upto = 0;
    loop {
        upto += memchr::memchr(b'\n', &bytes[upto..])? + 1;
        if text::cut(&bytes[..upto], delimiter, quotes) == upto {
            return Some(upto);
        }
    }
}

/// The line number at an offset of the decompressed text: read again from the start, as this is for an error.
fn first_line_at(path: &std::path::Path, offset: u64, compression: Compression) -> Option<u64> {
    let raw = File::open(path).ok()?;
    let mut text: Box<dyn Read> = match compression {
        Compression::None => Box::new(raw),
        Compression::Gzip => Box::new(flate2::read::MultiGzDecoder::new(raw)),
        Compression::Zstd => Box::new(zstd::Decoder::new(raw).ok()?),
    };
    let (mut line, mut left, mut buffer) = (1, offset, vec![0; 64 << 10]);
    while left > 0 {
        let want = left.min(buffer.len() as u64) as usize;
        let got = text.read(&mut buffer[..want]).ok().filter(|&got| got > 0)?;
        line += memchr::memchr_iter(b'\n', &buffer[..got]).count() as u64;
        left -= got as u64;
    }
    Some(line)
}

/// Counts what is read, for progress.
struct CountedRead {
    inner: File,
    bytes: Arc<AtomicU64>,
}

impl Read for CountedRead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}
