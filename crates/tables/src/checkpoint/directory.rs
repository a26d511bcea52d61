//! The directory of checkpoints: what is published, what is under way, what goes.
//!
//! ```text
//!   step-N.writing ──rename──► step-N ──rename──► step-N.removed ──► gone
//!                  └─rename──► step-N.discarded ──► gone
//!                     step-N ──links───► step-N.held ────► gone, when its reader is done
//! ```
//!
//! A name without suffix is a whole checkpoint, at every instant; the suffixes mark what a crash may leave
//! behind and [`clean`] sweeps up.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    CheckpointError, Manifest, Result, Written,
    disk::Disk,
    manifest::{MANIFEST_FILE, merge},
    write::{DenseKind, DenseLayout},
};

const WRITING: &str = ".writing";
const REMOVED: &str = ".removed";
const DISCARDED: &str = ".discarded";
const HELD: &str = ".held";

/// Makes the empty directory into which the ranks write the checkpoint of `step`. Rank 0 calls it, before any
/// rank begins.
///
/// # Errors
/// If the directory cannot be made.
pub fn prepare(dir: &Path, step: u64) -> Result<()> {
    prepare_on(&Disk::default(), dir, step)
}

/// Makes what the ranks have written for `manifest.step` the newest checkpoint, and returns its path. Rank 0
/// calls it, when every rank has finished; `written` holds what each returned.
///
/// # Errors
/// If the parts are not all there, or the disk fails; the earlier checkpoints are intact then, and the
/// directory is for [`discard`] to remove.
pub fn publish(dir: &Path, manifest: Manifest, written: Vec<Written>) -> Result<PathBuf> {
    publish_on(&Disk::default(), dir, manifest, written)
}

/// Removes what was written of a checkpoint that was given up. Rank 0 calls it; a rank that has not yet given up
/// meets an error at its next file.
///
/// # Errors
/// If the directory cannot be removed.
pub fn discard(dir: &Path, step: u64) -> Result<()> {
    let disk = Disk::default();
    let writing = writing_dir(dir, step);
    let discarded = dir.join(format!("{}{DISCARDED}", step_name(step)));
    disk.remove_dir(&discarded)?;
    if writing.exists() {
        // Under another name nobody adds a file to it while it is being emptied.
        disk.rename(&writing, &discarded)?;
    }
    disk.remove_dir(&discarded)
}

/// The published checkpoints with their steps, oldest first; none if `dir` is not there.
///
/// # Errors
/// If `dir` cannot be read.
pub fn list(dir: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let mut found: Vec<(u64, PathBuf)> =
        entries(dir)?.into_iter().filter_map(|(name, path)| Some((step_of(&name)?, path))).collect();
    found.sort();
    Ok(found)
}

/// The newest published checkpoint. It is not read here: damage is for [`super::Checkpoint::open`] to report,
/// for to go on quietly from an older one would hide it.
///
/// # Errors
/// If `dir` cannot be read.
pub fn latest(dir: &Path) -> Result<Option<PathBuf>> {
    Ok(list(dir)?.pop().map(|(_, path)| path))
}

/// Removes all but the newest `keep` checkpoints, at least one of which stays, and returns what went.
///
/// # Errors
/// If one cannot be removed.
pub fn prune(dir: &Path, keep: usize) -> Result<Vec<PathBuf>> {
    prune_on(&Disk::default(), dir, keep)
}

/// A checkpoint that stays while it is read, whatever [`prune`] removes meanwhile.
#[derive(Debug)]
pub struct Held {
    path: PathBuf,
    is_ours: bool,
}

