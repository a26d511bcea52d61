//! Safetensors: rows and dense weights of a checkpoint, and those of a delta. What guards the file is put right.

use std::{
    fs,
    path::{Path, PathBuf},
};

use campanile_serve::{Options, Snapshot};
use campanile_tables::{Registry, checkpoint::Checkpoint, registry::Delta};
use serde_json::{Value, json};

use super::{sealed, spoil_headed};
use crate::{
    campaign::Reader,
    model::{self, Files},
    mutate,
    random::Random,
};

/// Where a delta lies in the registry.
const DELTA: &str = "m/versions/000000000002";

/// Files of tensors in one folder.
pub struct TableFiles {
    name: &'static str,
    folder: PathBuf,
    /// What lists them with length and checksum.
    list: PathBuf,
    list_bytes: Vec<u8>,
    names: Vec<PathBuf>,
    seeds: Vec<Vec<u8>>,
}

impl TableFiles {
    pub fn of_checkpoint(folder: &Path) -> TableFiles {
        TableFiles::new("safetensors", folder, &model::model().checkpoint, Path::new("manifest.json"))
    }

    pub fn of_delta(folder: &Path) -> TableFiles {
        let list = Path::new(DELTA).join("release.json");
        TableFiles::new("delta", folder, &model::model().registry, &list)
    }

    fn new(name: &'static str, folder: &Path, files: &Files, list: &Path) -> TableFiles {
        model::write(files, folder);
        let beside = |path: &&PathBuf| {
            path.parent() == list.parent() && path.extension().is_some_and(|kind| kind == "safetensors")
        };
        let names: Vec<PathBuf> = files.keys().filter(beside).cloned().collect();
        let seeds = names.iter().map(|name| files[name].clone()).collect();
        let list_bytes = files[list].clone();
        TableFiles { name, folder: folder.to_owned(), list: list.to_owned(), list_bytes, names, seeds }
    }

    /// The list with length and checksum of a file as it is now.
    fn listing(&self, name: &Path, bytes: &[u8]) -> Vec<u8> {
        let mut list: Value = serde_json::from_slice(&self.list_bytes).expect("our own list");
        let own = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let entries = list["files"].as_array_mut().expect("a list of files");
        for entry in entries.iter_mut().filter(|entry| entry["name"] == own.as_str()) {
            entry["bytes"] = json!(bytes.len());
            entry["crc32c"] = json!(format!("{:08x}", crc32c::crc32c(bytes)));
        }
        let mut text = serde_json::to_vec_pretty(&list).expect("a plain value");
        sealed(&mut text);
        text
    }

    fn all(&self) -> Result<(), String> {
        let options = Options::default();
        if self.name == "delta" {
            let registry = Registry::new(&self.folder);
            registry.verify("m", 2).map_err(|error| error.to_string())?;
            let delta = Delta::open(&self.folder.join(DELTA)).map_err(|error| error.to_string())?;
            delta.dense_values().map_err(|error| error.to_string())?;
            let snapshot = Snapshot::of_registry(&registry, "m", 2, None, &options);
            super::request::ask(&snapshot.map_err(|error| error.to_string())?);
            return Ok(());
        }
        let checkpoint = Checkpoint::open(&self.folder).map_err(|error| error.to_string())?;
        checkpoint.verify_all().map_err(|error| error.to_string())?;
        let snapshot = Snapshot::open(&self.folder, "m", &options).map_err(|error| error.to_string())?;
        super::request::ask(&snapshot);
        Ok(())
    }
}

impl Reader for TableFiles {
    fn name(&self) -> &'static str {
        self.name
    }

    fn seeds(&self) -> &[Vec<u8>] {
        &self.seeds
    }

    fn spoil(&self, _: usize, bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        match random.below(3) {
            0 => mutate::bytes(bytes, other, random),
            _ => spoil_headed(bytes, 0, 8, random),
        }
    }

    fn read(&mut self, seed: usize, bytes: &[u8]) -> Result<(), String> {
        let name = &self.names[seed];
        let written = |path: &Path, bytes: &[u8]| {
            fs::write(self.folder.join(path), bytes).map_err(|error| error.to_string())
        };
        written(name, bytes)?;
        written(&self.list, &self.listing(name, bytes))?;
        let read = self.all();
        written(name, &self.seeds[seed])?;
        written(&self.list, &self.list_bytes)?;
        read
    }

    fn told(&self) -> &str {
        self.folder.to_str().unwrap_or_default()
    }

    fn memory_max(&self, input: usize) -> usize {
        (32 << 20) + 100 * input
    }
}
