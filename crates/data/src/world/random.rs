//! Randomness as a pure function: every draw is a hash of a key and a counter.
//!
//! A world must give sample 7 to whoever asks for it, in any order and on any rank, so there is no generator
//! with a state. [`draw`] is wyrand's step number `counter` from the state `key`: one 64 x 64-bit product, a few
//! cycles. Keys must be well mixed themselves: they come from [`key_for`] or from another draw. Real-valued draws use additions and products only, so they have the same bits on every machine.

/// The step of wyrand's state.
const STEP: u64 = 0xa076_1d64_78bd_642f;
/// Folded into the product.
const FOLD: u64 = 0xe703_7ed1_a0b4_28db;

/// A hash of `counter` under `key`.
#[inline(always)]
pub fn draw(key: u64, counter: u64) -> u64 {
    let state = key.wrapping_add(counter.wrapping_add(1).wrapping_mul(STEP));
    let product = u128::from(state) * u128::from(state ^ FOLD);
    (product as u64) ^ (product >> 64) as u64
}

/// A key for one use of `seed`; different purposes are unrelated.
pub fn key_for(seed: u64, purpose: &str) -> u64 {
    purpose.bytes().fold(draw(seed, 0), |key, byte| draw(key, u64::from(byte)))
}

/// Uniform in `[0, 1)`, 53 bits.
#[inline(always)]
pub fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Uniform below `bound`; the bias of at most `bound / 2^64` does not matter here.
#[inline(always)]
pub fn below(bits: u64, bound: u64) -> u64 {
    ((u128::from(bits) * u128::from(bound)) >> 64) as u64
}

/// Nearly normal, mean 0 and variance 1: the sum of the four 16-bit lanes. It never leaves ±3.47.
#[inline(always)]
pub fn normal(bits: u64) -> f32 {
    let sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    (sum as i32 - 2 * 65_535) as f32 * (1.732_050_8 / 65_536.0)
}

/// Four values, uniform with mean 0 and variance 1, one from each 16-bit lane.
#[inline(always)]
pub fn four(bits: u64) -> [f32; 4] {
    let lane = |shift: u32| ((bits >> shift & 0xffff) as i32 * 2 - 65_535) as f32 * (1.732_050_8 / 65_536.0);
    [lane(0), lane(16), lane(32), lane(48)]
}

/// Levels of refinement of [`walk`]: straight between 2 to this power + 1 points.
const WALK_LEVELS: u32 = 3;

/// A random walk that starts at 0 and has variance `at` at time `at` in `[0, 1]`, asked for at one moment.
///
/// This is Lévy's construction of Brownian motion cut off after three halvings: a straight line to a random end,
/// then a random displacement of the middle of each half.
#[inline]
pub fn walk(key: u64, at: f32) -> f32 {
    let mut value = normal(draw(key, 0)) * at;
    let mut height = 0.5;
    for level in 0..WALK_LEVELS {
        let pieces = 1u32 << level;
        let position = at * pieces as f32;
        let piece = (position as u32).min(pieces - 1);
        let tent = 1.0 - (2.0 * (position - piece as f32) - 1.0).abs();
        value += normal(draw(key, u64::from(pieces + piece))) * height * tent;
        height *= std::f32::consts::FRAC_1_SQRT_2;
    }
    value
}

/// A finely resolved random walk over `[0, 1]`, of variance 1 at its end, kept as a table.
#[derive(Debug, Clone)]
pub struct FineWalk {
    points: Vec<f32>,
}

/// Straight pieces of a [`FineWalk`].
const FINE_PIECES: usize = 1024;

impl FineWalk {
    /// The walk of a key.
    pub fn new(key: u64) -> FineWalk {
        let mut points = vec![0.0; FINE_PIECES + 1];
        for piece in 0..FINE_PIECES {
            let step = normal(draw(key, piece as u64)) / (FINE_PIECES as f32).sqrt();
            points[piece + 1] = points[piece] + step;
        }
        FineWalk { points }
    }

    /// Where it is at `at` in `[0, 1]`.
    #[inline]
    pub fn at(&self, at: f32) -> f32 {
        let position = at * FINE_PIECES as f32;
        let piece = (position as usize).min(FINE_PIECES - 1);
        let (from, to) = (self.points[piece], self.points[piece + 1]);
        from + (to - from) * (position - piece as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: u64 = 200_000;

    fn moments(value: impl Fn(u64) -> f64) -> (f64, f64) {
        let (mut sum, mut square) = (0.0, 0.0);
        for counter in 0..COUNT {
            let x = value(counter);
            sum += x;
            square += x * x;
        }
        let mean = sum / COUNT as f64;
        (mean, square / COUNT as f64 - mean * mean)
    }

    #[test]
    fn draws_have_the_moments_they_promise() {
        // Six standard errors of a mean of 200 000 values of variance 1 are 0.0134; fixed keys, so no luck.
        let (mean, variance) = moments(|n| f64::from(normal(draw(11, n))));
        assert!(mean.abs() < 0.0134 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
        let (mean, variance) = moments(|n| f64::from(four(draw(12, n))[2]));
        assert!(mean.abs() < 0.0134 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
        let (mean, variance) = moments(|n| unit(draw(13, n)));
        assert!((mean - 0.5).abs() < 0.004 && (variance - 1.0 / 12.0).abs() < 0.002, "{mean} {variance}");
    }

    #[test]
    fn neighbouring_keys_and_counters_are_unrelated() {
        let value = |seed: u64| f64::from(normal(draw(key_for(seed, "a"), 5)));
        assert!(moments(|n| value(n) * value(n + 1)).0.abs() < 0.0134);
        let value = |index: u64| f64::from(normal(draw(draw(8, index), 5)));
        assert!(moments(|n| value(n) * value(n + 1)).0.abs() < 0.0134);
        let mixed = |n: u64| f64::from(normal(draw(9, n))) * f64::from(normal(draw(9, n + 1)));
        assert!(moments(mixed).0.abs() < 0.0134);
        assert_ne!(key_for(1, "labels"), key_for(1, "ids"));
        assert_ne!(key_for(1, "labels"), key_for(2, "labels"));
    }

    #[test]
    fn a_walk_starts_at_zero_is_continuous_and_spreads_with_time() {
        for key in 0..100 {
            assert_eq!(walk(key, 0.0), 0.0);
            assert_eq!(FineWalk::new(key).at(0.0), 0.0);
            for step in 0..100 {
                let (a, b) = (step as f32 / 100.0, step as f32 / 100.0 + 1e-4);
                assert!((walk(key, a) - walk(key, b)).abs() < 0.01);
            }
        }
        for (at, wanted) in [(0.25, 0.25), (0.5, 0.5), (1.0, 1.0)] {
            let (mean, variance) = moments(|n| f64::from(walk(draw(3, n), at)));
            assert!(mean.abs() < 0.02 && (variance - wanted).abs() < 0.02, "{at}: {mean} {variance}");
        }
        let ends: f64 = (0..4000).map(|key| f64::from(FineWalk::new(draw(4, key)).at(1.0)).powi(2)).sum();
        assert!((ends / 4000.0 - 1.0).abs() < 0.15, "{ends}");
    }
}
