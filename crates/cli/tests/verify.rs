//! `campanile verify` proves the contract on a job that has everything: bags, weights, wide tables, two tasks.

#[path = "suite/tower_job.rs"]
mod tower_job;

use std::{path::Path, process::Command};

use tower_job::tower_job;

fn job(directory: &Path) -> std::path::PathBuf {
    let text = format!(
        r#"
[run]
seed = 3
batch_size = 64
[run.data]
kind = "synthetic"
[run.data.world]
train_samples = 640
valid_samples = 100
test_samples = 100
sparse_count = 4
hidden_groups = 2
vocabulary = 50
[run.tables]
dim = 72
format = "bf16"
[run.model]
kind = "dlrm"
bottom = [8, 16]
top = [8]
[run.sparse]
optimizer = "rowwise_adagrad"
learning_rate = 0.1
[run.dense]
optimizer = "adam"
learning_rate = 0.01
[process]
cache_dir = "{0}/cache"
output_dir = "{0}/output"
"#,
        directory.display()
    );
    let path = directory.join("job.toml");
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn every_way_agrees_and_nothing_is_left_behind() {
    let home = tempfile::tempdir().unwrap();
    let (job, report) = (job(home.path()), home.path().join("report.json"));
    let output = Command::new(env!("CARGO_BIN_EXE_campanile"))
        .args(["verify", "--quiet", "--ranks", "1,2,4", "--steps", "6", "--report"])
        .args([&report, &job])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("ways agree in every bit") && !text.contains("DIFFERENT"), "{text}");
    for way in ["by rows", "by columns", "grid", "replicated", "pipelined", "begun on 1"] {
        assert!(text.contains(way), "{way}: {text}");
    }
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    assert_eq!(report["different"], 0);
    let ways = report["ways"].as_array().unwrap();
    assert!(ways.len() > 20, "{}", ways.len());
    let weights = |group: u64| {
        let of_group = ways.iter().filter(|way| way["group"] == group);
        let mut weights: Vec<_> = of_group.map(|way| way["proof"]["weights"].to_string()).collect();
        weights.dedup();
        weights
    };
    assert_eq!((weights(0).len(), weights(1).len()), (1, 1));
    assert_ne!(weights(0), weights(1), "a codec changes results, or it was not used");
    assert!(!home.path().join("output/verify").exists());
}

/// A job with towers is tried by their ways too: on threads, and on processes where there are any.
#[test]
fn towers_are_tried_by_their_ways() {
    let home = tempfile::tempdir().unwrap();
    let job = tower_job(home.path(), ("towers", 2), "");
    let output = Command::new(env!("CARGO_BIN_EXE_campanile"))
        .args(["verify", "--quiet", "--ranks", "4", "--steps", "2"])
        .arg(&job)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("ways agree in every bit") && !text.contains("DIFFERENT"), "{text}");
    let mut ways = vec!["towers ", "towers, pipelined"];
    if cfg!(feature = "mpi") && !text.contains("threads only") {
        ways.extend(["towers, processes ", "towers, processes, pipelined"]);
    }
    for way in ways {
        assert!(text.contains(way), "{way}: {text}");
    }
}

#[test]
fn ranks_that_do_not_divide_the_grains_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_campanile"))
        .args(["verify", "--ranks", "3"])
        .arg(job(home.path()))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("--ranks 3") && text.contains("grains"), "{text}");
}