impl Held {
    /// Where it can be read.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.is_ours {
            // What cannot be removed now is swept up by `clean`.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Holds a published checkpoint for a reader: its files, which never change, get second names that pruning does not know. Where
/// the file system has no such links the checkpoint is read under its own name, and may go meanwhile.
pub fn hold(checkpoint: &Path) -> Held {
    let mut name = checkpoint.as_os_str().to_owned();
    name.push(HELD);
    let path = PathBuf::from(name);
    let linked = || -> io::Result<()> {
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir(&path)?;
        for entry in fs::read_dir(checkpoint)? {
            let entry = entry?;
            fs::hard_link(entry.path(), path.join(entry.file_name()))?;
        }
        Ok(())
    };
    match linked() {
        Ok(()) => Held { path, is_ours: true },
        Err(_) => {
            let _ = fs::remove_dir_all(&path);
            Held { path: checkpoint.to_owned(), is_ours: false }
        }
    }
}

/// Sweeps up what a crash has left, when nothing is being written. Rank 0 calls it, before [`latest`].
///
/// # Errors
/// If something cannot be removed.
pub fn clean(dir: &Path) -> Result<()> {
    clean_on(&Disk::default(), dir)
}

/// Where the checkpoint of `step` is written.
pub(super) fn writing_dir(dir: &Path, step: u64) -> PathBuf {
    dir.join(format!("step-{step:012}{WRITING}"))
}

pub(super) fn prepare_on(disk: &Disk, dir: &Path, step: u64) -> Result<()> {
    let writing = writing_dir(dir, step);
    disk.remove_dir(&writing)?;
    disk.create_dir(&writing)
}

pub(super) fn publish_on(
    disk: &Disk,
    dir: &Path,
    manifest: Manifest,
    written: Vec<Written>,
) -> Result<PathBuf> {
    let writing = writing_dir(dir, manifest.step);
    let manifest = complete(&writing, manifest, written)?;
    let path = writing.join(MANIFEST_FILE);
    let file = disk.open(&path)?;
    disk.write_at(&file, &path, &manifest.encode(), 0)?;
    disk.sync(&file, &path)?;
    disk.sync_dir(&writing)?;
    let published = dir.join(step_name(manifest.step));
    let removed = dir.join(format!("{}{REMOVED}", step_name(manifest.step)));
    let again = published.exists();
    if again {
        // A run that went back to an earlier checkpoint comes by its old steps. A rename cannot replace a
        // directory, so the old one steps aside; `clean` puts it back should we die right here.
        disk.remove_dir(&removed)?;
        disk.rename(&published, &removed)?;
    }
    disk.rename(&writing, &published)?;
    disk.sync_dir(dir)?;
    if again {
        disk.remove_dir(&removed)?;
    }
    Ok(published)
}

pub(super) fn prune_on(disk: &Disk, dir: &Path, keep: usize) -> Result<Vec<PathBuf>> {
    let found = list(dir)?;
    let mut gone = Vec::new();
    for (step, path) in &found[..found.len().saturating_sub(keep.max(1))] {
        // Under its own name a checkpoint is whole: it loses the name first.
        let removed = dir.join(format!("{}{REMOVED}", step_name(*step)));
        disk.remove_dir(&removed)?;
        disk.rename(path, &removed)?;
        disk.remove_dir(&removed)?;
        gone.push(path.clone());
    }
    Ok(gone)
}

pub(super) fn clean_on(disk: &Disk, dir: &Path) -> Result<()> {
    let newest = list(dir)?.pop().map(|(step, _)| step);
    for (name, path) in entries(dir)? {
        let unfinished = [WRITING, DISCARDED, HELD].into_iter().find_map(|suffix| name.strip_suffix(suffix));
        if unfinished.and_then(step_of).is_some() {
            disk.remove_dir(&path)?;
        }
        if let Some(step) = name.strip_suffix(REMOVED).and_then(step_of) {
            // One that stepped aside for its successor is newer than all published ones; pruning takes old ones.
            let stepped_aside =
                newest.is_none_or(|newest| newest < step) && path.join(MANIFEST_FILE).exists();
            if stepped_aside {
                disk.rename(&path, &dir.join(step_name(step)))?;
            } else {
                disk.remove_dir(&path)?;
            }
        }
    }
    Ok(())
}

/// Fills in files and dense tensors, and checks that every file of every table is whole.
fn complete(writing: &Path, mut manifest: Manifest, written: Vec<Written>) -> Result<Manifest> {
    let step = manifest.step;
    let mut parts = Vec::new();
    for rank in written {
        parts.extend(rank.parts);
        for (all, ours) in [(&mut manifest.dense, rank.dense), (&mut manifest.dense_state, rank.dense_state)]
        {
            if all.is_empty() {
                *all = ours;
            } else {
                assert!(ours.is_empty() || *all == ours, "the ranks write different dense tensors");
            }
        }
    }
    manifest.files = merge(step, parts)?;
    let mut wanted = Vec::new();
    for table in &manifest.tables {
        wanted.extend((0..table.file_count()).map(|file| (table.file_name(file), table.file_bytes(file))));
    }
    for (kind, tensors) in [(DenseKind::Weights, &manifest.dense), (DenseKind::State, &manifest.dense_state)]
    {
        if !tensors.is_empty() {
            let layout = DenseLayout { kind, tensors: tensors.clone() };
            wanted.push((kind.file_name().to_owned(), layout.file_bytes()));
        }
    }
    for (file, wanted) in wanted {
        let bytes = manifest.file(&file).map_or(0, |entry| entry.bytes);
        if bytes != wanted {
            let problem = format!("the ranks wrote {bytes} of its {wanted} bytes");
            return Err(CheckpointError::Incomplete { step, file, problem });
        }
    }
    for file in &manifest.files {
        let path = writing.join(&file.name);
        let found =
            fs::metadata(&path).map_err(|source| CheckpointError::Read { path: path.clone(), source })?.len();
        if found != file.bytes {
            return Err(CheckpointError::Length { path, found, wanted: file.bytes });
        }
    }
    Ok(manifest)
}

fn step_name(step: u64) -> String {
    format!("step-{step:012}")
}

/// The step in the name of a published checkpoint.
fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (step_name(step) == name).then_some(step)
}

fn entries(dir: &Path) -> Result<Vec<(String, PathBuf)>> {
    let failed = |source| CheckpointError::Read { path: dir.to_owned(), source };
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if let Ok(name) = entry.file_name().into_string() {
            found.push((name, entry.path()));
        }
    }
    Ok(found)
}
