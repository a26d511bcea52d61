use campanile_spec::data::BagShape;
use proptest::prelude::*;

use super::*;

fn dense(transforms: Vec<DenseTransform>) -> DenseColumn {
    DenseColumn { name: "price".into(), missing: 2.0, transforms }
}

fn sparse(map: IdMap, row_count: u64) -> SparseColumn {
    let (name, shape, keep) = ("item".into(), BagShape::One, Keep::First);
    SparseColumn { name, shape, bag_max: 1, keep, map, row_count, weights: None }
}

fn build(dense: Vec<DenseColumn>, sparse: Vec<SparseColumn>) -> Result<Transforms, DataError> {
    Transforms::build(IdText::Plain, dense, sparse, Measured::default())
}

#[test]
fn dense_steps_apply_in_order() {
    let clip = DenseTransform::Clip { min: -1.0, max: 1.5 };
    let transforms = build(vec![dense(vec![DenseTransform::Log1p, clip])], vec![]).unwrap();
    assert_eq!(transforms.dense(0, Raw::Int(1)), Ok(1_f32.ln_1p()));
    assert_eq!(transforms.dense(0, Raw::Float(-3.0)), Ok(0.0));
    assert_eq!(transforms.dense(0, Raw::Text(b"1000000")), Ok(1.5));
    assert_eq!(transforms.dense(0, Raw::Missing), Ok(2_f32.ln_1p().min(1.5)));
    assert_eq!(transforms.dense(0, Raw::Float(f64::NAN)), Err(BadReason::NotFinite));
}

#[test]
fn standardise_uses_what_was_measured() {
    let unmeasured =
        build(vec![dense(vec![DenseTransform::Standardise, DenseTransform::Log1p])], vec![]).unwrap();
    assert_eq!(unmeasured.standardised(), [0]);
    assert_eq!(unmeasured.dense(0, Raw::Float(7.5)), Ok(7.5));
    let standards = vec![Some(Standard { mean: 4.0, deviation: 2.0 })];
    let measured = unmeasured.with_measured(Measured { standards, vocabularies: vec![] }).unwrap();
    assert_eq!(measured.dense(0, Raw::Float(8.0)), Ok(2_f32.ln_1p()));
}

#[test]
fn standardised_numbers_keep_what_32_bits_would_lose() {
    let unmeasured = build(vec![dense(vec![DenseTransform::Standardise])], vec![]).unwrap();
    let standards = vec![Some(Standard { mean: 1.7e9, deviation: 25_000.0 })];
    let measured = unmeasured.with_measured(Measured { standards, vocabularies: vec![] }).unwrap();
    let seconds = |second: i64| measured.dense(0, Raw::Int(1_700_000_000 + second)).unwrap();
    let mut values: Vec<u32> = (0..86_400).map(|second| seconds(second).to_bits()).collect();
    values.dedup();
    assert_eq!(values.len(), 86_400);
    // The same number from text, and in 32 and 64 bits.
    for text in ["0.7", "-12.34", "1e-3", "16777217", "0.30000000000000004"] {
        let wide: f64 = text.parse().unwrap();
        let bits = |raw| measured.dense(0, raw).map(f32::to_bits);
        assert_eq!(bits(Raw::Text(text.as_bytes())), bits(Raw::Float(wide)), "{text}");
        if text.len() < 8 {
            assert_eq!(bits(Raw::Float(f64::from(wide as f32))), bits(Raw::Float(wide)), "{text}");
        }
    }
    // What no float of 32 bits holds is refused, and not an infinity.
    let tiny = Standard { mean: 0.0, deviation: 1e-30 };
    let tiny =
        unmeasured.with_measured(Measured { standards: vec![Some(tiny)], vocabularies: vec![] }).unwrap();
    assert_eq!(tiny.dense(0, Raw::Int(1 << 40)), Err(BadReason::NotFinite));
    assert_eq!(measured.dense(0, Raw::Text(b"1e300")), Err(BadReason::NotFinite));
}

