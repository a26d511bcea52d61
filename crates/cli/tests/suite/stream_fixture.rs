//! A small world's traffic in a log, and a job that trains on it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use campanile_live::traffic::{Nobody, Traffic};
use campanile_spec::{config::Job, data::SourceSpec};
use campanile_stream::{
    log::{Limit, Log, Records, TopicOptions},
    topics,
};

/// The windows are longer than any delay of the world, so that the log's labels are the world's own.
pub const TASKS: [&str; 4] = ["--task", "click=9000h", "--task", "conversion=9000h,given=click"];

/// A job on a world of `samples` impressions, written to `directory`.
pub fn job(directory: &Path, name: &str, samples: u64, view: &str) -> PathBuf {
    let output = directory.join(name);
    let text = format!(
        r#"
[run]
seed = 5
batch_size = 128
[run.data]
kind = "synthetic"
[run.data.world]
preset = "live"
view = "{view}"
train_samples = {samples}
valid_samples = 500
test_samples = 0
vocabulary = 500
samples_per_second = 100.0
[run.tables]
dim = 4
[run.model]
kind = "dlrm"
bottom = [8, 4]
top = [8]
[run.sparse]
optimizer = "rowwise_adagrad"
learning_rate = 0.05
[run.dense]
optimizer = "adam"
learning_rate = 0.01
[run.evaluate]
window_steps = 10
[process]
threads = 2
checkpoint_every_steps = 9
checkpoints_kept = 2
output_dir = "{}"
"#,
        output.display()
    );
    let path = directory.join(format!("{name}.toml"));
    std::fs::write(&path, text).unwrap();
    path
}

/// Writes the traffic of a job's world to a log, all of it.
pub fn fill(log: &dyn Log, job: &Path) {
    let job = Job::parse(&std::fs::read_to_string(job).unwrap()).unwrap();
    let SourceSpec::Synthetic(world) = &job.run.data.source else { panic!("a world") };
    topics::create(log, TopicOptions::default()).unwrap();
    let mut traffic = Traffic::new(world, job.run.seed, &Nobody).unwrap();
    while traffic.chunk(log, &mut Nobody).unwrap() {}
    traffic.finish(log, 9001 * 3_600_000).unwrap();
    log.sync().unwrap();
}

/// The program with some arguments.
pub fn campanile(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.args(arguments).arg("--quiet").stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Runs it to its end, which must be a good one.
pub fn succeed(arguments: &[&str]) -> Output {
    let output = campanile(arguments).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "campanile {}: {words}", arguments.join(" "));
    output
}

/// Every weight of the newest checkpoint, byte by byte, and its step and cursor.
pub fn weights(output: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut checkpoints: Vec<PathBuf> = entries(&output.join("checkpoints"));
    checkpoints.retain(|path| path.is_dir());
    checkpoints.sort();
    let newest = checkpoints.pop().expect("a checkpoint");
    let mut files = BTreeMap::new();
    for file in
        entries(&newest).into_iter().filter(|file| file.extension().is_some_and(|e| e == "safetensors"))
    {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        files.insert(name, std::fs::read(&file).unwrap());
    }
    let manifest = std::fs::read(newest.join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    files.insert("step".to_owned(), manifest["step"].to_string().into_bytes());
    files.insert("next".to_owned(), manifest["cursor"]["next"].to_string().into_bytes());
    files
}

/// All records of a topic.
pub fn records(log: &dyn Log, topic: &str) -> Vec<(u64, Vec<u8>)> {
    let (mut all, mut out) = (Vec::new(), Records::default());
    loop {
        let limit = Limit { records: 1000, bytes: usize::MAX };
        log.read(topic, 0, all.len() as u64, limit, &mut out).unwrap();
        if out.is_empty() {
            return all;
        }
        all.extend(out.iter().map(|record| (record.time_ms, record.payload.to_vec())));
    }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}
