//! The JSON form of a request, with the binary tensor extension, and of an answer.
//!
//! ```text
//!   POST .../infer                                  without the extension: the body is the JSON part
//!   Inference-Header-Content-Length: 104            with it: so many bytes of JSON, then the tensors that say
//!   { "inputs": [{ ..., "parameters":               `binary_data_size`, one after the other
//!       { "binary_data_size": 12 } }] }············
//! ```
//!
//! A tensor's type may stand after its data, so data is kept as text at first and read when the type is known.
//! Then numbers go straight into the tensor's bytes, and reading stops at the first element too many.

use std::{borrow::Cow, fmt};

use bytes::{BufMut, Bytes, BytesMut};
use serde::{
    Deserialize, Serialize,
    de::{DeserializeSeed, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{Datatype, InferRequest, Limits, ProtocolError, Tensor, WantedOutput, at_most, checked_shape};

/// The JSON part as it stands.
#[derive(Deserialize)]
struct RequestPart<'a> {
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    parameters: Option<Parameters>,
    #[serde(borrow)]
    inputs: Vec<InputPart<'a>>,
    #[serde(borrow)]
    outputs: Option<Vec<OutputPart<'a>>>,
}

#[derive(Deserialize)]
struct InputPart<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    datatype: Cow<'a, str>,
    shape: Vec<i64>,
    parameters: Option<Parameters>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct OutputPart<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    parameters: Option<Parameters>,
}

/// The parameters that we know; others are left alone, as the protocol asks.
#[derive(Deserialize, Default)]
struct Parameters {
    binary_data_size: Option<usize>,
    binary_data: Option<bool>,
    binary_data_output: Option<bool>,
    timeout: Option<u64>,
    // What other servers do with these would change the answer: left alone, it would be a wrong one.
    classification: Option<u64>,
    class_count: Option<u64>,
    #[serde(default, deserialize_with = "is_there")]
    shared_memory_region: bool,
}

impl Parameters {
    /// Refuses what is asked for and not done here.
    fn check(&self) -> Result<(), ProtocolError> {
        let count = |count: Option<u64>| count.unwrap_or(0) > 0;
        let asked = [
            (count(self.classification), "classification"),
            (count(self.class_count), "class_count"),
            (self.shared_memory_region, "shared_memory_region"),
        ];
        match asked.iter().find(|(is_asked, _)| *is_asked) {
            None => Ok(()),
            Some((_, parameter)) => Err(ProtocolError::Parameter { parameter }),
        }
    }
}

fn is_there<'de, D: serde::Deserializer<'de>>(value: D) -> Result<bool, D::Error> {
    serde::de::IgnoredAny::deserialize(value).map(|_| true)
}

/// Bytes of memory that a byte of JSON becomes at most: `0,` is a number of eight bytes, and what it is read from stays.
pub const EXPANSION: u64 = 5;

/// Bytes of a body that are JSON, as far as its sender says so rightly.
pub fn part_length(body: &Bytes, header_length: Option<&str>) -> usize {
    let said = header_length.and_then(|text| text.trim().parse::<usize>().ok());
    said.unwrap_or(body.len()).min(body.len())
}

/// Reads a request's body. `header_length` is the value of `Inference-Header-Content-Length`, if it came.
///
/// # Errors
/// With what the client must change.
pub fn parse(
    body: &Bytes,
    header_length: Option<&str>,
    limits: &Limits,
) -> Result<InferRequest, ProtocolError> {
    let split = match header_length {
        None => body.len(),
        Some(text) => text.trim().parse().ok().filter(|length| *length <= body.len()).ok_or_else(|| {
            ProtocolError::HeaderLength { value: text.chars().take(32).collect(), body: body.len() }
        })?,
    };
    let part: RequestPart<'_> = serde_json::from_slice(&body[..split]).map_err(json_problem)?;
    at_most("inputs of the request", part.inputs.len(), limits.tensors_max)?;
    let mut binary = body.slice(split..);
    let mut inputs = Vec::with_capacity(part.inputs.len());
    for input in part.inputs {
        inputs.push(read_input(input, &mut binary, limits)?);
    }
    if !binary.is_empty() {
        return Err(ProtocolError::Left { left: binary.len() });
    }
    let outputs = part.outputs.unwrap_or_default();
    at_most("outputs of the request", outputs.len(), limits.tensors_max)?;
    let parameters = part.parameters.unwrap_or_default();
    let binary_by_default = parameters.binary_data_output.unwrap_or(false);
    parameters.check()?;
    let wanted = |output: OutputPart<'_>| {
        let own = output.parameters.unwrap_or_default();
        own.check()?;
        let binary = own.binary_data.unwrap_or(binary_by_default);
        Ok(WantedOutput { name: output.name.into_owned(), binary })
    };
    let request = InferRequest {
        id: part.id.map(Cow::into_owned),
        inputs,
        outputs: outputs.into_iter().map(wanted).collect::<Result<_, ProtocolError>>()?,
        binary_by_default,
        timeout_us: parameters.timeout.unwrap_or(0),
    };
    request.check(limits)
}

