//! Exactly once: stages of the loop that are killed again and again leave what undisturbed ones leave.
//!
//! Each of `augment`, `join` and `train --stream`, of a teacher and of a student that listens and follows, is killed at moments drawn from
//! a seed over the time that it takes here, until it ends by itself; and the same where labels come late, of a student that trains
//! on them once more and of one that passes over them. On NATS JetStream the broker is killed too, and comes back.
//! `CAMPANILE_KILLS` says how many kills there are at least in each test; without it, ten on a directory and six on a broker. With
//! `--nocapture` each test says how many it did.
#![cfg(feature = "live")]

use std::{
    path::Path,
    process::Child,
    sync::Arc,
    time::{Duration, Instant},
};

use campanile_stream::{
    log::{Log, address},
    records::{Example, Word},
};

#[path = "../../stream/tests/suite/broker.rs"]
#[cfg(feature = "nats")]
#[expect(dead_code, reason = "logs are opened by their address here")]
mod broker;
#[path = "suite/stream_fixture.rs"]
mod stream_fixture;

use stream_fixture::{TASKS, campanile, fill, job, records, succeed, weights};

const SAMPLES: u64 = 128 * 60;

/// A student's part of its job.
const LISTENS: &str =
    "[run.distil]\nmethod = \"auxiliary\"\n[run.follow]\nfeatures = [\"sparse_1\"]\nfloats = 4\n";

/// What comes late is trained on.
const TRAINS_LATE: &str = "corrections = \"train\"\n";

/// What the stages of a run are told.
struct Scene {
    /// For `join`.
    tasks: &'static [&'static str],
    models: [Model; 2],
}

struct Model {
    name: &'static str,
    view: &'static str,
    /// Lines of `[run]`, and sections behind it.
    keys: &'static str,
    sections: &'static str,
}

impl Model {
    /// Steps that it does on so many examples, with so many that come once more.
    fn steps(&self, late: u64) -> u64 {
        (SAMPLES + if self.keys == TRAINS_LATE { late } else { 0 }) / 128
    }
}

/// Every label comes in time.
const IN_TIME: Scene = Scene {
    tasks: &TASKS,
    models: [
        Model { name: "tutor", view: "teacher", keys: "", sections: "" },
        Model { name: "student", view: "student", keys: "", sections: LISTENS },
    ],
};

/// A click takes twenty seconds, so these windows miss most of them, and their examples come once more.
const LATE: Scene = Scene {
    tasks: &[
        "--task",
        "click=2s",
        "--task",
        "conversion=2s,given=click",
        "--remember",
        "9000h",
        "--repeat-late",
    ],
    models: [
        Model { name: "mender", view: "student", keys: TRAINS_LATE, sections: LISTENS },
        Model { name: "passer", view: "student", keys: "", sections: "" },
    ],
};

fn kills_wanted(usual: usize) -> usize {
    std::env::var("CAMPANILE_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(usual)
}

fn open(log: &str) -> Arc<dyn Log> {
    address::open(log, &address::Entry::default()).unwrap()
}

/// One run of the whole loop in a directory and a log, with its stages run by `stage`.
fn whole(scene: &Scene, home: &Path, log: &str, teacher: &Path, mut stage: impl FnMut(&[&str])) {
    let jobs = scene.models.each_ref().map(|model| {
        let path = job(home, model.name, SAMPLES, model.view);
        let text = std::fs::read_to_string(&path).unwrap();
        let text = text.replacen("[run]\n", &format!("[run]\n{}", model.keys), 1);
        std::fs::write(&path, text.replace("[process]", &format!("{}[process]", model.sections))).unwrap();
        path
    });
    let registry = teacher.join("registry").display().to_string();
    fill(&*open(log), &jobs[1]);
    let teacher = ["--teacher", &registry, "--model", "teacher", "--embedding", "4"];
    stage(&[&["augment", log, "--stop-at-end"], &teacher[..]].concat());
    stage(&[&["join", log, "--stop-at-end"], scene.tasks].concat());
    for job in jobs {
        stage(&["train", &job.display().to_string(), "--stream", log, "--stop-at-end"]);
    }
}

fn teach(home: &Path) {
    let teacher = job(home, "teacher", 128 * 20, "teacher").display().to_string();
    succeed(&["train", &teacher]);
    let registry = home.join("registry").display().to_string();
    let published = std::process::Command::new(env!("CARGO_BIN_EXE_campanile"))
        .args(["publish", &teacher, "--registry", &registry, "--model", "teacher", "--no-gate"])
        .status()
        .unwrap();
    assert!(published.success());
}

/// Random moments, the same in every run.
struct Chance(u64);

impl Chance {
    /// From 0 to 1.
    fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / (1u64 << 24) as f64
    }
}

