//! Raw files to packed files, in bounded memory, resumable at any moment.
//!
//! Files are read up to three times: to count rows (only where a split by rows must be known before measuring), to
//! measure (only for `standardise` and vocabularies), and to pack. Every pass works in rounds; after each round a
//! [`journal`] says how far it is. A finished set is published by renaming its directory.
//!
//! ```text
//!   CACHE/<key>.lock         one preparer at a time
//!   CACHE/<key>.partial/     journal.json, train.pack, counts-000000.run, ... while work is under way
//!   CACHE/<key>/             train.pack, valid.pack, test.pack, transforms.bin, prepared.json
//! ```
//!
//! Invariant: the published bytes follow from the job's data section and the files, not from threads, memory,
//! or how often the work was interrupted.

mod cache;
mod count_ids;
mod file_order;
mod id_counts;
mod journal;
mod measure;
mod pack;
mod pipeline;
mod reread;
mod sense;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use campanile_spec::{
    config::DataFiles,
    data::{Columns, DataSpec, SourceSpec, Split, SplitSpec},
};
use serde::{Deserialize, Serialize};

use crate::{
    dataset::Dataset,
    decode::{Decoded, Decoder, Observed},
    error::{BadRow, DataError},
    source::{CHUNK_BYTES, Chunk, ChunkReader, InputFile, check, resolve},
    teacher::TeacherFile,
    transforms::Transforms,
    world::World,
};
pub use id_counts::IdCounts;
pub(crate) use journal::replace_file;
use journal::{Journal, Pass};
use pipeline::RoundLimits;
pub use reread::Reread;

/// The least memory that preparing works in.
pub const PREP_MEMORY_MIB_MIN: u64 = 8;

/// Memory of a chunk that is being decoded, with what it becomes.
const CHUNK_MEMORY_BYTES: u64 = 6 * CHUNK_BYTES as u64;

/// How to prepare; nothing here changes the result.
#[derive(Debug, Clone)]
pub struct PrepOptions {
    /// Where packed data is kept.
    pub cache_dir: PathBuf,
    /// Memory that preparing may use.
    pub memory_mib: u64,
    /// Threads that decode.
    pub threads: usize,
    /// Seeds the order of shuffled epochs and the synthetic world; packed files do not depend on it.
    pub seed: u64,
    /// Floats of a teacher's embedding that batches are to have; 0 for none.
    pub embedding_floats: usize,
    /// Raw data between two points at which an interrupted run can go on.
    pub journal_every_mib: u64,
}

impl PrepOptions {
    /// The usual settings.
    pub fn new(cache_dir: impl Into<PathBuf>, seed: u64) -> PrepOptions {
        PrepOptions {
            cache_dir: cache_dir.into(),
            memory_mib: 1024,
            threads: 1,
            seed,
            journal_every_mib: 256,
            embedding_floats: 0,
        }
    }
}

/// What `prepare` is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrepPhase {
    /// Counting rows, where a split by rows must be known before anything is measured.
    Count,
    /// Measuring means and deviations, counting ids.
    Measure,
    /// Writing packed files.
    Pack,
}

/// How far `prepare` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrepProgress {
    /// The present pass.
    pub phase: PrepPhase,
    /// Which pass it is, from 1.
    pub pass: u32,
    /// How many passes there are.
    pub pass_count: u32,
    /// Bytes of raw files read in this pass.
    pub bytes_done: u64,
    /// Bytes of raw files in this pass.
    pub bytes_total: u64,
    /// Rows read in this pass.
    pub rows: u64,
}

/// Rows that were left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedRows {
    /// How many in all.
    pub total: u64,
    /// How many by [`crate::BadReason::name`].
    pub by_reason: BTreeMap<String, u64>,
    /// The first few.
    pub examples: Vec<BadRow>,
}

