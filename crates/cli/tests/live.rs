//! The loop in one process, with more traffic than the models can take: traffic waits, and nothing piles up.
#![cfg(feature = "live")]

use std::process::{Command, Stdio};

/// Examples that may wait for a model.
const WAITING_MAX: u64 = 1500;
/// What can come beyond that: a chunk of traffic that was begun, and as many impressions that it closes.
const BEYOND: u64 = 2 * campanile_live::traffic::CHUNK;

#[test]
fn traffic_waits_for_the_slowest_model() {
    let home = tempfile::tempdir().unwrap();
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/live.toml");
    let text = std::fs::read_to_string(example).unwrap();
    // Short windows, so that examples come early in a short run.
    let waiting = format!("examples_waiting_max = {WAITING_MAX}");
    let changes = [
        ("click = 120.0, conversion = 600.0", "click = 5.0, conversion = 10.0"),
        ("examples_waiting_max = 50_000", waiting.as_str()),
        ("speed = 30.0", "speed = 0.0"),
    ];
    let text = changes.iter().fold(text, |text, (from, to)| {
        assert!(text.contains(from), "examples/live.toml has `{from}`");
        text.replace(from, to)
    });
    let file = home.path().join("live.toml");
    std::fs::write(&file, text).unwrap();
    let report = home.path().join("report.json");
    let output = Command::new(env!("CARGO_BIN_EXE_campanile"))
        .arg("live")
        .arg(&file)
        .arg("--directory")
        .arg(home.path().join("run"))
        .args(["--page", "127.0.0.1:0", "--for", "5s", "--quiet", "--report"])
        .arg(&report)
        .stdout(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    let stages = report["stages"].as_array().expect("stages");
    let trainers: Vec<_> =
        stages.iter().filter(|stage| stage["name"].as_str().unwrap().starts_with("train ")).collect();
    assert!(trainers.len() >= 3, "{stages:?}");
    for stage in trainers {
        let most = stage["waiting_most"].as_u64().unwrap();
        assert!(most <= WAITING_MAX + BEYOND, "{stage}");
    }
    // And still everything moved.
    let examples: Vec<u64> = report["models"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| model["examples"].as_u64().unwrap())
        .collect();
    assert!(examples.iter().any(|examples| *examples > 0), "{examples:?}");
}
