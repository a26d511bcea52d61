//! The transforms as bytes: `CAMTRAN2`, a JSON description, the vocabularies' keys, a checksum.
//!
//! `docs/format-packed.md` gives the layout. The bytes are a function of the transforms, so their fingerprint is
//! the transforms' own; a checkpoint carries both.

use std::path::Path;

use campanile_spec::data::{DenseColumn, SparseColumn};
use serde::{Deserialize, Serialize};

use super::{IdText, Measured, Standard, Transforms, Vocabulary};
use crate::{
    error::{DataError, IoContext},
    prep::replace_file,
    value::fingerprint,
};

const MAGIC: &[u8; 8] = b"CAMTRAN2";

#[derive(Serialize, Deserialize)]
struct Header {
    id_text: IdText,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    missing_values: Vec<String>,
    dense: Vec<DenseColumn>,
    sparse: Vec<SparseColumn>,
    standards: Vec<Option<Standard>>,
    /// Keys of each sparse column's vocabulary; absent where it has none.
    vocabulary_sizes: Vec<Option<usize>>,
}

impl Transforms {
    /// Everything that [`Transforms::from_bytes`] needs.
    pub fn to_bytes(&self) -> Vec<u8> {
        let header = Header {
            id_text: self.id_text,
            missing_values: self.missing_values.clone(),
            dense: self.dense.iter().map(|map| map.column.clone()).collect(),
            sparse: self.sparse.iter().map(|map| map.column.clone()).collect(),
            standards: self.dense.iter().map(|map| map.standard).collect(),
            vocabulary_sizes: (0..self.sparse.len()).map(|column| self.vocabulary_size(column)).collect(),
        };
        let header =
            serde_json::to_vec(&header).unwrap_or_else(|error| unreachable!("a plain value: {error}"));
        let mut bytes = MAGIC.to_vec();
        bytes.extend((header.len() as u64).to_le_bytes());
        bytes.extend(header);
        for map in &self.sparse {
            if let super::ToRow::Vocabulary(vocabulary) = &map.to_row {
                bytes.extend(vocabulary.keys().iter().flat_map(|key| key.to_le_bytes()));
            }
        }
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// The transforms that [`Transforms::to_bytes`] wrote; `path` is named in errors.
    ///
    /// # Errors
    /// When the bytes are damaged or of another version.
    pub fn from_bytes(bytes: &[u8], path: &Path) -> Result<Transforms, DataError> {
        let corrupt = |reason: &str| DataError::Corrupt { path: path.to_path_buf(), reason: reason.into() };
        let Some((body, checksum)) = bytes.split_last_chunk::<4>() else {
            return Err(corrupt("it is too short for transforms"));
        };
        let Some(rest) = body.strip_prefix(MAGIC) else {
            return Err(corrupt("it does not hold transforms of this version"));
        };
        if crc32c::crc32c(body) != u32::from_le_bytes(*checksum) {
            return Err(corrupt("the transforms do not match their checksum"));
        }
        let (length, rest) = rest.split_first_chunk::<8>().ok_or_else(|| corrupt("the header is missing"))?;
        let length = u64::from_le_bytes(*length) as usize;
        let (header, mut keys) =
            rest.split_at_checked(length).ok_or_else(|| corrupt("the header is cut off"))?;
        let header: Header = serde_json::from_slice(header).map_err(|error| corrupt(&error.to_string()))?;
        let mut vocabularies = Vec::new();
        for size in &header.vocabulary_sizes {
            let Some(size) = size else {
                vocabularies.push(None);
                continue;
            };
            let cut = size.checked_mul(8).and_then(|bytes| keys.split_at_checked(bytes));
            let (own, others) = cut.ok_or_else(|| corrupt("a vocabulary is cut off"))?;
            keys = others;
            let own = own.as_chunks::<8>().0.iter().map(|key| u64::from_le_bytes(*key)).collect();
            let vocabulary = Vocabulary::new(own).ok_or_else(|| corrupt("a vocabulary names an id twice"))?;
            vocabularies.push(Some(vocabulary));
        }
        let measured = Measured { standards: header.standards, vocabularies };
        let built = Transforms::build(header.id_text, header.dense, header.sparse, measured);
        let built = built.map_err(|error| corrupt(&error.to_string()))?;
        Ok(Transforms { missing_values: header.missing_values, ..built })
    }

    /// A number for the whole state, 32 hexadecimal digits; goes into every checkpoint.
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.to_bytes())
    }

    /// The name of a file that holds the transforms with this fingerprint.
    pub fn file_name(fingerprint: &str) -> String {
        format!("transforms-{fingerprint}.bin")
    }

    /// Writes [`Transforms::to_bytes`] to a file, which is there as a whole or not at all.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), DataError> {
        replace_file(path, &self.to_bytes())
    }

    /// Reads what [`Transforms::save`] wrote.
    ///
    /// # Errors
    /// When the file cannot be read or is damaged.
    pub fn load(path: &Path) -> Result<Transforms, DataError> {
        // A pipe would be waited for without end, and a device has none.
        if !std::fs::metadata(path).context("read", path)?.is_file() {
            return Err(std::io::Error::other("it is not a plain file")).context("read", path);
        }
        Transforms::from_bytes(&std::fs::read(path).context("read", path)?, path)
    }
}
