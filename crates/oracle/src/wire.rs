//! What a vector is after it has travelled, element by element.

use campanile_spec::config::WireFormat;

use crate::{elementary::two_to, matrix::Matrix};

/// Rounds every vector, which lie side by side at `offsets`, as its format on the wire does.
pub(crate) fn travel(format: WireFormat, offsets: &[usize], vectors: &mut Matrix) {
    for sample in 0..vectors.samples {
        for feature in offsets.windows(2) {
            one(format, &mut vectors.row_mut(sample)[feature[0]..feature[1]]);
        }
    }
}

fn one(format: WireFormat, vector: &mut [f32]) {
    match format {
        WireFormat::F32 => {}
        WireFormat::F16 => vector
            .iter_mut()
            .filter(|x| x.is_finite())
            .for_each(|x| *x = round(x.clamp(-65504.0, 65504.0), 10, -14)),
        WireFormat::Bf16 => vector.iter_mut().for_each(|x| *x = round(*x, 7, -126)),
        WireFormat::Int8 => vector.chunks_mut(32).for_each(quantise),
    }
}

/// The nearest number with `mantissa` bits behind the first, ties to even; below `2^exponent_min` the steps no
/// longer shrink. Every step is exact in `f64`.
fn round(x: f32, mantissa: i32, exponent_min: i32) -> f32 {
    let exponent = ((x.to_bits() >> 23 & 0xff) as i32 - 127).max(exponent_min);
    let step = two_to(i64::from(exponent - mantissa));
    ((f64::from(x) / step).round_ties_even() * step) as f32
}

fn quantise(block: &mut [f32]) {
    let least = block.iter().copied().fold(f32::INFINITY, f32::min);
    let greatest = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let scale = (greatest - least) / 255.0;
    for x in block {
        let code = if scale > 0.0 { ((*x - least) / scale).round_ties_even() } else { 0.0 };
        *x = least + code * scale;
    }
}
