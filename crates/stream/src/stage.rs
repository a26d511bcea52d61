//! A stage that reads topics and writes topics, exactly once, however often it is killed.
//!
//! A stage is a deterministic machine: records go in one by one, records come out, and its state can be saved. The
//! [`Runner`] feeds it in turns and keeps three things in the log beside the stage's output:
//!
//! ```text
//!   <name>.journal   record n: what turn n reads, how many records of each input, and the stage's note on the turn,
//!                    written before the turn runs
//!   <name>.state     now and then: the stage's state after a turn, its cursors, and how much it had written; what was
//!                    saved before, and turns of the journal before it, are then removed
//!   cursors          of the group <name>, for others to see how far it is
//! ```
//!
//! After a crash the newest state is restored and the journal's later turns run again on the same records. They give
//! the same output, of which the part that is already in the output topics is skipped. So every input record is done
//! once and every output record is written once, without a transaction over several topics.
//!
//! A power cut takes what was not synced. So the journal is synced before a turn writes, outputs are synced before a state
//! is written that counts them, and a state is synced before what it replaces is removed. Journal and state also have a checksum
//! of the last record that was read of each input: a log that is another, or lost records that were read, is noticed.
//!
//! Invariant: nobody else writes to a stage's output topics, for their length says what was written.

mod saved;

use std::sync::Arc;

use thiserror::Error;

use crate::log::{Cursor, CursorError, Limit, Log, LogError, Offset, Record, Records, TopicOptions};

/// Segments of a stage's own topics.
const OWN_SEGMENT_BYTES: u64 = 4 << 20;
/// Stands before a state, and a turn of the journal, that has checksums of what was read.
const WITH_SUMS: u64 = u64::MAX;
/// Stands before a state that has the identities of its inputs as well.
const WITH_IDENTITIES: u64 = u64::MAX - 1;

/// A record that a stage is given.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// Which of the stage's inputs it comes from.
    pub input: usize,
    /// Its number there.
    pub offset: Offset,
    /// When it happened.
    pub time_ms: u64,
    /// What happened.
    pub payload: &'a [u8],
}

/// What a stage writes in a turn.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// By output: payloads one behind the other, with their times and ends.
    bytes: Vec<Vec<u8>>,
    entries: Vec<Vec<(u64, usize)>>,
}

impl Outgoing {
    pub(crate) fn for_outputs(&mut self, count: usize) {
        self.bytes.resize_with(count, Vec::new);
        self.entries.resize_with(count, Vec::new);
        self.bytes.iter_mut().for_each(Vec::clear);
        self.entries.iter_mut().for_each(Vec::clear);
    }

    /// Writes a record to an output; `fill` appends its payload.
    ///
    /// # Panics
    /// If there is no such output.
    pub fn write(&mut self, output: usize, time_ms: u64, fill: impl FnOnce(&mut Vec<u8>)) {
        fill(&mut self.bytes[output]);
        self.entries[output].push((time_ms, self.bytes[output].len()));
    }

    /// The records of an output, in order.
    pub fn of(&self, output: usize) -> impl Iterator<Item = Record<'_>> {
        let mut start = 0;
        self.entries[output].iter().map(move |&(time_ms, end)| {
            let payload = &self.bytes[output][start..end];
            start = end;
            Record { time_ms, payload }
        })
    }
}

/// Reads a record of an input again, by its number.
pub type Again<'a> = &'a dyn Fn(usize, Offset, &mut Records) -> Result<(), LogError>;

/// A deterministic machine: what it writes depends on what it was given and on nothing else.
pub trait Stage {
    /// What a new turn needs to know of the world beside its records, such as which version of a model to use. It is
    /// kept in the journal, so a turn that a crash interrupts runs again with the same note.
    ///
    /// # Errors
    /// Words on what is missing.
    fn note(&mut self) -> Result<Vec<u8>, StageError> {
        Ok(Vec::new())
    }

    /// Whether the state is to be saved before a turn with this note is begun, so that no turn before it has to run again.
    fn saves_before(&self, note: &[u8]) -> bool {
        let _ = note;
        false
    }

    /// Takes the records of one turn, in the order of their time, and its note.
    ///
    /// # Errors
    /// Words on what is wrong, with the input and the number of the record; the turn is then tried again.
    fn turn(
        &mut self,
        note: &[u8],
        arrivals: &mut dyn Iterator<Item = Arrival<'_>>,
        again: Again<'_>,
        out: &mut Outgoing,
    ) -> Result<(), StageError>;

