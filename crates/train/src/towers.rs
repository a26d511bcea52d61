//! One training step where towers have their own ways (`sharded::towers`).
//!
//! A rank works for its peers first: it computes its group's modules on their samples, grain by grain of each peer's home
//! rank. Then it has the vectors of all towers for its own samples, and trains the network above as ever. The gradients of
//! the modules' weights are sums over the grains of each peer, which are nodes of the one tree over all grains; the ranks of
//! the group finish that tree among themselves. No such gradient leaves the group, and the weights do only for a checkpoint
//! or an evaluation. Every sum has the order that it has in the flat exchange.
//!
//! With a pipeline, samples go through in parts, and what crosses groups travels while other parts compute:
//!
//! ```text
//!   this rank   lookup, module 0 1 2 3 │ above 0 1 2 3 │ module back 0 1 2 3 │ update
//!   the link                 0 1 2 3   │   0 1 2 3     │   3                            vectors, then gradients
//!               ids of the next batch, dense sums ...
//! ```

use std::ops::Range;

use campanile_comm::{Buffer, Communicator, Pending};
use campanile_model::{
    Network, Workspace,
    network::{Inputs, Outputs},
};
use campanile_sharded::{Circles, Manner, Shares, TowerExchange, reduce::Reduction};
use campanile_spec::{ModelSpec, Seating};

use crate::{
    TrainError,
    clock::Part,
    gradient_tree::{GradientTree, Onto},
    loader::LocalBatch,
    rank::{Pass, RankState},
    step::{Carry, StepReport, Turn},
};

/// What a rank holds for the ways of towers.
pub(crate) struct TowerState {
    /// Apart, for what is on its way borrows them while all the rest is at work.
    circles: Circles,
    work: Work,
}

struct Work {
    seating: Seating,
    exchange: TowerExchange,
    /// The modules of this rank's group, and the network above all towers.
    modules: Network,
    above: Network,
    module_space: Workspace,
    above_space: Workspace,
    /// Where their weights lie among all: those of this group, those of all groups, and the rest.
    own: Range<usize>,
    all: Range<usize>,
    rest: Range<usize>,
    /// By peer, the node of its grains for the modules' weights; and this rank's for the rest.
    nodes: Vec<GradientTree>,
    tree: GradientTree,
    /// As long as all weights; only this rank's share is ever looked at.
    gradient: Vec<f32>,
    among_members: Reduction,
    among_all: Reduction,
    /// Whether other groups have moved their modules since this rank last heard of them.
    stale: bool,
}

impl TowerState {
    /// `chunks`: in how many parts samples go through, at most.
    pub fn new(
        comm: &dyn Communicator,
        state: &RankState,
        seating: &Seating,
        chunks: usize,
    ) -> Result<TowerState, TrainError> {
        let (model, isa, grains) = (&state.model, state.isa(), state.grains);
        let (group, _) = seating.place(state.rank);
        let (sub, _) = seating.model_of(model, group);
        let (modules, above) =
            (Network::of_towers(&sub, isa)?, Network::above_towers(model, state.teaching.distil(), isa)?);
        let total = state.parameters.len();
        let segments = model.weight_segments(total);
        let numbers = module_towers(model);
        let before = numbers.iter().filter(|number| **number < seating.towers[group].start).count();
        let start = segments[before].start;
        let own = start..start + modules.parameter_count();
        let rest = segments[segments.len() - 1].clone();
        let shares = Shares::of_towers(&segments, &numbers, seating);
        let ranks = group * seating.members..(group + 1) * seating.members;
        let rank_count = seating.groups * seating.members;
        let grains_each = grains.count() / rank_count;
        let manner =
            Manner { grains, chunks, forward: state.travels.forward, backward: state.travels.backward, isa };
        let samples_max = state.samples_max();
        let work = Work {
            exchange: TowerExchange::new(model, &state.plan, seating, state.rank, manner),
            module_space: modules.workspace(samples_max),
            above_space: above.workspace(samples_max),
            nodes: (0..seating.groups).map(|_| GradientTree::new(own.len(), grains_each)).collect(),
            tree: GradientTree::new(rest.len(), grains_each),
            gradient: vec![0.0; total],
            among_members: Reduction::new(shares.within(&own).of_ranks(ranks)),
            among_all: Reduction::new(shares.within(&rest)),
            seating: seating.clone(),
            all: 0..rest.start,
            modules,
            above,
            own,
            rest,
            stale: false,
        };
        Ok(TowerState { circles: Circles::new(comm, seating)?, work })
    }

