//! A small trained model, and a server for it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use campanile_data::{PrepOptions, Prepared, prepare};
use campanile_serve::{Options, Request, Scorer, Scores, Side, Snapshot};
use campanile_server::{
    client::{RestAnswer, RestClient, RestRequest},
    engine::Engine,
    feature_log::FeatureLog,
    journal::Journal,
    models::Models,
    passage::Listeners,
    places::Patience,
    protocol::Limits,
    queue::QueueLimits,
    security::Access,
    server::{Server, ServerOptions},
    source::{Checkpoints, Source},
};
use campanile_spec::{Batch, config::Job};
use campanile_tables::checkpoint;
use campanile_train::{
    observe::{Event, Observer},
    ranks::Ranks,
    run::train,
};
use tempfile::TempDir;

struct Silent;

impl Observer for Silent {
    fn observe(&mut self, _: &Event<'_>) {}
}

/// A job that was trained, with several checkpoints.
pub struct Trained {
    pub prepared: Prepared,
    /// Oldest first.
    pub checkpoints: Vec<PathBuf>,
    folder: TempDir,
}

impl Trained {
    /// `examples/tiny.toml`, trained once for all tests.
    pub fn tiny() -> &'static Trained {
        static TINY: OnceLock<Trained> = OnceLock::new();
        TINY.get_or_init(|| {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tiny.toml");
            let mut job = Job::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
            let folder = TempDir::new().unwrap();
            job.process.output_dir = folder.path().join("out");
            std::fs::create_dir_all(&job.process.output_dir).unwrap();
            job.process.cache_dir = folder.path().join("cache");
            job.process.threads = 1;
            job.process.checkpoint_every_steps = 4;
            job.process.checkpoints_kept = 10;
            let options = PrepOptions::new(&job.process.cache_dir, job.run.seed);
            let prepared = prepare(&job.run.data, &job.process.data, &options, &mut |_| ()).unwrap();
            let summary = train(&job, &prepared, Ranks::Threads(1), &mut Silent).unwrap();
            let all = checkpoint::list(summary.checkpoint.parent().unwrap()).unwrap();
            Trained { prepared, checkpoints: all.into_iter().map(|(_, path)| path).collect(), folder }
        })
    }