    /// Appends the state, so that [`Stage::restore`] brings it back.
    fn save(&self, out: &mut Vec<u8>);

    /// Brings a state back.
    ///
    /// # Errors
    /// Words on what does not fit.
    fn restore(&mut self, state: &[u8]) -> Result<(), String>;
}

/// Why a stage could not go on.
#[derive(Debug, Error)]
pub enum StageError {
    /// The log failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A record that the stage cannot read.
    #[error("input {input}, record {offset}: {problem}")]
    Record {
        /// Which input.
        input: usize,
        /// Which record.
        offset: Offset,
        /// What is wrong.
        problem: String,
    },
    /// Something that the stage needs beside the log is not there.
    #[error("{0}")]
    World(String),
    /// What was saved does not fit.
    #[error(
        "the state of stage `{stage}` cannot be restored: {problem}; remove its topics `{stage}.state` and `{stage}.journal` and its output to begin anew"
    )]
    State {
        /// The stage.
        stage: String,
        /// What is wrong.
        problem: String,
    },
}

/// A topic's partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: u32,
}

/// How a stage is run.
#[derive(Debug, Clone)]
pub struct Wiring {
    /// The stage's name: of its group and of its own topics.
    pub name: String,
    /// Where it reads.
    pub inputs: Vec<Place>,
    /// Where it writes; nobody else does.
    pub outputs: Vec<Place>,
    /// The most of each input that one turn reads.
    pub limit: Limit,
    /// Turns between two saved states.
    pub save_every: u64,
}

/// Runs a stage.
pub struct Runner<S> {
    log: Arc<dyn Log>,
    wiring: Wiring,
    stage: S,
    /// Turns done.
    turns: u64,
    /// How many records of each input are done.
    cursors: Vec<Offset>,
    /// Records written to each output.
    written: Vec<Offset>,
    /// By input: a checksum of the last record that was done; 0 before the first, and where none was noted.
    sums: Vec<u64>,
    /// By input: the identity of its topic; 0 where there is none.
    identities: Vec<u64>,
    read: Vec<Records>,
    outgoing: Outgoing,
    /// Bytes read since a state was saved, and bytes of that state.
    since_save: u64,
    saved_bytes: u64,
    /// Turns that the saved state knows of.
    saved_turns: u64,
}

impl<S: Stage> Runner<S> {
    /// Restores a stage to where it was, and finishes a turn that a crash interrupted.
    ///
    /// # Errors
    /// When the log fails, or what was saved does not fit.
    pub fn open(log: Arc<dyn Log>, wiring: Wiring, stage: S) -> Result<Runner<S>, StageError> {
        for own in ["journal", "state"] {
            // Small segments, for whole ones are what trimming removes.
            let options = TopicOptions { segment_bytes: OWN_SEGMENT_BYTES, ..TopicOptions::default() };
            log.create(&format!("{}.{own}", wiring.name), options)?;
        }
        let (inputs, outputs) = (wiring.inputs.len(), wiring.outputs.len());
        let mut runner = Runner {
            log,
            stage,
            turns: 0,
            cursors: vec![0; inputs],
            written: vec![0; outputs],
            sums: vec![0; inputs],
            identities: vec![0; inputs],
            since_save: 0,
            saved_bytes: 0,
            saved_turns: 0,
            read: vec![Records::default(); inputs],
            outgoing: Outgoing::default(),
            wiring,
        };
        runner.write_again()?;
        runner.restore()?;
        runner.check_cursors()?;
        let journal = format!("{}.journal", runner.wiring.name);
        let mut entries = Records::default();
        while runner.turns < runner.log.range(&journal, 0)?.end {
            let limit = Limit { records: 1, bytes: 1 };
            runner.log.read(&journal, 0, runner.turns, limit, &mut entries)?;
            let entry = entries.iter().next().map(|entry| entry.payload.to_vec()).unwrap_or_default();
            let (counts, sums, note) = entry_parts(&entry, inputs)
                .ok_or_else(|| runner.problem("the journal has another number of inputs".to_owned()))?;
            runner.read_exactly(&counts, &sums)?;
            runner.run_turn(note)?;
        }
        for (place, written) in runner.wiring.outputs.iter().zip(&runner.written) {
            let end = runner.log.range(&place.topic, place.partition)?.end;
            if end > *written {
                return Err(runner.problem(format!(
                    "topic `{}` has {end} records, and its turns have written {written}: turns are missing in its journal, or somebody else writes there",
                    place.topic
                )));
            }
        }
        Ok(runner)
    }

