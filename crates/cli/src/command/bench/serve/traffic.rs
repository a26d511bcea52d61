//! Requests with the feature distributions of the job's own data, and what each must be answered with.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Result, bail};
use bytes::Bytes;
use campanile_data::Prepared;
use campanile_serve::{Input, Inputs, Options, Request, Scorer, Scores, Side, Snapshot};
use campanile_server::{
    client::{GrpcRequest, RestRequest},
    proto::{
        ModelInferRequest,
        model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
    },
};
use campanile_spec::Batch;
use serde_json::json;

use crate::args::ServeBenchArguments;

/// The model's name while it is measured.
pub const MODEL: &str = "bench";

/// Requests in every form.
pub struct Traffic {
    pub batches: Vec<Batch>,
    pub rest: Vec<RestRequest>,
    pub grpc: Vec<GrpcRequest>,
    /// By version: what each request must be answered with, for the first task.
    pub expected: BTreeMap<String, Vec<Vec<f32>>>,
}

/// One input tensor.
struct Column {
    name: String,
    datatype: &'static str,
    shape: Vec<usize>,
    bytes: Bytes,
}

impl Traffic {
    /// Samples of the test split, or of the training split when there is none.
    pub fn of(prepared: &Prepared, arguments: &ServeBenchArguments) -> Result<Traffic> {
        let dataset = prepared.test.as_ref().unwrap_or(&prepared.train);
        let (batch, wanted) = (arguments.batch as u64, arguments.requests as u64);
        let count = wanted.min(dataset.row_count() / batch);
        if count == 0 {
            bail!("the data has fewer samples than a request of --batch {batch}");
        }
        let mut reader = dataset.reader()?;
        let mut batches = Vec::new();
        for place in 0..count {
            let mut samples = Batch::default();
            reader.read(0, place * batch..(place + 1) * batch, &mut samples)?;
            batches.push(samples);
        }
        Ok(Traffic { batches, rest: Vec::new(), grpc: Vec::new(), expected: BTreeMap::new() })
    }

    /// Makes the requests, and scores them offline with every version.
    pub fn with_expected(mut self, checkpoints: &[PathBuf]) -> Result<Traffic> {
        let mut scorer = Scorer::new();
        for path in checkpoints {
            let snapshot = Snapshot::open(path, MODEL, &Options::default())?;
            if self.rest.is_empty() {
                let task = snapshot.tasks().next().unwrap_or_default().to_owned();
                for batch in &self.batches {
                    let columns = columns(batch, snapshot.inputs());
                    self.rest.push(rest_request(&columns, &task));
                    self.grpc.push(GrpcRequest::new(&grpc_request(columns, &task)));
                }
            }
            let mut expected = Vec::new();
            let mut scores = Scores::default();
            for batch in &self.batches {
                let request = request(batch, &snapshot)?;
                scorer.score(&snapshot, &[&request], &mut scores)?;
                expected
                    .push(scores.probabilities.iter().step_by(scores.task_count.max(1)).copied().collect());
            }
            self.expected.insert(snapshot.version().number.to_string(), expected);
        }
        Ok(self)
    }
}

/// A batch as the scorer takes it.
pub fn request(batch: &Batch, snapshot: &Snapshot) -> Result<Request> {
    let mut request = Request::new();
    let inputs = snapshot.inputs();
    request.begin(inputs, batch.sample_count)?;
    let width = inputs.dense_count();
    for column in 0..width {
        let values: Vec<f32> = batch.dense.iter().skip(column).step_by(width).copied().collect();
        request.dense(column, Side::Each, &values)?;
    }
    for feature in 0..inputs.feature_count() {
        let bags = batch.bags.feature(feature);
        request.rows(feature, Side::Each, &lengths(batch, feature), bags.rows)?;
        if !bags.weights.is_empty() {
            request.weights(feature, bags.weights)?;
        }
    }
    request.finish()?;
    Ok(request)
}

fn lengths(batch: &Batch, feature: usize) -> Vec<u32> {
    batch.bags.feature(feature).offsets.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// A batch as tensors: two matrices when every feature has one id, otherwise lengths and rows.
fn columns(batch: &Batch, inputs: &Inputs) -> Vec<Column> {
    let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Bytes>();
    let words = |values: &[u32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Bytes>();
    let (samples, features) = (batch.sample_count, inputs.feature_count());
    let mut columns = Vec::new();
    if inputs.dense_count() > 0 {
        columns.push(Column {
            name: "prepared_dense".to_owned(),
            datatype: "FP32",
            shape: vec![samples, inputs.dense_count()],
            bytes: floats(&batch.dense),
        });
    }
    let all_one = batch.bags.offsets().windows(2).all(|pair| pair[1] - pair[0] == 1);
    if all_one && batch.bags.weights().is_empty() {
        let rows = batch.bags.rows();
        let by_sample: Vec<u32> = (0..samples)
            .flat_map(|sample| (0..features).map(move |feature| rows[feature * samples + sample]))
            .collect();
        columns.push(Column {
            name: "prepared_rows".to_owned(),
            datatype: "UINT32",
            shape: vec![samples, features],
            bytes: words(&by_sample),
        });
        return columns;
    }
    for feature in 0..features {
        let name = inputs.name(Input::Sparse(feature));
        let (bags, lengths) = (batch.bags.feature(feature), lengths(batch, feature));
        let column = |name: String, values: &[u32]| Column {
            name,
            datatype: "UINT32",
            shape: vec![values.len()],
            bytes: words(values),
        };
        columns.push(column(format!("{name}.rows"), bags.rows));
        columns.push(column(format!("{name}.lengths"), &lengths));
        if !bags.weights.is_empty() {
            columns.push(Column {
                name: inputs.name(Input::Weights(feature)).to_owned(),
                datatype: "FP32",
                shape: vec![bags.weights.len()],
                bytes: floats(bags.weights),
            });
        }
    }
    columns
}

fn rest_request(columns: &[Column], task: &str) -> RestRequest {
    let input = |column: &Column| {
        json!({ "name": column.name, "datatype": column.datatype, "shape": column.shape,
            "parameters": { "binary_data_size": column.bytes.len() } })
    };
    let head = json!({
        "inputs": columns.iter().map(input).collect::<Vec<_>>(),
        "outputs": [{ "name": task, "parameters": { "binary_data": true } }],
    });
    let mut body = head.to_string().into_bytes();
    let header = format!("Inference-Header-Content-Length: {}", body.len());
    columns.iter().for_each(|column| body.extend_from_slice(&column.bytes));
    RestRequest::new("POST", &format!("/v2/models/{MODEL}/infer"), &[&header], &body)
}

fn grpc_request(columns: Vec<Column>, task: &str) -> ModelInferRequest {
    let mut message = ModelInferRequest { model_name: MODEL.to_owned(), ..ModelInferRequest::default() };
    message.outputs.push(InferRequestedOutputTensor { name: task.to_owned(), ..Default::default() });
    for column in columns {
        message.inputs.push(InferInputTensor {
            name: column.name,
            datatype: column.datatype.to_owned(),
            shape: column.shape.iter().map(|length| *length as i64).collect(),
            ..InferInputTensor::default()
        });
        message.raw_input_contents.push(column.bytes);
    }
    message
}
