//! The adapters: one small network a task, which learns from labels what to add to a late teacher's logit.
//!
//! They are no part of the model: they take nothing from it, and it takes their probabilities as they are. All their
//! weights lie in one flat vector, task after task, so that ranks can add up gradients and checkpoints can keep them as
//! they do with the model's. Their last layers begin at zero: before the first step the teacher is taken at its word.

use std::ops::Range;

use campanile_kernels::Isa;
use campanile_spec::{AdapterSpec, Batch, LearningRate, Schedule, config::DenseTraining, distil::Word};

use crate::{
    ModelError, Network, Workspace,
    loss::terms,
    network::{BACKWARD_SAMPLES_MAX, Inputs, Outputs},
    optimizer::Update,
};

/// The adapters of all tasks.
#[derive(Debug)]
pub struct Adapters {
    spec: AdapterSpec,
    tasks: Vec<String>,
    /// One, for they are all alike; it holds the weights of the task at work.
    network: Network,
    workspace: Workspace,
    inputs: Vec<f32>,
    slopes: Vec<f32>,
}

impl Adapters {
    /// One adapter for each task.
    ///
    /// # Errors
    /// When the shapes do not fit.
    pub fn new(spec: AdapterSpec, tasks: Vec<String>, isa: Isa) -> Result<Adapters, ModelError> {
        let network = Network::new(&spec.model(), isa)?;
        let workspace = network.workspace(BACKWARD_SAMPLES_MAX);
        Ok(Adapters { spec, tasks, network, workspace, inputs: Vec::new(), slopes: Vec::new() })
    }

    /// Weights of all adapters.
    pub fn parameter_count(&self) -> usize {
        self.tasks.len() * self.network.parameter_count()
    }

    /// The weights by name and shape, in the order of the flat vector.
    pub fn parameters(&self) -> impl Iterator<Item = (String, &[usize])> {
        self.tasks.iter().flat_map(|task| {
            let named = move |p: &crate::Parameter| format!("adapter.{task}.{}", p.name);
            self.network.parameters().iter().map(move |p| (named(p), &p.shape[..]))
        })
    }

    /// The first values: those of any network, but zeros in the last layers.
    pub fn initial_parameters(&self, seed: u64) -> Vec<f32> {
        let mut one = self.network.initial_parameters(seed);
        if let [.., weight, _] = self.network.parameters() {
            one[weight.range.clone()].fill(0.0);
        }
        one.repeat(self.tasks.len())
    }

    /// How the weights move.
    pub fn training(&self) -> DenseTraining {
        let learning_rate = LearningRate { base: self.spec.learning_rate, schedule: Schedule::Constant };
        DenseTraining { optimizer: self.spec.optimizer, learning_rate, l2: 0.0, norm_max: 0.0 }
    }

    /// Writes a grain's gradient of the adapters' own loss, cross-entropy with the labels. `scale` is one over the size
    /// of the global batch.
    ///
    /// # Panics
    /// If a length does not fit, or the grain has more than [`BACKWARD_SAMPLES_MAX`] samples.
    pub fn gradient(
        &mut self,
        parameters: &[f32],
        batch: &Batch,
        samples: Range<usize>,
        scale: f64,
        gradient: &mut [f32],
    ) {
        let count = self.network.parameter_count();
        for (task, own) in gradient.chunks_exact_mut(count).enumerate() {
            self.added(&parameters[task * count..][..count], batch, task, samples.clone());
            let added = self.workspace.logits(samples.len());
            self.slopes.clear();
            self.slopes.extend(samples.clone().zip(added).map(|(sample, added)| {
                let label = f64::from(batch.labels[task * batch.sample_count + sample]);
                let Some(word) = Word::of(batch, task, sample).filter(|_| !label.is_nan()) else {
                    return 0.0;
                };
                let weight = batch.weights.get(sample).map_or(1.0, |weight| f64::from(*weight));
                let probability = terms(f64::from(word.logit + added), label).1;
                ((probability - label) * (weight * scale)) as f32
            }));
            let inputs = Inputs { samples: samples.len(), dense: &self.inputs, pooled: &[] };
            let outputs = Outputs { gradient: own, pooled: &mut [] };
            self.network.backward_anew(&mut self.workspace, inputs, &self.slopes, outputs);
        }
    }

    /// Writes the corrected teacher's probabilities `[task][sample]` of all samples; NaN where it said nothing.
    pub fn correct(&mut self, parameters: &[f32], batch: &Batch, out: &mut Vec<f32>) {
        let count = self.network.parameter_count();
        out.clear();
        for task in 0..self.tasks.len() {
            for start in (0..batch.sample_count).step_by(BACKWARD_SAMPLES_MAX) {
                let samples = start..batch.sample_count.min(start + BACKWARD_SAMPLES_MAX);
                self.added(&parameters[task * count..][..count], batch, task, samples.clone());
                let added = self.workspace.logits(samples.len());
                out.extend(samples.zip(added).map(|(sample, added)| match Word::of(batch, task, sample) {
                    Some(word) => terms(f64::from(word.logit + added), 0.0).1 as f32,
                    None => f32::NAN,
                }));
            }
        }
    }

    /// Moves the weights.
    pub fn update(&self, step: u64, parameters: &mut [f32], state: &mut [Vec<f32>], gradient: &[f32]) {
        let mut state: Vec<&mut [f32]> = state.iter_mut().map(|state| &mut state[..]).collect();
        Update::new(&self.training(), step, 1.0).apply(parameters, &mut state, gradient);
    }

    /// Has the network say what one task's adapter adds to the logits of some samples.
    fn added(&mut self, parameters: &[f32], batch: &Batch, task: usize, samples: Range<usize>) {
        let width = self.spec.input_count();
        self.inputs.clear();
        self.inputs.resize(samples.len() * width, 0.0);
        for (inputs, sample) in self.inputs.chunks_exact_mut(width).zip(samples.clone()) {
            if let Some(word) = Word::of(batch, task, sample) {
                self.spec.write_inputs(word, inputs);
            }
        }
        self.network.prepare(parameters);
        self.network.forward(&mut self.workspace, parameters, samples.len(), &self.inputs, &[]);
    }
}
