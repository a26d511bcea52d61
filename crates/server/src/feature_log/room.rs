//! How much a log may grow: the bytes of its directory have a maximum, and what is beyond it is lost and counted.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Bytes that are written before the directory is looked at again.
const UNSEEN_BYTES_MAX: u64 = 64 << 20;

/// Room in a directory.
#[derive(Debug)]
pub struct Room {
    directory: PathBuf,
    bytes_max: u64,
    /// What may be written before the next look.
    left: u64,
}

impl Room {
    /// So many bytes for all files of a directory.
    pub fn new(directory: &Path, bytes_max: u64) -> Room {
        Room { directory: directory.to_owned(), bytes_max, left: 0 }
    }

    /// Takes room for more bytes.
    ///
    /// # Errors
    /// When there is none, or the directory cannot be read. Somebody may make room meanwhile.
    pub fn take(&mut self, bytes: u64) -> io::Result<()> {
        if bytes > self.left {
            let used = used_bytes(&self.directory)?;
            self.left = self.bytes_max.saturating_sub(used).min(UNSEEN_BYTES_MAX.max(bytes));
        }
        if bytes > self.left {
            let (directory, megabytes) = (self.directory.display(), self.bytes_max >> 20);
            return Err(io::Error::other(format!(
                "{directory} has its maximum of {megabytes} MB: remove what was read, or give more with --log-max-mb"
            )));
        }
        self.left -= bytes;
        Ok(())
    }
}

/// Bytes of all files below a directory; one that is not there has none.
fn used_bytes(directory: &Path) -> io::Result<u64> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut used = 0;
    for entry in entries {
        let entry = entry?;
        // A file may be removed between two looks.
        let Ok(about) = entry.metadata() else { continue };
        used += if about.is_dir() { used_bytes(&entry.path())? } else { about.len() };
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_directory_takes_no_more_until_somebody_makes_room() {
        let home = tempfile::tempdir().unwrap();
        let below = home.path().join("topics/impressions");
        fs::create_dir_all(&below).unwrap();
        fs::write(below.join("old"), [0; 700]).unwrap();
        let mut room = Room::new(home.path(), 1000);
        room.take(300).unwrap();
        let error = room.take(301).unwrap_err().to_string();
        assert!(error.contains("--log-max-mb"), "{error}");
        fs::remove_file(below.join("old")).unwrap();
        room.take(301).unwrap();
    }
}
