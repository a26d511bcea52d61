//! An ONNX graph in the making: nodes, weights, inputs and outputs, by name.
//!
//! Field numbers are those of `onnx.proto`.

use super::protobuf::Message;

/// What this exporter uses: `ReduceSum` with axes as an input came with 13, and nothing newer is needed.
const OPSET: i64 = 17;
const IR_VERSION: i64 = 8;

/// Element types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    F32 = 1,
    I64 = 7,
}

/// A side of a shape.
#[derive(Debug, Clone, Copy)]
pub(super) enum Side<'a> {
    Fixed(usize),
    Free(&'a str),
}

/// A graph that grows in the order of computation.
#[derive(Debug, Default)]
pub(super) struct Graph {
    body: Message,
    count: usize,
    /// Weights that go to the file beside the model, in order: bytes before, and the bytes themselves.
    pub beside: Vec<u8>,
}

/// Weights of at least this many bytes may go to the file beside the model.
const BESIDE_BYTES_MIN: usize = 4096;

impl Graph {
    /// Adds a node with one output and returns the output's name.
    pub fn node(&mut self, operation: &str, inputs: &[&str], attributes: &[(&str, i64)]) -> String {
        self.count += 1;
        let output = format!("{}_{}", operation.to_lowercase(), self.count);
        self.named_node(operation, inputs, attributes, &output);
        output
    }

    /// As [`Graph::node`] with a name for the output.
    pub fn named_node(&mut self, operation: &str, inputs: &[&str], attributes: &[(&str, i64)], output: &str) {
        let mut node = Message::default();
        for input in inputs {
            node = node.text(1, input);
        }
        node = node.text(2, output).text(3, output).text(4, operation);
        for (name, value) in attributes {
            const INT: i64 = 2;
            node = node.message(5, &Message::default().text(1, name).integer(3, *value).integer(20, INT));
        }
        self.add(1, &node);
    }

    /// Adds weights; with `beside` they go to a file of that name if they are large.
    pub fn floats(&mut self, name: &str, shape: &[usize], values: &[f32], beside: Option<&str>) {
        self.tensor(name, Element::F32, shape, bytemuck::cast_slice(values), beside);
    }

    /// Adds a constant list of integers and returns its name.
    pub fn integers(&mut self, values: &[i64]) -> String {
        self.count += 1;
        let name = format!("constant_{}", self.count);
        self.tensor(&name, Element::I64, &[values.len()], bytemuck::cast_slice(values), None);
        name
    }

    fn tensor(&mut self, name: &str, element: Element, shape: &[usize], bytes: &[u8], beside: Option<&str>) {
        let mut tensor = Message::default();
        for side in shape {
            tensor = tensor.integer(1, *side as i64);
        }
        tensor = tensor.integer(2, element as i64).text(8, name);
        match beside {
            Some(file) if bytes.len() >= BESIDE_BYTES_MIN => {
                let (offset, length) = (self.beside.len().to_string(), bytes.len().to_string());
                for (key, value) in [("location", file), ("offset", &offset), ("length", &length)] {
                    tensor = tensor.message(13, &Message::default().text(1, key).text(2, value));
                }
                const EXTERNAL: i64 = 1;
                tensor = tensor.integer(14, EXTERNAL);
                self.beside.extend_from_slice(bytes);
            }
            _ => tensor = tensor.bytes(9, bytes),
        }
        self.add(5, &tensor);
    }

    /// Declares an input.
    pub fn input(&mut self, name: &str, element: Element, shape: &[Side<'_>]) {
        self.add(11, &value(name, element, shape));
    }

    /// Declares an output.
    pub fn output(&mut self, name: &str, element: Element, shape: &[Side<'_>]) {
        self.add(12, &value(name, element, shape));
    }

    /// The bytes of the model, and of the file beside it.
    pub fn into_model(self, name: &str) -> (Vec<u8>, Vec<u8>) {
        let graph = self.body.text(2, name);
        let opset = Message::default().text(1, "").integer(2, OPSET);
        let model = Message::default()
            .integer(1, IR_VERSION)
            .text(2, "campanile")
            .message(7, &graph)
            .message(8, &opset);
        (model.into_bytes(), self.beside)
    }

    fn add(&mut self, field: u64, message: &Message) {
        self.body = std::mem::take(&mut self.body).message(field, message);
    }
}

fn value(name: &str, element: Element, shape: &[Side<'_>]) -> Message {
    let mut sides = Message::default();
    for side in shape {
        let side = match side {
            Side::Fixed(size) => Message::default().integer(1, *size as i64),
            Side::Free(name) => Message::default().text(2, name),
        };
        sides = sides.message(1, &side);
    }
    let tensor = Message::default().integer(1, element as i64).message(2, &sides);
    Message::default().text(1, name).message(2, &Message::default().message(1, &tensor))
}
