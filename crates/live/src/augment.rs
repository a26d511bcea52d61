//! The augmentation: a teacher says a word on every impression, once, while its labels are awaited.
//!
//! Impressions are taken in turns; a turn pins one version of the teacher, the one that is current when the turn begins,
//! and notes it in the stage's journal. So a turn that a crash interrupts runs again with the version that it began with; the
//! stage's state is saved before the version changes, so no older one is asked for. If the registry no longer has it, the stage says
//! so and stops. Impressions whose windows have closed while the teacher was busy are passed over: nobody
//! waits for a word on them, and nobody waits for the teacher.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use campanile_data::logged::LoggedRows;
use campanile_kernels::half::f16_nearest;
use campanile_serve::{Options, Projection, Request, Scorer, Scores, Snapshot};
use campanile_spec::Batch;
use campanile_stream::{
    log::{Log, LogError, Offset, Records},
    records::{Impression, Schema, Schemas, TICK, Word, declare},
    stage::{Again, Arrival, Outgoing, Stage, StageError},
    topics::{IMPRESSIONS, WORDS},
};
use campanile_tables::Registry;

/// Impressions that are scored together.
const BATCH_SAMPLES: usize = 512;

/// How a teacher is asked.
#[derive(Debug, Clone)]
pub struct AugmentOptions {
    /// Where teachers are published.
    pub registry: Registry,
    /// The teacher's name there.
    pub model: String,
    /// Impressions older than the newest one by more than this are passed over; the shortest that makes sense is the
    /// longest window of a task.
    pub window_ms: u64,
    /// How long ids are remembered, so that an impression that comes twice gets one word.
    pub remember_ms: u64,
    /// Ids that are remembered at most; of more, the oldest are forgotten.
    pub remembered_max: usize,
    /// Whether a turn that was interrupted may be finished with the current version, where the registry no longer has the one
    /// that it was begun with.
    pub may_change_version: bool,
    /// Floats of the teacher's embedding that words carry; 0 for none.
    pub embedding_floats: usize,
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AugmentCounts {
    /// Words written.
    pub words: u64,
    /// Impressions that came again.
    pub repeated: u64,
    /// Impressions passed over because their windows had closed.
    pub too_old: u64,
    /// Versions of the teacher used.
    pub versions: u64,
    /// Impressions that the teacher cannot read: they get no word.
    pub unreadable: u64,
}

/// The stage.
pub struct Augmenter {
    log: Arc<dyn Log>,
    options: AugmentOptions,
    teacher: Option<Teacher>,
    known: Schemas,
    /// Ids with a word or passed over, and when.
    seen: HashSet<u64>,
    forgetting: BTreeSet<(u64, u64)>,
    counts: AugmentCounts,
    scorer: Scorer,
    scores: Scores,
    embeddings: Vec<f32>,
    request: Request,
    batch: Batch,
    waiting: Vec<(u64, u64)>,
}

/// A version of the teacher, and its view of the rows.
struct Teacher {
    snapshot: Snapshot,
    rows: LoggedRows,
    columns: Option<u32>,
    tasks: u32,
    /// What its embeddings are made by, if words carry them.
    projection: Option<Projection>,
}

impl Augmenter {
    /// A stage that has seen nothing.
    pub fn new(log: Arc<dyn Log>, options: AugmentOptions) -> Augmenter {
        Augmenter {
            log,
            options,
            teacher: None,
            known: Schemas::default(),
            seen: HashSet::new(),
            forgetting: BTreeSet::new(),
            counts: AugmentCounts::default(),
            scorer: Scorer::new(),
            scores: Scores::default(),
            embeddings: Vec::new(),
            request: Request::new(),
            batch: Batch::default(),
            waiting: Vec::new(),
        }
    }

    /// What was done.
    pub fn counts(&self) -> AugmentCounts {
        self.counts
    }

    /// The version of the teacher that was used last.
    pub fn version(&self) -> Option<u64> {
        self.teacher.as_ref().map(|teacher| teacher.snapshot.version().number)
    }

    /// Whether there is a teacher, or words on what is missing.
    ///
    /// # Errors
    /// When none is published.
    pub fn ready(&self) -> Result<(), String> {
        let AugmentOptions { registry, model, .. } = &self.options;
        match registry.current(model) {
            Ok(Some(_)) => Ok(()),
            _ => Err(format!("no version of `{model}` is published in {} yet", registry.root().display())),
        }
    }

