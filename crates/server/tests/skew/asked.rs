//! Rows of the drawn table as requests: in every datatype that can say them, over REST as JSON and in binary, over gRPC.

use bytes::Bytes;
use campanile_serve::{Input, Inputs};
use campanile_server::{
    client::{GrpcClient, RestClient, RestRequest, floats},
    proto::{ModelInferRequest, model_infer_request::InferInputTensor},
};
use serde_json::{Value as Json, json};

use crate::{
    draw::{Cell, Column, Kind, Numbers, Table, Value},
    files,
};

/// An input: its elements with nothing where one is missing.
#[derive(Debug)]
pub struct Tensor {
    pub name: String,
    pub datatype: &'static str,
    pub elements: Vec<Option<Element>>,
}

#[derive(Debug, Clone)]
pub enum Element {
    Int(i64),
    Float(f64),
    Truth(bool),
    Text(String),
}

/// A request for the rows: every input of the model in a form drawn for it. `binary` forms cannot say of a whole number that
/// it is missing.
pub fn tensors(
    numbers: &mut Numbers,
    table: &Table,
    inputs: &Inputs,
    rows: std::ops::Range<usize>,
    binary: bool,
) -> Vec<Tensor> {
    let mut tensors = Vec::new();
    for (name, input) in inputs.all() {
        let column = table.columns.iter().find(|column| column.name == name).unwrap();
        let cells = &column.cells[rows.clone()];
        match input {
            Input::Weights(_) => {}
            Input::Dense(_) => tensors.push(of_cells(numbers, column, cells, binary)),
            Input::Sparse(_) => {
                let weights = table.columns.iter().find(|other| {
                    other.weighs.is_some_and(|of| table.columns[of].name == name)
                        && inputs.find(&other.name).is_ok()
                });
                if let Some(weights) = weights {
                    tensors.extend(lists(numbers, column, cells, false));
                    tensors.push(all_values(numbers, weights, &weights.cells[rows.clone()]));
                } else if column.is_list && numbers.once_in(2) {
                    tensors.extend(lists(numbers, column, cells, true));
                } else if column.is_list {
                    let texts = cells.iter().map(|cell| Some(Element::Text(files::joined(numbers, cell))));
                    let elements = texts.collect();
                    tensors.push(Tensor { name: name.to_owned(), datatype: "BYTES", elements });
                } else {
                    tensors.push(of_cells(numbers, column, cells, binary));
                }
            }
        }
    }
    numbers.shuffle(&mut tensors);
    tensors
}

/// One element for each cell.
fn of_cells(numbers: &mut Numbers, column: &Column, cells: &[Cell], binary: bool) -> Tensor {
    let has_missing = cells.iter().any(|cell| cell[0].is_none());
    // In JSON, null stands among whole numbers, not among truth values.
    let must_say_missing = has_missing && (binary || column.kind == Kind::Truths);
    let datatype = datatype(numbers, column, must_say_missing);
    let elements = cells.iter().map(|cell| cell[0].as_ref().map(|value| element(numbers, datatype, value)));
    Tensor { name: column.name.clone(), datatype, elements: elements.collect() }
}

/// The ids of all cells one after the other, and how many each has. Missing ones may be left out where nothing weighs them.
fn lists(numbers: &mut Numbers, column: &Column, cells: &[Cell], leave_out: bool) -> [Tensor; 2] {
    let kept =
        |cell: &Cell| -> Cell { cell.iter().filter(|item| !leave_out || item.is_some()).cloned().collect() };
    let cells: Vec<Cell> = cells.iter().map(kept).collect();
    let has_missing = cells.iter().flatten().any(Option::is_none);
    let datatype = datatype(numbers, column, has_missing);
    let items = cells.iter().flatten();
    let elements = items.map(|item| item.as_ref().map(|value| element(numbers, datatype, value))).collect();
    let lengths = cells.iter().map(|cell| Some(Element::Int(cell.len() as i64))).collect();
    [
        Tensor { name: column.name.clone(), datatype, elements },
        Tensor { name: format!("{}.lengths", column.name), datatype: "INT32", elements: lengths },
    ]
}

fn all_values(numbers: &mut Numbers, column: &Column, cells: &[Cell]) -> Tensor {
    let datatype = numbers.pick(&["FP32", "FP64"]);
    let items = cells.iter().flatten();
    let elements = items.map(|item| item.as_ref().map(|value| element(numbers, datatype, value))).collect();
    Tensor { name: column.name.clone(), datatype, elements }
}

fn datatype(numbers: &mut Numbers, column: &Column, must_say_missing: bool) -> &'static str {
    let all: &[&'static str] = match column.kind {
        Kind::Small if must_say_missing => &["BYTES", "FP32", "FP64"],
        Kind::Small => &["BYTES", "INT64", "INT32", "UINT8", "UINT64", "FP32", "FP64"],
        Kind::Wide if must_say_missing => &["BYTES"],
        Kind::Wide => &["BYTES", "INT64"],
        Kind::Fractions => &["BYTES", "FP32", "FP64"],
        Kind::Truths if must_say_missing => &["BYTES"],
        Kind::Truths => &["BYTES", "BOOL", "INT8"],
        Kind::Words | Kind::Codes => &["BYTES"],
    };
    numbers.pick(all)
}

