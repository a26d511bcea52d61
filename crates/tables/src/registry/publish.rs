//! Publishing: from a checkpoint to a version that is current.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    CURRENT_FILE, Kind, Registry, RegistryError, Release, Result, TRANSFORMS_FILE, VERSIONS, WHOLE, delta,
    directory_name, names, number_of,
    release::{RELEASE_FILE, entry_of},
    sealed,
};
use crate::checkpoint::{Checkpoint, DenseKind};

/// How the next version is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// All files.
    Whole,
    /// Only what changed since the newest version, where that is possible and at most half of the whole.
    Smallest,
}

/// What is to be published.
#[derive(Debug, Clone)]
pub struct Publication<'a> {
    /// The model's name.
    pub model: &'a str,
    /// The checkpoint.
    pub checkpoint: &'a Path,
    /// The transforms, as bytes.
    pub transforms: &'a [u8],
    /// Their fingerprint.
    pub fingerprint: &'a str,
    /// Now, in milliseconds since 1970.
    pub published_ms: u64,
    /// What the gate measured.
    pub judged: Value,
    /// How many versions stay, the newest ones; those that they stand on stay too.
    pub keep: usize,
    /// How it is stored.
    pub shape: Shape,
}

impl Registry {
    /// Publishes a checkpoint and makes it current.
    ///
    /// # Errors
    /// If anything is missing or damaged or the disk fails; what was current before still is.
    pub fn publish(&self, publication: &Publication<'_>) -> Result<Release> {
        let model = publication.model;
        let _lock = self.lock(model)?;
        self.sweep(model)?;
        let source = Checkpoint::open(publication.checkpoint)?;
        let newest = self.versions(model)?.last().copied();
        let number = newest.max(self.current(model)?).map_or(1, |number| number + 1);
        let path = self.path(model, number);
        let writing = path.with_extension("writing");
        fs::create_dir_all(&writing).map_err(|source| write_error(&writing, source))?;
        let base = match (publication.shape, newest) {
            (Shape::Smallest, Some(newest)) => self.base(model, newest, &source)?,
            _ => None,
        };
        let manifest = source.manifest();
        let mut release = Release::new(model, number, Kind::Whole);
        release.step = manifest.step;
        release.run_hash = manifest.run_hash.clone();
        release.transforms = publication.fingerprint.to_owned();
        release.data_time = manifest.extra["data_time"].as_i64();
        release.published_ms = publication.published_ms;
        release.judged = publication.judged.clone();
        let is_delta = match base {
            Some((base, old)) => write_delta(&mut release, &base, &old, &source, &writing)?,
            None => false,
        };
        if !is_delta {
            write_whole(&mut release, &source, publication.transforms, &writing)?;
        }
        sealed::replace(&writing.join(RELEASE_FILE), &release)?;
        // Every byte is read back before anybody can see it.
        let release = Release::read(&writing)?;
        release.verify(&writing)?;
        self.keep_whole(model, number, is_delta.then_some(&source))?;
        rename(&writing, &path)?;
        self.point(model, number)?;
        self.prune(model, publication.keep)?;
        Ok(release)
    }

    /// The newest version and the checkpoint it stands for, if a delta on it is possible.
    fn base(&self, model: &str, newest: u64, new: &Checkpoint) -> Result<Option<(Release, Checkpoint)>> {
        let release = self.release(model, newest)?;
        let path = match release.kind {
            Kind::Whole => self.path(model, newest),
            Kind::Delta { .. } => self.root.join(model).join(WHOLE).join(directory_name(newest)),
        };
        // Without the old rows there is nothing to compare with; a whole version is always right.
        let Ok(old) = Checkpoint::open(&path) else { return Ok(None) };
        Ok(delta::comparable(&old, new).then_some((release, old)))
    }

    /// Keeps the checkpoint that the newest delta leads to, and no other.
    fn keep_whole(&self, model: &str, number: u64, source: Option<&Checkpoint>) -> Result<()> {
        let directory = self.root.join(model).join(WHOLE);
        if let Some(source) = source {
            let own = directory.join(directory_name(number));
            fs::create_dir_all(&own).map_err(|source| write_error(&own, source))?;
            link_checkpoint(source, &own)?;
        }
        for name in names(&directory)? {
            if number_of(&name) != Some(number) {
                remove(&directory.join(name))?;
            }
        }
        Ok(())
    }

