//! Exported models under real programs: onnxruntime, and numpy with safetensors.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use campanile_serve::{
    Options, Request, RowStorage, Scorer, Scores, Snapshot,
    export::{write_onnx, write_safetensors},
};
use campanile_spec::{Batch, Pooling, Precision};
use serde_json::{Map, Value, json};

use crate::trained::{Trained, fill};

/// The Python that `cargo xtask test` makes; says in one line when it is not there.
fn python() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python/bin/python");
    if !path.exists() {
        let line = "NOT CHECKED: run `python3 xtask/python/environment.py` to try exports with onnxruntime";
        assert!(std::env::var_os("CI").is_none(), "with CI set nothing may be left out. {line}");
        // Unlike `eprintln!` this shows even when the test passes.
        let mut shown = std::io::stderr();
        writeln!(shown, "{line}").unwrap();
        return None;
    }
    Some(path)
}

fn in_floats(trained: &Trained) -> Snapshot {
    let options = Options { rows: RowStorage::F32, precision: Some(Precision::F32), ..Options::default() };
    Snapshot::open(&trained.checkpoint, "exported", &options).unwrap()
}

fn scores(snapshot: &Snapshot, batch: &Batch) -> Scores {
    let (mut request, mut scores) = (Request::new(), Scores::default());
    fill(&mut request, snapshot, batch);
    Scorer::new().score(snapshot, &[&request], &mut scores).unwrap();
    scores
}

/// The inputs of the exported model: bags filled up with -1.
fn inputs(snapshot: &Snapshot, batch: &Batch) -> Value {
    let mut inputs = Map::new();
    let width = snapshot.model().dense_count.max(1);
    inputs.insert("dense".into(), json!(batch.dense.chunks(width).collect::<Vec<_>>()));
    // Tables that follow a teacher have the ids of other features, and are no inputs.
    let features = &snapshot.model().features[..snapshot.model().data_features()];
    for (place, feature) in features.iter().enumerate() {
        let bags = batch.bags.feature(place);
        let longest = (0..batch.sample_count).map(|sample| bags.bag(sample).len()).max().unwrap().max(1);
        let mut ids = vec![vec![-1_i64; longest]; batch.sample_count];
        let mut weights = vec![vec![0.0_f32; longest]; batch.sample_count];
        for sample in 0..batch.sample_count {
            for (at, position) in bags.range(sample).enumerate() {
                ids[sample][at] = i64::from(bags.rows[position]);
                weights[sample][at] = bags.weights.get(position).copied().unwrap_or(1.0);
            }
        }
        inputs.insert(feature.name.clone(), json!(ids));
        if feature.pooling == Pooling::Weighted {
            inputs.insert(format!("{}.weights", feature.name), json!(weights));
        }
    }
    Value::Object(inputs)
}

fn worst(ours: &[f32], theirs: &Value) -> f64 {
    let theirs = theirs.as_array().unwrap();
    assert_eq!(ours.len(), theirs.len());
    let distance = |(a, b): (&f32, &Value)| (f64::from(*a) - b.as_f64().unwrap()).abs();
    ours.iter().zip(theirs).map(distance).fold(0.0, f64::max)
}

