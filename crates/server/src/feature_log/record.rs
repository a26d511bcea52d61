//! One scored request as bytes.
//!
//! ```text
//!   u8   kind, 1            u16+bytes request id       u32 task_count      u16 inputs, each:
//!   u64  time, us           u16+bytes model            u32 n, then n f32     u16+bytes name, u8 datatype,
//!                           u64 version                  [sample][task]      u8 dimensions, each u64,
//!                                                                            u32+bytes elements
//! ```
//!
//! Everything is little-endian. Inputs are the tensors as the client sent them, so a reader has the raw values and
//! can transform them anew.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use thiserror::Error;

use super::RawColumns;
use crate::protocol::{Datatype, Limits, Tensor};

/// The first byte of every record of this form.
const KIND: u8 = 1;

/// A scored request.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// When it was scored, in microseconds since 1970.
    pub time_us: u64,
    /// The request's id.
    pub id: String,
    /// The model.
    pub model: String,
    /// The version that scored it.
    pub version: u64,
    /// Tasks of the model.
    pub task_count: u32,
    /// `[sample][task]`.
    pub probabilities: Vec<f32>,
    /// What the client sent.
    pub inputs: Vec<Tensor>,
    /// The model's columns; known while it serves, and not among the bytes.
    pub columns: Arc<RawColumns>,
}

/// Why bytes are no record.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RecordError {
    /// It ends too early.
    #[error("the record is cut short")]
    Short,
    /// A later program wrote it.
    #[error("the record is of kind {kind}, and this program knows {KIND}")]
    Kind {
        /// Its first byte.
        kind: u8,
    },
    /// A part of it makes no sense.
    #[error("the record is damaged: {problem}")]
    Damaged {
        /// Which.
        problem: String,
    },
}

impl Record {
    /// About how many bytes it takes, in memory and on disk.
    pub fn bytes(&self) -> u64 {
        let inputs: usize =
            self.inputs.iter().map(|tensor| tensor.data().len() + tensor.name().len() + 128).sum();
        (64 + self.id.len() + self.model.len() + 4 * self.probabilities.len() + inputs) as u64
    }

    /// Writes it behind what is there.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(KIND);
        out.put_u64_le(self.time_us);
        put_text(out, &self.id);
        put_text(out, &self.model);
        out.put_u64_le(self.version);
        out.put_u32_le(self.task_count);
        out.put_u32_le(self.probabilities.len() as u32);
        self.probabilities.iter().for_each(|probability| out.put_f32_le(*probability));
        out.put_u16_le(self.inputs.len() as u16);
        for tensor in &self.inputs {
            put_text(out, tensor.name());
            out.put_u8(tensor.datatype() as u8);
            out.put_u8(tensor.shape().len() as u8);
            tensor.shape().iter().for_each(|length| out.put_u64_le(*length as u64));
            out.put_u32_le(tensor.data().len() as u32);
            out.put_slice(tensor.data());
        }
    }

    /// Reads one back.
    ///
    /// # Errors
    /// When the bytes are no record.
    pub fn decode(mut bytes: Bytes) -> Result<Record, RecordError> {
        let bytes = &mut bytes;
        let kind = need(bytes, 1)?.get_u8();
        if kind != KIND {
            return Err(RecordError::Kind { kind });
        }
        let time_us = need(bytes, 8)?.get_u64_le();
        let (id, model) = (text(bytes)?, text(bytes)?);
        let version = need(bytes, 8)?.get_u64_le();
        let task_count = need(bytes, 4)?.get_u32_le();
        let count = need(bytes, 4)?.get_u32_le() as usize;
        let mut floats = need(bytes, count.saturating_mul(4))?;
        let probabilities = (0..count).map(|_| floats.get_f32_le()).collect();
        let input_count = need(bytes, 2)?.get_u16_le();
        let inputs = (0..input_count).map(|_| input(bytes)).collect::<Result<_, _>>()?;
        if !bytes.is_empty() {
            return Err(RecordError::Damaged { problem: format!("{} bytes are left", bytes.len()) });
        }
        let columns = Arc::default();
        Ok(Record { time_us, id, model, version, task_count, probabilities, inputs, columns })
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    let length = text.len().min(usize::from(u16::MAX));
    out.put_u16_le(length as u16);
    out.put_slice(&text.as_bytes()[..length]);
}

fn need(bytes: &mut Bytes, count: usize) -> Result<Bytes, RecordError> {
    if bytes.len() < count { Err(RecordError::Short) } else { Ok(bytes.split_to(count)) }
}

fn text(bytes: &mut Bytes) -> Result<String, RecordError> {
    let length = usize::from(need(bytes, 2)?.get_u16_le());
    let text = need(bytes, length)?.to_vec();
    String::from_utf8(text).map_err(|error| RecordError::Damaged { problem: error.to_string() })
}

fn input(bytes: &mut Bytes) -> Result<Tensor, RecordError> {
    let damaged = |problem: String| RecordError::Damaged { problem };
    let name = text(bytes)?;
    let number = need(bytes, 1)?.get_u8();
    let datatype = Datatype::numbered(number).ok_or_else(|| damaged(format!("no datatype {number}")))?;
    let dimensions = usize::from(need(bytes, 1)?.get_u8());
    let mut lengths = need(bytes, 8 * dimensions)?;
    let shape: Vec<i64> = (0..dimensions).map(|_| lengths.get_i64_le()).collect();
    let length = need(bytes, 4)?.get_u32_le() as usize;
    let data = need(bytes, length)?;
    // The writer's limits are not known here; the record's own length is the bound.
    let limits = Limits { elements_max: u32::MAX as usize, ..Limits::default() };
    Tensor::new(name, datatype, &shape, data, &limits).map_err(|error| damaged(error.to_string()))
}
