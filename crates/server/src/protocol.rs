//! The words of the Open Inference Protocol (KServe v2), apart from how they travel.
//!
//! Every tensor that comes in, as JSON, as the binary extension or over gRPC, becomes one form: little-endian
//! bytes, the protocol's own binary layout. So there is one place that checks sizes, one that reads numbers, and
//! binary tensors are never copied.
//!
//! Invariant: the bytes of a [`Tensor`] fit its type and shape. Nothing here allocates more than a small multiple
//! of the bytes that arrived, whatever a client claims.

mod element;
pub mod json;

use bytes::Bytes;
use thiserror::Error;

pub use element::Datatype;

/// The largest things that a client may send. Each has a name, so that a refusal can tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request's body, and of a gRPC message.
    pub body_bytes_max: usize,
    /// Bytes of a request's headers.
    pub header_bytes_max: usize,
    /// Inputs, and outputs asked for, of one request.
    pub tensors_max: usize,
    /// Elements of one tensor.
    pub elements_max: usize,
    /// Samples (candidates) of one request.
    pub samples_max: usize,
    /// Bytes of a request's id.
    pub id_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body_bytes_max: 16 << 20,
            header_bytes_max: 16 << 10,
            tensors_max: 1024,
            elements_max: 4 << 20,
            samples_max: 8192,
            id_bytes_max: 256,
        }
    }
}

/// Bytes of an input's name; columns have no longer ones.
const NAME_BYTES_MAX: usize = 1024;

/// Dimensions of a tensor; the protocol knows no limit, but nobody needs more.
const DIMENSIONS_MAX: usize = 8;

/// Why a request cannot be read. The client can put every one of these right.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// The JSON part is not the protocol's.
    #[error("the request is not valid: {problem}")]
    Json {
        /// What the reader said.
        problem: String,
    },
    /// The header of the binary extension does not fit the body.
    #[error("Inference-Header-Content-Length is `{value}`, but the body has {body} bytes")]
    HeaderLength {
        /// What the header said.
        value: String,
        /// The body's length.
        body: usize,
    },
    /// More than a limit allows.
    #[error("{what}: {found} is more than the limit of {limit}")]
    TooMany {
        /// What there is too much of.
        what: String,
        /// How much came.
        found: usize,
        /// How much may come.
        limit: usize,
    },
    /// A type that the protocol does not have.
    #[error(
        "input `{input}`: there is no datatype `{datatype}`; there are BOOL, UINT8 to UINT64, INT8 to INT64, FP16, \
         BF16, FP32, FP64 and BYTES"
    )]
    Datatype {
        /// The input.
        input: String,
        /// What it said.
        datatype: String,
    },
    /// A shape that is no shape.
    #[error("input `{input}`: {shape:?} is no shape: lengths are at least 0, at most 8 of them")]
    Shape {
        /// The input.
        input: String,
        /// What it said.
        shape: Vec<i64>,
    },
    /// The data does not fit the shape.
    #[error("input `{input}`: a tensor of {elements} {datatype} needs {wanted}, but {found} came")]
    Length {
        /// The input.
        input: String,
        /// Elements by its shape.
        elements: usize,
        /// Its type.
        datatype: &'static str,
        /// What its data must be.
        wanted: String,
        /// What it is.
        found: String,
    },
    /// An element that its type cannot hold.
    #[error("input `{input}`: {problem}")]
    Element {
        /// The input.
        input: String,
        /// Which, and why not.
        problem: String,
    },
    /// Two inputs with one name.
    #[error("input `{input}` stands in the request twice")]
    Twice {
        /// The name.
        input: String,
    },
    /// An input without its data.
    #[error(
        "input `{input}` has no data: send `data`, or `binary_data_size` and the bytes after the JSON part"
    )]
    NoData {
        /// The name.
        input: String,
    },
    /// Something that other servers do and this one does not.
    #[error("the parameter `{parameter}` asks for what is not done here: leave it out")]
    Parameter {
        /// Its name.
        parameter: &'static str,
    },
    /// A parameter of a type that it cannot have.
    #[error("the parameter `{parameter}` must be a whole number that is at least 0")]
    ParameterType {
        /// Its name.
        parameter: &'static str,
    },
    /// Bytes that belong to nobody.
    #[error("{left} bytes are left after the last binary tensor")]
    Left {
        /// How many.
        left: usize,
    },
    /// gRPC's two ways of sending data do not mix.
    #[error("{inputs} inputs come with {raw} entries of raw_input_contents; send one for each, or none")]
    RawCount {
        /// Inputs.
        inputs: usize,
        /// Raw entries.
        raw: usize,
    },
}

