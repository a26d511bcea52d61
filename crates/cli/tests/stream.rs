//! From traffic to a trained model by commands: what a stream teaches is what the data teaches.
#![cfg(feature = "live")]

use std::collections::BTreeSet;

use campanile_stream::{
    log::{DirectoryLog, Log, Record, TopicOptions},
    records::{Example, Schemas},
    topics,
};

#[path = "suite/stream_fixture.rs"]
mod stream_fixture;

use stream_fixture::{TASKS, campanile, fill, job, records, succeed, weights};

const SAMPLES: u64 = 128 * 30;

#[test]
fn a_stream_teaches_what_its_world_teaches() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name).display().to_string();
    let (by_data, by_stream) =
        (job(home.path(), "data", SAMPLES, "student"), job(home.path(), "stream", SAMPLES, "student"));
    let log = format!("dir:{}", path("log"));
    let directory = DirectoryLog::open(&home.path().join("log")).unwrap();
    fill(&directory, &by_stream);
    drop(directory);

    succeed(&["train", &by_data.display().to_string()]);
    succeed(&[&["join", &log, "--stop-at-end", "--report", &path("join.json")], &TASKS[..]].concat());
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(path("join.json")).unwrap()).unwrap();
    assert_eq!((&report["examples"], &report["open"]), (&SAMPLES.into(), &0.into()), "{report}");
    succeed(&["train", &by_stream.display().to_string(), "--stream", &log, "--stop-at-end"]);

    let (want, mut found) = (weights(&home.path().join("data")), weights(&home.path().join("stream")));
    assert_eq!(found.insert("next".to_owned(), b"null".to_vec()), Some(SAMPLES.to_string().into_bytes()));
    assert!(want.len() > 16, "{:?}", want.keys());
    for (name, bytes) in &want {
        assert!(&found[name] == bytes, "{name} differs");
    }

    // It goes on with what comes later only, and does not forget that it was on a stream.
    let again = ["train", &by_stream.display().to_string(), "--stream", &log, "--stop-at-end"];
    succeed(&again);
    assert_eq!(weights(&home.path().join("stream"))["step"], b"30");
    let output = campanile(&again[..2]).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains("was trained on a stream; name it again with --stream"), "{words}");
}

/// A version is judged on the examples that came after it, beside the current one; a bad one does not become current.
#[test]
fn the_gate_of_a_stream_holds_back_a_model_that_has_gone_wrong() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name).display().to_string();
    let publishing = |name: &str, rate: &str| {
        let job = job(home.path(), name, SAMPLES, "student");
        let text = std::fs::read_to_string(&job).unwrap().replace("learning_rate = 0.01", rate);
        let publish = format!(
            "[process.publish]\nregistry = {:?}\nmodel = \"ranker\"\ngate_rows = 600\nne_margin = 0.05\n",
            path("registry")
        );
        std::fs::write(&job, format!("{text}{publish}calibration_margin = 0.5\n")).unwrap();
        job.display().to_string()
    };
    let (good, bad) = (publishing("good", "learning_rate = 0.01"), publishing("bad", "learning_rate = 1.2"));
    let log = format!("dir:{}", path("log"));
    fill(&DirectoryLog::open(&home.path().join("log")).unwrap(), std::path::Path::new(&good));
    succeed(&[&["join", &log, "--stop-at-end"], &TASKS[..]].concat());
    let registry = campanile_tables::Registry::new(&home.path().join("registry"));
    let train = |job: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_campanile"));
        let output = command.args(["train", job, "--stream", &log, "--stop-at-end"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat()
    };
    train(&good);
    let current = registry.current("ranker").unwrap();
    let judged = &registry.release("ranker", current.expect("a version is current")).unwrap().judged;
    assert!(
        judged["candidate"][0]["ne"].is_number() || judged["candidate"][0]["values"]["ne"].is_number(),
        "{judged}"
    );
    let said = train(&bad);
    assert!(
        said.contains("not published") && said.contains("the gate holds it back: task `click`"),
        "{said}"
    );
    assert_eq!(registry.current("ranker").unwrap(), current);
}

