//! Sums over samples from which NE, logloss, calibration and the histogram AUC follow; constant memory.

use campanile_spec::elementary::{exp, ln, ln_1p};
use serde::{Deserialize, Serialize};

use super::Scored;
use super::auc::Histogram;
use super::exact::Exact;
use super::values::{AucKind, MetricValues, SegmentValues, finite};

/// Segments above this share the last place.
const SEGMENTS_MAX: usize = 4096;

/// One sample, with what several sums need of it.
#[derive(Debug, Clone, Copy)]
pub struct One {
    /// Predicted logit.
    pub logit: f32,
    /// Its label.
    pub label: f64,
    /// Its weight.
    pub weight: f64,
    probability: f64,
    loss: f64,
    segment: Option<u32>,
    truth: Option<f64>,
}

impl One {
    /// A sample of `scored`; `None` when its label is absent.
    pub fn of(scored: &Scored<'_>, sample: usize) -> Option<One> {
        let (logit, label) = (scored.logits[sample], f64::from(scored.labels[sample]));
        if label.is_nan() {
            return None;
        }
        let z = f64::from(logit);
        // exp of something never positive: it cannot overflow.
        let small = exp(-z.abs());
        let larger = 1.0 / (1.0 + small);
        Some(One {
            logit,
            label,
            weight: scored.weights.get(sample).map_or(1.0, |&weight| f64::from(weight)),
            probability: if z >= 0.0 { larger } else { small * larger },
            loss: z.max(0.0) - z * label + ln_1p(small),
            segment: scored.segments.get(sample).copied(),
            truth: scored.true_probabilities.get(sample).map(|&p| f64::from(p)),
        })
    }
}

/// Sums over samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    count: u64,
    pub(super) non_finite: u64,
    weight: Exact,
    label: Exact,
    probability: Exact,
    loss: Exact,
    /// Weight of the samples whose true probability is known.
    true_weight: Exact,
    /// Their expected loss when predicted by the true probability.
    true_entropy: Exact,
    /// Their actual loss when predicted by the true probability.
    true_loss: Exact,
    histogram: Histogram,
    segments: Vec<SegmentSums>,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
struct SegmentSums {
    count: u64,
    weight: Exact,
    label: Exact,
    probability: Exact,
    #[serde(default)]
    loss: Exact,
}

impl Tally {
    /// No samples, with a histogram of `bins`.
    pub fn new(bins: usize) -> Tally {
        let zero = Exact::default();
        Tally {
            count: 0,
            non_finite: 0,
            weight: zero,
            label: zero,
            probability: zero,
            loss: zero,
            true_weight: zero,
            true_entropy: zero,
            true_loss: zero,
            histogram: Histogram::new(bins),
            segments: Vec::new(),
        }
    }

    /// Adds a sample.
    pub fn add(&mut self, one: &One) {
        let weight = one.weight;
        self.count += 1;
        self.non_finite += u64::from(!one.logit.is_finite());
        self.weight.0 += weight;
        self.label.0 += weight * one.label;
        self.probability.0 += weight * one.probability;
        self.loss.0 += weight * one.loss;
        self.histogram.add(one.logit, weight * one.label, weight * (1.0 - one.label));
        if let Some(truth) = one.truth {
            self.true_weight.0 += weight;
            self.true_entropy.0 += weight * cross_entropy(truth, truth);
            self.true_loss.0 += weight * cross_entropy(one.label, truth);
        }
        if let Some(segment) = one.segment {
            let place = (segment as usize).min(SEGMENTS_MAX - 1);
            if self.segments.len() <= place {
                self.segments.resize(place + 1, SegmentSums::default());
            }
            let sums = &mut self.segments[place];
            sums.count += 1;
            sums.weight.0 += weight;
            sums.label.0 += weight * one.label;
            sums.probability.0 += weight * one.probability;
            sums.loss.0 += weight * one.loss;
        }
    }

    /// Adds another tally with as many bins.
    pub fn merge(&mut self, other: &Tally) {
        self.count += other.count;
        self.non_finite += other.non_finite;
        self.weight.0 += other.weight.0;
        self.label.0 += other.label.0;
        self.probability.0 += other.probability.0;
        self.loss.0 += other.loss.0;
        self.true_weight.0 += other.true_weight.0;
        self.true_entropy.0 += other.true_entropy.0;
        self.true_loss.0 += other.true_loss.0;
        self.histogram.merge(&other.histogram);
        if self.segments.len() < other.segments.len() {
            self.segments.resize(other.segments.len(), SegmentSums::default());
        }
        for (sums, other) in self.segments.iter_mut().zip(&other.segments) {
            sums.count += other.count;
            sums.weight.0 += other.weight.0;
            sums.label.0 += other.label.0;
            sums.probability.0 += other.probability.0;
            sums.loss.0 += other.loss.0;
        }
    }

    /// What the sums say.
    pub fn values(&self) -> MetricValues {
        let rate = self.label.0 / self.weight.0;
        let entropy = cross_entropy(rate, rate);
        // Where all labels are equal there is nothing to compare with.
        let normalised = |loss: f64, weight: f64| finite(loss / weight / entropy).filter(|_| entropy > 0.0);
        let segment_ne = |sums: &SegmentSums| {
            let rate = sums.label.0 / sums.weight.0;
            finite(sums.loss.0 / sums.weight.0 / cross_entropy(rate, rate))
                .filter(|_| rate > 0.0 && rate < 1.0)
        };
        let segment = |(place, sums): (usize, &SegmentSums)| SegmentValues {
            segment: place as u32,
            name: None,
            count: sums.count,
            label_rate: finite(sums.label.0 / sums.weight.0),
            calibration: finite(sums.probability.0 / sums.label.0),
            ne: segment_ne(sums),
        };
        let auc = self.histogram.auc();
        MetricValues {
            count: self.count,
            non_finite: self.non_finite,
            label_rate: finite(rate),
            prediction_mean: finite(self.probability.0 / self.weight.0),
            logloss: finite(self.loss.0 / self.weight.0),
            ne: normalised(self.loss.0, self.weight.0),
            best_ne: normalised(self.true_entropy.0, self.true_weight.0),
            truth_ne: normalised(self.true_loss.0, self.true_weight.0),
            calibration: finite(self.probability.0 / self.label.0),
            auc,
            auc_kind: AucKind::Histogram { error_max: self.histogram.auc_error_max() },
            gauc: None,
            gauc_groups: 0,
            gauc_group_share: 0.0,
            segments: self
                .segments
                .iter()
                .enumerate()
                .filter(|(_, sums)| sums.count > 0)
                .map(segment)
                .collect(),
        }
    }
}

/// Cross-entropy of a label (or probability) with a predicted probability, which is kept 1e-12 off 0 and 1.
fn cross_entropy(label: f64, probability: f64) -> f64 {
    if label == probability && (label == 0.0 || label == 1.0) {
        return 0.0;
    }
    let p = probability.clamp(1e-12, 1.0 - 1e-12);
    -(label * ln(p) + (1.0 - label) * ln_1p(-p))
}
