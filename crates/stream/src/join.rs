//! The joiner: impressions and what followed them become labelled examples, one for each impression.
//!
//! ```text
//!   impression ──────────────┬──── window of `click` ────┤
//!                            ├──────────── window of `buy` ──────────────┤  closes: one example with all labels
//!   click ───────────────────────► 1                                     │
//!   buy ─────────────────────────────────────► 1                         │      buy ─► too late: a correction
//! ```
//!
//! Time is what the records say, never a clock: the newest time seen, less the disorder that is allowed, is *now*. An
//! impression closes when now has passed its longest window. Impressions and feedback may come in any order, late and
//! repeated. Feedback that comes first waits for its impression. Feedback outside its window, or for a closed impression,
//! becomes a correction. With `repeat_late` the example also comes once more behind the others, with that label alone, for
//! those who train on late labels: one order for all, and one cursor.
//! What a teacher says of an impression goes into its example if it comes in time, and is dropped if not.
//! A closed impression is remembered for a while; one that comes again within it is a repetition and dropped.
//!
//! Memory holds some fifty bytes for an open impression, and its features up to a limit; features above it stay in the
//! log and are read again when the impression closes. So many impressions may be open at most; a record above that ends the
//! stage, and nothing is lost. Of those that are remembered the oldest are forgotten.
//!
//! A record whose time is too far ahead of the others moves no time: it is set aside (`ahead`).

mod ahead;
mod state;

use std::collections::{BTreeSet, HashMap};

use ahead::Ahead;
use state::{Closed, Early, Open};

use crate::{
    log::{LogError, Offset, Records},
    records::{Correction, Example, Feedback, Impression, TICK, Word},
    stage::{Again, Arrival, Outgoing, Stage, StageError},
};

/// Place of the examples among a joiner's outputs.
pub const EXAMPLES: usize = 0;
/// Place of the corrections among a joiner's outputs.
pub const CORRECTIONS: usize = 1;

/// How impressions and feedback are joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinOptions {
    /// By task: how long after an impression feedback still counts. At most 32 tasks.
    pub windows_ms: Vec<u64>,
    /// By task: another one without which its label has no meaning, as a conversion is one of clicks; may be empty.
    pub given: Vec<Option<u16>>,
    /// How much later than others a record may come without being late.
    pub disorder_ms: u64,
    /// How long closed impressions, and feedback without an impression, are remembered.
    pub remember_ms: u64,
    /// Bytes of features that are kept in memory.
    pub features_bytes_max: usize,
    /// How far ahead of all others the time of a record may be; further ahead it is set aside.
    pub jump_ms: u64,
    /// Impressions that may be open at once, and as many may be remembered.
    pub impressions_max: usize,
    /// Whether an example comes once more when a label of it comes late.
    pub repeat_late: bool,
    /// How many of the inputs bring impressions, the first ones.
    pub impression_inputs: usize,
    /// How many of the inputs bring a teacher's words, the next ones; the others bring feedback.
    pub word_inputs: usize,
}

/// What a joiner has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JoinCounts {
    /// Impressions taken.
    pub impressions: u64,
    /// Impressions that came again.
    pub repeated: u64,
    /// Feedback taken.
    pub feedback: u64,
    /// Feedback whose impression never came.
    pub orphans: u64,
    /// Examples written.
    pub examples: u64,
    /// Corrections written.
    pub corrections: u64,
    /// Examples written with a teacher's word.
    pub with_word: u64,
    /// Words that came after their example was written, or a second time.
    pub words_dropped: u64,
    /// Records whose time was too far ahead, and that are not lost: they wait, or were taken later.
    pub set_aside: u64,
    /// Records whose time was too far ahead, and that are lost: too many waited, or retention had removed them.
    pub lost_ahead: u64,
    /// Impressions, and feedback without one, that were forgotten before their time, for too many were remembered.
    pub forgotten: u64,
}

/// A joiner.
#[derive(Debug)]
pub struct Joiner {
    options: JoinOptions,
    now_ms: u64,
    open: HashMap<u64, Open>,
    /// Open impressions by when they close.
    closing: BTreeSet<(u64, u64)>,
    early: HashMap<u64, Early>,
    closed: HashMap<u64, Closed>,
    /// What is forgotten when: closed impressions and early feedback.
    forgetting: BTreeSet<(u64, u64)>,
    /// Features of some open impressions.
    features: HashMap<u64, Vec<u8>>,
    features_bytes: usize,
    /// Words on some open impressions.
    words: HashMap<u64, Vec<u8>>,
    ahead: Ahead,
    counts: JoinCounts,
    again: Records,
}

