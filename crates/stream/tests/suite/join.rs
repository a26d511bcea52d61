//! Every impression becomes exactly one example with the right labels, whatever the order of events and the crashes.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use campanile_stream::{
    join::{JoinOptions, Joiner},
    log::{DirectoryLog, Limit, Log, LogError, Offset, Record, Records, Sync, TopicOptions},
    records::{Correction, Example, Feedback, Impression, TICK, Word},
    stage::{Place, Runner, StageError, Wiring},
};
use proptest::prelude::*;

const CLICK_MS: u64 = 100;
const BUY_MS: u64 = 400;
const DISORDER_MS: u64 = 50;

fn options(features_bytes_max: usize) -> JoinOptions {
    JoinOptions {
        windows_ms: vec![CLICK_MS, BUY_MS],
        disorder_ms: DISORDER_MS,
        remember_ms: 10_000,
        features_bytes_max,
        repeat_late: true,
        jump_ms: 100_000,
        impressions_max: 1000,
        impression_inputs: 1,
        word_inputs: 1,
        given: vec![None, Some(0)],
    }
}

fn wiring(limit: usize) -> Wiring {
    let place = |topic: &str| Place { topic: topic.to_owned(), partition: 0 };
    Wiring {
        name: "joiner".to_owned(),
        inputs: vec![place("impressions"), place("words"), place("feedback")],
        outputs: vec![place("examples"), place("corrections")],
        limit: Limit { records: limit, bytes: usize::MAX },
        save_every: 3,
    }
}

/// Something that happens, and how late its record is.
#[derive(Debug, Clone, Copy)]
struct Event {
    id: u64,
    /// 0 and 1 for feedback of a task, 2 for the impression, 3 for a teacher's word.
    kind: u16,
    time_ms: u64,
    late_ms: u64,
    copies: usize,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let follow = prop::option::of((0u64..600, 0u64..DISORDER_MS, 1usize..3));
    let word = prop::option::of(0u64..DISORDER_MS);
    prop::collection::vec((0u64..2000, 0u64..DISORDER_MS, 1usize..3, follow.clone(), follow, word), 1..40)
        .prop_map(|shown| {
            let mut events = Vec::new();
            for (id, (time_ms, late_ms, copies, click, buy, word)) in (1..).zip(shown) {
                let time_ms = time_ms + 1000;
                if let Some(late_ms) = word {
                    events.push(Event { id, kind: 3, time_ms, late_ms, copies });
                }
                events.push(Event { id, kind: 2, time_ms, late_ms, copies });
                for (kind, follow) in [(0, click), (1, buy)] {
                    if let Some((after, late_ms, copies)) = follow {
                        events.push(Event { id, kind, time_ms: time_ms + after, late_ms, copies });
                    }
                }
            }
            events.sort_by_key(|event| (event.time_ms + event.late_ms, event.id, event.kind));
            events
        })
}

fn word(id: u64) -> Word<'static> {
    let embedding: &[u8] = if id.is_multiple_of(2) { &[7, 8, 9, 10] } else { &[] };
    Word { id, schema: 3, version: id % 3, data_time_ms: 1000, logits: &[0, 1, 2, 3], embedding }
}

fn features(id: u64) -> Vec<u8> {
    format!("features of {id}").into_bytes()
}

fn topics(log: &dyn Log) {
    for topic in ["impressions", "words", "feedback", "examples", "corrections"] {
        log.create(topic, TopicOptions { segment_bytes: 500, sync: Sync::Never, ..TopicOptions::default() })
            .unwrap();
    }
}

fn fill(log: &dyn Log, events: &[Event]) {
    let write = |topic: &str, time_ms: u64, payload: &[u8]| {
        log.append(topic, 0, &[Record { time_ms, payload }]).unwrap();
    };
    for event in events {
        for _ in 0..event.copies {
            let mut payload = Vec::new();
            if event.kind == 3 {
                word(event.id).encode(&mut payload);
                write("words", event.time_ms, &payload);
            } else if event.kind == 2 {
                Impression { id: event.id, features: &features(event.id) }.encode(&mut payload);
                write("impressions", event.time_ms, &payload);
            } else {
                Feedback { id: event.id, task: event.kind }.encode(&mut payload);
                write("feedback", event.time_ms, &payload);
            }
        }
    }
    // Far in the future, so that everything closes.
    write("impressions", 20_000, TICK);
}

fn all(log: &dyn Log, topic: &str) -> Vec<Vec<u8>> {
    let mut out = Records::default();
    log.read(topic, 0, 0, Limit { records: usize::MAX, bytes: usize::MAX }, &mut out).unwrap();
    out.iter().map(|record| [&record.time_ms.to_le_bytes()[..], record.payload].concat()).collect()
}

