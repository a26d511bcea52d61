//! Examples of the log as batches: what a run trains on when it trains on a stream.
//!
//! A batch is always `batch_size` examples, those that follow the last batch's in the log, so what a step trains on
//! follows from where the first one began and not from when examples came. What is left at the end waits for the next run.
//!
//! All ranks are threads and read the log, each keeping its own samples. Whether there is another batch is for rank 0
//! to say: it alone looks at the end of the log and at the [`Stop`], and the others follow it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use campanile_data::{
    Transforms,
    logged::{self, LoggedError, LoggedRows},
};
use campanile_kernels::half::f32_from_f16;
use campanile_spec::{
    Batch,
    config::{Corrections, Only, Run},
    data::{BadRows, DataSpec},
};
use campanile_stream::{
    log::{Cursor, CursorError, Limit, Log, LogError, Records, Stored},
    records::{Example, Schema, Schemas, Word},
    topics::{EXAMPLES, IMPRESSIONS, WORDS},
};
use campanile_train::{
    TrainError,
    loader::{Feed, LocalBatch, Mark, Source},
    run::Stream,
};

use crate::{End, Stop, skipping::Skipping};

pub use crate::skipping::Skipped;

/// How long to wait before looking for more examples.
const PAUSE: Duration = Duration::from_millis(10);
/// How long to wait before a broker is asked again.
const BROKER_PAUSE: Duration = Duration::from_millis(250);
/// Bytes of examples that are read at once.
const READ_BYTES: usize = 8 << 20;

/// The examples of a log for one job.
pub struct Examples {
    log: Arc<dyn Log>,
    data: DataSpec,
    transforms: Transforms,
    tasks: Vec<String>,
    /// Whether the job has a use for a teacher's words.
    listens: bool,
    /// Floats of the teacher's embedding that it follows; 0 for none.
    embedding_floats: usize,
    /// Whether it trains on examples that come once more, for labels that came late.
    repeats: bool,
    /// Which examples it trains on; without it, all.
    only: Option<Only>,
    stop: Arc<Stop>,
    front: Arc<Front>,
    skipped: Arc<Skipped>,
}

impl Examples {
    /// For a job, with the transforms of its data.
    pub fn new(log: Arc<dyn Log>, run: &Run, transforms: &Transforms, stop: Arc<Stop>) -> Examples {
        Examples {
            log,
            data: run.data.clone(),
            transforms: transforms.clone(),
            tasks: run.model.tasks.iter().map(|task| task.name.clone()).collect(),
            listens: run.distil.listens() || !run.follow.is_none(),
            embedding_floats: run.follow.floats_wanted(),
            repeats: run.corrections == Corrections::Train,
            only: run.only.clone(),
            stop,
            front: Arc::default(),
            skipped: Arc::default(),
        }
    }

    /// The examples that were passed over because the job cannot take them.
    pub fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    /// What looks for those, where the job passes over them.
    fn skipping(&self, rank: usize) -> Result<Option<Skipping>, TrainError> {
        let BadRows::Skip { rows_max } = self.data.bad_rows else { return Ok(None) };
        Ok(Some(Skipping {
            rows: LoggedRows::new(&self.data, self.transforms.clone())?,
            columns: None,
            no_labels: vec![None; self.tasks.len()],
            rows_max,
            count: 0,
            skipped: (rank == 0).then(|| Arc::clone(&self.skipped)),
        }))
    }

    /// The same without a teacher's words, which nobody is judged by.
    #[must_use]
    pub fn without_words(self) -> Examples {
        Examples { listens: false, embedding_floats: 0, ..self }
    }

    /// The first record of the topic `examples` that was not read yet, as it moves.
    pub fn position(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.front.position)
    }
}

impl Stream for Examples {
    fn source(&self, feed: Feed, first_step: u64, mark: Mark) -> Result<Box<dyn Source>, TrainError> {
        let identity = check_cursor(&*self.log, mark)?;
        let mark = Mark { identity, ..mark };
        if feed.rank == 0 {
            self.front.say(|said| *said = Said { confirmed: first_step, ..Said::default() });
            self.front.position.store(mark.next, Ordering::Relaxed);
        }
        Ok(Box::new(ExampleSource {
            log: Arc::clone(&self.log),
            rows: LoggedRows::new(&self.data, self.transforms.clone())?,
            tasks: self.tasks.clone(),
            task_places: Vec::new(),
            columns: None,
            columns_known: Schemas::default(),
            labels: Vec::new(),
            words: self.listens.then(|| Words::new(self.tasks.clone(), self.embedding_floats)),
            repeats: self.repeats,
            only: self.only.clone().map(|only| Chosen { only, places: BTreeMap::new() }),
            skipping: self.skipping(feed.rank)?,
            records: Records::default(),
            stop: Arc::clone(&self.stop),
            front: Arc::clone(&self.front),
            feed,
            mark,
        }))
    }

