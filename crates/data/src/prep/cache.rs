//! Where packed sets are kept: a directory for each combination of data section and files.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::Arc,
};

use campanile_spec::data::{DataSpec, Split};
use serde::{Deserialize, Serialize};

use super::{
    Prepared, SkippedRows,
    file_order::{BlockCount, FileOrder},
    id_counts::SplitIds,
    journal::replace_file,
    pack::SPLIT_FILES,
};
use crate::{
    dataset::Dataset,
    decode::Observed,
    error::{DataError, IoContext},
    packed::PackedFile,
    rows::Schema,
    source::InputFile,
    transforms::Transforms,
    value::fingerprint,
};

/// Changes whenever the same job and files would give other packed bytes.
const FORMAT: u32 = 6;

/// The rows of one split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SplitRows {
    /// Place of the packed file in [`SPLIT_FILES`].
    pub file: usize,
    pub start: u64,
    pub rows: u64,
}

impl SplitRows {
    fn end(&self) -> Option<u64> {
        self.start.checked_add(self.rows)
    }
}

/// `prepared.json`: what a finished set holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// Train, valid and test.
    pub splits: Vec<SplitRows>,
    pub skipped: SkippedRows,
    pub segments: Vec<String>,
    pub order: FileOrder,
    pub ids: SplitIds,
    pub rows_read: u64,
    pub observed: Observed,
}

impl Manifest {
    fn load(path: &Path) -> Result<Manifest, DataError> {
        let json = fs::read(path).context("read", path)?;
        let corrupt = |reason: String| DataError::Corrupt { path: path.to_path_buf(), reason };
        let manifest: Manifest = serde_json::from_slice(&json).map_err(|error| corrupt(error.to_string()))?;
        match manifest.splits.iter().all(|split| split.file < SPLIT_FILES.len()) {
            true => Ok(manifest),
            false => Err(corrupt("it names a split that cannot be".into())),
        }
    }

    pub fn save(&self, dir: &Path) -> Result<(), DataError> {
        let json =
            serde_json::to_vec_pretty(self).unwrap_or_else(|error| unreachable!("a plain value: {error}"));
        replace_file(&dir.join("prepared.json"), &json)
    }
}

/// The place of one set in the cache.
pub(super) struct Cache {
    finished: PathBuf,
    partial: PathBuf,
    lock: PathBuf,
}

impl Cache {
    /// The place for these data and files.
    pub fn new(dir: &Path, data: &DataSpec, files: &[InputFile]) -> Result<Cache, DataError> {
        fs::create_dir_all(dir).context("create", dir)?;
        // Both are done while reading, so all their settings share a set.
        let data = DataSpec { shuffle: false, unknown_share: 0.0, ..data.clone() };
        let facts = serde_json::to_vec(&(FORMAT, data, files));
        let key = &fingerprint(&facts.unwrap_or_else(|error| unreachable!("a plain value: {error}")))[..16];
        Ok(Cache {
            finished: dir.join(key),
            partial: dir.join(format!("{key}.partial")),
            lock: dir.join(format!("{key}.lock")),
        })
    }

    pub fn is_finished(&self) -> bool {
        self.finished.join("prepared.json").is_file()
    }

    /// Waits until no other process works on this set; the system frees the lock of one that dies.
    pub fn lock(&self) -> Result<File, DataError> {
        let file = File::create(&self.lock).context("create", &self.lock)?;
        file.lock().context("lock", &self.lock)?;
        Ok(file)
    }

    /// Does the work, from where it was left; publishes what it made. Leftovers that are damaged are thrown away.
    pub fn start_or_continue(
        &self,
        mut work: impl FnMut(&Path) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let fresh = !self.partial.exists();
        fs::create_dir_all(&self.partial).context("create", &self.partial)?;
        // The manifest is written last: where it is, only publishing is left to do.
        if !self.partial.join("prepared.json").is_file() {
            match work(&self.partial) {
                Err(DataError::Corrupt { .. } | DataError::CorruptBlock { .. }) if !fresh => {
                    fs::remove_dir_all(&self.partial).context("remove", &self.partial)?;
                    fs::create_dir_all(&self.partial).context("create", &self.partial)?;
                    work(&self.partial)?;
                }
                // After trouble with the disk the work goes on; bad input would only fail again, and in a corrected
                // file it is another set.
                Err(error) if !matches!(error, DataError::Io { .. }) => {
                    fs::remove_dir_all(&self.partial).context("remove", &self.partial)?;
                    return Err(error);
                }
                result => result?,
            }
        }
        self.remove_leftovers()?;
        // A set that lost its manifest is no set: deleting files of the cache is always safe.
        if self.finished.exists() {
            fs::remove_dir_all(&self.finished).context("remove", &self.finished)?;
        }
        fs::rename(&self.partial, &self.finished).context("rename to", &self.finished)?;
        if let Some(dir) = self.finished.parent() {
            let opened = File::open(dir).context("open", dir)?;
            opened.sync_all().context("sync", dir)?;
        }
        Ok(())
    }

