//! From traffic to a trained model by commands: what a stream teaches is what the data teaches.
#![cfg(feature = "live")]

use std::collections::BTreeSet;

use campanile_stream::{log::DirectoryLog, records::Example};

#[path = "suite/stream_fixture.rs"]
mod stream_fixture;

use stream_fixture::{TASKS, campanile, fill, job, records, succeed, weights};

const SAMPLES: u64 = 128 * 30;

#[test]
fn a_stream_teaches_what_its_world_teaches() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name).display().to_string();
    let (by_data, by_stream) =
        (job(home.path(), "data", SAMPLES, "student"), job(home.path(), "stream", SAMPLES, "student"));
    let log = format!("dir:{}", path("log"));
    let directory = DirectoryLog::open(&home.path().join("log")).unwrap();
    fill(&directory, &by_stream);
    drop(directory);

    succeed(&["train", &by_data.display().to_string()]);
    succeed(&[&["join", &log, "--stop-at-end", "--report", &path("join.json")], &TASKS[..]].concat());
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(path("join.json")).unwrap()).unwrap();
    assert_eq!((&report["examples"], &report["open"]), (&SAMPLES.into(), &0.into()), "{report}");
    succeed(&["train", &by_stream.display().to_string(), "--stream", &log, "--stop-at-end"]);

    let (want, mut found) = (weights(&home.path().join("data")), weights(&home.path().join("stream")));
    assert_eq!(found.insert("next".to_owned(), b"null".to_vec()), Some(SAMPLES.to_string().into_bytes()));
    assert!(want.len() > 16, "{:?}", want.keys());
    for (name, bytes) in &want {
        assert!(&found[name] == bytes, "{name} differs");
    }

    // It goes on with what comes later only, and does not forget that it was on a stream.
    let again = ["train", &by_stream.display().to_string(), "--stream", &log, "--stop-at-end"];
    succeed(&again);
    assert_eq!(weights(&home.path().join("stream"))["step"], b"30");
    let output = campanile(&again[..2]).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains("was trained on a stream; name it again with --stream"), "{words}");
}

#[test]
fn a_teacher_speaks_once_on_every_impression_and_its_words_reach_the_examples() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name).display().to_string();
    let teacher = job(home.path(), "teacher", SAMPLES, "teacher").display().to_string();
    succeed(&["train", &teacher]);
    let published = std::process::Command::new(env!("CARGO_BIN_EXE_campanile"))
        .args(["publish", &teacher, "--registry", &path("registry"), "--model", "teacher", "--no-gate"])
        .output()
        .unwrap();
    assert!(published.status.success(), "{}", String::from_utf8_lossy(&published.stderr));
    let log = format!("dir:{}", path("log"));
    fill(&DirectoryLog::open(&home.path().join("log")).unwrap(), &home.path().join("teacher.toml"));
    let speak = ["augment", &log, "--teacher", &path("registry"), "--model", "teacher", "--stop-at-end"];
    succeed(&speak);
    succeed(&speak);
    succeed(&[&["join", &log, "--stop-at-end"], &TASKS[..]].concat());
    let directory = DirectoryLog::open(&home.path().join("log")).unwrap();
    assert_eq!(records(&directory, "words").len() as u64, SAMPLES);
    let examples = records(&directory, "examples");
    let examples: Vec<Example<'_>> =
        examples.iter().map(|(_, payload)| Example::decode(payload).unwrap()).collect();
    let ids: BTreeSet<u64> = examples.iter().map(|example| example.id).collect();
    assert_eq!((examples.len() as u64, ids.len() as u64), (SAMPLES, SAMPLES));
    assert!(examples.iter().all(|example| example.word.is_some_and(|word| word.version == 1)));
    assert!(examples.iter().any(|example| example.label(0) == Some(true) && example.label(1).is_some()));
    assert!(examples.iter().all(|example| example.label(0) == Some(true) || example.label(1).is_none()));
}

#[test]
fn mistakes_are_told_in_words() {
    let home = tempfile::tempdir().unwrap();
    let said = |arguments: &[&str]| {
        let output = campanile(arguments).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let log = format!("dir:{}", home.path().join("log").display());
    let words = said(&["join", "runs/log", "--task", "click=5m", "--stop-at-end"]);
    assert!(words.contains("`runs/log` is not the address of a log"), "{words}");
    let words = said(&["join", &log, "--task", "click=5", "--stop-at-end"]);
    assert!(words.contains("unit"), "{words}");
    let words = said(&["join", &log, "--task", "buy=5m,given=click", "--stop-at-end"]);
    assert!(words.contains("`click` is no other task"), "{words}");
    succeed(&["join", &log, "--task", "click=5m", "--stop-at-end"]);
    let words = said(&["join", &log, "--task", "view=5m", "--stop-at-end"]);
    assert!(words.contains("have the tasks `click`, and --task says `view`"), "{words}");
}
