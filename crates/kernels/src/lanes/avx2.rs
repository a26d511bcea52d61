//! Eight lanes: AVX2, FMA and F16C.

use std::arch::x86_64::*;

use super::{Kernel, Lanes, fold};
use crate::random::{MIX_32, SPREAD_32};

/// Runs a kernel with eight lanes.
///
/// # Safety
/// The processor must have AVX2, FMA and F16C, and the kernel's arguments must be as it asks.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: handed on to the caller.
    unsafe { kernel.run::<__m256>() }
}

/// Writes the low halves of eight words, each at most 0xffff.
#[inline(always)]
unsafe fn store_words(words: __m256i, to: *mut u16) {
    // SAFETY: the caller has AVX2 and room for eight elements; the store asks for no alignment.
    unsafe {
        let packed = _mm256_permute4x64_epi64::<0b00_00_10_00>(_mm256_packus_epi32(words, words));
        _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(packed));
    }
}

/// The bits of eight values, apart from their signs.
#[inline(always)]
unsafe fn magnitude(values: __m256) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe { _mm256_and_si256(_mm256_castps_si256(values), _mm256_set1_epi32(0x7fff_ffff)) }
}

/// The sign of eight values, where a 16-bit float has it.
#[inline(always)]
unsafe fn sign_16(values: __m256) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe {
        _mm256_and_si256(_mm256_srli_epi32::<16>(_mm256_castps_si256(values)), _mm256_set1_epi32(0x8000))
    }
}

/// [`crate::half::bf16_nearest`], in eight words.
#[inline(always)]
unsafe fn bf16_nearest(values: __m256) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe {
        let bits = _mm256_castps_si256(values);
        let high = _mm256_srli_epi32::<16>(bits);
        let odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
        let carried = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        let nan = _mm256_cmpgt_epi32(magnitude(values), _mm256_set1_epi32(0x7f80_0000));
        let quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
        _mm256_blendv_epi8(_mm256_srli_epi32::<16>(carried), quiet, nan)
    }
}

