//! Binary cross-entropy over logits, with sample weights, task weights and absent labels.
//!
//! ```text
//!   loss = (1/B) Σ_sample Σ_task  weight[sample] * weight[task] * (max(z,0) - z*y + ln(1 + e^-|z|))
//!   dz   = (1/B) weight[sample] * weight[task] * (sigmoid(z) - y)                 0 where y is absent (NaN)
//! ```
//!
//! Each term is computed in `f64` and each task's sum runs in sample order; the caller adds the sums of grains
//! along the tree of grains, as it does with gradients.

use std::ops::{Add, Range};

use campanile_spec::elementary::{exp, ln_1p};

/// Labels and weights of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Labels<'a> {
    /// Samples in the two arrays.
    pub sample_count: usize,
    /// `[task][sample]`, task-major; NaN where absent.
    pub labels: &'a [f32],
    /// One per sample; empty means all one.
    pub weights: &'a [f32],
}

/// One task's part of a loss.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TaskLoss {
    /// Sum over samples with a label of sample weight times cross-entropy.
    pub loss_sum: f64,
    /// Sum of those samples' weights.
    pub weight_sum: f64,
}

impl Add for TaskLoss {
    type Output = TaskLoss;

    fn add(self, other: TaskLoss) -> TaskLoss {
        TaskLoss { loss_sum: self.loss_sum + other.loss_sum, weight_sum: self.weight_sum + other.weight_sum }
    }
}

/// Writes the gradient of the mean loss for the logits `[sample][task]` of the given samples, and returns each
/// task's sums. `scale` is one over the size of the global batch. Where samples have more logits than tasks, those
/// behind the tasks' own get no gradient.
///
/// # Panics
/// If a length does not fit.
pub fn binary_cross_entropy(
    batch: Labels<'_>,
    samples: Range<usize>,
    task_weights: &[f32],
    scale: f64,
    logits: &[f32],
    gradient: &mut [f32],
) -> Vec<TaskLoss> {
    let tasks = task_weights.len();
    assert!(samples.end <= batch.sample_count, "samples {samples:?} of {}", batch.sample_count);
    assert_eq!(batch.labels.len(), tasks * batch.sample_count, "labels of {tasks} tasks");
    assert!(batch.weights.is_empty() || batch.weights.len() == batch.sample_count, "one weight a sample");
    let width = logits.len().checked_div(samples.len()).unwrap_or(tasks);
    assert!(width >= tasks && logits.len() == samples.len() * width, "logits of {tasks} tasks");
    assert_eq!(gradient.len(), logits.len(), "gradient of the logits");
    if width > tasks {
        gradient.fill(0.0);
    }
    let mut losses = vec![TaskLoss::default(); tasks];
    for (task, loss) in losses.iter_mut().enumerate() {
        let labels = &batch.labels[task * batch.sample_count..][..batch.sample_count];
        let task_weight = f64::from(task_weights[task]);
        for (n, sample) in samples.clone().enumerate() {
            let (label, place) = (f64::from(labels[sample]), n * width + task);
            if label.is_nan() {
                gradient[place] = 0.0;
                continue;
            }
            let weight = batch.weights.get(sample).map_or(1.0, |weight| f64::from(*weight));
            let (cross_entropy, probability) = terms(f64::from(logits[place]), label);
            loss.loss_sum += weight * cross_entropy;
            loss.weight_sum += weight;
            gradient[place] = ((probability - label) * (weight * task_weight * scale)) as f32;
        }
    }
    losses
}

/// The cross-entropy of a logit, and its probability; neither overflows.
pub(crate) fn terms(logit: f64, label: f64) -> (f64, f64) {
    let tail = exp(-logit.abs());
    let probability = if logit >= 0.0 { 1.0 / (1.0 + tail) } else { tail / (1.0 + tail) };
    (logit.max(0.0) - logit * label + ln_1p(tail), probability)
}

/// The mean loss of a batch from its tasks' sums.
pub fn mean_loss(losses: &[TaskLoss], task_weights: &[f32], sample_count: usize) -> f64 {
    let weighted = losses.iter().zip(task_weights).map(|(loss, weight)| f64::from(*weight) * loss.loss_sum);
    weighted.sum::<f64>() / sample_count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_labels_and_weights_count_as_they_should() {
        let labels = [1.0, f32::NAN, 0.0, 0.0, 1.0, 1.0];
        let batch = Labels { sample_count: 3, labels: &labels, weights: &[1.0, 2.0, 4.0] };
        let mut gradient = [9.0; 4];
        let losses = binary_cross_entropy(batch, 1..3, &[1.0, 0.5], 0.25, &[0.0; 4], &mut gradient);
        let half = 2f64.ln();
        assert_eq!(losses[0], TaskLoss { loss_sum: 4.0 * half, weight_sum: 4.0 });
        assert_eq!(losses[1], TaskLoss { loss_sum: 2.0 * half + 4.0 * half, weight_sum: 6.0 });
        // Sample by sample: no label, then weight 2 * 0.5 * 0.25 * -0.5; weight 4 * 0.25 * 0.5, then -4 * ….
        assert_eq!(gradient, [0.0, -0.125, 0.5, -0.25]);
        assert_eq!(mean_loss(&losses, &[1.0, 0.5], 4), (4.0 * half + 0.5 * (6.0 * half)) / 4.0);
    }

    #[test]
    fn far_logits_stay_finite() {
        for (logit, label, expected) in [(1e4, 0.0, 1e4), (1e4, 1.0, 0.0), (-1e4, 1.0, 1e4), (-1e4, 0.0, 0.0)]
        {
            assert_eq!(terms(logit, label).0, expected);
        }
        assert_eq!((terms(1e4, 1.0).1, terms(-1e4, 1.0).1), (1.0, 0.0));
    }
}