    fn remove_leftovers(&self) -> Result<(), DataError> {
        let manifest = Manifest::load(&self.partial.join("prepared.json"))?;
        let packed: Vec<&str> = manifest
            .splits
            .iter()
            .filter(|split| split.rows > 0)
            .map(|split| SPLIT_FILES[split.file])
            .collect();
        let wanted =
            |name: &str| packed.contains(&name) || name == "transforms.bin" || name == "prepared.json";
        for entry in fs::read_dir(&self.partial).context("list", &self.partial)? {
            let path = entry.context("list", &self.partial)?.path();
            if !path.file_name().and_then(|name| name.to_str()).is_some_and(wanted) {
                fs::remove_file(&path).context("remove", &path)?;
            }
        }
        Ok(())
    }

    /// The finished set.
    pub fn open(&self, data: &DataSpec, inputs: &[InputFile], seed: u64) -> Result<Prepared, DataError> {
        let path = self.finished.join("prepared.json");
        let corrupt = |reason: String| DataError::Corrupt { path: path.clone(), reason };
        let manifest = Manifest::load(&path)?;
        let transforms = Transforms::load(&self.finished.join("transforms.bin"))?;
        let mut files: [Option<Arc<PackedFile>>; 3] = [None, None, None];
        let mut facts = transforms.fingerprint();
        let same_columns = transforms.sparse_count() == data.columns.sparse.len();
        let schema = same_columns.then(|| Schema::new(&data.columns, &transforms));
        for split in &manifest.splits {
            if split.rows > 0 && files[split.file].is_none() {
                let file_path = self.finished.join(SPLIT_FILES[split.file]);
                let file = PackedFile::open(&file_path)?;
                let header = file.header();
                if Some(&header.schema) != schema.as_ref() || header.transforms != transforms.fingerprint() {
                    let reason = "it holds other columns than the job's, or rows of other transforms".into();
                    return Err(DataError::Corrupt { path: file_path, reason });
                }
                facts += &file.fingerprint();
                files[split.file] = Some(Arc::new(file));
            }
            facts += &format!("{}+{}", split.start, split.rows);
        }
        let segments: Arc<[String]> = manifest.segments.as_slice().into();
        let dataset = |split: Split| -> Result<Option<Dataset>, DataError> {
            let rows =
                manifest.splits.get(split as usize).ok_or_else(|| corrupt("a split is missing".into()))?;
            let shuffle = (data.shuffle && split == Split::Train).then_some(seed);
            match files.get(rows.file).and_then(|file| file.as_ref()) {
                Some(file) if rows.rows > 0 && rows.end().is_some_and(|end| end <= file.row_count()) => {
                    let dataset =
                        Dataset::packed(Arc::clone(file), rows.start..rows.start + rows.rows, shuffle);
                    Ok(Some(dataset.with_segments(&segments)))
                }
                _ if rows.rows == 0 => Ok(None),
                _ => Err(corrupt("it names rows that are not there".into())),
            }
        };
        let (valid, test) = (dataset(Split::Valid)?, dataset(Split::Test)?);
        let train = dataset(Split::Train)?.ok_or_else(|| corrupt("it has no training rows".into()))?;
        let fingerprint = fingerprint(facts.as_bytes());
        let block_rows = train.block_rows();
        let blocks = BlockCount { count: train.row_count().div_ceil(block_rows), rows: block_rows as u32 };
        let warnings = manifest.order.warnings(data, inputs, blocks);
        let Manifest { skipped, observed, ids, .. } = manifest;
        let ids = ids.splits;
        Ok(Prepared { train, valid, test, transforms, fingerprint, skipped, observed, warnings, ids })
    }
}
