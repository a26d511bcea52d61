//! All that one rank holds while it trains.

use campanile_comm::{Buffer, CommError, Communicator};
use campanile_kernels::Isa;
use campanile_model::{
    Network, Workspace,
    loss::{Labels, binary_cross_entropy},
    network::{BACKWARD_SAMPLES_MAX, Inputs, Outputs},
    optimizer,
};
use campanile_sharded::{
    Exchange,
    reduce::{Reduction, slice_of},
};
use campanile_spec::{
    Grains, ModelSpec, Plan,
    config::{DenseTraining, Run, SparseTraining},
};
use campanile_tables::Table;

use crate::{
    TrainError,
    clock::Timings,
    gradient_tree::{GradientTree, Onto},
    loader::LocalBatch,
};

/// Weights, tables, optimizer state and working memory of one rank.
pub struct RankState {
    /// The dense network, with its weights packed for the step.
    pub network: Network,
    /// All dense weights, flat; equal on all ranks between steps.
    pub parameters: Vec<f32>,
    /// How dense weights move.
    pub dense: DenseTraining,
    /// The dense optimizer's state of this rank's slice, by name.
    pub dense_state: Vec<(&'static str, Vec<f32>)>,
    /// The tables of this rank, in table order.
    pub tables: Vec<Table>,
    /// How rows move.
    pub sparse: SparseTraining,
    /// Where everything lives.
    pub plan: Plan,
    /// The run's seed.
    pub seed: u64,
    /// Where the time goes.
    pub timings: Timings,
    pub(crate) exchange: Exchange,
    pub(crate) reduction: Reduction,
    pub(crate) gradient: GradientTree,
    model: ModelSpec,
    grains: Grains,
    rank: usize,
    rank_count: usize,
    workspace: Workspace,
    task_weights: Vec<f32>,
    logits: Vec<f32>,
    logit_gradients: Vec<f32>,
}

impl RankState {
    /// The state before the first step.
    ///
    /// # Errors
    /// When the model's shapes do not fit, or memory cannot be had.
    pub fn new(run: &Run, rank: usize, rank_count: usize, isa: Isa) -> Result<RankState, TrainError> {
        let plan = Plan::balanced(&run.model, rank_count);
        let network = Network::new(&run.model, isa)?;
        let parameters = network.initial_parameters(run.seed);
        let grains = run.grains();
        let grain_samples = run.batch_size.div_ceil(grains.count());
        if grain_samples > BACKWARD_SAMPLES_MAX {
            return Err(TrainError::GrainTooLarge { samples: grain_samples, limit: BACKWARD_SAMPLES_MAX });
        }
        let slice = slice_of(parameters.len(), rank, rank_count);
        let tables = plan.shards_of(rank).map(|(table, _)| {
            let spec = &run.model.tables[table.0 as usize];
            Table::new(spec, 0..spec.row_count, &run.sparse.optimizer, run.seed)
        });
        Ok(RankState {
            tables: tables.collect::<Result<_, _>>()?,
            dense_state: optimizer::state_names(&run.dense.optimizer)
                .iter()
                .copied()
                .zip(optimizer::first_state(&run.dense.optimizer, slice.len()))
                .collect(),
            dense: run.dense.clone(),
            sparse: run.sparse.clone(),
            seed: run.seed,
            timings: Timings::default(),
            exchange: Exchange::new(&run.model, &plan, rank),
            reduction: Reduction::new(parameters.len(), rank_count),
            gradient: GradientTree::new(parameters.len(), grains.count() / rank_count),
            workspace: network.workspace(grain_samples),
            model: run.model.clone(),
            task_weights: run.model.tasks.iter().map(|task| task.weight).collect(),
            logits: Vec::new(),
            logit_gradients: Vec::new(),
            network,
            parameters,
            plan,
            grains,
            rank,
            rank_count,
        })
    }

    /// The logits of this rank's samples of the last batch, `[sample][task]`, before any update.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Number of tasks.
    pub fn task_count(&self) -> usize {
        self.model.tasks.len()
    }

