//! Vectors on the wire: full, half or a quarter of their bytes.
//!
//! A vector is encoded by itself, and inside it by blocks of [`BLOCK`] columns, so that what arrives does not
//! depend on how vectors were gathered into messages or cut by columns. The int8 form of a block is
//!
//! ```text
//!   scale f32 | least f32 | one byte per element, filled up to a multiple of four
//!   code = round((x - least) / scale)     x' = least + code * scale     scale = (greatest - least) / 255
//! ```
//!
//! with ties to even. Half precision rounds to nearest; a finite number that f16 cannot hold becomes its
//! largest; infinities and NaN stay what they are. An int8 block with one of those arrives as no numbers: trouble must
//! not vanish on the way.
//! Everything is IEEE arithmetic, lane by lane: all levels give the same bits.

#![allow(unsafe_code)]

use crate::{
    half::{slice_from_bf16, slice_from_f16, slice_to_bf16, slice_to_f16},
    isa::Isa,
    lanes::{self, Kernel, Lanes},
};

/// Columns that share a scale.
pub const BLOCK: usize = 32;

const F16_MAX: f32 = 65504.0;

/// How a vector travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// As it is.
    F32,
    /// IEEE halves.
    F16,
    /// bfloat16.
    Bf16,
    /// One byte per element, a scale and an offset per block.
    Int8,
}

impl Codec {
    /// Bytes of a vector of `dim` elements.
    pub fn bytes(self, dim: usize) -> usize {
        match self {
            Codec::F32 => 4 * dim,
            Codec::F16 | Codec::Bf16 => 2 * dim,
            Codec::Int8 => {
                let rest = dim % BLOCK;
                let rest = if rest == 0 { 0 } else { 8 + rest.next_multiple_of(4) };
                dim / BLOCK * (8 + BLOCK) + rest
            }
        }
    }

    /// Encodes a vector.
    ///
    /// # Panics
    /// If `out` does not have [`Codec::bytes`].
    pub fn encode(self, isa: Isa, vector: &[f32], out: &mut [u8]) {
        assert_eq!(out.len(), self.bytes(vector.len()), "{self:?} of {} elements", vector.len());
        match self {
            Codec::F32 => out.copy_from_slice(bytemuck::cast_slice(vector)),
            Codec::F16 => halves(vector, out, |part, halves| {
                let mut held = [0.0; BLOCK];
                held[..part.len()].copy_from_slice(part);
                // Only what is finite is held to the largest half: an infinity stays one, as a NaN does.
                held.iter_mut()
                    .for_each(|x| *x = if x.is_finite() { x.clamp(-F16_MAX, F16_MAX) } else { *x });
                slice_to_f16(isa, &held[..part.len()], halves);
            }),
            Codec::Bf16 => halves(vector, out, |part, halves| slice_to_bf16(isa, part, halves)),
            Codec::Int8 => lanes::dispatch(isa, Quantise { vector, out }),
        }
    }

    /// Decodes a vector of `out.len()` elements.
    ///
    /// # Panics
    /// If `bytes` does not have [`Codec::bytes`].
    pub fn decode(self, isa: Isa, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len(), self.bytes(out.len()), "{self:?} of {} elements", out.len());
        match self {
            Codec::F32 => bytemuck::cast_slice_mut(out).copy_from_slice(bytes),
            Codec::F16 | Codec::Bf16 => {
                let widen = if self == Codec::F16 { slice_from_f16 } else { slice_from_bf16 };
                for (part, bytes) in out.chunks_mut(BLOCK).zip(bytes.chunks(2 * BLOCK)) {
                    let mut halves = [0u16; BLOCK];
                    bytemuck::cast_slice_mut(&mut halves[..part.len()]).copy_from_slice(bytes);
                    widen(isa, &halves[..part.len()], part);
                }
            }
            Codec::Int8 => lanes::dispatch(isa, Restore { bytes, out }),
        }
    }

    /// What a vector is after the journey.
    pub fn round(self, isa: Isa, vector: &mut [f32]) {
        if self == Codec::F32 {
            return;
        }
        let mut bytes = [0; 4 * BLOCK];
        for block in vector.chunks_mut(BLOCK) {
            let bytes = &mut bytes[..self.bytes(block.len())];
            self.encode(isa, block, bytes);
            self.decode(isa, bytes, block);
        }
    }
}

/// Runs `convert` on blocks of a vector and the 16-bit words of their bytes, which may lie at any address.
fn halves(vector: &[f32], out: &mut [u8], convert: impl Fn(&[f32], &mut [u16])) {
    for (part, bytes) in vector.chunks(BLOCK).zip(out.chunks_mut(2 * BLOCK)) {
        let mut words = [0; BLOCK];
        convert(part, &mut words[..part.len()]);
        bytes.copy_from_slice(bytemuck::cast_slice(&words[..part.len()]));
    }
}

struct Quantise<'a> {
    vector: &'a [f32],
    out: &'a mut [u8],
}

