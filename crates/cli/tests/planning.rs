//! A plan for a user's job: made, explained, checked, trained by, refused when it is for something else.

#[path = "suite/small_job.rs"]
mod small_job;

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use campanile_spec::{Placement, Plan, config::Job};
use expect_test::expect_file;
use small_job::{job, result};

fn campanile(words: &[&str], paths: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_campanile")).args(words).args(paths).output().unwrap()
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The job with a plan for two ranks that cuts every table by rows.
fn with_plan(directory: &Path, job: &Path) -> PathBuf {
    let text = std::fs::read_to_string(job).unwrap();
    let model = Job::parse(&text).unwrap().run.model;
    let placements = model.tables.iter().map(|table| Placement::by_rows(table, &[1, 0]));
    let plan = Plan { rank_count: 2, placements: placements.collect() };
    let path = directory.join("plan.toml");
    std::fs::write(&path, plan.to_toml(&model)).unwrap();
    let text = text.replace("[process]", &format!("[process]\nplan = \"{}\"", path.display()));
    std::fs::write(job, text).unwrap();
    path
}

#[test]
fn training_by_a_plan_gives_the_same_bits() {
    let (plain, planned) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (home, is_planned) in [(&plain, false), (&planned, true)] {
        let job = job(home.path(), 4000);
        if is_planned {
            with_plan(home.path(), &job);
        }
        let output = campanile(&["train", "--quiet"], &[&job]);
        assert!(output.status.success(), "{}", words(&output));
    }
    assert_eq!(result(plain.path()), result(planned.path()));
    // The manifest says who held what, so the plan was not just ignored.
    let checkpoints = std::fs::read_dir(planned.path().join("output/checkpoints")).unwrap();
    let newest = checkpoints.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).max().unwrap();
    let manifest = std::fs::read_to_string(newest.join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    let shards = manifest["plan"]["placements"][0]["shards"].as_array().unwrap();
    assert_eq!(shards.len(), 2, "{shards:?}");
}

#[test]
fn a_plan_for_something_else_is_refused_with_its_name() {
    let home = tempfile::tempdir().unwrap();
    let job = job(home.path(), 500);
    let plan = with_plan(home.path(), &job);
    let refused = |wanted: &[&str], threads: &str| {
        let output = campanile(&["train", "--quiet", "--threads", threads], &[&job]);
        let text = words(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        for word in wanted {
            assert!(text.contains(word), "`{word}` is not in: {text}");
        }
    };
    let name = plan.display().to_string();
    refused(&["process.plan", &name, "for 2 ranks and the run has 4", "campanile plan --ranks 4"], "4");
    let text = std::fs::read_to_string(&plan).unwrap();
    std::fs::write(&plan, text.replace("rows = 4000", "rows = 4001")).unwrap();
    refused(&["process.plan", &name, "table `user` has 4000 rows of 8 floats, and 4001 of 8"], "2");
    std::fs::write(&plan, "ranks = two").unwrap();
    refused(&[&name, "cannot be read", "line 1"], "2");
    std::fs::remove_file(&plan).unwrap();
    refused(&["cannot read", &name, "campanile plan --out"], "2");
}

fn topology() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/cluster/topology.toml")
}

fn told(output: &Output) -> String {
    assert!(output.status.success(), "{}", words(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_plan_is_explained_written_priced_and_trained_by() {
    let home = tempfile::tempdir().unwrap();
    let (job, plan) = (job(home.path(), 4000), home.path().join("plan.toml"));
    let planned = |words: &[&str]| {
        let topology = topology();
        let mut arguments = vec!["plan", "--quiet", "--ranks", "2", "--topology", topology.to_str().unwrap()];
        arguments.extend(words);
        told(&campanile(&arguments, &[&job]))
    };
    let text = planned(&["--out", plan.to_str().unwrap()]);
    expect_file!["golden/plan.txt"].assert_eq(&text);
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert_eq!(text, planned(&[]), "the same input gives the same text");
    let priced = planned(&["--price", plan.to_str().unwrap()]);
    assert_eq!(priced.lines().take(6).collect::<Vec<_>>(), text.lines().take(6).collect::<Vec<_>>());
    let whole = planned(&["--no-splits", "--method", "greedy"]);
    assert!(whole.contains("no table may be split") && whole.contains("placed by greedy"), "{whole}");

    let job_text = std::fs::read_to_string(&job).unwrap();
    let named = job_text.replace("[process]", &format!("[process]\nplan = \"{}\"", plan.display()));
    std::fs::write(&job, named).unwrap();
    told(&campanile(&["train", "--quiet"], &[&job]));
}

#[test]
fn predictions_stand_beside_what_was_measured() {
    let home = tempfile::tempdir().unwrap();
    let (job, report) = (job(home.path(), 2000), home.path().join("report.json"));
    let topology = topology();
    let arguments =
        ["plan", "--quiet", "--ranks", "2", "--check", "--rounds", "2", "--steps", "3", "--topology"];
    let text = told(&campanile(&arguments, &[&topology, &job, Path::new("--report"), &report]));
    for word in ["predicted", "measured", "step  ", "network  ", "update of rows", "memory of all ranks"] {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    assert!(report["check"]["measured_step_seconds"].as_f64().unwrap() > 0.0);
    assert!(!home.path().join("output").exists(), "a check leaves nothing behind");
}

#[test]
fn tables_that_do_not_fit_are_told_with_ways_out() {
    let home = tempfile::tempdir().unwrap();
    let job = job(home.path(), 500);
    let text = std::fs::read_to_string(&job).unwrap();
    std::fs::write(&job, text.replace("rows = 4000", "rows = 4_000_000_000")).unwrap();
    let topology = topology();
    let output = campanile(&["plan", "--quiet", "--ranks", "2", "--topology"], &[&topology, &job]);
    let text = words(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for word in ["not fit", "table `user`", "missing", "ways out", "1. ", "2. ", "3. "] {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    let output = campanile(
        &["plan", "--quiet", "--ranks", "3", "--topology"],
        &[&topology, &job, Path::new("--whole"), Path::new("usr")],
    );
    assert!(words(&output).contains("no such table"), "{}", words(&output));
}
