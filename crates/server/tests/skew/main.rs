//! One value means the same in every channel: tables drawn at random are read as CSV and as Parquet, come as rows of an event
//! log, are trained on, judged by `eval`'s code, and asked for over REST as JSON and in binary and over gRPC; all of it must
//! agree to the bit, and a model in ONNX within a tolerance.
//!
//! `cargo test` draws the first few tables; `cargo xtask skew 1..500` draws as many as it is told. A table that fails is told
//! by its seed, and `cargo xtask skew 17..18` draws it alone.

mod asked;
mod draw;
mod files;
mod job;
mod onnx;

use std::{
    collections::BTreeMap,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::Path,
    time::Duration,
};

use asked::Logits;
use campanile_data::{Dataset, PrepOptions, Prepared, logged::LoggedRows, prepare};
use campanile_serve::{Options, Request, RowStorage, Scorer, Scores, Snapshot};
use campanile_server::{
    client::{GrpcClient, RestClient},
    engine::Engine,
    feature_log::FeatureLog,
    journal::Journal,
    models::Models,
    places::Patience,
    protocol::Limits,
    queue::QueueLimits,
    security::Access,
    server::{Server, ServerOptions},
    source::Checkpoints,
};
use campanile_spec::{Batch, config::Job};
use campanile_train::{
    observe::{Event, Observer},
    predictions::Predictions,
    ranks::Ranks,
    run::{judge, train},
    scores::{Scores as Metrics, TaskScores},
};
use draw::{Numbers, Table};
use job::Drawn;

/// The tables of every test run.
const SEEDS: Range<u64> = 1..9;

/// Which tables are drawn instead, written `1..500`.
const VARIABLE: &str = "CAMPANILE_SKEW_SEEDS";

struct Silent;

impl Observer for Silent {
    fn observe(&mut self, _: &Event<'_>) {}
}

#[test]
fn a_value_means_the_same_in_every_channel() {
    let seeds = std::env::var(VARIABLE).map_or(SEEDS, |text| {
        let ends = text.split_once("..").map(|(first, end)| (first.parse(), end.parse()));
        let Some((Ok(first), Ok(end))) = ends else { panic!("{VARIABLE} is `{text}`; write it like 1..500") };
        first..end
    });
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| try_table(seed))) {
            eprintln!(
                "it was the table of seed {seed}: `cargo xtask skew {seed}..{}` draws it alone",
                seed + 1
            );
            resume_unwind(panic);
        }
    }
}

/// Draws a table and two jobs for it, the second with other transforms, as after a retraining.
fn try_table(seed: u64) {
    let numbers = &mut Numbers(seed);
    let table = Table::draw(numbers);
    let folder = tempfile::tempdir().unwrap();
    files::write_all(numbers, &table, folder.path());
    for place in ["before", "after"] {
        let drawn = Drawn::of(numbers, &table);
        let out = folder.path().join(place);
        // onnxruntime takes a second to start.
        try_job(numbers, &table, &drawn, folder.path(), &out, seed % 4 == 1 && place == "after");
    }
}

fn try_job(numbers: &mut Numbers, table: &Table, drawn: &Drawn, files: &Path, out: &Path, with_onnx: bool) {
    let [csv, parquet] = ["csv", "parquet"].map(|kind| drawn.job(kind, files, &out.join(kind)));
    let [from_csv, from_parquet] = [&csv, &parquet].map(prepared);
    for (how, one, other) in [
        ("train", Some(&from_csv.train), Some(&from_parquet.train)),
        ("test", from_csv.test.as_ref(), from_parquet.test.as_ref()),
    ] {
        same_batches(&format!("CSV and Parquet, {how}"), &read_all(one.unwrap()), &read_all(other.unwrap()));
    }
    assert_eq!(from_csv.fingerprint, from_parquet.fingerprint, "CSV and Parquet are the same packed bytes");
    let test = from_csv.test.as_ref().unwrap();
    let batch = read_all(test);
    same_batches("file and stream", &batch, &streamed(numbers, table, &csv, &from_csv));

    std::fs::create_dir_all(&csv.process.output_dir).unwrap();
    std::fs::create_dir_all(&parquet.process.output_dir).unwrap();
    let summary = train(&csv, &from_csv, Ranks::Threads(1), &mut Silent).unwrap();
    let by_two = train(&parquet, &from_parquet, Ranks::Threads(2), &mut Silent).unwrap();
    same_scores("one rank and two", summary.test.as_ref().unwrap(), by_two.test.as_ref().unwrap());
    let judged = judge(&csv, &from_csv, test, Ranks::Threads(1), &summary.checkpoint).unwrap();
    let options = Options { rows: RowStorage::F32, ..Options::default() };
    let snapshot = Snapshot::open(&summary.checkpoint, "skew", &options).unwrap();
    let wanted = scored(&snapshot, &batch);
    same_scores("eval and the scorer", &judged, &metrics(&csv, test, &batch, &wanted));
    if with_onnx {
        onnx::check(&snapshot, &batch, &wanted, out);
    }
    ask(numbers, table, &snapshot, &csv.process.output_dir, &wanted);
}

fn prepared(job: &Job) -> Prepared {
    let options = PrepOptions::new(&job.process.cache_dir, job.run.seed);
    prepare(&job.run.data, &job.process.data, &options, &mut |_| ()).unwrap()
}

fn read_all(dataset: &Dataset) -> Batch {
    let mut batch = Batch::default();
    dataset.reader().unwrap().read(0, 0..dataset.row_count(), &mut batch).unwrap();
    batch
}

