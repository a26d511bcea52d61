//! Elementary functions and what follows from them: the loss, the course of a learning rate, a teacher's fading.
//!
//! Nothing here calls the system's own functions or the engine's. The method is the documented one: an argument is
//! reduced, and a Taylor polynomial summed by pairs, `c0 + c1 x`, `c2 + c3 x`, …, then these with `x^2`, and so on.

use std::f64::consts::{LN_2, LOG2_E, PI, SQRT_2};

use campanile_spec::{AdapterSpec, Batch, Distil, LearningRate, Schedule, distil::Word};

/// `ln 2` without its last 21 bits, and what is missing then.
const LN_2_PARTS: [f64; 2] =
    [f64::from_bits(LN_2.to_bits() & !0x1f_ffff), f64::from_bits(0x3dea_39ef_3579_3c76)];

fn by_pairs(terms: impl Iterator<Item = f64>, mut x: f64) -> f64 {
    let mut terms: Vec<f64> = terms.collect();
    while terms.len() > 1 {
        terms = terms.chunks(2).map(|pair| pair.get(1).map_or(pair[0], |next| pair[0] + x * next)).collect();
        x *= x;
    }
    terms[0]
}

/// `±1/n!`
fn over_factorial(n: i32, sign: i32) -> f64 {
    f64::from(sign) / (1..=n).map(f64::from).product::<f64>()
}

/// `2^exponent` of a normal number.
pub(crate) fn two_to(exponent: i64) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// `base^exponent` by squaring, the lowest bit of the exponent first.
pub(crate) fn whole_power(base: f64, exponent: u64) -> f64 {
    let squares = (0..64).scan(base, |square, bit| {
        let this = *square;
        *square *= this;
        Some((bit, this))
    });
    squares.filter(|(bit, _)| exponent >> bit & 1 == 1).fold(1.0, |product, (_, square)| product * square)
}

/// `exp(x + rest) * 2^exponent`.
fn exp_of_sum(x: f64, rest: f64, exponent: f64) -> f64 {
    let tail = by_pairs((2..14).map(|n| over_factorial(n, 1)), x);
    2.0 * (1.0 + (x + (x * x * tail + rest))) * two_to(exponent as i64 - 1)
}

pub(crate) fn exp(x: f64) -> f64 {
    let exponent = (x * LOG2_E).round_ties_even();
    let (high, low) = (x - exponent * LN_2_PARTS[0], exponent * LN_2_PARTS[1]);
    let inner = high - low;
    if x < -708.0 { 0.0 } else { exp_of_sum(inner, (high - inner) - low, exponent) }
}

fn exp2(x: f64) -> f64 {
    let exponent = x.round_ties_even();
    if x < -1021.0 { 0.0 } else { exp_of_sum((x - exponent) * LN_2, 0.0, exponent) }
}

/// `ln(x + rest)`.
fn ln_of_sum(x: f64, rest: f64) -> f64 {
    let mut exponent = (x.to_bits() >> 52) as i64 - 1023;
    exponent += i64::from(x / two_to(exponent) > SQRT_2);
    let (f, power) = (x / two_to(exponent) - 1.0, exponent as f64);
    let (s, half) = (f / (2.0 + f), 0.5 * f * f);
    let series = by_pairs((1..12).map(|n| 2.0 / f64::from(2 * n + 1)), s * s);
    let small = s * (half + s * s * series) + (power * LN_2_PARTS[1] + rest / x);
    power * LN_2_PARTS[0] - ((half - small) - f)
}

fn ln_1p(x: f64) -> f64 {
    let sum = 1.0 + x;
    ln_of_sum(sum, if x < 1.0 { x - (sum - 1.0) } else { 1.0 - (sum - x) })
}

