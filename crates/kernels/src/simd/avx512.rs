//! Sixteen lanes: AVX-512 F and DQ.

use super::Vector;
use std::arch::x86_64::*;

/// One `zmm` register.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(pub(super) __m512);

/// Lanes below `count`.
#[inline(always)]
fn leading(count: usize) -> __mmask16 {
    debug_assert!(count <= 16);
    ((1u32 << count) - 1) as __mmask16
}

// SAFETY of every body below: the trait's contract, that the processor has AVX-512 F and DQ and that the pointers
// are good for the lanes named.
impl Vector for Avx512 {
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: see the impl.
        Avx512(unsafe { _mm512_setzero_ps() })
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: see the impl.
        Avx512(unsafe { _mm512_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: see the impl.
        Avx512(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: see the impl.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        // SAFETY: see the impl; masked lanes are not read.
        Avx512(unsafe { _mm512_maskz_loadu_ps(leading(count), from) })
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        // SAFETY: see the impl; masked lanes are not written.
        unsafe { _mm512_mask_storeu_ps(to, leading(count), self.0) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: see the impl.
        Avx512(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        // SAFETY: see the impl.
        Avx512(unsafe { _mm512_fmadd_ps(a.0, b.0, self.0) })
    }

    #[inline(always)]
    unsafe fn relu(self) -> Self {
        // SAFETY: see the impl. VMAXPS returns its second operand for NaN and for two zeros.
        Avx512(unsafe { _mm512_max_ps(_mm512_setzero_ps(), self.0) })
    }

    #[inline(always)]
    unsafe fn zero_where_not_positive(self, gate: Self) -> Self {
        // SAFETY: see the impl. NLE is true for NaN, so a NaN gate lets the lane through.
        unsafe {
            let open = _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(gate.0, _mm512_setzero_ps());
            Avx512(_mm512_maskz_mov_ps(open, self.0))
        }
    }

    #[inline(always)]
    unsafe fn has_minus_zero(self) -> bool {
        // SAFETY: see the impl.
        unsafe { _mm512_cmpeq_epi32_mask(_mm512_castps_si512(self.0), _mm512_set1_epi32(i32::MIN)) != 0 }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: see the impl.
        Avx512(unsafe { _mm512_or_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn lanes_with(self, mask: u32) -> u32 {
        // SAFETY: see the impl.
        unsafe {
            u32::from(_mm512_test_epi32_mask(_mm512_castps_si512(self.0), _mm512_set1_epi32(mask as i32)))
        }
    }

    #[inline(always)]
    unsafe fn store_present(self, lanes: u32, to: *mut f32) {
        // SAFETY: see the impl. Compressed in a register and stored whole: compressing into memory is slow on some
        // processors.
        unsafe { _mm512_storeu_ps(to, _mm512_maskz_compress_ps(lanes as __mmask16, self.0)) }
    }

    #[inline(always)]
    unsafe fn store_places(lanes: u32, first: u32, to: *mut u32) {
        // SAFETY: see the impl; as `store_present`.
        unsafe {
            let numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            let numbers = _mm512_add_epi32(numbers, _mm512_set1_epi32(first as i32));
            _mm512_storeu_si512(to.cast(), _mm512_maskz_compress_epi32(lanes as __mmask16, numbers));
        }
    }

    #[inline(always)]
    unsafe fn round_to_bf16(self) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let bits = _mm512_castps_si512(self.0);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
            let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
            let chosen = _mm512_mask_blend_epi32(is_nan, rounded, quiet);
            Avx512(_mm512_castsi512_ps(_mm512_and_si512(chosen, _mm512_set1_epi32(0xffff_0000_u32 as i32))))
        }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const f32) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch(at.cast(), _MM_HINT_T0) }
    }

    #[inline(always)]
    unsafe fn prefetch_near(at: *const f32) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch(at.cast(), _MM_HINT_T1) }
    }
}
