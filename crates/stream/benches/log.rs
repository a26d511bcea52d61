//! The embedded log beside plain sequential file I/O with the same policy of syncing: once of the payloads alone, and once of
//! the very bytes that the log keeps, written in pieces as long as its frames.
//!
//! `cargo bench -p campanile-stream --bench log [-- DIRECTORY]`: rounds in turns, medians of the ratios.

use std::{
    fs::{self, File},
    io::{Read, Write},
    path::Path,
    time::Instant,
};

use campanile_stream::log::{DirectoryLog, Limit, Log, Record, Records, Sync, TopicOptions};

const ROUNDS: usize = 7;
const TOTAL_BYTES: usize = 128 << 20;
const SYNC_BYTES: u64 = 16 << 20;

fn main() {
    let given = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let home = given.map_or_else(std::env::temp_dir, Into::into).join("campanile-log-bench");
    println!(
        "append and read of {} MiB, synced every {} MiB, in {}",
        TOTAL_BYTES >> 20,
        SYNC_BYTES >> 20,
        home.display()
    );
    println!("shares of plain files: of the payloads alone / of the log's own bytes");
    println!(
        "{:>8} {:>7} {:>12} {:>14} {:>12} {:>14}",
        "payload", "batch", "append MB/s", "of plain", "read MB/s", "of plain"
    );
    for (payload_bytes, batch) in [(200, 64), (1000, 64), (1024, 64), (60_000, 1), (64 << 10, 1)] {
        let payload: Vec<u8> = (0..payload_bytes).map(|byte| (byte * 31 % 251) as u8).collect();
        let payloads = payload.repeat(batch);
        let rounds: Vec<Round> = (0..ROUNDS)
            .map(|_| {
                let _ = fs::remove_dir_all(&home);
                fs::create_dir_all(&home).expect("a directory to write in");
                let bare = plain_file(&home.join("payloads"), &payloads);
                let log = event_log(&home.join("log"), &payload, batch);
                let frame = frame_bytes(&home.join("log"), TOTAL_BYTES / payloads.len());
                let same = plain_file(&home.join("frames"), &payloads.repeat(2)[..frame]);
                Round { log, bare, same }
            })
            .collect();
        let over = |share: fn(&Round) -> f64| median(rounds.iter().map(share).collect());
        println!(
            "{payload_bytes:>8} {batch:>7} {:>12.0} {:>6.0}% /{:>4.0}% {:>12.0} {:>6.0}% /{:>4.0}%",
            over(|round| round.log.0),
            100.0 * over(|round| round.log.0 / round.bare.0),
            100.0 * over(|round| round.log.0 / round.same.0),
            over(|round| round.log.1),
            100.0 * over(|round| round.log.1 / round.bare.1),
            100.0 * over(|round| round.log.1 / round.same.1),
        );
    }
    let _ = fs::remove_dir_all(&home);
}

/// MB/s of writing and of reading.
struct Round {
    log: (f64, f64),
    bare: (f64, f64),
    same: (f64, f64),
}

/// How many bytes an append takes in the log's segments.
fn frame_bytes(log: &Path, appends: usize) -> usize {
    fn bytes_under(path: &Path) -> u64 {
        let entries =
            fs::read_dir(path).expect("the log's directory").map(|entry| entry.expect("an entry").path());
        entries
            .map(|entry| match entry.is_dir() {
                true => bytes_under(&entry),
                false => fs::metadata(&entry).expect("a file of the log").len(),
            })
            .sum()
    }
    bytes_under(log) as usize / appends
}

/// MB/s of writing one file chunk by chunk, and of reading it.
fn plain_file(path: &Path, chunk: &[u8]) -> (f64, f64) {
    let writes = TOTAL_BYTES / chunk.len();
    let start = Instant::now();
    let mut file = File::create(path).expect("a file");
    let mut unsynced = 0;
    for _ in 0..writes {
        file.write_all(chunk).expect("room on the disk");
        unsynced += chunk.len() as u64;
        if unsynced >= SYNC_BYTES {
            file.sync_data().expect("a disk that syncs");
            unsynced = 0;
        }
    }
    file.sync_data().expect("a disk that syncs");
    let written = rate(writes * chunk.len(), start);
    let start = Instant::now();
    let mut file = File::open(path).expect("the file");
    let mut buffer = vec![0; 256 << 10];
    let mut sum = 0u64;
    loop {
        let count = file.read(&mut buffer).expect("a readable file");
        if count == 0 {
            break;
        }
        sum += u64::from(buffer[count / 2]);
    }
    std::hint::black_box(sum);
    (written, rate(writes * chunk.len(), start))
}

fn event_log(path: &Path, payload: &[u8], batch: usize) -> (f64, f64) {
    let records = vec![Record { time_ms: 1, payload }; batch];
    let writes = TOTAL_BYTES / (payload.len() * batch);
    let start = Instant::now();
    let log = DirectoryLog::open(path).expect("a log");
    let options = TopicOptions { sync: Sync::EveryBytes(SYNC_BYTES), ..TopicOptions::default() };
    log.create("bench", options).expect("a topic");
    for _ in 0..writes {
        log.append("bench", 0, &records).expect("room on the disk");
    }
    log.sync().expect("a disk that syncs");
    let appended = rate(writes * payload.len() * batch, start);
    let start = Instant::now();
    let (mut from, mut out, mut sum) = (0, Records::default(), 0u64);
    loop {
        log.read("bench", 0, from, Limit { records: 4096, bytes: 256 << 10 }, &mut out)
            .expect("readable records");
        let Some(last) = out.last() else { break };
        from = last.offset + 1;
        sum += u64::from(last.payload[last.payload.len() / 2]);
    }
    std::hint::black_box(sum);
    assert_eq!(from as usize, writes * batch, "all records were read");
    (appended, rate(writes * payload.len() * batch, start))
}

fn rate(bytes: usize, start: Instant) -> f64 {
    bytes as f64 / 1e6 / start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
