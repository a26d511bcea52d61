//! The gate and `eval` on tables drawn at random: a version is judged by its own transforms, whatever the job that asks, its
//! columns, their order or the form of its files.

#[allow(dead_code, reason = "another test takes the rest")]
#[path = "../../server/tests/skew/draw.rs"]
mod draw;
#[allow(dead_code, reason = "another test takes the rest")]
#[path = "../../server/tests/skew/files.rs"]
mod files;
#[allow(dead_code, reason = "another test takes the rest")]
#[path = "../../server/tests/skew/job.rs"]
mod job;

use std::{path::Path, process::Command};

use draw::{Numbers, Table};
use job::Drawn;
use serde_json::Value;

/// The tables of every test run.
const SEEDS: std::ops::Range<u64> = 101..106;

fn campanile(folder: &Path, words: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    let output = command.args(words.split_whitespace()).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "campanile {words}: {}", String::from_utf8_lossy(&output.stderr));
}

fn report(folder: &Path, name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(folder.join(name)).unwrap()).unwrap()
}

/// Holds the metrics of every task that rows were judged by to those of another report. Groups, segments and which tasks have
/// labels are for the job to say that asks.
fn assert_same(found: &Value, wanted: &Value, what: &str) {
    let plain = |task: &Value| {
        let mut numbers = task.as_object().expect("numbers").clone();
        numbers.retain(|name, _| !name.starts_with("gauc") && name != "segments");
        numbers
    };
    let judged = found.as_array().expect("tasks").iter().filter(|task| task["count"] != 0);
    let mut tasks = 0;
    for task in judged {
        let same = |other: &&Value| other["task"] == task["task"];
        let other = wanted.as_array().expect("tasks").iter().find(same).expect("the same task");
        assert_eq!(plain(task), plain(other), "{what}");
        tasks += 1;
    }
    assert!(tasks > 0, "{what}: nothing was judged");
}

#[test]
fn the_gate_and_eval_say_the_same_of_every_version() {
    for seed in SEEDS {
        let numbers = &mut Numbers(seed);
        let table = Table::draw(numbers);
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        files::write_all(numbers, &table, folder);
        let mut kinds = ["csv", "parquet"];
        numbers.shuffle(&mut kinds);
        for (name, kind) in ["before", "after"].into_iter().zip(kinds) {
            let text = Drawn::of(numbers, &table).text(kind, "valid", folder, &folder.join(name));
            std::fs::write(folder.join(format!("{name}.toml")), text).unwrap();
            campanile(folder, &format!("train {name}.toml --quiet"));
            campanile(folder, &format!("eval {name}.toml --split valid --report {name}.json"));
            let margins = "--ne-margin 1000000 --calibration-margin 1000000";
            campanile(
                folder,
                &format!("publish {name}.toml --registry all --model m {margins} --report gate_{name}.json"),
            );
        }
        // The newer job's files and columns, the older one's model.
        campanile(folder, "eval after.toml --checkpoint before/out --split valid --report again.json");
        let [before, after, again] =
            ["before.json", "after.json", "again.json"].map(|name| report(folder, name));
        let judged = &report(folder, "gate_after.json")["release"]["judged"];
        for (what, theirs, own) in
            [("current", &judged["current"], &before), ("candidate", &judged["candidate"], &after)]
        {
            let own = &own["evaluation"]["valid"]["tasks"];
            assert_same(theirs, own, &format!("seed {seed}: the gate's {what} version"));
        }
        let [again, before] = [&again, &before].map(|report| &report["evaluation"]["valid"]["tasks"]);
        assert_same(again, before, &format!("seed {seed}: eval with another job"));
    }
}
