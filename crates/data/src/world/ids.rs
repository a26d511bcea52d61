//! Which ids a feature shows at a moment of the stream.
//!
//! ```text
//!   uniform draw ──Zipf──► slot (0 = most popular) ──moment──► generation ──scatter──► row
//! ```
//!
//! A feature has `live` slots of fixed popularity. Each slot is held by one id after another: at moment `t` of
//! the stream (0 to 1) by generation `floor(turnover * t + phase)`, where the phase is the slot's own, so ids are
//! born and die one by one all along the stream, and an id's whole life can be told from its row alone. Without
//! turnover there is one generation. Rows are scattered by `row = (a * place + b) mod vocabulary` with `a` prime
//! to the vocabulary, so hot ids are not neighbours.

use std::ops::Range;

use campanile_spec::world::WorldSpec;

use super::maths::{exp, ln};
use super::random::{below, draw, key_for, unit};

/// The ids of one feature.
#[derive(Debug, Clone)]
pub struct Ids {
    /// Fewest and most ids of a bag.
    pub bag: (u32, u32),
    vocabulary: u64,
    live: u64,
    turnover: f64,
    phase_key: u64,
    multiplier: u64,
    inverse: u64,
    shift: u64,
    zipf: Zipf,
}

impl Ids {
    /// The ids of `feature` in a checked world.
    pub fn new(spec: &WorldSpec, seed: u64, feature: usize) -> Ids {
        let key = draw(key_for(seed, "ids"), feature as u64);
        let vocabulary = spec.vocabulary.at(feature);
        let turnover = spec.turnover.at(feature);
        let live = vocabulary / (turnover.ceil() as u64 + 1);
        let (multiplier, inverse) = scatter(vocabulary, draw(key, 0));
        Ids {
            bag: (spec.bag_min.at(feature), spec.bag_max.at(feature)),
            vocabulary,
            live,
            turnover,
            phase_key: draw(key, 2),
            multiplier,
            inverse,
            shift: below(draw(key, 1), vocabulary),
            zipf: Zipf::new(live, spec.zipf_exponent.at(feature)),
        }
    }

    /// The row that the random `bits` choose at `moment` of the stream, in `[0, 1)`.
    #[inline]
    pub fn row(&self, bits: u64, moment: f64) -> u32 {
        let slot = self.zipf.slot(unit(bits));
        let mut place = slot;
        if self.turnover > 0.0 {
            place += self.live * (self.turnover * moment + self.phase(slot)) as u64;
        }
        ((place * self.multiplier + self.shift) % self.vocabulary) as u32
    }

    /// The part of the stream, from 0 to 1, in which `row` can appear; `None` when it never does.
    pub fn life(&self, row: u32) -> Option<Range<f64>> {
        let back = (u64::from(row) + self.vocabulary - self.shift) % self.vocabulary;
        let place = back * self.inverse % self.vocabulary;
        if self.turnover == 0.0 {
            return Some(0.0..1.0);
        }
        let (generation, slot) = (place / self.live, place % self.live);
        let born = (generation as f64 - self.phase(slot)) / self.turnover;
        let dies = (generation as f64 + 1.0 - self.phase(slot)) / self.turnover;
        (born < 1.0).then(|| born.max(0.0)..dies.min(1.0))
    }

    #[inline]
    fn phase(&self, slot: u64) -> f64 {
        unit(draw(self.phase_key, slot))
    }
}

/// A number prime to `modulus` near a random place, and its inverse.
fn scatter(modulus: u64, bits: u64) -> (u64, u64) {
    let mut candidate = below(bits, modulus) | 1;
    loop {
        if let Some(inverse) = inverse_of(candidate % modulus, modulus) {
            return (candidate % modulus, inverse);
        }
        candidate += 2;
    }
}

/// The inverse of `value` modulo `modulus`, if they share no factor; modulo 1 everything is 0.
fn inverse_of(value: u64, modulus: u64) -> Option<u64> {
    if modulus == 1 {
        return Some(0);
    }
    let (mut a, mut b) = (modulus as i128, value as i128);
    let (mut x, mut y) = (0i128, 1i128);
    while b != 0 {
        let quotient = a / b;
        (a, b) = (b, a - quotient * b);
        (x, y) = (y, x - quotient * y);
    }
    (a == 1).then(|| x.rem_euclid(modulus as i128) as u64)
}

/// Ranks with power-law popularity, by inverting a continuous distribution.
///
/// Rank k (from 1) gets the mass of `x^-s` between `k - 1/2` and `k + 1/2`, which is `k^-s` within a few per cent
/// for the first ranks and ever closer after. The inverse is one `ln` and one `exp`, so a vocabulary of forty
/// million ids needs no table of its own; a small guide tells the popular ranks, most of the draws, without them.
#[derive(Debug, Clone)]
struct Zipf {
    count: u64,
    /// `1 - s`, or 0 where `s` is so close to 1 that the logarithm takes over.
    power: f64,
    /// `1 / power`: a product is cheaper than a division.
    root: f64,
    low: f64,
    width: f64,
    /// The slots at the ends of equal pieces of `[0, 1]`: where both ends of a piece agree, so does its inside.
    guide: Vec<u32>,
}

/// Pieces of the guide; 16 KiB a feature, so those of a whole world stay in the second-level cache.
const GUIDE_PIECES: usize = 4096;