/// Data that is ready to train on.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The training split.
    pub train: Dataset,
    /// The validation split, if it has rows.
    pub valid: Option<Dataset>,
    /// The test split, if it has rows.
    pub test: Option<Dataset>,
    /// How raw values become model inputs; a server needs them.
    pub transforms: Transforms,
    /// Follows from the contents, not from file names or times; goes into every checkpoint.
    pub fingerprint: String,
    /// Rows that were left out.
    pub skipped: SkippedRows,
    /// What may be meant so, and is worth a word.
    pub warnings: Vec<String>,
    /// The ids of vocabulary columns in train, valid and test, and how many of them are unknown.
    pub ids: [Vec<IdCounts>; 3],
    /// What the others are like; nothing for a synthetic world.
    pub observed: Observed,
}

/// Finds the packed form of the data in the cache, or makes it, or goes on making it.
///
/// # Errors
/// When the data cannot be read as the job says.
pub fn prepare(
    data: &DataSpec,
    files: &DataFiles,
    options: &PrepOptions,
    progress: &mut dyn FnMut(PrepProgress),
) -> Result<Prepared, DataError> {
    let mut prepared = prepare_rows(data, files, options, progress)?;
    if let Some(path) = &files.teacher {
        let tasks: Vec<String> = data.columns.labels.iter().map(|label| label.name.clone()).collect();
        let rows = prepared.train.row_count();
        let of_rows = (&*prepared.fingerprint, rows);
        let teacher = TeacherFile::open(path, &tasks, options.embedding_floats, of_rows)?;
        let facts = format!("{} taught by {}", prepared.fingerprint, teacher.fingerprint);
        prepared.fingerprint = crate::value::fingerprint(facts.as_bytes());
        prepared.train = prepared.train.with_teacher(teacher);
    }
    Ok(prepared)
}

/// As [`prepare`], without a teacher's words.
fn prepare_rows(
    data: &DataSpec,
    files: &DataFiles,
    options: &PrepOptions,
    progress: &mut dyn FnMut(PrepProgress),
) -> Result<Prepared, DataError> {
    if let SourceSpec::Synthetic(spec) = &data.source {
        let world = World::new(spec, options.seed).map_err(|error| DataError::World(error.to_string()))?;
        return synthetic(world, &data.columns, &data.source);
    }
    if options.memory_mib < PREP_MEMORY_MIB_MIN {
        let (given_mib, least_mib) = (options.memory_mib, PREP_MEMORY_MIB_MIN);
        return Err(DataError::MemoryTooSmall { given_mib, least_mib });
    }
    let inputs = resolve(files, &data.split)?;
    let cache = cache::Cache::new(&options.cache_dir, data, &inputs)?;
    if !cache.is_finished() {
        let _lock = cache.lock()?;
        // Another process may have finished while this one waited.
        if !cache.is_finished() {
            cache.start_or_continue(|dir| {
                let preparation = Preparation::new(data, &inputs, options, dir.to_path_buf(), progress)?;
                preparation.run()
            })?;
        }
    }
    let mut prepared = cache.open(data, &inputs, options.seed)?;
    let rows = |dataset: &Option<Dataset>| dataset.as_ref().map_or(0, Dataset::row_count);
    let held_out = [rows(&prepared.valid), rows(&prepared.test)];
    prepared.warnings.extend(sense::empty_splits(data, files, &prepared.observed, held_out));
    Ok(prepared)
}

impl Prepared {
    /// What a job has that trains on a stream and on no files: its transforms, and no rows.
    ///
    /// # Errors
    /// When a transform must be measured, for which there must be files.
    pub fn without_rows(data: &DataSpec) -> Result<Prepared, DataError> {
        let transforms = Transforms::unmeasured_of(data)?.ok_or(DataError::NothingToMeasure)?;
        Ok(Prepared {
            train: Dataset::none(),
            valid: None,
            test: None,
            fingerprint: transforms.fingerprint(),
            transforms,
            skipped: SkippedRows::default(),
            warnings: Vec::new(),
            ids: Default::default(),
            observed: Observed::default(),
        })
    }
}

