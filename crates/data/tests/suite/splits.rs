//! Every way to hold rows out.

use std::collections::HashSet;

use campanile_data::{Raw, prepare};
use campanile_spec::{
    NO_GROUP,
    config::DataFiles,
    data::{Columns, DataSpec, IdMap, SplitSpec},
};

use crate::fixture::{Place, criteo, criteo_lines, csv, dense, label, list, read_all, sparse, train_files};

fn rows(range: std::ops::Range<usize>) -> String {
    let body: String = range.map(|row| format!("{},{row},{},{}\n", row % 2, row % 37, row / 10)).collect();
    format!("click,row,user,time\n{body}")
}

fn data(split: SplitSpec) -> DataSpec {
    let columns = Columns {
        labels: vec![label("click")],
        sparse: vec![
            sparse("row", IdMap::Direct, 1 << 20),
            sparse("user", IdMap::Vocabulary { min_count: 1 }, 100),
        ],
        time: Some("time".into()),
        ..Columns::default()
    };
    DataSpec { split, ..csv(columns) }
}

#[test]
fn by_row_the_last_shares_are_held_out() {
    let place = Place::new();
    let data = data(SplitSpec::ByRow { valid: 0.1, test: 0.25 });
    // Enough rows for several chunks and blocks, so that the splits begin inside them.
    let prepared = place.prepare(&data, &[place.write("rows.csv", rows(0..100_003))]).unwrap();
    let (valid, test) = (prepared.valid.unwrap(), prepared.test.unwrap());
    assert_eq!((prepared.train.row_count(), valid.row_count(), test.row_count()), (65_003, 10_000, 25_000));
    for (dataset, first) in [(&prepared.train, 0), (&valid, 65_003), (&test, 75_003)] {
        let batch = read_all(dataset);
        let want: Vec<u32> = (first..first + dataset.row_count() as u32).collect();
        assert_eq!(batch.bags.feature(0).rows, want);
    }
}

#[test]
fn by_row_only_training_rows_are_counted_for_vocabularies() {
    let place = Place::new();
    let mut data = data(SplitSpec::ByRow { valid: 0.0, test: 0.5 });
    data.columns.sparse = vec![sparse("row", IdMap::Vocabulary { min_count: 1 }, 1 << 20)];
    let prepared = place.prepare(&data, &[place.write("rows.csv", rows(0..60_000))]).unwrap();
    assert!(prepared.valid.is_none());
    let rows = &prepared.transforms;
    assert_eq!(rows.vocabulary_size(0), Some(30_000));
    assert_eq!(rows.row(0, Raw::Int(29_999)), Ok(Some(30_000)));
    assert_eq!(rows.row(0, Raw::Int(30_000)), Ok(Some(0)));
}

#[test]
fn by_time_rows_at_or_after_a_moment_are_held_out() {
    let place = Place::new();
    let data = data(SplitSpec::ByTime { valid_from: 60.into(), test_from: 80.into() });
    let prepared = place.prepare(&data, &[place.write("rows.csv", rows(0..1000))]).unwrap();
    let (valid, test) = (read_all(&prepared.valid.unwrap()), read_all(&prepared.test.unwrap()));
    let train = read_all(&prepared.train);
    assert_eq!((train.sample_count, valid.sample_count, test.sample_count), (600, 200, 200));
    assert!(train.times.iter().all(|&time| time < 60));
    assert!(valid.times.iter().all(|&time| (60..80).contains(&time)));
    assert!(test.times.iter().all(|&time| time >= 80));
}

#[test]
fn by_hash_an_id_is_in_one_split_only() {
    let place = Place::new();
    let data = data(SplitSpec::ByHash { column: "row".into(), valid: 0.2, test: 0.1 });
    let prepared = place.prepare(&data, &[place.write("rows.csv", rows(0..20_000))]).unwrap();
    let counts =
        [&prepared.train, prepared.valid.as_ref().unwrap(), prepared.test.as_ref().unwrap()].map(|split| {
            let batch = read_all(split);
            assert!(batch.bags.feature(0).rows.is_sorted(), "file order is kept");
            batch.sample_count as f64
        });
    // Six deviations of a binomial count with 20,000 trials.
    for (count, want) in counts.into_iter().zip([14_000.0, 4000.0, 2000.0]) {
        assert!((count - want).abs() < 6.0 * (want * (1.0 - want / 20_000.0)).sqrt(), "{counts:?}");
    }

    let by_user =
        DataSpec { split: SplitSpec::ByHash { column: "user".into(), valid: 0.3, test: 0.3 }, ..data };
    let prepared = place.prepare(&by_user, &[place.write("rows.csv", rows(0..20_000))]).unwrap();
    let splits = [&prepared.train, prepared.valid.as_ref().unwrap(), prepared.test.as_ref().unwrap()];
    let users = splits.map(|split| {
        let rows = read_all(split).bags.feature(0).rows.to_vec();
        rows.into_iter().map(|row| row % 37).collect::<HashSet<u32>>()
    });
    assert!(
        users[0].is_disjoint(&users[1]) && users[0].is_disjoint(&users[2]) && users[1].is_disjoint(&users[2])
    );
    assert_eq!(users.iter().map(HashSet::len).sum::<usize>(), 37);
}

