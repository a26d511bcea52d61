//! Opening a packed file and loading its blocks, checksum first.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use super::{BlockEntry, END_MAGIC, Header, INDEX_ENTRY_BYTES, MAGIC, TRAILER_BYTES, block, block::Block};
use crate::{
    error::{DataError, IoContext},
    value::fingerprint,
};

/// A complete packed file: its header and index.
#[derive(Debug)]
pub(crate) struct PackedFile {
    path: PathBuf,
    header: Header,
    index: Vec<BlockEntry>,
    row_count: u64,
    bytes: u64,
}

impl PackedFile {
    /// Reads header and index.
    pub fn open(path: &Path) -> Result<PackedFile, DataError> {
        let file = File::open(path).context("open", path)?;
        let bytes = file.metadata().context("look at", path)?.len();
        let corrupt = |reason: &str| DataError::Corrupt { path: path.to_path_buf(), reason: reason.into() };
        let mut head = [0; 16];
        if bytes < head.len() as u64 + TRAILER_BYTES {
            return Err(corrupt("it is too short for a packed file"));
        }
        file.read_exact_at(&mut head, 0).context("read", path)?;
        if head[..8] != *MAGIC {
            return Err(corrupt("it is not a packed file of this version"));
        }
        let json_bytes = u64::from(u32::from_le_bytes([head[8], head[9], head[10], head[11]]));
        if json_bytes > bytes {
            return Err(corrupt("its header is cut off"));
        }
        let mut json = vec![0; json_bytes.next_multiple_of(8) as usize];
        file.read_exact_at(&mut json, 16).context("read", path)?;
        let padding = json.split_off(json_bytes as usize);
        if crc32c::crc32c(&json).to_le_bytes() != head[12..16] || padding.iter().any(|&byte| byte != 0) {
            return Err(corrupt("its header does not match its checksum"));
        }
        let header: Header = serde_json::from_slice(&json).map_err(|error| corrupt(&error.to_string()))?;
        let (index, row_count) = read_index(&file, path, bytes)?;
        let full = |(number, entry): (usize, &BlockEntry)| {
            entry.rows as usize == header.block_rows
                || (number + 1 == index.len() && (entry.rows as usize) < header.block_rows)
        };
        if header.block_rows == 0 || !index.iter().enumerate().all(full) {
            return Err(corrupt("its blocks do not have the rows that its header says"));
        }
        Ok(PackedFile { path: path.to_path_buf(), header, index, row_count, bytes })
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    pub fn row_count(&self) -> u64 {
        self.row_count
    }

    /// A handle for [`PackedFile::load`].
    pub fn handle(&self) -> Result<File, DataError> {
        File::open(&self.path).context("open", &self.path)
    }

    /// Loads a block and checks it.
    pub fn load(&self, file: &File, number: u64, into: &mut Block) -> Result<(), DataError> {
        let entry = self.index[number as usize];
        let mut header = [0; block::BLOCK_HEADER_BYTES];
        file.read_exact_at(&mut header, entry.offset).context("read", &self.path)?;
        let payload = into.payload_mut(entry.bytes as usize);
        file.read_exact_at(payload, entry.offset + header.len() as u64).context("read", &self.path)?;
        let sound = block::parse_header(&header, entry.offset) == Some(entry)
            && crc32c::crc32c(payload) == entry.checksum
            && into.find_columns(&self.header.schema, entry.rows as usize, entry.bytes as usize);
        if sound { Ok(()) } else { Err(DataError::CorruptBlock { path: self.path.clone(), block: number }) }
    }

    /// Follows from the schema and the contents of all blocks.
    pub fn fingerprint(&self) -> String {
        let mut facts = serde_json::to_vec(&self.header).unwrap_or_else(|error| unreachable!("{error}"));
        for entry in &self.index {
            facts.extend([entry.bytes, entry.rows, entry.checksum].into_iter().flat_map(u32::to_le_bytes));
        }
        fingerprint(&facts)
    }
}

fn read_index(file: &File, path: &Path, bytes: u64) -> Result<(Vec<BlockEntry>, u64), DataError> {
    let corrupt = |reason: &str| DataError::Corrupt { path: path.to_path_buf(), reason: reason.into() };
    let mut trailer = [0; TRAILER_BYTES as usize];
    file.read_exact_at(&mut trailer, bytes - TRAILER_BYTES).context("read", path)?;
    if trailer[32..] != *END_MAGIC {
        return Err(corrupt("its end is missing"));
    }
    let word =
        |bytes: &[u8], at: usize| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|byte| bytes[at + byte]));
    let (start, blocks, row_count) = (word(&trailer, 0), word(&trailer, 8), word(&trailer, 16));
    let index_bytes = blocks.saturating_mul(INDEX_ENTRY_BYTES as u64);
    if start.checked_add(index_bytes).and_then(|end| end.checked_add(TRAILER_BYTES)) != Some(bytes) {
        return Err(corrupt("its index does not fit its length"));
    }
    let mut index = vec![0; index_bytes as usize];
    file.read_exact_at(&mut index, start).context("read", path)?;
    if crc32c::crc32c(&index).to_le_bytes() != trailer[24..28] || trailer[28..32] != [0; 4] {
        return Err(corrupt("its index does not match its checksum"));
    }
    let entry = |entry: &[u8; INDEX_ENTRY_BYTES]| {
        let (sizes, checksum) = (word(entry, 8), word(entry, 16));
        BlockEntry {
            offset: word(entry, 0),
            bytes: sizes as u32,
            rows: (sizes >> 32) as u32,
            checksum: checksum as u32,
        }
    };
    let index: Vec<BlockEntry> = index.as_chunks().0.iter().map(entry).collect();
    // No block may ask for more bytes than the file has before its index.
    let ends_before = |entry: &BlockEntry| {
        let end = entry.offset.checked_add(block::BLOCK_HEADER_BYTES as u64 + u64::from(entry.bytes));
        end.is_some_and(|end| end <= start)
    };
    if !index.iter().all(ends_before) {
        return Err(corrupt("a block is not where its index says"));
    }
    if index.iter().map(|entry| u64::from(entry.rows)).sum::<u64>() != row_count {
        return Err(corrupt("its blocks do not add up to its rows"));
    }
    Ok((index, row_count))
}

