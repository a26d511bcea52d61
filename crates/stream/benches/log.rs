//! The embedded log beside plain sequential file I/O of the same bytes with the same policy of syncing.
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
    println!(
        "{:>8} {:>7} {:>14} {:>14} {:>14} {:>14}",
        "payload", "batch", "append MB/s", "of plain", "read MB/s", "of plain"
    );
    for (payload_bytes, batch) in [(200, 64), (1000, 64), (1024, 64), (60_000, 1), (64 << 10, 1)] {
        let (mut append, mut append_share, mut read, mut read_share) = (vec![], vec![], vec![], vec![]);
        for _ in 0..ROUNDS {
            let _ = fs::remove_dir_all(&home);
            fs::create_dir_all(&home).expect("a directory to write in");
            let payload: Vec<u8> = (0..payload_bytes).map(|byte| (byte * 31 % 251) as u8).collect();
            let plain = plain_file(&home.join("plain"), &payload, batch);
            let log = event_log(&home.join("log"), &payload, batch);
            append.push(log.0);
            append_share.push(log.0 / plain.0);
            read.push(log.1);
            read_share.push(log.1 / plain.1);
        }
        println!(
            "{payload_bytes:>8} {batch:>7} {:>14.0} {:>13.0}% {:>14.0} {:>13.0}%",
            median(append),
            100.0 * median(append_share),
            median(read),
            100.0 * median(read_share)
        );
    }
    let _ = fs::remove_dir_all(&home);
}

/// MB/s of writing and of reading the payloads as one file.
fn plain_file(path: &Path, payload: &[u8], batch: usize) -> (f64, f64) {
    let chunk = payload.repeat(batch);
    let writes = TOTAL_BYTES / chunk.len();
    let start = Instant::now();
    let mut file = File::create(path).expect("a file");
    let mut unsynced = 0;
    for _ in 0..writes {
        file.write_all(&chunk).expect("room on the disk");
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