    pub fn output(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    pub fn newest(&self) -> &Path {
        self.checkpoints.last().unwrap()
    }

    /// Some samples of the training split.
    pub fn samples(&self, count: u64) -> Batch {
        let mut batch = Batch::default();
        self.prepared.train.reader().unwrap().read(0, 0..count, &mut batch).unwrap();
        batch
    }
}

/// What a scorer without a network says: `[sample][task]` probabilities and logits.
pub fn offline(checkpoint: &Path, batch: &Batch) -> Scores {
    let snapshot = Snapshot::open(checkpoint, "offline", &Options::default()).unwrap();
    let mut request = Request::new();
    let inputs = snapshot.inputs();
    request.begin(inputs, batch.sample_count).unwrap();
    let width = inputs.dense_count();
    for column in 0..width {
        let values: Vec<f32> = batch.dense.iter().skip(column).step_by(width).copied().collect();
        request.dense(column, Side::Each, &values).unwrap();
    }
    for feature in 0..inputs.feature_count() {
        let bags = batch.bags.feature(feature);
        request.rows(feature, Side::Each, &lengths(batch, feature), bags.rows).unwrap();
    }
    request.finish().unwrap();
    let mut scores = Scores::default();
    Scorer::new().score(&snapshot, &[&request], &mut scores).unwrap();
    scores
}

pub fn lengths(batch: &Batch, feature: usize) -> Vec<u32> {
    batch.bags.feature(feature).offsets.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// The values of one task out of `[sample][task]`.
pub fn task(values: &[f32], task: usize, task_count: usize) -> Vec<f32> {
    values.iter().skip(task).step_by(task_count).copied().collect()
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// One input of a request: name, type, shape, little-endian bytes.
pub struct Column {
    pub name: String,
    pub datatype: &'static str,
    pub shape: Vec<usize>,
    pub bytes: Bytes,
}

/// A batch as prepared inputs: dense values, and rows with lengths for each feature.
pub fn columns(batch: &Batch, inputs: &campanile_serve::Inputs) -> Vec<Column> {
    let little = |values: &[u32]| Bytes::from_iter(values.iter().flat_map(|value| value.to_le_bytes()));
    let mut columns = vec![Column {
        name: "prepared_dense".to_owned(),
        datatype: "FP32",
        shape: vec![batch.sample_count, inputs.dense_count()],
        bytes: batch.dense.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }];
    for feature in 0..inputs.feature_count() {
        let name = inputs.name(campanile_serve::Input::Sparse(feature));
        let (rows, lengths) = (batch.bags.feature(feature).rows, lengths(batch, feature));
        let column = |name: String, values: &[u32]| Column {
            name,
            datatype: "UINT32",
            shape: vec![values.len()],
            bytes: little(values),
        };
        columns.push(column(format!("{name}.rows"), rows));
        columns.push(column(format!("{name}.lengths"), &lengths));
    }
    columns
}

/// A REST request with binary tensors in and out.
pub fn binary_request(path: &str, columns: &[Column]) -> RestRequest {
    let inputs: Vec<serde_json::Value> = columns
        .iter()
        .map(|column| {
            serde_json::json!({ "name": column.name, "datatype": column.datatype, "shape": column.shape,
                "parameters": { "binary_data_size": column.bytes.len() } })
        })
        .collect();
    let head =
        serde_json::json!({ "inputs": inputs, "parameters": { "binary_data_output": true } }).to_string();
    let mut body = head.clone().into_bytes();
    columns.iter().for_each(|column| body.extend_from_slice(&column.bytes));
    let length = format!("Inference-Header-Content-Length: {}", head.len());
    RestRequest::new("POST", path, &[&length], &body)
}

/// The version and the outputs of an answer with binary tensors.
pub fn read_binary(answer: &RestAnswer) -> (String, BTreeMap<String, Vec<f32>>) {
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    let split: usize = answer.header("inference-header-content-length").unwrap().parse().unwrap();
    let head: serde_json::Value = serde_json::from_slice(&answer.body[..split]).unwrap();
    let mut rest = &answer.body[split..];
    let mut outputs = BTreeMap::new();
    for output in head["outputs"].as_array().unwrap() {
        let size = output["parameters"]["binary_data_size"].as_u64().unwrap() as usize;
        let (own, after) = rest.split_at(size);
        rest = after;
        let values = own.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        outputs.insert(output["name"].as_str().unwrap().to_owned(), values);
    }
    assert!(rest.is_empty());
    (head["model_version"].as_str().unwrap().to_owned(), outputs)
}

/// What a test may change about its server.
pub struct Settings {
    pub source: Box<dyn Source>,
    pub log: FeatureLog,
    pub limits: Limits,
    pub queue: QueueLimits,
    pub allow_control: bool,
    pub listeners: Listeners,
    pub options: ServerOptions,
}

impl Settings {
    /// One model `tiny`, on free ports of this machine.
    pub fn new() -> Settings {
        let directories = BTreeMap::from([("tiny".to_owned(), Trained::tiny().output())]);
        let here = "127.0.0.1:0".parse().unwrap();
        Settings {
            source: Box::new(Checkpoints { directories, options: Options::default() }),
            log: FeatureLog::off(),
            limits: Limits::default(),
            queue: QueueLimits {
                jobs_max: 256,
                samples_max: 1 << 18,
                batch_samples_max: 512,
                wait: Duration::ZERO,
            },
            allow_control: false,
            listeners: Listeners::default(),
            options: ServerOptions {
                http: here,
                grpc: Some(here),
                tls: None,
                access: Access::Everybody,
                scoring_threads: 2,
                network_threads: 2,
                connections_max: 64,
                request_bytes_max: 256 << 20,
                patience: Patience::default(),
                poll: Duration::from_millis(5),
                drain_max: Duration::from_secs(20),
                traces: None,
            },
        }
    }

    pub fn engine(self) -> (Arc<Engine>, ServerOptions) {
        let mut engine = Engine::new(Models::new(self.source), self.log, self.limits, self.queue);
        engine.allow_control = self.allow_control;
        engine.listeners = self.listeners;
        (Arc::new(engine), self.options)
    }

    /// Starts it, with its models loaded.
    pub fn start(self) -> Server {
        let (engine, options) = self.engine();
        engine.models.follow().unwrap();
        Server::start(engine, &options, Journal::new(std::io::sink())).unwrap()
    }
}

/// Asks once, on a connection of its own.
pub fn ask(server: &Server, method: &str, path: &str, body: &str) -> (u16, serde_json::Value) {
    let mut client = RestClient::connect(server.http).unwrap();
    let answer = client.send(&RestRequest::new(method, path, &[], body.as_bytes())).unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap_or_default())
}
