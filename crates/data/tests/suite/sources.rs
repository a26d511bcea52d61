//! Criteo's files, plain and compressed, against a plain reading of the same lines.

use std::{
    collections::{BTreeMap, HashSet},
    io::Write,
};

use campanile_data::{Raw, prepare};
use campanile_spec::{
    Batch,
    data::{Columns, DataSpec, IdMap},
};

use crate::fixture::{Place, criteo, criteo_lines, csv, label, packed_files, read_all, sparse, train_files};

#[test]
fn criteo_rows_are_what_the_transforms_say() {
    let place = Place::new();
    let text = criteo_lines(3000, 1);
    let prepared =
        place.prepare(&criteo(|salt| IdMap::Hash { salt }), &[place.write("day.tsv", &text)]).unwrap();
    let batch = read_all(&prepared.train);
    assert_eq!((batch.sample_count, prepared.train.row_count()), (3000, 3000));
    assert!(prepared.valid.is_none() && prepared.test.is_none());
    for (row, line) in text.lines().enumerate() {
        let cells: Vec<&str> = line.split('\t').collect();
        assert_eq!(batch.labels[row].to_string(), cells[0]);
        for column in 0..13 {
            let count: f32 =
                if cells[1 + column].is_empty() { 0.0 } else { cells[1 + column].parse().unwrap() };
            let want = f64::from(count.max(0.0)).ln_1p() as f32;
            assert_eq!(
                batch.dense[row * 13 + column].to_bits(),
                want.to_bits(),
                "row {row}, I{}",
                column + 1
            );
        }
        for column in 0..26 {
            let raw = Raw::text(cells[14 + column].as_bytes());
            let want = prepared.transforms.row(column, raw).unwrap().unwrap();
            assert_eq!(batch.bags.feature(column).bag(row), [want], "row {row}, C{}", column + 1);
        }
    }
}

#[test]
fn criteo_vocabularies_rank_ids_as_a_plain_count_does() {
    let place = Place::new();
    let text = criteo_lines(4000, 8);
    let data = criteo(|_| IdMap::Vocabulary { min_count: 4 });
    let prepared = place.prepare(&data, &[place.write("day.tsv", &text)]).unwrap();
    let batch = read_all(&prepared.train);
    for column in 0..26 {
        let ids: Vec<&str> = text.lines().map(|line| line.split('\t').nth(14 + column).unwrap()).collect();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        ids.iter().for_each(|id| *counts.entry(id).or_default() += 1);
        let rows: BTreeMap<&str, u32> =
            ids.iter().copied().zip(batch.bags.feature(column).rows.iter().copied()).collect();
        let mut frequent: Vec<(&str, usize)> =
            counts.clone().into_iter().filter(|(_, count)| *count >= 4).collect();
        frequent.sort_by_key(|(id, _)| rows[id]);
        assert!(
            frequent.iter().enumerate().all(|(place, (id, _))| rows[id] == place as u32 + 1),
            "C{}",
            column + 1
        );
        assert!(frequent.is_sorted_by(|a, b| a.1 > b.1 || (a.1 == b.1 && in_key_order(a.0, b.0))));
        assert!(counts.iter().all(|(id, count)| *count >= 4 || rows[id] == 0), "rare ids share row 0");
    }
}

/// Ids of equal count stand in the order of their numbers; where the missing id stands is not said.
fn in_key_order(first: &str, second: &str) -> bool {
    first.is_empty() || second.is_empty() || first < second
}