fn synthetic(world: World, columns: &Columns, source: &SourceSpec) -> Result<Prepared, DataError> {
    let transforms = Transforms::unmeasured(columns, source)?;
    let world = Arc::new(world);
    // The job may list some of the world's labels, in an order of its own; it was checked that they are there.
    let own = world.spec().label_names();
    let labels = columns.labels.iter().map(|label| own.iter().position(|name| *name == label.name));
    let labels: Vec<usize> = labels.flatten().collect();
    let split = |split| {
        let dataset = Dataset::world(Arc::clone(&world), split, labels.clone());
        (dataset.row_count() > 0).then_some(dataset)
    };
    let facts = serde_json::to_string(&source).unwrap_or_else(|error| unreachable!("a plain value: {error}"));
    // Worlds from before there were teachers keep their fingerprints.
    let facts = facts.replace(",\"teacher\":null", "");
    Ok(Prepared {
        train: Dataset::world(Arc::clone(&world), Split::Train, labels.clone()),
        valid: split(Split::Valid),
        test: split(Split::Test),
        transforms,
        fingerprint: crate::value::fingerprint(facts.as_bytes()),
        skipped: SkippedRows::default(),
        warnings: Vec::new(),
        ids: Default::default(),
        observed: Observed::default(),
    })
}

/// The work on one set of files.
struct Preparation<'a> {
    data: &'a DataSpec,
    files: &'a [InputFile],
    options: &'a PrepOptions,
    dir: PathBuf,
    progress: &'a mut dyn FnMut(PrepProgress),
    phases: Vec<PrepPhase>,
    journal: Journal,
    workers: usize,
    in_flight: usize,
    spare: Arc<SpareRows>,
}

/// Decoded chunks that are done with: their memory is used again.
#[derive(Default)]
struct SpareRows(Mutex<Vec<Decoded>>);

impl SpareRows {
    fn take(&self, decoder: &Decoder) -> Decoded {
        let spare = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut decoded = spare.unwrap_or_else(|| Decoded::new(&decoder.schema));
        decoded.clear(&decoder.schema);
        decoded
    }

    fn give(&self, decoded: Decoded) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(decoded);
    }
}