// SAFETY of every block below: the trait's caller has AVX2, FMA and F16C and good pointers; loads and stores
// are the unaligned ones.
impl Lanes for __m256 {
    const COUNT: usize = 8;
    type Bits = __m256i;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: see above.
        unsafe {
            let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            let values = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words));
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(values, values);
            _mm256_or_ps(values, _mm256_and_ps(nan, _mm256_castsi256_ps(_mm256_set1_epi32(0x0040_0000))))
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: see above.
        unsafe { _mm256_storeu_ps(to, self) }
    }
    #[inline(always)]
    unsafe fn store_f16_nearest(self, to: *mut u16) {
        // SAFETY: see above.
        unsafe { _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self)) }
    }
    #[inline(always)]
    unsafe fn store_bf16_nearest(self, to: *mut u16) {
        // SAFETY: see above.
        unsafe { store_words(bf16_nearest(self), to) }
    }
    #[inline(always)]
    unsafe fn store_f16_stochastic(self, to: *mut u16, random: __m256i) {
        // SAFETY: see above. The steps are those of `half::f16_stochastic`; both cases are computed and the
        // right one is kept.
        unsafe {
            let magnitude = magnitude(self);
            let noisy = _mm256_add_epi32(magnitude, _mm256_and_si256(random, _mm256_set1_epi32(0x1fff)));
            let normal = _mm256_srli_epi32::<13>(_mm256_sub_epi32(noisy, _mm256_set1_epi32(0x3800_0000)));
            let normal = _mm256_min_epi32(normal, _mm256_set1_epi32(0x7bff));

            let scale = _mm256_set1_ps((1 << 24) as f32);
            let units = _mm256_mul_ps(_mm256_castsi256_ps(magnitude), scale);
            let floor = _mm256_cvttps_epi32(units);
            let rest = _mm256_sub_ps(units, _mm256_cvtepi32_ps(floor));
            let threshold = _mm256_cvttps_epi32(_mm256_mul_ps(rest, scale));
            let up = _mm256_cmpgt_epi32(threshold, _mm256_srli_epi32::<8>(random));
            let subnormal = _mm256_sub_epi32(floor, up);

            let is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3880_0000), magnitude);
            let finite = _mm256_or_si256(_mm256_blendv_epi8(normal, subnormal, is_small), sign_16(self));
            let is_special = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f7f_ffff));
            let special = _mm256_cvtepu16_epi32(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self));
            store_words(_mm256_blendv_epi8(finite, special, is_special), to);
        }
    }
    #[inline(always)]
    unsafe fn store_bf16_stochastic(self, to: *mut u16, random: __m256i) {
        // SAFETY: see above.
        unsafe {
            let magnitude = magnitude(self);
            let noisy = _mm256_add_epi32(magnitude, _mm256_and_si256(random, _mm256_set1_epi32(0xffff)));
            let half = _mm256_min_epi32(_mm256_srli_epi32::<16>(noisy), _mm256_set1_epi32(0x7f7f));
            let is_special = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f7f_ffff));
            let finite = _mm256_or_si256(half, sign_16(self));
            store_words(_mm256_blendv_epi8(finite, bf16_nearest(self), is_special), to);
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_add_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_sub_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_mul_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_div_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn sqrt(self) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_sqrt_ps(self) }
    }
    #[inline(always)]
    unsafe fn copysign(self, sign: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let sign_bit = _mm256_set1_ps(-0.0);
            _mm256_or_ps(_mm256_andnot_ps(sign_bit, self), _mm256_and_ps(sign_bit, sign))
        }
    }
    #[inline(always)]
    unsafe fn where_within(self, limit: Self, then: Self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let within = _mm256_cmp_ps::<_CMP_LE_OQ>(_mm256_andnot_ps(_mm256_set1_ps(-0.0), self), limit);
            _mm256_blendv_ps(other, then, within)
        }
    }
    #[inline(always)]
    unsafe fn element_bits(key: u64, element: usize) -> __m256i {
        // SAFETY: see above. The steps are those of `random::element_bits`.
        unsafe {
            let lanes = _mm256_mullo_epi32(
                _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                _mm256_set1_epi32(SPREAD_32 as i32),
            );
            let first = (key as u32).wrapping_add((element as u32).wrapping_mul(SPREAD_32));
            let x = _mm256_add_epi32(lanes, _mm256_set1_epi32(first as i32));
            let x = _mm256_xor_si256(x, _mm256_srli_epi32::<16>(x));
            let x = _mm256_mullo_epi32(x, _mm256_set1_epi32(MIX_32[0] as i32));
            let x = _mm256_xor_si256(x, _mm256_srli_epi32::<15>(x));
            let x = _mm256_mullo_epi32(x, _mm256_set1_epi32(MIX_32[1] as i32));
            let x = _mm256_xor_si256(x, _mm256_srli_epi32::<16>(x));
            _mm256_xor_si256(x, _mm256_set1_epi32((key >> 32) as i32))
        }
    }
    #[inline(always)]
    unsafe fn block_of_squares(values: *const f32, count: usize) -> f32 {
        // SAFETY: see above; the caller has `count` values.
        unsafe {
            let (mut low, mut high) = (_mm256_setzero_ps(), _mm256_setzero_ps());
            let mut at = 0;
            while at + 16 <= count {
                let (first, second) = (_mm256_loadu_ps(values.add(at)), _mm256_loadu_ps(values.add(at + 8)));
                low = _mm256_add_ps(low, _mm256_mul_ps(first, first));
                high = _mm256_add_ps(high, _mm256_mul_ps(second, second));
                at += 16;
            }
            if at < count {
                let mut partial = [0.0; 16];
                _mm256_storeu_ps(partial.as_mut_ptr(), low);
                _mm256_storeu_ps(partial.as_mut_ptr().add(8), high);
                for rest in at..count {
                    let value = values.add(rest).read();
                    partial[rest - at] += value * value;
                }
                return fold(partial);
            }
            let eight = _mm256_add_ps(low, high);
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
