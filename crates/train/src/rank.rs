//! All that one rank holds while it trains.

use std::ops::Range;

use campanile_comm::{Buffer, CommError, Communicator, Pending};
use campanile_kernels::{Isa, codec::Codec};
use campanile_model::{
    Journey, Network, Workspace,
    loss::{Labels, binary_cross_entropy},
    network::{BACKWARD_SAMPLES_MAX, Inputs, Outputs},
    optimizer,
};
use campanile_sharded::{Exchange, Manner, Shares, reduce::Reduction};
use campanile_spec::{
    Grains, ModelSpec, Plan, Seating, SparseOptimizer,
    config::{DenseTraining, Run, SparseTraining, WireFormat},
};
use campanile_tables::{Table, TableError, UpdateStep};

use crate::{
    TrainError,
    clock::{Part, Timings},
    gradient_tree::{GradientTree, Onto},
    loader::LocalBatch,
    step::Carry,
    teaching::Teaching,
    towers::TowerState,
};

/// Weights, tables, optimizer state and working memory of one rank.
pub struct RankState {
    /// The dense network, with its weights packed for the step.
    pub network: Network,
    /// All dense weights, flat; equal on all ranks between steps.
    pub parameters: Vec<f32>,
    /// How dense weights move.
    pub dense: DenseTraining,
    /// Which dense weights each rank updates.
    pub shares: Shares,
    /// The dense optimizer's state of this rank's share, by name.
    pub dense_state: Vec<(&'static str, Vec<f32>)>,
    /// The shards of this rank, in the plan's order.
    pub tables: Vec<Table>,
    /// Copies of the tables that every rank looks up for itself; one rank updates each row and tells the others.
    pub mirrors: Vec<Table>,
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
    /// Where towers have their own ways.
    pub(crate) towers: Option<Box<TowerState>>,
    pub(crate) model: ModelSpec,
    pub(crate) grains: Grains,
    pub(crate) rank: usize,
    rank_count: usize,
    chunks: usize,
    isa: Isa,
    pub(crate) travels: Journey,
    workspace: Workspace,
    pub(crate) task_weights: Vec<f32>,
    pub(crate) logits: Vec<f32>,
    pub(crate) logit_gradients: Vec<f32>,
    /// What it takes to learn from a teacher.
    pub(crate) teaching: Teaching,
}

/// Where a rank sits and how it works; nothing here changes a result.
#[derive(Debug, Clone, Copy)]
pub struct Seat<'a> {
    /// Where tables live.
    pub plan: &'a Plan,
    /// This rank.
    pub rank: usize,
    /// How many runs of samples travel one after the other, at most; 1 without a pipeline.
    pub chunks: usize,
    /// The level of instructions, the same on all ranks.
    pub isa: Isa,
}