/// What `campanile inspect` shows of a packed file.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct PackedSummary {
    /// Rows.
    pub row_count: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Rows of a full block.
    pub block_rows: usize,
    /// Names of the label columns.
    pub tasks: Vec<String>,
    /// Names of the dense columns.
    pub dense: Vec<String>,
    /// Names of the features and the rows of their tables.
    pub features: Vec<(String, u64)>,
    /// Fingerprint of the transforms that made the rows.
    pub transforms: String,
    /// Fingerprint of the contents.
    pub fingerprint: String,
    /// The blocks, every one of them read and checked.
    pub blocks: Vec<BlockSummary>,
}

/// One block of a packed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct BlockSummary {
    /// First byte.
    pub offset: u64,
    /// Bytes of the payload.
    pub bytes: u32,
    /// Rows.
    pub rows: u32,
}

/// Reads a packed file to the end, checking every block.
///
/// # Errors
/// When the file cannot be read, or anything in it is damaged.
pub fn inspect(path: &Path) -> Result<PackedSummary, DataError> {
    let packed = PackedFile::open(path)?;
    let (file, mut block) = (packed.handle()?, Block::default());
    for number in 0..packed.index.len() as u64 {
        packed.load(&file, number, &mut block)?;
    }
    let schema = &packed.header.schema;
    let summary =
        |entry: &BlockEntry| BlockSummary { offset: entry.offset, bytes: entry.bytes, rows: entry.rows };
    Ok(PackedSummary {
        row_count: packed.row_count,
        bytes: packed.bytes,
        block_rows: packed.header.block_rows,
        tasks: schema.tasks.clone(),
        dense: schema.dense.clone(),
        features: schema.features.iter().map(|feature| (feature.name.clone(), feature.row_count)).collect(),
        transforms: packed.header.transforms.clone(),
        fingerprint: packed.fingerprint(),
        blocks: packed.index.iter().map(summary).collect(),
    })
}
