//! The manifest: what a checkpoint is, and the length and checksum of everything in it.
//!
//! The manifest guards the other files, so it must guard itself: its last line holds the CRC-32C of all the
//! bytes before that line's comma. It stays plain JSON.

use std::{collections::BTreeMap, path::Path};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{CheckpointError, Result, layout::TableLayout};

/// The version of the format that this program writes, and the newest it reads. Since version 2, the `z` of FTRL is free
/// of the learning rate.
pub const FORMAT_VERSION: u32 = 2;

/// The name of the manifest in a checkpoint.
pub(super) const MANIFEST_FILE: &str = "manifest.json";

/// What a checkpoint is. The fields that are [`Value`]s belong to the caller; numbers in them come back with
/// the same bits, but JSON has no infinity and no NaN.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Always `campanile checkpoint`.
    pub format: String,
    /// The version of the format.
    pub version: u32,
    /// Steps that were trained.
    pub step: u64,
    /// Where the data goes on.
    pub cursor: Value,
    /// A hash of all that changes results.
    pub run_hash: String,
    /// A hash of the transforms between raw data and rows.
    pub transforms: String,
    /// The effective job.
    pub job: Value,
    /// Who held what, for the reader's information: loading does not need it.
    pub plan: Value,
    /// Metrics and whatever else the run must remember.
    pub extra: Value,
    /// The tables.
    pub tables: Vec<TableLayout>,
    /// The tensors of `dense.safetensors`.
    pub dense: Vec<TensorEntry>,
    /// The tensors of `dense_state.safetensors`.
    pub dense_state: Vec<TensorEntry>,
    /// Every file but the manifest, by name.
    pub files: Vec<FileEntry>,
}

/// A dense tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// A file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The CRC-32C (Castagnoli) of its bytes, in eight hexadecimal digits.
    pub crc32c: String,
}

/// A run of bytes that one rank wrote into a file. Ranks that hold neighbouring rows share a file, and a
/// checksum of the whole follows from those of its parts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FilePart {
    /// The file's name.
    pub file: String,
    /// Where the run starts.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
    /// Which columns of the rows in it were written, where not all were.
    pub columns: Option<ColumnPart>,
    /// Its CRC-32C, with zeros in place of what was not written.
    pub crc32c: u32,
}

/// Some columns of a table's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ColumnPart {
    /// The first.
    pub start: usize,
    /// One past the last.
    pub end: usize,
    /// How many the table has.
    pub of: usize,
}

/// All that one rank has written, for rank 0 to publish; small enough to send.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Written {
    /// Runs of bytes.
    pub parts: Vec<FilePart>,
    /// All tensors of `dense.safetensors`, if the rank wrote any of it.
    pub dense: Vec<TensorEntry>,
    /// All tensors of `dense_state.safetensors`, if the rank wrote any of it.
    pub dense_state: Vec<TensorEntry>,
}

impl TensorEntry {
    /// Its elements.
    pub fn element_count(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64
    }
}

impl Manifest {
    /// A manifest for [`super::publish`], which fills in files and dense tensors; the caller sets the rest.
    pub fn new(step: u64, tables: Vec<TableLayout>) -> Manifest {
        Manifest {
            format: "campanile checkpoint".to_owned(),
            version: FORMAT_VERSION,
            step,
            cursor: Value::Null,
            run_hash: String::new(),
            transforms: String::new(),
            job: Value::Null,
            plan: Value::Null,
            extra: Value::Null,
            tables,
            dense: Vec::new(),
            dense_state: Vec::new(),
            files: Vec::new(),
        }
    }

    /// The layout of a table.
    pub fn table(&self, name: &str) -> Option<&TableLayout> {
        self.tables.iter().find(|table| table.name == name)
    }

    /// The entry of a file.
    pub fn file(&self, name: &str) -> Option<&FileEntry> {
        self.files.iter().find(|file| file.name == name)
    }