impl Kernel for Quantise<'_> {
    type Output = ();
    // Plain loops, which the compiler turns into vectors of the level that it is compiled for.
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        for (values, out) in self.vector.chunks(BLOCK).zip(self.out.chunks_mut(8 + BLOCK)) {
            let mut block = [values[0]; BLOCK];
            block[..values.len()].copy_from_slice(values);
            let (mut least, mut greatest, mut finite) = (block, block, true);
            for half in [16, 8, 4, 2, 1] {
                for lane in 0..half {
                    let (a, b) = (least[lane], least[lane + half]);
                    least[lane] = if b < a { b } else { a };
                    let (a, b) = (greatest[lane], greatest[lane + half]);
                    greatest[lane] = if b > a { b } else { a };
                }
            }
            for x in block {
                finite &= x.is_finite();
            }
            let least = least[0];
            let scale = if finite { (greatest[0] - least) / 255.0 } else { f32::NAN };
            let divisor = if scale > 0.0 { scale } else { 1.0 };
            let mut codes = [0u8; BLOCK];
            for (code, x) in codes.iter_mut().zip(block) {
                *code = ((x - least) / divisor).round_ties_even() as i32 as u8;
            }
            out[..4].copy_from_slice(&scale.to_le_bytes());
            out[4..8].copy_from_slice(&least.to_le_bytes());
            codes[values.len()..].fill(0);
            let length = out.len() - 8;
            out[8..].copy_from_slice(&codes[..length]);
        }
    }
}

struct Restore<'a> {
    bytes: &'a [u8],
    out: &'a mut [f32],
}

impl Kernel for Restore<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        for (bytes, out) in self.bytes.chunks(8 + BLOCK).zip(self.out.chunks_mut(BLOCK)) {
            let word =
                |at: usize| f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            let (scale, least) = (word(0), word(4));
            for (x, code) in out.iter_mut().zip(&bytes[8..]) {
                *x = least + f32::from(*code) * scale;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::half::{bf16_nearest, f16_nearest, f32_from_bf16, f32_from_f16};

    /// The definition, element by element.
    fn naive(codec: Codec, vector: &[f32]) -> Vec<f32> {
        match codec {
            Codec::F32 => vector.to_vec(),
            Codec::F16 => {
                vector.iter().map(|x| f32_from_f16(f16_nearest(x.clamp(-F16_MAX, F16_MAX)))).collect()
            }
            Codec::Bf16 => vector.iter().map(|x| f32_from_bf16(bf16_nearest(*x))).collect(),
            Codec::Int8 => vector
                .chunks(BLOCK)
                .flat_map(|block| {
                    let least = block.iter().copied().fold(f32::INFINITY, f32::min);
                    let greatest = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let scale = (greatest - least) / 255.0;
                    let code =
                        move |x: f32| if scale > 0.0 { ((x - least) / scale).round_ties_even() } else { 0.0 };
                    block.iter().map(move |x| least + code(*x) * scale).collect::<Vec<_>>()
                })
                .collect(),
        }
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|x| x.to_bits()).collect()
    }

    proptest! {
        #[test]
        fn what_arrives_is_the_definition_at_every_level(
            vector in prop::collection::vec(prop_oneof![-3.0f32..3.0, -1e-6f32..1e-6, -1e5f32..1e5], 1..150),
            start in 0usize..4,
        ) {
            for codec in [Codec::F32, Codec::F16, Codec::Bf16, Codec::Int8] {
                let want = naive(codec, &vector);
                for isa in Isa::all() {
                    let mut bytes = vec![0; start + codec.bytes(vector.len())];
                    codec.encode(isa, &vector, &mut bytes[start..]);
                    let mut found = vec![0.0; vector.len()];
                    codec.decode(isa, &bytes[start..], &mut found);
                    prop_assert_eq!(bits(&found), bits(&want), "{:?} {:?}", codec, isa);
                    let mut rounded = vector.clone();
                    codec.round(isa, &mut rounded);
                    prop_assert_eq!(bits(&rounded), bits(&want), "{:?} {:?} in place", codec, isa);
                }
            }
        }
    }

    #[test]
    fn trouble_arrives_as_trouble() {
        for codec in [Codec::F16, Codec::Bf16, Codec::Int8] {
            let mut vector = vec![1.0; 40];
            vector[3] = f32::NAN;
            codec.round(Isa::detect(), &mut vector);
            assert!(vector[3].is_nan(), "{codec:?}");
        }
        for isa in Isa::all() {
            let mut vector = [f32::INFINITY, f32::NEG_INFINITY, 1e6, -1e6];
            Codec::F16.round(isa, &mut vector);
            assert_eq!(vector, [f32::INFINITY, f32::NEG_INFINITY, F16_MAX, -F16_MAX], "{isa:?}");
        }
        let mut vector = vec![1.0, f32::INFINITY];
        Codec::Int8.round(Isa::detect(), &mut vector);
        assert!(vector.iter().all(|x| x.is_nan()));
    }

    #[test]
    fn bytes_fall_as_promised() {
        assert_eq!(
            [Codec::F32, Codec::F16, Codec::Bf16, Codec::Int8].map(|c| c.bytes(64)),
            [256, 128, 128, 80]
        );
        assert_eq!(Codec::Int8.bytes(16), 24);
        assert_eq!(Codec::Int8.bytes(33), 40 + 12);
    }
}
