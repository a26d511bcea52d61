//! Nothing is lost: a run that is killed again and again ends with the bits of one that was left alone.
//!
//! `SIGKILL` gives the program no chance to do anything, wherever it is: preparing data, training, or in the
//! middle of a checkpoint. The moments are drawn from a seed over the time that a whole run takes here.

use std::{
    collections::BTreeMap,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

#[path = "suite/small_job.rs"]
mod small_job;

use small_job::{job, result};

const KILLS: usize = 30;

fn campanile(job: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.arg("train").arg(job).arg("--quiet").stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn finish(job: &Path) {
    let output = campanile(job).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn thirty_kills_change_no_bit() {
    let undisturbed = tempfile::tempdir().unwrap();
    let start = Instant::now();
    finish(&job(undisturbed.path(), 20_000));
    let whole = start.elapsed();
    let want = result(undisturbed.path());

    let mut kills = 0;
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    while kills < KILLS {
        let disturbed = tempfile::tempdir().unwrap();
        let job = job(disturbed.path(), 20_000);
        // Up to ten kills in one run; then it may end.
        for _ in 0..10 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let moment = whole.mul_f64((state >> 40) as f64 / (1u64 << 24) as f64);
            let mut child = campanile(&job).spawn().unwrap();
            if wait_at_most(&mut child, moment) {
                break;
            }
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
        }
        finish(&job);
        let found = result(disturbed.path());
        let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&found), names(&want));
        for (name, bytes) in &want {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (found, want) = (text(&found[name]), text(bytes));
            let differing = found.lines().zip(want.lines()).find(|(found, want)| found != want);
            assert!(found == want, "{name} differs after {kills} kills: {differing:?}");
        }
    }
}

/// Whether the child ended by itself, and well, within `time`.
fn wait_at_most(child: &mut std::process::Child, time: Duration) -> bool {
    let start = Instant::now();
    while start.elapsed() < time {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "the run failed by itself");
            return true;
        }
        std::thread::yield_now();
    }
    false
}

#[test]
fn any_number_of_threads_goes_on_from_any_checkpoint() {
    let straight = tempfile::tempdir().unwrap();
    finish(&job(straight.path(), 5_000));
    let want = result(straight.path());

    let changing = tempfile::tempdir().unwrap();
    let job = job(changing.path(), 5_000);
    let text = std::fs::read_to_string(&job).unwrap();
    // Four steps on one thread, four more on eight, the rest on four.
    for (steps, threads) in [(4, "1"), (8, "8"), (0, "4")] {
        std::fs::write(&job, text.replace("seed = 11", &format!("seed = 11\nsteps_max = {steps}"))).unwrap();
        let output = campanile(&job).args(["--threads", threads]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let found = result(changing.path());
    for (name, bytes) in want.iter().filter(|(name, _)| name.ends_with(".safetensors")) {
        assert!(&found[name] == bytes, "{name} differs");
    }
    assert!(want.len() > 4, "{:?}", want.keys());
}
