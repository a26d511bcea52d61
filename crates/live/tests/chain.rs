//! From impressions to a served model on a disk that fails: log, teacher, joiner and trainer, killed and without power again and
//! again, leave what undisturbed ones leave.
//!
//! The event log is on a simulated disk that fails at any operation, tears writes, and loses what was not synced. Checkpoints and
//! registry are on the real one: `campanile_tables` stops them at every operation and byte in tests of its own, so here the trainer is
//! killed between any two batches, and what it had begun is left lying about.
//!
//! `CAMPANILE_SEEDS=10000 cargo test -p campanile-live --test chain` for more seeds; `CAMPANILE_SEED=n` for one.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use campanile_data::{Prepared, Raw, logged::put};
use campanile_live::{
    End, Stop,
    augment::{AugmentOptions, Augmenter},
    examples::Examples,
};
use campanile_serve::{Options, Snapshot};
use campanile_spec::config::Job;
use campanile_stream::{
    join::{JoinOptions, Joiner},
    log::{DirectoryLog, Limit, Log, LogError, Record, Records, Sync, TopicOptions, disk::Disk},
    records::{Example, Feedback, Impression, Schema, TICK, declare},
    stage::{Place, Runner, StageError, Wiring},
    topics::{self, CORRECTIONS, EXAMPLES, FEEDBACK, IMPRESSIONS, WORDS},
};
use campanile_tables::{
    Registry,
    registry::{Publication, Shape},
};
use campanile_train::{
    TrainError,
    loader::{Feed, LocalBatch, Mark, Source},
    observe::{Event, Observer},
    ranks::Ranks,
    run::{Stream, train_on_stream},
};

#[path = "../../stream/tests/suite/simulated.rs"]
mod simulated;

use simulated::{Fault, Simulated};

const IMPRESSION_COUNT: u64 = 50;
const BATCH: u64 = 8;
const ROUNDS: u64 = 6;
/// Segments of a few records, so that every way from one to the next is tried.
const OPTIONS: TopicOptions = TopicOptions {
    partitions: 1,
    segment_bytes: 900,
    keep_ms: 0,
    keep_bytes: 0,
    sync: Sync::EveryBytes(1200),
};

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

