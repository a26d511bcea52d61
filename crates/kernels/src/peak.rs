//! The machine's own limit: a loop of multiply-adds that waits for nothing.
//!
//! Speed is only a number beside this one, measured in the same run on the same thread: neighbours and clocks move
//! both alike.
#![allow(unsafe_code)]

use crate::gemm::word::{Pair, Whole, Word};
use crate::isa::{Isa, Level};
use crate::simd::Vector;

/// Runs `rounds` of independent multiply-adds in registers and returns how many floating-point operations that
/// were: the best a product with `f32` operands can hope for.
pub fn multiply_adds(isa: Isa, rounds: usize) -> f64 {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this level proves that the processor has it.
        Level::Avx2 => unsafe { avx2(rounds) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx512 | Level::Avx512Bf16 | Level::Amx => unsafe { avx512(rounds) },
        _ => scalar(rounds),
    }
}

/// The same for bfloat16 operands: on AMX a product of tiles that never leave the nearest cache, with AVX512_BF16 products of
/// pairs, elsewhere the multiply-adds in `f32` that do the work there.
pub fn bf16_multiply_adds(isa: Isa, rounds: usize) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if let Some(operations) = crate::gemm::near_products(isa, rounds) {
        return operations;
    }
    #[cfg(target_arch = "x86_64")]
    if isa.level() == Level::Avx512Bf16 {
        // SAFETY: an `Isa` of this level proves that the processor has it.
        return unsafe { pairs(rounds) };
    }
    multiply_adds(isa, rounds)
}

/// Twelve chains hide the latency of two pipes of four to six cycles, and leave AVX2 registers for the factors.
const CHAINS: usize = 12;

fn scalar(rounds: usize) -> f64 {
    let mut sums = [1.0f32; CHAINS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = std::hint::black_box(*sum).mul_add(0.5, 0.25);
        }
    }
    std::hint::black_box(sums);
    (2 * CHAINS * rounds) as f64
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2(rounds: usize) -> f64 {
    // SAFETY: this function has the features.
    unsafe { chains::<crate::simd::Avx2, Whole>(rounds) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq")]
fn avx512(rounds: usize) -> f64 {
    // SAFETY: this function has the features.
    unsafe { chains::<crate::simd::Avx512, Whole>(rounds) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512bf16")]
fn pairs(rounds: usize) -> f64 {
    // SAFETY: this function has the features.
    unsafe { chains::<crate::simd::Avx512, Pair>(rounds) }
}

/// # Safety
///
/// The processor has the instructions of `V`.
#[inline(always)]
unsafe fn chains<V: Vector, W: Word<V>>(rounds: usize) -> f64 {
    // SAFETY: the caller's contract.
    unsafe {
        let (a, b) = (V::splat(std::hint::black_box(0.5)), V::splat(std::hint::black_box(0.25)));
        let mut sums = [V::zero(); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = W::add_product(*sum, a, b);
            }
        }
        let mut out = [0.0f32; 16];
        for sum in sums {
            sum.store(out.as_mut_ptr());
            std::hint::black_box(&out);
        }
    }
    (2 * CHAINS * V::LANES * W::TERMS * rounds) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_counted_by_lanes() {
        for isa in Isa::all() {
            let lanes = match isa.level() {
                Level::Scalar => 1.0,
                Level::Avx2 => 8.0,
                Level::Avx512 | Level::Avx512Bf16 | Level::Amx => 16.0,
            };
            let operations = (200 * CHAINS) as f64 * lanes;
            assert_eq!(multiply_adds(isa, 100), operations);
            assert!(bf16_multiply_adds(isa, 100) >= operations);
        }
    }
}