fn run(python: &Path, arguments: &[&Path]) -> Value {
    let output = Command::new(python).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The text of a job with another model.
fn with_model(text: &str, model: &str) -> String {
    let (before, rest) = text.split_once("[run.model]").unwrap();
    let after = rest.split_once("\n[").unwrap().1;
    format!("{before}[run.model]\n{model}\n\n[{after}")
}

#[test]
fn onnxruntime_scores_every_network_as_we_do() {
    let Some(python) = python() else { return };
    let first = |kind: &str| Trained::changed_example("first", |text| with_model(&text, kind));
    let without_dense =
        |text: String| text.replace("dense_count = 4 ", "signal = { dense = 0.0 }\ndense_count = 0 ");
    let parallel = "kind = \"dcn\"\nbottom = [8]\ncross_rank = 4\nstructure = \"parallel\"\ndeep = [16]";
    let towers = "kind = \"two_tower\"\nitem_features = [\"sparse_2\", \"sparse_3\"]\nitem_dense = [0, 2]\n\
                  user = [16, 8]\nitem = [8]\nwidth = 4";
    let regression =
        |text: String| with_model(&text.replace("dim = 16", "dim = 1"), "kind = \"logistic_regression\"");
    let models = [
        ("tiny", Trained::example("tiny")),
        ("dcn", Trained::example("dcn")),
        ("towers", Trained::example("towers")),
        (
            "crossed towers",
            Trained::changed_example("dcn", |text| {
                text.replace("[run.sparse]", "[run.towers]\nmodule = { kind = \"cross\", width = 4, rank = 6 }\n\
                    [[run.towers.tower]]\nname = \"a\"\nfeatures = [\"sparse_1\", \"sparse_4\", \"sparse_5\"]\n\
                    [[run.towers.tower]]\nname = \"b\"\nfeatures = [\"sparse_2\", \"sparse_3\", \"sparse_6\", \"sparse_7\"]\n\
                    module = { kind = \"ensemble\", per_feature = 1, mixed = 2, width = 6 }\n\
                    [[run.towers.tower]]\nname = \"c\"\nfeatures = [\"sparse_8\"]\nmodule = \"identity\"\n[run.sparse]")
            }),
        ),
        ("parallel dcn", first(parallel)),
        ("multi_task", Trained::example("multi_task")),
        ("bf16 rows", Trained::example("low_precision")),
        ("mlp", first("kind = \"mlp\"\nhidden = [32, 16]")),
        ("two towers", first(towers)),
        (
            "two towers, two tasks",
            Trained::changed_example("multi_task", |text| {
                with_model(&text, &format!("{towers}\nheads = \"separate\""))
            }),
        ),
        ("a student that follows", Trained::following(|text| text)),
        ("two towers that follow", Trained::following(|text| with_model(&text, towers))),
        ("regression", Trained::changed_example("first", regression)),
        ("machine", first("kind = \"factorization_machine\"")),
        (
            "machine without dense",
            Trained::changed_example("first", |text| {
                with_model(&without_dense(text), "kind = \"factorization_machine\"")
            }),
        ),
    ];
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/run_onnx.py");
    for (name, trained) in &models {
        let snapshot = in_floats(trained);
        let batch = trained.samples(100);
        let (file, given) = (trained.folder.path().join("m.onnx"), trained.folder.path().join("in.json"));
        write_onnx(&snapshot, &file).unwrap();
        std::fs::write(&given, inputs(&snapshot, &batch).to_string()).unwrap();
        let theirs = run(&python, &[&script, &file, &given]);
        let ours = scores(&snapshot, &batch);
        let distance = (worst(&ours.logits, &theirs[0]), worst(&ours.probabilities, &theirs[1]));
        assert!(distance.0 < 1e-5 && distance.1 < 1e-5, "{name}: {distance:?}");
    }
}

#[test]
fn the_snippet_of_the_guide_scores_a_safetensors_file_as_we_do() {
    let Some(python) = python() else { return };
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/serving.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let snippet = guide.split("```python\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let trained = Trained::example("first");
    let snapshot = in_floats(&trained);
    let batch = trained.samples(50);
    let folder = trained.folder.path();
    let (file, script, given) =
        (folder.join("m.safetensors"), folder.join("score.py"), folder.join("in.json"));
    write_safetensors(&snapshot, &file).unwrap();
    std::fs::write(&script, snippet).unwrap();
    let rows: Map<String, Value> = snapshot
        .model()
        .features
        .iter()
        .enumerate()
        .map(|(place, feature)| (feature.name.clone(), json!(batch.bags.feature(place).rows)))
        .collect();
    let dense: Vec<&[f32]> = batch.dense.chunks(snapshot.model().dense_count).collect();
    std::fs::write(&given, json!({ "dense": dense, "rows": rows }).to_string()).unwrap();
    let theirs = run(&python, &[&script, &file, &given]);
    let distance = worst(&scores(&snapshot, &batch).probabilities, &theirs);
    assert!(distance < 1e-5, "{distance}");
}
