//! A run that is interrupted writes a checkpoint, says how to go on, and ends with the bits of one that was left alone.

#[path = "suite/small_job.rs"]
mod small_job;

use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use small_job::{job, result};

/// A job of some hundred steps, so that a signal comes long before the end, with checkpoints only where they are asked for.
fn long_job(directory: &Path, threads: usize, epochs: usize) -> PathBuf {
    let path = job(directory, 3_000);
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text
        .replace("seed = 11", &format!("seed = 11\nepochs = {epochs}"))
        .replace("checkpoint_every_steps = 15\n", "")
        .replace("threads = 2", &format!("threads = {threads}"));
    std::fs::write(&path, text).unwrap();
    path
}

fn campanile(words: &[&str], job: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.args(words).arg(job).arg("--quiet");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn send(signal: &str, process: u32) {
    let status = Command::new("kill").args([&format!("-{signal}"), &process.to_string()]).status().unwrap();
    assert!(status.success(), "kill -{signal} {process}");
}

/// Waits until the run has written this many lines of metrics.
fn wait_for_metrics(child: &mut Child, job: &Path, lines: usize) {
    let metrics = job.parent().unwrap().join("output/metrics.jsonl");
    loop {
        let written = std::fs::read_to_string(&metrics).unwrap_or_default();
        if written.lines().count() >= lines {
            return;
        }
        assert!(child.try_wait().unwrap().is_none(), "the run ended before it was interrupted");
        std::thread::yield_now();
    }
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn finish(words: &[&str], job: &Path) {
    let output = campanile(words, job).output().unwrap();
    assert!(output.status.success(), "{}", self::words(&output));
}

/// A signal, the exit code that it leads to, and its name.
type Signal = (&'static str, i32, &'static str);

const INTERRUPT: Signal = ("INT", 130, "SIGINT");
const TERMINATE: Signal = ("TERM", 143, "SIGTERM");

/// Interrupts a run again and again, lets it end, and compares it with one that was left alone.
fn interrupted(
    train: &[&str],
    (threads, epochs): (usize, usize),
    signals: &[Signal],
    pick: impl Fn(&Child, &Path) -> u32,
) {
    let undisturbed = tempfile::tempdir().unwrap();
    finish(&["train"], &long_job(undisturbed.path(), threads, epochs));
    let want = result(undisturbed.path());

    let disturbed = tempfile::tempdir().unwrap();
    let job = long_job(disturbed.path(), threads, epochs);
    for (lines, &(signal, code, name)) in [3, 14].into_iter().zip(signals) {
        let mut child = campanile(train, &job).spawn().unwrap();
        wait_for_metrics(&mut child, &job, lines);
        send(signal, pick(&child, &job));
        let output = child.wait_with_output().unwrap();
        let said = words(&output);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(name) && said.contains("the same command goes on"), "{said}");
        let checkpoints = std::fs::read_dir(disturbed.path().join("output/checkpoints")).unwrap();
        let names = checkpoints.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        let whole = names.filter(|name| name.starts_with("step-") && !name.contains('.')).count();
        assert!(whole > 0, "no checkpoint was written: {said}");
    }
    finish(train, &job);
    let found = result(disturbed.path());
    assert_eq!(found.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>());
    for (name, bytes) in &want {
        assert!(&found[name] == bytes, "{name} differs");
    }
}

#[test]
fn an_interrupted_run_goes_on_with_the_same_bits() {
    let own = |child: &Child, _: &Path| child.id();
    interrupted(&["train"], (1, 150), &[INTERRUPT, TERMINATE], own);
}

#[test]
fn threads_stop_after_the_same_step() {
    let own = |child: &Child, _: &Path| child.id();
    interrupted(&["train"], (4, 150), &[TERMINATE, INTERRUPT], own);
}

/// The step that is under way takes longer than this test: only the second signal ends it.
#[test]
fn a_second_signal_ends_the_run_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = job(directory.path(), 20_000);
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text
        .replace("batch_size = 256", "batch_size = 16384")
        .replace("threads = 2", "threads = 1")
        .replace("top = [16]", "top = [8192, 8192]")
        .replace("optimizer = \"adam\"", "optimizer = \"sgd\"");
    std::fs::write(&path, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.arg("train").arg(&path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    for (wanted, signal) in [("floats in tables", "INT"), ("stopping after this step", "INT")] {
        while !said.contains(wanted) {
            assert!(errors.read_line(&mut said).unwrap() > 0, "it ended: {said}");
        }
        send(signal, child.id());
    }
    assert_eq!(child.wait().unwrap().code(), Some(130));
    errors.read_to_string(&mut said).unwrap();
    assert!(!said.contains("stopped by"), "{said}");
    let checkpoints = directory.path().join("output/checkpoints");
    assert!(std::fs::read_dir(checkpoints).map_or(0, Iterator::count) == 0, "a checkpoint was written");
}

#[cfg(feature = "mpi")]
mod mpi {
    use super::*;

    /// The last of the processes that train this job.
    fn a_rank(_: &Child, job: &Path) -> u32 {
        let ranks = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
            let process = entry.file_name().to_string_lossy().parse::<u32>().ok()?;
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            let line: Vec<String> = line
                .split(|&byte| byte == 0)
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect();
            let is_rank = line.first()? == env!("CARGO_BIN_EXE_campanile")
                && line.get(1)? == "train"
                && Path::new(line.get(2)?) == job;
            is_rank.then_some(process)
        });
        ranks.max().unwrap()
    }

    #[test]
    fn an_interrupted_launcher_has_its_ranks_write_a_checkpoint() {
        let own = |child: &Child, _: &Path| child.id();
        // A rank hears its launcher once a second.
        interrupted(&["launch", "-n", "2", "train"], (2, 200), &[INTERRUPT], own);
    }

    #[test]
    fn one_rank_that_is_told_to_end_has_all_of_them_stop() {
        interrupted(&["launch", "-n", "2", "train"], (2, 150), &[TERMINATE, TERMINATE], a_rank);
    }
}
