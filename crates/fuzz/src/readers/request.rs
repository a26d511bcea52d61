//! Requests: JSON, JSON with binary tensors behind it, and gRPC; from the network's bytes to the scores.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use campanile_serve::{Input, Inputs, Options, Request, Scorer, Scores, Snapshot};
use campanile_server::{
    ServeError, features, grpc,
    proto::{InferTensorContents, ModelInferRequest, model_infer_request::InferInputTensor},
    protocol::{InferRequest, Limits, json},
};
use prost::Message;
use serde_json::{Value, json};

use crate::{
    campaign::Reader,
    model,
    mutate::{self, protobuf, tree},
    random::Random,
};

/// Where the length of the JSON part stands before a body with binary tensors.
const SPLIT_BYTES: usize = 8;

/// How a request travels.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Json,
    Tensors,
    Grpc,
}

/// Requests for the model.
pub struct Requests {
    form: Form,
    seeds: Vec<Vec<u8>>,
    limits: Limits,
    snapshot: Snapshot,
    scorer: Scorer,
    scores: Scores,
    request: Request,
}

impl Requests {
    pub fn rest(folder: &Path) -> Requests {
        Requests::new(folder, Form::Json)
    }

    pub fn tensors(folder: &Path) -> Requests {
        Requests::new(folder, Form::Tensors)
    }

    pub fn grpc(folder: &Path) -> Requests {
        Requests::new(folder, Form::Grpc)
    }

    fn new(folder: &Path, form: Form) -> Requests {
        model::write(&model::model().checkpoint, folder);
        let snapshot = Snapshot::open(folder, "m", &Options::default()).expect("a good checkpoint");
        let inputs = snapshot.inputs();
        let of = |samples: usize| match form {
            Form::Json => vec![by_name(inputs, samples)],
            Form::Tensors => vec![with_tensors(inputs, samples)],
            Form::Grpc => vec![message(inputs, samples, true), message(inputs, samples, false)],
        };
        let seeds = [1, 2, 5].into_iter().flat_map(of).collect();
        // What is scored stays small, so that there are many cases a second.
        let limits = Limits { elements_max: 1 << 16, samples_max: 256, ..Limits::default() };
        let (scorer, scores, request) = (Scorer::new(), Scores::default(), Request::new());
        Requests { form, seeds, limits, snapshot, scorer, scores, request }
    }

    fn parsed(&self, bytes: &[u8]) -> Result<InferRequest, ServeError> {
        match self.form {
            Form::Json => json::parse(&Bytes::copy_from_slice(bytes), None, &self.limits),
            Form::Tensors => {
                let (split, body) = bytes.split_first_chunk::<SPLIT_BYTES>().unwrap_or((&[0; 8], bytes));
                let split = u64::from_le_bytes(*split).to_string();
                json::parse(&Bytes::copy_from_slice(body), Some(&split), &self.limits)
            }
            Form::Grpc => {
                let message = ModelInferRequest::decode(Bytes::copy_from_slice(bytes));
                grpc::read(message.unwrap_or_default(), &self.limits)
            }
        }
        .map_err(ServeError::Protocol)
    }
}

impl Reader for Requests {
    fn name(&self) -> &'static str {
        match self.form {
            Form::Json => "rest",
            Form::Tensors => "tensors",
            Form::Grpc => "grpc",
        }
    }

    fn seeds(&self) -> &[Vec<u8>] {
        &self.seeds
    }

    fn words_max(&self) -> usize {
        TOLD_BYTES_MAX
    }

    fn spoil(&self, _: usize, bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        match (self.form, random.below(3)) {
            (Form::Json, 1 | 2) => tree::json(bytes, random),
            (Form::Tensors, 1 | 2) => spoil_head(bytes, random),
            (Form::Grpc, 1 | 2) => protobuf::message(bytes, random),
            _ => mutate::bytes(bytes, other, random),
        }
    }

    fn read(&mut self, _: usize, bytes: &[u8]) -> Result<(), String> {
        let read = self.parsed(bytes).map_err(|error| error.told())?;
        features::fill(&mut self.request, &self.snapshot, &read.inputs, &self.limits)
            .map_err(|error| ServeError::Features(error).told())?;
        self.scorer.score(&self.snapshot, &[&self.request], &mut self.scores).expect("its own inputs");
        let wanted = self.request.sample_count() * self.scores.task_count;
        assert_eq!(self.scores.probabilities.len(), wanted, "one score a sample and task");
        Ok(())
    }
}

/// The longest refusal of a client.
const TOLD_BYTES_MAX: usize = 4 << 10;

/// The JSON part is spoilt as a tree, and its length put right unless that is odd itself.
fn spoil_head(bytes: &mut Vec<u8>, random: &mut Random) {
    let Some((split, body)) = bytes.split_first_chunk::<SPLIT_BYTES>() else { return };
    let split = u64::from_le_bytes(*split) as usize;
    let Some((head, tensors)) = body.split_at_checked(split) else { return };
    let (mut head, mut tensors) = (head.to_vec(), tensors.to_vec());
    if random.one_in(3) {
        mutate::bytes(&mut tensors, &head, random);
    }
    tree::json(&mut head, random);
    let split = if random.one_in(8) { *random.pick(&mutate::EXTREMES) } else { head.len() as u64 };
    *bytes = [&split.to_le_bytes()[..], &head, &tensors].concat();
}