#[test]
fn words_for_missing_values_are_missing_wherever_they_come_from() {
    let columns = Columns {
        dense: vec![dense(vec![])],
        sparse: vec![sparse(IdMap::Hash { salt: 0 }, 1 << 20), sparse(IdMap::Direct, 9)],
        missing_values: vec!["NA".into(), "\\N".into()],
        ..Columns::default()
    };
    let transforms = Transforms::unmeasured(&columns, &SourceSpec::Parquet).unwrap();
    let again = Transforms::from_bytes(&transforms.to_bytes(), Path::new("t")).unwrap();
    for transforms in [&transforms, &again] {
        for word in ["NA", "\\N"] {
            let raw = Raw::Text(word.as_bytes());
            assert_eq!(transforms.dense(0, raw), Ok(2.0));
            assert_eq!(transforms.row(0, raw), transforms.row(0, Raw::Missing));
            assert_eq!(transforms.row(1, raw), Ok(None));
            assert_eq!(transforms.key(raw), Raw::Missing.key());
        }
        assert_eq!(transforms.dense(0, Raw::Text(b"na")), Err(BadReason::NotANumber));
    }
    let without =
        Transforms::unmeasured(&Columns { missing_values: vec![], ..columns }, &SourceSpec::Parquet);
    assert_eq!(without.unwrap().difference(&transforms)[0], "all columns: other `missing_values`");
}

#[test]
fn a_direct_id_beyond_the_table_is_refused() {
    let transforms = build(vec![], vec![sparse(IdMap::Direct, 10)]).unwrap();
    assert_eq!(transforms.row(0, Raw::Text(b"9")), Ok(Some(9)));
    assert_eq!(transforms.row(0, Raw::Int(10)), Err(BadReason::BeyondTable { row_count: 10 }));
    assert_eq!(transforms.row(0, Raw::Int(-1)), Err(BadReason::BeyondTable { row_count: 10 }));
    assert_eq!(transforms.row(0, Raw::Text(b"ten")), Err(BadReason::NotAnInteger));
    assert_eq!(transforms.row(0, Raw::Missing), Ok(None));
}

#[test]
fn buckets_hold_their_lower_boundary() {
    let transforms =
        build(vec![], vec![sparse(IdMap::Bucketise { boundaries: vec![0.0, 10.0] }, 3)]).unwrap();
    let rows = [-1.0, 0.0, 9.9, 10.0, 1e9].map(|value| transforms.row(0, Raw::Float(value)).unwrap());
    assert_eq!(rows, [Some(0), Some(1), Some(1), Some(2), Some(2)]);
}

#[test]
fn salts_tell_columns_apart_and_missing_is_an_id() {
    let columns = vec![sparse(IdMap::Hash { salt: 1 }, 1 << 20), sparse(IdMap::Hash { salt: 2 }, 1 << 20)];
    let transforms = build(vec![], columns).unwrap();
    assert_ne!(transforms.row(0, Raw::Int(5)), transforms.row(1, Raw::Int(5)));
    assert_eq!(transforms.row(0, Raw::Int(5)), transforms.row(0, Raw::Text(b"5")));
    assert!(transforms.row(0, Raw::Missing).unwrap().is_some());
}

#[test]
fn hashed_rows_are_spread_evenly() {
    let transforms = build(vec![], vec![sparse(IdMap::Hash { salt: 9 }, 100)]).unwrap();
    let mut counts = [0_u32; 100];
    for id in 0..100_000 {
        counts[transforms.row(0, Raw::Int(id)).unwrap().unwrap() as usize] += 1;
    }
    // 1000 expected a row, with a deviation of 31.5: five deviations either way.
    assert!(counts.iter().all(|count| (842..1158).contains(count)), "{counts:?}");
}

