use std::path::Path;

use campanile_data::{Raw, columnar::notes, logged::put};
use campanile_stream::{
    log::{DirectoryLog, Record, TopicOptions},
    records::{Feedback, Impression, Schema, TICK, declare},
    topics,
};

use super::*;

fn open_log(home: &Path) -> Arc<dyn Log> {
    let log = DirectoryLog::open(home).unwrap();
    topics::create(&log, TopicOptions::default()).unwrap();
    Arc::new(log)
}

/// Appends an impression with a cell for each column.
fn show(log: &dyn Log, id: u64, cells: &[(&str, Raw<'_>)]) {
    let schema = Schema::new(cells.iter().map(|(name, _)| *name));
    declare(log, topics::IMPRESSIONS, 0, &schema).unwrap();
    let mut features = schema.number().to_le_bytes().to_vec();
    cells.iter().for_each(|(_, cell)| put(&mut features, *cell));
    let mut payload = Vec::new();
    Impression { id, features: &features }.encode(&mut payload);
    log.append(topics::IMPRESSIONS, 0, &[Record { time_ms: 1000 + id, payload: &payload }]).unwrap();
}

fn options(out: &Path) -> ExportOptions {
    ExportOptions { directory: out.to_owned(), file_rows: 1000, ..ExportOptions::default() }
}

/// Exports all that is there, and says which records are in which file and the types of their columns.
fn export(log: &Arc<dyn Log>, topic: Topic, options: ExportOptions) -> Result<Vec<String>, String> {
    let mut export = Export::open(Arc::clone(log), topic, options).map_err(|error| error.to_string())?;
    while export.turn().map_err(|error| error.to_string())? {}
    export.finish().map_err(|error| error.to_string())?;
    let told = |path: &PathBuf| {
        let notes = notes(path).unwrap();
        let of = |key: &str| notes[key].as_str();
        let types: BTreeMap<String, String> = serde_json::from_str(of("campanile.column_types")).unwrap();
        let features = types.iter().filter(|(name, _)| !["record", "time", "id"].contains(&name.as_str()));
        let features: Vec<String> = features.map(|(name, kind)| format!("{name}={kind}")).collect();
        let (first, last) = (of("campanile.first_record"), of("campanile.last_record"));
        assert!(path.ends_with(format!("{first:0>20}-{last:0>20}.parquet")), "{}", path.display());
        format!("{first}-{last} {}", features.join(" "))
    };
    Ok(export.published().iter().map(told).collect())
}

#[test]
fn files_have_one_schema_and_no_record_is_in_two() {
    let home = tempfile::tempdir().unwrap();
    let (log, out) = (open_log(&home.path().join("log")), home.path().join("out"));
    let all = || export(&log, Topic::Impressions, options(&out)).unwrap();
    assert!(all().is_empty());
    for id in 0..5 {
        show(&*log, id, &[("user", Raw::Text(b"a")), ("price", Raw::Missing)]);
    }
    show(&*log, 5, &[("user", Raw::Text(b"b")), ("item", Raw::Int(1))]);
    assert_eq!(all(), ["0-4 price=missing user=text", "5-5 item=integer user=text"]);
    assert!(all().is_empty(), "nothing is exported again");
    // A type is remembered, and one that grows begins a file.
    show(&*log, 6, &[("user", Raw::Missing), ("item", Raw::Missing)]);
    show(&*log, 7, &[("user", Raw::Missing), ("item", Raw::Float(0.5))]);
    let short = || export(&log, Topic::Impressions, ExportOptions { file_rows: 1, ..options(&out) }).unwrap();
    assert_eq!(short(), ["6-6 item=integer user=text", "7-7 item=float user=text"]);
    // The same words again go on; a later record passes over some.
    let from =
        |from| export(&log, Topic::Impressions, ExportOptions { from: Some(from), ..options(&out) }).unwrap();
    assert!(from(2).is_empty());
    (8..12).for_each(|id| show(&*log, id, &[("user", Raw::Text(b"c"))]));
    assert_eq!(from(10), ["10-11 user=text"]);
    assert!(!out.join("impressions/.unfinished").exists());
}

#[test]
fn a_column_that_is_empty_at_first_has_its_later_type() {
    let home = tempfile::tempdir().unwrap();
    let log = open_log(&home.path().join("log"));
    for id in 0..6 {
        show(&*log, id, &[("served", if id < 4 { Raw::Missing } else { Raw::Float(0.5) })]);
    }
    let short = ExportOptions { file_rows: 3, ..options(&home.path().join("out")) };
    let files = export(&log, Topic::Impressions, short).unwrap();
    assert_eq!(files, ["0-2 served=float", "3-5 served=float"]);
}

#[test]
fn schemas_that_take_turns_share_files_on_request() {
    let home = tempfile::tempdir().unwrap();
    let log = open_log(&home.path().join("log"));
    for id in 0..40 {
        match id % 2 {
            0 => show(&*log, id, &[("user", Raw::Int(1)), ("served.a", Raw::Float(0.5))]),
            _ => show(&*log, id, &[("served.b", Raw::Float(0.5)), ("user", Raw::Int(2))]),
        }
    }
    let apart = export(&log, Topic::Impressions, options(&home.path().join("apart"))).unwrap();
    assert_eq!(apart.len(), 40);
    let union = ExportOptions { union: true, ..options(&home.path().join("union")) };
    let union = export(&log, Topic::Impressions, union).unwrap();
    let all = "served.a=float served.b=float user=integer";
    assert_eq!(union, ["0-0 served.a=float user=integer", &format!("1-39 {all}")]);
    // A name that is taken in one schema and free in the other, and one that stands twice.
    show(&*log, 40, &[("raw.id", Raw::Int(1)), ("user", Raw::Int(3)), ("user", Raw::Text(b"x"))]);
    show(&*log, 41, &[("id", Raw::Float(0.5))]);
    let union = ExportOptions { union: true, from: Some(40), ..options(&home.path().join("named")) };
    let files = export(&log, Topic::Impressions, union).unwrap();
    let both = "raw.id=integer raw.raw.id=float user=integer";
    assert_eq!(files, ["40-40 raw.id=integer user=integer", &format!("41-41 {both}")]);
}

#[test]
fn what_cannot_be_exported_is_named() {
    let home = tempfile::tempdir().unwrap();
    let log = open_log(&home.path().join("log"));
    let out = home.path().join("out");
    show(&*log, 0, &[("user", Raw::Int(1))]);
    show(&*log, 1, &[("user", Raw::Text(b"red"))]);
    let wrong = |topic, options| export(&log, topic, options).unwrap_err();
    let words = wrong(Topic::Impressions, options(&out));
    let start = "topic `impressions`, record 1: column `user`, value `red`: until now the column had values of type integer";
    assert!(words.starts_with(start), "{words}");
    let types = BTreeMap::from([("user".to_owned(), "text".parse().unwrap())]);
    let said = export(&log, Topic::Impressions, ExportOptions { types, ..options(&out) }).unwrap();
    assert_eq!(said, ["0-1 user=text"]);

    let mut payload = Vec::new();
    Feedback { id: 0, task: 1 }.encode(&mut payload);
    let append = |payload: &[u8]| log.append(topics::FEEDBACK, 0, &[Record { time_ms: 5, payload }]).unwrap();
    append(TICK);
    append(&payload);
    let words = wrong(Topic::Feedback, options(&out));
    assert_eq!(
        words,
        "topic `feedback`, record 1: the log's tasks have no names yet; `campanile join` gives them"
    );
    declare(&*log, topics::EXAMPLES, 0, &Schema::new(["click"])).unwrap();
    let words = wrong(Topic::Feedback, options(&out));
    assert_eq!(words, "topic `feedback`, record 1: it has task number 2, and the log has 1: `click`");
    append(b"\x77what");
    let past = ExportOptions { from: Some(2), ..options(&out) };
    let words = wrong(Topic::Feedback, past);
    assert!(words.starts_with("topic `feedback`, record 2: it is no record of this topic"), "{words}");

    // Files of one log do not go on with another.
    let other = open_log(&home.path().join("other"));
    let words = export(&other, Topic::Impressions, options(&out)).unwrap_err();
    assert!(words.contains("has records of another log: its last one, record 1 of `impressions`"), "{words}");
    (0..3).for_each(|id| show(&*other, id, &[("user", Raw::Int(1))]));
    assert!(export(&other, Topic::Impressions, options(&out)).is_err());
    assert!("clicks".parse::<Topic>().unwrap_err().contains("`clicks` is no topic"));
}

#[test]
fn ticks_are_passed_over_and_names_that_are_taken_change() {
    let home = tempfile::tempdir().unwrap();
    let log = open_log(&home.path().join("log"));
    let out = home.path().join("out");
    declare(&*log, topics::EXAMPLES, 0, &Schema::new(["click"])).unwrap();
    let mut payload = Vec::new();
    Feedback { id: 0, task: 0 }.encode(&mut payload);
    let append = |payload: &[u8]| log.append(topics::FEEDBACK, 0, &[Record { time_ms: 5, payload }]).unwrap();
    append(TICK);
    // Ticks alone make no file, and are read again.
    assert!(export(&log, Topic::Feedback, options(&out)).unwrap().is_empty());
    append(&payload);
    append(TICK);
    assert_eq!(export(&log, Topic::Feedback, options(&out)).unwrap(), ["0-2 task=text"]);
    show(&*log, 0, &[("time", Raw::Int(1)), ("raw.time", Raw::Int(2)), ("id", Raw::Text(b"x"))]);
    let files = export(&log, Topic::Impressions, options(&out)).unwrap();
    assert_eq!(files, ["0-0 raw.id=text raw.raw.time=integer raw.time=integer"]);
}

/// The same records in a log that was made anew are another log.
#[test]
fn files_of_a_log_that_was_made_anew_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("out");
    for name in ["first", "second"] {
        let log = open_log(&home.path().join(name));
        (0..3).for_each(|id| show(&*log, id, &[("user", Raw::Text(b"a"))]));
        let exported = export(&log, Topic::Impressions, options(&out));
        match name {
            "first" => assert_eq!(exported.unwrap().len(), 1),
            _ => assert!(exported.unwrap_err().contains("has records of another log"), "it is another"),
        }
    }
}