/// A model that reads other columns of the log than the current one: each is judged by its own, on the same examples.
#[test]
fn the_gate_of_a_stream_compares_models_with_other_columns() {
    let home = tempfile::tempdir().unwrap();
    let registry_path = home.path().join("registry");
    let publishing = |name: &str, view: &str| {
        let job = job(home.path(), name, SAMPLES, view);
        let publish = format!(
            "[process.publish]\nregistry = {registry_path:?}\nmodel = \"ranker\"\ngate_rows = 600\nne_margin = 9.0\n"
        );
        let text = std::fs::read_to_string(&job).unwrap() + &publish + "calibration_margin = 9.0\n";
        std::fs::write(&job, text).unwrap();
        job
    };
    let (narrow, wide) = (publishing("narrow", "student"), publishing("wide", "teacher"));
    let log = format!("dir:{}", home.path().join("log").display());
    fill(&DirectoryLog::open(&home.path().join("log")).unwrap(), &narrow);
    succeed(&[&["join", &log, "--stop-at-end"], &TASKS[..]].concat());
    let registry = campanile_tables::Registry::new(&registry_path);
    let mut published = Vec::new();
    for job in [narrow, wide] {
        succeed(&["train", &job.display().to_string(), "--stream", &log, "--stop-at-end"]);
        let current = registry.current("ranker").unwrap().expect("a version is current");
        published.push(registry.release("ranker", current).unwrap());
    }
    let judged = &published[1].judged;
    assert_ne!(published[0].transforms, published[1].transforms);
    assert!(judged["current"][0]["ne"].is_number(), "{judged}");
    assert_eq!(judged["current"][0]["count"], judged["candidate"][0]["count"], "{judged}");
    assert_eq!(judged["current"][0]["label_rate"], judged["candidate"][0]["label_rate"], "{judged}");
}

/// A trainer that waits for examples ends when it is told to, well, and with a checkpoint.
#[test]
fn an_interrupted_trainer_of_a_stream_goes_on_with_the_same_bits() {
    let home = tempfile::tempdir().unwrap();
    let jobs = ["straight", "disturbed"].map(|name| job(home.path(), name, SAMPLES, "student"));
    let [straight, disturbed] = jobs.map(|job| job.display().to_string());
    let log = format!("dir:{}", home.path().join("log").display());
    fill(&DirectoryLog::open(&home.path().join("log")).unwrap(), std::path::Path::new(&straight));
    succeed(&[&["join", &log, "--stop-at-end"], &TASKS[..]].concat());
    succeed(&["train", &straight, "--stream", &log, "--stop-at-end"]);
    let metrics = home.path().join("disturbed/metrics.jsonl");
    for signal in ["-INT", "-TERM"] {
        let _ = std::fs::remove_file(&metrics);
        let mut child = campanile(&["train", &disturbed, "--stream", &log]).spawn().unwrap();
        // It is there as soon as steps may begin; the log has no end, so the run has none.
        while !metrics.exists() {
            assert!(child.try_wait().unwrap().is_none(), "the run ended before it was interrupted");
            std::thread::yield_now();
        }
        let told = std::process::Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(told.unwrap().success());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.contains("stopping after this step"), "{said}");
    }
    succeed(&["train", &disturbed, "--stream", &log, "--stop-at-end"]);
    let (want, found) = (weights(&home.path().join("straight")), weights(&home.path().join("disturbed")));
    assert!(want.len() > 16, "{:?}", want.keys());
    for (name, bytes) in &want {
        assert!(&found[name] == bytes, "{name} differs");
    }
}

