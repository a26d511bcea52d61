//! Codecs: what it costs to write a float into a message in another format, and to read it out of one.
//!
//! Vector by vector, as they lie side by side in a sample's row, and from memory to memory, as messages go.

use std::hint::black_box;

use campanile_kernels::{Isa, codec::Codec};
use campanile_spec::{config::WireFormat, topology::CodecRates};

use super::clock::seconds_each;

/// The formats that cost something; floats that travel as they are are part of an exchange.
pub const FORMATS: [WireFormat; 3] = [WireFormat::F16, WireFormat::Bf16, WireFormat::Int8];

/// Floats of a vector.
const VECTOR: usize = 64;

/// The rates of a format, for messages of so many bytes before they are encoded.
pub fn rates(format: WireFormat, bytes: usize) -> CodecRates {
    let (isa, codec) = (Isa::detect(), codec(format));
    let vectors = (bytes / size_of::<f32>() / VECTOR).max(1);
    let mut floats: Vec<f32> = (0..vectors * VECTOR).map(|n| (n * 37 % 101) as f32 / 25.0 - 2.0).collect();
    let each = codec.bytes(VECTOR);
    let mut message = vec![0u8; vectors * each];
    let encode = seconds_each(|| {
        for (vector, bytes) in black_box(&floats).chunks_exact(VECTOR).zip(message.chunks_exact_mut(each)) {
            codec.encode(isa, vector, bytes);
        }
    });
    let decode = seconds_each(|| {
        for (bytes, vector) in black_box(&message).chunks_exact(each).zip(floats.chunks_exact_mut(VECTOR)) {
            codec.decode(isa, bytes, vector);
        }
    });
    let ns = |seconds: f64| seconds / (vectors * VECTOR) as f64 * 1e9;
    CodecRates { format, encode_ns: ns(encode), decode_ns: ns(decode) }
}

fn codec(format: WireFormat) -> Codec {
    match format {
        WireFormat::F32 => Codec::F32,
        WireFormat::F16 => Codec::F16,
        WireFormat::Bf16 => Codec::Bf16,
        WireFormat::Int8 => Codec::Int8,
    }
}