#[test]
fn by_file_every_split_has_its_own() {
    let place = Place::new();
    let files = DataFiles {
        valid: vec![place.write("b.csv", rows(100..130))],
        test: vec![place.write("c.csv", rows(130..150))],
        ..train_files(&[place.write("a.csv", rows(0..100))])
    };
    let prepared = prepare(&data(SplitSpec::ByFile), &files, &place.options(), &mut |_| ()).unwrap();
    let (valid, test) = (read_all(&prepared.valid.unwrap()), read_all(&prepared.test.unwrap()));
    assert_eq!(read_all(&prepared.train).bags.feature(0).rows, (0..100).collect::<Vec<u32>>());
    assert_eq!(valid.bags.feature(0).rows, (100..130).collect::<Vec<u32>>());
    assert_eq!(test.bags.feature(0).rows, (130..150).collect::<Vec<u32>>());
    assert!(valid.bags.feature(1).rows.iter().all(|&row| row > 0), "users of the training file are known");
}

#[test]
fn a_file_may_be_named_once() {
    let place = Place::new();
    let data = criteo(|salt| IdMap::Hash { salt });
    let days: Vec<String> =
        (1..=3).map(|day| place.write(&format!("day_{day}.tsv"), criteo_lines(10, day))).collect();
    let pattern = place.path("day_*.tsv").to_string_lossy().into_owned();
    let files =
        DataFiles { train: vec![pattern.clone()], test: vec![days[2].clone()], ..DataFiles::default() };
    let error = prepare(&data, &files, &place.options(), &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("day_3.tsv is named twice"), "{error}");
    assert!(error.contains("under `train`") && error.contains("under `test`"), "{error}");
    let error = place.error(&data, &[pattern, days[0].clone()]);
    assert!(error.contains("day_1.tsv is named twice"), "{error}");
}

#[test]
fn day_2_comes_before_day_10() {
    let place = Place::new();
    let mut data =
        csv(Columns { labels: vec![label("y")], dense: vec![dense("x", &[])], ..Columns::default() });
    data.shuffle = false;
    for day in [1, 2, 10] {
        place.write(&format!("day_{day}.csv"), format!("y,x\n0,{day}\n1,{day}\n"));
    }
    let pattern = place.path("day_*.csv").to_string_lossy().into_owned();
    let rows = read_all(&place.prepare(&data, &[pattern]).unwrap().train);
    assert_eq!(rows.dense, [1.0, 1.0, 2.0, 2.0, 10.0, 10.0]);
}

/// A file changed in place, with its length and time kept, is another file.
#[test]
fn changed_contents_are_packed_anew() {
    let place = Place::new();
    let data = csv(Columns { labels: vec![label("y")], dense: vec![dense("x", &[])], ..Columns::default() });
    let file = place.write("day.csv", "y,x\n0,1\n1,2\n");
    let time = std::fs::metadata(&file).unwrap().modified().unwrap();
    place.prepare(&data, std::slice::from_ref(&file)).unwrap();
    place.write("day.csv", "y,x\n0,7\n1,8\n");
    std::fs::File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
    let mut dense = read_all(&place.prepare(&data, &[file]).unwrap().train).dense;
    dense.sort_by(f32::total_cmp);
    assert_eq!(dense, [7.0, 8.0]);
}

/// Rows without a user, say, are not one user: they have no group, and each goes to a split of its own.
#[test]
fn missing_values_are_not_one_value() {
    let place = Place::new();
    let mut data = data(SplitSpec::ByHash { column: "user".into(), valid: 0.3, test: 0.2 });
    data.columns.group = Some("user".into());
    let body: String =
        (0..4000).map(|row| format!("{},{row},{},{}\n", row % 2, [" ", "7"][row % 2], row)).collect();
    let text = format!("click,row,user,time\n{body}");
    let prepared = place.prepare(&data, &[place.write("rows.csv", &text)]).unwrap();
    let splits = [Some(&prepared.train), prepared.valid.as_ref(), prepared.test.as_ref()].map(|split| {
        let batch = read_all(split.unwrap());
        let nobody = batch.groups.iter().filter(|group| **group == NO_GROUP).count();
        for (row, group) in batch.bags.feature(0).rows.iter().zip(&batch.groups) {
            assert_eq!(*group == NO_GROUP, row % 2 == 0, "row {row}");
        }
        (nobody, batch.sample_count - nobody)
    });
    // Six deviations of a binomial count of 2,000 trials; user 7 is in one split only.
    for ((nobody, _), want) in splits.into_iter().zip([1000.0, 600.0, 400.0]) {
        assert!((nobody as f64 - want).abs() < 6.0 * (want * (1.0 - want / 2000.0_f64)).sqrt(), "{splits:?}");
    }
    let mut of_user: Vec<usize> = splits.iter().map(|(_, somebody)| *somebody).collect();
    of_user.sort_unstable();
    assert_eq!(of_user, [0, 0, 2000]);
}