/// The rows of the test as a stream brings them.
fn streamed(numbers: &mut Numbers, table: &Table, job: &Job, prepared: &Prepared) -> Batch {
    let mut rows = LoggedRows::new(&job.run.data, prepared.transforms.clone()).unwrap();
    let names: Vec<String> = table.columns.iter().map(|column| column.name.clone()).collect();
    rows.set_columns(&names).unwrap();
    for row in table.train..table.rows() {
        let labels = [Some(table.labels[row] == 1), table.ratings[row].map(|rating| rating >= 3)];
        let logged = files::logged_row(numbers, table, row);
        rows.push(&logged, &labels[..job.run.model.tasks.len()], 0).unwrap();
    }
    let mut batch = Batch::default();
    rows.write(&mut batch);
    batch
}

fn same_batches(how: &str, one: &Batch, other: &Batch) {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(one.sample_count, other.sample_count, "{how}: rows");
    assert_eq!(bits(&one.labels), bits(&other.labels), "{how}: labels");
    assert_eq!(bits(&one.dense), bits(&other.dense), "{how}: dense {:?} {:?}", one.dense, other.dense);
    for feature in 0..one.bags.feature_count() {
        let [one, other] = [one, other].map(|batch| batch.bags.feature(feature));
        for sample in 0..one.offsets.len() - 1 {
            assert_eq!(one.bag(sample), other.bag(sample), "{how}: feature {feature}, row {sample}");
        }
    }
    assert_eq!(bits(one.bags.weights()), bits(other.bags.weights()), "{how}: weights");
    assert_eq!(one.groups, other.groups, "{how}: groups");
}

fn same_scores(how: &str, one: &[TaskScores], other: &[TaskScores]) {
    let text = |scores| serde_json::to_string_pretty(scores).unwrap();
    assert_eq!(text(one), text(other), "{how}");
}

/// What the model says of prepared rows.
fn scored(snapshot: &Snapshot, batch: &Batch) -> Logits {
    let (mut request, mut scores) = (Request::new(), Scores::default());
    request.prepared(snapshot.inputs(), &batch.dense, &batch.bags).unwrap();
    Scorer::new().score(snapshot, &[&request], &mut scores).unwrap();
    let of_task = |task| scores.logits.iter().skip(task).step_by(scores.task_count).copied().collect();
    (0..scores.task_count).map(of_task).collect()
}

fn metrics(job: &Job, dataset: &Dataset, batch: &Batch, logits: &Logits) -> Vec<TaskScores> {
    let mut metrics = Metrics::for_evaluation(&job.run).with_segments(dataset.segments());
    // As `eval` does, batch by batch.
    for start in (0..batch.sample_count).step_by(job.run.batch_size) {
        let rows = start..batch.sample_count.min(start + job.run.batch_size);
        let part = batch.slice(rows.clone());
        metrics.add(&[Predictions {
            sample_count: part.sample_count,
            logits: logits.iter().flat_map(|task| &task[rows.clone()]).copied().collect(),
            labels: part.labels,
            groups: part.groups,
            ..Predictions::default()
        }]);
    }
    metrics.running()
}

fn ask(numbers: &mut Numbers, table: &Table, snapshot: &Snapshot, output: &Path, wanted: &Logits) {
    let server = serve(output);
    let tasks: Vec<String> = snapshot.tasks().map(str::to_owned).collect();
    let mut rest = RestClient::connect(server.http).unwrap();
    let mut grpc = GrpcClient::connect(server.grpc.unwrap()).unwrap();
    let test = table.rows() - table.train;
    for _ in 0..3 {
        let first = numbers.below(test as u64) as usize;
        let rows = first..first + 1 + numbers.below((test - first) as u64) as usize;
        let wanted: Logits = wanted.iter().map(|task| task[rows.clone()].to_vec()).collect();
        let asked = table.train + rows.start..table.train + rows.end;
        let json = asked::tensors(numbers, table, snapshot.inputs(), asked.clone(), false);
        let binary = asked::tensors(numbers, table, snapshot.inputs(), asked.clone(), true);
        let raw = asked::tensors(numbers, table, snapshot.inputs(), asked, true);
        for (how, tensors, said) in [
            ("JSON", &json, asked::by_json(&mut rest, &json, &tasks)),
            ("binary", &binary, asked::by_binary(&mut rest, &binary, &tasks)),
            ("gRPC", &raw, asked::by_grpc(&mut grpc, &raw, &tasks)),
        ] {
            let bits = |all: &Logits| all.iter().flatten().map(|logit| logit.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&said), bits(&wanted), "{how}, rows {rows:?}: {tensors:?}");
        }
    }
    // Who never reads hears no goodbye, and would be waited for.
    drop(grpc);
    assert!(server.stop());
}

fn serve(output: &Path) -> Server {
    let directories = BTreeMap::from([("skew".to_owned(), output.to_owned())]);
    let options = Options { rows: RowStorage::F32, ..Options::default() };
    let queue =
        QueueLimits { jobs_max: 64, samples_max: 1 << 16, batch_samples_max: 512, wait: Duration::ZERO };
    let models = Models::new(Box::new(Checkpoints { directories, options }));
    let engine = std::sync::Arc::new(Engine::new(models, FeatureLog::off(), Limits::default(), queue));
    engine.models.follow().unwrap();
    let here = "127.0.0.1:0".parse().unwrap();
    let options = ServerOptions {
        http: here,
        grpc: Some(here),
        tls: None,
        request_bytes_max: 256 << 20,
        patience: Patience::default(),
        access: Access::Everybody,
        scoring_threads: 1,
        network_threads: 1,
        connections_max: 16,
        poll: Duration::from_secs(60),
        drain_max: Duration::from_secs(20),
        traces: None,
    };
    Server::start(engine, &options, Journal::new(std::io::sink())).unwrap()
}
