//! Requests that are right and requests that are not: the message names input, sample and value.

use std::sync::Arc;

use campanile_data::{Raw, Transforms};
use campanile_serve::{Inputs, Options, Request, RequestError, Scorer, Scores, Side, Snapshot};
use campanile_spec::config::Job;

use crate::trained::{Trained, bits, fill, read};

/// A trained model with every kind of input: hashes, a vocabulary, buckets, a weighted list, standardised
/// numbers.
fn everything() -> Trained {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("clicks.csv");
    let mut text = String::from("click,age,price,country,color,tags,strength,hour\n");
    for n in 0..400u32 {
        let age = if n % 7 == 0 { String::new() } else { (20 + n % 40).to_string() };
        let country = ["it", "fr", "", "de"][n as usize % 4];
        let tags = ["x|y", "", "z", "y|z|x"][n as usize % 4];
        let strength = ["1|0.5", "", "2", "1|1|3"][n as usize % 4];
        let (click, price) = (u32::from(n % 3 == 0), f64::from(n % 11) * 1.5);
        let line = format!("{click},{age},{price},{country},c{},{tags},{strength},{}.5\n", n % 13, n % 24);
        text.push_str(&line);
    }
    std::fs::write(&file, text).unwrap();
    let job = include_str!("everything.toml").replace("CLICKS", file.to_str().unwrap());
    let mut trained = Trained::job(Job::parse(&job).unwrap());
    trained.also = Some(folder);
    trained
}

