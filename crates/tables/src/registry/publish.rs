//! Publishing: from a checkpoint to a version that is current.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    CURRENT_FILE, Kind, Link, Registry, RegistryError, Release, Result, TRANSFORMS_FILE, VERSIONS, WHOLE,
    delta, directory_name, names, number_of,
    release::{RELEASE_FILE, entry_of},
    sealed,
};
use crate::checkpoint::{Checkpoint, DenseKind};

/// The most deltas on a whole version: every cold start and every gate reads all of them.
const DELTAS_MAX: usize = 32;

/// How the next version is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// All files.
    Whole,
    /// Only what changed since the newest version, where that is possible and, with the deltas below it, at most half of
    /// the whole.
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
        let written = self.write(publication, &source, newest, number);
        if written.is_err() {
            // The disk may be full: what is not a version must not keep its bytes. The first error is the one to tell.
            let _ = self.sweep(model);
        }
        let mut release = written?;
        self.point(model, number)?;
        // It is current now: what cannot be cleared away is told, and is no reason to say that nothing was published.
        let cleared = self.sweep(model).and_then(|()| self.prune(model, publication.keep));
        release.not_removed = cleared.err().map(|error| error.to_string());
        Ok(release)
    }

    /// Writes the next version, reads it back and gives it its name.
    fn write(
        &self,
        publication: &Publication<'_>,
        source: &Checkpoint,
        newest: Option<u64>,
        number: u64,
    ) -> Result<Release> {
        let model = publication.model;
        let path = self.path(model, number);
        let writing = path.with_extension("writing");
        fs::create_dir_all(&writing).map_err(|source| write_error(&writing, source))?;
        let base = match (publication.shape, newest) {
            (Shape::Smallest, Some(newest)) => self.base(model, newest, source),
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
            Some(base) => write_delta(&mut release, &base, source, &writing)?,
            None => false,
        };
        if !is_delta {
            write_whole(&mut release, source, publication.transforms, &writing)?;
        }
        sealed::replace(&writing.join(RELEASE_FILE), &release)?;
        // Every byte is read back before anybody can see it.
        let release = Release::read(&writing)?;
        release.verify(&writing)?;
        if is_delta {
            // A delta has the weights alone, and what stands on them later must be sound, too.
            source.verify_all()?;
            self.keep_whole(model, number, source)?;
        }
        rename(&writing, &path)?;
        Ok(release)
    }

    /// The newest version and the checkpoint it stands for, if a delta on it is possible. Where anything of it cannot
    /// be read, or its chain is as long as it may be, there is none: a whole version is always right.
    fn base(&self, model: &str, newest: u64, new: &Checkpoint) -> Option<Base> {
        let chain = self.chain(model, newest).ok()?;
        let (last, deltas) = (chain.last()?.release.clone(), &chain[1..]);
        if deltas.len() >= DELTAS_MAX {
            return None;
        }
        let path = match last.kind {
            Kind::Whole => self.path(model, newest),
            Kind::Delta { .. } => self.root.join(model).join(WHOLE).join(directory_name(newest)),
        };
        let old = Checkpoint::open(&path).ok()?;
        let changed_bytes = |link: &Link| {
            let files = link.release.files.iter();
            let own = files.filter(|file| link.release.tables.iter().any(|table| table.file == file.name));
            own.fold(0u64, |sum, file| sum.saturating_add(file.bytes))
        };
        let below_bytes = deltas.iter().map(changed_bytes).fold(0, u64::saturating_add);
        delta::comparable(&old, new).then_some(Base { release: last, old, below_bytes })
    }

    /// Keeps the checkpoint that the newest delta leads to. It is put together under another name, in a directory
    /// that nobody has written into: what stands under its number is whole.
    fn keep_whole(&self, model: &str, number: u64, source: &Checkpoint) -> Result<()> {
        let own = self.root.join(model).join(WHOLE).join(directory_name(number));
        let writing = own.with_extension("writing");
        fs::create_dir_all(&writing).map_err(|source| write_error(&writing, source))?;
        link_checkpoint(source, &writing)?;
        rename(&writing, &own)
    }

    /// Removes old versions that no kept one stands on. The current one stays, whatever its age.
    fn prune(&self, model: &str, keep: usize) -> Result<()> {
        let versions = self.versions(model)?;
        let mut kept: Vec<u64> = versions.iter().rev().take(keep.max(1)).copied().collect();
        kept.extend(self.current(model)?);
        let mut next = 0;
        while next < kept.len() {
            match self.release(model, kept[next]) {
                Ok(Release { kind: Kind::Delta { base, .. }, .. }) => kept.push(base),
                Ok(_) => {}
                // Nobody can tell what it stands on: all that is older stays, until it is not kept itself.
                Err(_) => kept.extend(
                    versions.iter().filter(|&&older| older < kept[next]).copied().collect::<Vec<_>>(),
                ),
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
        // Only the newest version is ever compared with; any other is old, or was never published.
        let newest = self.versions(model)?.last().copied();
        let whole = self.root.join(model).join(WHOLE);
        for name in names(&whole)?.iter().filter(|name| newest.is_none() || number_of(name) != newest) {
            remove(&whole.join(name))?;
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

/// What a delta stands on.
struct Base {
    release: Release,
    /// The checkpoint it leads to.
    old: Checkpoint,
    /// Bytes of changed rows in the deltas that it is itself made of.
    below_bytes: u64,
}

/// Writes the changed rows; says false, and leaves nothing, if they are, with those of the deltas below, more than half
/// of the whole: whoever loads the version reads them all.
fn write_delta(release: &mut Release, base: &Base, new: &Checkpoint, to: &Path) -> Result<bool> {
    let Base { release: base, old, below_bytes } = base;
    let mut bytes_left = (new.manifest().bytes() / 2).saturating_sub(*below_bytes);
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
        // Never onto a file that is there: it may be the source itself under another name.
        let mut copied = File::create_new(to)?;
        io::copy(&mut File::open(from)?, &mut copied)?;
        copied.sync_all()
    };
    let linked = match fs::hard_link(from, to) {
        Err(error) if no_links(&error) => copy(),
        linked => linked,
    };
    linked.map_err(|source| write_error(to, source))
}

/// Whether links are impossible there: another file system, one without links, or too many of them.
fn no_links(error: &io::Error) -> bool {
    use io::ErrorKind::{CrossesDevices, PermissionDenied, TooManyLinks, Unsupported};
    matches!(error.kind(), CrossesDevices | PermissionDenied | TooManyLinks | Unsupported)
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
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome.map_err(|source| write_error(path, source)),
    }
}

fn write_error(path: &Path, source: io::Error) -> RegistryError {
    RegistryError::Write { path: path.to_owned(), source }
}
