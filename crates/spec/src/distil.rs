//! How a student learns from a teacher's logits, beside its labels.
//!
//! With `y_F = s(teacher's logit)`, `s` the sigmoid, `h(z, y)` the binary cross-entropy, `x` the vector that the
//! serving logit `z_S` is made of, and `f` the fading with the teacher's age, the loss of a sample and task is
//!
//! ```text
//!   none        h(z_S, y)
//!   one_head    h(z_S, y) + w f h(z_S, min(alpha y_F, 1))                    the teacher's bias is served
//!   auxiliary   h(z_S, y) + w f h(z_D, min(alpha y_F, 1))                    z_D: a head of its own on x
//!   adapter     auxiliary + v f h(z_A, SG(p))                                z_A: a second one
//!   p = s(logit + A(logit, age, segment));  A: a small MLP trained by h(p, y) alone, with its own optimizer
//! ```
//!
//! `x` reaches the extra heads unchanged, and their gradient for `x` is multiplied by `beta`; the heads' own weights
//! see the gradient as it is. A sample or task without a teacher's word trains on its label alone. The heads and the
//! adapter exist in training only: what is served has neither.

use crate::{
    Batch,
    config::keys::{defaults, section, words},
    elementary::{exp2, ln_1p},
    model::{Heads, ModelSpec, NetworkSpec, Precision, TaskSpec},
    optimizer::DenseOptimizer,
    towers::Towers,
};

words! {
    /// How a student listens to its teacher.
    pub enum DistilMethod {
        /// Not at all, whatever the data has.
        None,
        /// The serving head learns from labels and teacher alike, and takes over the teacher's bias: a baseline.
        OneHead,
        /// A head of its own learns from the teacher; the serving head learns from labels, and gains through the layers
        /// that both share.
        Auxiliary,
        /// As `auxiliary`, and a second head learns from the teacher as corrected by a small network that follows the
        /// labels: for a teacher that is late.
        Adapter,
    }
}

section! {
    /// How a student learns from the teacher's logits that stand in its data. Heads and adapter are trained and kept
    /// in checkpoints, and left out of what is published, served and exported. `docs/distillation.md` is the guide.
    #[derive(Copy)]
    #[serde(deny_unknown_fields)]
    pub struct Distil {
        /// How the student listens.
        pub method: DistilMethod = DistilMethod::None,
        /// The weight `w` of what the teacher says, beside a label's 1.
        pub weight: f32 = 1.0,
        /// The teacher's probability is multiplied by this `alpha`, up to 1: positives are rare, and its signal weak.
        pub label_scale: f32 = 1.0,
        /// The gradient that the extra heads send into the shared layers is multiplied by this `beta`; not for
        /// `one_head`, which has no extra head.
        pub gradient_scale: f32 = 1.0,
        /// The teacher's weight halves with every so many seconds of its age; 0 means that it does not fade.
        pub fade_seconds: f32 = 0.0,
        /// The correction of a late teacher, for `adapter`.
        pub adapter: AdapterSpec,
    }
}

section! {
    /// A small network on the teacher's logit, one for each task: it learns from the labels alone, what to add to the
    /// logit. It begins with nothing to add.
    #[derive(Copy)]
    #[serde(deny_unknown_fields)]
    pub struct AdapterSpec {
        /// The weight `v` of the corrected teacher, beside a label's 1.
        pub weight: f32 = 1.0,
        /// Units of its hidden layer; 0 means none: the logit is then scaled and shifted.
        pub hidden: usize = 0,
        /// Segments with a correction of their own, those numbered below this; 0 means one correction for all.
        pub segments: usize = 0,
        /// Whether it sees how old the teacher's word is, as the logarithm of 1 + minutes.
        pub freshness: bool = false,
        /// How its weights move.
        pub optimizer: DenseOptimizer = DenseOptimizer::Adagrad { epsilon: 1e-8, initial: 0.0 },
        /// Its learning rate.
        pub learning_rate: f32 = 0.05,
    }
}

defaults!(Distil, AdapterSpec);