    /// What an earlier process of this stage had not synced, or had failed to, is read as if it were on disk; so it is written again
    /// and synced before anything is built on it. A writer does so when it is opened.
    fn write_again(&self) -> Result<(), StageError> {
        let own = ["journal", "state"].map(|own| format!("{}.{own}", self.wiring.name));
        let outputs = self.wiring.outputs.iter().map(|place| (&place.topic, place.partition));
        for (topic, partition) in outputs.chain(own.iter().map(|topic| (topic, 0))) {
            self.log.append(topic, partition, &[])?;
            self.log.sync_topic(topic, partition)?;
        }
        Ok(())
    }

    /// What was saved must not be ahead of the log: then the log lost records, or is another one.
    fn check_cursors(&mut self) -> Result<(), StageError> {
        for (input, place) in self.wiring.inputs.iter().enumerate() {
            let (next, identity, sum) = (self.cursors[input], self.identities[input], self.sums[input]);
            let checked = Cursor { next, identity, sum }.check(&*self.log, &place.topic, place.partition);
            checked.map_err(|error| self.cursor_problem(error))?;
            self.identities[input] = self.log.identity(&place.topic)?;
        }
        let journal = Place { topic: format!("{}.journal", self.wiring.name), partition: 0 };
        let outputs = self.wiring.outputs.iter().zip(&self.written);
        for (place, &next) in outputs.chain([(&journal, &self.turns)]) {
            let checked =
                Cursor { next, ..Cursor::default() }.check(&*self.log, &place.topic, place.partition);
            checked.map_err(|error| self.cursor_problem(error))?;
        }
        Ok(())
    }

    fn cursor_problem(&self, error: CursorError) -> StageError {
        match error {
            CursorError::Log(error) => StageError::Log(error),
            other => self.problem(other.to_string()),
        }
    }

    /// The stage.
    pub fn stage(&self) -> &S {
        &self.stage
    }

    /// Whether the state is saved as it is: then no turn that was done runs again, and what they read may go.
    pub fn is_saved(&self) -> bool {
        self.saved_turns == self.turns
    }

    /// The stage, when nothing more is to run.
    pub fn into_stage(self) -> S {
        self.stage
    }

    /// How many records of each input are done.
    pub fn cursors(&self) -> &[Offset] {
        &self.cursors
    }

    /// One turn: reads what there is, up to the limit, and runs the stage on it. False when there was nothing.
    ///
    /// # Errors
    /// When the log fails, or the stage cannot read a record. The runner must then be opened anew.
    pub fn turn(&mut self) -> Result<bool, StageError> {
        for ((place, cursor), out) in self.wiring.inputs.iter().zip(&self.cursors).zip(&mut self.read) {
            self.log.read(&place.topic, place.partition, *cursor, self.wiring.limit, out)?;
        }
        if self.read.iter().all(Records::is_empty) {
            return Ok(false);
        }
        self.keep_in_step();
        let note = self.stage.note()?;
        if self.stage.saves_before(&note) {
            self.save()?;
        }
        let counts = self.read.iter().map(|read| read.len() as u64);
        let sums = self.read.iter().map(|read| read.last().map_or(0, |record| record.sum()));
        let numbers = std::iter::once(WITH_SUMS).chain(counts).chain(sums);
        let mut entry: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
        entry.extend_from_slice(&note);
        // What a turn has read must not be lost afterwards, and its writer may not have synced it yet.
        for (place, _) in self.wiring.inputs.iter().zip(&self.read).filter(|(_, read)| !read.is_empty()) {
            self.log.sync_topic(&place.topic, place.partition)?;
        }
        let journal = format!("{}.journal", self.wiring.name);
        self.log.append(&journal, 0, &[Record { time_ms: 0, payload: &entry }])?;
        // Output must not be on disk before it.
        self.log.sync_topic(&journal, 0)?;
        self.run_turn(&note)?;
        // A large state is not written again for a few records.
        let is_worth_it = self.since_save >= self.saved_bytes;
        if self.turns.is_multiple_of(self.wiring.save_every.max(1)) && is_worth_it {
            self.save()?;
        }
        Ok(true)
    }

