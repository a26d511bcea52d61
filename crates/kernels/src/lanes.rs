//! The vectors in which row kernels are written once and compiled for every level.
//!
//! A kernel is a function generic over [`Lanes`]: `f32` itself is the vector of one lane and therefore the
//! scalar twin, and also does the columns that are left over at the end of a row; `__m256` and `__m512` do
//! eight and sixteen columns at a time. Every operation is the IEEE one (no approximate roots, no fusing),
//! lane by lane, so all levels return the same bits.
//!
//! The methods are `unsafe` because the processor must have the level's instructions; [`dispatch`] is the
//! only place that chooses a level, and [`Isa`] is its proof. They are `inline(always)` so that they end up
//! inside the one function per level that carries the `target_feature`.
#![allow(unsafe_code)]

use crate::{
    half,
    isa::{Isa, Level},
    random,
};

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

/// Elements whose squares are summed before such sums are added.
pub(crate) const SQUARES_BLOCK: usize = 32;

/// A vector of `f32`.
///
/// # Safety
/// Every method needs a processor with the instructions of the implementation; pointers must be good for
/// [`Lanes::COUNT`] elements, at any alignment.
pub(crate) trait Lanes: Copy {
    /// Elements of a vector: 1, 8 or 16.
    const COUNT: usize;
    /// As many words of 32 random bits.
    type Bits: Copy;

    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn load_f16(from: *const u16) -> Self;
    unsafe fn load_bf16(from: *const u16) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn store_f16_nearest(self, to: *mut u16);
    unsafe fn store_bf16_nearest(self, to: *mut u16);
    unsafe fn store_f16_stochastic(self, to: *mut u16, random: Self::Bits);
    unsafe fn store_bf16_stochastic(self, to: *mut u16, random: Self::Bits);

    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    unsafe fn sqrt(self) -> Self;
    /// The magnitude of `self` with the sign of `sign`.
    unsafe fn copysign(self, sign: Self) -> Self;
    /// `then` where the magnitude of `self` is at most `limit`, else `other`.
    unsafe fn where_within(self, limit: Self, then: Self, other: Self) -> Self;
    /// Zero in place of what is too small for a normal number: state that fades by a factor each step would end there,
    /// at a value that never changes again, and processors take a hundred times longer over such numbers.
    #[inline(always)]
    unsafe fn flush(self) -> Self {
        // SAFETY: handed on to the caller.
        unsafe { self.where_within(Self::splat(f32::MIN_POSITIVE.next_down()), Self::splat(0.0), self) }
    }
    /// [`random::element_bits`] of the elements from `element` on.
    unsafe fn element_bits(key: u64, element: usize) -> Self::Bits;
    /// The sum of the squares of at most [`SQUARES_BLOCK`] values: element `i` is added to partial sum `i` modulo
    /// 16, in rising order, and the sixteen are folded in halves: 8, 4, 2, 1.
    unsafe fn block_of_squares(values: *const f32, count: usize) -> f32;
    /// The sum of the squares of `count` values, in blocks of [`SQUARES_BLOCK`] that are added in their order, so
    /// that a row cut at blocks can have its parts summed apart.
    #[inline(always)]
    unsafe fn sum_of_squares(values: *const f32, count: usize) -> f32 {
        // SAFETY: the blocks end at `count`; the rest is handed on to the caller.
        unsafe {
            let mut sum = Self::block_of_squares(values, count.min(SQUARES_BLOCK));
            let mut at = SQUARES_BLOCK;
            while at < count {
                sum += Self::block_of_squares(values.add(at), (count - at).min(SQUARES_BLOCK));
                at += SQUARES_BLOCK;
            }
            sum
        }
    }
    /// Runs a kernel of this level in a function of its own: what is rare, or shared by many kernels, is then
    /// compiled once.
    unsafe fn apart<K: Kernel>(kernel: K) -> K::Output;
}

/// A kernel with its arguments, to be compiled for every level.
pub(crate) trait Kernel {
    type Output;
    /// # Safety
    /// The processor must have the instructions of `V`; the arguments must be as the kernel asks.
    unsafe fn run<V: Lanes>(self) -> Self::Output;
}

/// Runs a kernel at a level. The kernel's own demands on its arguments are for the caller to meet before.
pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    match isa.level() {
        // SAFETY: plain Rust runs everywhere.
        Level::Scalar => unsafe { kernel.run::<f32>() },
        // SAFETY: an `Isa` of this level is made only after asking the processor.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { avx2::run(kernel) },
        // SAFETY: as above; the AMX level includes AVX-512.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 | Level::Avx512Bf16 | Level::Amx => unsafe { avx512::run(kernel) },
        #[cfg(not(target_arch = "x86_64"))]
        level => unreachable!("{level:?} on a processor of another family"),
    }
}

