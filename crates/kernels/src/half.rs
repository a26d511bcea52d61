//! 16-bit floats: IEEE half precision and bfloat16, to and from `f32`.
//!
//! Both are held as their bits in a `u16`. Three conversions exist:
//!
//! - *to f32* is exact (a signalling NaN becomes quiet);
//! - *nearest* follows IEEE 754, ties to even: what lies beyond the largest finite value becomes infinite,
//!   and subnormals are kept;
//! - *stochastic* rounds a finite value to one of its two neighbours, up with the probability of its distance
//!   from the lower one, so the expected value is the value itself. 13 (f16) or 16 (bf16) random bits make
//!   that exact for normal values; f16 subnormals compare 24 bits, so the probability is exact for all values
//!   whose bits end above 2^-48 and otherwise short by less than 2^-24 of a unit. A finite value beyond the
//!   format saturates at the largest finite value, for an infinite weight would never come back; infinities
//!   and NaN stay what they are.
//!
//! The functions on single values are the specification; the slices run at any level with the same bits.
#![allow(unsafe_code)]

use crate::{
    isa::Isa,
    lanes::{self, Kernel, Lanes},
};

/// `f32` of an IEEE half.
pub fn f32_from_f16(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let exponent = u32::from(half >> 10) & 0x1f;
    let mantissa = u32::from(half & 0x3ff);
    let bits = match exponent {
        0 => (mantissa as f32 * (1.0 / (1 << 24) as f32)).to_bits(),
        0x1f if mantissa != 0 => 0x7fc0_0000 | (mantissa << 13),
        0x1f => 0x7f80_0000,
        _ => ((exponent + 112) << 23) | (mantissa << 13),
    };
    f32::from_bits(sign | bits)
}

/// `f32` of a bfloat16.
pub fn f32_from_bf16(half: u16) -> f32 {
    let bits = u32::from(half) << 16;
    let value = f32::from_bits(bits);
    if value.is_nan() { f32::from_bits(bits | 0x0040_0000) } else { value }
}

/// The nearest IEEE half, ties to even.
pub fn f16_nearest(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let half = if magnitude > 0x7f80_0000 {
        0x7e00 | (magnitude >> 13) & 0x3ff
    } else if magnitude >= 0x477f_f000 {
        0x7c00
    } else if magnitude >= 0x3880_0000 {
        (magnitude - 0x3800_0000 + 0xfff + ((magnitude >> 13) & 1)) >> 13
    } else {
        // A unit of 0.5 is 2^-24, the smallest half: the addition rounds to it, ties to even.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0x3f00_0000
    };
    sign | half as u16
}