    /// Who updates which dense weights.
    pub fn shares(&self, model: &ModelSpec, weight_count: usize) -> Shares {
        Shares::of_towers(&model.weight_segments(weight_count), &module_towers(model), &self.work.seating)
    }

    /// In words.
    pub fn words(&self) -> String {
        let Seating { groups, members, .. } = &self.work.seating;
        format!("{groups} group(s) of {members} rank(s)")
    }

    /// Tells all ranks that this one cannot go on.
    pub fn refuse(&mut self, words: String) -> Result<(), TrainError> {
        let TowerState { circles, work } = self;
        let ids = work.exchange.start_ids(circles, Err(words))?;
        let ids = work.exchange.pass_ids_on(circles, ids)?;
        Ok(work.exchange.finish_ids(ids)?)
    }

    /// Waits for the weights above the towers that other ranks have updated.
    pub fn settle(
        &mut self,
        comm: &dyn Communicator,
        pending: Pending<'_>,
        weights: &mut [f32],
    ) -> Result<(), TrainError> {
        self.work.settle(comm, pending, weights)
    }

    /// Collects the modules' weights from the groups that have them.
    pub fn make_whole(
        &mut self,
        comm: &dyn Communicator,
        shares: &Shares,
        weights: &mut [f32],
    ) -> Result<(), TrainError> {
        if !std::mem::take(&mut self.work.stale) || self.work.all.is_empty() {
            return Ok(());
        }
        let shares = shares.within(&self.work.all);
        let own = shares.of(comm.rank()).iter();
        let values: Vec<f32> = own.flat_map(|range| weights[range.clone()].iter().copied()).collect();
        for (rank, part) in comm.all_gather(Buffer::of(&values))?.iter().enumerate() {
            let mut values = part.values::<f32>();
            for range in shares.of(rank) {
                let (own, rest) = values.split_at(range.len());
                weights[range.clone()].copy_from_slice(own);
                values = rest;
            }
        }
        Ok(())
    }
}

impl Work {
    fn settle(
        &mut self,
        comm: &dyn Communicator,
        pending: Pending<'_>,
        weights: &mut [f32],
    ) -> Result<(), TrainError> {
        Ok(self.among_all.finish_gather(comm, Some(pending), &mut weights[self.rest.clone()])?)
    }

    /// Makes `batch` the one at work: sends its ids now, unless they travelled during the last step.
    fn take_up(&mut self, circles: &Circles, batch: &LocalBatch) -> Result<(), TrainError> {
        if !self.exchange.next_is_here() {
            let ids = Ok((&batch.samples.bags, batch.global_count));
            let pending = self.exchange.start_ids(circles, ids)?;
            let pending = self.exchange.pass_ids_on(circles, pending)?;
            self.exchange.finish_ids(pending)?;
        }
        self.exchange.advance();
        Ok(())
    }