    /// Of inputs that are read at different speeds in time, leaves for later what is newer than the newest records of
    /// the slowest one that has more to come: a dense input must not fall behind a thin one. A single record of a wrong time
    /// neither says how far an input is nor holds back what follows it.
    fn keep_in_step(&mut self) {
        let limit = self.wiring.limit;
        let has_more = |read: &&Records| {
            read.len() >= limit.records || !read.is_empty() && read.payload_bytes() >= limit.bytes
        };
        let reached = |read: &Records| {
            let mut times: Vec<u64> = read.iter().map(|record| record.time_ms).collect();
            let place = times.len().saturating_sub(1) * 7 / 8;
            (!times.is_empty()).then(|| *times.select_nth_unstable(place).1)
        };
        let more = self.read.iter().enumerate().filter(|(_, read)| has_more(read));
        let slowest = more.filter_map(|(input, read)| Some((reached(read)?, input))).min();
        let Some((until_ms, slowest)) = slowest else { return };
        for (_, read) in self.read.iter_mut().enumerate().filter(|(input, _)| *input != slowest) {
            let last = read.iter().rposition(|record| record.time_ms <= until_ms);
            read.truncate(last.map_or(0, |last| last + 1));
        }
    }

    /// Runs the stage on what was read, writes what is not written yet, and moves on.
    fn run_turn(&mut self, note: &[u8]) -> Result<(), StageError> {
        self.outgoing.for_outputs(self.wiring.outputs.len());
        let (log, inputs) = (&self.log, &self.wiring.inputs);
        let again = |input: usize, offset: Offset, out: &mut Records| {
            let place: &Place = &inputs[input];
            log.read(&place.topic, place.partition, offset, Limit { records: 1, bytes: 1 }, out)
        };
        self.stage.turn(note, &mut by_time(&self.read), &again, &mut self.outgoing)?;
        for (output, place) in self.wiring.outputs.iter().enumerate() {
            let there = self.log.range(&place.topic, place.partition)?.end;
            let skip = there.saturating_sub(self.written[output]) as usize;
            let records: Vec<Record<'_>> = self.outgoing.of(output).collect();
            if skip < records.len() {
                self.log.append(&place.topic, place.partition, &records[skip..])?;
            }
            self.written[output] += records.len() as u64;
        }
        self.turns += 1;
        for (sum, read) in self.sums.iter_mut().zip(&self.read) {
            *sum = read.last().map_or(*sum, |record| record.sum());
        }
        for ((place, cursor), read) in self.wiring.inputs.iter().zip(&mut self.cursors).zip(&self.read) {
            *cursor += read.len() as u64;
            self.since_save += read.payload_bytes() as u64;
            if !read.is_empty() {
                self.log.commit(&self.wiring.name, &place.topic, place.partition, *cursor)?;
            }
        }
        Ok(())
    }

    /// Reads the records of a turn that the journal tells of.
    fn read_exactly(&mut self, counts: &[u64], sums: &[u64]) -> Result<(), StageError> {
        for (input, &count) in counts.iter().enumerate() {
            let place = &self.wiring.inputs[input];
            let limit = Limit { records: count as usize, bytes: usize::MAX };
            if count == 0 {
                self.read[input] = Records::default();
                continue;
            }
            self.log.read(
                &place.topic,
                place.partition,
                self.cursors[input],
                limit,
                &mut self.read[input],
            )?;
            let found = self.read[input].len() as u64;
            let words = format!(
                "topic `{}` has {found} of the {count} records of turn {}: the others, from record {} on, are lost",
                place.topic,
                self.turns,
                self.cursors[input] + found
            );
            self.check(found == count, &words)?;
            let sum = self.read[input].last().map_or(0, |record| record.sum());
            if sums[input] != 0 && sums[input] != sum {
                let (topic, offset) = (place.topic.clone(), self.cursors[input] + count - 1);
                return Err(self.problem(CursorError::OtherRecord { topic, offset }.to_string()));
            }
        }
        Ok(())
    }

