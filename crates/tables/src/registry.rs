//! The registry: published versions of models, and which one is current.
//!
//! ```text
//!   registry/
//!     ranker/                       one directory a model
//!       current                     the number that is served; replaced by one rename
//!       versions/
//!         000000000007/             whole: the files of a checkpoint, transforms.bin, release.json
//!         000000000008/             a delta on 7: changed rows, dense weights, release.json
//!         000000000009.writing/     under way; swept away by the next publisher
//!       whole/000000000008/         the checkpoint that the newest delta leads to, to compare the next with
//! ```
//!
//! Publishing links the files of a checkpoint (they never change) or copies them where it cannot, reads every
//! byte back against its checksum, renames the directory, and only then moves the pointer. So whatever
//! `current` names is whole and was read back once; a crash at any moment leaves the earlier version current.
//! Rolling back moves the pointer and nothing else; numbers always rise.
//!
//! A delta names the version it stands on by number *and* by checksum, so it can never be put on another one.
//! The bytes are described in `docs/format.md`.

mod delta;
mod error;
mod publish;
mod release;
mod sealed;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

pub use delta::{ChangedRows, Delta};
pub use error::RegistryError;
pub use publish::{Publication, Shape};
pub use release::{Kind, RELEASE_FILE, Release, TRANSFORMS_FILE, TableChange};

/// What a registry does, or why not.
pub type Result<T, E = RegistryError> = std::result::Result<T, E>;

const CURRENT_FILE: &str = "current";
const VERSIONS: &str = "versions";
const WHOLE: &str = "whole";

/// The most deltas that are read for one version; a publisher makes fewer.
const CHAIN_MAX: usize = 1000;

/// The longest name of a model.
const NAME_BYTES_MAX: usize = 100;

/// A directory of published models.
#[derive(Debug, Clone)]
pub struct Registry {
    root: PathBuf,
}

/// What `current` holds.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Pointer {
    format: String,
    number: u64,
}

/// One step of a chain: a version and where it lies. The first is whole, the others are deltas.
#[derive(Debug, Clone)]
pub struct Link {
    /// What it is.
    pub release: Release,
    /// Its directory.
    pub path: PathBuf,
}

