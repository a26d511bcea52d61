//! Bad input gets a clear error: what the user reads, for every mistake that we could think of.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// A directory with a small Criteo-like CSV job; each test spoils one thing.
struct Case {
    directory: tempfile::TempDir,
    data: Vec<u8>,
    job: String,
}

const HEADER: &str = "click,price,user,items\n";

impl Case {
    fn new() -> Case {
        let rows: String =
            (0..200).map(|i| format!("{},{}.5,{},{}|{}\n", i % 2, i % 7, i % 90, i % 13, i % 5)).collect();
        let job = r#"
[run]
seed = 1
batch_size = 32
[run.data]
kind = "csv"
split = { kind = "by_row", valid = 0.1, test = 0.1 }
[[run.data.label]]
name = "click"
[[run.data.dense]]
name = "price"
[[run.data.sparse]]
name = "user"
map = "direct"
rows = 100
[[run.data.sparse]]
name = "items"
map = "hash"
rows = 1000
list = true
separator = "|"
[run.tables]
dim = 4
[run.model]
kind = "dlrm"
bottom = [8, 4]
top = [8]
[run.sparse]
learning_rate = 0.05
[run.dense]
optimizer = "adam"
learning_rate = 0.01
[process]
threads = 2
cache_dir = "CACHE"
output_dir = "OUTPUT"
[process.data]
train = ["DATA"]
"#;
        let directory = tempfile::tempdir().unwrap();
        Case { data: format!("{HEADER}{rows}").into_bytes(), job: job.to_owned(), directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Replaces a line of the data, counted from 1 with the header.
    fn line(mut self, number: usize, text: &[u8]) -> Case {
        let mut lines: Vec<&[u8]> = self.data.split(|b| *b == b'\n').collect();
        lines[number - 1] = text;
        self.data = lines.join(&b'\n');
        self
    }

    fn job(mut self, from: &str, to: &str) -> Case {
        assert!(self.job.contains(from), "the job has no `{from}`");
        self.job = self.job.replace(from, to);
        self
    }

    /// Runs `train`; exit code and standard error with the directory written as DIR.
    fn train(&self) -> (i32, String) {
        std::fs::write(self.path("clicks.csv"), &self.data).unwrap();
        let at = |name: &str| self.path(name).display().to_string();
        let job = self
            .job
            .replace("CACHE", &at("cache"))
            .replace("OUTPUT", &at("output"))
            .replace("DATA", &at("clicks.csv"));
        std::fs::write(self.path("job.toml"), job).unwrap();
        run(self.directory.path(), &["train", &at("job.toml"), "--quiet"])
    }

    /// Fails with exit code 1, without a panic, and says each of `words`.
    fn fails_with(&self, words: &[&str]) {
        let (code, text) = self.train();
        assert_eq!(code, 1, "{text}");
        for word in words {
            assert!(text.contains(word), "`{word}` is not in: {text}");
        }
        assert!(!text.contains("panicked"), "{text}");
    }
}

fn run(directory: &Path, arguments: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_campanile")).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).replace(&directory.display().to_string(), "DIR");
    (output.status.code().unwrap_or(-1), text)
}

#[test]
fn the_job_as_it_stands_trains() {
    let (code, text) = Case::new().train();
    assert_eq!((code, text.as_str()), (0, ""));
}

#[test]
fn a_reader_that_has_seen_enough() {
    let case = Case::new();
    case.train();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut inspect = Command::new(env!("CARGO_BIN_EXE_campanile"));
    let output = inspect.arg("inspect").arg(case.path("output/checkpoints")).stdout(writer).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(128 + 13));
}

#[test]
fn a_truncated_line() {
    Case::new().line(7, b"1,2.5").fails_with(&["DIR/clicks.csv", "7", "columns"]);
}

#[test]
fn too_many_columns() {
    Case::new().line(9, b"1,2.5,4,5,6,7").fails_with(&["DIR/clicks.csv", "9", "columns"]);
}

#[test]
fn invalid_utf8_in_an_id() {
    Case::new()
        .job("map = \"direct\"\nrows = 100", "map = \"hash\"\nrows = 100")
        .line(5, b"1,2.5,\xff\xfe,4")
        .fails_with(&["DIR/clicks.csv", "5", "user", "UTF-8"]);
}

#[test]
fn an_id_that_is_not_a_number_without_hashing() {
    Case::new().line(5, b"1,2.5,bob,4").fails_with(&["DIR/clicks.csv", "5", "user", "bob"]);
}

#[test]
fn an_id_beyond_its_table() {
    Case::new().line(5, b"1,2.5,100,4").fails_with(&["DIR/clicks.csv", "5", "user", "100"]);
}

#[test]
fn a_label_of_two() {
    Case::new().line(12, b"2,2.5,4,4").fails_with(&["DIR/clicks.csv", "12", "click", "2"]);
}

#[test]
fn a_label_of_one_class() {
    let mut case = Case::new();
    let rows: String =
        (0..200).map(|i| format!("{},{i},{},\n", if i % 3 == 0 { "1" } else { "" }, i % 90)).collect();
    case.data = format!("{HEADER}{rows}").into_bytes();
    case.fails_with(&["`click` is 1 in all of the 160 rows to train on that have one"]);
    // What `prep` says of the same rows.
    let job = case.path("job.toml").display().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_campanile")).args(["prep", &job]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("label `click`: absent in 133 of 200 rows (66.5 %)"), "{text}");
    assert!(text.contains("column `items`: missing in 200 of 200 rows (100.0 %)"), "{text}");
}

#[test]
fn nan_in_a_dense_column() {
    Case::new().line(3, b"1,NaN,4,4").fails_with(&["DIR/clicks.csv", "3", "price", "NaN"]);
}

#[test]
fn a_missing_column() {
    Case::new().job("name = \"price\"", "name = \"prise\"").fails_with(&["DIR/clicks.csv", "prise"]);
}

#[test]
fn an_empty_file() {
    let mut case = Case::new();
    case.data.clear();
    case.fails_with(&["DIR/clicks.csv", "empty"]);
}

#[test]
fn a_file_that_is_not_there() {
    Case::new()
        .job("train = [\"DATA\"]", "train = [\"nowhere.csv\"]")
        .fails_with(&["nowhere.csv", "does not exist"]);
}

#[test]
fn a_key_with_a_typo() {
    Case::new().job("batch_size", "bach_size").fails_with(&[
        "DIR/job.toml",
        "bach_size",
        "did you mean `batch_size`",
    ]);
}

#[test]
fn a_table_that_does_not_fit() {
    Case::new()
        .job("threads = 2", "threads = 2\ntable_memory_mib = 1")
        .job("map = \"hash\"\nrows = 1000", "map = \"hash\"\nrows = 1_000_000")
        .fails_with(&["table `items` needs", "process.table_memory_mib is 1.0 MiB", "make it smaller"]);
}

#[test]
fn threads_that_do_not_divide_the_grains() {
    Case::new().job("threads = 2", "threads = 3").fails_with(&[
        "`threads` in [process]",
        "is 3",
        "the 4 grains",
    ]);
}

#[test]
fn another_job_in_the_same_output() {
    let case = Case::new();
    assert_eq!(case.train().0, 0);
    case.job("seed = 1", "seed = 2").fails_with(&[
        "DIR/output/checkpoints",
        "`seed` in [run] was 1 and is 2 now",
        "--fresh",
    ]);
}

#[test]
fn another_training_in_the_same_output() {
    let case = Case::new();
    assert_eq!(case.train().0, 0);
    let lock = std::fs::File::open(case.path("output/lock")).unwrap();
    lock.lock().unwrap();
    case.fails_with(&["DIR/output is in use by process ", "`--output`"]);
    drop(lock);
    assert_eq!(case.train().0, 0);
}

#[test]
fn a_flipped_byte_in_any_checkpoint_file_names_the_file() {
    let case = Case::new();
    assert_eq!(case.train().0, 0);
    let checkpoint =
        std::fs::read_dir(case.path("output/checkpoints")).unwrap().next().unwrap().unwrap().path();
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&checkpoint).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 5, "{files:?}");
    for file in files {
        let good = std::fs::read(&file).unwrap();
        let mut bad = good.clone();
        let place = good.len() * 2 / 3;
        bad[place] ^= 4;
        std::fs::write(&file, bad).unwrap();
        case.fails_with(&[file.file_name().unwrap().to_str().unwrap()]);
        std::fs::write(&file, good).unwrap();
    }
    assert_eq!(case.train().0, 0);
}

