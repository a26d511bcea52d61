//! Versions change under load, and every answer comes from exactly one of them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use campanile_serve::{Options, Snapshot};
use campanile_server::{
    client::RestClient,
    models::Models,
    source::{Opened, Published, Source, SourceError},
};

use campanile_tables::{
    Registry,
    registry::{Publication, Shape},
};
use serde_json::Value;

use crate::fixture::{Settings, Trained, ask, binary_request, bits, columns, offline, read_binary, task};

/// A source whose current version a test chooses.
#[derive(Clone)]
pub struct Chosen {
    checkpoints: Vec<PathBuf>,
    place: Arc<AtomicUsize>,
}

impl Chosen {
    fn version(&self) -> &PathBuf {
        &self.checkpoints[self.place.load(Ordering::Relaxed)]
    }
}

impl Source for Chosen {
    fn models(&self) -> Result<Vec<String>, SourceError> {
        Ok(vec!["tiny".to_owned()])
    }

    fn current(&self, _: &str) -> Result<u64, SourceError> {
        let manifest = campanile_tables::checkpoint::Checkpoint::open(self.version())?.manifest().step;
        Ok(manifest)
    }

    fn open(&self, model: &str, _: u64, _: Option<&Snapshot>) -> Result<Opened, SourceError> {
        Ok(Snapshot::open(self.version(), model, &Options::default())?.into())
    }
}

/// Answers that every client takes while versions change.
const ANSWERS: u64 = 400;
/// Answers after which a client no longer waits for a second version: loading gives way to those who ask.
const ANSWERS_MAX: u64 = 1_000_000;

#[test]
fn every_answer_under_load_equals_the_offline_scores_of_the_version_it_names() {
    let trained = Trained::tiny();
    let mut settings = Settings::new();
    let chosen = Chosen { checkpoints: trained.checkpoints.clone(), place: Arc::default() };
    settings.source = Box::new(chosen.clone());
    let server = settings.start();
    let batches: Vec<_> = [1, 17, 200].map(|count| trained.samples(count)).into();
    let mut wanted: BTreeMap<String, Vec<Vec<u32>>> = BTreeMap::new();
    let mut first_task = String::new();
    let mut requests = Vec::new();
    for path in &trained.checkpoints {
        let snapshot = Snapshot::open(path, "tiny", &Options::default()).unwrap();
        first_task = snapshot.tasks().next().unwrap().to_owned();
        requests = batches
            .iter()
            .map(|batch| binary_request("/v2/models/tiny/infer", &columns(batch, snapshot.inputs())))
            .collect();
        let scores = batches.iter().map(|batch| {
            let scores = offline(path, batch);
            bits(&task(&scores.probabilities, 0, scores.task_count))
        });
        wanted.insert(snapshot.version().number.to_string(), scores.collect());
    }
    // Versions that give the same scores would hide a mixture.
    let mut distinct: Vec<_> = wanted.values().collect();
    distinct.sort();
    distinct.dedup();
    assert!(distinct.len() == wanted.len() && wanted.len() >= 4);
    let (done, seen) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|client| {
                let (requests, wanted, first_task, seen) = (&requests, &wanted, &first_task, &seen);
                let address = server.http;
                scope.spawn(move || {
                    let mut connection = RestClient::connect(address).unwrap();
                    let several = || seen.load(Ordering::Relaxed).count_ones() >= 2;
                    for number in (0..ANSWERS_MAX).take_while(|number| *number < ANSWERS || !several()) {
                        let place = (number as usize + client) % requests.len();
                        let (version, outputs) = read_binary(&connection.send(&requests[place]).unwrap());
                        let scores = wanted.get(&version).unwrap_or_else(|| panic!("no version {version}"));
                        assert_eq!(bits(&outputs[first_task]), scores[place], "version {version}");
                        let bit = wanted.keys().position(|known| *known == version).unwrap();
                        seen.fetch_or(1 << bit, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut random = 7u64;
            let mut swaps = 0;
            while !done.load(Ordering::Relaxed) {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                chosen.place.store((random >> 33) as usize % chosen.checkpoints.len(), Ordering::Relaxed);
                // The next choice comes when this one is in service.
                while server.engine().metrics.swaps.load(Ordering::Relaxed) == swaps
                    && !done.load(Ordering::Relaxed)
                {
                    let current = chosen.current("tiny").unwrap().to_string();
                    if ask(&server, "GET", &format!("/v2/models/tiny/versions/{current}/ready"), "").0 == 200
                    {
                        break;
                    }
                }
                swaps = server.engine().metrics.swaps.load(Ordering::Relaxed);
            }
        });
        let results: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        done.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| result.unwrap());
    });
    assert!(seen.into_inner().count_ones() >= 2, "several versions answered");
    assert!(server.stop());
}