/// The teacher's word on one sample and task.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Word {
    /// Its logit.
    pub logit: f32,
    /// Its age in seconds; NaN where unknown.
    pub delay: f32,
    /// The sample's segment; 0 where there are none.
    pub segment: u32,
}

impl Word {
    /// What the teacher said of a sample, if anything.
    pub fn of(batch: &Batch, task: usize, sample: usize) -> Option<Word> {
        let logit = *batch.teacher_logits.get(task * batch.sample_count + sample)?;
        let delay = *batch.teacher_delays.get(sample).unwrap_or(&f32::NAN);
        let segment = *batch.segments.get(sample).unwrap_or(&0);
        (!logit.is_nan()).then_some(Word { logit, delay, segment })
    }
}

impl Distil {
    /// Heads beside the serving one, for each task.
    pub fn extra_heads(&self) -> usize {
        match self.method {
            DistilMethod::None | DistilMethod::OneHead => 0,
            DistilMethod::Auxiliary => 1,
            DistilMethod::Adapter => 2,
        }
    }

    /// Whether the teacher has a say at all.
    pub fn listens(&self) -> bool {
        self.method != DistilMethod::None
    }

    /// What is left of a teacher's weight at an age in seconds; all of it where the age is unknown.
    pub fn fading(&self, delay: f32) -> f64 {
        if self.fade_seconds > 0.0 && delay > 0.0 {
            exp2(-f64::from(delay) / f64::from(self.fade_seconds))
        } else {
            1.0
        }
    }

    /// Whether there is nothing to note of it in a job.
    pub fn is_default(&self) -> bool {
        *self == Distil::default()
    }
}

impl AdapterSpec {
    /// Numbers that the adapter sees.
    pub fn input_count(&self) -> usize {
        1 + usize::from(self.freshness) + self.segments
    }

    /// Writes what the adapter sees: the logit, the age, and a one at the segment's place.
    ///
    /// # Panics
    /// If `inputs` has not [`AdapterSpec::input_count`] places.
    pub fn write_inputs(&self, word: Word, inputs: &mut [f32]) {
        assert_eq!(inputs.len(), self.input_count(), "inputs of an adapter");
        inputs.fill(0.0);
        inputs[0] = word.logit;
        if self.freshness && word.delay > 0.0 {
            inputs[1] = ln_1p(f64::from(word.delay) / 60.0) as f32;
        }
        let first = inputs.len() - self.segments;
        if (word.segment as usize) < self.segments {
            inputs[first + word.segment as usize] = 1.0;
        }
    }

    /// The network of one task's adapter: dense inputs and no tables.
    pub fn model(&self) -> ModelSpec {
        ModelSpec {
            dense_count: self.input_count(),
            features: Vec::new(),
            tables: Vec::new(),
            tasks: vec![TaskSpec { name: "label".to_owned(), weight: 1.0 }],
            network: NetworkSpec::Mlp {
                hidden: if self.hidden > 0 { vec![self.hidden] } else { Vec::new() },
            },
            heads: Heads::Shared,
            precision: Precision::F32,
            towers: Towers::default(),
            followers: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_teacher_fades_by_halves() {
        let distil = Distil { fade_seconds: 60.0, ..Distil::default() };
        assert_eq!([0.0, 60.0, 180.0].map(|delay| distil.fading(delay)), [1.0, 0.5, 0.125]);
        assert_eq!(distil.fading(f32::NAN), 1.0);
        assert_eq!(Distil::default().fading(1e9), 1.0);
    }

    #[test]
    fn an_adapter_sees_logit_age_and_segment() {
        let adapter = AdapterSpec { segments: 2, freshness: true, ..AdapterSpec::default() };
        let seen = |segment, delay| {
            let mut inputs = [9.0; 4];
            adapter.write_inputs(Word { logit: -1.5, delay, segment }, &mut inputs);
            inputs
        };
        assert_eq!(seen(1, 0.0), [-1.5, 0.0, 0.0, 1.0]);
        assert_eq!(seen(2, f32::NAN), [-1.5, 0.0, 0.0, 0.0]);
        assert_eq!(seen(0, 60.0), [-1.5, 2f64.ln() as f32, 1.0, 0.0]);
    }
}
