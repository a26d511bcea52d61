//! What a published version is: `release.json`.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use campanile_spec::RowFormat;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{RegistryError, Result, sealed};
use crate::checkpoint::{Checkpoint, FileEntry, TensorEntry};

/// The description of a version, in its directory.
pub const RELEASE_FILE: &str = "release.json";

/// The transforms, in the directory of a whole version.
pub const TRANSFORMS_FILE: &str = "transforms.bin";

/// The version of the format that this program writes, and the newest it reads.
const FORMAT_VERSION: u32 = 1;

/// What a published version is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Release {
    /// Always `campanile release`.
    pub format: String,
    /// The version of the format.
    pub version: u32,
    /// The model's name.
    pub model: String,
    /// Its number; numbers rise.
    pub number: u64,
    /// Whole, or a delta.
    pub kind: Kind,
    /// Steps that were trained.
    pub step: u64,
    /// A hash of all that changed the training's results.
    pub run_hash: String,
    /// The fingerprint of the transforms.
    pub transforms: String,
    /// The time of the newest sample that was trained on, in the unit of the data.
    pub data_time: Option<i64>,
    /// When it was published, in milliseconds since 1970.
    pub published_ms: u64,
    /// What the gate measured, for people; `null` without a gate.
    pub judged: Value,
    /// A delta's tables with changed rows.
    pub tables: Vec<TableChange>,
    /// A delta's dense weights.
    pub dense: Vec<TensorEntry>,
    /// The files that no other manifest guards.
    pub files: Vec<FileEntry>,
    /// The checksum of `release.json`, which tells this version from any other; not part of the file's own keys.
    #[serde(skip)]
    pub id: String,
    /// Just published: why older versions could not be cleared away, if they could not; not part of the file.
    #[serde(skip)]
    pub not_removed: Option<String>,
}

/// How a version is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Kind {
    /// All files of a checkpoint.
    Whole,
    /// The rows that differ from another version.
    Delta {
        /// The number of that version.
        base: u64,
        /// The checksum of its `release.json`.
        base_id: String,
    },
}

/// The changed rows of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableChange {
    /// The table.
    pub name: String,
    /// Its file.
    pub file: String,
    /// How many rows changed.
    pub changed: u64,
    /// Floats in a row.
    pub dim: usize,
    /// How a row is stored.
    pub format: RowFormat,
}

impl Release {
    /// A description without contents yet.
    pub(super) fn new(model: &str, number: u64, kind: Kind) -> Release {
        Release {
            format: "campanile release".to_owned(),
            version: FORMAT_VERSION,
            model: model.to_owned(),
            number,
            kind,
            step: 0,
            run_hash: String::new(),
            transforms: String::new(),
            data_time: None,
            published_ms: 0,
            judged: Value::Null,
            tables: Vec::new(),
            dense: Vec::new(),
            files: Vec::new(),
            id: String::new(),
            not_removed: None,
        }
    }

    /// Reads the description in a version's directory.
    ///
    /// # Errors
    /// If it is missing, damaged, or of a later format.
    pub fn read(directory: &Path) -> Result<Release> {
        let path = directory.join(RELEASE_FILE);
        let (mut release, id) = sealed::read::<Release>(&path)?;
        if release.version > FORMAT_VERSION {
            let problem =
                format!("it has format {}, this program reads up to {FORMAT_VERSION}", release.version);
            return Err(RegistryError::Damaged { path, problem });
        }
        if let Some(file) = release.files.iter().find(|file| file.name.contains(['/', '\\'])) {
            let problem = format!("the file name `{}` leads out of the version", file.name);
            return Err(RegistryError::Damaged { path, problem });
        }
        if let Kind::Delta { base, .. } = release.kind
            && base >= release.number
        {
            let problem = format!("version {} is a delta on {base}, which is not older", release.number);
            return Err(RegistryError::Damaged { path, problem });
        }
        release.id = id;
        Ok(release)
    }

    /// Reads every byte of this version, without the versions below it, and returns how many there are.
    ///
    /// # Errors
    /// With the first file that is missing or damaged.
    pub fn verify(&self, directory: &Path) -> Result<u64> {
        let checkpoint = match self.kind {
            Kind::Whole => Checkpoint::open(directory)?.verify_all()?,
            Kind::Delta { .. } => 0,
        };
        self.verify_own_files(directory)?;
        Ok(checkpoint + self.files.iter().map(|file| file.bytes).sum::<u64>())
    }

    /// Reads the files that no checkpoint's manifest guards: whoever loads the checkpoint checks the others.
    ///
    /// # Errors
    /// With the first file that is missing or damaged.
    pub fn verify_own_files(&self, directory: &Path) -> Result<()> {
        self.files.iter().try_for_each(|file| check_file(&directory.join(&file.name), file))
    }

    /// Checks that a delta stands on `base`.
    pub(super) fn check_base(&self, path: &Path, base: &Release) -> Result<()> {
        match &self.kind {
            Kind::Delta { base: number, base_id } if *number == base.number && *base_id == base.id => Ok(()),
            Kind::Delta { base: number, base_id } => Err(RegistryError::OtherBase {
                path: path.to_owned(),
                base: *number,
                wanted: base_id.clone(),
                found: base.id.clone(),
            }),
            Kind::Whole => Ok(()),
        }
    }
}

/// The entry of a file as it lies on the disk.
pub(super) fn entry_of(path: &Path) -> Result<FileEntry> {
    let (bytes, crc) = checksum(path)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(FileEntry { name, bytes, crc32c: sealed::hex(crc) })
}

/// Compares a file with its entry.
pub(super) fn check_file(path: &Path, entry: &FileEntry) -> Result<()> {
    let (bytes, crc) = checksum(path)?;
    let problem = if bytes != entry.bytes {
        format!("it has {bytes} bytes instead of {}", entry.bytes)
    } else if sealed::hex(crc) != entry.crc32c {
        format!("its checksum is {} instead of {}", sealed::hex(crc), entry.crc32c)
    } else {
        return Ok(());
    };
    Err(RegistryError::Damaged { path: path.to_owned(), problem })
}

fn checksum(path: &Path) -> Result<(u64, u32)> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => RegistryError::Missing { path: path.to_owned() },
        _ => RegistryError::Read { path: path.to_owned(), source },
    };
    let mut file = File::open(path).map_err(failed)?;
    let mut buffer = vec![0; 1 << 20];
    let (mut bytes, mut crc) = (0, 0);
    loop {
        let count = file.read(&mut buffer).map_err(failed)?;
        if count == 0 {
            return Ok((bytes, crc));
        }
        bytes += count as u64;
        crc = crc32c::crc32c_append(crc, &buffer[..count]);
    }
}
