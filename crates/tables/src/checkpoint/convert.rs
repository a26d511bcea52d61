//! Rows from one format to another, so that any precision loads any checkpoint.
//!
//! To a narrower format values are rounded to the nearest, ties to even; to a wider one they are exact. Loading
//! is not training: there is no stochastic rounding here, and loading twice gives the same bits.

use std::borrow::Cow;

use campanile_kernels::{Isa, half};
use campanile_spec::RowFormat;

/// The elements of `bytes` in another format.
pub(crate) fn convert(bytes: &[u8], from: RowFormat, to: RowFormat) -> Cow<'_, [u8]> {
    if from == to {
        return Cow::Borrowed(bytes);
    }
    let isa = Isa::detect();
    let values: Vec<f32> = match from {
        RowFormat::F32 => bytemuck::pod_collect_to_vec(bytes),
        RowFormat::F16 | RowFormat::Bf16 => {
            let halves: Vec<u16> = bytemuck::pod_collect_to_vec(bytes);
            let mut values = vec![0.0; halves.len()];
            match from {
                RowFormat::F16 => half::slice_from_f16(isa, &halves, &mut values),
                _ => half::slice_from_bf16(isa, &halves, &mut values),
            }
            values
        }
    };
    let mut halves = vec![0u16; values.len()];
    match to {
        RowFormat::F32 => return Cow::Owned(bytemuck::cast_slice(&values).to_vec()),
        RowFormat::F16 => half::slice_to_f16(isa, &values, &mut halves),
        RowFormat::Bf16 => half::slice_to_bf16(isa, &values, &mut halves),
    }
    Cow::Owned(bytemuck::cast_slice(&halves).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(values: &[f32], to: RowFormat) -> Vec<u16> {
        let bytes = convert(bytemuck::cast_slice(values), RowFormat::F32, to).into_owned();
        bytemuck::pod_collect_to_vec(&bytes)
    }

    #[test]
    fn every_pair_of_formats_converts() {
        let formats = [RowFormat::F32, RowFormat::F16, RowFormat::Bf16];
        let values = [0.0f32, 1.0, -0.5, 2.0, 96.0]; // Exact in all three.
        for from in formats {
            let bytes = convert(bytemuck::cast_slice(&values), RowFormat::F32, from).into_owned();
            for to in formats {
                let converted = convert(&bytes, from, to).into_owned();
                assert_eq!(converted.len(), values.len() * to.element_bytes());
                let back = convert(&converted, to, RowFormat::F32).into_owned();
                assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(&back), values);
            }
        }
    }

    #[test]
    fn narrowing_rounds_to_the_nearest_and_ties_to_even() {
        let tie = 1.0 + 2f32.powi(-8); // Half way between the bfloat16 values 0x3f80 and 0x3f81.
        assert_eq!(bits(&[tie, tie.next_up(), tie.next_down()], RowFormat::Bf16), [0x3f80, 0x3f81, 0x3f80]);
        let odd_tie = 1.0 + 3.0 * 2f32.powi(-8);
        assert_eq!(bits(&[odd_tie], RowFormat::Bf16), [0x3f82]);
        let tie = 1.0 + 2f32.powi(-11);
        assert_eq!(bits(&[tie, tie.next_up(), -tie], RowFormat::F16), [0x3c00, 0x3c01, 0xbc00]);
    }
}