#[cfg(feature = "serve")]
#[test]
fn an_address_that_is_taken_is_told_once() {
    let case = Case::new();
    assert_eq!(case.train().0, 0);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let model = format!("m={}", case.path("output/checkpoints").display());
    let words = ["serve", "--model", &model, "--http", &address, "--no-grpc"];
    let (code, text) = run(case.directory.path(), &words);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains(&address), "{text}");
    assert_eq!(text.matches("Address already in use").count(), 1, "{text}");
}

#[test]
fn misuse_has_its_own_exit_code() {
    let directory = tempfile::tempdir().unwrap();
    let (code, text) = run(directory.path(), &["train"]);
    assert_eq!(code, 2, "{text}");
    assert_eq!(run(directory.path(), &["trian"]).0, 2);
}

/// A disk that fills up while a checkpoint is written, for real: a small tmpfs, where the tests may mount one.
#[test]
fn a_full_disk_leaves_the_previous_checkpoint_whole() {
    let case =
        Case::new().job("threads = 2", "threads = 2\ncheckpoint_every_steps = 2\ncheckpoints_kept = 100");
    let case = case.job("map = \"hash\"\nrows = 1000", "map = \"hash\"\nrows = 20_000");
    let output = case.path("output");
    std::fs::create_dir(&output).unwrap();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=1200k", "tmpfs"]).arg(&output).output();
    if !mounted.is_ok_and(|m| m.status.success()) {
        println!(
            "not run: this needs the right to mount a small tmpfs; the disk is simulated in campanile-tables"
        );
        return;
    }
    let (code, text) = case.train();
    let checkpoints = output.join("checkpoints");
    let (inspected, found) =
        run(case.directory.path(), &["inspect", &checkpoints.display().to_string(), "--verify"]);
    let left: Vec<_> = std::fs::read_dir(&checkpoints)
        .into_iter()
        .flatten()
        .filter_map(|e| Some(e.ok()?.file_name()))
        .collect();
    Command::new("umount").arg(&output).output().unwrap();
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("space") && text.contains("DIR/output/checkpoints"), "{text}");
    assert_eq!(inspected, 0, "{found} {left:?}");
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("writing")), "{left:?}");
}
