//! A small training job, and all that it leaves behind.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// A job in which prep, evaluations and checkpoints all take a good part of a run of about a second.
pub fn job(directory: &Path, rows: usize) -> PathBuf {
    let csv = directory.join("clicks.csv");
    let mut text = String::from("click,price,user,items\n");
    let mut state = 1u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for _ in 0..rows {
        let (user, item, other) = (random(3000), random(500), random(500));
        let click = u64::from((user * 7 + item * 3) % 10 < 3);
        text.push_str(&format!("{click},{}.5,u{user},i{item}|i{other}\n", random(100)));
    }
    std::fs::write(&csv, text).unwrap();
    let at = |name: &str| directory.join(name).display().to_string();
    let job = format!(
        r#"
[run]
seed = 11
batch_size = 256
[run.data]
kind = "csv"
split = {{ kind = "by_row", valid = 0.1, test = 0.1 }}
[[run.data.label]]
name = "click"
[[run.data.dense]]
name = "price"
transforms = ["log1p", "standardise"]
[[run.data.sparse]]
name = "user"
map = {{ kind = "vocabulary", min_count = 2 }}
rows = 4000
[[run.data.sparse]]
name = "items"
map = "hash"
rows = 1000
list = true
separator = "|"
pooling = "mean"
[run.tables]
dim = 8
format = "bf16"
[run.model]
kind = "dlrm"
bottom = [16, 8]
top = [16]
[run.sparse]
optimizer = "rowwise_adagrad"
learning_rate = 0.05
[run.dense]
optimizer = "adam"
learning_rate = 0.01
[run.evaluate]
every_steps = 40
window_steps = 10
[process]
threads = 2
checkpoint_every_steps = 15
checkpoints_kept = 2
cache_dir = "{}"
output_dir = "{}"
[process.data]
train = ["{}"]
"#,
        at("cache"),
        at("output"),
        csv.display()
    );
    let path = directory.join("job.toml");
    std::fs::write(&path, job).unwrap();
    path
}

/// Every byte of the newest checkpoint and of the packed data, and all metrics that hold no clock reading.
pub fn result(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut checkpoints: Vec<PathBuf> = entries(&directory.join("output/checkpoints"));
    checkpoints.retain(|path| path.is_dir());
    checkpoints.sort();
    let newest = checkpoints.pop().expect("a checkpoint");
    for file in entries(&newest) {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let bytes = std::fs::read(&file).unwrap();
        let bytes = if name == "manifest.json" { without_paths(&bytes) } else { bytes };
        files.insert(format!("checkpoint/{name}"), bytes);
    }
    let metrics = std::fs::read_to_string(directory.join("output/metrics.jsonl")).unwrap();
    let metrics: Vec<String> = metrics.lines().map(without_clock).collect();
    files.insert("metrics".into(), metrics.join("\n").into_bytes());
    files
}

/// A manifest without the paths, which differ between two directories, the plan, and its own checksum, which follows.
fn without_paths(manifest: &[u8]) -> Vec<u8> {
    let mut value: serde_json::Value = serde_json::from_slice(manifest).unwrap();
    let map = value.as_object_mut().unwrap();
    map.remove("crc32c").expect("the manifest's checksum");
    map["job"].as_object_mut().unwrap().remove("process").expect("the job's process section");
    // Who held what is told for the reader's information, and is the one thing that the number of ranks may change.
    map.remove("plan").expect("the plan");
    serde_json::to_vec_pretty(&value).unwrap()
}

/// A line of metrics without its speed, the only thing in it that a clock decides.
fn without_clock(line: &str) -> String {
    let mut value: serde_json::Value = serde_json::from_str(line).unwrap();
    value.as_object_mut().unwrap().remove("samples_per_second");
    value.to_string()
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}
