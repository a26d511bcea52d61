//! What one 32-bit word of a packed operand holds, and how two words multiply.
//!
//! The tile loops move words and never look inside: an operand of `k` terms is `k / TERMS` words deep, and everything
//! else (tiles, panels, endings) is the same for all kinds.
//!
//! ```text
//!   Whole     one f32
//!   Rounded   one bfloat16, as f32
//!   Pair      two neighbouring terms as bfloat16: the first in the upper half, because the instruction adds that product
//!             first and so keeps `k` rising; where there is no second term it is zero
//! ```
#![allow(unsafe_code)]

use crate::simd::Vector;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};

/// A kind of word, in registers of `V`.
///
/// # Safety
///
/// As for [`Vector`].
pub(crate) trait Word<V: Vector> {
    /// Terms of a sum that a word holds.
    const TERMS: usize;

    /// Words of terms that lie in two registers, lane by lane. `second` is not looked at where a word holds one term.
    unsafe fn across(first: V, second: V) -> V;

    /// Words of terms that are neighbours in a register; `second` follows `first`.
    unsafe fn along(first: V, second: V) -> V;

    /// Eight words of the first `terms` floats from here on.
    #[cfg(target_arch = "x86_64")]
    unsafe fn eight(from: *const f32, terms: usize) -> Avx2;

    /// `sum` and the products of all terms of two words, one after the other.
    unsafe fn add_product(sum: V, a: V, b: V) -> V;
}

/// The bits of a word of so many terms that are not signs: none of them is set where all terms are zero.
pub(crate) const fn magnitude(terms: usize) -> u32 {
    if terms == 2 { 0x7fff_7fff } else { 0x7fff_ffff }
}

/// Whether all terms of all words are finite.
pub(crate) fn are_finite(words: &[u32], terms: usize) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    let is_finite = |word: u32| word & EXPONENT != EXPONENT;
    // Without leaving early: so the compiler uses vectors.
    let mut finite = true;
    match terms {
        2 => words.iter().for_each(|word| finite &= is_finite(*word) & is_finite(*word << 16)),
        _ => words.iter().for_each(|word| finite &= is_finite(*word)),
    }
    finite
}

/// See the module.
#[derive(Debug)]
pub(crate) enum Whole {}

/// See the module.
#[derive(Debug)]
pub(crate) enum Rounded {}

/// See the module.
#[derive(Debug)]
pub(crate) enum Pair {}

// SAFETY of every body below: the trait's contract.
impl<V: Vector> Word<V> for Whole {
    const TERMS: usize = 1;

    #[inline(always)]
    unsafe fn across(first: V, _: V) -> V {
        first
    }

    #[inline(always)]
    unsafe fn along(first: V, _: V) -> V {
        first
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn eight(from: *const f32, terms: usize) -> Avx2 {
        // SAFETY: see the impl.
        unsafe { if terms == Avx2::LANES { Avx2::load(from) } else { Avx2::load_first(from, terms) } }
    }

    #[inline(always)]
    unsafe fn add_product(sum: V, a: V, b: V) -> V {
        // SAFETY: see the impl.
        unsafe { sum.add_product(a, b) }
    }
}

impl<V: Vector> Word<V> for Rounded {
    const TERMS: usize = 1;

    #[inline(always)]
    unsafe fn across(first: V, _: V) -> V {
        // SAFETY: see the impl.
        unsafe { first.round_to_bf16() }
    }

    #[inline(always)]
    unsafe fn along(first: V, _: V) -> V {
        // SAFETY: see the impl.
        unsafe { first.round_to_bf16() }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn eight(from: *const f32, terms: usize) -> Avx2 {
        // SAFETY: see the impl.
        unsafe { <Whole as Word<V>>::eight(from, terms).round_to_bf16() }
    }

    #[inline(always)]
    unsafe fn add_product(sum: V, a: V, b: V) -> V {
        // SAFETY: see the impl.
        unsafe { sum.add_product(a, b) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Word<Avx512> for Pair {
    const TERMS: usize = 2;

    #[inline(always)]
    unsafe fn across(first: Avx512, second: Avx512) -> Avx512 {
        // SAFETY: see the impl.
        unsafe { first.paired_with(second) }
    }

    #[inline(always)]
    unsafe fn along(first: Avx512, second: Avx512) -> Avx512 {
        // SAFETY: see the impl.
        unsafe { first.neighbours_paired(second) }
    }

    #[inline(always)]
    unsafe fn eight(from: *const f32, terms: usize) -> Avx2 {
        // SAFETY: see the impl.
        unsafe {
            let floats = if terms == 16 { Avx512::load(from) } else { Avx512::load_first(from, terms) };
            floats.eight_pairs()
        }
    }

    #[inline(always)]
    unsafe fn add_product(sum: Avx512, a: Avx512, b: Avx512) -> Avx512 {
        // SAFETY: see the impl.
        unsafe { sum.add_products_of_pairs(a, b) }
    }
}
