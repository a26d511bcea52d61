//! Models for other programs: ONNX, and one safetensors file.
//!
//! Both take what the dense network sees: dense inputs after their transforms, and row numbers. The transforms
//! from raw values stay with Campanile.

mod graph;
mod networks;
mod onnx;
mod protobuf;
mod safetensors_file;
mod towers;

pub use onnx::{ExportError, write_onnx};
pub use safetensors_file::write_safetensors;
