//! How good predictions are: NE, logloss, AUC, GAUC, calibration, for one task.
//!
//! One rank adds all samples in the order of the global batch, so no value depends on the number of ranks. Sums
//! are in `f64`, and their state can be saved and restored to the bit: a resumed run reports what the
//! uninterrupted one would.
//!
//! ```text
//!   Scored (a step's logits, labels, ...) ──► TaskMetrics ┬─ since the start: Tally ──► MetricValues
//!                                                         ├─ last steps: ring of Tally ─► MetricValues
//!                                                         └─ Ranking: exact AUC and GAUC, bounded memory
//! ```
//!
//! Everything starts from logits, where `logloss = max(z, 0) - z*y + ln(1 + exp(-|z|))` loses nothing near
//! probabilities of 0 and 1. `docs/metrics.md` gives every formula.

mod auc;
mod exact;
mod ranking;
mod tally;
#[cfg(test)]
mod tests;
mod values;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

pub use auc::Histogram;
pub use ranking::{AUC_SAMPLES_MAX, GAUC_SAMPLES_MAX};
pub use values::{AucKind, MetricValues, SegmentValues};

use ranking::Ranking;
use tally::Tally;

/// Bins of the histogram over all samples since the start: 1/128 of a logit each.
const RUNNING_BINS: usize = 4096;
/// Bins of the window's histograms: 1/32 of a logit each.
const WINDOW_BINS: usize = 1024;
/// A window longer than this many steps is kept in parts of several steps.
const WINDOW_PARTS_MAX: u64 = 16;

/// What a model said of some samples and what they are judged by, in the order of the global batch.
///
/// All columns but the first two may be empty: weights are then one, the others unknown.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scored<'a> {
    /// Predicted logits.
    pub logits: &'a [f32],
    /// Labels; samples whose label is NaN are left out.
    pub labels: &'a [f32],
    /// Sample weights.
    pub weights: &'a [f32],
    /// Groups for GAUC.
    pub groups: &'a [u64],
    /// Segments for calibration by segment.
    pub segments: &'a [u32],
    /// True probabilities, which a synthetic world knows.
    pub true_probabilities: &'a [f32],
}

/// The metrics of one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskMetrics {
    running: Tally,
    window: Option<Window>,
    ranking: Option<Ranking>,
}

impl TaskMetrics {
    /// Metrics of a run: since the start, and over a window of the last `window_steps` calls of
    /// [`TaskMetrics::add`]. Memory is constant: AUC comes from a histogram, and there is no GAUC.
    ///
    /// A window longer than 16 steps moves by parts of a sixteenth, rounded up to whole steps: it never holds more
    /// than `window_steps`, and at most two parts fewer.
    pub fn for_training(window_steps: u64) -> TaskMetrics {
        let window = Some(Window::new(window_steps.max(1)));
        TaskMetrics { running: Tally::new(RUNNING_BINS), window, ranking: None }
    }

    /// Metrics of an evaluation: exact AUC and GAUC as long as the samples fit [`AUC_SAMPLES_MAX`] and
    /// [`GAUC_SAMPLES_MAX`]; there is no window.
    pub fn for_evaluation() -> TaskMetrics {
        TaskMetrics::for_evaluation_within(AUC_SAMPLES_MAX, GAUC_SAMPLES_MAX)
    }

    /// As [`TaskMetrics::for_evaluation`], with limits of one's own.
    pub fn for_evaluation_within(auc_samples_max: usize, gauc_samples_max: usize) -> TaskMetrics {
        let ranking = Some(Ranking::new(auc_samples_max, gauc_samples_max));
        TaskMetrics { running: Tally::new(RUNNING_BINS), window: None, ranking }
    }

    /// Adds the samples of a step.
    ///
    /// # Panics
    /// If a column is neither empty nor as long as the logits.
    pub fn add(&mut self, scored: &Scored<'_>) {
        scored.assert_lengths();
        let window = self.window.as_mut().map(Window::next_step);
        let mut tallies = [Some(&mut self.running), window];
        for sample in 0..scored.logits.len() {
            let Some(one) = tally::One::of(scored, sample) else {
                continue;
            };
            for tally in tallies.iter_mut().flatten() {
                tally.add(&one);
            }
            if let Some(ranking) = &mut self.ranking {
                ranking.add(&one, scored.groups.get(sample).copied());
            }
        }
    }

    /// The metrics of all samples since the start.
    pub fn snapshot(&self) -> MetricValues {
        let mut values = self.running.values();
        if let Some(ranking) = &self.ranking {
            ranking.improve(&mut values);
        }
        values
    }

    /// Samples so far whose logit was infinite or not a number.
    pub fn non_finite(&self) -> u64 {
        self.running.non_finite
    }

    /// The metrics of the last steps; `None` for an evaluation.
    pub fn window(&self) -> Option<MetricValues> {
        self.window.as_ref().map(|window| window.merged().values())
    }
}

impl Scored<'_> {
    fn assert_lengths(&self) {
        let count = self.logits.len();
        let others = [
            ("labels", self.labels.len()),
            ("weights", self.weights.len()),
            ("groups", self.groups.len()),
            ("segments", self.segments.len()),
            ("true probabilities", self.true_probabilities.len()),
        ];
        for (place, (column, length)) in others.into_iter().enumerate() {
            assert!(length == count || length == 0 && place > 0, "{length} {column} for {count} logits");
        }
    }
}

/// The last steps, as a ring of parts of equally many steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Window {
    part_steps: u64,
    parts_max: u64,
    steps_in_last: u64,
    parts: VecDeque<Tally>,
}

impl Window {
    fn new(steps: u64) -> Window {
        let part_steps = steps.div_ceil(WINDOW_PARTS_MAX);
        Window { part_steps, parts_max: steps / part_steps, steps_in_last: 0, parts: VecDeque::new() }
    }

    /// The tally that the next step belongs to.
    fn next_step(&mut self) -> &mut Tally {
        if self.parts.is_empty() || self.steps_in_last == self.part_steps {
            if self.parts.len() as u64 == self.parts_max {
                self.parts.pop_front();
            }
            self.parts.push_back(Tally::new(WINDOW_BINS));
            self.steps_in_last = 0;
        }
        self.steps_in_last += 1;
        let last = self.parts.len() - 1;
        &mut self.parts[last]
    }

    /// All parts together, the oldest first; nothing is ever taken away from a sum.
    fn merged(&self) -> Tally {
        let mut sum = Tally::new(WINDOW_BINS);
        self.parts.iter().for_each(|part| sum.merge(part));
        sum
    }
}