/// The cosine of a share of half a turn.
fn cos_of_half_turn(share: f64) -> f64 {
    let sign = |n: i32| 1 - 2 * (n % 2);
    let cosine = |share: f64| {
        let square = (PI * share) * (PI * share);
        1.0 + square * by_pairs((1..9).map(|n| over_factorial(2 * n, sign(n))), square)
    };
    let x = PI * (0.5 - share);
    match share {
        ..=0.25 => cosine(share),
        0.75.. => -cosine(1.0 - share),
        _ => x + x * (x * x * by_pairs((1..9).map(|n| over_factorial(2 * n + 1, sign(n))), x * x)),
    }
}

/// A power of a number from 0 to 1: whole ones up to 4 by squaring, others by the logarithm.
fn power(base: f64, exponent: f64) -> f64 {
    match exponent {
        _ if exponent.trunc() == exponent && (0.0..=4.0).contains(&exponent) => {
            whole_power(base, exponent as u64)
        }
        _ if base == 0.0 => 0.0,
        _ => exp(exponent * ln_of_sum(base, 0.0)),
    }
}

/// `1 / (1 + exp(-z))`, without overflow.
pub(crate) fn sigmoid(z: f64) -> f64 {
    let tail = exp(-z.abs());
    if z >= 0.0 { 1.0 / (1.0 + tail) } else { tail / (1.0 + tail) }
}

/// The binary cross-entropy of a logit.
pub(crate) fn cross_entropy(z: f64, label: f64) -> f64 {
    z.max(0.0) - z * label + ln_1p(exp(-z.abs()))
}

/// The rate of the step after `steps` steps.
pub(crate) fn rate_after(steps: u64, learning_rate: &LearningRate) -> f32 {
    let done = |from: u64, until: u64| match steps {
        _ if steps < from => 0.0,
        _ if steps >= until => 1.0,
        _ => (steps - from) as f64 / (until - from) as f64,
    };
    let (warmup, end, left) = match learning_rate.schedule {
        Schedule::Constant => (0, 0.0, 1.0),
        Schedule::WarmupPolynomial {
            warmup_steps,
            decay_start,
            decay_steps,
            power: exponent,
            end_factor,
        } => {
            let left = power(1.0 - done(decay_start, decay_start + decay_steps), f64::from(exponent));
            (warmup_steps, f64::from(end_factor), left)
        }
        Schedule::Cosine { warmup_steps, total_steps, end_factor } => {
            let left = 0.5 * (1.0 + cos_of_half_turn(done(warmup_steps, total_steps)));
            (warmup_steps, f64::from(end_factor), left)
        }
    };
    let warm = if steps < warmup { (steps + 1) as f64 / warmup as f64 } else { 1.0 };
    (f64::from(learning_rate.base) * (warm * (end + (1.0 - end) * left))) as f32
}

/// What is left of a teacher's weight at an age.
pub(crate) fn fading(distil: &Distil, delay: f32) -> f64 {
    let fades = distil.fade_seconds > 0.0 && delay > 0.0;
    if fades { exp2(-f64::from(delay) / f64::from(distil.fade_seconds)) } else { 1.0 }
}

/// The weight of the pull of a sample's embedding, before that of the batch.
pub(crate) fn following_weight(batch: &Batch, distil: &Distil, sample: usize, scale: f64) -> f64 {
    let own = batch.weights.get(sample).map_or(1.0, |weight| f64::from(*weight));
    own * scale * fading(distil, *batch.teacher_delays.get(sample).unwrap_or(&f32::NAN))
}

/// What an adapter sees of a teacher's word: its logit, the logarithm of 1 + minutes, and which segment it is of.
pub(crate) fn adapter_inputs(adapter: &AdapterSpec, word: Word) -> Vec<f32> {
    let age = if word.delay > 0.0 { ln_1p(f64::from(word.delay) / 60.0) as f32 } else { 0.0 };
    let age = adapter.freshness.then_some(age);
    let segment = (0..adapter.segments).map(|segment| f32::from(u8::from(segment == word.segment as usize)));
    [word.logit].into_iter().chain(age).chain(segment).collect()
}
