//! Exactly once: stages of the loop that are killed again and again leave what undisturbed ones leave.
//!
//! Each of `augment`, `join` and `train --stream` is killed at moments drawn from a seed over the time that it takes here,
//! until it ends by itself. `CAMPANILE_KILLS` says how many kills there are at least; without it, ten.
#![cfg(feature = "live")]

use std::{
    path::Path,
    process::Child,
    time::{Duration, Instant},
};

use campanile_stream::log::DirectoryLog;

#[path = "suite/stream_fixture.rs"]
mod stream_fixture;

use stream_fixture::{TASKS, campanile, fill, job, records, succeed, weights};

const SAMPLES: u64 = 128 * 60;
const KILLS: usize = 10;

/// One run of the whole loop in a directory, with its stages run by `stage`.
fn whole(home: &Path, teacher: &Path, mut stage: impl FnMut(&[&str])) {
    let student = job(home, "student", SAMPLES, "student").display().to_string();
    let registry = teacher.join("registry").display().to_string();
    let log = format!("dir:{}", home.join("log").display());
    fill(&DirectoryLog::open(&home.join("log")).unwrap(), &home.join("student.toml"));
    stage(&["augment", &log, "--teacher", &registry, "--model", "teacher", "--stop-at-end"]);
    stage(&[&["join", &log, "--stop-at-end"], &TASKS[..]].concat());
    stage(&["train", &student, "--stream", &log, "--stop-at-end"]);
}

fn teach(home: &Path) {
    let teacher = job(home, "teacher", 128 * 20, "teacher").display().to_string();
    succeed(&["train", &teacher]);
    let registry = home.join("registry").display().to_string();
    let published = std::process::Command::new(env!("CARGO_BIN_EXE_campanile"))
        .args(["publish", &teacher, "--registry", &registry, "--model", "teacher", "--no-gate"])
        .status()
        .unwrap();
    assert!(published.success());
}

#[test]
fn kills_change_no_bit() {
    let wanted = std::env::var("CAMPANILE_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(KILLS);
    let teacher = tempfile::tempdir().unwrap();
    teach(teacher.path());
    let undisturbed = tempfile::tempdir().unwrap();
    let mut times = Vec::new();
    whole(undisturbed.path(), teacher.path(), |arguments| {
        let start = Instant::now();
        succeed(arguments);
        times.push(start.elapsed());
    });
    let (mut kills, mut state) = (0, 0x9e37_79b9_7f4a_7c15u64);
    while kills < wanted {
        let disturbed = tempfile::tempdir().unwrap();
        let mut place = 0;
        whole(disturbed.path(), teacher.path(), |arguments| {
            // Up to five kills of a stage; then it may end.
            for _ in 0..5 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let moment = times[place].mul_f64((state >> 40) as f64 / (1u64 << 24) as f64);
                let mut child = campanile(arguments).spawn().unwrap();
                if ends_within(&mut child, moment) {
                    break;
                }
                child.kill().unwrap();
                child.wait().unwrap();
                kills += 1;
            }
            succeed(arguments);
            place += 1;
        });
        let log = |home: &Path| DirectoryLog::open(&home.join("log")).unwrap();
        for topic in ["words", "examples", "corrections"] {
            let (found, want) =
                (records(&log(disturbed.path()), topic), records(&log(undisturbed.path()), topic));
            let differing = found.iter().zip(&want).position(|(found, want)| found != want);
            assert_eq!((found.len(), differing), (want.len(), None), "{topic} after {kills} kills");
        }
        let (found, want) =
            (weights(&disturbed.path().join("student")), weights(&undisturbed.path().join("student")));
        for (name, bytes) in &want {
            assert!(&found[name] == bytes, "{name} differs after {kills} kills");
        }
    }
    println!("{kills} kills changed no bit");
}

/// Whether the child ended by itself, and well, within `time`.
fn ends_within(child: &mut Child, time: Duration) -> bool {
    let start = Instant::now();
    while start.elapsed() < time {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "the stage failed by itself");
            return true;
        }
        std::thread::yield_now();
    }
    false
}
