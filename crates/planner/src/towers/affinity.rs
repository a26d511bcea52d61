//! How strongly features interact, measured on the vectors of a trained probe.

use serde::{Deserialize, Serialize};

use super::{Square, Strategy};

/// What is measured of two features' vectors in every sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// The absolute cosine: how alike the directions are.
    Cosine,
    /// The absolute inner product, as DLRM's interaction has it; scaled so that the largest is 1.
    Dot,
}

/// Affinities of all pairs of features, from 0 to 1, and 1 of a feature with itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Affinity {
    values: Square,
}

/// Sums over samples, from which affinities are made.
#[derive(Debug, Clone)]
pub struct Meter {
    features: usize,
    measure: Measure,
    sums: Vec<f64>,
    counts: Vec<u64>,
    norms: Vec<f64>,
}

impl Meter {
    /// For some features whose vectors have one width.
    pub fn new(features: usize, measure: Measure) -> Meter {
        let pairs = features * features;
        Meter {
            features,
            measure,
            sums: vec![0.0; pairs],
            counts: vec![0; pairs],
            norms: vec![0.0; features],
        }
    }

    /// Adds one sample: all features' vectors side by side, each of `width` floats. A vector of zeros (an empty bag)
    /// has no direction, and counts for no pair.
    ///
    /// # Panics
    /// If the length does not fit.
    pub fn add(&mut self, vectors: &[f32], width: usize) {
        assert_eq!(vectors.len(), self.features * width, "vectors of {} features", self.features);
        let vector = |feature: usize| &vectors[feature * width..][..width];
        let dot =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        for feature in 0..self.features {
            self.norms[feature] = dot(vector(feature), vector(feature)).sqrt();
        }
        for i in 0..self.features {
            for j in 0..i {
                let norm = self.norms[i] * self.norms[j];
                if norm > 0.0 {
                    let size = dot(vector(i), vector(j)).abs();
                    let value = if self.measure == Measure::Cosine { size / norm } else { size };
                    self.sums[i * self.features + j] += value;
                    self.counts[i * self.features + j] += 1;
                }
            }
        }
    }

    /// The means over the samples. Pairs that never met have affinity 0.
    pub fn finish(&self) -> Affinity {
        let mean = |i: usize, j: usize| {
            let place = i.max(j) * self.features + i.min(j);
            if self.counts[place] == 0 { 0.0 } else { self.sums[place] / self.counts[place] as f64 }
        };
        let pairs = (0..self.features).flat_map(|i| (0..i).map(move |j| (i, j)));
        let largest = match self.measure {
            Measure::Cosine => 1.0,
            Measure::Dot => pairs.map(|(i, j)| mean(i, j)).fold(0.0, f64::max).max(f64::MIN_POSITIVE),
        };
        Affinity::new(Square::from_fn(self.features, |i, j| mean(i, j) / largest))
    }
}

impl Affinity {
    /// From any table; it is made symmetric and kept within 0 and 1.
    pub fn new(table: Square) -> Affinity {
        let value = |i: usize, j: usize| (0.5 * (table.at(i, j) + table.at(j, i))).clamp(0.0, 1.0);
        Affinity { values: Square::from_fn(table.side(), |i, j| if i == j { 1.0 } else { value(i, j) }) }
    }

    /// How many features.
    pub fn features(&self) -> usize {
        self.values.side()
    }

    /// Of one pair.
    pub fn at(&self, i: usize, j: usize) -> f64 {
        self.values.at(i, j)
    }

    /// The distances that a strategy wants between features; they run from 0 to 1 over the pairs that there are, so that
    /// a weakly trained probe, whose affinities are all small, is spread as widely as a well trained one.
    pub fn distances(&self, strategy: Strategy) -> Square {
        let features = self.features();
        let pairs = || (0..features).flat_map(|i| (0..i).map(move |j| (i, j)));
        let least = pairs().map(|(i, j)| self.at(i, j)).fold(f64::INFINITY, f64::min);
        let greatest = pairs().map(|(i, j)| self.at(i, j)).fold(f64::NEG_INFINITY, f64::max);
        let range = (greatest - least).max(f64::MIN_POSITIVE);
        Square::from_fn(features, |i, j| match strategy {
            _ if i == j => 0.0,
            Strategy::Coherent => (greatest - self.at(i, j)) / range,
            Strategy::Diverse => (self.at(i, j) - least) / range,
        })
    }
}
