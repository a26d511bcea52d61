//! The few vector operations that the dense kernels are written in, so that each is written once.
//!
//! A kernel is a generic function over [`Vector`]; a level gives it a vector type and compiles it under its own
//! `#[target_feature]`. What AVX2 is tested with is therefore the algorithm that AVX-512 runs.
//!
//! Everything here is `inline(always)` and must be called from a function that has the level's target features;
//! only then do the intrinsics melt into it.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod pairs;

#[cfg(target_arch = "x86_64")]
pub(crate) use {avx2::Avx2, avx512::Avx512};

/// A register of `f32` lanes.
///
/// # Safety
///
/// Every method may only run where the processor has the type's instructions. Pointers must be good for the
/// lanes that are read or written: [`Vector::LANES`] of them, or `count` for the `_first` methods. No alignment
/// is asked for.
pub(crate) trait Vector: Copy {
    /// How many floats a register holds.
    const LANES: usize;

    /// All lanes +0.
    unsafe fn zero() -> Self;
    /// All lanes `value`.
    unsafe fn splat(value: f32) -> Self;
    /// Reads all lanes.
    unsafe fn load(from: *const f32) -> Self;
    /// Writes all lanes.
    unsafe fn store(self, to: *mut f32);
    /// Reads lanes below `count`; the others are +0 and their memory is not touched.
    unsafe fn load_first(from: *const f32, count: usize) -> Self;
    /// Writes lanes below `count`; the memory of the others is not touched.
    unsafe fn store_first(self, to: *mut f32, count: usize);
    /// `self + other`.
    unsafe fn add(self, other: Self) -> Self;
    /// `a * b + self`, rounded once.
    unsafe fn add_product(self, a: Self, b: Self) -> Self;
    /// +0 where a lane is below zero; NaN and -0 stay.
    unsafe fn relu(self) -> Self;
    /// +0 where `gate` is at or below zero; where it is NaN or above, the lane stays.
    unsafe fn zero_where_not_positive(self, gate: Self) -> Self;
    /// Whether a lane is -0.
    unsafe fn has_minus_zero(self) -> bool;
    /// The bits of both.
    unsafe fn or(self, other: Self) -> Self;
    /// The lanes that have a bit of `mask`, as bits.
    unsafe fn lanes_with(self, mask: u32) -> u32;
    /// Writes the lanes of `lanes` one behind the other; what is behind them, up to [`Vector::LANES`], may be anything.
    unsafe fn store_present(self, lanes: u32, to: *mut f32);
    /// The same for the lanes' numbers, counted from `first`.
    unsafe fn store_places(lanes: u32, first: u32, to: *mut u32);
    /// The nearest bfloat16, ties to even; NaN becomes a quiet NaN.
    unsafe fn round_to_bf16(self) -> Self;
    /// Tells the processor that the line at `at` is soon wanted. Any address is allowed.
    unsafe fn prefetch(at: *const f32);
    /// The same for a line that is wanted a little later: as far as the second-level cache.
    unsafe fn prefetch_near(at: *const f32);
}