/// Asks a model that opened, with rows that every table has.
pub fn ask(snapshot: &Snapshot) {
    let body = with_rows(snapshot.inputs());
    let limits = Limits::default();
    let read = json::parse(&Bytes::from(body), None, &limits).expect("our own request");
    let mut request = Request::new();
    // A model may want other inputs than ours; then it says so.
    if features::fill(&mut request, snapshot, &read.inputs, &limits).is_err() {
        return;
    }
    let mut scores = Scores::default();
    Scorer::new().score(snapshot, &[&request], &mut scores).expect("its own inputs");
    assert_eq!(scores.probabilities.len(), 2 * scores.task_count);
}

fn with_rows(inputs: &Arc<Inputs>) -> Vec<u8> {
    let named: Vec<Value> = inputs
        .all()
        .filter(|(_, input)| !matches!(input, Input::Weights(_)))
        .map(|(name, input)| match input {
            Input::Sparse(_) => {
                json!({ "name": format!("{name}.rows"), "datatype": "UINT32", "shape": [2], "data": [0, 1] })
            }
            _ => json!({ "name": name, "datatype": "FP32", "shape": [2], "data": [0.5, 1] }),
        })
        .collect();
    json!({ "inputs": named }).to_string().into_bytes()
}

/// Raw columns by name: numbers, texts, lists with lengths.
fn by_name(inputs: &Arc<Inputs>, samples: usize) -> Vec<u8> {
    let named = inputs.all().map(|(name, input)| {
        let numbers: Vec<usize> = (0..samples).collect();
        let texts: Vec<String> = (0..samples).map(|sample| format!("t{sample}|item-{sample}")).collect();
        let floats: Vec<f64> = (0..samples).map(|sample| sample as f64 + 0.5).collect();
        match (name, input) {
            ("tags" | "country" | "item", Input::Sparse(_)) => {
                json!({ "name": name, "datatype": "BYTES", "shape": [samples], "data": texts })
            }
            (_, Input::Sparse(_)) => {
                json!({ "name": name, "datatype": "INT64", "shape": [samples], "data": numbers })
            }
            (_, Input::Weights(_)) => {
                // One for each of the two ids in a cell.
                let two: Vec<f64> = floats.iter().flat_map(|&weight| [weight, 1.0]).collect();
                json!({ "name": name, "datatype": "FP32", "shape": [2 * samples], "data": two })
            }
            (_, Input::Dense(_)) => {
                json!({ "name": name, "datatype": "FP32", "shape": [samples], "data": floats })
            }
        }
    });
    let mut inputs: Vec<Value> = named.collect();
    let extra = json!({ "name": "log.page", "datatype": "BYTES", "shape": [1], "data": ["x"] });
    inputs.push(extra);
    json!({ "id": "a", "inputs": inputs, "parameters": { "timeout": 100_000 } }).to_string().into_bytes()
}

/// Matrices as bytes behind the JSON part, and the length of that part before it.
fn with_tensors(inputs: &Arc<Inputs>, samples: usize) -> Vec<u8> {
    let (dense, features) = (inputs.dense_count(), inputs.feature_count());
    let (floats, rows) = (vec![0u8; 4 * samples * dense], vec![0u8; 4 * samples * features]);
    let head = json!({
        "inputs": [
            { "name": "dense", "datatype": "FP32", "shape": [samples, dense],
              "parameters": { "binary_data_size": floats.len() } },
            { "name": "prepared_rows", "datatype": "UINT32", "shape": [samples, features],
              "parameters": { "binary_data_size": rows.len() } },
            { "name": "log.page", "datatype": "BYTES", "shape": [1],
              "parameters": { "binary_data_size": 5 } }],
        "parameters": { "binary_data_output": true } });
    let head = head.to_string().into_bytes();
    let split = (head.len() as u64).to_le_bytes();
    [&split[..], &head, &floats, &rows, &[1, 0, 0, 0, b'x']].concat()
}

fn message(inputs: &Arc<Inputs>, samples: usize, raw: bool) -> Vec<u8> {
    let (dense, features) = (inputs.dense_count(), inputs.feature_count());
    let input = |name: &str, datatype: &str, width: usize| InferInputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: vec![samples as i64, width as i64],
        ..InferInputTensor::default()
    };
    let mut message = ModelInferRequest {
        model_name: "m".to_owned(),
        id: "a".to_owned(),
        inputs: vec![input("dense", "FP32", dense), input("prepared_rows", "UINT32", features)],
        ..ModelInferRequest::default()
    };
    if raw {
        let zeros = |width: usize| Bytes::from(vec![0; 4 * samples * width]);
        message.raw_input_contents = vec![zeros(dense), zeros(features)];
    } else {
        let floats = vec![0.5; samples * dense];
        let rows = vec![1; samples * features];
        message.inputs[0].contents =
            Some(InferTensorContents { fp32_contents: floats, ..Default::default() });
        message.inputs[1].contents = Some(InferTensorContents { uint_contents: rows, ..Default::default() });
    }
    message.encode_to_vec()
}