/// The nearest bfloat16, ties to even.
pub fn bf16_nearest(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// One of the two neighbouring IEEE halves, chosen by `random`.
pub fn f16_stochastic(value: f32, random: u32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude >= 0x7f80_0000 {
        return f16_nearest(value);
    }
    let half = if magnitude >= 0x3880_0000 {
        ((magnitude + (random & 0x1fff) - 0x3800_0000) >> 13).min(0x7bff)
    } else {
        let units = f32::from_bits(magnitude) * (1 << 24) as f32;
        let floor = units as i32;
        let threshold = ((units - floor as f32) * (1 << 24) as f32) as i32;
        floor as u32 + u32::from(((random >> 8) as i32) < threshold)
    };
    sign | half as u16
}

/// One of the two neighbouring bfloat16 values, chosen by `random`.
pub fn bf16_stochastic(value: f32, random: u32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude >= 0x7f80_0000 {
        return bf16_nearest(value);
    }
    sign | ((magnitude + (random & 0xffff)) >> 16).min(0x7f7f) as u16
}

/// Writes the `f32` of every IEEE half.
///
/// # Panics
/// If the slices differ in length.
pub fn slice_from_f16(isa: Isa, from: &[u16], to: &mut [f32]) {
    convert(isa, FromF16, from, to);
}

/// Writes the `f32` of every bfloat16.
///
/// # Panics
/// If the slices differ in length.
pub fn slice_from_bf16(isa: Isa, from: &[u16], to: &mut [f32]) {
    convert(isa, FromBf16, from, to);
}

/// Writes the nearest IEEE half of every value.
///
/// # Panics
/// If the slices differ in length.
pub fn slice_to_f16(isa: Isa, from: &[f32], to: &mut [u16]) {
    convert(isa, ToF16, from, to);
}

/// Writes the nearest bfloat16 of every value.
///
/// # Panics
/// If the slices differ in length.
pub fn slice_to_bf16(isa: Isa, from: &[f32], to: &mut [u16]) {
    convert(isa, ToBf16, from, to);
}

/// Rounds every value stochastically to an IEEE half, with the random bits of `key`
/// ([`crate::random::element_bits`]).
///
/// # Panics
/// If the slices differ in length.
pub fn slice_to_f16_stochastic(isa: Isa, from: &[f32], to: &mut [u16], key: u64) {
    convert(isa, ToF16Stochastic { key }, from, to);
}

/// Rounds every value stochastically to a bfloat16, with the random bits of `key`
/// ([`crate::random::element_bits`]).
///
/// # Panics
/// If the slices differ in length.
pub fn slice_to_bf16_stochastic(isa: Isa, from: &[f32], to: &mut [u16], key: u64) {
    convert(isa, ToBf16Stochastic { key }, from, to);
}

fn convert<C: Conversion>(isa: Isa, conversion: C, from: &[C::From], to: &mut [C::To]) {
    assert_eq!(from.len(), to.len(), "a conversion between slices of {} and {}", from.len(), to.len());
    lanes::dispatch(isa, Slices { conversion, from: from.as_ptr(), to: to.as_mut_ptr(), count: from.len() });
}

/// A conversion of some elements side by side.
trait Conversion {
    type From;
    type To;
    /// # Safety
    /// As [`Lanes`]; both pointers are good for a vector, whose first element has the number `element`.
    unsafe fn step<L: Lanes>(&self, from: *const Self::From, to: *mut Self::To, element: usize);
}

struct Slices<C: Conversion> {
    conversion: C,
    from: *const C::From,
    to: *mut C::To,
    count: usize,
}

impl<C: Conversion> Kernel for Slices<C> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let mut at = 0;
        // SAFETY: both slices have `count` elements and no step reaches beyond them.
        unsafe {
            while at + V::COUNT <= self.count {
                self.conversion.step::<V>(self.from.add(at), self.to.add(at), at);
                at += V::COUNT;
            }
            while at < self.count {
                self.conversion.step::<f32>(self.from.add(at), self.to.add(at), at);
                at += 1;
            }
        }
    }
}

struct FromF16;

impl Conversion for FromF16 {
    type From = u16;
    type To = f32;
    #[inline(always)]
    unsafe fn step<L: Lanes>(&self, from: *const u16, to: *mut f32, _element: usize) {
        // SAFETY: handed on to the caller.
        unsafe { L::load_f16(from).store(to) }
    }
}

struct FromBf16;

impl Conversion for FromBf16 {
    type From = u16;
    type To = f32;
    #[inline(always)]
    unsafe fn step<L: Lanes>(&self, from: *const u16, to: *mut f32, _element: usize) {
        // SAFETY: handed on to the caller.
        unsafe { L::load_bf16(from).store(to) }
    }
}

struct ToF16;

impl Conversion for ToF16 {
    type From = f32;
    type To = u16;
    #[inline(always)]
    unsafe fn step<L: Lanes>(&self, from: *const f32, to: *mut u16, _element: usize) {
        // SAFETY: handed on to the caller.
        unsafe { L::load(from).store_f16_nearest(to) }
    }
}

struct ToBf16;

impl Conversion for ToBf16 {
    type From = f32;
    type To = u16;
    #[inline(always)]
    unsafe fn step<L: Lanes>(&self, from: *const f32, to: *mut u16, _element: usize) {
        // SAFETY: handed on to the caller.
        unsafe { L::load(from).store_bf16_nearest(to) }
    }
}

struct ToF16Stochastic {
    key: u64,
}

impl Conversion for ToF16Stochastic {
    type From = f32;
    type To = u16;
    #[inline(always)]
    unsafe fn step<L: Lanes>(&self, from: *const f32, to: *mut u16, element: usize) {
        // SAFETY: handed on to the caller.
        unsafe { L::load(from).store_f16_stochastic(to, L::element_bits(self.key, element)) }
    }
}

struct ToBf16Stochastic {
    key: u64,
}

impl Conversion for ToBf16Stochastic {
    type From = f32;
    type To = u16;
    #[inline(always)]
    unsafe fn step<L: Lanes>(&self, from: *const f32, to: *mut u16, element: usize) {
        // SAFETY: handed on to the caller.
        unsafe { L::load(from).store_bf16_stochastic(to, L::element_bits(self.key, element)) }
    }
}

#[cfg(test)]
mod tests;
