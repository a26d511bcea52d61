//! An event log as Parquet: what pyarrow reads is what the log has, and training on it gives the bits of the stream.
#![cfg(all(feature = "live", feature = "parquet"))]

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use campanile_kernels::half::f32_from_f16;
use campanile_stream::{
    log::{Log, address},
    records::{Correction, Example, Feedback, Schema},
};
use serde_json::{Value, json};

#[path = "../../stream/tests/suite/broker.rs"]
#[cfg(feature = "nats")]
#[expect(dead_code, reason = "logs are opened by their address here, and the broker lives")]
mod broker;
#[path = "suite/logged_world.rs"]
mod logged_world;
#[path = "suite/stream_fixture.rs"]
#[expect(dead_code, reason = "worlds are for the other tests of streams")]
mod stream_fixture;

use logged_world::{IMPRESSION_COUNT, LATE_COUNT, SECOND_SCHEMA, features, number, time_ms, word};
use stream_fixture::{campanile, records, succeed, weights};

fn open(address: &str) -> Arc<dyn Log> {
    address::open(address, &address::Entry::default()).unwrap()
}

/// A joined log.
fn logged(address: &str) {
    logged_world::fill(&*open(address));
    logged_world::join(address);
}

fn directory_log(home: &Path) -> String {
    let address = format!("dir:{}", home.join("log").display());
    logged(&address);
    address
}

/// The Python that `cargo xtask test` makes; says in one line when it is not there.
fn python() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python/bin/python");
    if !path.exists() {
        let line = "NOT CHECKED: run `python3 xtask/python/environment.py` to try exported logs with pyarrow";
        assert!(std::env::var_os("CI").is_none(), "with CI set nothing may be left out. {line}");
        // Unlike `eprintln!` this shows even when the test passes.
        let mut shown = std::io::stderr();
        writeln!(shown, "{line}").unwrap();
        return None;
    }
    Some(path)
}

