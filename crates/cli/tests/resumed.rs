//! What a run in the same directory goes on from, and what it refuses.

#[path = "suite/small_job.rs"]
mod small_job;

use std::{
    path::Path,
    process::{Command, Output},
};

use small_job::{job, result};

fn campanile(words: &[&str], path: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_campanile")).args(words).arg(path).output().unwrap()
}

fn fine(words: &[&str], path: &Path) {
    let output = campanile(words, path);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn refused(words: &[&str], path: &Path) -> String {
    let output = campanile(words, path);
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

/// Changes a job file.
fn change(job: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(job).unwrap();
    assert!(text.contains(from), "{from} in {text}");
    std::fs::write(job, text.replacen(from, to, 1)).unwrap();
}

const TRAIN: [&str; 2] = ["train", "--quiet"];

#[test]
fn a_run_with_more_epochs_goes_on_with_the_bits_of_one_that_had_them_from_the_start() {
    let straight = tempfile::tempdir().unwrap();
    let all = job(straight.path(), 3_000);
    change(&all, "seed = 11", "seed = 11\nepochs = 3");
    fine(&TRAIN, &all);
    let want = result(straight.path());

    let raised = tempfile::tempdir().unwrap();
    let path = job(raised.path(), 3_000);
    fine(&TRAIN, &path);
    change(&path, "seed = 11", "seed = 11\nepochs = 2\nsteps_max = 15");
    fine(&TRAIN, &path);
    change(&path, "epochs = 2\nsteps_max = 15", "epochs = 3");
    change(&path, "window_steps = 10", "window_steps = 10\nsamples_max = 100");
    fine(&TRAIN, &path);
    let found = result(raised.path());
    let weights: Vec<&String> = want.keys().filter(|name| name.ends_with(".safetensors")).collect();
    assert!(weights.len() > 3, "{weights:?}");
    for name in weights {
        assert!(found[name] == want[name], "{name} differs");
    }
}

#[test]
fn what_was_changed_is_told_by_the_keys_of_the_job_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = job(directory.path(), 1_000);
    fine(&TRAIN, &path);
    change(&path, "learning_rate = 0.05", "learning_rate = 0.1");
    let said = refused(&TRAIN, &path);
    assert!(said.contains("`learning_rate` in [run.sparse] was 0.05 and is 0.1 now"), "{said}");
    assert!(said.contains("--fresh") && said.contains("--output"), "{said}");
    change(&path, "rows = 1000", "rows = 1200");
    change(&path, "top = [16]", "top = [8]");
    change(&path, "format = \"bf16\"", "format = \"f16\"");
    let said = refused(&TRAIN, &path);
    assert!(said.contains("`rows` in [[run.table]] number 2 was 1000 and is 1200 now"), "{said}");
    assert!(said.contains("and 3 more"), "{said}");
}

/// Tables that cannot be held are told before an input is packed that may take hours.
#[test]
fn tables_that_do_not_fit_are_told_before_the_input_is_packed() {
    let directory = tempfile::tempdir().unwrap();
    let path = job(directory.path(), 1_000);
    change(&path, "rows = 4000", "rows = 4_000_000_000");
    let said = refused(&TRAIN, &path);
    assert!(said.contains("table `user` needs") && said.contains("make it smaller"), "{said}");
    let cache = directory.path().join("cache");
    assert!(!cache.exists(), "{:?}", std::fs::read_dir(cache).unwrap().collect::<Vec<_>>());
}

/// A weight that would make the optimizer's state infinite, and so end the training of all that it touches.
#[test]
fn a_weight_beyond_sense_is_a_bad_row_and_not_a_divergence() {
    let directory = tempfile::tempdir().unwrap();
    let path = job(directory.path(), 1_000);
    let csv = directory.path().join("clicks.csv");
    let text = std::fs::read_to_string(&csv).unwrap();
    let weighted = |(row, line): (usize, &str)| match row {
        0 => format!("{line},weight\n"),
        300 => format!("{line},1e30\n"),
        _ => format!("{line},1\n"),
    };
    let text: String = text.lines().enumerate().map(weighted).collect();
    std::fs::write(&csv, text).unwrap();
    change(&path, "[[run.data.label]]", "sample_weight = \"weight\"\n[[run.data.label]]");
    let said = refused(&TRAIN, &path);
    assert!(said.contains("clicks.csv line 301, column `weight`, value `1e30`"), "{said}");
    assert!(!directory.path().join("output/checkpoints").exists(), "{said}");
}

/// Numbers that stay finite and mean nothing are divergence, too: no success, and nothing to serve.
#[test]
fn an_absurd_loss_is_divergence_and_is_not_published() {
    let directory = tempfile::tempdir().unwrap();
    let path = job(directory.path(), 3_000);
    change(&path, "learning_rate = 0.01", "learning_rate = 1000");
    let registry = directory.path().join("registry");
    let text = std::fs::read_to_string(&path).unwrap();
    let publish = format!("[process.publish]\nregistry = \"{}\"\ngate_rows = 0\n", registry.display());
    std::fs::write(&path, text.replace("checkpoint_every_steps = 15\n", "") + &publish).unwrap();
    let output = campanile(&["train"], &path);
    let (out, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the model has diverged") && !out.contains("next: campanile eval"), "{out}{said}");
    assert!(!registry.join("model/current").exists());
}