fn element(numbers: &mut Numbers, datatype: &str, value: &Value) -> Element {
    match (datatype, value) {
        ("BYTES", value) => Element::Text(files::text(numbers, value)),
        ("FP32", Value::Fraction(text)) => Element::Float(f64::from(text.parse::<f32>().unwrap())),
        (_, Value::Fraction(text)) => Element::Float(text.parse().unwrap()),
        ("FP32" | "FP64", Value::Int(value)) => Element::Float(*value as f64),
        (_, Value::Int(value)) => Element::Int(*value),
        ("BOOL", Value::Truth(value)) => Element::Truth(*value),
        (_, Value::Truth(value)) => Element::Int(i64::from(*value)),
        (_, Value::Text(text)) => Element::Text(text.clone()),
    }
}

impl Tensor {
    fn json(&self) -> Json {
        let data: Vec<Json> = self
            .elements
            .iter()
            .map(|element| match element {
                None if self.datatype == "BYTES" => json!(""),
                None => Json::Null,
                Some(Element::Int(value)) => json!(value),
                // The shortest text of 32 bits is what a client of 32 bits sends.
                Some(Element::Float(value)) if self.datatype == "FP32" => json!(*value as f32),
                Some(Element::Float(value)) => json!(value),
                Some(Element::Truth(value)) => json!(value),
                Some(Element::Text(text)) => json!(text),
            })
            .collect();
        json!({ "name": self.name, "datatype": self.datatype, "shape": [data.len()], "data": data })
    }

    fn bytes(&self) -> Bytes {
        let mut out = Vec::new();
        for element in &self.elements {
            match (self.datatype, element) {
                ("FP32", None) => out.extend(f32::NAN.to_le_bytes()),
                ("FP64", None) => out.extend(f64::NAN.to_le_bytes()),
                (_, None) => out.extend(0_u32.to_le_bytes()),
                (_, Some(Element::Text(text))) => {
                    out.extend((text.len() as u32).to_le_bytes());
                    out.extend(text.as_bytes());
                }
                ("FP32", Some(Element::Float(value))) => out.extend((*value as f32).to_le_bytes()),
                (_, Some(Element::Float(value))) => out.extend(value.to_le_bytes()),
                (_, Some(Element::Truth(value))) => out.push(u8::from(*value)),
                ("INT8" | "UINT8", Some(Element::Int(value))) => out.push(*value as u8),
                ("INT32", Some(Element::Int(value))) => out.extend((*value as i32).to_le_bytes()),
                (_, Some(Element::Int(value))) => out.extend(value.to_le_bytes()),
            }
        }
        Bytes::from(out)
    }
}

/// The logits of the tasks, `[task][sample]`.
pub type Logits = Vec<Vec<f32>>;

pub fn by_json(client: &mut RestClient, tensors: &[Tensor], tasks: &[String]) -> Logits {
    let body = json!({ "inputs": tensors.iter().map(Tensor::json).collect::<Vec<_>>() }).to_string();
    let answer =
        client.send(&RestRequest::new("POST", "/v2/models/skew/infer", &[], body.as_bytes())).unwrap();
    let said: Json = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(answer.status, 200, "{said}\n{body}");
    let of_task = |task: &String| {
        let name = format!("{task}.logit");
        let found =
            said["outputs"].as_array().unwrap().iter().find(|output| output["name"] == *name).unwrap();
        serde_json::from_value(found["data"].clone()).unwrap()
    };
    tasks.iter().map(of_task).collect()
}

pub fn by_binary(client: &mut RestClient, tensors: &[Tensor], tasks: &[String]) -> Logits {
    let contents: Vec<Bytes> = tensors.iter().map(Tensor::bytes).collect();
    let inputs = tensors.iter().zip(&contents).map(|(tensor, bytes)| {
        json!({ "name": tensor.name, "datatype": tensor.datatype, "shape": [tensor.elements.len()],
            "parameters": { "binary_data_size": bytes.len() } })
    });
    let outputs: Vec<Json> = tasks.iter().map(|task| json!({ "name": format!("{task}.logit") })).collect();
    let head = json!({ "inputs": inputs.collect::<Vec<_>>(), "outputs": outputs,
        "parameters": { "binary_data_output": true } })
    .to_string();
    let body = [head.as_bytes(), &contents.concat()].concat();
    let length = format!("Inference-Header-Content-Length: {}", head.len());
    let answer = client.send(&RestRequest::new("POST", "/v2/models/skew/infer", &[&length], &body)).unwrap();
    assert_eq!(answer.status, 200, "{}\n{head}", String::from_utf8_lossy(&answer.body));
    let split: usize = answer.header("inference-header-content-length").unwrap().parse().unwrap();
    let values = floats(&Bytes::copy_from_slice(&answer.body[split..]));
    values.chunks(values.len() / tasks.len()).map(<[f32]>::to_vec).collect()
}

pub fn by_grpc(client: &mut GrpcClient, tensors: &[Tensor], tasks: &[String]) -> Logits {
    let input = |tensor: &Tensor| InferInputTensor {
        name: tensor.name.clone(),
        datatype: tensor.datatype.to_owned(),
        shape: vec![tensor.elements.len() as i64],
        ..InferInputTensor::default()
    };
    let request = ModelInferRequest {
        model_name: "skew".to_owned(),
        inputs: tensors.iter().map(input).collect(),
        raw_input_contents: tensors.iter().map(Tensor::bytes).collect(),
        ..ModelInferRequest::default()
    };
    let answer = client.infer(&request, None).unwrap_or_else(|error| panic!("{error:?}\n{tensors:?}"));
    let of_task = |task: &String| {
        let name = format!("{task}.logit");
        let place = answer.outputs.iter().position(|output| output.name == name).unwrap();
        floats(&answer.raw_output_contents[place])
    };
    tasks.iter().map(of_task).collect()
}
