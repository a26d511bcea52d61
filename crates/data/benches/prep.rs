//! Raw text to packed blocks, and packed blocks to batches, beside this machine's copy speed.
//!
//! Run with `cargo bench -p campanile-data --bench prep`; an argument sets the rows (default 1,000,000). The
//! rounds are interleaved and the best of each is shown, because other work on the machine only ever slows down.
//! Speeds are per second of processor time of the working thread, which other work hardly moves; the line with two
//! threads is per second of the clock.

use std::{fs, hint::black_box, time::Instant};

use campanile_data::{Dataset, PrepOptions, prepare};
use campanile_spec::{
    Batch,
    config::DataFiles,
    data::{
        BadRows, BagShape, Columns, DataSpec, DenseColumn, DenseTransform, IdMap, Keep, LabelColumn,
        SourceSpec, SparseColumn, SplitSpec,
    },
};

const ROUNDS: usize = 5;
const BATCH: u64 = 2048;

fn main() {
    let rows = std::env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(1_000_000);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let raw = dir.path().join("day.tsv");
    let text = lines(rows);
    let raw_bytes = text.len();
    fs::write(&raw, &text).expect("the raw file fits on the disk");
    let files = DataFiles { train: vec![raw.display().to_string()], ..DataFiles::default() };
    let hash = |salt| IdMap::Hash { salt };
    let vocabulary = |_| IdMap::Vocabulary { min_count: 2 };

    let mut copy = vec![0_u8; raw_bytes];
    let mut best = [f64::INFINITY; 6];
    for round in 0..ROUNDS {
        let cache = |name: &str| PrepOptions::new(dir.path().join(format!("{name}{round}")), 1);
        time(&mut best[0], || copy.copy_from_slice(black_box(text.as_bytes())));
        black_box(&copy);
        time(&mut best[1], || prepare(&criteo(hash, false), &files, &cache("hash"), &mut |_| ()).map(drop));
        let two = PrepOptions { threads: 2, ..cache("two") };
        let start = Instant::now();
        black_box(prepare(&criteo(hash, false), &files, &two, &mut |_| ()).map(drop))
            .expect("the data is sound");
        best[2] = best[2].min(start.elapsed().as_secs_f64());
        time(&mut best[3], || {
            prepare(&criteo(vocabulary, false), &files, &cache("vocabulary"), &mut |_| ()).map(drop)
        });
        let in_order =
            prepare(&criteo(hash, false), &files, &cache("hash"), &mut |_| ()).expect("it is there");
        let shuffled =
            prepare(&criteo(hash, true), &files, &cache("hash"), &mut |_| ()).expect("it is there");
        time(&mut best[4], || read_through(&in_order.train));
        time(&mut best[5], || read_through(&shuffled.train));
        for name in ["hash", "two", "vocabulary"] {
            fs::remove_dir_all(cache(name).cache_dir).expect("it was just made");
        }
    }
    println!("{rows} rows, {:.1} MB of text, best of {ROUNDS} rounds", raw_bytes as f64 / 1e6);
    let names =
        ["copy in memory", "text to packed, hashed", "  the same, 2 threads", "  vocabularies (2 passes)"];
    for (name, seconds) in names.iter().zip(best) {
        println!(
            "{name:28} {:9.0} MB/s {:9.3} M rows/s",
            raw_bytes as f64 / 1e6 / seconds,
            rows as f64 / 1e6 / seconds
        );
    }
    for (name, seconds) in ["packed to batch, in order", "packed to batch, shuffled"].iter().zip(&best[4..]) {
        let batch_bytes = rows as f64 * (13 + 26 + 26 + 1) as f64 * 4.0;
        println!(
            "{name:28} {:9.0} MB/s {:9.3} M rows/s",
            batch_bytes / 1e6 / seconds,
            rows as f64 / 1e6 / seconds
        );
    }
}

fn time<T>(best: &mut f64, work: impl FnOnce() -> T) {
    let start = thread_seconds();
    black_box(work());
    *best = (thread_seconds() - start).min(*best);
}

/// Processor time of this thread; the first number of the file, in nanoseconds.
fn thread_seconds() -> f64 {
    let facts = fs::read_to_string("/proc/thread-self/schedstat").expect("this bench needs Linux");
    let nanoseconds = facts.split(' ').next().and_then(|number| number.parse::<f64>().ok());
    nanoseconds.expect("the file begins with a number") / 1e9
}

fn read_through(dataset: &Dataset) {
    let (mut reader, mut batch) = (dataset.reader().expect("the file is there"), Batch::default());
    for start in (0..dataset.row_count()).step_by(BATCH as usize) {
        reader
            .read(0, start..(start + BATCH).min(dataset.row_count()), &mut batch)
            .expect("the file is sound");
        black_box(&batch);
    }
}

fn criteo(map: impl Fn(u64) -> IdMap, shuffle: bool) -> DataSpec {
    let dense = |number| DenseColumn {
        name: format!("I{number}"),
        missing: 0.0,
        transforms: vec![DenseTransform::Log1p],
    };
    let sparse = |number| SparseColumn {
        name: format!("C{number}"),
        shape: BagShape::One,
        bag_max: 1,
        keep: Keep::First,
        map: map(number),
        row_count: 1 << 20,
        weights: None,
    };
    DataSpec {
        source: SourceSpec::CriteoTsv,
        columns: Columns {
            labels: vec![LabelColumn { name: "label".into(), at_least: None, teacher: None }],
            dense: (1..=13).map(dense).collect(),
            sparse: (1..=26).map(sparse).collect(),
            ..Columns::default()
        },
        split: SplitSpec::ByFile,
        bad_rows: BadRows::Fail,
        shuffle,
        unknown_share: 0.0,
    }
}

/// Lines with the lengths of Criteo's: short counts, ids of eight digits, some cells empty.
fn lines(rows: usize) -> String {
    let mut state = 1_u64;
    let mut next = |count: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % count
    };
    let mut text = String::new();
    for _ in 0..rows {
        text += if next(4) == 0 { "1" } else { "0" };
        for column in 0..13 {
            text.push('\t');
            if next(6) > 0 {
                let bits = next(4 + column % 9);
                text += &next(2 << (bits + bits / 2)).to_string();
            }
        }
        for column in 0..26 {
            text.push('\t');
            if next(12) > 0 {
                text += &format!("{:08x}", (next(16 << (column % 16)) as u32).wrapping_mul(0x9e37_79b9));
            }
        }
        text.push('\n');
    }
    text
}
