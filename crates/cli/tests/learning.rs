//! The engine learns what there is to learn: against the best possible result, and the same in low precision.

use std::{path::Path, process::Command};

/// A world whose logit is exactly a factorization machine, and room for a model and a precision.
fn job(directory: &Path, model: &str, precision: &str, format: &str, dim: usize) -> String {
    format!(
        r#"
[run]
seed = 5
batch_size = 1024
precision = "{precision}"
[run.data]
kind = "synthetic"
[run.data.world]
train_samples = 600_000
valid_samples = 0
test_samples = 60_000
sparse_count = 6
dense_count = 4
vocabulary = 40
hidden_groups = 1
across_pairs = 0
[run.data.world.signal]
main = 0.8
inside = 1.0
across = 0.0
dense = 0.5
dense_curve = 0.0
[run.tables]
dim = {dim}
format = "{format}"
init = {{ kind = "uniform", bound = 0.1 }}
[run.model]
{model}
[run.sparse]
optimizer = "adagrad"
learning_rate = 0.1
[run.dense]
optimizer = "adagrad"
learning_rate = 0.05
[process]
cache_dir = "{0}"
output_dir = "{0}"
"#,
        directory.display()
    )
}

/// NE on the test split, and the NE of the true probabilities on the same labels.
fn test_ne(model: &str, precision: &str, format: &str, dim: usize) -> (f64, f64) {
    let directory = tempfile::tempdir().unwrap();
    let (job_path, report) = (directory.path().join("job.toml"), directory.path().join("report.json"));
    std::fs::write(&job_path, job(directory.path(), model, precision, format, dim)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    let output =
        command.arg("train").arg(&job_path).arg("--report").arg(&report).arg("--quiet").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    let task = &report["evaluation"]["test"]["tasks"][0];
    (task["ne"].as_f64().unwrap(), task["truth_ne"].as_f64().unwrap())
}

#[test]
fn a_model_that_contains_the_truth_comes_within_one_percent_of_it() {
    let (ne, best) = test_ne("kind = \"factorization_machine\"", "f32", "f32", 9);
    assert!(ne < 1.01 * best, "NE {ne}, the truth has {best}");
    assert!(best < 0.95, "a world with nothing to learn proves nothing: {best}");
}

#[test]
fn low_precision_costs_less_than_a_thousandth() {
    let dlrm = "kind = \"dlrm\"\nbottom = [32, 16]\ntop = [64, 32]";
    let (full, _) = test_ne(dlrm, "f32", "f32", 16);
    let (dense, _) = test_ne(dlrm, "bf16", "f32", 16);
    assert!((dense - full).abs() / full < 1e-3, "bf16 operands: {dense}, f32: {full}");
    assert_ne!(dense, full, "bf16 operands must be able to show a difference");
}
