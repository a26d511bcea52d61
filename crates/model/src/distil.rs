//! What a teacher adds to a loss: the gradient of its terms for the logits of all heads.
//!
//! ```text
//!   one_head    dz_S += w f (s(z_S) - min(alpha y_F, 1))
//!   auxiliary   dz_D  = w f (s(z_D) - min(alpha y_F, 1))
//!   adapter     the same, and  dz_A = v f (s(z_A) - p)           p: the adapter's, taken as it is
//! ```
//!
//! all times sample weight, task weight and one over the batch, in `f64`; zero where the teacher said nothing. The
//! words are [`Distil`]'s. The factor on the gradient for the shared layers is a layer of the network (`layer/scaled`).

use std::ops::Range;

use campanile_spec::{Batch, Distil, DistilMethod, distil::Word};

use crate::loss::terms;

/// What a student learns from.
#[derive(Debug, Clone, Copy)]
pub struct Lesson<'a> {
    /// How it listens.
    pub distil: &'a Distil,
    /// The samples.
    pub batch: &'a Batch,
    /// The adapter's probabilities `[task][sample]`; empty without one.
    pub corrected: &'a [f32],
    /// The tasks' weights in the loss.
    pub task_weights: &'a [f32],
    /// One over the size of the global batch.
    pub scale: f64,
}

impl Lesson<'_> {
    /// Adds the teacher's terms to the gradient of the logits `[sample][head][task]` of the given samples.
    ///
    /// # Panics
    /// If a length does not fit.
    pub fn add_teacher(&self, samples: Range<usize>, logits: &[f32], gradient: &mut [f32]) {
        let Lesson { distil, batch, corrected, task_weights, scale } = *self;
        if !distil.listens() || batch.teacher_logits.is_empty() {
            return;
        }
        let tasks = task_weights.len();
        let width = tasks * (1 + distil.extra_heads());
        assert_eq!(logits.len(), samples.len() * width, "logits of {tasks} tasks over all heads");
        assert_eq!(gradient.len(), logits.len(), "gradient of the logits");
        let first = usize::from(distil.method != DistilMethod::OneHead);
        for (n, sample) in samples.enumerate() {
            let (logits, gradient) = (&logits[n * width..][..width], &mut gradient[n * width..][..width]);
            for task in 0..tasks {
                let Some(word) = Word::of(batch, task, sample) else { continue };
                let own = batch.weights.get(sample).map_or(1.0, |weight| f64::from(*weight));
                let weight = own * f64::from(task_weights[task]) * scale * distil.fading(word.delay);
                let mut toward = |head: usize, target: f64, weight: f64| {
                    let place = head * tasks + task;
                    let probability = terms(f64::from(logits[place]), target).1;
                    gradient[place] += ((probability - target) * weight) as f32;
                };
                let said = terms(f64::from(word.logit), 0.0).1;
                let target = (f64::from(distil.label_scale) * said).min(1.0);
                toward(first, target, weight * f64::from(distil.weight));
                if distil.method == DistilMethod::Adapter {
                    let target = f64::from(corrected[task * batch.sample_count + sample]);
                    toward(2, target, weight * f64::from(distil.adapter.weight));
                }
            }
        }
    }
}
