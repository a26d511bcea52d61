//! Requests as clients send them that mean no harm, and the parts of those that do.

use bytes::{BufMut, Bytes, BytesMut};
use campanile_server::{
    client::RestRequest,
    proto::{ModelInferRequest, model_infer_request::InferInputTensor},
};
use serde_json::{Value, json};

pub const INFER: &str = "/v2/models/ranker/infer";
pub const JSON: &str = "Content-Type: application/json";

/// An input in JSON.
pub fn input(name: &str, datatype: &str, shape: &[usize], data: Value) -> Value {
    json!({ "name": name, "datatype": datatype, "shape": shape, "data": data })
}

/// All inputs of so many candidates.
pub fn inputs(samples: usize) -> Vec<Value> {
    let list = |value: &dyn Fn(usize) -> Value| (0..samples).map(value).collect::<Value>();
    vec![
        input("user", "BYTES", &[1], json!(["user-1"])),
        input("item", "BYTES", &[samples], list(&|place| json!(format!("{}|3", place % 13)))),
        input("price", "FP32", &[samples], list(&|place| json!(place as f64 / 8.0))),
    ]
}

pub fn body(inputs: Vec<Value>) -> Vec<u8> {
    json!({ "inputs": inputs }).to_string().into_bytes()
}

pub fn post(path: &str, body: &[u8]) -> RestRequest {
    RestRequest::new("POST", path, &[JSON], body)
}

/// One user and 64 candidates.
pub fn good_rest() -> RestRequest {
    post(INFER, &body(inputs(64)))
}

/// The bytes of strings as tensors have them.
pub fn strings(strings: &[&[u8]]) -> Bytes {
    let mut bytes = BytesMut::new();
    for string in strings {
        bytes.put_u32_le(string.len() as u32);
        bytes.put_slice(string);
    }
    bytes.freeze()
}

fn raw(name: &str, datatype: &str, shape: &[i64]) -> InferInputTensor {
    InferInputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: shape.to_vec(),
        ..InferInputTensor::default()
    }
}

/// So many candidates over gRPC.
pub fn message(samples: usize) -> ModelInferRequest {
    let items: Vec<i64> = (0..samples as i64).flat_map(|place| [place % 13, place % 7]).collect();
    let prices: Vec<f32> = (0..samples).map(|place| place as f32 / 8.0).collect();
    ModelInferRequest {
        model_name: "ranker".to_owned(),
        inputs: vec![
            raw("user", "BYTES", &[1]),
            raw("item", "INT64", &[samples as i64, 2]),
            raw("price", "FP32", &[samples as i64]),
        ],
        raw_input_contents: vec![
            strings(&[b"user-1"]),
            items.iter().flat_map(|item| item.to_le_bytes()).collect(),
            prices.iter().flat_map(|price| price.to_le_bytes()).collect(),
        ],
        ..ModelInferRequest::default()
    }
}

pub fn good_message() -> ModelInferRequest {
    message(64)
}
