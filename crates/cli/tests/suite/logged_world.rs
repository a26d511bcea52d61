//! A small log with all that a log can have: two schemas, missing values, lists, words, late labels.

use std::path::Path;

use campanile_data::{
    Raw,
    logged::{put, put_list},
};
use campanile_stream::{
    log::{Log, Record, TopicOptions},
    records::{Feedback, Impression, Schema, TICK, Word, declare},
    topics::{self, FEEDBACK, IMPRESSIONS, WORDS},
};
use serde_json::{Value, json};

use super::stream_fixture::succeed;

pub const IMPRESSION_COUNT: usize = 400;
/// One of 25 has a label that comes too late.
pub const LATE_COUNT: usize = IMPRESSION_COUNT / 25;
/// The first impression of the second schema.
pub const SECOND_SCHEMA: usize = 200;

const START_MS: u64 = 1_700_000_000_000;

pub fn id(number: usize) -> u64 {
    u64::MAX - number as u64
}

pub fn number(id: u64) -> usize {
    (u64::MAX - id) as usize
}

pub fn time_ms(number: usize) -> u64 {
    START_MS + 1000 * number as u64
}

pub fn columns(number: usize) -> Vec<&'static str> {
    let mut names = vec!["user", "item", "price", "seen", "never", "click"];
    if number >= SECOND_SCHEMA {
        names.push("extra");
    }
    names
}

/// The features of an impression, as a Python program sees them.
pub fn features(number: usize) -> Vec<Value> {
    let user = if number.is_multiple_of(11) { json!(null) } else { json!(format!("user-{}", number % 6)) };
    let item = match number % 9 {
        0 => json!(null),
        1 => json!([]),
        _ => json!([number % 13, number % 7]),
    };
    let price = number as f64 / if number.is_multiple_of(2) { 8.0 } else { 10.0 };
    let seen = if number.is_multiple_of(50) { -(1_i64 << 40) } else { number as i64 % 5 };
    let mut values = vec![user, item, json!(price), json!(seen), json!(null), json!(number % 3)];
    if number >= SECOND_SCHEMA {
        values.push(json!("é"));
    }
    values
}

/// What the teacher says: the bits of its logit, the time up to which it has seen, its embedding.
pub fn word(number: usize) -> Option<(u16, i64, Vec<u16>)> {
    if number.is_multiple_of(3) {
        return None;
    }
    let seen_ms = if number % 10 == 7 { i64::MIN } else { time_ms(number) as i64 - 61_234 - number as i64 };
    let embedding = if number.is_multiple_of(2) { vec![0x3c00, 0xb800] } else { Vec::new() };
    Some((0x3800 + number as u16, seen_ms, embedding))
}

pub fn is_clicked(number: usize) -> bool {
    number.is_multiple_of(5)
}

pub fn is_late(number: usize) -> bool {
    number % 25 == 7
}

/// Fills a log and joins it.
pub fn fill(log: &dyn Log) {
    topics::create(log, TopicOptions::default()).unwrap();
    let teacher = Schema::new(["click"]);
    declare(log, WORDS, 0, &teacher).unwrap();
    let (mut shown, mut said, mut followed) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..IMPRESSION_COUNT {
        shown.push((time_ms(number), impression(log, number)));
        if let Some((logit, data_time_ms, embedding)) = word(number) {
            let embedding: Vec<u8> = embedding.iter().flat_map(|half| half.to_le_bytes()).collect();
            let (schema, logits) = (teacher.number(), logit.to_le_bytes());
            let word = Word {
                id: id(number),
                schema,
                version: 3,
                data_time_ms,
                logits: &logits,
                embedding: &embedding,
            };
            let mut payload = Vec::new();
            word.encode(&mut payload);
            said.push((time_ms(number), payload));
        }
        let feedback = |after_ms: u64, task: u16| {
            let mut payload = Vec::new();
            Feedback { id: id(number), task }.encode(&mut payload);
            (time_ms(number) + after_ms, payload)
        };
        followed.extend(is_clicked(number).then(|| feedback(5000, 0)));
        followed.extend(number.is_multiple_of(20).then(|| feedback(9000, 1)));
        followed.extend(is_late(number).then(|| feedback(1_200_000, 0)));
    }
    followed.sort();
    followed.push((time_ms(IMPRESSION_COUNT) + 7_200_000, TICK.to_vec()));
    for (topic, all) in [(IMPRESSIONS, shown), (WORDS, said), (FEEDBACK, followed)] {
        let records: Vec<Record<'_>> =
            all.iter().map(|(time_ms, payload)| Record { time_ms: *time_ms, payload }).collect();
        log.append(topic, 0, &records).unwrap();
    }
    log.sync().unwrap();
}

fn impression(log: &dyn Log, number: usize) -> Vec<u8> {
    let schema = Schema::new(columns(number));
    declare(log, IMPRESSIONS, 0, &schema).unwrap();
    let mut row = schema.number().to_le_bytes().to_vec();
    for value in features(number) {
        match &value {
            Value::Array(items) => {
                put_list(&mut row, items.iter().map(|item| Raw::Int(item.as_i64().unwrap())));
            }
            Value::Number(float) if float.is_f64() => put(&mut row, Raw::Float(float.as_f64().unwrap())),
            Value::Number(integer) => put(&mut row, Raw::Int(integer.as_i64().unwrap())),
            Value::String(text) => put(&mut row, Raw::Text(text.as_bytes())),
            _ => put(&mut row, Raw::Missing),
        }
    }
    let mut payload = Vec::new();
    Impression { id: id(number), features: &row }.encode(&mut payload);
    payload
}

/// Joins the log, with late examples.
pub fn join(address: &str) {
    let tasks = ["--task", "click=10m", "--task", "buy=10m,given=click"];
    succeed(&[&["join", address, "--repeat-late", "--stop-at-end"], &tasks[..]].concat());
}

/// A job on the examples in files of `tables`; a stream is trained on with the same words.
pub fn job(home: &Path, name: &str, tables: &str, corrections: &str) -> String {
    let text = format!(
        r#"
[run]
seed = 3
batch_size = 16
corrections = "{corrections}"
[run.data]
kind = "parquet"
shuffle = false
time = "time"
teacher_delay = "teacher_delay"
sparse = [{{ name = "user", rows = 100 }}, {{ name = "item", rows = 100, list = true }}, {{ name = "seen", rows = 50 }}]
[[run.data.label]]
name = "click"
teacher = "teacher.click"
[[run.data.label]]
name = "buy"
[[run.data.dense]]
name = "price"
[run.tables]
dim = 4
[run.model]
kind = "mlp"
hidden = [8]
[run.distil]
method = "auxiliary"
[run.sparse]
optimizer = "rowwise_adagrad"
learning_rate = 0.05
[run.dense]
optimizer = "adam"
learning_rate = 0.01
[process]
threads = 1
cache_dir = "{0}/cache"
output_dir = "{0}/{name}"
[process.data]
train = ["{0}/{tables}/examples/*.parquet"]
"#,
        home.display()
    );
    let path = home.join(format!("{name}.toml"));
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}