impl Joiner {
    /// A joiner that has seen nothing.
    ///
    /// # Panics
    /// Without a task, or with more than 32.
    pub fn new(options: JoinOptions) -> Joiner {
        assert!((1..=32).contains(&options.windows_ms.len()), "{} tasks", options.windows_ms.len());
        Joiner {
            options,
            now_ms: 0,
            open: HashMap::new(),
            closing: BTreeSet::new(),
            early: HashMap::new(),
            closed: HashMap::new(),
            forgetting: BTreeSet::new(),
            features: HashMap::new(),
            features_bytes: 0,
            words: HashMap::new(),
            ahead: Ahead::default(),
            counts: JoinCounts::default(),
            again: Records::default(),
        }
    }

    /// What it has seen.
    pub fn counts(&self) -> JoinCounts {
        self.counts
    }

    /// Impressions that are open now.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Feedback that waits for its impression.
    pub fn early_count(&self) -> usize {
        self.early.values().map(|early| early.feedback.len()).sum()
    }

    /// Records that wait because their time is too far ahead.
    pub fn ahead_count(&self) -> usize {
        self.ahead.len()
    }

    /// How far time has come: windows that end before it are closed.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Moves time on to a record, and takes it.
    fn take_in_time(
        &mut self,
        arrival: &Arrival<'_>,
        again: Again<'_>,
        out: &mut Outgoing,
    ) -> Result<(), StageError> {
        self.advance(arrival.time_ms, again, out)?;
        let &Arrival { input, offset, .. } = arrival;
        let late = self.take(arrival, out);
        match late.map_err(|problem| StageError::Record { input, offset, problem })? {
            Some(late) => self.repeat(late, again, out),
            None => Ok(()),
        }
    }

    /// Takes a record; says which example is to come once more.
    fn take(&mut self, arrival: &Arrival<'_>, out: &mut Outgoing) -> Result<Option<Late>, String> {
        let JoinOptions { impression_inputs, word_inputs, .. } = self.options;
        if arrival.payload == TICK {
            return Ok(None);
        }
        if arrival.input < impression_inputs {
            let impression = Impression::decode(arrival.payload).ok_or("it is no impression")?;
            self.impression(arrival, &impression)?;
        } else if arrival.input < impression_inputs + word_inputs {
            let word = Word::decode(arrival.payload).ok_or("it is no teacher's word")?;
            self.word(arrival, word.id);
        } else {
            let feedback = Feedback::decode(arrival.payload).ok_or("it is no feedback")?;
            if usize::from(feedback.task) >= self.options.windows_ms.len() {
                let tasks = self.options.windows_ms.len();
                return Err(format!("it is feedback of task {}, and there are {tasks}", feedback.task));
            }
            return Ok(self.feedback(arrival.time_ms, feedback, out));
        }
        Ok(None)
    }

    fn impression(&mut self, arrival: &Arrival<'_>, impression: &Impression<'_>) -> Result<(), String> {
        let (id, time_ms) = (impression.id, arrival.time_ms);
        if self.open.contains_key(&id) || self.closed.contains_key(&id) {
            self.counts.repeated += 1;
            return Ok(());
        }
        let max = self.options.impressions_max;
        if self.open.len() >= max {
            return Err(format!(
                "{max} impressions are open, and no more may be; allow more, which takes memory, or shorten the windows"
            ));
        }
        self.counts.impressions += 1;
        let longest = self.options.windows_ms.iter().max().copied().unwrap_or(0);
        let closes_ms = time_ms.saturating_add(longest);
        let input = arrival.input as u32;
        let mut open = Open { time_ms, closes_ms, input, offset: arrival.offset, labels: 0, late: 0 };
        if let Some(early) = self.early.remove(&id) {
            self.forgetting.remove(&(early.forget_ms, id));
            for (task, at_ms) in early.feedback {
                note(&mut open, task, self.is_in_window(time_ms, at_ms, task));
            }
            self.words.extend(early.word.map(|word| (id, word)));
        }
        self.closing.insert((closes_ms, id));
        self.open.insert(id, open);
        if self.features_bytes + impression.features.len() <= self.options.features_bytes_max {
            self.features_bytes += impression.features.len();
            self.features.insert(id, impression.features.to_vec());
        }
        Ok(())
    }

    /// Keeps the first word on an impression that is open or has not come yet.
    fn word(&mut self, arrival: &Arrival<'_>, id: u64) {
        let repeated = self.words.contains_key(&id) || self.closed.contains_key(&id);
        if repeated || self.early.get(&id).is_some_and(|early| early.word.is_some()) {
            self.counts.words_dropped += 1;
        } else if self.open.contains_key(&id) {
            self.words.insert(id, arrival.payload.to_vec());
        } else {
            self.early(id, arrival.time_ms).word = Some(arrival.payload.to_vec());
            self.forget_above_max();
        }
    }

