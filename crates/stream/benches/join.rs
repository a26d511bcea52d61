//! Events a second through the joiner, from log to log, on one core.
//!
//! `cargo bench -p campanile-stream --bench join [-- DIRECTORY]`

use std::{sync::Arc, time::Instant};

use campanile_stream::{
    join::{JoinOptions, Joiner},
    log::{DirectoryLog, Limit, Log, Record, Sync, TopicOptions},
    records::{Feedback, Impression},
    stage::{Place, Runner, Wiring},
};

const IMPRESSIONS: u64 = 500_000;
const FEATURE_BYTES: usize = 200;

fn main() {
    let given = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let home = given.map_or_else(std::env::temp_dir, Into::into).join("campanile-join-bench");
    println!(
        "{IMPRESSIONS} impressions of {FEATURE_BYTES} bytes, a click for one in ten, a purchase for one in a hundred"
    );
    for features_bytes_max in [usize::MAX, 0] {
        let _ = std::fs::remove_dir_all(&home);
        let log: Arc<dyn Log> = Arc::new(DirectoryLog::open(&home).expect("a log"));
        for topic in ["impressions", "feedback", "examples", "corrections"] {
            let options = TopicOptions { sync: Sync::Never, ..TopicOptions::default() };
            log.create(topic, options).expect("a topic");
        }
        let events = fill(&*log);
        let place = |topic: &str| Place { topic: topic.to_owned(), partition: 0 };
        let wiring = Wiring {
            name: "joiner".to_owned(),
            inputs: vec![place("impressions"), place("feedback")],
            outputs: vec![place("examples"), place("corrections")],
            limit: Limit { records: 4096, bytes: 1 << 20 },
            save_every: 100,
        };
        let options = JoinOptions {
            windows_ms: vec![30_000, 120_000],
            disorder_ms: 1000,
            remember_ms: 120_000,
            features_bytes_max,
            repeat_late: false,
            jump_ms: u64::MAX,
            impressions_max: usize::MAX,
            impression_inputs: 1,
            word_inputs: 0,
            given: Vec::new(),
        };
        let start = Instant::now();
        let mut runner = Runner::open(log, wiring, Joiner::new(options)).expect("a fresh stage");
        while runner.turn().expect("readable events") {}
        let seconds = start.elapsed().as_secs_f64();
        let counts = runner.stage().counts();
        let kept = if features_bytes_max == 0 { "read again from the log" } else { "kept in memory" };
        println!(
            "features {kept}: {:.0} k events/s, {} examples, {} still open",
            events as f64 / seconds / 1e3,
            counts.examples,
            runner.stage().open_count()
        );
    }
    let _ = std::fs::remove_dir_all(&home);
}

/// A thousand impressions a second; ids are spread as random ones are.
fn fill(log: &dyn Log) -> u64 {
    let features = vec![7; FEATURE_BYTES];
    let mut events = 0;
    for first in (0..IMPRESSIONS).step_by(1000) {
        let (mut shown, mut followed) = (Vec::new(), Vec::new());
        for n in first..first + 1000 {
            let id = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut payload = Vec::new();
            Impression { id, features: &features }.encode(&mut payload);
            shown.push((n, payload));
            for (task, every, after) in [(0, 10, 5_000), (1, 100, 60_000)] {
                if n % every == 0 {
                    let mut payload = Vec::new();
                    Feedback { id, task }.encode(&mut payload);
                    followed.push((n + after, payload));
                }
            }
        }
        for (topic, records) in [("impressions", &shown), ("feedback", &followed)] {
            let records: Vec<Record<'_>> =
                records.iter().map(|(time_ms, payload)| Record { time_ms: *time_ms, payload }).collect();
            events += records.len() as u64;
            log.append(topic, 0, &records).expect("room on the disk");
        }
    }
    events
}
