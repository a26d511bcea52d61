//! Eight lanes: AVX2 with FMA.

use super::Vector;
use std::arch::x86_64::*;

/// One `ymm` register.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(pub(super) __m256);

/// A sliding window over this gives a mask of any number of leading lanes.
static LEADING: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

impl Avx2 {
    /// Lanes below `count` all ones.
    #[inline(always)]
    unsafe fn leading(count: usize) -> __m256i {
        debug_assert!(count <= 8);
        // SAFETY: `count` is at most 8, so the eight numbers lie inside the sixteen.
        unsafe { _mm256_loadu_si256(LEADING.as_ptr().add(8 - count).cast()) }
    }

    /// The eight by eight floats of `rows`, rows and columns swapped.
    #[inline(always)]
    pub(crate) unsafe fn transpose(rows: [Avx2; 8]) -> [Avx2; 8] {
        // SAFETY: the caller has AVX2; these touch no memory.
        unsafe {
            let pair = |i: usize, j: usize| {
                let (a, b) = (rows[i].0, rows[j].0);
                (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b))
            };
            let (low01, high01) = pair(0, 1);
            let (low23, high23) = pair(2, 3);
            let (low45, high45) = pair(4, 5);
            let (low67, high67) = pair(6, 7);
            let quads = [
                (_mm256_shuffle_ps(low01, low23, 0x44), _mm256_shuffle_ps(low45, low67, 0x44)),
                (_mm256_shuffle_ps(low01, low23, 0xee), _mm256_shuffle_ps(low45, low67, 0xee)),
                (_mm256_shuffle_ps(high01, high23, 0x44), _mm256_shuffle_ps(high45, high67, 0x44)),
                (_mm256_shuffle_ps(high01, high23, 0xee), _mm256_shuffle_ps(high45, high67, 0xee)),
            ];
            std::array::from_fn(|i| {
                let (a, b) = quads[i % 4];
                Avx2(if i < 4 {
                    _mm256_permute2f128_ps(a, b, 0x20)
                } else {
                    _mm256_permute2f128_ps(a, b, 0x31)
                })
            })
        }
    }
}

// SAFETY of every body below: the trait's contract, that the processor has AVX2 and FMA and that the pointers are
// good for the lanes named.
impl Vector for Avx2 {
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: see the impl.
        Avx2(unsafe { _mm256_setzero_ps() })
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: see the impl.
        Avx2(unsafe { _mm256_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: see the impl.
        Avx2(unsafe { _mm256_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: see the impl.
        unsafe { _mm256_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        // SAFETY: see the impl; masked lanes are not read.
        Avx2(unsafe { _mm256_maskload_ps(from, Self::leading(count)) })
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        // SAFETY: see the impl; masked lanes are not written.
        unsafe { _mm256_maskstore_ps(to, Self::leading(count), self.0) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: see the impl.
        Avx2(unsafe { _mm256_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        // SAFETY: see the impl.
        Avx2(unsafe { _mm256_fmadd_ps(a.0, b.0, self.0) })
    }

    #[inline(always)]
    unsafe fn relu(self) -> Self {
        // SAFETY: see the impl. MAXPS returns its second operand for NaN and for two zeros.
        Avx2(unsafe { _mm256_max_ps(_mm256_setzero_ps(), self.0) })
    }

    #[inline(always)]
    unsafe fn zero_where_not_positive(self, gate: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Avx2(_mm256_andnot_ps(_mm256_cmp_ps(gate.0, _mm256_setzero_ps(), _CMP_LE_OQ), self.0)) }
    }

    #[inline(always)]
    unsafe fn has_minus_zero(self) -> bool {
        // SAFETY: see the impl.
        unsafe {
            let equal = _mm256_cmpeq_epi32(_mm256_castps_si256(self.0), _mm256_set1_epi32(i32::MIN));
            _mm256_movemask_epi8(equal) != 0
        }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: see the impl.
        Avx2(unsafe { _mm256_or_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn lanes_with(self, mask: u32) -> u32 {
        // SAFETY: see the impl.
        unsafe {
            let bits = _mm256_and_si256(_mm256_castps_si256(self.0), _mm256_set1_epi32(mask as i32));
            let without = _mm256_cmpeq_epi32(bits, _mm256_setzero_si256());
            !_mm256_movemask_ps(_mm256_castsi256_ps(without)) as u32 & 0xff
        }
    }

    #[inline(always)]
    unsafe fn store_present(self, lanes: u32, to: *mut f32) {
        let (mut values, mut count) = ([0.0; 8], 0);
        // SAFETY: see the impl; `count` stays below the lanes.
        unsafe {
            self.store(values.as_mut_ptr());
            for (lane, value) in values.into_iter().enumerate() {
                // Without a branch, for nobody can foresee which lanes are zero.
                *to.add(count) = value;
                count += (lanes >> lane & 1) as usize;
            }
        }
    }

    #[inline(always)]
    unsafe fn store_places(lanes: u32, first: u32, to: *mut u32) {
        let mut count = 0;
        for lane in 0..8 {
            // SAFETY: see the impl; `count` stays below the lanes.
            unsafe { *to.add(count) = first + lane };
            count += (lanes >> lane & 1) as usize;
        }
    }

    #[inline(always)]
    unsafe fn round_to_bf16(self) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let bits = _mm256_castps_si256(self.0);
            let odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
            let is_nan = _mm256_castps_si256(_mm256_cmp_ps(self.0, self.0, _CMP_UNORD_Q));
            let chosen = _mm256_blendv_epi8(rounded, quiet, is_nan);
            Avx2(_mm256_castsi256_ps(_mm256_and_si256(chosen, _mm256_set1_epi32(0xffff_0000_u32 as i32))))
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
