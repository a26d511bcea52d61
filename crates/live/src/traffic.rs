//! A synthetic world as traffic: impressions, and the clicks and conversions that follow, in the order of their time.
//!
//! What is written follows from the world alone, chunk by chunk: first the impressions of a chunk, then all feedback that
//! happens before its end. So a producer that was killed makes the same chunks again and writes what is missing; the
//! lengths of the two topics say what is there.

use std::{cmp::Reverse, collections::BinaryHeap};

use campanile_data::world::World;
use campanile_spec::{
    Batch,
    data::Split,
    world::{View, WorldError, WorldSpec},
};
use campanile_stream::{
    log::{Log, LogError, Record},
    records::{Feedback, Impression, Schema, TICK, declare},
    topics::{FEEDBACK, IMPRESSIONS},
};
use thiserror::Error;

/// Impressions of a chunk.
pub const CHUNK: u64 = 256;

/// The world's traffic, and how much of it was made.
pub struct Traffic {
    world: World,
    schema: Schema,
    /// Impressions made.
    made: u64,
    /// Feedback that was made and lies before the end of the last chunk.
    feedback_made: u64,
    /// Feedback that is still to come: time, impression, task.
    coming: BinaryHeap<Reverse<(u64, u64, u16)>>,
    batch: Batch,
    rows: Vec<Vec<u8>>,
    /// Impressions and feedback in the log when it was first looked at; nobody else writes them.
    found: Option<(u64, u64)>,
}

/// Somebody who answers for impressions before they are logged, and may add cells to their rows.
pub trait Answers {
    /// Names of the cells that are added to every row.
    fn names(&self) -> Vec<String>;

    /// Answers for some impressions, whose rows have the traffic's own columns.
    ///
    /// # Errors
    /// Words on what is wrong.
    fn answer(&mut self, columns: &[String], rows: &mut [Vec<u8>]) -> Result<(), String>;
}

/// Nobody answers; impressions are logged as they are.
pub struct Nobody;

impl Answers for Nobody {
    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    fn answer(&mut self, _: &[String], _: &mut [Vec<u8>]) -> Result<(), String> {
        Ok(())
    }
}

/// Why traffic stopped.
#[derive(Debug, Error)]
pub enum TrafficError {
    /// The log failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Whoever answers could not.
    #[error("a request could not be answered: {0}")]
    Answer(String),
}

impl Traffic {
    /// The traffic of a world, as a teacher sees it, from its first impression on.
    ///
    /// # Errors
    /// When the world cannot be.
    pub fn new(spec: &WorldSpec, seed: u64, answers: &dyn Answers) -> Result<Traffic, WorldError> {
        let world = World::new(spec, seed)?.seen_by(View::Teacher);
        let schema = Schema::new(world.logged_names().into_iter().chain(answers.names()));
        Ok(Traffic {
            world,
            schema,
            made: 0,
            feedback_made: 0,
            coming: BinaryHeap::new(),
            batch: Batch::default(),
            rows: Vec::new(),
            found: None,
        })
    }

