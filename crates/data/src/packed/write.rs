//! Writing a packed file: rows go in, full blocks go out, the index and the trailer at the end.
//!
//! Nothing here depends on how rows arrive, so a file continued after a crash has the bytes of one that was
//! written in one go: [`PackedWriter::suspend`] saves the rows of the unfinished block beside the file, and
//! [`PackedWriter::resume`] cuts the file back to what the journal vouches for.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{BlockEntry, END_MAGIC, Header, MAGIC, block};
use crate::{
    error::{DataError, IoContext},
    rows::RowBuffer,
};

/// What a journal keeps about an unfinished file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Suspended {
    /// Length of the file up to its last full block.
    pub bytes: u64,
    /// Full blocks.
    pub blocks: u64,
    /// Rows in the tail file.
    pub tail_rows: usize,
}

/// A packed file that is being written.
#[derive(Debug)]
pub(crate) struct PackedWriter {
    path: PathBuf,
    file: File,
    header: Header,
    end: u64,
    index: Vec<BlockEntry>,
    rows: RowBuffer,
    encoded: Vec<u8>,
}

impl PackedWriter {
    /// Starts a file with its header.
    pub fn create(path: &Path, header: Header) -> Result<PackedWriter, DataError> {
        let mut file = File::create(path).context("create", path)?;
        let head = encode_header(&header);
        file.write_all(&head).context("write", path)?;
        let rows = RowBuffer::new(&header.schema);
        let (path, end) = (path.to_path_buf(), head.len() as u64);
        Ok(PackedWriter { path, file, header, end, index: Vec::new(), rows, encoded: Vec::new() })
    }

    /// Goes on where [`PackedWriter::suspend`] left off.
    pub fn resume(
        path: &Path,
        tail: &Path,
        header: Header,
        from: &Suspended,
    ) -> Result<PackedWriter, DataError> {
        let mut file = OpenOptions::new().read(true).write(true).open(path).context("open", path)?;
        file.set_len(from.bytes).context("cut back", path)?;
        let mut end = encode_header(&header).len() as u64;
        let mut index = Vec::new();
        for number in 0..from.blocks {
            let entry = read_block_header(&mut file, path, end, number)?;
            end += (block::BLOCK_HEADER_BYTES as u64) + u64::from(entry.bytes);
            index.push(entry);
        }
        if end != from.bytes {
            let reason = format!("{} blocks end at byte {end}, the journal says {}", from.blocks, from.bytes);
            return Err(DataError::Corrupt { path: path.to_path_buf(), reason });
        }
        file.seek(SeekFrom::Start(end)).context("seek in", path)?;
        let rows =
            if from.tail_rows == 0 { RowBuffer::new(&header.schema) } else { read_tail(tail, &header)? };
        Ok(PackedWriter { path: path.to_path_buf(), file, header, end, index, rows, encoded: Vec::new() })
    }

    /// Adds rows, writing every block that becomes full.
    pub fn append(&mut self, rows: &RowBuffer) -> Result<(), DataError> {
        let mut next = 0;
        while next < rows.row_count {
            let taken = (rows.row_count - next).min(self.header.block_rows - self.rows.row_count);
            self.rows.append(rows, next..next + taken, &self.header.schema);
            next += taken;
            if self.rows.row_count == self.header.block_rows {
                self.write_block()?;
            }
        }
        Ok(())
    }

    fn write_block(&mut self) -> Result<(), DataError> {
        let mut entry = block::encode(&self.rows, &self.header.schema, &mut self.encoded);
        entry.offset = self.end;
        self.file.write_all(&self.encoded).context("write", &self.path)?;
        self.end += self.encoded.len() as u64;
        self.index.push(entry);
        self.rows.truncate(0, &self.header.schema);
        Ok(())
    }

    /// Rows so far.
    pub fn row_count(&self) -> u64 {
        (self.index.len() * self.header.block_rows + self.rows.row_count) as u64
    }

    /// Saves the unfinished block to `tail` and everything to disk.
    pub fn suspend(&mut self, tail: &Path) -> Result<Suspended, DataError> {
        self.file.sync_data().context("sync", &self.path)?;
        if self.rows.row_count > 0 {
            block::encode(&self.rows, &self.header.schema, &mut self.encoded);
            let mut file = File::create(tail).context("create", tail)?;
            file.write_all(&self.encoded).context("write", tail)?;
            file.sync_data().context("sync", tail)?;
        }
        Ok(Suspended { bytes: self.end, blocks: self.index.len() as u64, tail_rows: self.rows.row_count })
    }

    /// Writes the last block, the index and the trailer.
    pub fn finish(mut self) -> Result<(), DataError> {
        if self.rows.row_count > 0 {
            self.write_block()?;
        }
        let row_count: u64 = self.index.iter().map(|entry| u64::from(entry.rows)).sum();
        let mut index = Vec::new();
        for entry in &self.index {
            index.extend(entry.offset.to_le_bytes());
            index.extend([entry.bytes, entry.rows, entry.checksum, 0].into_iter().flat_map(u32::to_le_bytes));
        }
        let checksum = crc32c::crc32c(&index);
        index.extend(self.end.to_le_bytes());
        index.extend((self.index.len() as u64).to_le_bytes());
        index.extend(row_count.to_le_bytes());
        index.extend([checksum, 0].into_iter().flat_map(u32::to_le_bytes));
        index.extend(END_MAGIC);
        self.file.write_all(&index).context("write", &self.path)?;
        self.file.sync_all().context("sync", &self.path)
    }
}

fn encode_header(header: &Header) -> Vec<u8> {
    let json = serde_json::to_vec(header).unwrap_or_else(|error| unreachable!("a plain value: {error}"));
    let mut bytes = MAGIC.to_vec();
    bytes.extend((json.len() as u32).to_le_bytes());
    bytes.extend(crc32c::crc32c(&json).to_le_bytes());
    bytes.extend(json);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

fn read_block_header(
    file: &mut File,
    path: &Path,
    offset: u64,
    number: u64,
) -> Result<BlockEntry, DataError> {
    let mut header = [0; block::BLOCK_HEADER_BYTES];
    file.seek(SeekFrom::Start(offset)).context("seek in", path)?;
    file.read_exact(&mut header).context("read", path)?;
    block::parse_header(&header, offset)
        .ok_or_else(|| DataError::CorruptBlock { path: path.to_path_buf(), block: number })
}

fn read_tail(path: &Path, header: &Header) -> Result<RowBuffer, DataError> {
    let bytes = std::fs::read(path).context("read", path)?;
    let corrupt = || DataError::CorruptBlock { path: path.to_path_buf(), block: 0 };
    let (head, payload) = bytes.split_first_chunk().ok_or_else(corrupt)?;
    let entry = block::parse_header(head, 0).ok_or_else(corrupt)?;
    let mut tail = block::Block::default();
    if payload.len() != entry.bytes as usize || crc32c::crc32c(payload) != entry.checksum {
        return Err(corrupt());
    }
    tail.payload_mut(payload.len()).copy_from_slice(payload);
    if !tail.find_columns(&header.schema, entry.rows as usize, payload.len()) {
        return Err(corrupt());
    }
    Ok(tail.to_rows(&header.schema))
}
