//! How far groups are: one small file each, replaced by a rename.
//!
//! A cursor is sixteen bytes, the offset and its complement, so that a file that is not whole is noticed.

use std::{fs, path::Path};

use super::{LogError, Offset, disk::Disk, partition::io_error};

/// Replaces a cursor; `durable` waits until it is on disk.
pub(super) fn write(disk: &Disk, path: &Path, next: Offset, durable: bool) -> Result<(), LogError> {
    let beside = path.with_extension("new");
    let file = disk.open(&beside)?;
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&next.to_le_bytes());
    bytes[8..].copy_from_slice(&(!next).to_le_bytes());
    disk.write_at(&file, &beside, &bytes, 0)?;
    if durable {
        disk.sync(&file, &beside)?;
    }
    disk.rename(&beside, path)?;
    if let Some(directory) = path.parent().filter(|_| durable) {
        disk.sync_dir(directory)?;
    }
    Ok(())
}

/// Reads a cursor; 0 if there is none.
pub(super) fn read(path: &Path) -> Result<Offset, LogError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(io_error(path, "read")(error)),
    };
    let half = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    match (half(0), half(8)) {
        (Some(next), Some(complement)) if next == !complement && bytes.len() == 16 => Ok(next),
        _ => {
            let problem = "it is not a cursor".to_owned();
            Err(LogError::Damaged { path: path.to_owned(), byte: 0, problem })
        }
    }
}
