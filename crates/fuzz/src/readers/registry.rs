//! What a published version says of itself, and what says which one is current.

use std::{
    fs,
    path::{Path, PathBuf},
};

use campanile_serve::{Options, Snapshot};
use campanile_tables::Registry;

use super::spoil_sealed;
use crate::{campaign::Reader, model, random::Random};

/// A whole version, a delta, and the pointer.
const FILES: [&str; 3] =
    ["m/versions/000000000001/release.json", "m/versions/000000000002/release.json", "m/current"];

/// Descriptions in one registry, whose other files are good.
pub struct Releases {
    folder: PathBuf,
    seeds: Vec<Vec<u8>>,
}

impl Releases {
    pub fn new(folder: &Path) -> Releases {
        let files = &model::model().registry;
        model::write(files, folder);
        let seeds = FILES.iter().map(|file| files[Path::new(file)].clone()).collect();
        Releases { folder: folder.to_owned(), seeds }
    }
}

impl Reader for Releases {
    fn name(&self) -> &'static str {
        "release"
    }

    fn seeds(&self) -> &[Vec<u8>] {
        &self.seeds
    }

    fn spoil(&self, _: usize, bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        spoil_sealed(bytes, other, random);
    }

    fn read(&mut self, seed: usize, bytes: &[u8]) -> Result<(), String> {
        let path = self.folder.join(FILES[seed]);
        fs::write(&path, bytes).map_err(|error| error.to_string())?;
        let read = self.all();
        fs::write(&path, &self.seeds[seed]).map_err(|error| error.to_string())?;
        read
    }

    fn told(&self) -> &str {
        // A version that is not there is told by its number.
        ""
    }

    fn memory_max(&self, input: usize) -> usize {
        (32 << 20) + 100 * input
    }
}

impl Releases {
    fn all(&self) -> Result<(), String> {
        let registry = Registry::new(&self.folder);
        let words = |error: campanile_tables::RegistryError| error.to_string();
        assert_eq!(registry.models().map_err(words)?, ["m"]);
        let current = registry.current("m").map_err(words)?.ok_or("nothing is current")?;
        for number in [current, 2] {
            registry.chain("m", number).map_err(words)?;
            registry.verify("m", number).map_err(words)?;
            let snapshot = Snapshot::of_registry(&registry, "m", number, None, &Options::default());
            super::request::ask(&snapshot.map_err(|error| error.to_string())?);
        }
        Ok(())
    }
}
