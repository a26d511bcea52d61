//! Pairs of bfloat16 in the lanes of a `zmm` register: AVX512_BF16, on top of F, BW, DQ and VL.
//!
//! The instruction adds the product of the upper halves, rounds, adds the product of the lower halves, and rounds again: two
//! fused multiply-adds, except that it takes denormals for zero, going in and coming out. Rounding to bfloat16 is to
//! nearest, ties to even, and takes denormals for zero too.

use super::{Avx2, Avx512};
use std::arch::x86_64::*;

// SAFETY of every body below: the caller's function has the features above; no memory but the static is touched.
impl Avx512 {
    /// The lanes of `self` as bfloat16 in the upper halves, those of `second` in the lower ones.
    #[inline(always)]
    pub(crate) unsafe fn paired_with(self, second: Avx512) -> Avx512 {
        // SAFETY: see the impl. Half `i` of the conversion is lane `i` of `second`, half `16 + i` lane `i` of `self`.
        unsafe {
            let halves = as_integers(_mm512_cvtne2ps_pbh(self.0, second.0));
            let interleaved = _mm512_loadu_si512(INTERLEAVED.as_ptr().cast());
            Avx512(_mm512_castsi512_ps(_mm512_permutexvar_epi16(interleaved, halves)))
        }
    }

    /// Lanes `2i` and `2i + 1` of `self`, then of `second`, as bfloat16 in the upper and the lower half of one lane.
    #[inline(always)]
    pub(crate) unsafe fn neighbours_paired(self, second: Avx512) -> Avx512 {
        // SAFETY: see the impl.
        unsafe {
            let halves = as_integers(_mm512_cvtne2ps_pbh(second.0, self.0));
            Avx512(_mm512_castsi512_ps(_mm512_rol_epi32::<16>(halves)))
        }
    }

    /// Lanes `2i` and `2i + 1` of `self` as bfloat16 in the upper and the lower half of one lane.
    #[inline(always)]
    pub(crate) unsafe fn eight_pairs(self) -> Avx2 {
        // SAFETY: see the impl; both types are the same 32 bytes.
        unsafe {
            let halves: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(self.0));
            Avx2(_mm256_castsi256_ps(_mm256_rol_epi32::<16>(halves)))
        }
    }

    /// `self` and both products of the pairs, the upper halves' first.
    #[inline(always)]
    pub(crate) unsafe fn add_products_of_pairs(self, a: Avx512, b: Avx512) -> Avx512 {
        // SAFETY: see the impl; both types are the same 64 bytes.
        unsafe {
            let halves = |words: Avx512| std::mem::transmute::<__m512, __m512bh>(words.0);
            Avx512(_mm512_dpbf16_ps(self.0, halves(a), halves(b)))
        }
    }
}

/// Half `i` of the lower sixteen, then half `i` of the upper sixteen.
static INTERLEAVED: [u16; 32] = {
    let mut places = [0; 32];
    let mut i = 0;
    while i < 16 {
        places[2 * i] = i as u16;
        places[2 * i + 1] = 16 + i as u16;
        i += 1;
    }
    places
};

/// # Safety
///
/// The processor has AVX-512.
#[inline(always)]
unsafe fn as_integers(halves: __m512bh) -> __m512i {
    // SAFETY: both types are the same 64 bytes.
    unsafe { std::mem::transmute(halves) }
}