fn json_problem(error: serde_json::Error) -> ProtocolError {
    ProtocolError::Json { problem: error.to_string().chars().take(300).collect() }
}

/// Reads one input, from the JSON part or from the front of the binary part.
fn read_input(input: InputPart<'_>, binary: &mut Bytes, limits: &Limits) -> Result<Tensor, ProtocolError> {
    let name = input.name.into_owned();
    let Some(datatype) = Datatype::parse(&input.datatype) else {
        let datatype = input.datatype.chars().take(32).collect();
        return Err(ProtocolError::Datatype { input: name, datatype });
    };
    let parameters = input.parameters.unwrap_or_default();
    parameters.check()?;
    let size = parameters.binary_data_size;
    let data = match (size, input.data) {
        (Some(size), None) if size <= binary.len() => binary.split_to(size),
        (Some(size), None) => {
            let what = format!("input `{name}`: binary_data_size");
            return Err(ProtocolError::TooMany { what, found: size, limit: binary.len() });
        }
        (None, Some(data)) => {
            let (_, elements) = checked_shape(&name, &input.shape, limits)?;
            // Whole numbers have no bits for a missing value; their text does, and means the same ids and numbers.
            let as_text = datatype.is_whole() && data.get().contains("null");
            let data = json_elements(&name, datatype, as_text, elements, data)?;
            let datatype = if as_text { Datatype::Bytes } else { datatype };
            return Tensor::new(name, datatype, &input.shape, data, limits);
        }
        (Some(_), Some(_)) => {
            let problem = "send `data` or `binary_data_size`, not both".to_owned();
            return Err(ProtocolError::Element { input: name, problem });
        }
        (None, None) => return Err(ProtocolError::NoData { input: name }),
    };
    Tensor::new(name, datatype, &input.shape, data, limits)
}

/// The elements of a JSON array, flat or nested, as bytes.
fn json_elements(
    input: &str,
    datatype: Datatype,
    as_text: bool,
    elements: usize,
    data: &RawValue,
) -> Result<Bytes, ProtocolError> {
    let text = data.get();
    // Two characters an element is the least that JSON needs, whatever the shape says.
    let capacity = elements.min(text.len() / 2 + 1) * datatype.element_bytes().unwrap_or(8);
    let mut reader =
        Elements { datatype, as_text, left: elements, bytes: BytesMut::with_capacity(capacity), depth: 0 };
    let mut deserializer = serde_json::Deserializer::from_str(text);
    reader.deserialize(&mut deserializer).map_err(|error| ProtocolError::Element {
        input: input.to_owned(),
        problem: error.to_string().chars().take(300).collect(),
    })?;
    if reader.left > 0 {
        return Err(ProtocolError::Length {
            input: input.to_owned(),
            elements,
            datatype: datatype.name(),
            wanted: format!("{elements} elements"),
            found: format!("{} elements", elements - reader.left),
        });
    }
    Ok(reader.bytes.freeze())
}

/// Reads elements of one type into bytes.
struct Elements {
    datatype: Datatype,
    /// Whole numbers are written as text, because some are missing.
    as_text: bool,
    /// How many may still come.
    left: usize,
    bytes: BytesMut,
    depth: usize,
}

/// Arrays inside arrays.
const DEPTH_MAX: usize = 8;

impl<'de> DeserializeSeed<'de> for &mut Elements {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Elements {
    fn one<E: serde::de::Error>(&mut self) -> Result<(), E> {
        if self.depth == 0 {
            return Err(E::custom("the data is not an array"));
        }
        self.left = self.left.checked_sub(1).ok_or_else(|| E::custom("more elements than the shape says"))?;
        Ok(())
    }

    fn refuse<E: serde::de::Error>(&self, value: impl fmt::Display) -> E {
        E::custom(format!("{value} is no {}", self.datatype.name()))
    }

    fn put_text(&mut self, text: &str) {
        self.bytes.put_u32_le(text.len() as u32);
        self.bytes.put_slice(text.as_bytes());
    }