    /// Has this version of the teacher in memory; where the registry no longer has it and another one may do, the current one.
    fn pin(&mut self, number: u64) -> Result<(), StageError> {
        if self.version() == Some(number) {
            return Ok(());
        }
        let AugmentOptions { registry, model, .. } = &self.options;
        let present = self.teacher.as_ref().map(|teacher| &teacher.snapshot);
        let open = |number| Snapshot::of_registry(registry, model, number, present, &Options::default());
        let gone = registry.versions(model).is_ok_and(|versions| !versions.contains(&number));
        if gone && !self.options.may_change_version {
            return Err(StageError::World(format!(
                "a turn was begun with version {number} of the teacher `{model}`, and {} no longer has it; put it back, or say --other-version once to finish the turn with the current one",
                registry.root().display()
            )));
        }
        let current = if gone { registry.current(model).ok().flatten() } else { None };
        let failed = |error: &dyn std::fmt::Display| StageError::World(format!("teacher `{model}`: {error}"));
        let snapshot = open(current.unwrap_or(number)).map_err(|error| failed(&error))?;
        let data = &snapshot.job().run.data;
        let rows = LoggedRows::new(data, snapshot.inputs().transforms().clone());
        let rows = rows.map_err(|error| failed(&error))?;
        let floats = self.options.embedding_floats;
        let projection = (floats > 0).then(|| Projection::of(&snapshot, floats));
        let projection = projection.transpose().map_err(|error| failed(&error))?;
        let tasks = Schema::new(snapshot.tasks());
        declare(&*self.log, WORDS, 0, &tasks)?;
        self.teacher = Some(Teacher { snapshot, rows, columns: None, tasks: tasks.number(), projection });
        self.counts.versions += 1;
        Ok(())
    }

    /// Whether an impression is to be scored; it counts as seen from now on.
    fn is_wanted(&mut self, id: u64, time_ms: u64, skip_before_ms: u64) -> bool {
        if !self.seen.insert(id) {
            self.counts.repeated += 1;
            return false;
        }
        self.forgetting.insert((time_ms, id));
        let oldest_ms = time_ms.saturating_sub(self.options.remember_ms);
        let max = self.options.remembered_max;
        let is_due = |set: &BTreeSet<(u64, u64)>| {
            set.len() > max || set.first().is_some_and(|(at_ms, _)| *at_ms < oldest_ms)
        };
        while is_due(&self.forgetting) {
            if let Some((_, id)) = self.forgetting.pop_first() {
                self.seen.remove(&id);
            }
        }
        if time_ms < skip_before_ms {
            self.counts.too_old += 1;
            return false;
        }
        true
    }

    /// Puts an impression's features into the batch; one that the teacher cannot read gets no word, and is counted.
    fn gather(&mut self, impression: &Impression<'_>, time_ms: u64) -> Result<(), String> {
        let Some(teacher) = &mut self.teacher else { return Err("no teacher is pinned".to_owned()) };
        let (number, row) = impression.features.split_first_chunk().ok_or("it has no features")?;
        let number = u32::from_le_bytes(*number);
        if teacher.columns != Some(number) {
            let schema = self.known.find(&*self.log, IMPRESSIONS, 0, number);
            let schema = schema.map_err(|error| error.to_string())?;
            let schema = schema.ok_or_else(|| format!("its columns, schema {number:08x}, are not known"))?;
            let is_known = teacher.rows.set_columns(schema.names()).is_ok();
            teacher.columns = is_known.then_some(number);
        }
        // A label has no meaning here; the rows want one for each task.
        let labels = vec![None; teacher.snapshot.model().tasks.len()];
        if teacher.columns.is_some() && teacher.rows.push(row, &labels, time_ms as i64).is_ok() {
            self.waiting.push((impression.id, time_ms));
        } else {
            self.counts.unreadable += 1;
        }
        Ok(())
    }

    /// Scores what was gathered.
    fn speak(&mut self, out: &mut Outgoing) -> Result<(), StageError> {
        let Some(teacher) = self.teacher.as_mut().filter(|_| !self.waiting.is_empty()) else { return Ok(()) };
        let snapshot = &teacher.snapshot;
        teacher.rows.write(&mut self.batch);
        let scored = self.request.prepared(snapshot.inputs(), &self.batch.dense, &self.batch.bags);
        let (scorer, requests, scores) = (&mut self.scorer, &[&self.request], &mut self.scores);
        let scored = scored.and_then(|()| match teacher.projection {
            Some(_) => scorer.score_and_keep_hidden(snapshot, requests, scores),
            None => scorer.score(snapshot, requests, scores),
        });
        scored.map_err(|error| StageError::World(format!("the teacher cannot score: {error}")))?;
        let tasks = self.scores.task_count;
        let floats = teacher.projection.as_ref().map_or(0, Projection::floats);
        if let Some(projection) = &teacher.projection {
            projection.write(&self.scores, &mut self.embeddings);
        }
        let (mut logits, mut embedding) = (Vec::with_capacity(2 * tasks), Vec::with_capacity(2 * floats));
        let said = self.waiting.drain(..).zip(self.scores.logits.chunks_exact(tasks)).enumerate();
        for (place, ((id, time_ms), sample)) in said {
            as_halves(sample, &mut logits);
            as_halves(&self.embeddings[place * floats..][..floats], &mut embedding);
            let word = Word {
                id,
                schema: teacher.tasks,
                version: snapshot.version().number,
                data_time_ms: snapshot.version().data_time.unwrap_or(i64::MIN),
                logits: &logits,
                embedding: &embedding,
            };
            // Time does not pass by a teacher's speaking.
            out.write(0, time_ms, |bytes| word.encode(bytes));
        }
        self.counts.words += self.batch.sample_count as u64;
        teacher.rows.clear();
        Ok(())
    }

