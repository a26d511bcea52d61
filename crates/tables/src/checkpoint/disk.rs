//! Every change that a checkpoint makes to the disk, in one place.
//!
//! Nothing else in this module creates, writes, syncs, renames or removes, so a test can stop the world after
//! any of these operations, or let the disk fill up at any byte, and see what is left (`super::tests`).

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::Path,
};

use super::{CheckpointError, Result};

/// The disk.
#[derive(Debug, Clone, Default)]
pub(super) struct Disk {
    #[cfg(test)]
    pub(super) faults: Option<std::sync::Arc<super::tests::Faults>>,
}

impl Disk {
    /// Creates a directory and its parents.
    pub(super) fn create_dir(&self, path: &Path) -> Result<()> {
        self.change(path, || fs::create_dir_all(path))
    }

    /// Opens a file for writing at any place; what it already holds stays, for another rank may have written
    /// it.
    pub(super) fn open(&self, path: &Path) -> Result<File> {
        self.change(path, || File::options().write(true).create(true).truncate(false).open(path))
    }

    /// Writes `bytes` at `offset`.
    pub(super) fn write_at(&self, file: &File, path: &Path, bytes: &[u8], offset: u64) -> Result<()> {
        #[cfg(test)]
        if let Some(faults) = &self.faults {
            let fitting = faults.fitting(path, bytes.len());
            file.write_all_at(&bytes[..fitting], offset).map_err(|source| write_error(path, source))?;
            if fitting < bytes.len() {
                return Err(write_error(path, io::ErrorKind::StorageFull.into()));
            }
            return self.change(path, || Ok(()));
        }
        self.change(path, || file.write_all_at(bytes, offset))
    }

    /// Returns when the file's bytes would survive a power cut.
    pub(super) fn sync(&self, file: &File, path: &Path) -> Result<()> {
        self.change(path, || file.sync_all())?;
        #[cfg(test)]
        if let Some(faults) = &self.faults {
            faults.synced(path);
        }
        Ok(())
    }

    /// Returns when the names in a directory would survive a power cut.
    pub(super) fn sync_dir(&self, path: &Path) -> Result<()> {
        self.change(path, || File::open(path)?.sync_all())
    }

    /// Gives a directory another name, all at once.
    pub(super) fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.change(to, || fs::rename(from, to))?;
        #[cfg(test)]
        if let Some(faults) = &self.faults {
            faults.renamed(from, to);
        }
        Ok(())
    }

    /// Removes a directory and all it holds, if it is there.
    pub(super) fn remove_dir(&self, path: &Path) -> Result<()> {
        #[cfg(test)]
        if self.faults.is_some() && path.is_dir() {
            // A removal that is interrupted has removed something.
            self.change(path, || fs::remove_file(path.join(super::manifest::MANIFEST_FILE)).or(Ok(())))?;
        }
        self.change(path, || match fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        })
    }

    fn change<T>(&self, path: &Path, operation: impl FnOnce() -> io::Result<T>) -> Result<T> {
        #[cfg(test)]
        if let Some(faults) = &self.faults {
            faults.count().map_err(|source| write_error(path, source))?;
        }
        operation().map_err(|source| write_error(path, source))
    }
}

fn write_error(path: &Path, source: io::Error) -> CheckpointError {
    CheckpointError::Write { path: path.to_owned(), source }
}