    /// Lookup and modules for all peers' samples, part by part; starts to send what the towers hand on.
    fn forward<'c>(
        &mut self,
        circles: &'c Circles,
        state: &mut RankState,
    ) -> Result<Vec<Pending<'c>>, TrainError> {
        let parts = self.exchange.part_count();
        let mut handed_on = Vec::with_capacity(parts);
        state.timings.start(Part::Lookup);
        let mut ahead = Some(self.exchange.start_pooled(circles, &state.tables, 0)?);
        for part in 0..parts {
            let pooled = ahead.take().expect("every part is looked up");
            if part + 1 < parts {
                state.timings.start(Part::Lookup);
                ahead = Some(self.exchange.start_pooled(circles, &state.tables, part + 1)?);
            }
            state.timings.start(Part::Members);
            self.exchange.finish_pooled(pooled, part)?;
            state.timings.start(Part::Module);
            self.modules_forward(&state.parameters[self.own.clone()], part);
            state.timings.start(Part::Lookup);
            handed_on.push(self.exchange.start_vectors(circles, part)?);
        }
        Ok(handed_on)
    }

    fn modules_forward(&mut self, weights: &[f32], part: usize) {
        if self.own.is_empty() {
            return;
        }
        let (width, handed_on) = self.exchange.widths();
        for peer in 0..self.seating.groups {
            for (_, samples) in self.exchange.grains_of(peer, part) {
                let (pooled, output) = self.exchange.pooled_and_output();
                let pooled = &pooled[samples.start * width..samples.end * width];
                let (space, count) = (&mut self.module_space, samples.len());
                self.modules.forward(space, weights, count, &[], pooled);
                output[samples.start * handed_on..samples.end * handed_on]
                    .copy_from_slice(space.logits(count));
            }
        }
    }

    /// The network above the towers on this rank's own samples, each part when its vectors have come; starts to send their
    /// gradients.
    fn train_above<'c>(
        &mut self,
        circles: &'c Circles,
        state: &mut RankState,
        batch: &LocalBatch,
        vectors: Vec<Pending<'c>>,
    ) -> Result<Vec<Pending<'c>>, TrainError> {
        let rank_count = self.seating.groups * self.seating.members;
        state.logits.resize(batch.samples.sample_count * state.task_weights.len(), 0.0);
        let own = state.grains.of_rank(state.rank, rank_count);
        let mut gradients = Vec::with_capacity(vectors.len());
        for (part, vectors) in vectors.into_iter().enumerate() {
            state.timings.start(Part::Exchange);
            self.exchange.finish_vectors(vectors, part)?;
            state.timings.start(Part::Network);
            for grain in self.exchange.own_grains(part) {
                let (pooled, pooled_gradient) = self.exchange.above_and_gradient();
                let mut pass = Pass {
                    network: &self.above,
                    workspace: &mut self.above_space,
                    parameters: &state.parameters[self.rest.clone()],
                    task_weights: &state.task_weights,
                    pooled,
                    pooled_gradient,
                    logits: &mut state.logits,
                    logit_gradients: &mut state.logit_gradients,
                    teaching: &state.teaching,
                };
                let samples = state.grains.samples(batch.global_count, grain);
                self.tree.add_grain((grain - own.start, own.len()), |onto, gradient| {
                    pass.train(batch, samples, onto, gradient);
                });
            }
            state.timings.start(Part::Lookup);
            gradients.push(self.exchange.start_gradients(circles, part)?);
        }
        Ok(gradients)
    }

    /// The way back through the modules, each part when its gradients have come; leaves a node for every peer, and the
    /// gradients of the rows with their owners.
    fn backward(
        &mut self,
        circles: &Circles,
        state: &mut RankState,
        gradients: Vec<Pending<'_>>,
    ) -> Result<(), TrainError> {
        let mut pushed = Vec::with_capacity(gradients.len());
        for (part, gradients) in gradients.into_iter().enumerate() {
            state.timings.start(Part::Exchange);
            self.exchange.finish_gradients(gradients, part)?;
            state.timings.start(Part::Module);
            self.modules_backward(&state.parameters[self.own.clone()], part);
            state.timings.start(Part::Lookup);
            pushed.push(self.exchange.start_pooled_gradients(circles, part)?);
        }
        state.timings.start(Part::Members);
        for (part, pending) in pushed.into_iter().enumerate() {
            self.exchange.finish_pooled_gradients(pending, part)?;
        }
        Ok(())
    }

    /// Activations, where a module has any, are computed a second time: that costs less than keeping those of all grains.
    fn modules_backward(&mut self, weights: &[f32], part: usize) {
        if self.own.is_empty() {
            return;
        }
        let (width, handed_on) = self.exchange.widths();
        let (modules, space, remembers) = (&self.modules, &mut self.module_space, self.modules.remembers());
        for peer in 0..self.seating.groups {
            let grains = self.exchange.grains_of(peer, part);
            let count = grains.len() * self.exchange.part_count();
            for (grain, samples) in grains {
                let cut = |width: usize| samples.start * width..samples.end * width;
                let (output, pooled, pooled_gradient) = self.exchange.for_backward();
                let inputs = Inputs { samples: samples.len(), dense: &[], pooled: &pooled[cut(width)] };
                if remembers {
                    modules.forward(space, weights, inputs.samples, &[], inputs.pooled);
                }
                let (output, pooled) = (&output[cut(handed_on)], &mut pooled_gradient[cut(width)]);
                self.nodes[peer].add_grain((grain, count), |onto, gradient| {
                    let outputs = Outputs { gradient, pooled };
                    match onto {
                        Onto::Anything => modules.backward_anew(space, inputs, output, outputs),
                        Onto::LeftNeighbour => modules.backward(space, inputs, output, outputs),
                    }
                });
            }
        }
    }

    /// Starts the rest of the modules' tree, where there are modules.
    fn start_module_sum<'c>(&mut self, circles: &'c Circles) -> Result<Option<Pending<'c>>, TrainError> {
        if self.own.is_empty() {
            return Ok(None);
        }
        let nodes: Vec<&[f32]> = self.nodes.iter().map(GradientTree::sum).collect();
        Ok(Some(self.among_members.start_sum_of_peers(&*circles.members, &nodes)?))
    }

    /// Waits for the rest of both trees; leaves this rank's share of the whole gradient.
    fn finish_sums(
        &mut self,
        (comm, circles): (&dyn Communicator, &Circles),
        (above, modules): (Option<Pending<'_>>, Option<Pending<'_>>),
    ) -> Result<(), TrainError> {
        if let Some(pending) = modules {
            let (pending, gradient) = ((pending, self.nodes.len()), &mut self.gradient[self.own.clone()]);
            self.among_members.finish_sum_of_peers(&*circles.members, pending, gradient)?;
        }
        self.among_all.finish_sum(comm, above, self.tree.sum_mut())?;
        self.gradient[self.rest.clone()].copy_from_slice(self.tree.sum());
        Ok(())
    }

    /// The new weights to those who use them: the modules' stay in the group, and those above are left on their way.
    fn gather<'c>(
        &mut self,
        comm: &'c dyn Communicator,
        circles: &Circles,
        weights: &mut [f32],
    ) -> Result<Option<Pending<'c>>, TrainError> {
        let above = self.among_all.start_gather(comm, &weights[self.rest.clone()])?;
        if !self.own.is_empty() {
            let members = &*circles.members;
            let pending = self.among_members.start_gather(members, &weights[self.own.clone()])?;
            self.among_members.finish_gather(members, pending, &mut weights[self.own.clone()])?;
        }
        self.stale = true;
        Ok(above)
    }
}