impl RankState {
    /// The state before the first step.
    ///
    /// # Errors
    /// When the model's shapes or the plan do not fit, or memory cannot be had.
    pub fn new(run: &Run, seat: Seat<'_>) -> Result<RankState, TrainError> {
        let Seat { plan, rank, chunks, isa } = seat;
        plan.check(&run.model)?;
        let rank_count = plan.rank_count;
        let travels =
            Journey { forward: codec(run.exchange.forward), backward: codec(run.exchange.backward) };
        // With tower modules it is what they hand on that travels between hosts, and that is rounded in the network.
        let towers = run.model.has_tower_modules();
        let lookup = if towers { Journey::default() } else { travels };
        let network = Network::in_training(&run.model, &run.distil, travels, isa)?;
        let parameters = network.initial_parameters(run.seed);
        let grains = run.grains();
        let grain_samples = run.batch_size.div_ceil(grains.count());
        if grain_samples > BACKWARD_SAMPLES_MAX {
            return Err(TrainError::GrainTooLarge { samples: grain_samples, limit: BACKWARD_SAMPLES_MAX });
        }
        let shares = Shares::even(&run.model.weight_segments(parameters.len()), rank_count);
        let tables = plan.shards_of(rank).map(|(table, shard)| {
            let (rows, columns) = (shard.rows.clone(), shard.columns.clone());
            let place = table.0 as usize;
            let table =
                Table::shard(&run.model.tables[place], rows, columns, run.optimizer_of(place), run.seed)?;
            let follows = run.model.follows(place);
            Ok(if follows { table.with_own_rate(run.follow.learning_rate) } else { table })
        });
        let copied = run.model.tables.iter().zip(&plan.placements);
        let mirrors = copied
            .filter(|(_, placement)| placement.replicated && rank_count > 1)
            .map(|(spec, _)| Table::new(spec, 0..spec.row_count, &SparseOptimizer::Sgd, run.seed));
        let manner = Manner { grains, chunks, forward: lookup.forward, backward: lookup.backward, isa };
        Ok(RankState {
            tables: tables.collect::<Result<_, TableError>>()?,
            mirrors: mirrors.collect::<Result<_, _>>()?,
            dense_state: optimizer::state_names(&run.dense.optimizer)
                .iter()
                .copied()
                .zip(optimizer::first_state(&run.dense.optimizer, shares.len_of(rank)))
                .collect(),
            dense: run.dense.clone(),
            sparse: run.sparse.clone(),
            seed: run.seed,
            timings: Timings::default(),
            exchange: Exchange::new(&run.model, plan, rank, manner),
            reduction: Reduction::new(shares.clone()),
            shares,
            towers: None,
            isa,
            travels,
            gradient: GradientTree::new(parameters.len(), grains.count() / rank_count),
            workspace: network.workspace(grain_samples),
            model: run.model.clone(),
            task_weights: run.model.tasks.iter().map(|task| task.weight).collect(),
            logits: Vec::new(),
            logit_gradients: Vec::new(),
            teaching: Teaching::new(run, grains.count() / rank_count, isa)?,
            network,
            parameters,
            plan: plan.clone(),
            grains,
            rank,
            rank_count,
            chunks,
        })
    }

    /// Takes the ways of towers, seated so, instead of the flat exchange; before anything is loaded. Results are the same.
    ///
    /// # Errors
    /// When a rank has left.
    ///
    /// # Panics
    /// If the plan does not keep the groups' tables apart ([`Seating::fits`]).
    pub fn sit_by_towers(&mut self, comm: &dyn Communicator, seating: &Seating) -> Result<(), TrainError> {
        let towers = TowerState::new(comm, self, seating, self.chunks)?;
        self.shares = towers.shares(&self.model, self.parameters.len());
        let first = optimizer::first_state(&self.dense.optimizer, self.shares.len_of(self.rank));
        self.dense_state.iter_mut().zip(first).for_each(|(state, first)| state.1 = first);
        self.towers = Some(Box::new(towers));
        Ok(())
    }

    /// The most samples of a grain.
    pub(crate) fn samples_max(&self) -> usize {
        self.workspace.samples_max()
    }

    /// The level of instructions.
    pub(crate) fn isa(&self) -> Isa {
        self.isa
    }