    /// What waits for an impression, remembered from now on.
    fn early(&mut self, id: u64, at_ms: u64) -> &mut Early {
        let early = self.early.entry(id).or_default();
        self.forgetting.remove(&(early.forget_ms, id));
        early.forget_ms = at_ms.saturating_add(self.options.remember_ms);
        self.forgetting.insert((early.forget_ms, id));
        early
    }

    fn feedback(&mut self, at_ms: u64, feedback: Feedback, out: &mut Outgoing) -> Option<Late> {
        let Feedback { id, task } = feedback;
        self.counts.feedback += 1;
        if let Some(open) = self.open.get_mut(&id) {
            let in_window = at_ms.saturating_sub(open.time_ms) <= self.options.windows_ms[usize::from(task)];
            note(open, task, in_window);
        } else if let Some(closed) = self.closed.get_mut(&id) {
            // Said once per task: a repetition corrects nothing.
            if closed.labels & (1 << task) == 0 {
                closed.labels |= 1 << task;
                let in_window =
                    at_ms.saturating_sub(closed.time_ms) <= self.options.windows_ms[usize::from(task)];
                self.counts.corrections += 1;
                let correction = Correction { id, task, in_window };
                out.write(CORRECTIONS, at_ms, |bytes| correction.encode(bytes));
                return closed.place.map(|place| Late { id, task, time_ms: closed.time_ms, place });
            }
        } else {
            // The first of a task says all: if that is outside the window, so are the others.
            let early = self.early(id, at_ms);
            match early.feedback.iter_mut().find(|(of, _)| *of == task) {
                Some((_, first_ms)) => *first_ms = at_ms.min(*first_ms),
                None => early.feedback.push((task, at_ms)),
            }
            self.forget_above_max();
        }
        None
    }

    /// Writes an example once more, for a label that came late. Where the log no longer has its features, the correction
    /// alone stands.
    fn repeat(&mut self, late: Late, again: Again<'_>, out: &mut Outgoing) -> Result<(), StageError> {
        let Late { id, task, time_ms, place: (input, offset) } = late;
        let features = match read_again(input as usize, offset, again, &mut self.again) {
            Ok(features) => features,
            Err(StageError::Record { .. } | StageError::Log(LogError::Gone { .. })) => return Ok(()),
            Err(error) => return Err(error),
        };
        let tasks = self.options.windows_ms.len() as u16;
        write_late((id, task), tasks, (time_ms, features), out);
        Ok(())
    }

    fn is_in_window(&self, impression_ms: u64, at_ms: u64, task: u16) -> bool {
        at_ms.saturating_sub(impression_ms) <= self.options.windows_ms[usize::from(task)]
    }

    /// Moves time on: closes what is due and forgets what is old.
    fn advance(&mut self, time_ms: u64, again: Again<'_>, out: &mut Outgoing) -> Result<(), StageError> {
        let now_ms = time_ms.saturating_sub(self.options.disorder_ms);
        if now_ms <= self.now_ms {
            return Ok(());
        }
        self.now_ms = now_ms;
        while let Some(&(closes_ms, id)) = self.closing.first().filter(|(closes_ms, _)| *closes_ms < now_ms) {
            self.closing.pop_first();
            let Some(open) = self.open.remove(&id) else { continue };
            self.write_example(id, open, again, out)?;
            let forget_ms = closes_ms.saturating_add(self.options.remember_ms);
            let labels = open.labels | open.late;
            let place = self.options.repeat_late.then_some((open.input, open.offset));
            self.closed.insert(id, Closed { time_ms: open.time_ms, forget_ms, labels, place });
            self.forgetting.insert((forget_ms, id));
            self.forget_above_max();
        }
        while self.forgetting.first().is_some_and(|(forget_ms, _)| *forget_ms < now_ms) {
            self.forget_first();
        }
        Ok(())
    }

    fn forget_first(&mut self) {
        let Some((_, id)) = self.forgetting.pop_first() else { return };
        self.closed.remove(&id);
        if let Some(early) = self.early.remove(&id) {
            self.counts.orphans += early.feedback.len() as u64;
            self.counts.words_dropped += u64::from(early.word.is_some());
        }
    }

    fn forget_above_max(&mut self) {
        while self.forgetting.len() > self.options.impressions_max {
            self.forget_first();
            self.counts.forgotten += 1;
        }
    }