    fn keep_read(&self) -> Result<(), TrainError> {
        match self.log.sync_topic(EXAMPLES, 0) {
            // What a broker has acknowledged it keeps by its own rules.
            Err(LogError::Remote { .. }) => Ok(()),
            synced => synced.map_err(|error| TrainError::Stream(error.to_string())),
        }
    }
}

/// Refuses a log that is not the one that the checkpoint was trained on: it would pass over whatever comes at its cursor. Returns
/// the identity of the topic. A broker that is away is waited for when examples are read.
fn check_cursor(log: &dyn Log, mark: Mark) -> Result<u64, TrainError> {
    let Mark { next, identity, sum, .. } = mark;
    let checked = Cursor { next, identity, sum }.check(log, EXAMPLES, 0);
    match checked.and_then(|()| Ok(log.identity(EXAMPLES)?)) {
        Err(CursorError::Log(LogError::Remote { .. })) => Ok(identity),
        Err(CursorError::Log(error)) => Err(TrainError::Stream(error.to_string())),
        Err(other) => Err(TrainError::Stream(format!(
            "{other}; name the log that the run began with, or begin anew with another output_dir"
        ))),
        Ok(found) => Ok(found),
    }
}

/// What rank 0 has said to the others.
#[derive(Default)]
struct Front {
    said: Mutex<Said>,
    more: Condvar,
    /// How far rank 0 has read.
    position: Arc<AtomicU64>,
}

#[derive(Default)]
struct Said {
    /// Batches of steps before this one are all there.
    confirmed: u64,
    /// There is no batch of this step.
    ended: Option<u64>,
    /// Why rank 0 gave up.
    failed: Option<String>,
}

impl Front {
    fn say(&self, change: impl FnOnce(&mut Said)) {
        change(&mut self.said.lock().unwrap_or_else(PoisonError::into_inner));
        self.more.notify_all();
    }

    /// Waits for the word on a step.
    fn wait(&self, step: u64, nobody_waits: &AtomicBool) -> Result<bool, TrainError> {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if said.confirmed > step {
                return Ok(true);
            }
            if let Some(problem) = &said.failed {
                return Err(TrainError::Stream(format!("rank 0 cannot read the stream: {problem}")));
            }
            if said.ended.is_some_and(|ended| ended <= step) || nobody_waits.load(Ordering::Relaxed) {
                return Ok(false);
            }
            said = self.more.wait_timeout(said, PAUSE).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A teacher's words on the samples of a batch.
struct Words {
    tasks: Vec<String>,
    known: Schemas,
    /// By schema of the teacher's tasks: the place of each of the job's.
    places: BTreeMap<u32, Vec<Option<usize>>>,
    /// `[task][sample]`, NaN where it said nothing.
    logits: Vec<Vec<f32>>,
    /// Seconds from the newest example that the teacher had seen.
    delays: Vec<f32>,
    /// Floats of an embedding, and `[sample][float]` of them, NaN where there is none.
    floats: usize,
    embeddings: Vec<f32>,
}

impl Words {
    fn new(tasks: Vec<String>, floats: usize) -> Words {
        let logits = vec![Vec::new(); tasks.len()];
        let (known, places) = (Schemas::default(), BTreeMap::new());
        Words { tasks, known, places, logits, delays: Vec::new(), floats, embeddings: Vec::new() }
    }

    fn clear(&mut self) {
        self.logits.iter_mut().for_each(Vec::clear);
        self.delays.clear();
        self.embeddings.clear();
    }

    fn push(&mut self, log: &dyn Log, word: Option<&Word<'_>>, time_ms: i64) -> Result<(), String> {
        let Some(word) = word else {
            self.logits.iter_mut().for_each(|task| task.push(f32::NAN));
            self.delays.push(f32::NAN);
            self.no_embedding();
            return Ok(());
        };
        if !self.places.contains_key(&word.schema) {
            let schema = self.known.find(log, WORDS, 0, word.schema).map_err(|error| error.to_string())?;
            let schema = schema
                .ok_or_else(|| format!("its teacher's tasks, schema {:08x}, are not known", word.schema))?;
            let places = self.tasks.iter().map(|task| schema.place(task)).collect();
            self.places.insert(word.schema, places);
        }
        let halves: Vec<u16> = word.halves().collect();
        for (task, place) in self.logits.iter_mut().zip(&self.places[&word.schema]) {
            let half = place.and_then(|place| halves.get(place));
            task.push(half.map_or(f32::NAN, |half| f32_from_f16(*half)));
        }
        match word.embedding_halves() {
            // Words from before they were asked for an embedding have none.
            none if none.len() == 0 => self.no_embedding(),
            halves if halves.len() == self.floats || self.floats == 0 => {
                self.embeddings.extend(halves.take(self.floats).map(f32_from_f16));
            }
            other => {
                return Err(format!(
                    "its word has an embedding of {} floats, and the job follows one of {} (run.follow.floats)",
                    other.len(),
                    self.floats
                ));
            }
        }
        let age_ms = time_ms.saturating_sub(word.data_time_ms);
        // A teacher that does not say what it has seen has no age.
        self.delays.push(if word.data_time_ms == i64::MIN { f32::NAN } else { age_ms as f32 / 1000.0 });
        Ok(())
    }

    fn no_embedding(&mut self) {
        self.embeddings.resize(self.embeddings.len() + self.floats, f32::NAN);
    }

    fn write(&self, out: &mut Batch) {
        out.teacher_logits.extend(self.logits.iter().flatten());
        out.teacher_delays.extend_from_slice(&self.delays);
        out.teacher_embeddings.extend_from_slice(&self.embeddings);
    }
}

/// The examples that a job has chosen.
struct Chosen {
    only: Only,
    /// By schema of the columns: where the column stands.
    places: BTreeMap<u32, usize>,
}

impl Chosen {
    /// Whether an example is one of them.
    fn has(&mut self, log: &dyn Log, known: &mut Schemas, payload: &[u8]) -> Result<bool, String> {
        let example = Example::decode(payload).or_else(|| Example::decode_late(payload));
        let (number, row) = columns_of(&example.ok_or("it is no example")?)?;
        let place = match self.places.get(&number) {
            Some(place) => *place,
            None => {
                let schema = find_columns(log, known, number)?;
                let place = schema.place(&self.only.column).ok_or_else(|| {
                    let names = schema.names().join("`, `");
                    format!("run.only names column `{}`, and the log has `{names}`", self.only.column)
                })?;
                self.places.insert(number, place);
                place
            }
        };
        let value = logged::cell(row, place).map(|raw| raw.shown()).unwrap_or_default();
        Ok(self.only.values.contains(&value))
    }
}

/// The schema of an example's columns, and its row.
pub(crate) fn columns_of<'a>(example: &Example<'a>) -> Result<(u32, &'a [u8]), String> {
    let (number, row) = example.features.split_first_chunk().ok_or("it has no features")?;
    Ok((u32::from_le_bytes(*number), row))
}

/// The columns of a schema.
pub(crate) fn find_columns<'a>(
    log: &dyn Log,
    known: &'a mut Schemas,
    number: u32,
) -> Result<&'a Schema, String> {
    let schema = known.find(log, IMPRESSIONS, 0, number).map_err(|error| error.to_string())?;
    schema.ok_or_else(|| format!("its columns, schema {number:08x}, are not known"))
}