#[test]
fn raw_values_become_what_training_saw() {
    let trained = everything();
    let snapshot = Snapshot::open(&trained.checkpoint, "all", &Options::default()).unwrap();
    let inputs = snapshot.inputs();
    let batch = read(&trained.prepared.train, 8);
    let mut prepared = Request::new();
    fill(&mut prepared, &snapshot, &batch);
    let mut raw = Request::new();
    raw.begin(inputs, 8).unwrap();
    let texts = |values: [&'static str; 8]| values.map(|text| Raw::text(text.as_bytes()));
    let ages = texts(["", "21", "22", "23", "24", "25", "26", ""]);
    raw.raw_dense(0, Side::Each, ages).unwrap();
    raw.raw_dense(1, Side::Each, [0.0, 1.5, 3.0, 4.5, 6.0, 7.5, 9.0, 10.5].map(Raw::Float)).unwrap();
    let countries = texts(["it", "fr", "", "de", "it", "fr", "", "de"]);
    raw.raw_ids(0, Side::Each, &[1; 8], countries).unwrap();
    let colors = texts(["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"]);
    raw.raw_ids(1, Side::Each, &[1; 8], colors).unwrap();
    let tags = ["x", "y", "z", "y", "z", "x", "x", "y", "z", "y", "z", "x"];
    raw.raw_ids(2, Side::Each, &[2, 0, 1, 3, 2, 0, 1, 3], tags.map(|tag| Raw::Text(tag.as_bytes()))).unwrap();
    raw.weights(2, &[1.0, 0.5, 2.0, 1.0, 1.0, 3.0, 1.0, 0.5, 2.0, 1.0, 1.0, 3.0]).unwrap();
    raw.raw_ids(3, Side::Each, &[1; 8], [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5].map(Raw::Float)).unwrap();
    raw.finish().unwrap();
    assert_eq!(bits(raw.dense_values()), bits(prepared.dense_values()));
    for feature in 0..4 {
        assert_eq!(raw.feature(feature).rows, prepared.feature(feature).rows, "feature {feature}");
        assert_eq!(raw.feature(feature).offsets, prepared.feature(feature).offsets, "feature {feature}");
    }
    assert_eq!(raw.feature(2).weights, prepared.feature(2).weights);
    // The cells of the file, cut as training cuts them.
    assert_eq!(raw.feature(2).rows.len(), 10, "the last two of three tags are kept");
    let mut cells = Request::new();
    cells.begin(inputs, 8).unwrap();
    cells.raw_cells(2, Side::Each, texts(["x|y", "", "z", "y|z|x", "x|y", "", "z", "y|z|x"])).unwrap();
    let countries = texts(["it", "fr", "NA", "de", " it ", "fr", "NA", "de"]);
    cells.raw_cells(0, Side::Each, countries).unwrap();
    for feature in [0, 2] {
        assert_eq!(cells.feature(feature).rows, prepared.feature(feature).rows);
        assert_eq!(cells.feature(feature).offsets, prepared.feature(feature).offsets);
    }
    let (mut scorer, mut one, mut other) = (Scorer::new(), Scores::default(), Scores::default());
    scorer.score(&snapshot, &[&raw], &mut one).unwrap();
    scorer.score(&snapshot, &[&prepared], &mut other).unwrap();
    assert_eq!(bits(&one.logits), bits(&other.logits));
    // What was measured is needed: without its file there is no way back to it.
    let fingerprint = trained.prepared.transforms.fingerprint();
    std::fs::remove_file(trained.checkpoint.with_file_name(Transforms::file_name(&fingerprint))).unwrap();
    let message = Snapshot::open(&trained.checkpoint, "all", &Options::default()).unwrap_err().to_string();
    assert!(message.contains("transforms were measured on its training data"), "{message}");
}

#[test]
fn mistakes_are_named() {
    let trained = Trained::example("tiny");
    let snapshot = Snapshot::open(&trained.checkpoint, "tiny", &Options::default()).unwrap();
    let inputs = snapshot.inputs();
    let check = |wanted: &str, give: &dyn Fn(&mut Request) -> Result<(), RequestError>| {
        let mut request = Request::new();
        request.begin(inputs, 3).unwrap();
        assert_eq!(give(&mut request).unwrap_err().to_string(), wanted);
    };
    check("input `dense_1`: 2 values where 3 are needed", &|r| r.dense(0, Side::Each, &[1.0, 2.0]));
    check("input `dense_1`: 3 values where 1 are needed", &|r| r.dense(0, Side::Once, &[1.0; 3]));
    check(
        "input `dense_2`, sample 1: `NaN`: not a finite number; leave the cell empty if the value is missing",
        &|r| r.dense(1, Side::Each, &[1.0, f32::NAN, 2.0]),
    );
    check("input `dense_1`, sample 2: `old`: not a number", &|r| {
        r.raw_dense(0, Side::Each, [Raw::Int(1), Raw::Missing, Raw::Text(b"old")])
    });
    check("input `dense_1` is given twice", &|r| {
        r.dense(0, Side::Once, &[1.0])?;
        r.dense(0, Side::Once, &[1.0])
    });
    check("input `sparse_1`: 2 lengths where 3 are needed", &|r| r.rows(0, Side::Each, &[1, 1], &[4, 5]));
    check("input `sparse_1`: 2 ids where 3 are needed", &|r| r.rows(0, Side::Each, &[1, 1, 1], &[4, 5]));
    check("input `sparse_4`, sample 1: row 5 is beyond its table, which has 5 rows", &|r| {
        r.rows(3, Side::Each, &[1, 1, 1], &[4, 5, 0])
    });
    check("input `sparse_1`, sample 2: 2 ids, but the feature has one id a sample", &|r| {
        r.raw_ids(0, Side::Each, &[1, 1, 2], [Raw::Int(1); 4])
    });
    check("input `sparse_2`: 1 weights where 2 are needed", &|r| {
        r.rows(1, Side::Once, &[2], &[1, 2])?;
        r.weights(1, &[1.0])
    });
    check("input `dense_1` is missing; give it, with null or an empty value where a sample has none", &|r| {
        r.finish()
    });
    check("the request has 65537 samples; at most 65536 are allowed", &|r| r.begin(inputs, 65537));
    let unknown = inputs.find("sparse_9").unwrap_err().to_string();
    assert!(
        unknown.starts_with("the model has no input `sparse_9`; it has `dense_1`, `dense_2`, `sparse_1`"),
        "{unknown}"
    );
}

#[test]
fn an_id_outside_a_direct_table_is_no_id_and_is_counted() {
    let trained = Trained::example("tiny");
    let snapshot = Snapshot::open(&trained.checkpoint, "tiny", &Options::default()).unwrap();
    let mut request = Request::new();
    request.begin(snapshot.inputs(), 3).unwrap();
    request.raw_ids(3, Side::Each, &[1, 1, 1], [Raw::Int(4), Raw::Int(77), Raw::Int(-1)]).unwrap();
    assert_eq!((request.feature(3).rows, request.feature(3).offsets), (&[4][..], &[0, 1, 1, 1][..]));
    assert_eq!(request.unknown_ids(), 2);
    request.begin(snapshot.inputs(), 3).unwrap();
    assert_eq!(request.unknown_ids(), 0);
}

#[test]
fn a_request_for_another_model_is_told_to_be_prepared_again() {
    let (tiny, other) = (Trained::example("tiny"), Trained::example("dcn"));
    let open = |trained: &Trained| Snapshot::open(&trained.checkpoint, "m", &Options::default()).unwrap();
    let (tiny_snapshot, other_snapshot) = (open(&tiny), open(&other));
    let mut request = Request::new();
    fill(&mut request, &tiny_snapshot, &tiny.samples(4));
    let error = Scorer::new().score(&other_snapshot, &[&request], &mut Scores::default());
    assert!(matches!(error, Err(RequestError::OtherInputs { .. })));
    let inputs: &Arc<Inputs> = other_snapshot.inputs();
    assert!(!inputs.same_as(tiny_snapshot.inputs()));
}