#[test]
fn clients_load_and_unload_when_they_may() {
    let trained = Trained::tiny();
    let mut settings = Settings::new();
    settings.allow_control = true;
    settings.options.poll = std::time::Duration::from_secs(3600);
    let chosen = Chosen { checkpoints: trained.checkpoints.clone(), place: Arc::default() };
    settings.source = Box::new(chosen.clone());
    let server = settings.start();
    let index = || ask(&server, "POST", "/v2/repository/index", "{}").1[0].clone();
    let first = chosen.current("tiny").unwrap().to_string();
    assert_eq!((index()["version"].as_str(), index()["state"].as_str()), (Some(&*first), Some("READY")));
    chosen.place.store(1, Ordering::Relaxed);
    assert_eq!(ask(&server, "POST", "/v2/repository/models/tiny/load", "").0, 200);
    let second = chosen.current("tiny").unwrap().to_string();
    assert_eq!(index()["version"].as_str(), Some(&*second));
    assert_eq!(ask(&server, "POST", "/v2/repository/models/tiny/unload", "").0, 200);
    assert_eq!(index()["state"], "UNAVAILABLE");
    let (status, answer) = ask(&server, "POST", "/v2/models/tiny/infer", "{\"inputs\":[]}");
    assert!(status == 503 && answer["error"].as_str().unwrap().contains("it was unloaded"), "{answer}");
    assert_eq!(ask(&server, "GET", "/v2/health/ready", "").0, 503);
    assert_eq!(ask(&server, "POST", "/v2/repository/index", "{\"ready\":true}").1, serde_json::json!([]));
    assert_eq!(ask(&server, "POST", "/v2/repository/models/tiny/load", "").0, 200);
    assert_eq!(ask(&server, "GET", "/v2/models/tiny/ready", "").0, 200);
    assert_eq!(ask(&server, "POST", "/v2/repository/models/other/load", "").0, 404);
    assert!(server.stop());
}

/// A source that notes how nice the threads are that open versions.
#[cfg(target_os = "linux")]
struct Noticing {
    chosen: Chosen,
    nice: Arc<std::sync::Mutex<Vec<i32>>>,
}

#[cfg(target_os = "linux")]
impl Source for Noticing {
    fn models(&self) -> Result<Vec<String>, SourceError> {
        self.chosen.models()
    }

    fn current(&self, model: &str) -> Result<u64, SourceError> {
        self.chosen.current(model)
    }

    fn open(&self, model: &str, number: u64, present: Option<&Snapshot>) -> Result<Opened, SourceError> {
        self.nice.lock().unwrap().push(rustix::process::getpriority_process(None).unwrap());
        self.chosen.open(model, number, present)
    }
}

