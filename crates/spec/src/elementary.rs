//! Exponentials, logarithms, powers and a cosine, from additions, products and divisions.
//!
//! The system's own functions differ in their last bit between machines and C libraries, and whatever is trained,
//! measured or served would differ with them. These do not: a basic operation has one result everywhere. Where a bit
//! of a result is at stake, no other elementary function is called, but for the square root, which is exact; a house
//! rule sees to it.
//!
//! Every function reduces its argument, then sums a Taylor polynomial by pairs: `c0 + c1 x`, `c2 + c3 x`, and so on,
//! then these with `x^2`, then with `x^4`, which a processor can do side by side. Tests hold every function to a
//! reference of 100 bits.

use std::f64::consts::{LN_2, LOG2_E, PI, SQRT_2};

/// `ln 2` in two parts: the first has 20 zeros at its end, so that its products with exponents are exact.
const LN_2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;

/// Adding and taking away this rounds a small `f64` to the nearest whole number.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// Where `exp` begins to be zero, and to be infinite.
const EXP_RANGE: std::ops::RangeInclusive<f64> = -708.0..=709.782_712_893_384;

/// `1/2!`, `1/3!`, ….
const EXP: [f64; 12] = {
    let (mut terms, mut n, mut factorial) = ([0.0; 12], 0, 1.0);
    while n < 12 {
        factorial *= (n + 2) as f64;
        terms[n] = 1.0 / factorial;
        n += 1;
    }
    terms
};

/// `2/3`, `2/5`, …, of `ln((1 + s) / (1 - s)) - 2s`.
const LN: [f64; 11] = {
    let (mut terms, mut n) = ([0.0; 11], 0);
    while n < 11 {
        terms[n] = 2.0 / (2 * n + 3) as f64;
        n += 1;
    }
    terms
};

/// `-1/2!`, `1/4!`, …, of the cosine less 1.
const COS: [f64; 8] = alternating(2.0);

/// `-1/3!`, `1/5!`, …, of the sine over its argument, less 1.
const SIN: [f64; 8] = alternating(3.0);

/// `-1/first!`, `1/(first + 2)!`, ….
const fn alternating(first: f64) -> [f64; 8] {
    let (mut terms, mut n, mut k, mut factorial) = ([0.0; 8], 0, first, -first * (first - 1.0));
    while n < 8 {
        terms[n] = 1.0 / factorial;
        factorial *= -(k + 1.0) * (k + 2.0);
        k += 2.0;
        n += 1;
    }
    terms
}

/// `e` to the power of `x`, to one unit in the last place. Zero below `x = -708`, where the result would leave the
/// normal numbers.
#[inline]
pub fn exp(x: f64) -> f64 {
    if x < *EXP_RANGE.start() {
        return 0.0;
    }
    if x > *EXP_RANGE.end() {
        return f64::INFINITY;
    }
    let shifted = x * LOG2_E + ROUND;
    let power = shifted - ROUND;
    let (high, low) = (x - power * LN_2_HIGH, power * LN_2_LOW);
    let r = high - low;
    scaled_exp(r, (high - r) - low, shifted)
}

/// 2 to the power of `x`, to two units in the last place, and exact for whole `x`. Zero below `x = -1021`.
#[inline]
pub fn exp2(x: f64) -> f64 {
    if x < -1021.0 {
        return 0.0;
    }
    if x >= 1024.0 {
        return f64::INFINITY;
    }
    let shifted = x + ROUND;
    scaled_exp((x - (shifted - ROUND)) * LN_2, 0.0, shifted)
}

/// `e^(r + rest) * 2^power` for `|r|` up to about `ln(2) / 2` and a rest below its last place. `shifted` is [`ROUND`] and a
/// power from -1021 to 1024, which its last bits therefore are.
#[inline]
fn scaled_exp(r: f64, rest: f64, shifted: f64) -> f64 {
    let sum = 1.0 + (r + (r * r * polynomial(&EXP, r) + rest));
    // In two steps, for 2^1024 is no number.
    2.0 * sum * f64::from_bits(shifted.to_bits().wrapping_add(1022) << 52)
}