/// Late labels are a choice of the job: passed over, or trained on once more, each once.
#[test]
fn late_labels_teach_where_the_job_says_so() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name).display().to_string();
    let ignoring = job(home.path(), "ignoring", SAMPLES, "student");
    let plain = job(home.path(), "plain", SAMPLES, "student");
    let training = job(home.path(), "training", SAMPLES, "student");
    let text = std::fs::read_to_string(&training).unwrap();
    std::fs::write(&training, text.replacen("[run]", "[run]\ncorrections = \"train\"", 1)).unwrap();
    // A click takes twenty seconds, so the windows miss most of them: some while the impression is open, some after it.
    let tasks = ["--task", "click=2s", "--task", "conversion=2s,given=click", "--remember", "9000h"];
    for (log, more) in [("late", &["--repeat-late"][..]), ("once", &[])] {
        let home = home.path().join(log);
        fill(&DirectoryLog::open(&home).unwrap(), &ignoring);
        let log = format!("dir:{}", home.display());
        succeed(&[&["join", &log, "--stop-at-end"], &tasks[..], more].concat());
    }
    let (late, once) = (format!("dir:{}", path("late")), format!("dir:{}", path("once")));
    let train = |job: &std::path::Path, log: &str| {
        succeed(&["train", &job.display().to_string(), "--stream", log, "--stop-at-end"]);
    };
    train(&ignoring, &late);
    train(&plain, &once);
    train(&training, &late);

    let directory = DirectoryLog::open(&home.path().join("late")).unwrap();
    let examples = records(&directory, "examples");
    let repeated = examples.iter().filter(|(_, payload)| Example::is_late(payload)).count() as u64;
    assert_eq!(examples.len() as u64, SAMPLES + repeated);
    assert_eq!(repeated as usize, records(&directory, "corrections").len());
    assert!(repeated > 10, "{repeated}");
    drop(directory);

    // Who ignores them has the bits of a log without them; only its cursor counts what it passed over.
    let (mut ignored, mut without) =
        (weights(&home.path().join("ignoring")), weights(&home.path().join("plain")));
    assert!(ignored.remove("next") >= without.remove("next"));
    assert!(ignored == without, "labels that are ignored change something");
    // Who trains on them has trained on every record once, up to the last whole batch.
    let trained = weights(&home.path().join("training"));
    let steps = (SAMPLES + repeated) / 128;
    assert_eq!(trained["step"], steps.to_string().into_bytes());
    assert_eq!(trained["next"], (steps * 128).to_string().into_bytes());
    assert_ne!(trained.get("dense.safetensors"), ignored.get("dense.safetensors"));
    train(&training, &late);
    assert!(weights(&home.path().join("training")) == trained, "a record was trained on twice");
}

#[test]
fn a_teacher_speaks_once_on_every_impression_and_its_words_reach_the_examples() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name).display().to_string();
    let teacher = job(home.path(), "teacher", SAMPLES, "teacher").display().to_string();
    succeed(&["train", &teacher]);
    let registry = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_campanile"));
        let output = command.args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    // The second version is taken back before the teacher is asked.
    for _ in 0..2 {
        registry(&["publish", &teacher, "--registry", &path("registry"), "--model", "teacher", "--no-gate"]);
    }
    registry(&["rollback", &path("registry"), "--model", "teacher"]);
    let log = format!("dir:{}", path("log"));
    fill(&DirectoryLog::open(&home.path().join("log")).unwrap(), &home.path().join("teacher.toml"));
    let speak = ["augment", &log, "--teacher", &path("registry"), "--model", "teacher", "--stop-at-end"];
    succeed(&speak);
    succeed(&speak);
    succeed(&[&["join", &log, "--stop-at-end"], &TASKS[..]].concat());
    let directory = DirectoryLog::open(&home.path().join("log")).unwrap();
    assert_eq!(records(&directory, "words").len() as u64, SAMPLES);
    let examples = records(&directory, "examples");
    let examples: Vec<Example<'_>> =
        examples.iter().map(|(_, payload)| Example::decode(payload).unwrap()).collect();
    let ids: BTreeSet<u64> = examples.iter().map(|example| example.id).collect();
    assert_eq!((examples.len() as u64, ids.len() as u64), (SAMPLES, SAMPLES));
    assert!(examples.iter().all(|example| example.word.is_some_and(|word| word.version == 1)));
    assert!(examples.iter().any(|example| example.label(0) == Some(true) && example.label(1).is_some()));
    assert!(examples.iter().all(|example| example.label(0) == Some(true) || example.label(1).is_none()));
}

/// Copies some records of a topic to another log, from the `first` on.
fn copy(from: &dyn Log, to: &dyn Log, topic: &str, first: usize, wanted: impl Fn(usize, &[u8]) -> bool) {
    for (place, (time_ms, payload)) in records(from, topic).iter().enumerate().skip(first) {
        if wanted(place, payload) {
            to.append(topic, 0, &[Record { time_ms: *time_ms, payload }]).unwrap();
        }
    }
    to.sync().unwrap();
}