    /// Bytes of all files but the manifest.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// The bytes of `manifest.json`.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = serde_json::to_vec_pretty(self).expect("a manifest has string keys only");
        body.truncate(body.len() - "\n}".len());
        let last_line = last_line(&body);
        body.extend(last_line);
        body
    }

    /// Reads the bytes of the `manifest.json` at `path`.
    pub(super) fn decode(path: &Path, bytes: &[u8]) -> Result<Manifest> {
        let (body, found) = bytes.split_at(bytes.len().saturating_sub(LAST_LINE_BYTES));
        let wanted = last_line(body);
        if found != wanted {
            return Err(CheckpointError::Damaged {
                path: path.to_owned(),
                found: checksum_words(&wanted),
                wanted: checksum_words(found),
            });
        }
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let malformed = |problem: serde_json::Error| CheckpointError::Malformed {
            path: path.to_owned(),
            problem: problem.to_string(),
        };
        let Version { version } = serde_json::from_slice(bytes).map_err(malformed)?;
        if version > FORMAT_VERSION {
            let path = path.to_owned();
            return Err(CheckpointError::Version { path, found: version, supported: FORMAT_VERSION });
        }
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(malformed)?;
        if let Some(file) = manifest.files.iter().find(|file| file.name.contains(['/', '\\'])) {
            let problem = format!("the file name `{}` leads out of the checkpoint", file.name);
            return Err(CheckpointError::Malformed { path: path.to_owned(), problem });
        }
        match manifest.impossible() {
            Some(problem) => Err(CheckpointError::Malformed { path: path.to_owned(), problem }),
            None => Ok(manifest),
        }
    }

    /// What cannot be true of any checkpoint. Everything after this multiplies and divides by these numbers, and a file
    /// whose checksum is right may still have been written by anybody.
    fn impossible(&self) -> Option<String> {
        let lengths = self.files.iter().try_fold(0u64, |sum, file| sum.checked_add(file.bytes));
        let Some(bytes) = lengths else { return Some("its files have more bytes than can be".to_owned()) };
        let files = self.files.len() as u64;
        let bad_table = self.tables.iter().find_map(|table| table.impossible(files, bytes));
        let elements = |tensor: &&TensorEntry| {
            let count = tensor.shape.iter().try_fold(4u64, |count, &axis| count.checked_mul(axis as u64));
            count.is_none_or(|count| count > bytes)
        };
        bad_table.or_else(|| {
            let tensor = self.dense.iter().chain(&self.dense_state).find(elements)?;
            Some(format!("tensor `{}` of shape {:?} is larger than the files", tensor.name, tensor.shape))
        })
    }
}

const LAST_LINE_BYTES: usize = ",\n  \"crc32c\": \"00000000\"\n}\n".len();

fn last_line(body: &[u8]) -> Vec<u8> {
    format!(",\n  \"crc32c\": \"{}\"\n}}\n", hex(crc32c::crc32c(body))).into_bytes()
}

fn checksum_words(last_line: &[u8]) -> String {
    let digits = last_line.get(",\n  \"crc32c\": \"".len()..).and_then(|rest| rest.get(..8));
    match digits.map(std::str::from_utf8) {
        Some(Ok(digits)) if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) => digits.to_owned(),
        _ => "unreadable".to_owned(),
    }
}

/// A checksum as it stands in the manifest.
pub(super) fn hex(crc32c: u32) -> String {
    format!("{crc32c:08x}")
}

/// Puts the parts of all ranks together to whole files, by name.
///
/// Parts of columns cover the same bytes, each with zeros in place of the others' columns. A checksum is linear
/// but for the checksum of zeros, so theirs add up, bit by bit, to that of the bytes together.
pub(super) fn merge(step: u64, mut parts: Vec<FilePart>) -> Result<Vec<FileEntry>> {
    // A table without rows is held by every rank alike; the same part twice is the same part.
    parts.sort();
    parts.dedup();
    let mut files: BTreeMap<String, (u64, u32)> = BTreeMap::new();
    let same_bytes =
        |a: &FilePart, b: &FilePart| (&a.file, a.offset, a.bytes) == (&b.file, b.offset, b.bytes);
    for parts in parts.chunk_by(same_bytes) {
        let part = &parts[0];
        let incomplete =
            |problem: String| Err(CheckpointError::Incomplete { step, file: part.file.clone(), problem });
        let (bytes, crc32c) = files.entry(part.file.clone()).or_insert((0, 0));
        if part.offset != *bytes {
            return incomplete(format!("byte {bytes} is followed by a part that starts at {}", part.offset));
        }
        let mut ends = parts.iter().map(|part| part.columns.map_or((0, 1, 1), |c| (c.start, c.end, c.of)));
        let covered =
            ends.try_fold((0, 1), |(reached, _), (start, end, of)| (reached == start).then_some((end, of)));
        if covered.is_none_or(|(end, of)| end != of) {
            return incomplete(format!("the columns from byte {} on are not all there once", part.offset));
        }
        let zeros = if parts.len().is_multiple_of(2) { crc_of_zeros(part.bytes) } else { 0 };
        let crc = parts.iter().fold(zeros, |crc, part| crc ^ part.crc32c);
        *crc32c = crc32c::crc32c_combine(*crc32c, crc, part.bytes as usize);
        *bytes += part.bytes;
    }
    Ok(files.into_iter().map(|(name, (bytes, crc))| FileEntry { name, bytes, crc32c: hex(crc) }).collect())
}