/// Runs the loop undisturbed and then with kills until there were enough; `log` names a log of its own for each run, and
/// `kill_broker` kills the broker, where there is one.
fn kills_change_no_bit(
    scene: &Scene,
    wanted: usize,
    log: impl Fn(&Path) -> String,
    mut kill_broker: Option<&mut dyn FnMut()>,
) {
    let teacher = tempfile::tempdir().unwrap();
    teach(teacher.path());
    let undisturbed = tempfile::tempdir().unwrap();
    let mut times = Vec::new();
    whole(scene, undisturbed.path(), &log(undisturbed.path()), teacher.path(), |arguments| {
        let start = Instant::now();
        succeed(arguments);
        times.push(start.elapsed());
    });
    let late = each_once(&*open(&log(undisturbed.path())));
    assert_eq!(late > 128, scene.tasks.contains(&"--repeat-late"), "{late} labels came late");
    let (mut kills, mut broker_kills, mut chance) = (0, 0, Chance(0x9e37_79b9_7f4a_7c15));
    while kills + broker_kills < wanted {
        let disturbed = tempfile::tempdir().unwrap();
        let mut place = 0;
        whole(scene, disturbed.path(), &log(disturbed.path()), teacher.path(), |arguments| {
            // Up to four kills of a stage, or of the broker under it; then it may end.
            for _ in 0..4 {
                let moment = times[place].mul_f64(chance.share());
                // Every third kill is the broker's, where there is one.
                let broker = kill_broker.as_mut().filter(|_| (kills + broker_kills) % 3 == 1);
                let mut child = campanile(arguments).spawn().unwrap();
                if ends_within(&mut child, moment) {
                    break;
                }
                match broker {
                    Some(kill_broker) => {
                        kill_broker();
                        broker_kills += 1;
                        ends_or_names_the_broker(child);
                    }
                    None => {
                        child.kill().unwrap();
                        child.wait().unwrap();
                        kills += 1;
                    }
                }
            }
            succeed(arguments);
            place += 1;
        });
        let told = format!("after {kills} kills of stages and {broker_kills} of the broker");
        let (found, want) = (open(&log(disturbed.path())), open(&log(undisturbed.path())));
        for topic in ["words", "examples", "corrections"] {
            let (found, want) = (records(&*found, topic), records(&*want, topic));
            let differing = found.iter().zip(&want).position(|(found, want)| found != want);
            assert_eq!((found.len(), differing), (want.len(), None), "{topic} {told}");
        }
        for model in &scene.models {
            let (found, want) =
                (weights(&disturbed.path().join(model.name)), weights(&undisturbed.path().join(model.name)));
            assert_eq!(want["step"], model.steps(late).to_string().into_bytes(), "each was trained on");
            for (name, bytes) in &want {
                assert!(&found[name] == bytes, "{name} of {} differs {told}", model.name);
            }
        }
    }
    println!("{kills} kills of stages and {broker_kills} of the broker changed no bit");
}

/// Every impression has one example, and every example one word; those that come once more have a correction each, and no
/// word. Returns how many those are.
fn each_once(log: &dyn Log) -> u64 {
    let records_of =
        |topic: &str| records(log, topic).into_iter().map(|(_, payload)| payload).collect::<Vec<_>>();
    let ids = |ids: Vec<u64>| {
        (ids.len() as u64, ids.into_iter().collect::<std::collections::BTreeSet<_>>().len() as u64)
    };
    let examples = records_of("examples");
    let (late, first): (Vec<_>, Vec<_>) = examples.iter().partition(|payload| Example::is_late(payload));
    let first: Vec<Example<'_>> =
        first.into_iter().map(|payload| Example::decode(payload).unwrap()).collect();
    assert_eq!(ids(first.iter().map(|example| example.id).collect()), (SAMPLES, SAMPLES));
    let is_whole = |word: Word<'_>| word.version == 1 && word.embedding_halves().len() == 4;
    assert!(first.iter().all(|example| example.word.is_some_and(is_whole)));
    let words = records_of("words");
    assert_eq!(ids(words.iter().map(|word| Word::decode(word).unwrap().id).collect()), (SAMPLES, SAMPLES));
    let late: Vec<Example<'_>> =
        late.into_iter().map(|payload| Example::decode_late(payload).unwrap()).collect();
    assert!(late.iter().all(|example| example.word.is_none() && example.known.count_ones() == 1));
    assert_eq!(records_of("corrections").len(), late.len());
    late.len() as u64
}

/// On a directory, with ten kills.
fn over_a_directory(scene: &Scene) {
    kills_change_no_bit(scene, kills_wanted(10), |home| format!("dir:{}", home.join("log").display()), None);
}

#[test]
fn kills_over_a_directory_change_no_bit() {
    over_a_directory(&IN_TIME);
}

#[test]
fn kills_where_labels_come_late_change_no_bit() {
    over_a_directory(&LATE);
}

/// On a broker that is killed too, with six kills.
#[cfg(feature = "nats")]
fn over_a_broker(scene: &Scene) {
    let Some(broker) = broker::Broker::start() else { return };
    let url = broker.url();
    let broker = std::cell::RefCell::new(broker);
    // Runs share the server, each under a name of its own.
    let log = |home: &Path| {
        let name = home.file_name().unwrap().to_string_lossy().trim_start_matches('.').to_owned();
        format!("{url}/{name}")
    };
    kills_change_no_bit(scene, kills_wanted(6), log, Some(&mut || broker.borrow_mut().kill_and_restart()));
}

#[cfg(feature = "nats")]
#[test]
fn kills_over_a_broker_and_of_it_change_no_bit() {
    over_a_broker(&IN_TIME);
}

#[cfg(feature = "nats")]
#[test]
fn kills_over_a_broker_where_labels_come_late_change_no_bit() {
    over_a_broker(&LATE);
}

/// A stage whose broker was killed goes on when it is back; one that had not begun says who is missing.
fn ends_or_names_the_broker(child: Child) {
    let output = child.wait_with_output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || words.contains("nats://"), "{words}");
}

/// Whether the child ended by itself, and well, within `time`.
fn ends_within(child: &mut Child, time: Duration) -> bool {
    let start = Instant::now();
    while start.elapsed() < time {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "the stage failed by itself");
            return true;
        }
        std::thread::yield_now();
    }
    false
}