/// The natural logarithm of `x`, to one unit in the last place; minus infinity at 0, and no number below.
#[inline]
pub fn ln(x: f64) -> f64 {
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x == 0.0 || x == f64::INFINITY {
        return if x == 0.0 { f64::NEG_INFINITY } else { x };
    }
    let (whole, exponent) = if x < f64::MIN_POSITIVE { (x * (1u64 << 54) as f64, -54) } else { (x, 0) };
    ln_of_sum(whole, 0.0, exponent)
}

/// The natural logarithm of `1 + x`, to one unit in the last place also where `x` is small.
#[inline]
pub fn ln_1p(x: f64) -> f64 {
    let sum = 1.0 + x;
    if !(sum > 0.0 && sum < f64::INFINITY) {
        return ln(sum);
    }
    // What rounding took from the sum.
    let rest = if x < 1.0 { x - (sum - 1.0) } else { 1.0 - (sum - x) };
    ln_of_sum(sum, rest, 0)
}

/// `ln(2^exponent * (x + rest))` for a normal, finite `x` and a rest below its last place.
#[inline]
fn ln_of_sum(x: f64, rest: f64, exponent: i64) -> f64 {
    // The power of two that leaves a mantissa from above `sqrt(2) / 2` to `sqrt(2)`.
    let bits = x.to_bits() as i64;
    let power = (bits - (SQRT_2.to_bits() as i64 + 1 - (1 << 52))) >> 52;
    let f = f64::from_bits((bits - (power << 52)) as u64) - 1.0;
    let power = (exponent + power) as f64;
    let s = f / (2.0 + f);
    let (square, half) = (s * s, 0.5 * f * f);
    let small = s * (half + square * polynomial(&LN, square)) + (power * LN_2_LOW + rest / x);
    power * LN_2_HIGH - ((half - small) - f)
}

/// `base^exponent` of a base that is not negative; to a few units in the last place times `1 + |exponent * ln(base)|`.
/// Whole exponents up to 4 go by squaring.
pub fn power(base: f64, exponent: f64) -> f64 {
    if exponent == 0.0 {
        return 1.0;
    }
    if exponent > 0.0 && exponent <= 4.0 && exponent == exponent as u64 as f64 {
        return whole_power(base, exponent as u64);
    }
    exp(exponent * ln(base))
}

/// `base^exponent` by squaring.
pub fn whole_power(mut base: f64, mut exponent: u64) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}

/// The cosine of `share` of half a turn, `share` from 0 to 1, to 2^-52; exact at 0, 1/2 and 1.
pub fn cos_of_half_turn(share: f64) -> f64 {
    let cosine = |turn: f64| {
        let square = (PI * turn) * (PI * turn);
        1.0 + square * polynomial(&COS, square)
    };
    if share <= 0.25 {
        cosine(share)
    } else if share >= 0.75 {
        -cosine(1.0 - share)
    } else {
        let x = PI * (0.5 - share);
        x + x * (x * x * polynomial(&SIN, x * x))
    }
}

/// `c[0] + c[1] x + c[2] x^2 + …` of at most 16 terms, summed by pairs.
#[inline(always)]
fn polynomial<const N: usize>(c: &[f64; N], x: f64) -> f64 {
    let (x2, x4, x8) = (x * x, (x * x) * (x * x), ((x * x) * (x * x)) * ((x * x) * (x * x)));
    let pair = |i: usize| if 2 * i + 1 < N { c[2 * i] + x * c[2 * i + 1] } else { c[2 * i] };
    let four = |i: usize| if 4 * i + 2 < N { pair(2 * i) + x2 * pair(2 * i + 1) } else { pair(2 * i) };
    let eight = |i: usize| if 8 * i + 4 < N { four(2 * i) + x4 * four(2 * i + 1) } else { four(2 * i) };
    if N > 8 { eight(0) + x8 * eight(1) } else { eight(0) }
}