    /// Removes old versions that no kept one stands on. The current one stays, whatever its age.
    fn prune(&self, model: &str, keep: usize) -> Result<()> {
        let versions = self.versions(model)?;
        let mut kept: Vec<u64> = versions.iter().rev().take(keep.max(1)).copied().collect();
        kept.extend(self.current(model)?);
        let mut next = 0;
        while next < kept.len() {
            if let Kind::Delta { base, .. } = self.release(model, kept[next])?.kind {
                kept.push(base);
            }
            next += 1;
        }
        for number in versions.iter().filter(|number| !kept.contains(number)) {
            let path = self.path(model, *number);
            // Under its own name a version is whole: it loses the name first.
            let removed = path.with_extension("removed");
            remove(&removed)?;
            rename(&path, &removed)?;
            remove(&removed)?;
        }
        Ok(())
    }

    /// Removes what a publisher that died has left.
    fn sweep(&self, model: &str) -> Result<()> {
        let directory = self.root.join(model).join(VERSIONS);
        for name in names(&directory)?.iter().filter(|name| number_of(name).is_none()) {
            remove(&directory.join(name))?;
        }
        // Left by a crash between writing the pointer and renaming it.
        let _ = fs::remove_file(self.root.join(model).join(CURRENT_FILE).with_extension("tmp"));
        Ok(())
    }
}

/// Puts all files of a checkpoint and the transforms into a directory.
fn write_whole(release: &mut Release, source: &Checkpoint, transforms: &[u8], to: &Path) -> Result<()> {
    link_checkpoint(source, to)?;
    let own = to.join(TRANSFORMS_FILE);
    write_file(&own, transforms)?;
    release.files = vec![entry_of(&own)?];
    Ok(())
}

/// Writes the changed rows; says false, and leaves nothing, if they are more than half of the whole.
fn write_delta(
    release: &mut Release,
    base: &Release,
    old: &Checkpoint,
    new: &Checkpoint,
    to: &Path,
) -> Result<bool> {
    let mut bytes_left = new.manifest().bytes() / 2;
    let (mut tables, mut files) = (Vec::new(), Vec::new());
    for table in &new.manifest().tables {
        let changed = delta::compare(old, new, table)?;
        if changed.index.is_empty() {
            continue;
        }
        let (change, bytes) = delta::file_of(table, &changed);
        let path = to.join(&change.file);
        let Some(left) = bytes_left.checked_sub(bytes.len() as u64) else {
            files.iter().try_for_each(|file: &PathBuf| {
                fs::remove_file(file).map_err(|source| write_error(file, source))
            })?;
            return Ok(false);
        };
        bytes_left = left;
        write_file(&path, &bytes)?;
        tables.push(change);
        files.push(path);
    }
    release.files = files.iter().map(|file| entry_of(file)).collect::<Result<_>>()?;
    // The checksum is the checkpoint's own, so that damage shows when the delta is read back.
    if let Some(dense) = new.manifest().file(DenseKind::Weights.file_name()) {
        link_or_copy(&new.path().join(&dense.name), &to.join(&dense.name))?;
        release.files.push(dense.clone());
    }
    release.kind = Kind::Delta { base: base.number, base_id: base.id.clone() };
    release.tables = tables;
    release.dense = new.manifest().dense.clone();
    Ok(true)
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|source| write_error(path, source))
}

fn link_checkpoint(source: &Checkpoint, to: &Path) -> Result<()> {
    let files = source.manifest().files.iter().map(|file| file.name.as_str());
    for name in files.chain(["manifest.json"]) {
        link_or_copy(&source.path().join(name), &to.join(name))?;
    }
    Ok(())
}

/// A second name for a file that never changes, or a copy where the file system cannot do that.
fn link_or_copy(from: &Path, to: &Path) -> Result<()> {
    if !from.exists() {
        return Err(RegistryError::Missing { path: from.to_owned() });
    }
    let copy = || {
        fs::copy(from, to)?;
        File::open(to)?.sync_all()
    };
    fs::hard_link(from, to).or_else(|_| copy()).map_err(|source| write_error(to, source))
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    let sync = |path: &Path| File::open(path)?.sync_all();
    let all = || {
        sync(from)?;
        fs::rename(from, to)?;
        to.parent().map_or(Ok(()), sync)
    };
    all().map_err(|source| write_error(to, source))
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        outcome => outcome.map_err(|source| write_error(path, source)),
    }
}

fn write_error(path: &Path, source: std::io::Error) -> RegistryError {
    RegistryError::Write { path: path.to_owned(), source }
}
