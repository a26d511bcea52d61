//! What the log and its stages do when the disk fails, and when a log is not the one that was read.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use campanile_stream::{
    log::{Cursor, DirectoryLog, Limit, Log, LogError, Record, Records, Sync, TopicOptions, disk::Disk},
    stage::{Again, Arrival, Outgoing, Place, Runner, Stage, StageError, Wiring},
    topics,
};

use crate::simulated::{Fault, Simulated};

const SMALL: TopicOptions = TopicOptions {
    partitions: 1,
    segment_bytes: 300,
    keep_ms: 0,
    keep_bytes: 0,
    sync: Sync::EveryBytes(1 << 20),
};
const ALL: Limit = Limit { records: usize::MAX, bytes: usize::MAX };

fn record(n: u64) -> Vec<u8> {
    format!("record {n}").into_bytes()
}

fn append(log: &dyn Log, range: std::ops::Range<u64>) -> Result<u64, LogError> {
    let payloads: Vec<Vec<u8>> = range.map(record).collect();
    let records: Vec<Record<'_>> = payloads.iter().map(|payload| Record { time_ms: 7, payload }).collect();
    log.append("t", 0, &records)
}

fn read(log: &dyn Log) -> Vec<Vec<u8>> {
    let mut out = Records::default();
    log.read("t", 0, 0, ALL, &mut out).unwrap();
    out.iter().map(|record| record.payload.to_vec()).collect()
}

fn failing(home: &Path, seed: u64) -> (Arc<Simulated>, Disk) {
    let disk = Arc::new(Simulated::new(home, seed));
    (Arc::clone(&disk), Disk::with_faults(disk))
}

/// Whatever a reader may have seen of an append that failed stays, and the same process writes on behind it when there is room.
#[test]
fn an_append_that_failed_keeps_whole_frames_and_ends_nothing() {
    let mut kept = 0;
    for seed in 0..40 {
        let home = tempfile::tempdir().unwrap();
        let (faults, disk) = failing(home.path(), seed);
        let log = DirectoryLog::open_on(disk, home.path()).unwrap();
        log.create("t", TopicOptions { segment_bytes: 1 << 20, ..SMALL }).unwrap();
        append(&log, 0..1).unwrap();
        faults.fail_after(0, Fault::One);
        // Of several frames in one write, whole ones may get through.
        let long = vec![1; 60_000];
        let records = vec![Record { time_ms: 7, payload: &long }; 4];
        let error = log.append("t", 0, &records).unwrap_err();
        assert!(error.to_string().contains("00000000000000000000.log: cannot write"), "{error}");
        let seen = read(&DirectoryLog::open(home.path()).unwrap());
        let first = append(&log, 50..51).unwrap();
        assert_eq!(first, seen.len() as u64, "seed {seed}");
        let after = read(&log);
        assert_eq!(
            (&after[..seen.len()], &after[seen.len()..]),
            (&seen[..], &[record(50)][..]),
            "seed {seed}"
        );
        kept += u64::from(seen.len() > 1);
    }
    assert!(kept > 10, "frames got through in {kept} of 40");
}

/// A sync that failed has lost what it was to write; one that succeeds afterwards must have written it again.
#[test]
fn a_sync_after_one_that_failed_is_not_believed() {
    for by_writer in [true, false] {
        let home = tempfile::tempdir().unwrap();
        let (faults, disk) = failing(home.path(), 1);
        let log = DirectoryLog::open_on(disk.clone(), home.path()).unwrap();
        log.create("t", TopicOptions { segment_bytes: 1 << 20, ..SMALL }).unwrap();
        append(&log, 0..5).unwrap();
        faults.fail_after(0, Fault::One);
        assert!(log.sync().is_err());
        if by_writer {
            log.sync().unwrap();
        } else {
            drop(log);
            let log = DirectoryLog::open_on(disk, home.path()).unwrap();
            append(&log, 5..6).unwrap();
            log.sync().unwrap();
        }
        faults.cut_power();
        let found = read(&DirectoryLog::open(home.path()).unwrap());
        assert_eq!(found[..5], (0..5).map(record).collect::<Vec<_>>());
    }
}