#[test]
fn compression_threads_and_memory_do_not_change_the_bytes() {
    let text = criteo_lines(6000, 2);
    let (first, second) = text.split_at(text.len() / 2 + text[text.len() / 2..].find('\n').unwrap() + 1);
    let data =
        criteo(|salt| if salt % 2 == 0 { IdMap::Hash { salt } } else { IdMap::Vocabulary { min_count: 3 } });
    let mut results = Vec::new();
    for (form, threads, memory_mib) in
        [("plain", 1, 8), ("gzip", 2, 64), ("zstd", 3, 16), ("members", 2, 1024)]
    {
        let place = Place::new();
        let bytes = match form {
            "gzip" => gzip(text.as_bytes()),
            "zstd" => zstd::encode_all(text.as_bytes(), 3).unwrap(),
            "members" => [gzip(first.as_bytes()), gzip(second.as_bytes())].concat(),
            _ => text.clone().into_bytes(),
        };
        // The name says nothing: the contents decide.
        let files = train_files(&[place.write("day.txt", bytes)]);
        let mut options = place.options();
        (options.threads, options.memory_mib) = (threads, memory_mib);
        let prepared = prepare(&data, &files, &options, &mut |_| ()).unwrap();
        results.push((packed_files(&place.path("cache")), prepared.fingerprint));
    }
    assert!(results.iter().all(|result| *result == results[0]));
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn several_files_and_patterns_are_read_in_sorted_order() {
    let place = Place::new();
    let text = criteo_lines(300, 3);
    let lines: Vec<&str> = text.lines().collect();
    for (name, part) in [("b_2.tsv", 200..300), ("b_1.tsv", 100..200), ("a.tsv", 0..100)] {
        place.write(name, lines[part].join("\n")); // The last line has no line break.
    }
    let data = criteo(|salt| IdMap::Hash { salt });
    let pattern = place.path("b_*.tsv").display().to_string();
    let parts = place.prepare(&data, &[place.path("a.tsv").display().to_string(), pattern]).unwrap();
    let whole = place.prepare(&data, &[place.write("whole.tsv", &text)]).unwrap();
    assert_eq!(read_all(&parts.train), read_all(&whole.train));
    assert_eq!(parts.fingerprint, whole.fingerprint);
}

#[test]
fn a_second_call_finds_the_finished_set() {
    let place = Place::new();
    let data = criteo(|salt| IdMap::Hash { salt });
    let file = place.write("day.tsv", criteo_lines(100, 4));
    let files = train_files(std::slice::from_ref(&file));
    let mut reports = 0;
    let first = prepare(&data, &files, &place.options(), &mut |_| reports += 1).unwrap();
    assert!(reports > 0);
    let again = prepare(&data, &files, &place.options(), &mut |_| panic!("nothing is left to do")).unwrap();
    assert_eq!(first.fingerprint, again.fingerprint);
    place.write("day.tsv", criteo_lines(101, 4));
    let changed = prepare(&data, &files, &place.options(), &mut |_| ()).unwrap();
    assert_eq!(changed.train.row_count(), 101);
    assert_ne!(first.fingerprint, changed.fingerprint);
}

#[test]
fn shuffled_epochs_hold_the_same_rows_in_other_orders() {
    let place = Place::new();
    let mut data = criteo(|salt| IdMap::Hash { salt });
    let files = [place.write("day.tsv", criteo_lines(20_000, 5))];
    let in_order = read_all(&place.prepare(&data, &files).unwrap().train);
    data.shuffle = true;
    let shuffled = place.prepare(&data, &files).unwrap().train;
    let row = |batch: &Batch, row: usize| {
        let dense: Vec<u32> = batch.dense[row * 13..][..13].iter().map(|value| value.to_bits()).collect();
        let ids: Vec<u32> = (0..26).map(|feature| batch.bags.feature(feature).bag(row)[0]).collect();
        (batch.labels[row] as u32, dense, ids)
    };
    let rows = |batch: &Batch| (0..batch.sample_count).map(|index| row(batch, index)).collect::<Vec<_>>();
    let mut reader = shuffled.reader().unwrap();
    let mut epochs = Vec::new();
    for epoch in 0..2 {
        let (mut batch, mut all) = (Batch::default(), Vec::new());
        for start in (0..20_000).step_by(1024) {
            reader.read(epoch, start..(start + 1024).min(20_000), &mut batch).unwrap();
            all.extend(rows(&batch));
        }
        epochs.push(all);
    }
    assert_ne!(epochs[0], epochs[1]);
    assert_ne!(epochs[0], rows(&in_order));
    // A reader that starts in the middle sees what a reader that came from the start sees.
    let mut batch = Batch::default();
    shuffled.reader().unwrap().read(1, 9000..9100, &mut batch).unwrap();
    assert_eq!(rows(&batch), epochs[1][9000..9100]);
    let mut want = rows(&in_order);
    want.sort();
    for mut epoch in epochs {
        epoch.sort();
        assert_eq!(epoch, want);
    }
}

#[test]
fn positions_that_are_not_there_are_refused() {
    let place = Place::new();
    let data = criteo(|salt| IdMap::Hash { salt });
    let prepared = place.prepare(&data, &[place.write("day.tsv", criteo_lines(10, 6))]).unwrap();
    let error = prepared.train.reader().unwrap().read(0, 5..11, &mut Batch::default()).unwrap_err();
    assert_eq!(error.to_string(), "rows 5..11 were asked for, the split has 10");
}

/// A file sorted by label and by user: every batch of a shuffled epoch has the label rate and the users of the whole file,
/// in any epoch, from the seed alone.
#[test]
fn a_sorted_file_is_mixed_across_blocks() {
    const ROWS: u64 = 150_000;
    let place = Place::new();
    let columns = Columns {
        labels: vec![label("click")],
        sparse: vec![sparse("user", IdMap::Direct, ROWS)],
        ..Columns::default()
    };
    let body: String =
        (0..ROWS).map(|row| format!("{},{}\n", u8::from(row >= ROWS * 3 / 4), row / 1000)).collect();
    let data = DataSpec { shuffle: true, ..csv(columns) };
    let files = [place.write("rows.csv", format!("click,user\n{body}"))];
    let train = place.prepare(&data, &files).unwrap().train;
    let (mut reader, mut again) = (train.reader().unwrap(), train.reader().unwrap());
    let (mut batch, mut part) = (Batch::default(), Batch::default());
    for epoch in [0, 3] {
        for start in (0..ROWS - 1000).step_by(14_900) {
            reader.read(epoch, start..start + 1000, &mut batch).unwrap();
            let clicks = batch.labels.iter().filter(|label| **label == 1.0).count();
            // Six deviations of a binomial count of 1,000 trials.
            assert!((168..332).contains(&clicks), "{clicks} of 1,000 at {start}, epoch {epoch}");
            let users: HashSet<u32> = batch.bags.feature(0).rows.iter().copied().collect();
            assert!(users.len() > 140, "{} of 150 users at {start}, epoch {epoch}", users.len());
            // Another rank, or a run that goes on, reads its part alone.
            again.read(epoch, start + 600..start + 900, &mut part).unwrap();
            assert_eq!(part, batch.slice(600..900));
        }
    }
}