    /// Predicts a batch; [`RankState::logits`] then has this rank's part.
    ///
    /// # Errors
    /// When any rank fails.
    pub fn predict(&mut self, comm: &dyn Communicator, batch: &LocalBatch) -> Result<(), TrainError> {
        self.exchange.lookup(comm, &self.tables, &batch.samples.bags)?;
        let (tasks, width) = (self.model.tasks.len(), self.model.pooled_width());
        let dense_count = self.model.dense_count;
        self.logits.resize(batch.samples.sample_count * tasks, 0.0);
        for grain in self.grains.of_rank(self.rank, self.rank_count) {
            let samples = self.grains.samples(batch.global_count, grain);
            let (from, count) = (samples.start - batch.first, samples.len());
            if count == 0 {
                continue;
            }
            let dense = &batch.samples.dense[from * dense_count..][..count * dense_count];
            let pooled = &self.exchange.pooled()[from * width..][..count * width];
            self.network.forward(&mut self.workspace, &self.parameters, count, dense, pooled);
            self.logits[from * tasks..][..count * tasks].copy_from_slice(self.workspace.logits(count));
        }
        Ok(())
    }

    /// Forward, loss and backward of this rank's grains. Leaves the logits, the rank's node of the gradient
    /// tree, and the gradients of the pooled vectors.
    pub(crate) fn forward_and_backward(&mut self, batch: &LocalBatch) {
        let (tasks, width) = (self.model.tasks.len(), self.model.pooled_width());
        let dense_count = self.model.dense_count;
        self.logits.resize(batch.samples.sample_count * tasks, 0.0);
        let (network, parameters, workspace) = (&self.network, &self.parameters, &mut self.workspace);
        let (logits, logit_gradients) = (&mut self.logits, &mut self.logit_gradients);
        let (grains, task_weights) = (self.grains, &self.task_weights);
        let labels = Labels {
            sample_count: batch.samples.sample_count,
            labels: &batch.samples.labels,
            weights: &batch.samples.weights,
        };
        let scale = 1.0 / batch.global_count.max(1) as f64;
        let (all_pooled, all_gradients) = self.exchange.pooled_and_gradient();
        self.gradient.sum_grains(grains.of_rank(self.rank, self.rank_count), &mut |grain, onto, gradient| {
            let samples = grains.samples(batch.global_count, grain);
            let (from, count) = (samples.start - batch.first, samples.len());
            if count == 0 {
                if onto == Onto::Anything {
                    gradient.fill(0.0);
                }
                return;
            }
            let dense = &batch.samples.dense[from * dense_count..][..count * dense_count];
            let pooled = &all_pooled[from * width..][..count * width];
            let pooled_gradient = &mut all_gradients[from * width..][..count * width];
            network.forward(workspace, parameters, count, dense, pooled);
            logits[from * tasks..][..count * tasks].copy_from_slice(workspace.logits(count));
            logit_gradients.resize(count * tasks, 0.0);
            let samples = from..from + count;
            binary_cross_entropy(
                labels,
                samples,
                task_weights,
                scale,
                workspace.logits(count),
                logit_gradients,
            );
            let inputs = Inputs { samples: count, dense, pooled };
            let outputs = Outputs { gradient, pooled: pooled_gradient };
            match onto {
                Onto::Anything => network.backward_anew(workspace, inputs, logit_gradients, outputs),
                Onto::LeftNeighbour => network.backward(workspace, inputs, logit_gradients, outputs),
            }
        });
    }

    /// What the dense gradient is scaled with so that its norm stays within the job's limit, from sums over
    /// fixed blocks added in block order. Each rank has the reduced gradient of its own blocks.
    pub(crate) fn clip_factor(&self, comm: &dyn Communicator) -> Result<f32, CommError> {
        if self.dense.norm_max == 0.0 {
            return Ok(1.0);
        }
        let slice = slice_of(self.parameters.len(), self.rank, self.rank_count);
        let squares: Vec<f64> = optimizer::block_squares(&self.gradient.sum()[slice]).collect();
        let all = comm.all_gather(Buffer::of(&squares))?;
        let squares = all.iter().flat_map(|part| part.values::<f64>()).copied();
        Ok(optimizer::clip_factor(self.dense.norm_max, squares))
    }

    /// Moves this rank's slice of the dense weights.
    pub(crate) fn update_dense(&mut self, step: u64, clip: f32) {
        let slice = slice_of(self.parameters.len(), self.rank, self.rank_count);
        let mut state: Vec<&mut [f32]> =
            self.dense_state.iter_mut().map(|(_, values)| &mut values[..]).collect();
        let update = optimizer::Update::new(&self.dense, step, clip);
        update.apply(&mut self.parameters[slice.clone()], &mut state, &self.gradient.sum()[slice]);
    }
}
