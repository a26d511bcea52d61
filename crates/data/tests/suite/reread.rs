//! Rows read once more for other models are the packed rows, with other columns; some rows are evenly spread ones.

use campanile_data::{Prepared, Reread, Transforms};
use campanile_spec::{
    Batch,
    config::DataFiles,
    data::{BadRows, Columns, DataSpec, DenseTransform, IdMap, Split, SplitSpec},
};

use crate::fixture::{Numbers, Place, csv, dense, label, list, sparse};

/// Rows in no order, with empty cells, lists, weights, times, groups and segments.
fn rows(seed: u64, count: usize) -> String {
    let mut numbers = Numbers(seed);
    let mut text = "click,bought,price,age,user,items,shares,worth,time,shop,more\n".to_owned();
    for row in 0..count {
        let some = |numbers: &mut Numbers, below| match numbers.below(6) {
            0 => String::new(),
            _ => numbers.below(below).to_string(),
        };
        let items = numbers.below(4) as usize;
        let list = |numbers: &mut Numbers| {
            (0..items).map(|_| numbers.below(50).to_string()).collect::<Vec<_>>().join("|")
        };
        let (click, bought) = (numbers.below(2), numbers.below(2));
        let (price, age) = (some(&mut numbers, 90), some(&mut numbers, 9));
        let (user, items, shares) = (some(&mut numbers, 300), list(&mut numbers), list(&mut numbers));
        let (worth, shop) = (1 + numbers.below(3), numbers.below(5));
        let more = numbers.below(1000);
        text +=
            &format!("{click},{bought},{price},{age},{user},{items},{shares},{worth},{row},s{shop},{more}\n");
    }
    text
}

fn data(split: SplitSpec) -> DataSpec {
    let mut items = list("items", IdMap::Hash { salt: 0 }, 40);
    items.weights = Some("shares".into());
    let columns = Columns {
        labels: vec![label("click"), label("bought")],
        dense: vec![dense("price", &[DenseTransform::Standardise]), dense("age", &[])],
        sparse: vec![sparse("user", IdMap::Vocabulary { min_count: 2 }, 400), items],
        sample_weight: Some("worth".into()),
        time: Some("time".into()),
        group: Some("user".into()),
        segment: Some("shop".into()),
        ..Columns::default()
    };
    DataSpec { split, bad_rows: BadRows::Skip { rows_max: 100 }, ..csv(columns) }
}

fn reread(
    data: &DataSpec,
    files: &DataFiles,
    prepared: &Prepared,
    (split, rows): (Split, u64),
    models: &[&Transforms],
) -> Vec<Vec<Batch>> {
    let mut found = Vec::new();
    let asked = Reread { data, files, prepared, split, rows, threads: 2, models };
    asked
        .each(|batches| -> Result<(), campanile_data::DataError> {
            found.push(batches.to_vec());
            Ok(())
        })
        .unwrap();
    found
}

#[test]
fn the_same_rows_come_from_the_raw_files_for_every_split() {
    let place = Place::new();
    let files = [place.write("a.csv", rows(1, 7_000)), place.write("b.csv", rows(2, 5_000))];
    let one = |names: &[String]| DataFiles { train: names.to_vec(), ..DataFiles::default() };
    let by_file =
        DataFiles { train: vec![files[1].clone()], valid: vec![files[0].clone()], ..DataFiles::default() };
    let cases = [
        (SplitSpec::ByFile, by_file),
        (SplitSpec::ByRow { valid: 0.3, test: 0.1 }, one(&files)),
        (SplitSpec::ByTime { valid_from: 3_000.into(), test_from: 6_000.into() }, one(&files)),
        (SplitSpec::ByHash { column: "user".into(), valid: 0.4, test: 0.2 }, one(&files)),
    ];
    for (split, files) in cases {
        let data = data(split.clone());
        let prepared = campanile_data::prepare(&data, &files, &place.options(), &mut |_| ()).unwrap();
        // Another model: other columns in another order, one of them with rows for some of the ids only.
        let mut other = data.clone();
        // A column that the job does not read must not move a row to another split.
        other.columns.dense = vec![dense("age", &[]), dense("more", &[])];
        other.columns.sparse = vec![data.columns.sparse[1].clone(), sparse("user", IdMap::Direct, 100)];
        let other = Transforms::unmeasured_of(&other).unwrap().unwrap();
        let valid = prepared.valid.as_ref().unwrap();
        for count in [0, 100, valid.row_count() - 1] {
            let packed = valid.evenly(count);
            let wanted = if count == 0 { valid.row_count() } else { count };
            assert_eq!(packed.row_count(), wanted);
            let found =
                reread(&data, &files, &prepared, (Split::Valid, count), &[&prepared.transforms, &other]);
            let (mut reader, mut position, mut batch) = (packed.reader().unwrap(), 0, Batch::default());
            for batches in &found {
                let [own, others] = &batches[..] else { panic!("{} batches", batches.len()) };
                let rows = position..position + own.sample_count as u64;
                reader.read(0, rows.clone(), &mut batch).unwrap();
                assert_eq!(*own, batch, "rows {rows:?} of {wanted}, {split:?}");
                assert_eq!((&others.labels, &others.weights), (&own.labels, &own.weights));
                let ages = own.dense.chunks_exact(2).map(|row| row[1]);
                assert!(others.dense.chunks_exact(2).map(|row| row[0]).eq(ages));
                assert_eq!(others.bags.feature(0).rows, own.bags.feature(1).rows);
                assert!(others.bags.feature(1).rows.iter().all(|&row| row < 100));
                position = rows.end;
            }
            assert_eq!(position, wanted, "{split:?}");
        }
    }
}

#[test]
fn a_column_that_the_files_have_not_is_named() {
    let place = Place::new();
    let files = [place.write("a.csv", rows(1, 500))];
    let files = DataFiles { train: files.to_vec(), ..DataFiles::default() };
    let data = data(SplitSpec::ByRow { valid: 0.5, test: 0.0 });
    let prepared = campanile_data::prepare(&data, &files, &place.options(), &mut |_| ()).unwrap();
    let mut other = data.clone();
    other.columns.dense = vec![dense("height", &[])];
    other.columns.sparse.clear();
    let other = Transforms::unmeasured_of(&other).unwrap().unwrap();
    let asked = Reread {
        data: &data,
        files: &files,
        prepared: &prepared,
        split: Split::Valid,
        rows: 0,
        threads: 1,
        models: &[&other],
    };
    let error = asked.each(|_| Ok::<(), campanile_data::DataError>(())).unwrap_err().to_string();
    assert!(error.contains("a.csv") && error.contains("height"), "{error}");
}
