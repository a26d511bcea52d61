//! Sixteen lanes: AVX-512 F, BW, DQ and VL. The same steps as in `avx2`, with masks instead of blends.

use std::arch::x86_64::*;

use super::{Kernel, Lanes, fold};
use crate::random::{MIX_32, SPREAD_32};

/// Runs a kernel with sixteen lanes.
///
/// # Safety
/// The processor must have AVX-512 F, BW, DQ and VL, and the kernel's arguments must be as it asks.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: handed on to the caller.
    unsafe { kernel.run::<__m512>() }
}

/// Writes the low halves of sixteen words.
#[inline(always)]
unsafe fn store_words(words: __m512i, to: *mut u16) {
    // SAFETY: the caller has AVX-512 F and room for sixteen elements; the store asks for no alignment.
    unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(words)) }
}

/// The bits of sixteen values, apart from their signs.
#[inline(always)]
unsafe fn magnitude(values: __m512) -> __m512i {
    // SAFETY: the caller has AVX-512 F.
    unsafe { _mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(0x7fff_ffff)) }
}

/// The sign of sixteen values, where a 16-bit float has it.
#[inline(always)]
unsafe fn sign_16(values: __m512) -> __m512i {
    // SAFETY: the caller has AVX-512 F.
    unsafe {
        _mm512_and_si512(_mm512_srli_epi32::<16>(_mm512_castps_si512(values)), _mm512_set1_epi32(0x8000))
    }
}

/// [`crate::half::bf16_nearest`], in sixteen words.
#[inline(always)]
unsafe fn bf16_nearest(values: __m512) -> __m512i {
    // SAFETY: the caller has AVX-512 F.
    unsafe {
        let bits = _mm512_castps_si512(values);
        let high = _mm512_srli_epi32::<16>(bits);
        let odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
        let carried = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        let nan = _mm512_cmpgt_epi32_mask(magnitude(values), _mm512_set1_epi32(0x7f80_0000));
        let quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
        _mm512_mask_blend_epi32(nan, _mm512_srli_epi32::<16>(carried), quiet)
    }
}