    /// The tasks, in the order in which feedback numbers them.
    pub fn tasks(&self) -> Vec<&'static str> {
        self.world.spec().label_names()
    }

    /// Impressions made so far.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// The time of the next impression.
    pub fn now_ms(&self) -> u64 {
        (self.made as f64 * 1000.0 / self.world.spec().samples_per_second) as u64
    }

    /// Makes the next chunk and writes what is not in the log yet; false at the end of the world.
    ///
    /// # Errors
    /// When the log fails, or the answers do.
    pub fn chunk(&mut self, log: &dyn Log, answers: &mut dyn Answers) -> Result<bool, TrafficError> {
        let samples = self.world.sample_count(Split::Train);
        let end = samples.min(self.made + CHUNK);
        if self.made == end {
            return Ok(false);
        }
        if self.made == 0 {
            declare(log, IMPRESSIONS, 0, &self.schema)?;
        }
        let events = self.world.events(Split::Train, self.made..end);
        for event in events.iter().filter(|event| event.click) {
            let click_ms = (event.time_ms + event.click_delay_ms) as u64;
            self.coming.push(Reverse((click_ms, event.example_id, 0)));
            if event.conversion {
                let at_ms = click_ms + event.conversion_delay_ms as u64;
                self.coming.push(Reverse((at_ms, event.example_id, 1)));
            }
        }
        let (there, _) = self.found(log)?;
        if there < end {
            self.show(log, self.made.max(there)..end, answers)?;
        }
        self.made = end;
        self.follow(log)?;
        Ok(true)
    }

    /// What was in the log at first.
    fn found(&mut self, log: &dyn Log) -> Result<(u64, u64), LogError> {
        let found = match self.found {
            Some(found) => found,
            None => (log.range(IMPRESSIONS, 0)?.end, log.range(FEEDBACK, 0)?.end),
        };
        self.found = Some(found);
        Ok(found)
    }

    /// Writes impressions.
    fn show(
        &mut self,
        log: &dyn Log,
        shown: std::ops::Range<u64>,
        answers: &mut dyn Answers,
    ) -> Result<(), TrafficError> {
        self.world.read(Split::Train, 0, shown.clone(), &mut self.batch);
        self.rows.resize_with(self.batch.sample_count, Vec::new);
        for (sample, row) in self.rows.iter_mut().enumerate() {
            row.clear();
            self.world.log_row(&self.batch, sample, row);
        }
        let own = self.world.logged_names().len();
        answers.answer(&self.schema.names()[..own], &mut self.rows).map_err(TrafficError::Answer)?;
        let mut payloads = Vec::with_capacity(self.rows.len());
        for (id, row) in shown.zip(&self.rows) {
            let features = [&self.schema.number().to_le_bytes()[..], row].concat();
            let mut payload = Vec::with_capacity(features.len() + 9);
            Impression { id, features: &features }.encode(&mut payload);
            payloads.push(payload);
        }
        let times = self.batch.times.iter().map(|time_ms| *time_ms as u64);
        append(log, IMPRESSIONS, times.zip(&payloads))
    }

    /// Writes the feedback that happens before the next impression.
    fn follow(&mut self, log: &dyn Log) -> Result<(), TrafficError> {
        let now_ms = self.now_ms();
        let (_, there) = self.found(log)?;
        let (mut times, mut payloads) = (Vec::new(), Vec::new());
        while let Some(Reverse((at_ms, id, task))) = self.coming.peek().copied() {
            if at_ms >= now_ms {
                break;
            }
            self.coming.pop();
            self.feedback_made += 1;
            if self.feedback_made > there {
                let mut payload = Vec::new();
                Feedback { id, task }.encode(&mut payload);
                times.push(at_ms);
                payloads.push(payload);
            }
        }
        append(log, FEEDBACK, times.into_iter().zip(&payloads))
    }

    /// After the last chunk: writes all feedback that is still to come, and that time has passed by `after_ms` since, so
    /// that every window closes.
    ///
    /// # Errors
    /// When the log fails.
    pub fn finish(&mut self, log: &dyn Log, after_ms: u64) -> Result<(), TrafficError> {
        let (_, there) = self.found(log)?;
        let last_ms = self.coming.iter().map(|Reverse((at_ms, ..))| *at_ms).max().unwrap_or(0);
        let (mut times, mut payloads) = (Vec::new(), Vec::new());
        while let Some(Reverse((at_ms, id, task))) = self.coming.pop() {
            self.feedback_made += 1;
            if self.feedback_made > there {
                let mut payload = Vec::new();
                Feedback { id, task }.encode(&mut payload);
                times.push(at_ms);
                payloads.push(payload);
            }
        }
        if there <= self.feedback_made {
            times.push(last_ms.max(self.now_ms()) + after_ms);
            payloads.push(TICK.to_vec());
        }
        append(log, FEEDBACK, times.into_iter().zip(&payloads))
    }
}

fn append<'a>(
    log: &dyn Log,
    topic: &str,
    records: impl Iterator<Item = (u64, &'a Vec<u8>)>,
) -> Result<(), TrafficError> {
    let records: Vec<Record<'_>> = records.map(|(time_ms, payload)| Record { time_ms, payload }).collect();
    if !records.is_empty() {
        log.append(topic, 0, &records)?;
    }
    Ok(())
}