fn run(
    home: &Path,
    events: &[Event],
    limit: usize,
    features_bytes_max: usize,
) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let log: Arc<dyn Log> = Arc::new(DirectoryLog::open(home).unwrap());
    topics(&*log);
    fill(&*log, events);
    let mut runner =
        Runner::open(Arc::clone(&log), wiring(limit), Joiner::new(options(features_bytes_max))).unwrap();
    while runner.turn().unwrap() {}
    (all(&*log, "examples"), all(&*log, "corrections"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn one_example_for_each_impression_with_the_labels_that_followed(events in events()) {
        let home = tempfile::tempdir().unwrap();
        // All in one turn, so that inputs are merged by time and nothing is later than the disorder allows.
        let (examples, corrections) = run(home.path(), &events, usize::MAX, usize::MAX);
        let mut want: BTreeMap<u64, (u64, u32, u32)> = BTreeMap::new();
        for event in events.iter().filter(|event| event.kind == 2) {
            want.insert(event.id, (event.time_ms, 0, 0));
        }
        for event in events.iter().filter(|event| event.kind < 2) {
            let (time_ms, labels, late) = want.get_mut(&event.id).unwrap();
            let window = [CLICK_MS, BUY_MS][event.kind as usize];
            let bits = if event.time_ms <= *time_ms + window { labels } else { late };
            *bits |= 1 << event.kind;
        }
        let (repeated, examples): (Vec<_>, Vec<_>) =
            examples.into_iter().partition(|bytes| Example::is_late(&bytes[8..]));
        prop_assert_eq!(examples.len(), want.len());
        for bytes in &examples {
            let (time, payload) = bytes.split_at(8);
            let example = Example::decode(payload).unwrap();
            let (time_ms, labels, _) = want[&example.id];
            prop_assert_eq!(u64::from_le_bytes(time.try_into().unwrap()), time_ms);
            prop_assert_eq!(example.labels, labels, "labels of {}", example.id);
            prop_assert_eq!(example.features, features(example.id));
            prop_assert_eq!(example.known, if labels & 1 == 1 { 3 } else { 1 });
            let told = events.iter().any(|event| event.kind == 3 && event.id == example.id);
            prop_assert_eq!(example.word, told.then(|| word(example.id)));
        }
        let late: u32 = want.values().map(|(_, labels, late)| (late & !labels).count_ones()).sum();
        prop_assert_eq!(corrections.len() as u32, late);
        prop_assert!(corrections.iter().all(|bytes| !Correction::decode(&bytes[8..]).unwrap().in_window));
        // Every correction brings its example once more, with its features and that label alone.
        let corrected: BTreeSet<(u64, u16)> = corrections
            .iter()
            .map(|bytes| Correction::decode(&bytes[8..]).unwrap())
            .map(|correction| (correction.id, correction.task))
            .collect();
        let mut found = BTreeSet::new();
        for bytes in &repeated {
            let example = Example::decode_late(&bytes[8..]).unwrap();
            prop_assert_eq!(example.features, features(example.id));
            prop_assert_eq!((example.labels, example.word), (example.known, None));
            prop_assert!(found.insert((example.id, example.labels.trailing_zeros() as u16)));
        }
        prop_assert_eq!(found, corrected);
    }

    #[test]
    fn features_that_do_not_fit_in_memory_are_read_again(events in events()) {
        let homes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let kept = run(homes[0].path(), &events, usize::MAX, usize::MAX);
        prop_assert_eq!(run(homes[1].path(), &events, usize::MAX, 40), kept);
    }

    /// The log fails at any of its operations, also half way through an append; each time everything is opened anew.
    #[test]
    fn crashes_change_nothing(events in events(), limit in 1usize..30, first in 1i64..60, step in 1i64..40) {
        let homes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let want = run(homes[0].path(), &events, limit, 100);
        let log = DirectoryLog::open(homes[1].path()).unwrap();
        topics(&log);
        fill(&log, &events);
        drop(log);
        let mut lives = first;
        let mut crashes = 0;
        loop {
            let log = Arc::new(Mortal { log: DirectoryLog::open(homes[1].path()).unwrap(), left: AtomicI64::new(lives) });
            let ended = (|| -> Result<(), StageError> {
                let mut runner = Runner::open(log, wiring(limit), Joiner::new(options(100)))?;
                while runner.turn()? {}
                Ok(())
            })();
            if ended.is_ok() {
                break;
            }
            crashes += 1;
            // A life must be long enough to get on in the end.
            lives += step;
            prop_assert!(crashes < 10_000);
        }
        let log = DirectoryLog::open(homes[1].path()).unwrap();
        prop_assert_eq!(all(&log, "examples"), want.0, "after {} crashes", crashes);
        prop_assert_eq!(all(&log, "corrections"), want.1);
    }
}

/// A log that dies after some operations; the one that kills it is done by half.
struct Mortal {
    log: DirectoryLog,
    left: AtomicI64,
}

impl Mortal {
    fn live(&self) -> Result<(), LogError> {
        if self.left.fetch_sub(1, Ordering::SeqCst) > 0 {
            return Ok(());
        }
        let source = std::io::Error::other("killed");
        Err(LogError::Io { path: "log".into(), action: "live", source })
    }
}

impl Log for Mortal {
    fn create(&self, topic: &str, options: TopicOptions) -> Result<(), LogError> {
        self.live()?;
        self.log.create(topic, options)
    }
    fn append(&self, topic: &str, partition: u32, records: &[Record<'_>]) -> Result<Offset, LogError> {
        if let Err(error) = self.live() {
            self.log.append(topic, partition, &records[..records.len() / 2])?;
            return Err(error);
        }
        self.log.append(topic, partition, records)
    }
    fn read(
        &self,
        topic: &str,
        partition: u32,
        from: Offset,
        limit: Limit,
        out: &mut Records,
    ) -> Result<(), LogError> {
        self.live()?;
        self.log.read(topic, partition, from, limit, out)
    }
    fn range(&self, topic: &str, partition: u32) -> Result<Range<Offset>, LogError> {
        self.live()?;
        self.log.range(topic, partition)
    }
    fn commit(&self, group: &str, topic: &str, partition: u32, next: Offset) -> Result<(), LogError> {
        self.live()?;
        self.log.commit(group, topic, partition, next)
    }
    fn committed(&self, group: &str, topic: &str, partition: u32) -> Result<Offset, LogError> {
        self.live()?;
        self.log.committed(group, topic, partition)
    }
    fn sync(&self) -> Result<(), LogError> {
        self.log.sync()
    }
    fn options(&self, topic: &str) -> Result<TopicOptions, LogError> {
        self.log.options(topic)
    }
    fn identity(&self, topic: &str) -> Result<u64, LogError> {
        self.log.identity(topic)
    }
    fn trim(&self, topic: &str, partition: u32, before: Offset) -> Result<Offset, LogError> {
        self.live()?;
        self.log.trim(topic, partition, before)
    }
    fn retain(&self, now_ms: u64) -> Result<u64, LogError> {
        self.log.retain(now_ms)
    }
}

#[test]
fn a_record_that_is_none_is_named() {
    let home = tempfile::tempdir().unwrap();
    let log: Arc<dyn Log> = Arc::new(DirectoryLog::open(home.path()).unwrap());
    topics(&*log);
    log.append("feedback", 0, &[Record { time_ms: 1, payload: b"short" }]).unwrap();
    let mut runner = Runner::open(Arc::clone(&log), wiring(10), Joiner::new(options(0))).unwrap();
    let error = runner.turn().unwrap_err().to_string();
    assert_eq!(error, "input 2, record 0: it is no feedback");
}

/// The same on NATS: the server is killed again and again while the joiner runs, and the joiner is opened anew each time
/// it notices.
#[cfg(feature = "nats")]
#[test]
fn a_server_that_dies_changes_nothing() {
    let Some(mut broker) = crate::broker::Broker::start() else { return };
    let events: Vec<Event> = (1..300u64)
        .flat_map(|id| {
            let shown = Event { id, kind: 2, time_ms: 1000 + id * 7, late_ms: 0, copies: 1 };
            let click = Event { kind: 0, time_ms: shown.time_ms + id % 150, ..shown };
            let buy = Event { kind: 1, time_ms: shown.time_ms + 3 * id % 500, ..shown };
            [shown, click, buy]
        })
        .collect();
    let mut events = events;
    events.sort_by_key(|event| (event.time_ms, event.id, event.kind));
    let home = tempfile::tempdir().unwrap();
    let want = run(home.path(), &events, 20, usize::MAX);
    let open = broker.open();
    let log = open();
    topics(&*log);
    fill(&*log, &events);
    drop(log);
    let mut kills = 0;
    loop {
        let log: Arc<dyn Log> = Arc::from(open());
        let mut runner = Runner::open(log, wiring(20), Joiner::new(options(0))).unwrap();
        let mut turns = 0;
        while turns < 5 && runner.turn().unwrap() {
            turns += 1;
        }
        if turns < 5 {
            break;
        }
        broker.kill_and_restart();
        kills += 1;
    }
    assert!(kills >= 3, "{kills} kills");
    let log = open();
    assert_eq!((all(&*log, "examples"), all(&*log, "corrections")), want);
    // What no restart needs is gone: one state, and the turns since.
    let journal = log.range("joiner.journal", 0).unwrap();
    assert!(journal.end > 20 && journal.end - journal.start < 12, "{journal:?}");
    let state = log.range("joiner.state", 0).unwrap();
    assert!(state.end > 2 && state.end - state.start == 1, "{state:?}");
}
