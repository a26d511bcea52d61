use campanile_spec::{Bags, data::SourceSpec, world::WorldSpec};
use proptest::prelude::*;

use super::*;
use crate::world::{View, World};

#[test]
fn cells_come_back() {
    let cells = [
        Raw::Missing,
        Raw::Int(7),
        Raw::Int(-7),
        Raw::Int(1 << 40),
        Raw::Float(0.5),
        Raw::Float(0.1),
        Raw::Text(b"blue"),
        Raw::unsigned(u64::MAX),
    ];
    let mut row = Vec::new();
    cells.iter().for_each(|cell| put(&mut row, *cell));
    put_list(&mut row, [Raw::Int(1), Raw::Text(b"x")]);
    let mut starts = Vec::new();
    find_cells(&row, cells.len() + 1, &mut starts).unwrap();
    for (cell, start) in cells.iter().zip(&starts) {
        assert_eq!(value(&row[*start..]), Some(*cell));
    }
    let places: Vec<Place> = (0..starts.len()).map(Place::Cell).collect();
    let logged = Logged { row: &row, starts: &starts, places: &places, time_ms: 0 };
    let mut items = Vec::new();
    let seen = logged.several(8, |item| {
        items.push(item.shown());
        Ok(())
    });
    assert_eq!((seen, items), (Ok(()), vec!["1".to_owned(), "x".to_owned()]));
    for end in 0..row.len() {
        assert!(find_cells(&row[..end], 9, &mut starts).is_err(), "{end}");
    }
}

proptest! {
    #[test]
    fn no_bytes_are_read_past_their_end(row in prop::collection::vec(0u8..8, 0..40), count in 0usize..6) {
        let mut starts = Vec::new();
        if find_cells(&row, count, &mut starts).is_ok() {
            for start in starts {
                prop_assert!(length(&row[start..]).is_some());
            }
        }
    }
}

/// A world's samples written to a log and read by the same job are the samples that the world itself gives.
#[test]
fn logged_samples_are_the_samples() {
    for (view, spec) in [
        (View::Student, WorldSpec { train_samples: 500, ..WorldSpec::live() }),
        (View::Teacher, WorldSpec { train_samples: 500, view: View::Teacher, ..WorldSpec::live() }),
        (
            View::Student,
            WorldSpec {
                train_samples: 300,
                bag_min: campanile_spec::world::PerFeature::All(0),
                bag_max: campanile_spec::world::PerFeature::All(4),
                ..WorldSpec::default()
            },
        ),
    ] {
        let world = World::new(&spec, 3).unwrap();
        let data = DataSpec {
            source: SourceSpec::Synthetic(spec.clone()),
            columns: spec.columns(view),
            split: SplitSpec::ByFile,
            bad_rows: campanile_spec::data::BadRows::Fail,
            shuffle: false,
            unknown_share: 0.0,
        };
        let transforms = Transforms::unmeasured_of(&data).unwrap().unwrap();
        let mut logged = LoggedRows::new(&data, transforms).unwrap();
        // The log has what a teacher sees, whoever reads it.
        let all = world.clone().seen_by(View::Teacher);
        logged.set_columns(&all.logged_names()).unwrap();
        let (mut rows, mut seen, mut want) = (Batch::default(), Batch::default(), Batch::default());
        all.read(campanile_spec::data::Split::Train, 0, 100..300, &mut rows);
        world.read(campanile_spec::data::Split::Train, 0, 100..300, &mut want);
        let mut row = Vec::new();
        for sample in 0..rows.sample_count {
            row.clear();
            all.log_row(&rows, sample, &mut row);
            let tasks = want.labels.chunks(want.sample_count);
            let labels: Vec<Option<bool>> = tasks
                .map(|task| if task[sample].is_nan() { None } else { Some(task[sample] == 1.0) })
                .collect();
            logged.push(&row, &labels, rows.times[sample]).unwrap();
        }
        logged.write(&mut seen);
        want.true_probabilities.clear();
        // Users are hashed like any group.
        want.groups.iter_mut().for_each(|user| *user = crate::value::mix(*user));
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&seen.labels), bits(&want.labels));
        (seen.labels, want.labels) = (Vec::new(), Vec::new());
        assert_eq!(seen, want);
    }
}

