//! Small models that were really trained, for the tests of this room.
#![allow(dead_code)] // Each test binary takes what it needs.

use std::path::{Path, PathBuf};

use campanile_data::{
    Dataset, PrepOptions, Prepared, prepare,
    teacher::{TeacherHeader, TeacherVersion, TeacherWriter},
};
use campanile_serve::{Options, Projection, Request, Scorer, Scores, Snapshot};
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
        let mut job = Job::parse(&change(std::fs::read_to_string(example(name)).unwrap())).unwrap();
        job.run.steps_max = 12;
        job.run.evaluate.every_steps = 0;
        Trained::job(job)
    }

    /// `first` with changes to its text, and with two tables of 6 floats that follow a teacher, which was trained on the
    /// same world before and scores every other sample.
    pub fn following(change: impl Fn(String) -> String) -> Trained {
        let shorter = |text: String| text.replace("1_000_000", "20_000");
        let teacher = Trained::changed_example("first", shorter);
        let snapshot = Snapshot::open(&teacher.checkpoint, "teacher", &Options::default()).unwrap();
        let rows = teacher.prepared.train.row_count();
        let header = TeacherHeader {
            version: 0,
            tasks: snapshot.tasks().map(str::to_owned).collect(),
            embedding: 6,
            rows,
            data: teacher.prepared.fingerprint.clone(),
            seconds_per_time_unit: 0.001,
            teachers: vec![TeacherVersion {
                model: "teacher".into(),
                number: 1,
                id: String::new(),
                data_time: None,
            }],
        };
        let path = teacher.folder.path().join("words");
        let mut writer = TeacherWriter::create(&path, header).unwrap();
        let batch = teacher.samples(rows);
        let (mut request, mut scores, mut embeddings) = (Request::new(), Scores::default(), Vec::new());
        fill(&mut request, &snapshot, &batch);
        Scorer::new().score_and_keep_hidden(&snapshot, &[&request], &mut scores).unwrap();
        Projection::of(&snapshot, 6).unwrap().write(&scores, &mut embeddings);
        for (sample, embedding) in embeddings.chunks_exact(6).enumerate() {
            let logit = &scores.logits[sample..=sample];
            match sample % 2 {
                0 => writer.add_embedded(logit, embedding, Some(0)).unwrap(),
                _ => writer.add(logit, Some(0)).unwrap(),
            }
        }
        writer.finish().unwrap();
        let text = std::fs::read_to_string(example("first")).unwrap();
        let follow = "[run.follow]\nfeatures = [\"sparse_2\", \"sparse_5\"]\nfloats = 6\n[run.sparse]";
        let mut job = Job::parse(&change(shorter(text)).replace("[run.sparse]", follow)).unwrap();
        (job.run.steps_max, job.run.evaluate.every_steps) = (12, 0);
        job.process.data.teacher = Some(path);
        Trained { also: Some(teacher.folder), ..Trained::job(job) }
    }

    /// A job, trained in a folder of its own.
    pub fn job(mut job: Job) -> Trained {
        let folder = TempDir::new().unwrap();
        job.process.output_dir = folder.path().join("out");
        std::fs::create_dir_all(&job.process.output_dir).unwrap();
        job.process.cache_dir = folder.path().join("cache");
        job.process.threads = 1;
        let embedding_floats = job.run.follow.floats_wanted();
        let options =
            PrepOptions { embedding_floats, ..PrepOptions::new(&job.process.cache_dir, job.run.seed) };
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

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../examples/{name}.toml"))
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
