//! Every change that the embedded log makes to the disk, in one place.
//!
//! Nothing else in the log creates, writes, syncs, renames or removes, so a test can let any of these operations fail, tear a
//! write at any byte, and cut the power: what was not synced is then gone (`simulated`).

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::Path,
};

use super::{LogError, partition::io_error};

/// The disk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Disk {
    #[cfg(test)]
    pub(crate) simulated: Option<std::sync::Arc<super::simulated::Simulated>>,
}

impl Disk {
    /// Creates a directory and its parents.
    pub fn create_dir(&self, path: &Path) -> Result<(), LogError> {
        self.change(path, "make", || fs::create_dir_all(path))
    }

    /// Opens a file for reading and writing at any place; what it holds stays.
    pub fn open(&self, path: &Path) -> Result<File, LogError> {
        self.change(path, "open", || {
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)
        })
    }

    /// Writes `bytes` at `offset`. When it fails, a first part of them may be there.
    pub fn write_at(&self, file: &File, path: &Path, bytes: &[u8], offset: u64) -> Result<(), LogError> {
        #[cfg(test)]
        if let Some(simulated) = &self.simulated
            && let Some(torn) = simulated.torn(bytes.len())
        {
            file.write_all_at(&bytes[..torn], offset).map_err(io_error(path, "write"))?;
            return Err(io_error(path, "write")(io::ErrorKind::StorageFull.into()));
        }
        self.change(path, "write", || file.write_all_at(bytes, offset))
    }

    /// Cuts a file, or fills it up with zeros.
    pub fn set_len(&self, file: &File, path: &Path, bytes: u64) -> Result<(), LogError> {
        self.change(path, "cut", || file.set_len(bytes))
    }

    /// Returns when the file's bytes would survive a power cut.
    pub fn sync(&self, file: &File, path: &Path) -> Result<(), LogError> {
        #[cfg(test)]
        if let Some(simulated) = &self.simulated {
            self.change(path, "sync", || Ok(()))?;
            simulated.synced(file);
            return Ok(());
        }
        self.change(path, "sync", || file.sync_data())
    }

    /// Returns when the names in a directory would survive a power cut.
    pub fn sync_dir(&self, path: &Path) -> Result<(), LogError> {
        #[cfg(test)]
        if let Some(simulated) = &self.simulated {
            self.change(path, "sync", || Ok(()))?;
            simulated.synced_dir(path);
            return Ok(());
        }
        self.change(path, "sync", || File::open(path)?.sync_all())
    }

    /// Gives a file another name, all at once.
    pub fn rename(&self, from: &Path, to: &Path) -> Result<(), LogError> {
        self.change(to, "replace", || fs::rename(from, to))
    }

    /// Removes a file. It is no error if somebody else has removed it.
    pub fn remove(&self, path: &Path) -> Result<(), LogError> {
        self.change(path, "remove", || match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        })
    }

    fn change<T>(
        &self,
        path: &Path,
        action: &'static str,
        operation: impl FnOnce() -> io::Result<T>,
    ) -> Result<T, LogError> {
        #[cfg(test)]
        if let Some(simulated) = &self.simulated {
            simulated.count().map_err(io_error(path, action))?;
        }
        operation().map_err(io_error(path, action))
    }
}
