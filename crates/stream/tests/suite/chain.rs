//! Log, joiner and reader on a disk that fails, tears, and loses what was not synced.
//!
//! `CAMPANILE_SEEDS=10000 cargo test -p campanile-stream chain` for more seeds; `CAMPANILE_SEED=n` for one.

use std::{collections::BTreeMap, env, path::Path, sync::Arc};

use campanile_stream::{
    join::{JoinOptions, Joiner},
    log::{DirectoryLog, Limit, Log, LogError, Record, Records, Sync, TopicOptions, disk::Disk},
    records::{Example, Feedback, Impression, TICK},
    stage::{Place, Runner, StageError, Wiring},
    topics::{self, CORRECTIONS, EXAMPLES, FEEDBACK, IMPRESSIONS, WORDS},
};

use crate::simulated::{Fault, Simulated};

const IMPRESSION_COUNT: u64 = 60;
const WINDOW_MS: u64 = 40;
/// Segments of a few records, so that every way from one to the next is tried.
const OPTIONS: TopicOptions = TopicOptions {
    partitions: 1,
    segment_bytes: 700,
    keep_ms: 0,
    keep_bytes: 0,
    sync: Sync::EveryBytes(900),
};

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

#[test]
fn every_label_comes_out_once_or_what_is_lost_is_named() {
    let seeds = match number("CAMPANILE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("CAMPANILE_SEEDS").unwrap_or(300),
    };
    for seed in seeds {
        // The disk is simulated, so memory will do for one.
        let home = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        if let Err(panic) = std::panic::catch_unwind(|| chain(home.path(), seed)) {
            eprintln!("CAMPANILE_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Runs the chain through faults until everything is done. What a stage has read is never lost, whether its writer syncs or not.
fn chain(home: &Path, seed: u64) {
    let mut random = seed;
    let mut draw = |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    let disk = Arc::new(Simulated::new(home, seed));
    for round in 0..8 {
        let (after, fault) = (draw(300), if draw(3) == 0 { Fault::One } else { Fault::All });
        disk.fail_after(if round == 7 { u64::MAX } else { after }, fault);
        match run(&Disk::with_faults(Arc::clone(&disk) as _), home, round) {
            Ok(()) => return check(home),
            // The disk's own trouble is over by the next round.
            Err(StageError::Log(LogError::Io { .. })) if round < 7 => {}
            Err(error) => panic!("nothing that was read is lost, and yet: {error}"),
        }
        if draw(3) > 0 {
            disk.cut_power();
        }
    }
    unreachable!("the last round has no fault")
}

/// Produces, joins and produces on, as far as the disk lets it.
fn run(disk: &Disk, home: &Path, round: u64) -> Result<(), StageError> {
    let log: Arc<dyn Log> = Arc::new(DirectoryLog::open_on(disk.clone(), home)?);
    // Producers are processes of their own, with a log of their own.
    let produced = DirectoryLog::open_on(disk.clone(), home)?;
    topics::create(&*log, OPTIONS)?;
    let place = |topic: &str| Place { topic: topic.to_owned(), partition: 0 };
    let wiring = Wiring {
        name: "join".to_owned(),
        inputs: [IMPRESSIONS, WORDS, FEEDBACK].map(place).to_vec(),
        outputs: [EXAMPLES, CORRECTIONS].map(place).to_vec(),
        limit: Limit { records: 5, bytes: usize::MAX },
        save_every: 3,
    };
    let mut runner = Runner::open(Arc::clone(&log), wiring, Joiner::new(options()))?;
    loop {
        let moved = produce(&produced, IMPRESSIONS, |n| impression(n, round))?
            | produce(&produced, FEEDBACK, feedback)?;
        if !runner.turn()? && !moved {
            return runner.save();
        }
    }
}

/// Appends the next few records of a topic, which follow from their number; false when all are there.
fn produce(log: &dyn Log, topic: &str, record: impl Fn(u64) -> (u64, Vec<u8>)) -> Result<bool, LogError> {
    let next = log.range(topic, 0)?.end;
    // Neither producer runs ahead of the other, so no click is late; the tick behind all comes when both are done.
    let slower = log.range(IMPRESSIONS, 0)?.end.min(log.range(FEEDBACK, 0)?.end);
    let until =
        if slower < IMPRESSION_COUNT { IMPRESSION_COUNT.min(slower + 8) } else { IMPRESSION_COUNT + 1 };
    let records: Vec<(u64, Vec<u8>)> = (next..until).take(4).map(record).collect();
    let records: Vec<Record<'_>> =
        records.iter().map(|(time_ms, payload)| Record { time_ms: *time_ms, payload }).collect();
    log.append(topic, 0, &records)?;
    Ok(!records.is_empty())
}

/// One that is made again in another round is another record: if the first was read and lost, that is noticed.
fn impression(n: u64, round: u64) -> (u64, Vec<u8>) {
    let mut bytes = Vec::new();
    if n == IMPRESSION_COUNT {
        return (n + 1000, TICK.to_vec());
    }
    Impression { id: n, features: &[round as u8; 30] }.encode(&mut bytes);
    (n, bytes)
}

/// Every third impression is clicked.
fn feedback(n: u64) -> (u64, Vec<u8>) {
    let mut bytes = Vec::new();
    if n == IMPRESSION_COUNT {
        return (n + 1000, TICK.to_vec());
    }
    Feedback { id: n / 3 * 3, task: 0 }.encode(&mut bytes);
    (n + 1, bytes)
}

fn options() -> JoinOptions {
    JoinOptions {
        windows_ms: vec![WINDOW_MS],
        given: Vec::new(),
        disorder_ms: 20,
        remember_ms: 10_000,
        features_bytes_max: 100,
        repeat_late: false,
        jump_ms: 10_000,
        impressions_max: 1000,
        impression_inputs: 1,
        word_inputs: 1,
    }
}

/// Each impression's label is there once, and it is the right one.
fn check(home: &Path) {
    let log = DirectoryLog::open(home).unwrap();
    let mut labels: BTreeMap<u64, Vec<Option<bool>>> = BTreeMap::new();
    let mut records = Records::default();
    let mut from = 0;
    loop {
        log.read(EXAMPLES, 0, from, Limit { records: 7, bytes: usize::MAX }, &mut records).unwrap();
        let Some(last) = records.last() else { break };
        from = last.offset + 1;
        for record in records.iter() {
            let example = Example::decode(record.payload).unwrap();
            labels.entry(example.id).or_default().push(example.label(0));
        }
    }
    let wanted = (0..IMPRESSION_COUNT).map(|id| (id, vec![Some(id.is_multiple_of(3))])).collect();
    assert_eq!(labels, wanted);
}