/// Files of a topic: notes, types and rows. With `whole`, all files are also read as one table.
fn tables(python: &Path, out: &Path, topic: &str, whole: bool) -> Vec<(Value, Value, Vec<Value>)> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/read_log_tables.py");
    let mut command = Command::new(python);
    command.arg(script).arg(out.join(topic)).args(whole.then_some("whole"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What the teacher says, as columns.
fn teacher_columns(number: usize) -> Value {
    let half = |half: u16| json!(f64::from(f32_from_f16(half)));
    let said = word(number);
    let seen_ms = said.as_ref().map(|(_, seen_ms, _)| *seen_ms).filter(|seen_ms| *seen_ms != i64::MIN);
    let delay = seen_ms.map(|seen_ms| f64::from((time_ms(number) as i64 - seen_ms) as f32 / 1000.0));
    let embedding = said.as_ref().map(|(.., embedding)| embedding).filter(|floats| !floats.is_empty());
    json!({
        "teacher.click": said.as_ref().map(|(logit, ..)| half(*logit)),
        "teacher_version": said.as_ref().map(|_| 3),
        "teacher_data_time": seen_ms,
        "teacher_delay": delay,
        "teacher_embedding": embedding.map(|floats| floats.iter().map(|float| half(*float)).collect::<Vec<_>>()),
    })
}

fn with(mut row: Value, more: Value) -> Value {
    let more = more.as_object().unwrap().clone();
    row.as_object_mut().unwrap().extend(more);
    row
}

fn feature_columns(number: usize, click: &str) -> Value {
    let names = logged_world::columns(number);
    let name = |name: &str| if name == "click" { click.to_owned() } else { name.to_owned() };
    names.into_iter().map(name).zip(features(number)).collect::<serde_json::Map<_, _>>().into()
}

fn head(record: usize, (time_ms, id): (u64, u64)) -> Value {
    json!({ "record": record, "time": time_ms, "id": id })
}

/// Every topic, every file and every value under pyarrow.
fn pyarrow_reads_what_the_log_has(address: &str) {
    let Some(python) = python() else { return };
    let home = tempfile::tempdir().unwrap();
    logged(address);
    let out = home.path().join("out");
    let report = home.path().join("report.json");
    let report_word = report.display().to_string();
    succeed(&["export-log", address, &out.display().to_string(), "--stop-at-end", "--report", &report_word]);
    let log = open(address);
    let rows = |topic: &str| -> Vec<Value> {
        let files = tables(&python, &out, topic, topic != "examples" && topic != "impressions");
        assert!(!files.is_empty(), "{topic}");
        files.into_iter().flat_map(|(.., rows)| rows).collect()
    };

    let want = |number: usize| {
        with(head(number, (time_ms(number), logged_world::id(number))), feature_columns(number, "click"))
    };
    assert_eq!(rows("impressions"), (0..IMPRESSION_COUNT).map(want).collect::<Vec<_>>());

    let said: Vec<usize> = (0..IMPRESSION_COUNT).filter(|number| word(*number).is_some()).collect();
    let want = said.iter().enumerate().map(|(record, number)| {
        with(head(record, (time_ms(*number), logged_world::id(*number))), teacher_columns(*number))
    });
    assert_eq!(rows("words"), want.collect::<Vec<_>>());

    let task = |task: u16| ["click", "buy"][usize::from(task)];
    let feedback = records(&*log, "feedback");
    let want = feedback.iter().enumerate().filter_map(|(record, (time_ms, payload))| {
        let feedback = Feedback::decode(payload)?;
        Some(with(head(record, (*time_ms, feedback.id)), json!({ "task": task(feedback.task) })))
    });
    assert_eq!(rows("feedback"), want.collect::<Vec<_>>());

    let corrections = records(&*log, "corrections");
    assert_eq!(corrections.len(), LATE_COUNT);
    let want = corrections.iter().enumerate().map(|(record, (time_ms, payload))| {
        let Correction { id, task: place, in_window } = Correction::decode(payload).unwrap();
        with(head(record, (*time_ms, id)), json!({ "task": task(place), "in_window": in_window }))
    });
    assert_eq!(rows("corrections"), want.collect::<Vec<_>>());

    examples_are_the_logs(&*log, &tables(&python, &out, "examples", false));
    let report: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    let told = |topic: usize, key: &str| report["topics"][topic][key].clone();
    assert_eq!((told(1, "topic"), told(1, "left_out")), (json!("feedback"), json!(1)));
    assert_eq!(
        (told(3, "topic"), told(3, "rows")),
        (json!("examples"), json!(IMPRESSION_COUNT + LATE_COUNT))
    );
}

fn examples_are_the_logs(log: &dyn Log, files: &[(Value, Value, Vec<Value>)]) {
    let examples = records(log, "examples");
    assert_eq!(examples.len(), IMPRESSION_COUNT + LATE_COUNT);
    let want = examples.iter().enumerate().map(|(record, (time_ms, payload))| {
        let is_late = Example::is_late(payload);
        let example = if is_late { Example::decode_late(payload) } else { Example::decode(payload) }.unwrap();
        let number = number(example.id);
        let label = |task: u16| example.label(task).map(u8::from);
        assert!(!is_late || label(0) == Some(1) && label(1).is_none());
        let own = json!({ "late": is_late, "click": label(0), "buy": label(1) });
        let mut row =
            with(with(head(record, (*time_ms, example.id)), own), feature_columns(number, "raw.click"));
        // A late example has no word.
        let teacher = teacher_columns(number);
        let teacher = teacher.as_object().unwrap().iter();
        let teacher =
            teacher.map(|(name, value)| (name.clone(), if is_late { json!(null) } else { value.clone() }));
        row.as_object_mut().unwrap().extend(teacher);
        row
    });
    let rows: Vec<Value> = files.iter().flat_map(|(.., rows)| rows.clone()).collect();
    for (found, want) in rows.iter().zip(want) {
        assert_eq!(*found, want);
    }
    assert_eq!(rows.len(), examples.len());

    // One file for each stretch of one schema.
    let schema = |number: usize| format!("{:08x}", Schema::new(logged_world::columns(number)).number());
    let noted: Vec<&str> =
        files.iter().map(|(notes, ..)| notes["campanile.schema"].as_str().unwrap()).collect();
    let (first, second) = (schema(0), schema(SECOND_SCHEMA));
    assert_eq!(noted, [&first, &second, &first, &second]);
    let (notes, types, _) = &files[0];
    assert_eq!((&notes["campanile.topic"], &notes["campanile.format"]), (&json!("examples"), &json!("1")));
    assert_eq!(
        *types,
        json!({
            "record": "int64", "time": "timestamp[ms, tz=UTC]", "id": "uint64", "late": "bool", "click": "int8",
            "buy": "int8", "teacher.click": "float", "teacher_version": "uint64",
            "teacher_data_time": "timestamp[ms, tz=UTC]", "teacher_delay": "float",
            "teacher_embedding": "list<element: float>", "user": "string", "item": "list<element: int64>",
            "price": "double", "seen": "int64", "never": "null", "raw.click": "int64",
        })
    );
}

#[test]
fn pyarrow_reads_a_directory() {
    let home = tempfile::tempdir().unwrap();
    pyarrow_reads_what_the_log_has(&format!("dir:{}", home.path().join("log").display()));
}

#[cfg(feature = "nats")]
#[test]
fn pyarrow_reads_a_broker() {
    let Some(broker) = broker::Broker::start() else { return };
    pyarrow_reads_what_the_log_has(&format!("{}/tables", broker.url()));
}

/// A job on the files and on the stream itself, with and without late examples.
#[test]
fn training_on_files_of_a_log_gives_the_bits_of_the_stream() {
    let home = tempfile::tempdir().unwrap();
    let log = directory_log(home.path());
    for (corrections, way) in [("train", &[][..]), ("ignore", &["--without-late"]), ("train", &["--union"])] {
        let name = format!("{corrections}{}", way.join(""));
        let tables = format!("{name}.tables");
        let by_file = logged_world::job(home.path(), &name, &tables, corrections);
        let by_stream = logged_world::job(home.path(), &format!("{name}.stream"), &tables, corrections);
        let out = home.path().join(&tables).display().to_string();
        let export = ["export-log", &log, &out, "--topic", "examples", "--stop-at-end", "--file-rows", "70"];
        succeed(&[&export, way].concat());
        succeed(&["train", &by_file]);
        succeed(&["train", &by_stream, "--stream", &log, "--stop-at-end"]);
        let (want, found) =
            (weights(&home.path().join(format!("{name}.stream"))), weights(&home.path().join(&name)));
        let steps = (IMPRESSION_COUNT + if corrections == "train" { LATE_COUNT } else { 0 }) / 16;
        assert_eq!(want["step"], steps.to_string().into_bytes());
        assert!(want.len() > 4, "{:?}", want.keys());
        for (file, bytes) in want.iter().filter(|(file, _)| *file != "next") {
            assert!(&found[file] == bytes, "{file} differs, {name}");
        }
    }
}

/// The first and the last record of each file, in order.
fn covered(directory: &Path) -> Vec<(u64, u64)> {
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = std::fs::read_dir(directory).unwrap().map(name).collect();
    names.sort();
    let numbers = |name: &String| {
        let (first, last) = name.strip_suffix(".parquet").expect("a whole file").split_once('-').unwrap();
        (first.parse().unwrap(), last.parse().unwrap())
    };
    names.iter().map(numbers).collect()
}

/// Killed at any moment and started again, files follow each other without gap or repetition, and have the same rows.
#[test]
fn a_killed_export_goes_on_where_its_files_end() {
    let home = tempfile::tempdir().unwrap();
    let log = directory_log(home.path());
    let out = home.path().join("killed");
    let words = out.display().to_string();
    let export = ["export-log", &log, &words, "--topic", "examples", "--stop-at-end", "--file-rows", "16"];
    for kill in 0..12 {
        let mut child = campanile(&export).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(7 * kill % 60));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    succeed(&export);
    let mut next = 0;
    for (first, last) in covered(&out.join("examples")) {
        assert_eq!((first, last >= first), (next, true));
        next = last + 1;
    }
    assert_eq!(next, (IMPRESSION_COUNT + LATE_COUNT) as u64);
    if let Some(python) = python() {
        examples_are_the_rows(&python, &*open(&log), &out);
    }
}

fn examples_are_the_rows(python: &Path, log: &dyn Log, out: &Path) {
    let files = tables(python, out, "examples", false);
    let ids: Vec<u64> =
        files.iter().flat_map(|(.., rows)| rows.iter().map(|row| row["id"].as_u64().unwrap())).collect();
    let of = |(_, payload): &(u64, Vec<u8>)| {
        Example::decode(payload).or_else(|| Example::decode_late(payload)).unwrap().id
    };
    assert_eq!(ids, records(log, "examples").iter().map(of).collect::<Vec<_>>());
}

#[test]
fn mistakes_are_told_in_words() {
    let home = tempfile::tempdir().unwrap();
    let said = |arguments: &[&str]| {
        let output = campanile(arguments).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let out = home.path().join("out").display().to_string();
    let nowhere = format!("dir:{}", home.path().join("nowhere").display());
    let words = said(&["export-log", &nowhere, &out, "--stop-at-end"]);
    assert!(words.contains("there is no event log in") && words.contains("nowhere"), "{words}");
    assert!(!home.path().join("nowhere").exists(), "looking makes nothing");
    let words = said(&["export-log", &nowhere, &out, "--topic", "clicks"]);
    assert!(words.contains("`clicks` is no topic with records of the loop"), "{words}");
    let words = said(&["export-log", &nowhere, &out, "--type", "user=word"]);
    assert!(words.contains("`word` is no type of a column; write integer, float, text or bytes"), "{words}");

    let log = directory_log(home.path());
    let wrong =
        ["export-log", &log, &out, "--topic", "impressions", "--stop-at-end", "--type", "user=integer"];
    let words = said(&wrong);
    let place =
        "topic `impressions`, record 1: column `user`, value `user-1`: it cannot be written as integer";
    assert!(words.contains(place), "{words}");
}