    /// Saves the state after a turn.
    ///
    /// # Errors
    /// When the log fails.
    pub fn save(&mut self) -> Result<(), StageError> {
        // A state counts what was written, so that must be on disk first.
        for place in &self.wiring.outputs {
            self.log.sync_topic(&place.topic, place.partition)?;
        }
        let mut bytes = Vec::new();
        let head = [WITH_IDENTITIES, self.turns];
        let numbers = head.iter().chain(&self.cursors).chain(&self.written).chain(&self.sums);
        let numbers = numbers.chain(&self.identities);
        numbers.for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
        self.stage.save(&mut bytes);
        saved::write(&*self.log, &format!("{}.state", self.wiring.name), &bytes)?;
        (self.since_save, self.saved_bytes, self.saved_turns) = (0, bytes.len() as u64, self.turns);
        // Turns before a saved state are never run again.
        self.log.trim(&format!("{}.journal", self.wiring.name), 0, self.turns)?;
        Ok(())
    }

    fn restore(&mut self) -> Result<(), StageError> {
        let saved = saved::read(&*self.log, &format!("{}.state", self.wiring.name))?;
        let saved =
            saved.map_err(|problem| StageError::State { stage: self.wiring.name.clone(), problem })?;
        let Some(saved) = saved else { return Ok(()) };
        self.saved_bytes = saved.len() as u64;
        let (inputs, outputs) = (self.cursors.len(), self.written.len());
        // Earlier programs wrote no identities, and before that no checksums.
        let begins = |with: u64| saved.strip_prefix(&with.to_le_bytes());
        let (more, saved) = match (begins(WITH_IDENTITIES), begins(WITH_SUMS)) {
            (Some(saved), _) => (2 * inputs, saved),
            (None, Some(saved)) => (inputs, saved),
            (None, None) => (0, &saved[..]),
        };
        let count = 1 + inputs + outputs + more;
        self.check(saved.len() >= count * 8, "it is cut short")?;
        let (head, state) = saved.split_at(count * 8);
        let head = numbers(head);
        (self.turns, self.saved_turns) = (head[0], head[0]);
        self.cursors.copy_from_slice(&head[1..=inputs]);
        self.written.copy_from_slice(&head[1 + inputs..][..outputs]);
        let mut more = head[1 + inputs + outputs..].chunks_exact(inputs.max(1));
        more.next().iter().for_each(|sums| self.sums.copy_from_slice(sums));
        more.next().iter().for_each(|identities| self.identities.copy_from_slice(identities));
        let restored = self.stage.restore(state);
        restored.map_err(|problem| StageError::State { stage: self.wiring.name.clone(), problem })
    }

    fn check(&self, fits: bool, problem: &str) -> Result<(), StageError> {
        if fits { Ok(()) } else { Err(self.problem(problem.to_owned())) }
    }

    fn problem(&self, problem: String) -> StageError {
        StageError::State { stage: self.wiring.name.clone(), problem }
    }
}

/// A turn in the journal: records of each input, their checksums, and the stage's note.
fn entry_parts(entry: &[u8], inputs: usize) -> Option<(Vec<u64>, Vec<u64>, &[u8])> {
    // Turns from before there were checksums begin with a count.
    let (sums, entry) = match entry.strip_prefix(&WITH_SUMS.to_le_bytes()) {
        Some(entry) => (inputs, entry),
        None => (0, entry),
    };
    let (head, note) = entry.split_at_checked((inputs + sums) * 8)?;
    let mut counts = numbers(head);
    let mut sums = counts.split_off(inputs);
    sums.resize(inputs, 0);
    Some((counts, sums, note))
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|number| u64::from_le_bytes(std::array::from_fn(|at| number[at]))).collect()
}

/// The records of all inputs, by time, then by input, then by number.
fn by_time(read: &[Records]) -> impl Iterator<Item = Arrival<'_>> {
    let arrivals = read.iter().enumerate().flat_map(|(input, records)| {
        records.iter().map(move |record| Arrival {
            input,
            offset: record.offset,
            time_ms: record.time_ms,
            payload: record.payload,
        })
    });
    let mut arrivals: Vec<Arrival<'_>> = arrivals.collect();
    arrivals.sort_by_key(|arrival| (arrival.time_ms, arrival.input, arrival.offset));
    arrivals.into_iter()
}