#[test]
fn every_label_is_trained_on_once_and_the_model_is_served() {
    let seeds = match number("CAMPANILE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("CAMPANILE_SEEDS").unwrap_or(40),
    };
    let temporary = || tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let teacher = temporary();
    publish_teacher(teacher.path());
    for seed in seeds {
        let home = temporary();
        let chain = Chain { home: home.path(), teacher: teacher.path(), seed };
        if let Err(panic) = std::panic::catch_unwind(|| chain.run()) {
            eprintln!("CAMPANILE_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

fn job(output: &Path, more: &str) -> Job {
    fs::create_dir_all(output).unwrap();
    let text = format!(
        r#"
[run]
seed = 3
batch_size = {BATCH}
[run.data]
kind = "csv"
shuffle = false
sparse = [{{ name = "user", rows = 20 }}]
[[run.data.label]]
name = "click"
[[run.data.dense]]
name = "price"
[run.tables]
dim = 4
[run.model]
kind = "mlp"
hidden = [4]
[run.sparse]
optimizer = "rowwise_adagrad"
learning_rate = 0.05
[run.dense]
optimizer = "adam"
learning_rate = 0.01
{more}
[process]
threads = 1
checkpoint_every_steps = 2
cache_dir = "{0}/cache"
output_dir = "{0}"
[process.data]
train = ["there-is-no-file.csv"]
"#,
        output.display()
    );
    Job::parse(&text).unwrap()
}

/// A student that listens.
fn student(output: &Path) -> Job {
    job(output, "[run.distil]\nmethod = \"auxiliary\"\n")
}

struct Quiet;

impl Observer for Quiet {
    fn observe(&mut self, _: &Event<'_>) {}
}

fn publish(registry: &Registry, model: &str, checkpoint: &Path) -> u64 {
    let snapshot = Snapshot::open(checkpoint, model, &Options::default()).unwrap();
    let published = registry.publish(&Publication {
        model,
        checkpoint,
        transforms: &snapshot.inputs().transforms().to_bytes(),
        fingerprint: snapshot.inputs().fingerprint(),
        published_ms: 0,
        judged: serde_json::Value::Null,
        keep: 3,
        shape: Shape::Whole,
    });
    published.unwrap().number
}

/// A teacher, of a stream without trouble.
fn publish_teacher(home: &Path) {
    let log: Arc<dyn Log> = Arc::new(DirectoryLog::open(&home.join("log")).unwrap());
    topics::create(&*log, OPTIONS).unwrap();
    name_columns(&*log).unwrap();
    while produce(&*log, 0).unwrap() {}
    let mut runner = Runner::open(Arc::clone(&log), joins(), joiner()).unwrap();
    while runner.turn().unwrap() {}
    let job = job(&home.join("teacher"), "");
    let prepared = Prepared::without_rows(&job.run.data).unwrap();
    let stop = Arc::new(Stop::new(End::AtEnd));
    let examples = Examples::new(log, &job.run, &prepared.transforms, stop);
    let trained = train_on_stream(&job, &prepared, &examples, Ranks::Threads(1), &mut Quiet).unwrap();
    publish(&Registry::new(&home.join("registry")), "teacher", &trained.checkpoint);
}

struct Chain<'a> {
    home: &'a Path,
    teacher: &'a Path,
    seed: u64,
}

/// The disk failed, or the trainer was killed.
struct Trouble;

impl Chain<'_> {
    fn run(&self) {
        let mut random = self.seed;
        let mut draw = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        let logged = self.home.join("disk");
        fs::create_dir(&logged).unwrap();
        let faults = Arc::new(Simulated::new(&logged, self.seed));
        let disk = Disk::with_faults(Arc::clone(&faults) as _);
        for round in 0..=ROUNDS {
            let is_last = round == ROUNDS;
            let (after, fault) = (draw(700), if draw(3) == 0 { Fault::One } else { Fault::All });
            faults.fail_after(if is_last { u64::MAX } else { after }, fault);
            let batches = if is_last || draw(2) == 0 { u64::MAX } else { draw(9) };
            match self.round(&disk, round, &Arc::new(AtomicU64::new(batches))) {
                Ok(()) => break,
                Err(Trouble) => assert!(!is_last, "nothing fails in the last round"),
            }
            if draw(3) > 0 {
                faults.cut_power();
            }
        }
        self.check();
    }

    /// Everything that happens until the disk fails, the trainer is killed, or all is done.
    fn round(&self, disk: &Disk, round: u64, left: &Arc<AtomicU64>) -> Result<(), Trouble> {
        // Each is a process of its own.
        let open = || -> Result<Arc<dyn Log>, Trouble> {
            let log = DirectoryLog::open_on(disk.clone(), &self.home.join("disk/log"));
            Ok(Arc::new(log.map_err(of_disk)?))
        };
        let produced = open()?;
        topics::create(&*produced, OPTIONS).map_err(of_disk)?;
        name_columns(&*produced).map_err(of_disk)?;
        let spoken = open()?;
        let augmenter = self.augmenter(Arc::clone(&spoken));
        let mut augment = Runner::open(spoken, augments(), augmenter).map_err(of_stage)?;
        let mut join = Runner::open(open()?, joins(), joiner()).map_err(of_stage)?;
        for turn in 1.. {
            let moved = produce(&*produced, round).map_err(of_disk)?;
            let spoke = augment.turn().map_err(of_stage)?;
            let wrote = join.turn().map_err(of_stage)?;
            let is_done = !(moved || spoke || wrote);
            if is_done || turn % 9 == 0 {
                self.train("student", open()?, left)?;
            }
            if is_done {
                break;
            }
        }
        augment.save().map_err(of_stage)?;
        join.save().map_err(of_stage)
    }

    fn augmenter(&self, log: Arc<dyn Log>) -> Augmenter {
        let options = AugmentOptions {
            registry: Registry::new(&self.teacher.join("registry")),
            model: "teacher".to_owned(),
            window_ms: 1_000_000,
            remember_ms: 1_000_000,
            remembered_max: 1000,
            may_change_version: false,
            embedding_floats: 0,
        };
        Augmenter::new(log, options)
    }

    /// Trains on what is there, and is killed when so many batches were read.
    fn train(&self, name: &str, log: Arc<dyn Log>, left: &Arc<AtomicU64>) -> Result<PathBuf, Trouble> {
        let job = student(&self.home.join(name));
        let prepared = Prepared::without_rows(&job.run.data).unwrap();
        let stop = Arc::new(Stop::new(End::AtEnd));
        let examples = Examples::new(log, &job.run, &prepared.transforms, stop);
        let mortal = Mortal { examples, left: Arc::clone(left) };
        match train_on_stream(&job, &prepared, &mortal, Ranks::Threads(1), &mut Quiet) {
            Ok(trained) => Ok(trained.checkpoint),
            Err(error) => {
                let words = error.to_string();
                let is_expected = words.contains("killed") || words.contains("no storage space");
                assert!(is_expected, "nothing that was trained on is lost, and yet: {words}");
                Err(Trouble)
            }
        }
    }

    /// Each impression's label is there once and right; the student has the bits of one that trained on the same log in one go, and
    /// what is published of it can be served.
    fn check(&self) {
        let log: Arc<dyn Log> = Arc::new(DirectoryLog::open(&self.home.join("disk/log")).unwrap());
        let mut labels: BTreeMap<u64, Vec<Option<bool>>> = BTreeMap::new();
        let (mut records, mut with_word) = (Records::default(), 0);
        let limit = Limit { records: usize::MAX, bytes: usize::MAX };
        log.read(EXAMPLES, 0, 0, limit, &mut records).unwrap();
        for record in records.iter() {
            let example = Example::decode(record.payload).unwrap();
            labels.entry(example.id).or_default().push(example.label(0));
            with_word += u64::from(example.word.is_some());
        }
        let wanted = (0..IMPRESSION_COUNT).map(|id| (id, vec![Some(id.is_multiple_of(3))])).collect();
        assert_eq!(labels, wanted);
        assert!(with_word > IMPRESSION_COUNT / 2, "the teacher spoke on {with_word}");
        assert_eq!(log.range(WORDS, 0).unwrap().end, IMPRESSION_COUNT);

        let never = Arc::new(AtomicU64::new(u64::MAX));
        let [killed, undisturbed] = ["student", "undisturbed"].map(|name| {
            let Ok(checkpoint) = self.train(name, Arc::clone(&log), &never) else { panic!("nothing fails") };
            checkpoint
        });
        assert!(bits(&killed) == bits(&undisturbed), "a label was trained on twice, or not at all");

        let registry = Registry::new(&self.home.join("registry"));
        let version = publish(&registry, "student", &killed);
        let served = Snapshot::of_registry(&registry, "student", version, None, &Options::default()).unwrap();
        let trained = Snapshot::open(&killed, "student", &Options::default()).unwrap();
        assert_eq!(served.inputs().fingerprint(), trained.inputs().fingerprint());
    }
}

/// The weights of a checkpoint, which has trained on every whole batch.
fn bits(checkpoint: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(checkpoint).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            files.insert(path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&path).unwrap());
        }
    }
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(checkpoint.join("manifest.json")).unwrap()).unwrap();
    let step = manifest["step"].as_u64();
    assert_eq!(step, Some(IMPRESSION_COUNT / BATCH));
    assert_eq!(manifest["cursor"]["next"].as_u64(), step.map(|step| step * BATCH));
    assert!(files.len() > 1, "{:?}", files.keys());
    files
}

