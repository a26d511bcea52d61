//! Exponential, logarithm and sigmoid from additions, products and one division.
//!
//! The system's own functions differ in their last bit between machines and C libraries, and one bit can turn a
//! label. These do not: the same seed is the same stream everywhere. They are also several times faster.

use std::f64::consts::{LN_2, LOG2_E, SQRT_2};

/// Adding and taking away this rounds a small `f64` to the nearest whole number.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// `e` to the power of `x`, for `x` in `[-700, 700]`; relative error below 1e-11.
#[inline]
pub fn exp(x: f64) -> f64 {
    let power = (x * LOG2_E + ROUND) - ROUND;
    let r = x - power * LN_2;
    let mut sum = 1.0 / 362_880.0;
    for factor in
        [1.0 / 40_320.0, 1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0]
    {
        sum = sum * r + factor;
    }
    sum * f64::from_bits(((power as i64 + 1023) as u64) << 52)
}

/// Natural logarithm of a normal positive `x`; absolute error below 1e-11.
#[inline]
pub fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa > SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let square = t * t;
    let mut sum = 1.0 / 13.0;
    for factor in [1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 0.2, 1.0 / 3.0, 1.0] {
        sum = sum * square + factor;
    }
    2.0 * t * sum + exponent as f64 * LN_2
}

/// `1 / (1 + exp(-x))`, with `x` held inside ±30.
#[inline]
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + exp(-x.clamp(-30.0, 30.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_to_the_system_functions() {
        for step in -6000..6000 {
            let x = f64::from(step) * 0.0137;
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-11, "exp {x}");
            let y = x.exp();
            assert!((ln(y) - y.ln()).abs() < 1e-11, "ln {y}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(ln(1.0), 0.0);
        assert_eq!(sigmoid(0.0), 0.5);
        assert!(sigmoid(1e9) > 0.999 && sigmoid(-1e9) < 0.001);
    }
}
