//! The drawn model under onnxruntime.

use std::{path::Path, process::Command};

use campanile_serve::{Snapshot, export::write_onnx};
use campanile_spec::{Batch, Pooling};
use serde_json::{Map, Value, json};

use crate::asked::Logits;

/// How far a logit may be off.
const DISTANCE_MAX: f64 = 1e-4;

/// Compares the logits that onnxruntime finds.
pub fn check(snapshot: &Snapshot, batch: &Batch, wanted: &Logits, folder: &Path) {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = manifest.join("../../target/python/bin/python");
    // Where there is no Python, the tests of `serve` say so; in CI there is one.
    if !python.exists() && std::env::var_os("CI").is_none() {
        return;
    }
    let (model, given) = (folder.join("model.onnx"), folder.join("given.json"));
    write_onnx(snapshot, &model).unwrap();
    std::fs::write(&given, inputs(snapshot, batch).to_string()).unwrap();
    let script = manifest.join("../serve/tests/suite/run_onnx.py");
    let output = Command::new(python).args([&script, &model, &given]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let theirs: [Vec<f64>; 2] = serde_json::from_slice(&output.stdout).unwrap();
    for (place, logit) in theirs[0].iter().enumerate() {
        let ours = f64::from(wanted[place % wanted.len()][place / wanted.len()]);
        assert!(
            (logit - ours).abs() < DISTANCE_MAX * ours.abs().max(1.0),
            "ONNX, place {place}: {logit} {ours}"
        );
    }
    assert_eq!(theirs[0].len(), wanted.len() * batch.sample_count);
}

/// The inputs of the exported model: bags filled up with -1.
fn inputs(snapshot: &Snapshot, batch: &Batch) -> Value {
    let width = snapshot.model().dense_count;
    let mut inputs =
        Map::from_iter([("dense".to_owned(), json!(batch.dense.chunks(width).collect::<Vec<_>>()))]);
    for (place, feature) in snapshot.model().features.iter().enumerate() {
        let bags = batch.bags.feature(place);
        let longest = (0..batch.sample_count).map(|sample| bags.bag(sample).len()).max().unwrap_or(0).max(1);
        let filled = |sample: usize| {
            let mut ids: Vec<i64> = bags.bag(sample).iter().map(|row| i64::from(*row)).collect();
            ids.resize(longest, -1);
            ids
        };
        let weights = |sample: usize| {
            let range = bags.range(sample);
            let mut own: Vec<f32> = range.map(|at| bags.weights.get(at).copied().unwrap_or(1.0)).collect();
            own.resize(longest, 0.0);
            own
        };
        let samples = 0..batch.sample_count;
        inputs.insert(feature.name.clone(), json!(samples.clone().map(filled).collect::<Vec<_>>()));
        if feature.pooling == Pooling::Weighted {
            inputs
                .insert(format!("{}.weights", feature.name), json!(samples.map(weights).collect::<Vec<_>>()));
        }
    }
    Value::Object(inputs)
}