#[cfg(target_os = "linux")]
#[test]
fn versions_are_loaded_by_threads_that_give_way_to_requests() {
    let trained = Trained::tiny();
    for (poll, asked) in [(5, false), (3_600_000, true)] {
        let mut settings = Settings::new();
        settings.allow_control = true;
        settings.options.poll = std::time::Duration::from_millis(poll);
        let chosen = Chosen { checkpoints: trained.checkpoints.clone(), place: Arc::default() };
        let nice = Arc::default();
        settings.source = Box::new(Noticing { chosen: chosen.clone(), nice: Arc::clone(&nice) });
        let server = settings.start();
        chosen.place.store(1, Ordering::Relaxed);
        let second = chosen.current("tiny").unwrap();
        if asked {
            assert_eq!(ask(&server, "POST", "/v2/repository/models/tiny/load", "").0, 200);
        }
        while ask(&server, "GET", &format!("/v2/models/tiny/versions/{second}/ready"), "").0 != 200 {}
        assert!(server.stop());
        // The first one was loaded by this thread, before anybody could ask.
        let nice = nice.lock().unwrap();
        assert!(nice.len() == 2 && nice[1] == 19, "{nice:?}, asked: {asked}");
    }
}

#[test]
fn a_snapshot_is_freed_by_who_follows_the_source_and_not_by_the_last_request_that_used_it() {
    let chosen = Chosen { checkpoints: Trained::tiny().checkpoints.clone(), place: Arc::default() };
    let models = Models::new(Box::new(chosen.clone()));
    models.follow().unwrap();
    let request = models.served("tiny", "").unwrap();
    let old = Arc::downgrade(&request);
    chosen.place.store(1, Ordering::Relaxed);
    models.follow().unwrap();
    assert_ne!(models.served("tiny", "").unwrap().version, request.version);
    models.follow().unwrap();
    drop(request);
    assert!(old.upgrade().is_some(), "the request freed it");
    models.follow().unwrap();
    assert!(old.upgrade().is_none(), "nobody freed it");
}