impl Registry {
    /// The registry at a directory, which need not exist yet.
    pub fn new(root: &Path) -> Registry {
        Registry { root: root.to_owned() }
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The models with anything published, by name.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn models(&self) -> Result<Vec<String>> {
        let mut models = names(&self.root)?;
        // A directory without a version is a publication under way, or nothing.
        models.retain(|name| {
            check_name(name).is_ok()
                && (self.root.join(name).join(CURRENT_FILE).exists()
                    || self.versions(name).is_ok_and(|versions| !versions.is_empty()))
        });
        Ok(models)
    }

    /// The numbers of a model's versions, rising.
    ///
    /// # Errors
    /// If the name cannot be one or the directory cannot be read.
    pub fn versions(&self, model: &str) -> Result<Vec<u64>> {
        check_name(model)?;
        let names = names(&self.root.join(model).join(VERSIONS))?;
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| number_of(name)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The number that is current, if anything was published.
    ///
    /// # Errors
    /// If the name cannot be one, or the pointer cannot be read or is damaged.
    pub fn current(&self, model: &str) -> Result<Option<u64>> {
        check_name(model)?;
        let path = self.root.join(model).join(CURRENT_FILE);
        match sealed::read::<Pointer>(&path) {
            Ok((pointer, _)) => Ok(Some(pointer.number)),
            Err(RegistryError::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What a version is.
    ///
    /// # Errors
    /// If there is no such version or its description is damaged.
    pub fn release(&self, model: &str, number: u64) -> Result<Release> {
        Ok(self.link(model, number)?.release)
    }

    /// The versions that make up `number`, in the order in which they are applied.
    ///
    /// # Errors
    /// If one of them is missing or damaged, or a delta does not stand on the version before it.
    pub fn chain(&self, model: &str, number: u64) -> Result<Vec<Link>> {
        let mut links = vec![self.link(model, number)?];
        while let Kind::Delta { base, .. } = links[links.len() - 1].release.kind {
            if links.len() > CHAIN_MAX {
                let problem = format!("more than {CHAIN_MAX} deltas stand on each other");
                return Err(RegistryError::Damaged { path: self.path(model, number), problem });
            }
            links.push(self.link(model, base)?);
        }
        links.reverse();
        for pair in links.windows(2) {
            pair[1].release.check_base(&pair[1].path, &pair[0].release)?;
        }
        Ok(links)
    }

    /// Makes an earlier version current: `to`, or the newest one before the current one. Returns its number.
    ///
    /// # Errors
    /// If there is no such version, or it cannot be read.
    pub fn roll_back(&self, model: &str, to: Option<u64>) -> Result<u64> {
        let none = || -> RegistryError {
            let known = self.models().unwrap_or_default().join(", ");
            RegistryError::NoModel { root: self.root.clone(), model: model.to_owned(), known }
        };
        // Before the lock, which makes the model's directory.
        let current = self.current(model)?.ok_or_else(none)?;
        let _lock = self.lock(model)?;
        let versions = self.versions(model)?;
        let current = self.current(model)?.unwrap_or(current);
        let target = match to {
            Some(number) => Some(number),
            None => versions.into_iter().rfind(|&number| number < current),
        };
        let number = target
            .ok_or_else(|| RegistryError::NothingBefore { model: model.to_owned(), number: current })?;
        self.verify(model, number)?;
        self.point(model, number)?;
        Ok(number)
    }

    /// Reads every byte that a version is made of.
    ///
    /// # Errors
    /// With the first file that is missing or damaged.
    pub fn verify(&self, model: &str, number: u64) -> Result<u64> {
        let chain = self.chain(model, number)?;
        chain.iter().map(|link| link.release.verify(&link.path)).sum()
    }

    /// The directory of a version.
    pub fn path(&self, model: &str, number: u64) -> PathBuf {
        self.root.join(model).join(VERSIONS).join(directory_name(number))
    }

    fn link(&self, model: &str, number: u64) -> Result<Link> {
        check_name(model)?;
        let path = self.path(model, number);
        if !path.is_dir() {
            let known = self.versions(model)?.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
            return Err(RegistryError::NoVersion { model: model.to_owned(), number, known });
        }
        let release = Release::read(&path)?;
        if (release.number, release.model.as_str()) != (number, model) {
            let problem = format!("it describes version {} of `{}`", release.number, release.model);
            return Err(RegistryError::Damaged { path: path.join(RELEASE_FILE), problem });
        }
        Ok(Link { release, path })
    }

    /// Moves the pointer.
    fn point(&self, model: &str, number: u64) -> Result<()> {
        let pointer = Pointer { format: "campanile pointer".to_owned(), number };
        sealed::replace(&self.root.join(model).join(CURRENT_FILE), &pointer).map(drop)
    }

    /// Holds off other publishers until the file is dropped.
    fn lock(&self, model: &str) -> Result<fs::File> {
        check_name(model)?;
        let directory = self.root.join(model);
        let path = directory.join("lock");
        let failed = |source| RegistryError::Write { path: path.clone(), source };
        fs::create_dir_all(directory.join(VERSIONS)).map_err(failed)?;
        let file =
            fs::File::options().write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(fs::TryLockError::WouldBlock) => Err(RegistryError::Busy { path }),
            Err(fs::TryLockError::Error(source)) => Err(RegistryError::Write { path, source }),
        }
    }
}

/// A name that can be a directory everywhere and a part of an address: letters, digits, `_`, `-` and `.`, not
/// beginning with a dot.
fn check_name(model: &str) -> Result<()> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let good =
        (1..=NAME_BYTES_MAX).contains(&model.len()) && !model.starts_with('.') && model.bytes().all(fits);
    if good { Ok(()) } else { Err(RegistryError::Name { model: model.to_owned() }) }
}

fn directory_name(number: u64) -> String {
    format!("{number:012}")
}

fn number_of(name: &str) -> Option<u64> {
    let number = name.parse().ok()?;
    (directory_name(number) == name).then_some(number)
}

/// The names in a directory, sorted; none if it is not there.
fn names(directory: &Path) -> Result<Vec<String>> {
    let failed = |source| RegistryError::Read { path: directory.to_owned(), source };
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}
