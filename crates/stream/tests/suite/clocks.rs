//! A joiner among clocks that are wrong, streams that stand still, and clients that send too much.

use std::sync::Arc;

use campanile_stream::{
    join::{JoinOptions, Joiner},
    log::{DirectoryLog, Limit, Log, Record, Records},
    records::{Example, Feedback, Impression, TICK},
    stage::{Place, Runner, StageError, Wiring},
    topics::{self, CORRECTIONS, EXAMPLES, FEEDBACK, IMPRESSIONS},
};

const WINDOW_MS: u64 = 100;
const HOUR_MS: u64 = 3_600_000;
/// Some day.
const START_MS: u64 = 1_700_000_000_000;

fn options() -> JoinOptions {
    JoinOptions {
        windows_ms: vec![WINDOW_MS, WINDOW_MS],
        given: Vec::new(),
        disorder_ms: 10,
        remember_ms: 1000,
        features_bytes_max: 50,
        repeat_late: false,
        jump_ms: HOUR_MS,
        impressions_max: 1000,
        impression_inputs: 1,
        word_inputs: 0,
    }
}

/// A log and what is written to it.
struct Scene {
    log: Arc<dyn Log>,
    _home: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let home = tempfile::tempdir().unwrap();
        let log = DirectoryLog::open(home.path()).unwrap();
        topics::create(&log, Default::default()).unwrap();
        Scene { log: Arc::new(log), _home: home }
    }

    fn shown(&self, id: u64, time_ms: u64) {
        let mut payload = Vec::new();
        Impression { id, features: b"features" }.encode(&mut payload);
        self.log.append(IMPRESSIONS, 0, &[Record { time_ms, payload: &payload }]).unwrap();
    }

    fn clicked(&self, id: u64, task: u16, time_ms: u64) {
        let mut payload = Vec::new();
        Feedback { id, task }.encode(&mut payload);
        self.log.append(FEEDBACK, 0, &[Record { time_ms, payload: &payload }]).unwrap();
    }

    fn tick(&self, time_ms: u64) {
        self.log.append(FEEDBACK, 0, &[Record { time_ms, payload: TICK }]).unwrap();
    }

    fn open(&self, options: JoinOptions) -> Runner<Joiner> {
        let place = |topic: &str| Place { topic: topic.to_owned(), partition: 0 };
        let wiring = Wiring {
            name: "join".to_owned(),
            inputs: [IMPRESSIONS, FEEDBACK].map(place).to_vec(),
            outputs: [EXAMPLES, CORRECTIONS].map(place).to_vec(),
            limit: Limit { records: 40, bytes: usize::MAX },
            save_every: 2,
        };
        Runner::open(Arc::clone(&self.log), wiring, Joiner::new(options)).unwrap()
    }

    /// Joins what there is, as one who begins and ends with it: what is set aside is in the state.
    fn join(&self) -> Joiner {
        let mut runner = self.open(options());
        while runner.turn().unwrap() {}
        runner.save().unwrap();
        runner.into_stage()
    }

    /// The ids of the examples, each with its first label.
    fn examples(&self) -> Vec<(u64, bool)> {
        let mut out = Records::default();
        self.log.read(EXAMPLES, 0, 0, Limit { records: usize::MAX, bytes: usize::MAX }, &mut out).unwrap();
        let example = |payload| Example::decode(payload).unwrap();
        let mut all: Vec<_> = out
            .iter()
            .map(|record| (example(record.payload).id, example(record.payload).label(0) == Some(true)))
            .collect();
        all.sort_unstable();
        all
    }

    /// A hundred impressions from `first_ms` on, 20 ms apart, every second one clicked; ids count from `first`.
    fn traffic(&self, first: u64, first_ms: u64) {
        for n in 0..100 {
            self.shown(first + n, first_ms + 20 * n);
            if n % 2 == 0 {
                self.clicked(first + n, 0, first_ms + 20 * n + 5);
            }
        }
    }
}

fn labels(ids: impl Iterator<Item = u64>) -> Vec<(u64, bool)> {
    ids.map(|id| (id, id % 2 == 0)).collect()
}

