//! Small models that were really trained, for the tests of this room.
#![allow(dead_code)] // Each test binary takes what it needs.

use std::path::{Path, PathBuf};

use campanile_data::{Dataset, PrepOptions, Prepared, prepare};
use campanile_serve::{Request, Scorer, Scores, Snapshot};
use campanile_spec::{Batch, config::Job};
use campanile_tables::{
    Registry,
    registry::{Publication, Release, Shape},
};
use campanile_train::{
    observe::{Event, Observer},
    ranks::Ranks,
    run::train,
};
use tempfile::TempDir;

/// A job that was trained, with all it left behind.
pub struct Trained {
    /// The job.
    pub job: Job,
    /// Its data.
    pub prepared: Prepared,
    /// The last checkpoint.
    pub checkpoint: PathBuf,
    /// Keeps the files until the test ends.
    pub folder: TempDir,
    /// Input files that the test made.
    pub also: Option<TempDir>,
}

struct Silent;

impl Observer for Silent {
    fn observe(&mut self, _: &Event<'_>) {}
}

impl Trained {
    /// A job of `examples/`, trained for a few steps.
    pub fn example(name: &str) -> Trained {
        Trained::changed_example(name, |text| text)
    }

    /// The same with changes to the job's text.
    pub fn changed_example(name: &str, change: impl Fn(String) -> String) -> Trained {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../examples/{name}.toml"));
        let mut job = Job::parse(&change(std::fs::read_to_string(path).unwrap())).unwrap();
        job.run.steps_max = 12;
        job.run.evaluate.every_steps = 0;
        Trained::job(job)
    }

    /// A job, trained in a folder of its own.
    pub fn job(mut job: Job) -> Trained {
        let folder = TempDir::new().unwrap();
        job.process.output_dir = folder.path().join("out");
        std::fs::create_dir_all(&job.process.output_dir).unwrap();
        job.process.cache_dir = folder.path().join("cache");
        job.process.threads = 1;
        let options = PrepOptions::new(&job.process.cache_dir, job.run.seed);
        let prepared = prepare(&job.run.data, &job.process.data, &options, &mut |_| ()).unwrap();
        let summary = train(&job, &prepared, Ranks::Threads(1), &mut Silent).unwrap();
        Trained { job, prepared, checkpoint: summary.checkpoint, folder, also: None }
    }

    /// Trains on until `steps`.
    pub fn train_until(&mut self, steps: u64) {
        self.job.run.steps_max = steps;
        let summary = train(&self.job, &self.prepared, Ranks::Threads(1), &mut Silent).unwrap();
        self.checkpoint = summary.checkpoint;
    }

    /// Publishes the last checkpoint.
    pub fn publish(&self, registry: &Registry, shape: Shape) -> Release {
        let fingerprint = self.prepared.transforms.fingerprint();
        let publication = Publication {
            model: "ranker",
            checkpoint: &self.checkpoint,
            transforms: &self.prepared.transforms.to_bytes(),
            fingerprint: &fingerprint,
            published_ms: 0,
            judged: serde_json::Value::Null,
            keep: 100,
            shape,
        };
        registry.publish(&publication).unwrap()
    }

    /// The first samples of the training split.
    pub fn samples(&self, count: u64) -> Batch {
        read(&self.prepared.train, count)
    }
}

/// The first samples of a split.
pub fn read(dataset: &Dataset, count: u64) -> Batch {
    let mut batch = Batch::default();
    dataset.reader().unwrap().read(0, 0..count, &mut batch).unwrap();
    batch
}

/// Fills a request with prepared samples.
pub fn fill(request: &mut Request, snapshot: &Snapshot, batch: &Batch) {
    let inputs = snapshot.inputs();
    request.prepared(inputs, &batch.dense, &batch.bags).unwrap();
}

/// The logits of some samples.
pub fn logits(snapshot: &Snapshot, batch: &Batch) -> Vec<f32> {
    let (mut request, mut scores) = (Request::new(), Scores::default());
    fill(&mut request, snapshot, batch);
    Scorer::new().score(snapshot, &[&request], &mut scores).unwrap();
    scores.logits
}

/// Their bits.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