    fn integer<E: serde::de::Error>(&mut self, value: i128) -> Result<(), E> {
        self.one()?;
        macro_rules! put {
            ($whole:ty) => {
                match <$whole>::try_from(value) {
                    Ok(value) if self.as_text => self.put_text(&value.to_string()),
                    Ok(value) => self.bytes.put_slice(&value.to_le_bytes()),
                    Err(_) => return Err(self.refuse(value)),
                }
            };
        }
        match self.datatype {
            Datatype::Uint8 => put!(u8),
            Datatype::Uint16 => put!(u16),
            Datatype::Uint32 => put!(u32),
            Datatype::Uint64 => put!(u64),
            Datatype::Int8 => put!(i8),
            Datatype::Int16 => put!(i16),
            Datatype::Int32 => put!(i32),
            Datatype::Int64 => put!(i64),
            Datatype::Fp32 => self.bytes.put_f32_le(value as f32),
            Datatype::Fp64 => self.bytes.put_f64_le(value as f64),
            Datatype::Bool if value == 0 || value == 1 => self.bytes.put_u8(value as u8),
            _ => return Err(self.refuse(value)),
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for &mut Elements {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "an array of {}", self.datatype.name())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<(), A::Error> {
        if self.depth == DEPTH_MAX {
            return Err(serde::de::Error::custom("arrays inside arrays go too deep"));
        }
        self.depth += 1;
        while sequence.next_element_seed(&mut *self)?.is_some() {}
        self.depth -= 1;
        Ok(())
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        self.one()?;
        match self.datatype {
            Datatype::Bool => self.bytes.put_u8(u8::from(value)),
            _ => return Err(self.refuse(value)),
        }
        Ok(())
    }

    /// A missing value.
    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.one()?;
        match self.datatype {
            Datatype::Fp32 => self.bytes.put_f32_le(f32::NAN),
            Datatype::Fp64 => self.bytes.put_f64_le(f64::NAN),
            Datatype::Bytes => self.bytes.put_u32_le(0),
            _ if self.as_text => self.bytes.put_u32_le(0),
            _ => return Err(self.refuse("null")),
        }
        Ok(())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        self.integer(i128::from(value))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        self.integer(i128::from(value))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        self.one()?;
        match self.datatype {
            Datatype::Fp32 => self.bytes.put_f32_le(value as f32),
            Datatype::Fp64 => self.bytes.put_f64_le(value),
            _ => return Err(self.refuse(value)),
        }
        Ok(())
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<(), E> {
        self.one()?;
        if self.datatype != Datatype::Bytes {
            return Err(self.refuse(format_args!("{:?}", value.chars().take(32).collect::<String>())));
        }
        // A string inside a body that is within its limit has a length that fits.
        self.bytes.put_u32_le(u32::try_from(value.len()).map_err(E::custom)?);
        self.bytes.put_slice(value.as_bytes());
        Ok(())
    }
}

/// An answer, before it is written.
#[derive(Debug)]
pub struct Answer<'a> {
    /// The model.
    pub model: &'a str,
    /// The version that scored, the only one.
    pub version: &'a str,
    /// The client's name for the request, or ours.
    pub id: &'a str,
    /// Name, floats, and whether they travel as bytes.
    pub outputs: Vec<(&'a str, &'a [f32], bool)>,
}

#[derive(Serialize)]
struct AnswerPart<'a> {
    model_name: &'a str,
    model_version: &'a str,
    id: &'a str,
    outputs: Vec<OutputTensor<'a>>,
}

#[derive(Serialize)]
struct OutputTensor<'a> {
    name: &'a str,
    datatype: &'static str,
    shape: [usize; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<OutputParameters>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a [f32]>,
}

#[derive(Serialize)]
struct OutputParameters {
    binary_data_size: usize,
}

impl Answer<'_> {
    /// The body, and the length of its JSON part when something follows it.
    ///
    /// # Errors
    /// Never in practice: the writer is memory.
    pub fn write(&self) -> Result<(Bytes, Option<usize>), serde_json::Error> {
        let tensor = |&(name, values, binary): &(_, _, bool)| {
            let values: &[f32] = values;
            OutputTensor {
                name,
                datatype: Datatype::Fp32.name(),
                shape: [values.len()],
                parameters: binary.then_some(OutputParameters { binary_data_size: size_of_val(values) }),
                data: (!binary).then_some(values),
            }
        };
        let part = AnswerPart {
            model_name: self.model,
            model_version: self.version,
            id: self.id,
            outputs: self.outputs.iter().map(tensor).collect(),
        };
        let mut body = serde_json::to_vec(&part)?;
        let split = body.len();
        for (_, values, _) in self.outputs.iter().filter(|(_, _, binary)| *binary) {
            body.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        let has_binary = self.outputs.iter().any(|(_, _, binary)| *binary);
        Ok((body.into(), has_binary.then_some(split)))
    }
}

#[cfg(test)]
mod tests;