// SAFETY of every block below: the trait's caller has AVX-512 F, BW, DQ and VL and good pointers; loads and
// stores are the unaligned ones.
impl Lanes for __m512 {
    const COUNT: usize = 16;
    type Bits = __m512i;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: see above.
        unsafe {
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            let bits = _mm512_slli_epi32::<16>(words);
            let values = _mm512_castsi512_ps(bits);
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(values, values);
            _mm512_castsi512_ps(_mm512_mask_or_epi32(bits, nan, bits, _mm512_set1_epi32(0x0040_0000)))
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_ps(to, self) }
    }
    #[inline(always)]
    unsafe fn store_f16_nearest(self, to: *mut u16) {
        // SAFETY: see above.
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self)) }
    }
    #[inline(always)]
    unsafe fn store_bf16_nearest(self, to: *mut u16) {
        // SAFETY: see above.
        unsafe { store_words(bf16_nearest(self), to) }
    }
    #[inline(always)]
    unsafe fn store_f16_stochastic(self, to: *mut u16, random: __m512i) {
        // SAFETY: see above. The steps are those of `half::f16_stochastic`; both cases are computed and the
        // right one is kept.
        unsafe {
            let magnitude = magnitude(self);
            let noisy = _mm512_add_epi32(magnitude, _mm512_and_si512(random, _mm512_set1_epi32(0x1fff)));
            let normal = _mm512_srli_epi32::<13>(_mm512_sub_epi32(noisy, _mm512_set1_epi32(0x3800_0000)));
            let normal = _mm512_min_epi32(normal, _mm512_set1_epi32(0x7bff));

            let scale = _mm512_set1_ps((1 << 24) as f32);
            let units = _mm512_mul_ps(_mm512_castsi512_ps(magnitude), scale);
            let floor = _mm512_cvttps_epi32(units);
            let rest = _mm512_sub_ps(units, _mm512_cvtepi32_ps(floor));
            let threshold = _mm512_cvttps_epi32(_mm512_mul_ps(rest, scale));
            let up = _mm512_cmpgt_epi32_mask(threshold, _mm512_srli_epi32::<8>(random));
            let subnormal = _mm512_mask_add_epi32(floor, up, floor, _mm512_set1_epi32(1));

            let is_small = _mm512_cmpgt_epi32_mask(_mm512_set1_epi32(0x3880_0000), magnitude);
            let finite = _mm512_or_si512(_mm512_mask_blend_epi32(is_small, normal, subnormal), sign_16(self));
            let is_special = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f7f_ffff));
            let special = _mm512_cvtepu16_epi32(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self));
            store_words(_mm512_mask_blend_epi32(is_special, finite, special), to);
        }
    }
    #[inline(always)]
    unsafe fn store_bf16_stochastic(self, to: *mut u16, random: __m512i) {
        // SAFETY: see above.
        unsafe {
            let magnitude = magnitude(self);
            let noisy = _mm512_add_epi32(magnitude, _mm512_and_si512(random, _mm512_set1_epi32(0xffff)));
            let half = _mm512_min_epi32(_mm512_srli_epi32::<16>(noisy), _mm512_set1_epi32(0x7f7f));
            let is_special = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f7f_ffff));
            let finite = _mm512_or_si512(half, sign_16(self));
            store_words(_mm512_mask_blend_epi32(is_special, finite, bf16_nearest(self)), to);
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_add_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_sub_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_mul_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_div_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn sqrt(self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_sqrt_ps(self) }
    }
    #[inline(always)]
    unsafe fn copysign(self, sign: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let sign_bit = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_andnot_ps(sign_bit, self), _mm512_and_ps(sign_bit, sign))
        }
    }
    #[inline(always)]
    unsafe fn where_within(self, limit: Self, then: Self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let within =
                _mm512_cmp_ps_mask::<_CMP_LE_OQ>(_mm512_andnot_ps(_mm512_set1_ps(-0.0), self), limit);
            _mm512_mask_blend_ps(within, other, then)
        }
    }
    #[inline(always)]
    unsafe fn element_bits(key: u64, element: usize) -> __m512i {
        // SAFETY: see above. The steps are those of `random::element_bits`.
        unsafe {
            let lanes = _mm512_mullo_epi32(
                _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                _mm512_set1_epi32(SPREAD_32 as i32),
            );
            let first = (key as u32).wrapping_add((element as u32).wrapping_mul(SPREAD_32));
            let x = _mm512_add_epi32(lanes, _mm512_set1_epi32(first as i32));
            let x = _mm512_xor_si512(x, _mm512_srli_epi32::<16>(x));
            let x = _mm512_mullo_epi32(x, _mm512_set1_epi32(MIX_32[0] as i32));
            let x = _mm512_xor_si512(x, _mm512_srli_epi32::<15>(x));
            let x = _mm512_mullo_epi32(x, _mm512_set1_epi32(MIX_32[1] as i32));
            let x = _mm512_xor_si512(x, _mm512_srli_epi32::<16>(x));
            _mm512_xor_si512(x, _mm512_set1_epi32((key >> 32) as i32))
        }
    }
    #[inline(always)]
    unsafe fn block_of_squares(values: *const f32, count: usize) -> f32 {
        // SAFETY: see above; the caller has `count` values.
        unsafe {
            let mut sixteen = _mm512_setzero_ps();
            let mut at = 0;
            while at + 16 <= count {
                let value = _mm512_loadu_ps(values.add(at));
                sixteen = _mm512_add_ps(sixteen, _mm512_mul_ps(value, value));
                at += 16;
            }
            if at < count {
                let mut partial = [0.0; 16];
                _mm512_storeu_ps(partial.as_mut_ptr(), sixteen);
                for rest in at..count {
                    let value = values.add(rest).read();
                    partial[rest - at] += value * value;
                }
                return fold(partial);
            }
            let eight = _mm256_add_ps(_mm512_castps512_ps256(sixteen), _mm512_extractf32x8_ps::<1>(sixteen));
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    unsafe fn apart<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: handed on to the caller.
        unsafe { run(kernel) }
    }
}
