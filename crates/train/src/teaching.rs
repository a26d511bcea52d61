//! What a rank needs to learn from a teacher: the way to listen, and the adapters with their optimizer's state.
//!
//! The adapters have a few dozen weights, so every rank holds all of them: ranks exchange the gradients of their grains,
//! add them along the tree of grains, and all make the same move. It happens before the model's own forward pass, for
//! the model learns from what the adapters say after they have seen the batch.

use std::ops::Range;

use campanile_comm::{Buffer, CommError, Communicator};
use campanile_kernels::Isa;
use campanile_model::{ModelError, adapter::Adapters, distil::Lesson, optimizer};
use campanile_spec::{Batch, Distil, DistilMethod, Grains, config::Run};

use crate::{
    gradient_tree::{GradientTree, Onto},
    loader::LocalBatch,
};

/// How a rank learns from a teacher.
pub(crate) struct Teaching {
    distil: Distil,
    adapting: Option<Adapting>,
    /// Where the vectors that follow the teacher stand among the pooled ones.
    followed: Range<usize>,
    /// Floats of one of them.
    floats: usize,
    /// The corrected teacher's probabilities of the batch, `[task][sample]`.
    corrected: Vec<f32>,
}

/// The adapters in training; equal on all ranks.
pub(crate) struct Adapting {
    pub adapters: Adapters,
    pub parameters: Vec<f32>,
    /// Vectors by name of the optimizer's state.
    pub state: Vec<Vec<f32>>,
    tree: GradientTree,
    one_grain: Vec<f32>,
}

impl Teaching {
    pub fn new(run: &Run, grain_count: usize, isa: Isa) -> Result<Teaching, ModelError> {
        let distil = run.distil;
        let mut adapting = None;
        if distil.method == DistilMethod::Adapter {
            let tasks = run.model.tasks.iter().map(|task| task.name.clone()).collect();
            let adapters = Adapters::new(distil.adapter, tasks, isa)?;
            let parameters = adapters.initial_parameters(run.seed);
            adapting = Some(Adapting {
                state: optimizer::first_state(&distil.adapter.optimizer, parameters.len()),
                tree: GradientTree::new(parameters.len(), grain_count),
                one_grain: vec![0.0; parameters.len()],
                adapters,
                parameters,
            });
        }
        let (followed, floats) = (run.model.followed_columns(), run.follow.floats);
        Ok(Teaching { distil, adapting, followed, floats, corrected: Vec::new() })
    }

    /// How the model learns from a teacher.
    pub fn distil(&self) -> &Distil {
        &self.distil
    }

    /// The adapters, if the method has any.
    pub fn adapting(&self) -> Option<&Adapting> {
        self.adapting.as_ref()
    }

    pub fn adapting_mut(&mut self) -> Option<&mut Adapting> {
        self.adapting.as_mut()
    }

    /// What the samples of this rank's batch are to teach.
    pub fn lesson<'a>(&'a self, batch: &'a Batch, task_weights: &'a [f32], scale: f64) -> Lesson<'a> {
        Lesson { distil: &self.distil, batch, corrected: &self.corrected, task_weights, scale }
    }

    /// Writes the gradients of the vectors that follow the teacher over whatever the network has left there: each is
    /// drawn to the teacher's embedding of its sample, or stays where there is none. `pooled` are the vectors of these
    /// samples as they were looked up, `gradient` the gradients for them.
    pub fn pull(
        &self,
        batch: &Batch,
        samples: Range<usize>,
        scale: f64,
        pooled: &[f32],
        gradient: &mut [f32],
    ) {
        if self.followed.is_empty() || samples.is_empty() {
            return;
        }
        let width = pooled.len() / samples.len();
        let rows = pooled.chunks_exact(width).zip(gradient.chunks_exact_mut(width));
        for (sample, (vectors, gradient)) in samples.zip(rows) {
            let gradient = &mut gradient[self.followed.clone()];
            let Some(embedding) = batch.teacher_embedding(sample) else {
                gradient.fill(0.0);
                continue;
            };
            let weight = batch.following_weight(&self.distil, sample, scale);
            let vectors = vectors[self.followed.clone()].chunks_exact(self.floats);
            for (vector, gradient) in vectors.zip(gradient.chunks_exact_mut(self.floats)) {
                follow(weight, vector, embedding, gradient);
            }
        }
    }

    /// Moves the adapters by the batch of all ranks, then corrects the teacher on this rank's samples.
    pub fn adapt(
        &mut self,
        comm: &dyn Communicator,
        step: u64,
        batch: &LocalBatch,
        own_grains: Range<usize>,
        grains: Grains,
    ) -> Result<(), CommError> {
        let Some(adapting) = &mut self.adapting else { return Ok(()) };
        adapting.sum_own(batch, own_grains, grains);
        let nodes = comm.all_gather(Buffer::of(adapting.tree.sum()))?;
        let gradient = tree_sum(nodes.iter().map(|node| node.values::<f32>().to_vec()).collect());
        let Adapting { adapters, parameters, state, .. } = adapting;
        adapters.update(step, parameters, state, &gradient);
        adapters.correct(parameters, &batch.samples, &mut self.corrected);
        Ok(())
    }
}

impl Adapting {
    /// Leaves this rank's node of the gradient in the tree.
    fn sum_own(&mut self, batch: &LocalBatch, own: Range<usize>, grains: Grains) {
        let scale = 1.0 / batch.global_count.max(1) as f64;
        let Adapting { adapters, parameters, tree, one_grain, .. } = self;
        tree.sum_grains(own, &mut |grain, onto, gradient| {
            let samples = grains.samples(batch.global_count, grain);
            let samples = samples.start - batch.first..samples.end - batch.first;
            if samples.is_empty() {
                one_grain.fill(0.0);
            } else {
                adapters.gradient(parameters, &batch.samples, samples, scale, one_grain);
            }
            match onto {
                Onto::Anything => gradient.copy_from_slice(one_grain),
                Onto::LeftNeighbour => gradient.iter_mut().zip(&*one_grain).for_each(|(sum, g)| *sum += g),
            }
        });
    }
}

/// The gradient of `weight / 2 |v - e|^2` for `v`, worked out in `f64`.
fn follow(weight: f64, vector: &[f32], embedding: &[f32], gradient: &mut [f32]) {
    for ((gradient, v), e) in gradient.iter_mut().zip(vector).zip(embedding) {
        *gradient = ((f64::from(*v) - f64::from(*e)) * weight) as f32;
    }
}

/// The sum of the ranks' nodes along the tree above them.
fn tree_sum(mut nodes: Vec<Vec<f32>>) -> Vec<f32> {
    while nodes.len() > 1 {
        nodes = nodes
            .chunks(2)
            .map(|pair| pair[0].iter().zip(&pair[1]).map(|(left, right)| left + right).collect())
            .collect();
    }
    nodes.pop().unwrap_or_default()
}
