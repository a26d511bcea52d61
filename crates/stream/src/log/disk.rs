//! Every change that the embedded log makes to the disk, in one place.
//!
//! Nothing else in the log creates, writes, syncs, renames or removes, so a test can let any of these operations fail, tear a
//! write at any byte, and cut the power: what was not synced is then gone (`tests/suite/simulated.rs`).

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
};

use super::{LogError, partition::io_error};

/// What a test does to the operations of a disk, and what it learns of them.
pub trait Faults: fmt::Debug + Send + Sync {
    /// Comes before every operation; an error makes it fail.
    ///
    /// # Errors
    /// When the operation is to fail.
    fn operation(&self) -> io::Result<()>;

    /// Comes before so many bytes are written at a place of a file: how many of them get through, if the write is to fail.
    fn torn(&self, file: &File, offset: u64, bytes: usize) -> Option<usize>;

    /// Syncs the bytes of a file.
    ///
    /// # Errors
    /// When the operation is to fail.
    fn sync(&self, file: &File) -> io::Result<()>;

    /// Syncs the names in a directory.
    ///
    /// # Errors
    /// When the operation is to fail.
    fn sync_dir(&self, directory: &Path) -> io::Result<()>;
}

/// A file whose lock is let go with it, on every way out.
pub(super) struct Locked(pub File);

impl Drop for Locked {
    fn drop(&mut self) {
        // Closing would do, were it not for a process that this one has just forked: it holds a copy of the file
        // until it starts its program, and with it the lock.
        let _ = self.0.unlock();
    }
}

/// The disk.
#[derive(Debug, Clone, Default)]
pub struct Disk {
    faults: Option<Arc<dyn Faults>>,
}

impl Disk {
    /// A disk of a test.
    pub fn with_faults(faults: Arc<dyn Faults>) -> Disk {
        Disk { faults: Some(faults) }
    }

    /// Creates a directory and its parents, so that all of them survive a power cut.
    pub(super) fn create_dir(&self, path: &Path) -> Result<(), LogError> {
        if path.is_dir() {
            return Ok(());
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        if let Some(parent) = parent {
            self.create_dir(parent)?;
        }
        self.change(path, "make", || match fs::create_dir(path) {
            // Another process was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            made => made,
        })?;
        self.sync_dir(parent.unwrap_or(Path::new(".")))
    }

    /// Opens a file for reading and writing at any place; what it holds stays.
    pub(super) fn open(&self, path: &Path) -> Result<File, LogError> {
        self.change(path, "open", || {
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)
        })
    }

    /// Writes `bytes` at `offset`. When it fails, a first part of them may be there.
    pub(super) fn write_at(
        &self,
        file: &File,
        path: &Path,
        bytes: &[u8],
        offset: u64,
    ) -> Result<(), LogError> {
        if let Some(torn) = self.faults.as_ref().and_then(|faults| faults.torn(file, offset, bytes.len())) {
            file.write_all_at(&bytes[..torn], offset).map_err(io_error(path, "write"))?;
            return Err(io_error(path, "write")(io::ErrorKind::StorageFull.into()));
        }
        self.change(path, "write", || file.write_all_at(bytes, offset))
    }

    /// Cuts a file, or fills it up with zeros.
    pub(super) fn set_len(&self, file: &File, path: &Path, bytes: u64) -> Result<(), LogError> {
        self.change(path, "cut", || file.set_len(bytes))
    }

    /// Returns when the file's bytes would survive a power cut.
    pub(super) fn sync(&self, file: &File, path: &Path) -> Result<(), LogError> {
        match &self.faults {
            None => self.change(path, "sync", || file.sync_data()),
            Some(faults) => faults.sync(file).map_err(io_error(path, "sync")),
        }
    }

    /// Returns when the names in a directory would survive a power cut.
    pub(super) fn sync_dir(&self, path: &Path) -> Result<(), LogError> {
        match &self.faults {
            None => self.change(path, "sync", || File::open(path)?.sync_all()),
            Some(faults) => faults.sync_dir(path).map_err(io_error(path, "sync")),
        }
    }

    /// Gives a file another name, all at once.
    pub(super) fn rename(&self, from: &Path, to: &Path) -> Result<(), LogError> {
        self.change(to, "replace", || fs::rename(from, to))
    }

    /// Removes a file. It is no error if somebody else has removed it.
    pub(super) fn remove(&self, path: &Path) -> Result<(), LogError> {
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
        if let Some(faults) = &self.faults {
            faults.operation().map_err(io_error(path, action))?;
        }
        operation().map_err(io_error(path, action))
    }
}