/// A student of one domain passes over all others: it has the bits of one on a log that has nothing else, and goes on from
/// its cursor without losing or repeating a record.
#[test]
fn a_student_of_one_domain_has_the_bits_of_a_log_of_that_domain() {
    let home = tempfile::tempdir().unwrap();
    let address = |name: &str| format!("dir:{}", home.path().join(name).display());
    let open = |name: &str| DirectoryLog::open(&home.path().join(name)).unwrap();
    let all = job(home.path(), "all", SAMPLES, "student");
    fill(&open("log"), &all);
    succeed(&[&["join", &address("log"), "--stop-at-end"], &TASKS[..]].concat());
    let text = std::fs::read_to_string(&all).unwrap();
    let train = |name: &str, keys: &str, log: &str| {
        let text = text.replace("/all\"", &format!("/{name}\""));
        let path = home.path().join(format!("{name}.toml"));
        std::fs::write(&path, text.replace("[run.data]", &format!("{keys}[run.data]"))).unwrap();
        let job = path.display().to_string();
        campanile(&["train", &job, "--stream", &address(log), "--stop-at-end"]).output().unwrap()
    };
    let only = "[run.only]\ncolumn = \"domain\"\nvalues = [\"1\"]\n";
    assert!(train("one", only, "log").status.success());

    let from = open("log");
    for name in ["own", "growing"] {
        let to = open(name);
        topics::create(&to, TopicOptions::default()).unwrap();
        ["impressions.schema", "examples.schema"]
            .iter()
            .for_each(|topic| copy(&from, &to, topic, 0, |_, _| true));
    }
    let domain = Schemas::newest(&from, "impressions", 0).unwrap().unwrap().place("domain").unwrap();
    let is_own = |_: usize, payload: &[u8]| {
        let example = Example::decode(payload).unwrap();
        campanile_data::logged::cell(&example.features[4..], domain).unwrap().shown() == "1"
    };
    copy(&from, &open("own"), "examples", 0, is_own);
    let own = records(&open("own"), "examples").len() as u64;
    assert!(own > SAMPLES / 5 && own < SAMPLES / 2, "{own} of {SAMPLES}");
    assert!(train("alone", "", "own").status.success());
    let (one, mut alone) = (weights(&home.path().join("one")), weights(&home.path().join("alone")));
    assert_eq!(one["step"], (own / 128).to_string().into_bytes());
    alone.insert("next".to_owned(), one["next"].clone());
    assert!(one == alone, "what was passed over changes something");

    // The same in two goes, on a log that grows in between.
    let half = SAMPLES as usize / 2;
    copy(&from, &open("growing"), "examples", 0, |place, _| place < half);
    assert!(train("parts", only, "growing").status.success());
    copy(&from, &open("growing"), "examples", half, |_, _| true);
    assert!(train("parts", only, "growing").status.success());
    assert!(weights(&home.path().join("parts")) == one, "a record was lost or trained on twice");

    let wrong = train("wrong", &only.replace("domain", "domian"), "log");
    let words = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(words.contains("column `domian`") && words.contains("`domain`"), "{words}");
}

#[test]
fn mistakes_are_told_in_words() {
    let home = tempfile::tempdir().unwrap();
    let said = |arguments: &[&str]| {
        let output = campanile(arguments).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let log = format!("dir:{}", home.path().join("log").display());
    let words = said(&["join", "runs/log", "--task", "click=5m", "--stop-at-end"]);
    assert!(words.contains("`runs/log` is not the address of a log"), "{words}");
    let words = said(&["join", &log, "--task", "click=5", "--stop-at-end"]);
    assert!(words.contains("unit"), "{words}");
    let words = said(&["join", &log, "--task", "buy=5m,given=click", "--stop-at-end"]);
    assert!(words.contains("`click` is no other task"), "{words}");
    let words = said(&["join", &log, "--task", "click=5m", "--keep", "4m", "--stop-at-end"]);
    assert!(words.contains("--keep 240 s is shorter than the longest window"), "{words}");
    succeed(&["join", &log, "--task", "click=5m", "--stop-at-end"]);
    let words = said(&["join", &log, "--task", "click=5m", "--keep", "2h", "--stop-at-end"]);
    assert!(
        words.contains("made to keep records for ever, all of them, and that cannot be changed"),
        "{words}"
    );
    let words = said(&["join", &log, "--task", "view=5m", "--stop-at-end"]);
    assert!(words.contains("have the tasks `click`, and --task says `view`"), "{words}");
}