/// The numbers of the towers whose modules have weights, in order.
fn module_towers(model: &ModelSpec) -> Vec<usize> {
    let number = |name: &str| model.towers.list.iter().position(|tower| tower.name == name);
    model.tower_modules().filter_map(|tower| number(&tower.name)).collect()
}

/// As [`crate::step::step`], with the ways of towers.
///
/// # Errors
/// When any rank fails.
pub(crate) fn step<'c>(
    comm: &'c dyn Communicator,
    state: &mut RankState,
    carry: &mut Carry<'c>,
    turn: Turn<'_>,
) -> Result<StepReport, TrainError> {
    let mut towers = state.towers.take().expect("a rank that sits by towers");
    let TowerState { circles, work } = &mut *towers;
    let report = train((comm, &*circles), state, work, carry, turn);
    state.towers = Some(towers);
    report
}

fn train<'c>(
    (comm, circles): (&'c dyn Communicator, &Circles),
    state: &mut RankState,
    towers: &mut Work,
    carry: &mut Carry<'c>,
    turn: Turn<'_>,
) -> Result<StepReport, TrainError> {
    let looks_ahead = turn.next.is_some();
    state.timings.start(Part::Exchange);
    towers.take_up(circles, turn.batch)?; // unless its ids came during the last step
    state.timings.start(Part::Pack);
    towers.modules.prepare(&state.parameters[towers.own.clone()]);
    let vectors = towers.forward(circles, state)?;
    let next = turn.next.map(|next| next.map(|batch| (&batch.samples.bags, batch.global_count)));
    let ids = next.map(|next| towers.exchange.start_ids(circles, next)).transpose()?;
    state.adapt(comm, turn.number, turn.batch)?; // the teacher's word, corrected by the batch's labels
    state.timings.start(Part::Dense);
    if let Some(weights) = carry.weights.take() {
        towers.settle(comm, weights, &mut state.parameters)?;
    }
    state.timings.start(Part::Pack);
    towers.above.prepare(&state.parameters[towers.rest.clone()]);
    let gradients = towers.train_above(circles, state, turn.batch, vectors)?;
    let above = towers.among_all.start_sum(comm, towers.tree.sum())?;
    state.timings.start(Part::Exchange);
    let ids = ids.map(|ids| towers.exchange.pass_ids_on(circles, ids)).transpose()?;
    towers.backward(circles, state, gradients)?;
    let modules = towers.start_module_sum(circles)?;
    if let Some(ids) = ids {
        towers.exchange.finish_ids(ids)?;
    }
    state.timings.start(Part::Update);
    let update = state.row_update(turn.number);
    let touched = towers.exchange.update(circles, &mut state.tables, &update)?;
    state.timings.start(Part::Dense);
    towers.finish_sums((comm, circles), (above, modules))?;
    let clip = state.clip_factor(comm, &towers.gradient)?;
    state.update_dense(turn.number, clip, &towers.gradient);
    carry.weights = towers.gather(comm, circles, &mut state.parameters)?;
    if !looks_ahead && let Some(weights) = carry.weights.take() {
        towers.settle(comm, weights, &mut state.parameters)?;
    }
    state.timings.stop();
    Ok(StepReport { ids: touched.ids_seen, unique_rows: touched.rows_touched })
}
