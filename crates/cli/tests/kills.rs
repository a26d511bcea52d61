//! Nothing is lost: a run that is killed again and again ends with the bits of one that was left alone.
//!
//! `SIGKILL` gives the program no chance to do anything, wherever it is: preparing data, training, or in the
//! middle of a checkpoint. The moments are drawn from a seed over the time that a whole run takes here.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

const KILLS: usize = 30;

/// A job in which prep, evaluations and checkpoints all take a good part of a run of about a second.
fn job(directory: &Path, rows: usize) -> PathBuf {
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

fn campanile(job: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.arg("train").arg(job).arg("--quiet").stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn finish(job: &Path) {
    let output = campanile(job).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Every byte of the newest checkpoint and of the packed data, and all metrics that hold no clock reading.
fn result(directory: &Path) -> BTreeMap<String, Vec<u8>> {
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