/// One input: its elements as little-endian bytes, row after row.
///
/// An element of `BYTES` is its length in four bytes, then itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    name: String,
    datatype: Datatype,
    shape: Vec<usize>,
    data: Bytes,
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InferRequest {
    /// The client's own name for the request; given back with the answer.
    pub id: Option<String>,
    /// The tensors.
    pub inputs: Vec<Tensor>,
    /// The outputs wanted; empty means all.
    pub outputs: Vec<WantedOutput>,
    /// Whether outputs that are not named travel as bytes.
    pub binary_by_default: bool,
    /// How long the client waits, in microseconds; 0 means that it did not say.
    pub timeout_us: u64,
}

/// An output that a client named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedOutput {
    /// Its name.
    pub name: String,
    /// Whether it travels as bytes.
    pub binary: bool,
}

impl Tensor {
    /// Checks and takes the parts.
    ///
    /// # Errors
    /// When the bytes do not fit the type and shape, or something is beyond a limit.
    pub fn new(
        name: String,
        datatype: Datatype,
        shape: &[i64],
        data: Bytes,
        limits: &Limits,
    ) -> Result<Tensor, ProtocolError> {
        at_most("bytes of an input's name", name.len(), NAME_BYTES_MAX)?;
        let (shape, elements) = checked_shape(&name, shape, limits)?;
        let found = data.len();
        let wrong_length = |wanted: String, found: String| ProtocolError::Length {
            input: name.clone(),
            elements,
            datatype: datatype.name(),
            wanted,
            found,
        };
        match datatype.element_bytes() {
            Some(bytes) if found == elements * bytes => {}
            Some(bytes) => {
                return Err(wrong_length(format!("{} bytes", elements * bytes), format!("{found} bytes")));
            }
            None => {
                let strings = element::count_strings(&data).ok_or_else(|| ProtocolError::Element {
                    input: name.clone(),
                    problem: "a string's length goes beyond the tensor's end".to_owned(),
                })?;
                if strings != elements {
                    return Err(wrong_length(format!("{elements} strings"), format!("{strings} strings")));
                }
            }
        }
        Ok(Tensor { name, datatype, shape, data })
    }

    /// The same in memory of its own: what it was cut from, perhaps a much longer body, is not kept with it.
    pub fn detached(self) -> Tensor {
        Tensor { data: Bytes::copy_from_slice(&self.data), ..self }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of its elements.
    pub fn datatype(&self) -> Datatype {
        self.datatype
    }

    /// Its shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// How many elements it has.
    pub fn element_count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Its elements as bytes.
    pub fn data(&self) -> &Bytes {
        &self.data
    }
}

impl InferRequest {
    /// Checks what concerns the request as a whole.
    ///
    /// # Errors
    /// When an input stands twice, or there is too much of something.
    pub fn check(self, limits: &Limits) -> Result<InferRequest, ProtocolError> {
        let id_bytes = self.id.as_ref().map_or(0, String::len);
        at_most("bytes of the request's id", id_bytes, limits.id_bytes_max)?;
        let mut names: Vec<&str> = self.inputs.iter().map(Tensor::name).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(ProtocolError::Twice { input: pair[0].to_owned() });
        }
        Ok(self)
    }

    /// Whether the answer is to hold this output, and whether as bytes; `None` when it is not wanted.
    pub fn wants(&self, output: &str) -> Option<bool> {
        if self.outputs.is_empty() {
            return Some(self.binary_by_default);
        }
        self.outputs.iter().find(|wanted| wanted.name == output).map(|wanted| wanted.binary)
    }
}

/// Refuses what is beyond a limit.
///
/// # Errors
/// When `found` is more than `limit`.
pub fn at_most(what: &str, found: usize, limit: usize) -> Result<(), ProtocolError> {
    if found > limit {
        return Err(ProtocolError::TooMany { what: what.to_owned(), found, limit });
    }
    Ok(())
}

/// The shape in our numbers, and how many elements it has.
fn checked_shape(input: &str, shape: &[i64], limits: &Limits) -> Result<(Vec<usize>, usize), ProtocolError> {
    let wrong = || ProtocolError::Shape { input: input.to_owned(), shape: shape.to_vec() };
    if shape.len() > DIMENSIONS_MAX {
        return Err(wrong());
    }
    let lengths: Vec<usize> =
        shape.iter().map(|&length| usize::try_from(length).map_err(|_| wrong())).collect::<Result<_, _>>()?;
    // A length of zero must not hide a length beyond the limit.
    let elements = lengths.iter().try_fold(1usize, |product, &length| {
        let at_least_one = product.checked_mul(length.max(1))?;
        (at_least_one <= limits.elements_max).then_some(at_least_one)
    });
    let Some(_) = elements else {
        let found = lengths.iter().fold(1usize, |product, &length| product.saturating_mul(length.max(1)));
        return Err(ProtocolError::TooMany {
            what: format!("input `{input}`: elements"),
            found,
            limit: limits.elements_max,
        });
    };
    let elements = lengths.iter().product();
    Ok((lengths, elements))
}
