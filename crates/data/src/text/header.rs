//! The header line of a CSV file: whether it is one at all, and whether its delimiter is the job's.

use std::path::Path;

use crate::error::DataError;

/// Delimiters that a file is likely to have.
const USUAL: [(u8, &str); 4] = [(b',', ","), (b';', ";"), (b'\t', "\\t"), (b'|', "|")];

/// Refuses what is no line of text, such as a compressed file of an unknown kind.
pub(super) fn check(header: &[u8], path: &Path) -> Result<(), DataError> {
    let is_text = std::str::from_utf8(header).is_ok_and(|text| {
        !text.contains(|letter: char| letter.is_control() && !matches!(letter, '\t' | '\r' | '\n'))
    });
    if is_text {
        return Ok(());
    }
    let kind = match header {
        [b'P', b'A', b'R', b'1', ..] => "it is a Parquet file; say kind = \"parquet\"",
        [b'P', b'K', 3, 4, ..] => "it is a zip archive; unpack it, or use gzip or zstd",
        [b'B', b'Z', b'h', ..] => "it is compressed with bzip2; use gzip or zstd",
        [0xfd, b'7', b'z', b'X', b'Z', ..] => "it is compressed with xz; use gzip or zstd",
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "it is text in UTF-16; write it as UTF-8",
        _ if std::str::from_utf8(header).is_err() => {
            "its first line is not UTF-8, and it is neither gzip nor zstd; is it damaged, or compressed otherwise?"
        }
        _ => "its first line has control characters, and it is neither gzip nor zstd; is it damaged?",
    };
    Err(DataError::NotText { path: path.to_path_buf(), reason: kind.to_owned() })
}

/// What to ask where the whole header is one column that has another delimiter in it.
pub(super) fn other_delimiter(names: &[String], delimiter: u8) -> String {
    let [only] = names else { return String::new() };
    let is_there = |(byte, _): &&(u8, &str)| *byte != delimiter && only.as_bytes().contains(byte);
    let most = USUAL
        .iter()
        .filter(is_there)
        .max_by_key(|(byte, _)| only.bytes().filter(|other| other == byte).count());
    match most {
        Some((_, shown)) => {
            format!(" as its only column; is the delimiter right? Try delimiter = \"{shown}\"")
        }
        None => String::new(),
    }
}