/// A time in microseconds, or a clock that is a year ahead, closes no window, whichever input it comes by.
#[test]
fn a_record_from_the_future_is_set_aside_and_moves_no_time() {
    let scene = Scene::new();
    scene.traffic(0, START_MS);
    scene.join();
    scene.shown(1_000_000, START_MS * 1000);
    scene.clicked(10, 1, START_MS * 1000);
    scene.tick(START_MS * 1000);
    scene.clicked(99, 1, START_MS + 365 * 24 * HOUR_MS);
    let joiner = scene.join();
    assert_eq!((joiner.ahead_count(), joiner.counts().set_aside), (4, 4));
    scene.traffic(200, START_MS + 2000);
    let joiner = scene.join();
    assert!(joiner.now_ms() < START_MS + 4000);
    scene.tick(START_MS + 5000);
    scene.join();
    assert_eq!(scene.examples(), labels((0..100).chain(200..300)));
}

/// What was a little too far ahead is taken when time comes near it, with its label.
#[test]
fn what_was_set_aside_is_taken_when_its_time_comes() {
    let scene = Scene::new();
    scene.shown(1, START_MS);
    let later_ms = START_MS + 3 * HOUR_MS / 2;
    scene.shown(2, later_ms);
    scene.clicked(2, 0, later_ms + 50);
    assert_eq!(scene.join().ahead_count(), 2);
    scene.shown(4, START_MS + HOUR_MS - 1);
    scene.clicked(4, 0, START_MS + HOUR_MS);
    assert_eq!(scene.join().ahead_count(), 0);
    scene.tick(later_ms + 500);
    scene.join();
    assert_eq!(scene.examples(), [(1, false), (2, true), (4, true)]);
}

/// After a weekend everything is far ahead of what came before: then it is no mistake.
#[test]
fn a_stream_that_stood_still_goes_on() {
    let scene = Scene::new();
    scene.traffic(0, START_MS);
    let monday_ms = START_MS + 60 * HOUR_MS;
    scene.traffic(100, monday_ms);
    scene.tick(monday_ms + 5000);
    let joiner = scene.join();
    assert_eq!((joiner.ahead_count(), joiner.counts().lost_ahead), (0, 0));
    assert_eq!(scene.examples(), labels(0..200));
    assert_eq!(joiner.counts().corrections, 0);
}

/// The first record of all says what time it is, until the others say otherwise.
#[test]
fn a_first_record_from_the_future_is_outvoted() {
    let scene = Scene::new();
    scene.clicked(1_000_000, 0, START_MS * 1000);
    scene.join();
    scene.traffic(0, START_MS);
    scene.traffic(100, START_MS + 2000);
    scene.tick(START_MS + 5000);
    let joiner = scene.join();
    assert_eq!(scene.examples(), labels(0..200));
    assert!(joiner.now_ms() < START_MS + 6000, "{}", joiner.now_ms());
}

/// More open impressions than there may be end the stage with the record; with room for them it goes on, and nothing is lost.
#[test]
fn too_many_open_impressions_end_the_stage_and_nothing_is_lost() {
    let scene = Scene::new();
    (0..30).for_each(|id| scene.shown(id, START_MS + id));
    scene.tick(START_MS + 1000);
    let mut runner = scene.open(JoinOptions { impressions_max: 20, ..options() });
    let error = runner.turn().unwrap_err();
    assert!(matches!(error, StageError::Record { offset: 20, .. }), "{error}");
    assert!(error.to_string().contains("20 impressions are open, and no more may be"), "{error}");
    drop(runner);
    scene.join();
    assert_eq!(scene.examples().len(), 30);
}

/// Feedback that names no impression, again and again, takes no more memory than it may; it is counted.
#[test]
fn feedback_without_impressions_is_bounded_and_counted() {
    let scene = Scene::new();
    scene.shown(1, START_MS);
    for n in 0..200 {
        scene.clicked(1000 + n, 0, START_MS + 1);
        // One that comes again and again is one.
        scene.clicked(7, 1, START_MS + n / 4);
    }
    let mut runner = scene.open(JoinOptions { impressions_max: 50, ..options() });
    while runner.turn().unwrap() {}
    let joiner = runner.into_stage();
    assert_eq!((joiner.early_count(), joiner.counts().forgotten), (50, 151));
    assert_eq!((joiner.counts().orphans, joiner.counts().feedback), (151, 400));
    scene.clicked(1, 0, START_MS + 50);
    scene.tick(START_MS + 500);
    let mut runner = scene.open(options());
    while runner.turn().unwrap() {}
    assert_eq!(scene.examples(), [(1, true)]);
}