    /// Sees to it that this rank has all dense weights, also those that towers keep to themselves.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn make_whole(&mut self, comm: &dyn Communicator) -> Result<(), TrainError> {
        match &mut self.towers {
            Some(towers) => towers.make_whole(comm, &self.shares, &mut self.parameters),
            None => Ok(()),
        }
    }

    /// How rows move in a step.
    pub(crate) fn row_update(&self, step: u64) -> UpdateStep {
        UpdateStep {
            learning_rate: self.sparse.learning_rate.at(step),
            step,
            l2: self.sparse.l2,
            row_norm_max: self.sparse.row_norm_max,
            seed: self.seed,
        }
    }

    /// The logits of this rank's samples of the last batch, `[sample][task]`, before any update.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// The weights of the adapters that correct a late teacher, task after task; none without them.
    pub fn adapter_parameters(&self) -> &[f32] {
        self.teaching.adapting().map_or(&[], |adapting| &adapting.parameters)
    }

    /// Number of tasks.
    pub fn task_count(&self) -> usize {
        self.model.tasks.len()
    }

    /// Predicts a batch, or says why this rank has none; [`RankState::logits`] then has this rank's part.
    ///
    /// # Errors
    /// When any rank fails.
    pub fn predict(
        &mut self,
        comm: &dyn Communicator,
        batch: &LocalBatch,
        read: Result<(), String>,
    ) -> Result<(), TrainError> {
        let asked = read.map(|()| (&batch.samples.bags, batch.global_count));
        self.exchange.lookup(comm, (&self.tables, &self.mirrors), asked)?;
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
            let own = &mut self.logits[from * tasks..][..count * tasks];
            copy_served(self.workspace.logits(count), self.network.output_width(), own, tasks);
        }
        Ok(())
    }

    /// Waits for what the last step left on its way, so that the dense weights are whole.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn settle(&mut self, comm: &dyn Communicator, carry: &mut Carry<'_>) -> Result<(), TrainError> {
        if let Some(weights) = carry.weights.take() {
            self.timings.start(Part::Dense);
            match &mut self.towers {
                Some(towers) => towers.settle(comm, weights, &mut self.parameters)?,
                None => self.reduction.finish_gather(comm, Some(weights), &mut self.parameters)?,
            }
        }
        Ok(())
    }

    /// Makes `batch` the one at work: sends its ids now, unless they travelled during the last step.
    pub(crate) fn take_up(&mut self, comm: &dyn Communicator, batch: &LocalBatch) -> Result<(), TrainError> {
        if !self.exchange.next_is_here() {
            let ids = self.start_ids(comm, Some(Ok(batch)))?;
            self.finish_ids(ids)?;
        }
        self.exchange.advance();
        Ok(())
    }

    /// Tells all ranks that this one cannot go on, in place of the ids that they wait for, and why.
    pub(crate) fn refuse<T>(&mut self, comm: &dyn Communicator, error: TrainError) -> Result<T, TrainError> {
        if comm.rank_count() > 1 {
            match &mut self.towers {
                Some(towers) => towers.refuse(error.to_string())?,
                None => {
                    let ids = self.start_ids(comm, Some(Err(error.to_string())))?;
                    self.finish_ids(ids)?;
                }
            }
        }
        Err(error)
    }

    /// Starts to send the ids of the next batch, if there is one.
    pub(crate) fn start_ids<'c>(
        &mut self,
        comm: &'c dyn Communicator,
        next: Option<Result<&LocalBatch, String>>,
    ) -> Result<Option<Pending<'c>>, TrainError> {
        let Some(next) = next else { return Ok(None) };
        self.timings.start(Part::Lookup);
        let ids = next.map(|batch| (&batch.samples.bags, batch.global_count));
        Ok(Some(self.exchange.start_ids(comm, ids)?))
    }

    /// Waits for the ids of the next batch, if they are on their way.
    pub(crate) fn finish_ids(&mut self, ids: Option<Pending<'_>>) -> Result<(), TrainError> {
        self.timings.start(Part::Exchange);
        Ok(ids.map_or(Ok(()), |ids| self.exchange.finish_ids(ids))?)
    }

    /// Pools the rows that all ranks have asked for, and starts to send them, chunk by chunk.
    pub(crate) fn start_vectors<'c>(
        &mut self,
        comm: &'c dyn Communicator,
    ) -> Result<Vec<Pending<'c>>, TrainError> {
        self.timings.start(Part::Lookup);
        let chunks = 0..self.exchange.chunk_count();
        Ok(chunks.map(|c| self.exchange.start_vectors(comm, &self.tables, c)).collect::<Result<_, _>>()?)
    }

    /// Waits for the gradients of all chunks.
    pub(crate) fn finish_gradients(&mut self, gradients: Vec<Pending<'_>>) -> Result<(), TrainError> {
        self.timings.start(Part::Exchange);
        for (chunk, pending) in gradients.into_iter().enumerate() {
            self.exchange.finish_gradients(pending, chunk)?;
        }
        Ok(())
    }

    /// Forward, loss and backward of this rank's grains. Waits for each chunk's vectors when its first grain comes,
    /// and starts to send its gradients after its last. Leaves the logits and the rank's node of the gradient tree.
    pub(crate) fn forward_and_backward<'c>(
        &mut self,
        comm: &'c dyn Communicator,
        batch: &LocalBatch,
        vectors: Vec<Pending<'c>>,
    ) -> Result<Vec<Pending<'c>>, TrainError> {
        self.logits.resize(batch.samples.sample_count * self.model.tasks.len(), 0.0);
        let mut tree = std::mem::take(&mut self.gradient);
        let mut vectors = vectors.into_iter();
        let (mut gradients, mut outcome) = (Vec::new(), Ok(()));
        tree.sum_grains(self.grains.of_rank(self.rank, self.rank_count), &mut |grain, onto, gradient| {
            let chunk = gradients.len();
            let grains = self.exchange.grains_of(chunk.min(self.exchange.chunk_count() - 1));
            if outcome.is_ok() && grain == grains.start {
                self.timings.start(Part::Exchange);
                let pending = vectors.next().expect("vectors of every chunk are on their way");
                outcome = self.exchange.finish_vectors(pending, &self.mirrors, &batch.samples.bags, chunk);
            }
            if outcome.is_err() {
                return;
            }
            self.timings.start(Part::Network);
            self.one_grain(batch, grain, onto, gradient);
            if grain + 1 == grains.end {
                self.timings.start(Part::Lookup);
                match self.exchange.start_gradients(comm, chunk) {
                    Ok(pending) => gradients.push(pending),
                    Err(error) => outcome = Err(error),
                }
            }
        });
        self.gradient = tree;
        outcome?;
        Ok(gradients)
    }

    fn one_grain(&mut self, batch: &LocalBatch, grain: usize, onto: Onto, gradient: &mut [f32]) {
        let (pooled, pooled_gradient) = self.exchange.pooled_and_gradient();
        let mut pass = Pass {
            network: &self.network,
            workspace: &mut self.workspace,
            parameters: &self.parameters,
            task_weights: &self.task_weights,
            pooled,
            pooled_gradient,
            logits: &mut self.logits,
            logit_gradients: &mut self.logit_gradients,
            teaching: &self.teaching,
        };
        pass.train(batch, self.grains.samples(batch.global_count, grain), onto, gradient);
    }

    /// Trains the adapters on the batch, and has them correct the teacher; every rank's samples count.
    pub(crate) fn adapt(
        &mut self,
        comm: &dyn Communicator,
        step: u64,
        batch: &LocalBatch,
    ) -> Result<(), CommError> {
        self.timings.start(Part::Network);
        let grains = self.grains.of_rank(self.rank, self.rank_count);
        self.teaching.adapt(comm, step, batch, grains, self.grains)
    }

    /// What the dense gradient is scaled with so that its norm stays within the job's limit, from sums over
    /// fixed blocks added in block order. Each rank has the reduced gradient of its own blocks.
    pub(crate) fn clip_factor(&self, comm: &dyn Communicator, gradient: &[f32]) -> Result<f32, CommError> {
        if self.dense.norm_max == 0.0 {
            return Ok(1.0);
        }
        let own = self.shares.of(self.rank).iter();
        let squares: Vec<f64> =
            own.flat_map(|range| optimizer::block_squares(&gradient[range.clone()])).collect();
        let all = comm.all_gather(Buffer::of(&squares))?;
        let by_rank: Vec<&[f64]> = all.iter().map(|part| part.values()).collect();
        let squares = self.shares.blocks_in_order(&by_rank).into_iter();
        Ok(optimizer::clip_factor(self.dense.norm_max, squares))
    }

    /// Moves this rank's share of the dense weights.
    pub(crate) fn update_dense(&mut self, step: u64, clip: f32, gradient: &[f32]) {
        let update = optimizer::Update::new(&self.dense, step, clip);
        let rate_shares = self.model.rate_shares(self.parameters.len());
        let mut first = 0;
        for range in self.shares.of(self.rank) {
            for (weights, share) in &rate_shares {
                let own = range.start.max(weights.start)..range.end.min(weights.end);
                if own.is_empty() {
                    continue;
                }
                let kept = first..first + own.len();
                let mut state: Vec<&mut [f32]> =
                    self.dense_state.iter_mut().map(|(_, values)| &mut values[kept.clone()]).collect();
                let update = update.at_share(*share);
                update.apply(&mut self.parameters[own.clone()], &mut state, &gradient[own]);
                first = kept.end;
            }
        }
    }
}