impl<'a> Preparation<'a> {
    fn new(
        data: &'a DataSpec,
        files: &'a [InputFile],
        options: &'a PrepOptions,
        dir: PathBuf,
        progress: &'a mut dyn FnMut(PrepProgress),
    ) -> Result<Preparation<'a>, DataError> {
        let transforms = Transforms::unmeasured(&data.columns, &data.source)?;
        let measures = !transforms.standardised().is_empty() || !transforms.counted().is_empty();
        let counts = measures && matches!(data.split, SplitSpec::ByRow { .. });
        let phases = [(counts, PrepPhase::Count), (measures, PrepPhase::Measure), (true, PrepPhase::Pack)];
        let phases: Vec<PrepPhase> =
            phases.into_iter().filter(|(needed, _)| *needed).map(|(_, phase)| phase).collect();
        let journal = Journal::load(&dir)?.unwrap_or_else(|| Journal::start(phases[0]));
        let threads = options.threads.max(1);
        let chunks_that_fit = (options.memory_mib << 20) / 2 / CHUNK_MEMORY_BYTES;
        let in_flight = (chunks_that_fit as usize).clamp(1, 3 * threads);
        let workers = threads.min(in_flight);
        let spare = Arc::default();
        Ok(Preparation { data, files, options, dir, progress, phases, journal, workers, in_flight, spare })
    }

    /// All passes that are not done yet.
    fn run(mut self) -> Result<(), DataError> {
        let unmeasured = Arc::new(Transforms::unmeasured(&self.data.columns, &self.data.source)?);
        let decoder = Decoder::new(self.data, Arc::clone(&unmeasured), false)?;
        check(self.files, &self.data.source, &decoder)?;
        let stored = self.dir.join("transforms.bin");
        if self.journal.phase == PrepPhase::Count {
            self.count_rows(&decoder)?;
            self.next_phase(PrepPhase::Measure)?;
        }
        if self.journal.phase == PrepPhase::Measure {
            let decoder = Decoder::new(self.data, Arc::clone(&unmeasured), true)?;
            let measured = self.measure(&decoder)?;
            replace_file(&stored, &measured.to_bytes())?;
            self.next_phase(PrepPhase::Pack)?;
        }
        let measured = self.phases.contains(&PrepPhase::Measure);
        if !measured {
            replace_file(&stored, &unmeasured.to_bytes())?;
        }
        let transforms = Arc::new(Transforms::load(&stored)?);
        self.pack(&Decoder::new(self.data, transforms, false)?)
    }

    fn next_phase(&mut self, phase: PrepPhase) -> Result<(), DataError> {
        self.journal.phase = phase;
        self.journal.pass = Pass::default();
        self.journal.save(&self.dir)
    }

    /// The files of the present pass: only training files are measured.
    fn files_of_pass(&self) -> &'a [InputFile] {
        match self.files.iter().position(|file| file.split != Split::Train) {
            Some(others) if self.journal.phase == PrepPhase::Measure => &self.files[..others],
            _ => self.files,
        }
    }

    /// The chunks of the present pass that are not done yet.
    fn chunks<'d>(&self, decoder: &'d Decoder) -> ChunkReader<'d>
    where
        'a: 'd,
    {
        ChunkReader::new(self.files_of_pass(), &self.data.source, decoder, self.journal.pass.position)
    }

    /// One round of the present pass: `work` runs in the workers, `commit` in file order; what `commit` gives back
    /// is accounted for.
    fn round<W: Send, T: Send>(
        &mut self,
        chunks: &mut ChunkReader<'_>,
        decoder: &Decoder,
        workers: &mut [W],
        work: impl Fn(&mut W, u64, &Chunk) -> T + Sync,
        mut commit: impl FnMut(T) -> Result<Decoded, DataError>,
    ) -> Result<bool, DataError> {
        let (phase, files) = (self.journal.phase, self.files_of_pass());
        let report = PrepProgress {
            phase,
            pass: self.phases.iter().position(|other| *other == phase).map_or(1, |index| index as u32 + 1),
            pass_count: self.phases.len() as u32,
            bytes_done: 0,
            bytes_total: files.iter().map(|file| file.bytes).sum(),
            rows: 0,
        };
        let pass = &mut self.journal.pass;
        let limits = RoundLimits {
            in_flight: self.in_flight,
            chunks: ((self.options.journal_every_mib << 20) / CHUNK_BYTES as u64).max(1),
            first_chunk: pass.chunks,
        };
        pipeline::round(chunks, workers, limits, work, |chunk, result| {
            let decoded = commit(result)?;
            pass.account(chunk, (&decoded, decoder), files, self.data.bad_rows)?;
            self.spare.give(decoded);
            (self.progress)(PrepProgress { bytes_done: pass.bytes_done, rows: pass.rows_read, ..report });
            Ok(())
        })
    }

    fn memory_bytes(&self) -> u64 {
        self.options.memory_mib << 20
    }

    /// Where rows decide the split and have been counted: how many train.
    fn train_row_count(&self) -> Option<u64> {
        match self.data.split {
            SplitSpec::ByRow { valid, test } => Some(rows_of_shares(self.journal.row_total, valid, test)[0]),
            _ => None,
        }
    }
}

/// Rows that train, validate and test when the last shares of all rows are held out.
fn rows_of_shares(rows: u64, valid: f64, test: f64) -> [u64; 3] {
    let share = |share: f64| ((rows as f64 * share.clamp(0.0, 1.0)) as u64).min(rows);
    let test = share(test);
    let valid = share(valid).min(rows - test);
    [rows - valid - test, valid, test]
}