/// The checksum of `count` zeros, by doubling.
fn crc_of_zeros(count: u64) -> u32 {
    let (mut crc, mut power, mut length) = (0, crc32c::crc32c(&[0]), 1);
    let mut left = count;
    while left > 0 {
        if left & 1 == 1 {
            crc = crc32c::crc32c_combine(crc, power, length as usize);
        }
        power = crc32c::crc32c_combine(power, power, length as usize);
        length *= 2;
        left >>= 1;
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let mut manifest = Manifest::new(7, Vec::new());
        manifest.extra = serde_json::json!({"sum": 0.1 + 0.2, "tiny": 5e-324, "count": u64::MAX});
        manifest
    }

    #[test]
    fn a_manifest_comes_back_as_it_was() {
        let bytes = manifest().encode();
        assert_eq!(Manifest::decode(Path::new("m"), &bytes).unwrap(), manifest());
        let json: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(json["step"], 7);
        assert!(json["crc32c"].is_string());
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let bytes = manifest().encode();
        for place in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[place] ^= 1 << bit;
                let error = Manifest::decode(Path::new("m.json"), &flipped).unwrap_err().to_string();
                assert!(error.starts_with("m.json is damaged"), "{error}");
            }
            assert!(Manifest::decode(Path::new("m.json"), &bytes[..place]).is_err());
        }
    }

    #[test]
    fn numbers_come_back_with_their_bits() {
        let mut manifest = manifest();
        let numbers: Vec<f64> = (1..2000u64)
            .map(|n| f64::from_bits(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
            .filter(|number| number.is_finite())
            .collect();
        manifest.extra = serde_json::json!(numbers);
        let back = Manifest::decode(Path::new("m"), &manifest.encode()).unwrap();
        let back: Vec<u64> =
            back.extra.as_array().unwrap().iter().map(|v| v.as_f64().unwrap().to_bits()).collect();
        assert_eq!(back, numbers.iter().map(|number| number.to_bits()).collect::<Vec<_>>());
    }

    #[test]
    fn parts_make_a_file_only_without_gaps() {
        let bytes: Vec<u8> = (0..100).collect();
        let part = |range: std::ops::Range<usize>| FilePart {
            file: "f".to_owned(),
            offset: range.start as u64,
            bytes: range.len() as u64,
            crc32c: crc32c::crc32c(&bytes[range]),
            columns: None,
        };
        let files = merge(1, vec![part(60..100), part(0..8), part(8..60), part(0..8)]).unwrap();
        let whole = FileEntry { name: "f".to_owned(), bytes: 100, crc32c: hex(crc32c::crc32c(&bytes)) };
        assert_eq!(files, [whole]);
        for bad in [vec![part(0..8), part(9..100)], vec![part(0..9), part(8..100)], vec![part(8..100)]] {
            let error = merge(1, bad).unwrap_err().to_string();
            assert!(error.contains("step 1: f is not whole"), "{error}");
        }
    }

    #[test]
    fn parts_of_columns_add_up_to_the_whole() {
        let bytes: Vec<u8> = (0..96u8).map(|byte| byte.wrapping_mul(37)).collect();
        // Rows of 8 bytes, of which each part has some.
        let part = |columns: std::ops::Range<usize>| {
            let own = |(at, byte): (usize, &u8)| if columns.contains(&(at % 8)) { *byte } else { 0 };
            let own: Vec<u8> = bytes.iter().enumerate().map(own).collect();
            let crc32c = crc32c::crc32c(&own);
            let columns = Some(ColumnPart { start: columns.start, end: columns.end, of: 8 });
            FilePart { file: "f".to_owned(), offset: 0, bytes: 96, crc32c, columns }
        };
        let whole = FileEntry { name: "f".to_owned(), bytes: 96, crc32c: hex(crc32c::crc32c(&bytes)) };
        for cuts in [vec![0, 8], vec![0, 3, 8], vec![0, 2, 5, 8], vec![0, 1, 2, 3, 8]] {
            let parts = cuts.windows(2).rev().map(|cut| part(cut[0]..cut[1])).collect();
            assert_eq!(merge(1, parts).unwrap(), std::slice::from_ref(&whole), "{cuts:?}");
        }
        for bad in [vec![part(0..4)], vec![part(0..4), part(5..8)], vec![part(4..8)]] {
            let error = merge(1, bad).unwrap_err().to_string();
            assert!(error.contains("columns from byte 0"), "{error}");
        }
    }

    #[test]
    fn a_newer_version_is_refused() {
        let newer = Manifest { version: FORMAT_VERSION + 1, ..manifest() };
        let error = Manifest::decode(Path::new("m.json"), &newer.encode()).unwrap_err().to_string();
        assert!(error.contains("format version 3") && error.contains("newer campanile"), "{error}");
    }
}