/// Publishes a checkpoint as `campanile publish` does.
fn publish(registry: &Registry, checkpoint: &Path, shape: Shape) -> u64 {
    let beside = std::fs::read_dir(checkpoint.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let file = beside.into_iter().find(|path| path.extension().is_some_and(|kind| kind == "bin")).unwrap();
    let publication = Publication {
        model: "tiny",
        checkpoint,
        transforms: &std::fs::read(&file).unwrap(),
        fingerprint: file.file_stem().unwrap().to_str().unwrap().strip_prefix("transforms-").unwrap(),
        published_ms: 1,
        judged: Value::Null,
        keep: 10,
        shape,
    };
    registry.publish(&publication).unwrap().number
}

#[test]
fn a_registry_is_followed_through_deltas_and_back() {
    let trained = Trained::tiny();
    let home = tempfile::tempdir().unwrap();
    let registry = Registry::new(home.path());
    publish(&registry, &trained.checkpoints[0], Shape::Whole);
    let mut settings = Settings::new();
    settings.source = Box::new(Published { registry: registry.clone(), options: Options::default() });
    let server = settings.start();
    let batch = trained.samples(20);
    let mut client = RestClient::connect(server.http).unwrap();
    let mut check = |number: u64, checkpoint: &Path| {
        let snapshot = Snapshot::open(checkpoint, "tiny", &Options::default()).unwrap();
        let request = binary_request("/v2/models/tiny/infer", &columns(&batch, snapshot.inputs()));
        let (version, outputs) = loop {
            let (version, outputs) = read_binary(&client.send(&request).unwrap());
            if version == number.to_string() {
                break (version, outputs);
            }
        };
        let wanted = offline(checkpoint, &batch);
        let first = snapshot.tasks().next().unwrap();
        let wanted = task(&wanted.probabilities, 0, wanted.task_count);
        assert_eq!(bits(&outputs[first]), bits(&wanted), "version {version}");
    };
    check(1, &trained.checkpoints[0]);
    for (place, checkpoint) in trained.checkpoints.iter().enumerate().skip(1) {
        let number = publish(&registry, checkpoint, Shape::Smallest);
        assert_eq!(number, place as u64 + 1);
        check(number, checkpoint);
    }
    registry.roll_back("tiny", Some(2)).unwrap();
    check(2, &trained.checkpoints[1]);
    assert!(server.stop());
}

/// Two models, of which one panics when it is opened.
struct HalfBroken {
    good: Chosen,
    broken: Arc<AtomicBool>,
}

impl Source for HalfBroken {
    fn models(&self) -> Result<Vec<String>, SourceError> {
        Ok(vec!["broken".to_owned(), "tiny".to_owned()])
    }

    fn current(&self, model: &str) -> Result<u64, SourceError> {
        self.good.current(model)
    }

    fn open(&self, model: &str, number: u64, present: Option<&Snapshot>) -> Result<Opened, SourceError> {
        assert!(model == "tiny" || !self.broken.load(Ordering::Relaxed), "dim 4611686018427387904");
        self.good.open(model, number, present)
    }
}

#[test]
fn a_panic_in_one_model_is_its_own_load_failure_cold_and_hot() {
    let good = Chosen { checkpoints: Trained::tiny().checkpoints.clone(), place: Arc::default() };
    for is_cold in [true, false] {
        good.place.store(0, Ordering::Relaxed);
        let broken = Arc::new(AtomicBool::new(is_cold));
        let mut settings = Settings::new();
        settings.source = Box::new(HalfBroken { good: good.clone(), broken: Arc::clone(&broken) });
        let server = settings.start();
        let state = |model: &str| {
            let index = ask(&server, "POST", "/v2/repository/index", "").1;
            index.as_array().unwrap().iter().find(|entry| entry["name"] == model).unwrap().clone()
        };
        let first = good.current("tiny").unwrap().to_string();
        broken.store(true, Ordering::Relaxed);
        good.place.store(1, Ordering::Relaxed);
        let second = good.current("tiny").unwrap().to_string();
        // The good model is followed on, and the server is ready; the broken one says why it is not served.
        while state("tiny")["version"] != *second || state("broken")["reason"] == "" {}
        let reason = state("broken")["reason"].as_str().unwrap().to_owned();
        assert!(reason.contains("an internal error while it was read: dim 46116"), "{reason}");
        let wanted = if is_cold { ("UNAVAILABLE", "") } else { ("READY", &*first) };
        let found = state("broken");
        assert_eq!((found["state"].as_str().unwrap(), found["version"].as_str().unwrap()), wanted);
        assert_eq!(ask(&server, "GET", "/v2/health/ready", "").0, 200);
        assert_eq!(ask(&server, "GET", "/v2/models/tiny/ready", "").0, 200);
        assert_eq!(ask(&server, "GET", "/v2/models/broken/ready", "").0, if is_cold { 503 } else { 200 });
        broken.store(false, Ordering::Relaxed);
        while state("broken")["version"] != *second {}
        assert!(server.stop());
    }
}

#[test]
fn a_cold_start_falls_back_from_a_damaged_version_to_the_last_good_one_and_says_so() {
    let home = tempfile::tempdir().unwrap();
    let registry = Registry::new(home.path());
    let trained = Trained::tiny();
    let numbers: Vec<u64> =
        trained.checkpoints[..3].iter().map(|path| publish(&registry, path, Shape::Whole)).collect();
    for number in &numbers[1..] {
        std::fs::remove_file(registry.path("tiny", *number).join("manifest.json")).unwrap();
    }
    let mut settings = Settings::new();
    settings.source = Box::new(Published { registry: registry.clone(), options: Options::default() });
    let server = settings.start();
    let entry = || ask(&server, "POST", "/v2/repository/index", "").1[0].clone();
    assert_eq!((entry()["state"].as_str(), entry()["version"].as_str()), (Some("READY"), Some("1")));
    let reason = entry()["reason"].as_str().unwrap().to_owned();
    assert!(reason.starts_with("version 3 cannot be served, so version 1 is: "), "{reason}");
    assert_eq!(ask(&server, "GET", "/v2/health/ready", "").0, 200);
    let metrics = campanile_server::metrics::prometheus(server.engine());
    assert!(metrics.contains("campanile_model_problem{model=\"tiny\"} 1"), "{metrics}");
    // The next good one is served, and nothing is wrong any more.
    let good = publish(&registry, &trained.checkpoints[3], Shape::Whole);
    while entry()["version"] != *good.to_string() {}
    assert_eq!(entry()["reason"], "");
    assert!(server.stop());
}