    fn write_example(
        &mut self,
        id: u64,
        open: Open,
        again: Again<'_>,
        out: &mut Outgoing,
    ) -> Result<(), StageError> {
        self.counts.examples += 1;
        let kept = self.features.remove(&id);
        let features: &[u8] = match &kept {
            Some(features) => {
                self.features_bytes -= features.len();
                features
            }
            None => read_again(open.input as usize, open.offset, again, &mut self.again)?,
        };
        let tasks = self.options.windows_ms.len() as u16;
        let has_meaning = |task: &u16| match self.options.given.get(usize::from(*task)) {
            Some(Some(given)) => open.labels & (1 << given) != 0,
            _ => true,
        };
        let known = (0..tasks).filter(has_meaning).fold(0, |bits, task| bits | 1 << task);
        let word = self.words.remove(&id);
        let word = word.as_deref().and_then(Word::decode);
        self.counts.with_word += u64::from(word.is_some());
        let example = Example { id, tasks, labels: open.labels, known, word, features };
        out.write(EXAMPLES, open.time_ms, |bytes| example.encode(bytes));
        for task in (0..tasks).filter(|task| open.late & !open.labels & (1 << task) != 0) {
            self.counts.corrections += 1;
            let correction = Correction { id, task, in_window: false };
            out.write(CORRECTIONS, open.closes_ms, |bytes| correction.encode(bytes));
            if self.options.repeat_late {
                write_late((id, task), tasks, (open.time_ms, features), out);
            }
        }
        Ok(())
    }
}

/// An example that is to come once more: for which label, and where its features are.
#[derive(Debug, Clone, Copy)]
struct Late {
    id: u64,
    task: u16,
    time_ms: u64,
    place: (u32, Offset),
}

/// Writes an example once more, with one label.
fn write_late((id, task): (u64, u16), tasks: u16, (time_ms, features): (u64, &[u8]), out: &mut Outgoing) {
    let example = Example { id, tasks, labels: 1 << task, known: 1 << task, word: None, features };
    out.write(EXAMPLES, time_ms, |bytes| example.encode_late(bytes));
}

/// Feedback for an open impression.
fn note(open: &mut Open, task: u16, in_window: bool) {
    let bits = if in_window { &mut open.labels } else { &mut open.late };
    *bits |= 1 << task;
}

/// The features of an impression that were left in the log.
fn read_again<'r>(
    input: usize,
    offset: Offset,
    again: Again<'_>,
    records: &'r mut Records,
) -> Result<&'r [u8], StageError> {
    again(input, offset, records)?;
    let found = records.iter().next().filter(|record| record.offset == offset);
    let impression = found.and_then(|record| Impression::decode(record.payload));
    impression.map(|impression| impression.features).ok_or_else(|| StageError::Record {
        input,
        offset,
        problem: "it was an impression, and cannot be read again".to_owned(),
    })
}

impl Stage for Joiner {
    fn turn(
        &mut self,
        _: &[u8],
        arrivals: &mut dyn Iterator<Item = Arrival<'_>>,
        again: Again<'_>,
        out: &mut Outgoing,
    ) -> Result<(), StageError> {
        for arrival in arrivals {
            if self.is_believed(&arrival) {
                self.take_in_time(&arrival, again, out)?;
            } else if self.ahead.is_full() {
                // Enough may agree already: nothing is given up before they were asked.
                self.take_set_aside(again, out)?;
            }
        }
        self.take_set_aside(again, out)
    }

    fn save(&self, out: &mut Vec<u8>) {
        state::save(self, out);
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), String> {
        state::restore(self, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A label that comes when retention has removed its features is a correction, and the joiner goes on.
    #[test]
    fn a_correction_stands_alone_when_its_features_are_gone() {
        let options = JoinOptions {
            windows_ms: vec![10],
            given: Vec::new(),
            disorder_ms: 0,
            remember_ms: 1000,
            features_bytes_max: 1000,
            repeat_late: true,
            jump_ms: 1000,
            impressions_max: 100,
            impression_inputs: 1,
            word_inputs: 0,
        };
        let mut joiner = Joiner::new(options);
        let (mut shown, mut clicked) = (Vec::new(), Vec::new());
        Impression { id: 7, features: b"row" }.encode(&mut shown);
        Feedback { id: 7, task: 0 }.encode(&mut clicked);
        let arrival = |input, time_ms, payload| Arrival { input, offset: 0, time_ms, payload };
        let mut arrivals =
            [arrival(0, 1, &shown[..]), arrival(1, 50, TICK), arrival(1, 60, &clicked[..])].into_iter();
        let gone = |_, offset, _: &mut Records| {
            Err(LogError::Gone { topic: "impressions".to_owned(), partition: 0, offset, start: 9 })
        };
        let mut out = Outgoing::default();
        out.for_outputs(2);
        joiner.turn(&[], &mut arrivals, &gone, &mut out).unwrap();
        assert_eq!((out.of(EXAMPLES).count(), out.of(CORRECTIONS).count()), (1, 1));
    }
}
