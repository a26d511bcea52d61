//! What every command says when an event log has lost what was on disk, when the disk is full, and when the log is another one.
#![cfg(feature = "live")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use campanile_stream::{
    log::{DirectoryLog, Log, Record},
    records::{Impression, Word},
};

#[path = "suite/stream_fixture.rs"]
mod stream_fixture;

use stream_fixture::{TASKS, campanile, fill, job, records, succeed, weights};

const SAMPLES: u64 = 128 * 8;

/// A directory with a log, and commands on it.
struct Scene {
    home: tempfile::TempDir,
}

impl Scene {
    /// With all traffic in `log`.
    fn new() -> Scene {
        let scene = Scene { home: tempfile::tempdir().unwrap() };
        let student = job(scene.home.path(), "student", SAMPLES, "student");
        fill(&scene.open("log"), &student);
        scene
    }

    fn path(&self, name: &str) -> String {
        self.home.path().join(name).display().to_string()
    }

    fn open(&self, log: &str) -> DirectoryLog {
        DirectoryLog::open(&self.home.path().join(log)).unwrap()
    }

    fn address(&self, log: &str) -> String {
        format!("dir:{}", self.path(log))
    }

    /// Trains a teacher and publishes it so often.
    fn publish_teacher(&self, versions: usize) {
        let teacher = job(self.home.path(), "teacher", 128 * 2, "teacher").display().to_string();
        succeed(&["train", &teacher]);
        for _ in 0..versions {
            let registry = self.path("registry");
            let mut publish = Command::new(env!("CARGO_BIN_EXE_campanile"));
            publish.args(["publish", &teacher, "--registry", &registry, "--model", "teacher", "--no-gate"]);
            assert!(publish.output().unwrap().status.success());
        }
    }

    fn join(&self, log: &str) -> Vec<String> {
        words(&["join", &self.address(log), "--stop-at-end"], &TASKS)
    }

    fn augment(&self, log: &str) -> Vec<String> {
        let (log, registry) = (self.address(log), self.path("registry"));
        words(&["augment", &log, "--teacher", &registry], &["--model", "teacher", "--stop-at-end"])
    }

    fn train(&self, log: &str) -> Vec<String> {
        words(&["train", &self.path("student.toml"), "--stream"], &[&self.address(log), "--stop-at-end"])
    }

    fn feedback(&self, log: &str, lines: usize) -> Vec<String> {
        let lines: String = (0..lines).map(|n| format!("request-{n},0,click,5\n")).collect();
        fs::write(self.path("clicks.csv"), lines).unwrap();
        words(&["feedback", &self.address(log)], &[&self.path("clicks.csv")])
    }

    #[cfg(feature = "parquet")]
    fn export(&self, log: &str, topic: &str) -> Vec<String> {
        let out = self.path(&format!("{log}.tables"));
        words(&["export-log", &self.address(log), &out], &["--topic", topic, "--stop-at-end"])
    }

    /// A copy of a log, in which the last segment of a topic has lost its end.
    fn cut(&self, log: &str, topic: &str, keeps: impl Fn(u64) -> u64) {
        let _ = fs::remove_dir_all(self.path("cut"));
        let _ = fs::remove_dir_all(self.path("cut.tables"));
        copy_tree(&self.home.path().join(log), &self.home.path().join("cut"));
        let path = self.home.path().join(format!("cut/topics/{topic}/0/{:020}.log", 0));
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_len(keeps(file.metadata().unwrap().len())).unwrap();
    }
}

fn words(first: &[&str], more: &[&str]) -> Vec<String> {
    first.iter().chain(more).map(|word| (*word).to_owned()).collect()
}

fn run(arguments: &[String]) -> Output {
    campanile(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).output().unwrap()
}