#[test]
fn a_job_that_cannot_work_is_refused() {
    let twice = dense(vec![DenseTransform::Standardise, DenseTransform::Standardise]);
    let reasons = [
        build(vec![twice], vec![]),
        build(vec![dense(vec![DenseTransform::Clip { min: 2.0, max: 1.0 }])], vec![]),
        build(vec![], vec![sparse(IdMap::Direct, 0)]),
        build(vec![], vec![sparse(IdMap::Bucketise { boundaries: vec![1.0, 1.0] }, 9)]),
        build(vec![], vec![sparse(IdMap::Bucketise { boundaries: vec![1.0, 2.0] }, 2)]),
    ];
    let reasons: Vec<String> = reasons.into_iter().map(|result| result.unwrap_err().to_string()).collect();
    expect_test::expect![[r#"
        column `price`: `standardise` may stand once in a column's transforms
        column `price`: `clip` needs `min` at or below `max`
        column `item`: a table of 0 rows cannot be; 1 to 4294967295 can
        column `item`: the boundaries of `bucketise` must rise
        column `item`: 3 buckets do not fit in a table of 2 rows"#]]
    .assert_eq(&reasons.join("\n"));
}

#[test]
fn stored_transforms_come_back_and_damage_is_noticed() {
    let unmeasured = build(
        vec![dense(vec![DenseTransform::Standardise])],
        vec![sparse(IdMap::Vocabulary { min_count: 2 }, 5), sparse(IdMap::Hash { salt: 3 }, 7)],
    )
    .unwrap();
    let measured = Measured {
        standards: vec![Some(Standard { mean: 0.1, deviation: 1.0 / 3.0 })],
        vocabularies: vec![Vocabulary::new(vec![70, 60, u64::MAX]), None],
    };
    let transforms = unmeasured.with_measured(measured).unwrap();
    let bytes = transforms.to_bytes();
    let again = Transforms::from_bytes(&bytes, Path::new("t")).unwrap();
    assert_eq!(again.fingerprint(), transforms.fingerprint());
    assert_eq!(again.standard(0), transforms.standard(0));
    assert_eq!([60, 70, 80, -1].map(|id| again.row(0, Raw::Int(id)).unwrap()), [2, 1, 0, 3].map(Some));
    for place in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[place] ^= 1;
        assert!(Transforms::from_bytes(&damaged, Path::new("t")).is_err(), "byte {place}");
    }
    assert_ne!(unmeasured.fingerprint(), transforms.fingerprint());
}

use std::path::Path;

proptest! {
    #[test]
    fn the_table_of_logarithms_has_the_functions_bits(value in prop_oneof![0_f32..5000.0, -10_f32..1e9]) {
        let transforms = build(vec![dense(vec![DenseTransform::Log1p])], vec![]).unwrap();
        for value in [value, value.trunc()] {
            let want = f64::from(value.max(0.0)).ln_1p() as f32;
            prop_assert_eq!(transforms.dense(0, Raw::Float(f64::from(value))).unwrap().to_bits(), want.to_bits());
        }
    }

    #[test]
    fn a_vocabulary_is_a_map(keys in prop::collection::hash_set(any::<u64>(), 0..200), other: u64) {
        let keys: Vec<u64> = keys.into_iter().collect();
        let vocabulary = Vocabulary::new(keys.clone()).unwrap();
        for (index, &key) in keys.iter().enumerate() {
            prop_assert_eq!(vocabulary.row(key), index as u32 + 1);
        }
        let want = keys.iter().position(|&key| key == other).map_or(0, |index| index as u32 + 1);
        prop_assert_eq!(vocabulary.row(other), want);
    }
}

#[test]
fn columns_that_are_read_otherwise_are_named() {
    let column =
        |name: &str, row_count| SparseColumn { name: name.to_owned(), ..sparse(IdMap::Direct, row_count) };
    let before = build(vec![dense(vec![])], vec![column("user", 5), column("item", 5)]).unwrap();
    assert!(before.difference(&before.clone()).is_empty());
    let turned = build(vec![dense(vec![])], vec![column("item", 5), column("user", 5)]).unwrap();
    assert_eq!(
        before.difference(&turned),
        ["`user`: another place in the order", "`item`: another place in the order"]
    );
    let more =
        build(vec![dense(vec![DenseTransform::Log1p])], vec![column("user", 6), column("ad", 5)]).unwrap();
    assert_eq!(
        before.difference(&more),
        [
            "`price`: other transforms",
            "`user`: other transforms",
            "`item`: only in the first",
            "`ad`: only in the second"
        ]
    );
    let standard =
        |mean| Measured { standards: vec![Some(Standard { mean, deviation: 1.0 })], vocabularies: vec![] };
    let plain = build(vec![dense(vec![DenseTransform::Standardise])], vec![]).unwrap();
    let [one, two] = [1.0, 2.0].map(|mean| plain.with_measured(standard(mean)).unwrap());
    assert_eq!(one.difference(&two), ["`price`: another mean or deviation"]);
}
