//! What durability costs: appends with few syncs and with one each, and a joiner that works off what is there.
//!
//! `cargo bench -p campanile-stream --bench durable [-- DIRECTORY]` prints one round; for a comparison of two builds run them in turns.

use std::{fs, path::Path, sync::Arc, time::Instant};

use campanile_stream::{
    join::{JoinOptions, Joiner},
    log::{DirectoryLog, Limit, Log, Record, Sync, TopicOptions},
    records::{Feedback, Impression},
    stage::{Place, Runner, Wiring},
};

const RECORDS: u64 = 2_000_000;
const BATCH: usize = 64;
const SYNCED: u64 = 2000;
const IMPRESSIONS: u64 = 400_000;
const PAYLOAD: [u8; 200] = [7; 200];

fn main() {
    let given = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let home = given.map_or_else(std::env::temp_dir, Into::into).join("campanile-durable-bench");
    let appended = in_new(&home, |log| {
        log.create("t", TopicOptions::default()).expect("a topic");
        let start = Instant::now();
        for _ in 0..RECORDS / BATCH as u64 {
            log.append("t", 0, &[Record { time_ms: 1, payload: &PAYLOAD }; BATCH]).expect("room");
        }
        log.sync().expect("a disk that syncs");
        RECORDS as f64 / start.elapsed().as_secs_f64()
    });
    let synced = in_new(&home, |log| {
        let options = TopicOptions { sync: Sync::EveryAppend, ..TopicOptions::default() };
        log.create("t", options).expect("a topic");
        let start = Instant::now();
        for _ in 0..SYNCED {
            log.append("t", 0, &[Record { time_ms: 1, payload: &PAYLOAD }]).expect("room");
        }
        SYNCED as f64 / start.elapsed().as_secs_f64()
    });
    let joined = in_new(&home, joined);
    println!("records/s {appended:.0}   fsyncs/s {synced:.0}   joined events/s {joined:.0}");
    let _ = fs::remove_dir_all(&home);
}

fn in_new(home: &Path, work: impl FnOnce(Arc<dyn Log>) -> f64) -> f64 {
    let _ = fs::remove_dir_all(home);
    work(Arc::new(DirectoryLog::open(home).expect("a log")))
}

/// A thousand impressions a second, one in ten clicked; events a second from log to log.
fn joined(log: Arc<dyn Log>) -> f64 {
    let topics = ["impressions", "feedback", "examples", "corrections"];
    topics.iter().for_each(|topic| log.create(topic, TopicOptions::default()).expect("a topic"));
    let mut events = 0;
    for first in (0..IMPRESSIONS).step_by(1000) {
        let (mut shown, mut clicked) = (Vec::new(), Vec::new());
        for n in first..first + 1000 {
            let id = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut payload = Vec::new();
            Impression { id, features: &PAYLOAD }.encode(&mut payload);
            shown.push((n, payload));
            if n % 10 == 0 {
                let mut payload = Vec::new();
                Feedback { id, task: 0 }.encode(&mut payload);
                clicked.push((n + 5000, payload));
            }
        }
        for (topic, records) in [("impressions", &shown), ("feedback", &clicked)] {
            let records: Vec<Record<'_>> =
                records.iter().map(|(time_ms, payload)| Record { time_ms: *time_ms, payload }).collect();
            events += records.len() as u64;
            log.append(topic, 0, &records).expect("room");
        }
    }
    let place = |topic: &str| Place { topic: topic.to_owned(), partition: 0 };
    let wiring = Wiring {
        name: "join".to_owned(),
        inputs: vec![place("impressions"), place("feedback")],
        outputs: vec![place("examples"), place("corrections")],
        limit: Limit { records: 4096, bytes: 4 << 20 },
        save_every: 50,
    };
    let options = JoinOptions {
        windows_ms: vec![30_000],
        disorder_ms: 1000,
        remember_ms: 60_000,
        features_bytes_max: usize::MAX,
        jump_ms: u64::MAX,
        impressions_max: usize::MAX,
        repeat_late: false,
        impression_inputs: 1,
        word_inputs: 0,
        given: Vec::new(),
    };
    let start = Instant::now();
    let mut runner = Runner::open(log, wiring, Joiner::new(options)).expect("a fresh stage");
    while runner.turn().expect("readable events") {}
    runner.save().expect("room");
    events as f64 / start.elapsed().as_secs_f64()
}
