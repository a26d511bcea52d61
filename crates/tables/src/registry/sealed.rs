//! Small JSON files that guard themselves: the last line holds the checksum of all that stands before it, as in
//! a checkpoint's manifest.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use serde::{Serialize, de::DeserializeOwned};

use super::{RegistryError, Result};
use crate::plain_file;

const LAST_LINE_BYTES: usize = ",\n  \"crc32c\": \"00000000\"\n}\n".len();

/// Puts the file there, all at once, and returns its checksum.
pub fn replace<T: Serialize>(path: &Path, value: &T) -> Result<String> {
    let mut bytes = serde_json::to_vec_pretty(value).expect("a plain value with string keys");
    bytes.truncate(bytes.len() - "\n}".len());
    let crc = hex(crc32c::crc32c(&bytes));
    bytes.extend(last_line(&crc).bytes());
    let unfinished = path.with_extension("tmp");
    let write = || {
        let mut file = File::create(&unfinished)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    };
    write().map_err(|source| RegistryError::Write { path: path.to_owned(), source })?;
    Ok(crc)
}

/// Reads the file, and its checksum.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<(T, String)> {
    let bytes = plain_file::read(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => RegistryError::Missing { path: path.to_owned() },
        _ => RegistryError::Read { path: path.to_owned(), source },
    })?;
    let damaged = |problem: String| RegistryError::Damaged { path: path.to_owned(), problem };
    let (body, seal) = bytes.split_at(bytes.len().saturating_sub(LAST_LINE_BYTES));
    let crc = hex(crc32c::crc32c(body));
    if seal != last_line(&crc).as_bytes() {
        return Err(damaged("it does not match the checksum in its last line".to_owned()));
    }
    let value = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    Ok((value, crc))
}

/// A checksum as text.
pub fn hex(crc32c: u32) -> String {
    format!("{crc32c:08x}")
}

fn last_line(crc: &str) -> String {
    format!(",\n  \"crc32c\": \"{crc}\"\n}}\n")
}