fn well(arguments: &[String]) {
    succeed(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
}

/// What a command that fails says.
fn said(arguments: &[String]) -> String {
    let output = run(arguments);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {words}");
    words
}

/// The same where no file may have more than so many kibibytes: as on a full disk.
fn said_without_room(arguments: &[String], kibibytes: u64) -> String {
    // A shell counts in blocks of 512 bytes or of 1024; the signal that the system sends beside the error is ignored, as by servers.
    let script = "trap '' XFSZ; ulimit -f $0; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, &kibibytes.to_string(), env!("CARGO_BIN_EXE_campanile")]);
    let output = command.args(arguments).arg("--quiet").stdin(Stdio::null()).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {words}");
    words
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path: PathBuf = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_tree(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

/// Whoever reads a topic, or goes on writing it, names the file and the byte, however much is gone.
#[test]
fn a_log_that_lost_its_tail_is_told_by_every_command() {
    let scene = Scene::new();
    scene.publish_teacher(1);
    well(&scene.join("log"));
    let commands: [(&str, Vec<Vec<String>>); 4] = [
        ("impressions", vec![scene.join("cut"), scene.augment("cut")]),
        ("feedback", vec![scene.join("cut"), scene.feedback("cut", 3)]),
        ("examples", vec![scene.train("cut"), scene.join("cut")]),
        ("words", vec![scene.join("cut"), scene.augment("cut")]),
    ];
    well(&scene.augment("log"));
    for (topic, commands) in commands {
        #[cfg(feature = "parquet")]
        let commands = commands.into_iter().chain([scene.export("cut", topic)]);
        for command in commands {
            for keeps in [|bytes: u64| bytes - 1, |bytes: u64| bytes / 3] {
                scene.cut("log", topic, keeps);
                let words = said(&command);
                let file = format!("topics/{topic}/0/{:020}.log is damaged at byte", 0);
                assert!(words.contains(&file), "{command:?}: {words}");
                assert!(words.contains("are gone"), "{command:?}: {words}");
            }
        }
    }
}

/// A full disk names the file; with room again everything is there once, as if nothing had happened.
#[test]
fn a_full_disk_ends_a_stage_and_loses_nothing() {
    let scene = Scene::new();
    scene.publish_teacher(1);
    copy_tree(&scene.home.path().join("log"), &scene.home.path().join("full"));
    for log in ["log", "full"] {
        for (stage, topic) in [(scene.augment(log), "words"), (scene.join(log), "examples")] {
            if log == "full" {
                let words = said_without_room(&stage, 16);
                let file = format!("topics/{topic}/0/{:020}.log: cannot write: File too large", 0);
                assert!(words.contains(&file), "{words}");
            }
            well(&stage);
        }
    }
    for topic in ["words", "examples", "corrections"] {
        let (want, found) = (records(&scene.open("log"), topic), records(&scene.open("full"), topic));
        assert!(want == found, "{topic} differs: {} and {} records", want.len(), found.len());
    }
    assert_eq!(records(&scene.open("full"), "examples").len() as u64, SAMPLES);

    // Clicks that did not fit were not taken; what was written of them is whole, and the next ones go behind it.
    let before = records(&scene.open("full"), "feedback").len();
    let words = said_without_room(&scene.feedback("full", 5000), 64);
    assert!(words.contains("topics/feedback/0") && words.contains("File too large"), "{words}");
    let kept = records(&scene.open("full"), "feedback").len();
    well(&scene.feedback("full", 10));
    assert_eq!(records(&scene.open("full"), "feedback").len(), kept + 10);
    assert!(kept >= before);
}

/// A turn that was interrupted is finished by the version that it was begun with, or by none.
#[test]
fn a_turn_is_finished_by_the_version_that_began_it() {
    let scene = Scene::new();
    scene.publish_teacher(1);
    let augment = scene.augment("log");
    said_without_room(&augment, 16);
    scene.publish_teacher(1);
    let registry = campanile_tables::Registry::new(&scene.home.path().join("registry"));
    assert_eq!(registry.current("teacher").unwrap(), Some(2));
    let first = registry.path("teacher", 1);
    let aside = scene.home.path().join("aside");
    fs::rename(&first, &aside).unwrap();
    let words = said(&augment);
    assert!(words.contains("begun with version 1 of the teacher `teacher`"), "{words}");
    assert!(words.contains("no longer has it") && words.contains("--other-version"), "{words}");

    copy_tree(&scene.home.path().join("log"), &scene.home.path().join("other"));
    fs::rename(&aside, &first).unwrap();
    well(&augment);
    let versions = |log: &str| -> Vec<u64> {
        records(&scene.open(log), "words")
            .iter()
            .map(|(_, word)| Word::decode(word).unwrap().version)
            .collect()
    };
    assert_eq!(versions("log"), vec![1; SAMPLES as usize]);
    fs::rename(&first, &aside).unwrap();
    well(&[&scene.augment("other")[..], &["--other-version".to_owned()]].concat());
    let found = versions("other");
    assert_eq!(found.len() as u64, SAMPLES);
    assert!(found.is_sorted() && found.last() == Some(&2), "{found:?}");
}

/// A checkpoint knows the log that it was trained on.
#[test]
fn a_trainer_refuses_another_log() {
    let scene = Scene::new();
    copy_tree(&scene.home.path().join("log"), &scene.home.path().join("shorter"));
    well(&scene.join("log"));
    well(&scene.train("log"));
    let trained = weights(&scene.home.path().join("student"));

    // The same traffic, in a log of its own.
    fill(&scene.open("other"), &scene.home.path().join("student.toml"));
    well(&scene.join("other"));
    let words = said(&scene.train("other"));
    assert!(words.contains("topic `examples` is not the one that was read up to record 1024"), "{words}");
    assert!(words.contains("name the log that the run began with"), "{words}");

    // The same log from a copy that is older: its examples were never joined there.
    let options = scene.home.path().join("log/topics/examples/options");
    fs::copy(options, scene.home.path().join("shorter/topics/examples/options")).unwrap();
    let words = said(&scene.train("shorter"));
    assert!(words.contains("ends at record 0, and it was read up to record 1024"), "{words}");
    well(&scene.train("log"));
    assert!(weights(&scene.home.path().join("student")) == trained, "what was refused changed something");
}

/// One impression that nobody can read ends neither the teacher nor a student that is told to pass over it.
#[test]
fn a_row_that_cannot_be_read_ends_nothing() {
    let scene = Scene::new();
    scene.publish_teacher(1);
    let log = scene.open("log");
    // Cut short, as a client's bug or another version would; its schema is known.
    let (time_ms, whole) = records(&log, "impressions")[5].clone();
    let mut payload = Vec::new();
    let features = &whole[whole.len() - Impression::decode(&whole).unwrap().features.len()..][..6];
    Impression { id: u64::MAX, features }.encode(&mut payload);
    log.append("impressions", 0, &[Record { time_ms, payload: &payload }]).unwrap();
    drop(log);
    let report = [&scene.augment("log")[..], &["--report".to_owned(), scene.path("augment.json")]].concat();
    well(&report);
    let report: serde_json::Value =
        serde_json::from_slice(&fs::read(scene.path("augment.json")).unwrap()).unwrap();
    assert_eq!((&report["words"], &report["unreadable"]), (&SAMPLES.into(), &1.into()), "{report}");
    well(&scene.join("log"));

    let words = said(&scene.train("log"));
    assert!(words.contains("topic `examples`, record") && words.contains("the row has no"), "{words}");
    let job = scene.path("student.toml");
    let skips = "[run.data]\non_bad_row = { kind = \"skip\", rows_max = 1 }\n";
    fs::write(&job, fs::read_to_string(&job).unwrap().replace("[run.data]\n", skips)).unwrap();
    fs::remove_dir_all(scene.path("student")).unwrap();
    let output = run(&scene.train("log"));
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && words.contains("1 examples were passed over"), "{words}");
    assert_eq!(weights(&scene.home.path().join("student"))["next"], (SAMPLES + 1).to_string().into_bytes());
}

/// Clicks that name no request are counted and told; so is a tick, which closes the windows of the rest.
#[test]
fn clicks_that_name_no_impression_are_told() {
    let scene = Scene::new();
    well(&scene.join("log"));
    well(&scene.feedback("log", 7));
    let output = Command::new(env!("CARGO_BIN_EXE_campanile"))
        .args(scene.join("log"))
        .args(["--report", &scene.path("join.json")])
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(words.contains("7 feedback that waits for its impression"), "{words}");
    let report: serde_json::Value =
        serde_json::from_slice(&fs::read(scene.path("join.json")).unwrap()).unwrap();
    assert_eq!((&report["waiting_feedback"], &report["orphans"]), (&7.into(), &0.into()), "{report}");
}

/// What is kept is enough for what is asked, also when the log was made before.
#[test]
fn a_log_keeps_what_its_joiner_may_ask_for() {
    let home = tempfile::tempdir().unwrap();
    let log = format!("dir:{}", home.path().join("log").display());
    let join = |task: &str, more: &[&str]| words(&["join", &log, "--stop-at-end", "--task", task], more);
    let too_short = said(&join("click=5m", &["--keep", "1h"]));
    assert!(
        too_short.contains(
            "--keep 3600 s is shorter than the longest window, --disorder and --remember together, 3905 s"
        ),
        "{too_short}"
    );
    well(&join("click=5m", &["--keep", "2h"]));
    let later = DirectoryLog::open(&home.path().join("log")).unwrap();
    let kept = |topic: &str| later.options(topic).unwrap().keep_ms;
    assert_eq!((kept("impressions"), kept("examples")), (7_200_000, 7_200_000 + 3_905_000));
    let longer = said(&join("click=2h", &[]));
    assert!(
        longer.contains("was made to keep records for 7200 s") && longer.contains("begin a new log"),
        "{longer}"
    );
}