/// A writer that was killed had not synced its last records; whoever goes on syncs them, also one that only reads.
#[test]
fn what_a_killed_writer_had_not_synced_is_synced_by_whoever_goes_on() {
    for reads_only in [false, true] {
        for segment_bytes in [300, 1 << 20] {
            let home = tempfile::tempdir().unwrap();
            let (faults, disk) = failing(home.path(), 3);
            let log = DirectoryLog::open_on(disk.clone(), home.path()).unwrap();
            log.create("t", TopicOptions { segment_bytes, ..SMALL }).unwrap();
            for n in 0..40 {
                append(&log, n..n + 1).unwrap();
            }
            drop(log);
            let log = DirectoryLog::open_on(disk, home.path()).unwrap();
            if !reads_only {
                append(&log, 40..41).unwrap();
            }
            log.sync_topic("t", 0).unwrap();
            faults.cut_power();
            let found = read(&DirectoryLog::open(home.path()).unwrap());
            let count = if reads_only { 40 } else { 41 };
            assert_eq!(found, (0..count).map(record).collect::<Vec<_>>());
        }
    }
}

/// A topic that was being made when the power went is there or not there, and can be made and used.
#[test]
fn a_topic_made_just_before_a_power_cut_is_usable() {
    for after in 0..40 {
        for seed in 0..4 {
            let parent = tempfile::tempdir().unwrap();
            let (faults, disk) = failing(parent.path(), seed);
            let home = parent.path().join("runs/log");
            faults.fail_after(after, Fault::All);
            let made = (|| {
                let log = DirectoryLog::open_on(disk, &home)?;
                log.create("t", TopicOptions { sync: Sync::EveryAppend, ..SMALL })?;
                append(&log, 0..1)
            })();
            faults.cut_power();
            let log = DirectoryLog::open(&home).unwrap();
            if made.is_ok() {
                assert_eq!(read(&log), [record(0)], "what was acknowledged is there");
            }
            log.create("t", SMALL).unwrap();
            let first = append(&log, 1..2).unwrap();
            assert_eq!(read(&log).len() as u64, first + 1, "after {after} operations, seed {seed}");
        }
    }
}