/// Examples that end in an error when so many batches were read.
struct Mortal {
    examples: Examples,
    left: Arc<AtomicU64>,
}

impl Stream for Mortal {
    fn source(&self, feed: Feed, first_step: u64, mark: Mark) -> Result<Box<dyn Source>, TrainError> {
        let source = self.examples.source(feed, first_step, mark)?;
        Ok(Box::new(MortalSource { source, left: Arc::clone(&self.left) }))
    }

    fn keep_read(&self) -> Result<(), TrainError> {
        self.examples.keep_read()
    }
}

struct MortalSource {
    source: Box<dyn Source>,
    left: Arc<AtomicU64>,
}

impl Source for MortalSource {
    fn read(
        &mut self,
        step: u64,
        out: &mut LocalBatch,
        nobody_waits: &AtomicBool,
    ) -> Result<bool, TrainError> {
        if self.left.load(Ordering::Relaxed) == 0 {
            return Err(TrainError::Stream("killed".to_owned()));
        }
        self.left.fetch_sub(1, Ordering::Relaxed);
        self.source.read(step, out, nobody_waits)
    }
}

fn of_disk(error: LogError) -> Trouble {
    assert!(matches!(error, LogError::Io { .. }), "nothing that was read is lost, and yet: {error}");
    Trouble
}