/// Asks for the cache line at `address`, to be read.
#[inline(always)]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint and faults on no address; SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Something done to each column of a row on its own.
pub(crate) trait Columns {
    /// # Safety
    /// As [`Lanes`]; the row must have the columns from `column` on that a vector takes.
    unsafe fn at<L: Lanes>(&self, column: usize);
}

/// Does it to all columns: four vectors at a time, then whole vectors, the rest one by one.
///
/// # Safety
/// As [`Lanes`]; the row must have `dim` columns.
#[inline(always)]
pub(crate) unsafe fn each_column<V: Lanes>(dim: usize, columns: &impl Columns) {
    let mut column = 0;
    // SAFETY: no step reaches beyond `dim`.
    unsafe {
        while column + 4 * V::COUNT <= dim {
            columns.at::<V>(column);
            columns.at::<V>(column + V::COUNT);
            columns.at::<V>(column + 2 * V::COUNT);
            columns.at::<V>(column + 3 * V::COUNT);
            column += 4 * V::COUNT;
        }
        while column + V::COUNT <= dim {
            columns.at::<V>(column);
            column += V::COUNT;
        }
        while column < dim {
            columns.at::<f32>(column);
            column += 1;
        }
    }
}

/// Folds sixteen partial sums in halves.
#[inline(always)]
fn fold(mut partial: [f32; 16]) -> f32 {
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            partial[lane] += partial[lane + half];
        }
    }
    partial[0]
}

impl Lanes for f32 {
    const COUNT: usize = 1;
    type Bits = u32;

    #[inline(always)]
    unsafe fn splat(value: f32) -> f32 {
        value
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> f32 {
        // SAFETY: the caller's pointer is good for one element.
        unsafe { from.read() }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> f32 {
        // SAFETY: the caller's pointer is good for one element.
        half::f32_from_f16(unsafe { from.read() })
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> f32 {
        // SAFETY: the caller's pointer is good for one element.
        half::f32_from_bf16(unsafe { from.read() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's pointer is good for one element.
        unsafe { to.write(self) }
    }
    #[inline(always)]
    unsafe fn store_f16_nearest(self, to: *mut u16) {
        // SAFETY: the caller's pointer is good for one element.
        unsafe { to.write(half::f16_nearest(self)) }
    }
    #[inline(always)]
    unsafe fn store_bf16_nearest(self, to: *mut u16) {
        // SAFETY: the caller's pointer is good for one element.
        unsafe { to.write(half::bf16_nearest(self)) }
    }
    #[inline(always)]
    unsafe fn store_f16_stochastic(self, to: *mut u16, random: u32) {
        // SAFETY: the caller's pointer is good for one element.
        unsafe { to.write(half::f16_stochastic(self, random)) }
    }
    #[inline(always)]
    unsafe fn store_bf16_stochastic(self, to: *mut u16, random: u32) {
        // SAFETY: the caller's pointer is good for one element.
        unsafe { to.write(half::bf16_stochastic(self, random)) }
    }
    #[inline(always)]
    unsafe fn add(self, other: f32) -> f32 {
        self + other
    }
    #[inline(always)]
    unsafe fn sub(self, other: f32) -> f32 {
        self - other
    }
    #[inline(always)]
    unsafe fn mul(self, other: f32) -> f32 {
        self * other
    }
    #[inline(always)]
    unsafe fn div(self, other: f32) -> f32 {
        self / other
    }
    #[inline(always)]
    unsafe fn sqrt(self) -> f32 {
        self.sqrt()
    }
    #[inline(always)]
    unsafe fn copysign(self, sign: f32) -> f32 {
        self.copysign(sign)
    }
    #[inline(always)]
    unsafe fn where_within(self, limit: f32, then: f32, other: f32) -> f32 {
        if self.abs() <= limit { then } else { other }
    }
    #[inline(always)]
    unsafe fn element_bits(key: u64, element: usize) -> u32 {
        random::element_bits(key, element)
    }
    #[inline(always)]
    unsafe fn block_of_squares(values: *const f32, count: usize) -> f32 {
        let mut partial = [0.0; 16];
        for at in 0..count {
            // SAFETY: the caller has `count` values.
            let value = unsafe { values.add(at).read() };
            partial[at % 16] += value * value;
        }
        fold(partial)
    }
    #[inline(never)]
    unsafe fn apart<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: handed on to the caller.
        unsafe { kernel.run::<f32>() }
    }
}