struct ExampleSource {
    log: Arc<dyn Log>,
    rows: LoggedRows,
    tasks: Vec<String>,
    /// By task of the job: its place among the tasks of the log.
    task_places: Vec<u16>,
    /// The schema that `rows` is set to.
    columns: Option<u32>,
    columns_known: Schemas,
    labels: Vec<Option<bool>>,
    /// What the teacher says of this rank's samples, for a job that listens.
    words: Option<Words>,
    /// Whether examples that come once more are trained on.
    repeats: bool,
    /// Which examples are trained on, if not all are.
    only: Option<Chosen>,
    /// What looks for those that cannot be, if they are passed over.
    skipping: Option<Skipping>,
    records: Records,
    stop: Arc<Stop>,
    front: Arc<Front>,
    feed: Feed,
    mark: Mark,
}

impl Source for ExampleSource {
    fn read(
        &mut self,
        step: u64,
        out: &mut LocalBatch,
        nobody_waits: &AtomicBool,
    ) -> Result<bool, TrainError> {
        if self.feed.rank > 0 {
            return Ok(self.front.wait(step, nobody_waits)? && self.fill(out, nobody_waits)?);
        }
        let filled = self.fill(out, nobody_waits);
        self.front.say(|said| match &filled {
            Ok(true) => said.confirmed = step + 1,
            Ok(false) => said.ended = Some(step),
            Err(error) => said.failed = Some(error.to_string()),
        });
        filled
    }
}