fn of_stage(error: StageError) -> Trouble {
    match error {
        StageError::Log(error) => of_disk(error),
        other => panic!("nothing that was read is lost, and yet: {other}"),
    }
}

fn wiring(name: &str, inputs: &[&str], outputs: &[&str]) -> Wiring {
    let places = |topics: &[&str]| {
        topics.iter().map(|topic| Place { topic: (*topic).to_owned(), partition: 0 }).collect()
    };
    let limit = Limit { records: 7, bytes: usize::MAX };
    Wiring { name: name.to_owned(), inputs: places(inputs), outputs: places(outputs), limit, save_every: 3 }
}

fn joins() -> Wiring {
    wiring("join", &[IMPRESSIONS, WORDS, FEEDBACK], &[EXAMPLES, CORRECTIONS])
}

fn augments() -> Wiring {
    wiring("augment", &[IMPRESSIONS], &[WORDS])
}

fn joiner() -> Joiner {
    Joiner::new(JoinOptions {
        windows_ms: vec![40],
        given: Vec::new(),
        disorder_ms: 20,
        remember_ms: 10_000,
        features_bytes_max: 100,
        repeat_late: false,
        jump_ms: 10_000,
        impressions_max: 1000,
        impression_inputs: 1,
        word_inputs: 1,
    })
}

fn columns() -> Schema {
    Schema::new(["user", "price"])
}

fn name_columns(log: &dyn Log) -> Result<(), LogError> {
    declare(log, EXAMPLES, 0, &Schema::new(["click"]))?;
    declare(log, IMPRESSIONS, 0, &columns())
}

/// Appends the next few impressions and clicks; false when all are there.
fn produce(log: &dyn Log, round: u64) -> Result<bool, LogError> {
    let shown = produce_of(log, IMPRESSIONS, |n| impression(n, round))?;
    Ok(produce_of(log, FEEDBACK, feedback)? || shown)
}

/// Records follow from their number.
fn produce_of(log: &dyn Log, topic: &str, record: impl Fn(u64) -> (u64, Vec<u8>)) -> Result<bool, LogError> {
    let next = log.range(topic, 0)?.end;
    // Neither producer runs ahead of the other, so no click is late; the tick behind all comes when both are done.
    let slower = log.range(IMPRESSIONS, 0)?.end.min(log.range(FEEDBACK, 0)?.end);
    let until =
        if slower < IMPRESSION_COUNT { IMPRESSION_COUNT.min(slower + 8) } else { IMPRESSION_COUNT + 1 };
    let records: Vec<(u64, Vec<u8>)> = (next..until).take(4).map(record).collect();
    let records: Vec<Record<'_>> =
        records.iter().map(|(time_ms, payload)| Record { time_ms: *time_ms, payload }).collect();
    log.append(topic, 0, &records)?;
    Ok(!records.is_empty())
}

/// One that is made again in another round is another record: if the first was read and lost, that is noticed.
fn impression(n: u64, round: u64) -> (u64, Vec<u8>) {
    let mut bytes = Vec::new();
    if n == IMPRESSION_COUNT {
        return (n + 1000, TICK.to_vec());
    }
    let mut features = columns().number().to_le_bytes().to_vec();
    put(&mut features, Raw::Int((n * 7 % 13) as i64));
    put(&mut features, Raw::Float((n * 8 + round) as f64 / 64.0));
    Impression { id: n, features: &features }.encode(&mut bytes);
    (n, bytes)
}

/// Every third impression is clicked.
fn feedback(n: u64) -> (u64, Vec<u8>) {
    let mut bytes = Vec::new();
    if n == IMPRESSION_COUNT {
        return (n + 1000, TICK.to_vec());
    }
    Feedback { id: n / 3 * 3, task: 0 }.encode(&mut bytes);
    (n + 1, bytes)
}