#[test]
fn what_cannot_be_read_is_named() {
    let spec = WorldSpec {
        sparse_count: 2,
        dense_count: 1,
        hidden_groups: 1,
        across_pairs: 0,
        ..WorldSpec::default()
    };
    let data = DataSpec {
        source: SourceSpec::Synthetic(spec.clone()),
        columns: spec.columns(View::Student),
        split: SplitSpec::ByFile,
        bad_rows: campanile_spec::data::BadRows::Fail,
        shuffle: false,
        unknown_share: 0.0,
    };
    let mut logged = LoggedRows::new(&data, Transforms::unmeasured_of(&data).unwrap().unwrap()).unwrap();
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let error = logged.set_columns(&names(&["usr", "age"])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the job reads `dense_1` and other columns, of which the log's rows have none; they have `usr`, `age`"
    );
    logged.set_columns(&names(&["user", "domain", "dense_1", "sparse_1", "sparse_2"])).unwrap();
    let mut row = Vec::new();
    for cell in [Raw::Int(1), Raw::Int(0), Raw::Float(0.5), Raw::Int(3), Raw::Int(5000)] {
        put(&mut row, cell);
    }
    let error = logged.push(&row, &[Some(true)], 0).unwrap_err().to_string();
    assert!(error.contains("column `sparse_2`, value `5000`"), "{error}");
    let mut batch = Batch::default();
    logged.write(&mut batch);
    assert_eq!((batch.sample_count, batch.bags), (0, Bags::one_row_each(2, 0, Vec::new())));
}

#[test]
fn a_column_that_a_client_left_out_is_missing() {
    let sparse = |name: &str, map| campanile_spec::data::SparseColumn {
        name: name.to_owned(),
        shape: campanile_spec::data::BagShape::One,
        bag_max: 1,
        keep: campanile_spec::data::Keep::First,
        map,
        row_count: 100,
        weights: None,
    };
    let columns = campanile_spec::data::Columns {
        labels: vec![campanile_spec::data::LabelColumn {
            name: "click".into(),
            at_least: None,
            teacher: None,
        }],
        dense: vec![campanile_spec::data::DenseColumn {
            name: "age".into(),
            missing: 5.0,
            transforms: vec![],
        }],
        sparse: vec![
            sparse("user", campanile_spec::data::IdMap::Hash { salt: 0 }),
            sparse("item", campanile_spec::data::IdMap::Direct),
        ],
        time: Some("time".into()),
        segment: Some("site".into()),
        ..campanile_spec::data::Columns::default()
    };
    let data = DataSpec {
        source: SourceSpec::Parquet,
        columns,
        split: SplitSpec::ByFile,
        bad_rows: campanile_spec::data::BadRows::Fail,
        shuffle: false,
        unknown_share: 0.0,
    };
    let transforms = Transforms::unmeasured_of(&data).unwrap().unwrap();
    let missing_user = transforms.row(0, Raw::Missing).unwrap().unwrap();
    let mut logged = LoggedRows::new(&data, transforms).unwrap();
    let columns = ["item", "time", "site"].map(str::to_owned);
    logged.set_columns(&columns).unwrap();
    let row = |cells: &[Raw<'_>]| {
        let mut row = Vec::new();
        cells.iter().for_each(|cell| put(&mut row, *cell));
        row
    };
    let good = row(&[Raw::Int(7), Raw::Missing, Raw::Text(b"7.0")]);
    assert_eq!(logged.check(&good, &[None], 1), Ok(()));
    logged.push(&good, &[Some(true)], 33).unwrap();
    // Text for a number is the record's own trouble, and leaves nothing behind.
    let bad = row(&[Raw::Text(b"seven"), Raw::Missing, Raw::Missing]);
    assert!(logged.check(&bad, &[None], 1).is_err());
    assert!(logged.push(&bad, &[None], 34).is_err());
    let mut batch = Batch::default();
    logged.write(&mut batch);
    assert_eq!((batch.sample_count, &batch.times[..], &batch.segments[..]), (1, &[33][..], &[7][..]));
    assert_eq!((batch.dense, batch.bags.rows()), (vec![5.0], &[missing_user, 7][..]));
}