impl ExampleSource {
    /// Reads the next examples until there are enough for a batch; false when there will not be.
    fn fill(&mut self, out: &mut LocalBatch, nobody_waits: &AtomicBool) -> Result<bool, TrainError> {
        let size = self.feed.batch_size;
        let own = self.feed.grains.samples_of_rank(size, self.feed.rank, self.feed.rank_count);
        let (mut mark, mut count) = (self.mark, 0);
        self.rows.clear();
        self.words.iter_mut().for_each(Words::clear);
        while count < size {
            let mut records = std::mem::take(&mut self.records);
            let limit = Limit { records: size - count, bytes: READ_BYTES };
            match self.log.read(EXAMPLES, 0, mark.next, limit, &mut records) {
                Ok(()) => {}
                // A broker that is away comes back; nothing is lost meanwhile.
                Err(LogError::Remote { .. }) if self.waits_for_broker(nobody_waits) => continue,
                Err(error) => return Err(TrainError::Stream(error.to_string())),
            }
            if records.is_empty() && !self.waits(PAUSE, nobody_waits) {
                return Ok(false);
            }
            for record in records.iter() {
                // On every rank the same ones are passed over, so all batches are the same.
                let wrong = |problem: String| {
                    let offset = record.offset;
                    TrainError::Stream(format!("topic `{EXAMPLES}`, record {offset}: {problem}"))
                };
                if !self.trains_on(&record).map_err(wrong)? {
                    mark.next = record.offset + 1;
                    continue;
                }
                if own.contains(&count) {
                    self.take(&record).map_err(wrong)?;
                }
                let time_ms = mark.time_ms.max(record.time_ms as i64);
                mark = Mark { next: record.offset + 1, time_ms, ..mark };
                count += 1;
            }
            mark.sum = records.last().map_or(mark.sum, |record| record.sum());
            self.records = records;
        }
        self.mark = mark;
        if self.feed.rank == 0 {
            self.front.position.store(mark.next, Ordering::Relaxed);
        }
        (out.global_count, out.first, out.mark) = (size, own.start, Some(mark));
        self.rows.write(&mut out.samples);
        self.words.iter().for_each(|words| words.write(&mut out.samples));
        Ok(true)
    }

    /// Whether an example is one that the job trains on.
    fn trains_on(&mut self, record: &Stored<'_>) -> Result<bool, String> {
        if Example::is_late(record.payload) && !self.repeats {
            return Ok(false);
        }
        let known = &mut self.columns_known;
        if let Some(only) = &mut self.only
            && !only.has(&*self.log, known, record.payload)?
        {
            return Ok(false);
        }
        match &mut self.skipping {
            Some(skipping) => skipping.takes(&*self.log, known, record),
            None => Ok(true),
        }
    }

    /// Waits a moment; false when there is no use in it.
    fn waits(&self, pause: Duration, nobody_waits: &AtomicBool) -> bool {
        // What rank 0 has confirmed is there, so the others only wait for a broker.
        let end = if self.feed.rank == 0 { self.stop.end() } else { End::Never };
        if end >= End::AtEnd || nobody_waits.load(Ordering::Relaxed) {
            return false;
        }
        self.stop.wait(pause);
        true
    }

    /// Waits a moment for a broker: also in a run that ends where the log does, for that cannot be seen without it.
    fn waits_for_broker(&self, nobody_waits: &AtomicBool) -> bool {
        self.stop.wait(BROKER_PAUSE) < End::Now && !nobody_waits.load(Ordering::Relaxed)
    }

    fn take(&mut self, record: &Stored<'_>) -> Result<(), String> {
        let example = Example::decode(record.payload).or_else(|| Example::decode_late(record.payload));
        let example = example.ok_or("it is no example")?;
        if self.task_places.is_empty() {
            self.find_tasks()?;
        }
        let (number, row) = columns_of(&example)?;
        if self.columns != Some(number) {
            let schema = find_columns(&*self.log, &mut self.columns_known, number)?;
            self.rows.set_columns(schema.names()).map_err(refused)?;
            self.columns = Some(number);
        }
        self.labels.clear();
        self.labels.extend(self.task_places.iter().map(|task| example.label(*task)));
        self.rows.push(row, &self.labels, record.time_ms as i64).map_err(refused)?;
        match &mut self.words {
            Some(words) => words.push(&*self.log, example.word.as_ref(), record.time_ms as i64),
            None => Ok(()),
        }
    }

    /// Where the job's tasks stand in the log.
    fn find_tasks(&mut self) -> Result<(), String> {
        let known = Schemas::newest(&*self.log, EXAMPLES, 0).map_err(|error| error.to_string())?;
        let known =
            known.ok_or("the tasks of the examples are not known; were they written by `campanile join`?")?;
        let place = |task: &String| {
            known.place(task).map(|place| place as u16).ok_or_else(|| {
                let names = known.names().join("`, `");
                format!("the job's task `{task}` is none of those of the log: `{names}`")
            })
        };
        self.task_places = self.tasks.iter().map(place).collect::<Result<_, _>>()?;
        Ok(())
    }
}

/// What the job cannot take, and the way on.
fn refused(error: LoggedError) -> String {
    format!("{error}; with on_bad_row = \"skip\" in [run.data] such examples are left out and counted")
}

#[cfg(test)]
#[path = "examples_tests.rs"]
mod tests;