    fn newest_ms(&self) -> Result<u64, LogError> {
        let mut last = Records::default();
        self.log.last(IMPRESSIONS, 0, &mut last)?;
        Ok(last.last().map_or(0, |record| record.time_ms))
    }
}

impl Stage for Augmenter {
    /// The version to use, and the time before which it is too late for a word.
    fn note(&mut self) -> Result<Vec<u8>, StageError> {
        let AugmentOptions { registry, model, window_ms, .. } = &self.options;
        let current = registry.current(model).map_err(|error| StageError::World(error.to_string()))?;
        let number = current.ok_or_else(|| {
            let place = registry.root().display();
            StageError::World(format!("no version of the teacher `{model}` is published in {place} yet"))
        })?;
        let skip_before_ms = self.newest_ms()?.saturating_sub(*window_ms);
        Ok([number.to_le_bytes(), skip_before_ms.to_le_bytes()].concat())
    }

    /// Before another version speaks.
    fn saves_before(&self, note: &[u8]) -> bool {
        let number = note.first_chunk().map(|number| u64::from_le_bytes(*number));
        self.version().is_some() && self.version() != number
    }

    fn turn(
        &mut self,
        note: &[u8],
        arrivals: &mut dyn Iterator<Item = Arrival<'_>>,
        _: Again<'_>,
        out: &mut Outgoing,
    ) -> Result<(), StageError> {
        let (number, rest) = note.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let skip_before_ms = rest.first_chunk().map_or(0, |ms| u64::from_le_bytes(*ms));
        self.pin(u64::from_le_bytes(*number))?;
        for Arrival { input, offset, time_ms, payload } in arrivals {
            if payload == TICK {
                continue;
            }
            let wrong = |problem: String| StageError::Record { input, offset, problem };
            let impression = Impression::decode(payload);
            let impression = impression.ok_or_else(|| wrong("it is no impression".to_owned()))?;
            if self.is_wanted(impression.id, time_ms, skip_before_ms) {
                self.gather(&impression, time_ms).map_err(wrong)?;
                if self.waiting.len() == BATCH_SAMPLES {
                    self.speak(out)?;
                }
            }
        }
        self.speak(out)
    }

    fn save(&self, out: &mut Vec<u8>) {
        let AugmentCounts { words, repeated, too_old, versions, unreadable } = self.counts;
        let mut word = |value: u64| out.extend_from_slice(&value.to_le_bytes());
        [words, repeated, too_old, versions, unreadable].into_iter().for_each(&mut word);
        for (time_ms, id) in &self.forgetting {
            word(*time_ms);
            word(*id);
        }
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        let (words, rest) = state.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let (&[words, repeated, too_old, versions], ids) =
            words.split_first_chunk::<4>().ok_or("it is cut short")?;
        // Earlier programs ended at the first that could not be read; after their counts there are pairs alone.
        let (unreadable, ids) = if ids.len() % 2 == 1 { (ids[0], &ids[1..]) } else { (0, ids) };
        if !rest.is_empty() {
            return Err("it is cut short".to_owned());
        }
        let ids = ids.as_chunks::<2>().0;
        self.counts = AugmentCounts { words, repeated, too_old, versions, unreadable };
        self.forgetting = ids.iter().map(|[time_ms, id]| (*time_ms, *id)).collect();
        self.seen = ids.iter().map(|[_, id]| *id).collect();
        Ok(())
    }
}

/// Writes values as halves over whatever is there.
fn as_halves(values: &[f32], out: &mut Vec<u8>) {
    out.clear();
    out.extend(values.iter().flat_map(|value| f16_nearest(*value).to_le_bytes()));
}

/// How many impressions wait for the teacher.
///
/// # Errors
/// When the log fails.
pub fn waiting(log: &dyn Log, group: &str) -> Result<Offset, LogError> {
    let end = log.range(IMPRESSIONS, 0)?.end;
    Ok(end.saturating_sub(log.committed(group, IMPRESSIONS, 0)?))
}