/// Stages that trim and retain at the same time, and one that reads, do not end each other.
#[test]
fn retention_beside_trimming_ends_nobody() {
    let home = tempfile::tempdir().unwrap();
    let open = || DirectoryLog::open(home.path()).unwrap();
    let log = open();
    log.create("t", TopicOptions { keep_ms: 1, segment_bytes: 60, ..SMALL }).unwrap();
    for round in 0..20 {
        for n in round * 20..round * 20 + 20 {
            append(&log, n..n + 1).unwrap();
        }
        thread::scope(|scope| {
            scope.spawn(|| open().retain(1000).unwrap());
            scope.spawn(|| open().trim("t", 0, round * 20 + 15).unwrap());
            scope.spawn(|| {
                let mut out = Records::default();
                match open().read("t", 0, round * 20, ALL, &mut out) {
                    Ok(()) | Err(LogError::Gone { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
                open().range("t", 0).unwrap();
            });
        });
    }
}

/// Files that are no segments are none of the log's.
#[test]
fn a_stray_file_beside_segments_is_passed_over() {
    let home = tempfile::tempdir().unwrap();
    let log = DirectoryLog::open(home.path()).unwrap();
    log.create("t", SMALL).unwrap();
    append(&log, 0..3).unwrap();
    let directory = home.path().join("topics/t/0");
    for name in ["notes.log", "0.log", "00000000000000000000.log.bak"] {
        std::fs::write(directory.join(name), b"not ours").unwrap();
    }
    let log = DirectoryLog::open(home.path()).unwrap();
    assert_eq!(read(&log).len(), 3);
}

#[test]
fn a_cursor_knows_its_log() {
    let home = tempfile::tempdir().unwrap();
    let open = |name: &str| {
        let log = DirectoryLog::open(&home.path().join(name)).unwrap();
        log.create("t", SMALL).unwrap();
        log
    };
    let log = open("a");
    append(&log, 0..9).unwrap();
    let mut out = Records::default();
    log.read("t", 0, 6, Limit { records: 1, bytes: 1 }, &mut out).unwrap();
    let cursor = Cursor { next: 7, identity: log.identity("t").unwrap(), sum: out.last().unwrap().sum() };
    cursor.check(&log, "t", 0).unwrap();
    let same_again = DirectoryLog::open(&home.path().join("a")).unwrap();
    cursor.check(&same_again, "t", 0).unwrap();

    let other = open("b");
    append(&other, 0..9).unwrap();
    let said = |cursor: Cursor| cursor.check(&other, "t", 0).unwrap_err().to_string();
    assert!(
        said(cursor).contains("topic `t` is not the one that was read up to record 7"),
        "{}",
        said(cursor)
    );
    // Of a program that noted no identity: the same records are the same log, others are not, and neither is one that ends.
    let without = Cursor { identity: 0, ..cursor };
    without.check(&other, "t", 0).unwrap();
    let wrong = Cursor { sum: cursor.sum ^ 1, ..without };
    assert!(said(wrong).contains("record 6 of topic `t` is another"), "{}", said(wrong));
    let past = Cursor { next: 12, ..without };
    assert!(said(past).contains("records 9 to 11 are lost"), "{}", said(past));
}

/// What is written late is kept as long as what is written at once.
#[test]
fn examples_are_kept_from_when_they_are_written() {
    let home = tempfile::tempdir().unwrap();
    let log = DirectoryLog::open(home.path()).unwrap();
    topics::create_kept(&log, TopicOptions { keep_ms: 1000, ..SMALL }, 600).unwrap();
    let kept = [topics::IMPRESSIONS, topics::EXAMPLES, topics::CORRECTIONS, topics::FEEDBACK]
        .map(|topic| log.options(topic).unwrap().keep_ms);
    assert_eq!(kept, [1000, 1600, 1600, 1000]);
    for topic in [topics::IMPRESSIONS, topics::EXAMPLES] {
        // Shown at 0 to 40, and joined 600 later.
        for time_ms in 0..40 {
            log.append(topic, 0, &[Record { time_ms, payload: b"twenty bytes" }]).unwrap();
        }
    }
    log.retain(1100).unwrap();
    assert!(log.range(topics::IMPRESSIONS, 0).unwrap().start > 0);
    assert_eq!(log.range(topics::EXAMPLES, 0).unwrap().start, 0);
}

/// Copies what it reads, and has a state of so many bytes.
struct Copies(usize);

impl Stage for Copies {
    fn turn(
        &mut self,
        _: &[u8],
        arrivals: &mut dyn Iterator<Item = Arrival<'_>>,
        _: Again<'_>,
        out: &mut Outgoing,
    ) -> Result<(), StageError> {
        arrivals.for_each(|arrival| out.write(0, arrival.time_ms, |bytes| bytes.extend(arrival.payload)));
        Ok(())
    }

    fn save(&self, out: &mut Vec<u8>) {
        out.resize(out.len() + self.0, 7);
    }

    fn restore(&mut self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }
}

fn copying(log: &Arc<dyn Log>, state_bytes: usize) -> Result<Runner<Copies>, StageError> {
    let place = |topic: &str| Place { topic: topic.to_owned(), partition: 0 };
    let wiring = Wiring {
        name: "copy".to_owned(),
        inputs: vec![place("t")],
        outputs: vec![place("copied")],
        limit: Limit { records: 1, bytes: usize::MAX },
        save_every: 5,
    };
    Runner::open(Arc::clone(log), wiring, Copies(state_bytes))
}

/// Bytes of a topic's segments.
fn bytes_of(home: &Path, topic: &str) -> u64 {
    let directory: PathBuf = home.join("topics").join(topic).join("0");
    std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

/// A state is not written more often than as many bytes were read, however often it is time for it.
#[test]
fn a_large_state_costs_no_more_than_what_is_read() {
    let home = tempfile::tempdir().unwrap();
    let log: Arc<dyn Log> = Arc::new(DirectoryLog::open(home.path()).unwrap());
    ["t", "copied"].iter().for_each(|topic| log.create(topic, TopicOptions::default()).unwrap());
    let payload = [3; 1000];
    log.append("t", 0, &[Record { time_ms: 1, payload: &payload }; 400]).unwrap();
    let mut runner = copying(&log, 100_000).unwrap();
    while runner.turn().unwrap() {}
    assert!(!runner.is_saved());
    let (saved, read) = (bytes_of(home.path(), "copy.state"), bytes_of(home.path(), "t"));
    assert!(saved > 300_000 && saved <= read + 100_000, "{saved} bytes of state for {read} that were read");
    assert_eq!(log.range("copied", 0).unwrap().end, 400);
}

/// A stage whose input is made anew under it says so, and does not wait for records that were there once.
#[test]
fn a_stage_refuses_a_topic_that_was_made_anew() {
    let home = tempfile::tempdir().unwrap();
    let open = || -> Arc<dyn Log> { Arc::new(DirectoryLog::open(home.path()).unwrap()) };
    let log = open();
    ["t", "copied"].iter().for_each(|topic| log.create(topic, SMALL).unwrap());
    append(&*log, 0..3).unwrap();
    let mut runner = copying(&log, 10).unwrap();
    while runner.turn().unwrap() {}
    runner.save().unwrap();
    drop((runner, log));
    std::fs::remove_dir_all(home.path().join("topics/t")).unwrap();
    let log = open();
    log.create("t", SMALL).unwrap();
    append(&*log, 0..9).unwrap();
    let Err(error) = copying(&log, 10) else { panic!("it is another topic") };
    let said = error.to_string();
    assert!(
        said.contains("stage `copy`") && said.contains("topic `t` is not the one that was read"),
        "{said}"
    );
}