/// A network at work on the samples of a rank.
pub(crate) struct Pass<'a> {
    pub network: &'a Network,
    pub workspace: &'a mut Workspace,
    pub parameters: &'a [f32],
    pub task_weights: &'a [f32],
    /// Vectors of all the rank's samples, and room for their gradients.
    pub pooled: &'a [f32],
    pub pooled_gradient: &'a mut [f32],
    pub logits: &'a mut [f32],
    pub logit_gradients: &'a mut Vec<f32>,
    pub teaching: &'a Teaching,
}

impl Pass<'_> {
    /// Forward, loss and backward of a grain, whose `samples` are counted in the global batch.
    pub fn train(&mut self, batch: &LocalBatch, samples: Range<usize>, onto: Onto, gradient: &mut [f32]) {
        let (from, count) = (samples.start - batch.first, samples.len());
        if count == 0 {
            if onto == Onto::Anything {
                gradient.fill(0.0);
            }
            return;
        }
        let (tasks, local) = (self.task_weights.len(), batch.samples.sample_count);
        let labels =
            Labels { sample_count: local, labels: &batch.samples.labels, weights: &batch.samples.weights };
        let scale = 1.0 / batch.global_count.max(1) as f64;
        let (width, dense_count) = (self.pooled.len() / local, batch.samples.dense.len() / local);
        let dense = &batch.samples.dense[from * dense_count..][..count * dense_count];
        let pooled = &self.pooled[from * width..][..count * width];
        let pooled_gradient = &mut self.pooled_gradient[from * width..][..count * width];
        let (network, workspace) = (self.network, &mut *self.workspace);
        network.forward(workspace, self.parameters, count, dense, pooled);
        let outputs = network.output_width();
        let (samples, logits) = (from..from + count, workspace.logits(count));
        copy_served(logits, outputs, &mut self.logits[from * tasks..][..count * tasks], tasks);
        self.logit_gradients.resize(count * outputs, 0.0);
        let (logit_gradients, task_weights) = (&mut *self.logit_gradients, self.task_weights);
        binary_cross_entropy(labels, samples.clone(), task_weights, scale, logits, logit_gradients);
        self.teaching.lesson(&batch.samples, task_weights, scale).add_teacher(
            samples,
            logits,
            logit_gradients,
        );
        let inputs = Inputs { samples: count, dense, pooled };
        let outputs = Outputs { gradient, pooled: pooled_gradient };
        match onto {
            Onto::Anything => network.backward_anew(workspace, inputs, self.logit_gradients, outputs),
            Onto::LeftNeighbour => network.backward(workspace, inputs, self.logit_gradients, outputs),
        }
        let samples = from..from + count;
        self.teaching.pull(&batch.samples, samples, scale, pooled, pooled_gradient);
    }
}

/// Copies the served logits `[sample][task]` out of those of all heads, `[sample][head][task]`.
fn copy_served(all: &[f32], width: usize, served: &mut [f32], tasks: usize) {
    for (served, all) in served.chunks_exact_mut(tasks).zip(all.chunks_exact(width)) {
        served.copy_from_slice(&all[..tasks]);
    }
}

fn codec(format: WireFormat) -> Codec {
    match format {
        WireFormat::F32 => Codec::F32,
        WireFormat::F16 => Codec::F16,
        WireFormat::Bf16 => Codec::Bf16,
        WireFormat::Int8 => Codec::Int8,
    }
}
