//! AUC in constant memory: a histogram over the logit.
//!
//! Bins of equal width cover logits from -16 to 16; what lies outside falls into the outermost bins. A pair of a
//! positive and a negative sample in different bins is ordered exactly; a pair in one bin counts half. So the
//! error is at most half the weight of pairs that share a bin, which is itself known and reported:
//!
//! ```text
//!   |histogram AUC - exact AUC| <= sum over bins of positive * negative / 2 / (positives * negatives)
//! ```
//!
//! The actual error is far smaller, because inside a narrow bin the order is nearly even.

use serde::{Deserialize, Serialize};

use super::exact::Exact;
use super::values::finite;

/// Logits are told apart between minus this and this.
const LOGIT_MAX: f32 = 16.0;

/// Positive and negative weight by bins of the logit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Sparse", into = "Sparse")]
pub struct Histogram {
    bins: Vec<(f64, f64)>,
}

impl Histogram {
    /// An empty histogram.
    ///
    /// # Panics
    /// If `bin_count` is 0.
    pub fn new(bin_count: usize) -> Histogram {
        assert!(bin_count > 0, "a histogram needs a bin");
        Histogram { bins: vec![(0.0, 0.0); bin_count] }
    }

    /// Adds positive and negative weight at a logit; one that is not a number counts as the lowest.
    pub fn add(&mut self, logit: f32, positive: f64, negative: f64) {
        let count = self.bins.len();
        // A conversion to an integer holds at the ends and turns NaN into 0.
        let place = (logit + LOGIT_MAX) * (count as f32 / (2.0 * LOGIT_MAX));
        let bin = &mut self.bins[(place as usize).min(count - 1)];
        bin.0 += positive;
        bin.1 += negative;
    }

    /// Adds another histogram.
    ///
    /// # Panics
    /// If it has another number of bins.
    pub fn merge(&mut self, other: &Histogram) {
        assert_eq!(self.bins.len(), other.bins.len(), "histograms of different bins");
        for (bin, other) in self.bins.iter_mut().zip(&other.bins) {
            bin.0 += other.0;
            bin.1 += other.1;
        }
    }

    /// The AUC; `None` unless there are both classes.
    pub fn auc(&self) -> Option<f64> {
        area(self.bins.iter().copied())
    }

    /// How far off the AUC can be.
    pub fn auc_error_max(&self) -> Option<f64> {
        let (mut shared, mut positives, mut negatives) = (0.0, 0.0, 0.0);
        for (positive, negative) in &self.bins {
            shared += positive * negative;
            positives += positive;
            negatives += negative;
        }
        finite(0.5 * shared / (positives * negatives))
    }
}

/// The area under the curve of (positive, negative) weights that come by rising prediction; weights that come
/// together are tied and count half.
pub fn area(rising: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    let (mut positives, mut negatives, mut pairs) = (0.0, 0.0, 0.0);
    for (positive, negative) in rising {
        pairs += positive * (negatives + 0.5 * negative);
        positives += positive;
        negatives += negative;
    }
    if positives > 0.0 && negatives > 0.0 { finite(pairs / (positives * negatives)) } else { None }
}

/// How a histogram is written: its bins that are not empty.
#[derive(Serialize, Deserialize)]
struct Sparse {
    bin_count: usize,
    filled: Vec<(usize, Exact, Exact)>,
}

impl From<Histogram> for Sparse {
    fn from(histogram: Histogram) -> Sparse {
        let filled = histogram.bins.iter().enumerate().filter(|(_, bin)| **bin != (0.0, 0.0));
        Sparse {
            bin_count: histogram.bins.len(),
            filled: filled.map(|(place, &(p, n))| (place, Exact(p), Exact(n))).collect(),
        }
    }
}

impl From<Sparse> for Histogram {
    fn from(sparse: Sparse) -> Histogram {
        let mut bins = vec![(0.0, 0.0); sparse.bin_count.max(1)];
        for (place, positive, negative) in sparse.filled {
            if let Some(bin) = bins.get_mut(place) {
                *bin = (positive.0, negative.0);
            }
        }
        Histogram { bins }
    }
}
