//! A directory that only one process at a time may work in.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Read, Seek, Write},
    path::Path,
};

use anyhow::{Context, Result, bail};

/// Holds a directory until it is dropped; a process that dies lets go of it.
#[derive(Debug)]
pub struct Claim {
    _lock: File,
}

impl Claim {
    /// Makes the directory and takes it. Where another process has it, says which, and `instead`: what to do.
    pub fn of(directory: &Path, instead: &str) -> Result<Claim> {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let path = directory.join("lock");
        let failed = || format!("cannot take {}", path.display());
        let mut lock = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path);
        let lock_file = lock.as_mut().map_err(|error| anyhow::anyhow!("{error}")).with_context(failed)?;
        match lock_file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut process = String::new();
                let known = lock_file.read_to_string(&mut process).is_ok() && !process.is_empty();
                let who =
                    if known { format!("process {}", process.trim()) } else { "another process".to_owned() };
                bail!("{} is in use by {who}; wait for it to end, or {instead}", directory.display());
            }
            Err(TryLockError::Error(error)) => return Err(error).with_context(failed),
        }
        let written = lock_file.set_len(0).and_then(|()| lock_file.rewind());
        written.and_then(|()| writeln!(lock_file, "{}", std::process::id())).with_context(failed)?;
        Ok(Claim { _lock: lock? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_owner_at_a_time() {
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join("runs/experiment");
        let first = Claim::of(&place, "go elsewhere").unwrap();
        let said = Claim::of(&place, "go elsewhere").unwrap_err().to_string();
        let wanted =
            format!("is in use by process {}; wait for it to end, or go elsewhere", std::process::id());
        assert!(said.ends_with(&wanted) && said.contains("runs/experiment"), "{said}");
        drop(first);
        Claim::of(&place, "go elsewhere").unwrap();
    }
}