#[test]
fn labels_that_keep_together_are_told_where_they_are_trained_on_so() {
    let place = Place::new();
    let rows = |label: fn(usize) -> usize| -> String {
        let rows = (0..20_000).map(|row| format!("{},{row},{},{row}\n", label(row), row % 37));
        format!("click,row,user,time\n{}", rows.collect::<String>())
    };
    let sorted = place.write("sorted.csv", rows(|row| usize::from(row >= 15_000)));
    let mixed = place.write("mixed.csv", rows(|row| usize::from(row * 7 % 20 < 5)));
    let mut data = data(SplitSpec::ByFile);
    let warnings =
        |data: &DataSpec, file: &String| place.prepare(data, std::slice::from_ref(file)).unwrap().warnings;
    let told = warnings(&data, &sorted);
    assert!(
        matches!(&told[..], [one] if one.contains("label `click`") && one.contains("0.000 to 1.000")),
        "{told:?}"
    );
    assert!(told[0].contains("`shuffle = true`"), "{told:?}");
    assert_eq!(warnings(&data, &mixed), Vec::<String>::new());
    // The whole split is mixed then.
    data.shuffle = true;
    assert_eq!(warnings(&data, &sorted), Vec::<String>::new());
}

#[test]
fn times_that_fall_between_files_are_told() {
    let place = Place::new();
    let files = [("b.csv", 0..100), ("a.csv", 100..200)].map(|(name, range)| place.write(name, rows(range)));
    let mut data = data(SplitSpec::ByRow { valid: 0.0, test: 0.2 });
    data.shuffle = true;
    let warnings = |data: &DataSpec, files: &[String]| place.prepare(data, files).unwrap().warnings;
    assert_eq!(warnings(&data, &files), Vec::<String>::new());
    let falling = [files[1].clone(), files[0].clone()];
    let told = warnings(&data, &falling);
    assert!(matches!(&told[..], [one] if one.contains("times fall between files")), "{told:?}");
    assert!(
        told[0].contains("a.csv begins at 10") && told[0].contains("b.csv, read after it, ends at 9"),
        "{told:?}"
    );
    // The order of the files does not matter where rows are shuffled and not split by it.
    data.split = SplitSpec::ByFile;
    assert_eq!(warnings(&data, &falling), Vec::<String>::new());
}

#[test]
fn ids_without_a_row_are_counted_by_split() {
    let place = Place::new();
    let counts = |data: &DataSpec, text: String| {
        let prepared = place.prepare(data, &[place.write("rows.csv", text)]).unwrap();
        prepared.ids.map(|columns| columns.iter().map(|one| (one.ids, one.unknown)).collect::<Vec<_>>())
    };
    let mut by_row = data(SplitSpec::ByRow { valid: 0.25, test: 0.25 });
    // The row's number is an id that comes once; lists have one known id and one that no other row has.
    let vocabulary = |min_count| IdMap::Vocabulary { min_count };
    by_row.columns.sparse = vec![
        sparse("row", vocabulary(1), 1 << 20),
        sparse("user", vocabulary(1), 100),
        list("both", vocabulary(2), 1 << 20),
    ];
    // Rows of several chunks, so that the splits begin inside them.
    let body: String =
        (0..40_000).map(|row| format!("{},{row},{},{row},{}|r{row}\n", row % 2, row % 37, row % 5)).collect();
    let text = format!("click,row,user,time,both\n{body}");
    let [train, valid, test] = counts(&by_row, text.clone());
    assert_eq!(train, [(20_000, 0), (20_000, 0), (40_000, 20_000)]);
    assert_eq!(valid, [(10_000, 10_000), (10_000, 0), (20_000, 10_000)]);
    assert_eq!(test, valid);
    let by_time = DataSpec {
        split: SplitSpec::ByTime { valid_from: 30_000.into(), test_from: 39_999.into() },
        ..by_row
    };
    let [train, valid, test] = counts(&by_time, text);
    assert_eq!(train[2], (60_000, 30_000));
    assert_eq!((valid[0], test[0]), ((9_999, 9_999), (1, 1)));
}
