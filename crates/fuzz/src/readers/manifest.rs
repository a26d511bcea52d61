//! The manifest of a checkpoint, with the job in it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use campanile_serve::{Options, Snapshot};
use campanile_tables::checkpoint::{Checkpoint, describe};

use super::spoil_sealed;
use crate::{campaign::Reader, model, random::Random};

const FILE: &str = "manifest.json";

/// Manifests of one checkpoint, whose other files are good.
pub struct Manifests {
    folder: PathBuf,
    seeds: Vec<Vec<u8>>,
}

impl Manifests {
    pub fn new(folder: &Path) -> Manifests {
        let files = &model::model().checkpoint;
        model::write(files, folder);
        Manifests { folder: folder.to_owned(), seeds: vec![files[Path::new(FILE)].clone()] }
    }
}

impl Reader for Manifests {
    fn name(&self) -> &'static str {
        "manifest"
    }

    fn seeds(&self) -> &[Vec<u8>] {
        &self.seeds
    }

    fn spoil(&self, _: usize, bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        spoil_sealed(bytes, other, random);
    }

    fn read(&mut self, _: usize, bytes: &[u8]) -> Result<(), String> {
        fs::write(self.folder.join(FILE), bytes).map_err(|error| error.to_string())?;
        let checkpoint = Checkpoint::open(&self.folder).map_err(|error| error.to_string())?;
        checkpoint.verify_all().map_err(|error| error.to_string())?;
        let summary = describe(&self.folder).map_err(|error| error.to_string())?;
        assert!(!summary.to_string().is_empty());
        let snapshot = Snapshot::open(&self.folder, "m", &Options::default());
        super::request::ask(&snapshot.map_err(|error| error.to_string())?);
        Ok(())
    }

    fn told(&self) -> &str {
        self.folder.to_str().unwrap_or_default()
    }

    fn memory_max(&self, input: usize) -> usize {
        (32 << 20) + 100 * input
    }
}