impl Zipf {
    fn new(count: u64, exponent: f64) -> Zipf {
        let power = if (exponent - 1.0).abs() < 1e-6 { 0.0 } else { 1.0 - exponent };
        let low = Zipf::raise(power, 0.5);
        let width = Zipf::raise(power, count as f64 + 0.5) - low;
        let mut zipf = Zipf { count, power, root: 1.0 / power, low, width, guide: Vec::new() };
        let ends = (0..=GUIDE_PIECES).map(|end| zipf.inverse(end as f64 / GUIDE_PIECES as f64) as u32);
        zipf.guide = ends.collect();
        zipf
    }

    /// The antiderivative of `x^-s`, up to a factor.
    fn raise(power: f64, x: f64) -> f64 {
        if power == 0.0 { ln(x) } else { exp(power * ln(x)) }
    }

    #[inline]
    fn slot(&self, u: f64) -> u64 {
        let piece = (u * GUIDE_PIECES as f64) as usize;
        let (from, to) = (self.guide[piece], self.guide[piece + 1]);
        if from == to { u64::from(from) } else { self.inverse(u) }
    }

    #[inline]
    fn inverse(&self, u: f64) -> u64 {
        let y = self.low + u * self.width;
        let x = if self.power == 0.0 { exp(y) } else { exp(ln(y) * self.root) };
        ((x + 0.5) as u64).clamp(1, self.count) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use campanile_spec::world::PerFeature;

    fn ids(vocabulary: u64, exponent: f64, turnover: f64) -> Ids {
        let spec = WorldSpec {
            vocabulary: PerFeature::All(vocabulary),
            zipf_exponent: PerFeature::All(exponent),
            turnover: PerFeature::All(turnover),
            ..WorldSpec::default()
        };
        Ids::new(&spec, 5, 3)
    }

    fn probability(zipf: &Zipf, slot: u64) -> f64 {
        let x = slot as f64;
        (Zipf::raise(zipf.power, x + 1.5) - Zipf::raise(zipf.power, x + 0.5)) / zipf.width
    }

    #[test]
    fn popularity_falls_as_the_power_law() {
        for exponent in [0.0, 0.6, 1.0, 1.05, 2.0] {
            let ids = ids(1000, exponent, 0.0);
            let total: f64 = (0..1000).map(|slot| probability(&ids.zipf, slot)).sum();
            assert!((total - 1.0).abs() < 1e-9, "{exponent}: {total}");
            let ratio = probability(&ids.zipf, 99) / probability(&ids.zipf, 9);
            assert!((ratio.log10() + exponent).abs() < 0.01, "{exponent}: {ratio}");

            let mut counts = vec![0f64; 1000];
            let draws = 400_000u64;
            for n in 0..draws {
                counts[ids.zipf.slot(unit(draw(7, n))) as usize] += 1.0;
            }
            for slot in [0usize, 1, 2, 9, 99, 999] {
                let wanted = probability(&ids.zipf, slot as u64) * draws as f64;
                // Five standard deviations of a Poisson count.
                assert!((counts[slot] - wanted).abs() < 5.0 * wanted.sqrt() + 1.0, "{exponent} {slot}");
            }
        }
    }

    #[test]
    fn scattering_is_a_permutation_and_hot_ids_are_apart() {
        for vocabulary in [1, 2, 3, 10, 97, 1000, 4096] {
            let ids = ids(vocabulary, 1.0, 0.0);
            let mut rows: Vec<u64> =
                (0..vocabulary).map(|place| (place * ids.multiplier + ids.shift) % vocabulary).collect();
            for (place, &row) in rows.iter().enumerate() {
                let back = (row + vocabulary - ids.shift) % vocabulary * ids.inverse % vocabulary;
                assert_eq!(back, place as u64);
            }
            rows.sort_unstable();
            assert!(rows.into_iter().eq(0..vocabulary));
        }
        let ids = ids(1000, 1.0, 0.0);
        let hot: Vec<i64> = (0..5).map(|p| ((p * ids.multiplier + ids.shift) % 1000) as i64).collect();
        assert!(hot.windows(2).all(|pair| (pair[0] - pair[1]).abs() > 1), "{hot:?}");
    }

    #[test]
    fn an_id_appears_only_during_its_life() {
        let ids = ids(1000, 0.5, 2.5);
        assert_eq!(ids.live, 250);
        let (mut early, mut late) = (vec![false; 1000], vec![false; 1000]);
        for n in 0..200_000u64 {
            let moment = n as f64 / 200_000.0;
            let row = ids.row(draw(1, n), moment);
            let life = ids.life(row).unwrap();
            assert!(life.start - 1e-9 <= moment && moment <= life.end + 1e-9, "{moment} {life:?}");
            let seen = if moment < 0.5 { &mut early } else { &mut late };
            seen[row as usize] = true;
        }
        assert!(early.iter().zip(&late).any(|(&e, &l)| e && !l), "some ids retired");
        assert!(early.iter().zip(&late).any(|(&e, &l)| !e && l), "some ids arrived");
        let never = (0..1000).filter(|&row| ids.life(row).is_none()).count();
        assert!((1..250).contains(&never), "{never} of the last generation never came");
    }

    #[test]
    fn a_single_id_is_always_row_zero() {
        let ids = ids(1, 1.05, 0.0);
        assert!((0..100).all(|n| ids.row(draw(2, n), 0.5) == 0));
    }
}
