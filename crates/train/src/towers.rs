//! One training step where towers have their own ways (`sharded::towers`).
//!
//! A rank works for its peers first: it computes its group's modules on their samples, grain by grain of each peer's home
//! rank. Then it has the vectors of all towers for its own samples, and trains the network above as ever. The gradients of
//! the modules' weights are sums over the grains of each peer, which are nodes of the one tree over all grains; the ranks of
//! the group finish that tree among themselves. No such gradient leaves the group, and the weights do only for a checkpoint
//! or an evaluation. Every sum has the order that it has in the flat exchange.

use std::ops::Range;

use campanile_comm::{Buffer, Communicator};
use campanile_model::{
    Network, Workspace,
    network::{Inputs, Outputs},
};
use campanile_sharded::{Circles, Shares, TowerExchange, reduce::Reduction};
use campanile_spec::{ModelSpec, Seating};

use crate::{
    TrainError,
    clock::Part,
    gradient_tree::{GradientTree, Onto},
    loader::LocalBatch,
    rank::{Pass, RankState},
    step::{StepReport, Turn},
};

/// What a rank holds for the ways of towers.
pub(crate) struct TowerState {
    seating: Seating,
    circles: Circles,
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
    pub fn new(
        comm: &dyn Communicator,
        state: &RankState,
        seating: &Seating,
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
        let codecs = (grains, state.travels.forward, state.travels.backward, isa);
        let samples_max = state.samples_max();
        Ok(TowerState {
            circles: Circles::new(comm, seating)?,
            exchange: TowerExchange::new(model, &state.plan, seating, state.rank, codecs),
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
        })
    }

    /// Who updates which dense weights.
    pub fn shares(&self, model: &ModelSpec, weight_count: usize) -> Shares {
        Shares::of_towers(&model.weight_segments(weight_count), &module_towers(model), &self.seating)
    }

    /// In words.
    pub fn words(&self) -> String {
        format!("{} group(s) of {} rank(s)", self.seating.groups, self.seating.members)
    }

    /// Tells all ranks that this one cannot go on.
    pub fn refuse(&mut self, words: String) -> Result<(), TrainError> {
        let sent = self.exchange.send_ids(&self.circles, Err(words));
        Ok(self.exchange.exchange_vectors(&self.circles, sent)?)
    }

    /// Collects the modules' weights from the groups that have them.
    pub fn make_whole(
        &mut self,
        comm: &dyn Communicator,
        shares: &Shares,
        weights: &mut [f32],
    ) -> Result<(), TrainError> {
        if !std::mem::take(&mut self.stale) || self.all.is_empty() {
            return Ok(());
        }
        let shares = shares.within(&self.all);
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

    /// The modules on all peers' samples.
    fn forward(&mut self, weights: &[f32]) {
        let (width, handed_on) = self.exchange.widths();
        if self.own.is_empty() {
            let (pooled, output) = self.exchange.pooled_and_output();
            output.copy_from_slice(pooled);
            return;
        }
        for peer in 0..self.seating.groups {
            for (_, samples) in self.exchange.grains_of_peer(peer) {
                let (pooled, output) = self.exchange.pooled_and_output();
                let pooled = &pooled[samples.start * width..samples.end * width];
                let (space, count) = (&mut self.module_space, samples.len());
                self.modules.forward(space, weights, count, &[], pooled);
                output[samples.start * handed_on..samples.end * handed_on]
                    .copy_from_slice(space.logits(count));
            }
        }
    }

    /// The way back through the modules; leaves a node for every peer. Activations are computed a second time: that costs
    /// less than keeping those of all grains.
    fn backward(&mut self, weights: &[f32]) {
        let (width, handed_on) = self.exchange.widths();
        if self.own.is_empty() {
            let (output, _, gradient) = self.exchange.for_backward();
            gradient.copy_from_slice(output);
            return;
        }
        for peer in 0..self.seating.groups {
            let grains = self.exchange.grains_of_peer(peer);
            let (first, last) = (grains[0].0, grains[grains.len() - 1].0);
            let (exchange, modules, space) = (&mut self.exchange, &self.modules, &mut self.module_space);
            self.nodes[peer].sum_grains(first..last + 1, &mut |grain, onto, gradient| {
                let samples = grains[grain - first].1.clone();
                let cut = |width: usize| samples.start * width..samples.end * width;
                let (output, pooled, pooled_gradient) = exchange.for_backward();
                let inputs = Inputs { samples: samples.len(), dense: &[], pooled: &pooled[cut(width)] };
                modules.forward(space, weights, inputs.samples, &[], inputs.pooled);
                let outputs = Outputs { gradient, pooled: &mut pooled_gradient[cut(width)] };
                let output = &output[cut(handed_on)];
                match onto {
                    Onto::Anything => modules.backward_anew(space, inputs, output, outputs),
                    Onto::LeftNeighbour => modules.backward(space, inputs, output, outputs),
                }
            });
        }
    }

    /// The network above the towers on this rank's own samples.
    fn train_above(&mut self, state: &mut RankState, batch: &LocalBatch) {
        let rank_count = self.seating.groups * self.seating.members;
        state.logits.resize(batch.samples.sample_count * state.task_weights.len(), 0.0);
        let (grains, rest) = (state.grains, self.rest.clone());
        let (exchange, above, space) = (&mut self.exchange, &self.above, &mut self.above_space);
        let own = grains.of_rank(state.rank, rank_count);
        self.tree.sum_grains(own, &mut |grain, onto, gradient| {
            let (pooled, pooled_gradient) = exchange.above_and_gradient();
            let mut pass = Pass {
                network: above,
                workspace: space,
                parameters: &state.parameters[rest.clone()],
                task_weights: &state.task_weights,
                pooled,
                pooled_gradient,
                logits: &mut state.logits,
                logit_gradients: &mut state.logit_gradients,
                teaching: &state.teaching,
            };
            pass.train(batch, grains.samples(batch.global_count, grain), onto, gradient);
        });
    }

    /// The rest of both trees; leaves this rank's share of the whole gradient.
    fn reduce(&mut self, comm: &dyn Communicator) -> Result<(), TrainError> {
        let pending = self.among_all.start_sum(comm, self.tree.sum())?;
        self.among_all.finish_sum(comm, pending, self.tree.sum_mut())?;
        self.gradient[self.rest.clone()].copy_from_slice(self.tree.sum());
        if !self.own.is_empty() {
            let nodes: Vec<&[f32]> = self.nodes.iter().map(GradientTree::sum).collect();
            let gradient = &mut self.gradient[self.own.clone()];
            self.among_members.sum_of_peers(&*self.circles.members, &nodes, gradient)?;
        }
        Ok(())
    }

    /// The new weights to those who use them: the modules' stay in the group.
    fn gather(&mut self, comm: &dyn Communicator, weights: &mut [f32]) -> Result<(), TrainError> {
        let pending = self.among_all.start_gather(comm, &weights[self.rest.clone()])?;
        self.among_all.finish_gather(comm, pending, &mut weights[self.rest.clone()])?;
        if !self.own.is_empty() {
            let members = &*self.circles.members;
            let pending = self.among_members.start_gather(members, &weights[self.own.clone()])?;
            self.among_members.finish_gather(members, pending, &mut weights[self.own.clone()])?;
        }
        self.stale = true;
        Ok(())
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
pub(crate) fn step(
    comm: &dyn Communicator,
    state: &mut RankState,
    turn: &Turn<'_>,
) -> Result<StepReport, TrainError> {
    let mut towers = state.towers.take().expect("a rank that sits by towers");
    let report = train(comm, state, &mut towers, turn);
    state.towers = Some(towers);
    report
}

fn train(
    comm: &dyn Communicator,
    state: &mut RankState,
    towers: &mut TowerState,
    turn: &Turn<'_>,
) -> Result<StepReport, TrainError> {
    state.timings.start(Part::Exchange);
    let ids = Ok((&turn.batch.samples.bags, turn.batch.global_count));
    // A failure is told where all ranks wait for their peers: with the vectors.
    let sent = towers.exchange.send_ids(&towers.circles, ids);
    state.timings.start(Part::Lookup);
    let looked_up = sent.and_then(|()| towers.exchange.look_up(&towers.circles, &state.tables));
    state.timings.start(Part::Pack);
    let modules = towers.own.clone();
    towers.modules.prepare(&state.parameters[modules.clone()]);
    towers.above.prepare(&state.parameters[towers.rest.clone()]);
    state.timings.start(Part::Network);
    if looked_up.is_ok() {
        towers.forward(&state.parameters[modules.clone()]);
    }
    state.timings.start(Part::Exchange);
    towers.exchange.exchange_vectors(&towers.circles, looked_up)?;
    state.adapt(comm, turn.number, turn.batch)?; // the teacher's word, corrected by the batch's labels
    state.timings.start(Part::Network);
    towers.train_above(state, turn.batch);
    state.timings.start(Part::Exchange);
    towers.exchange.exchange_gradients(&towers.circles)?;
    state.timings.start(Part::Network);
    towers.backward(&state.parameters[modules]);
    state.timings.start(Part::Update);
    let update = state.row_update(turn.number);
    let touched = towers.exchange.push(&towers.circles, &mut state.tables, &update)?;
    state.timings.start(Part::Dense);
    towers.reduce(comm)?;
    let clip = state.clip_factor(comm, &towers.gradient)?;
    state.update_dense(turn.number, clip, &towers.gradient);
    towers.gather(comm, &mut state.parameters)?;
    state.timings.stop();
    Ok(StepReport { ids: touched.ids_seen, unique_rows: touched.rows_touched })
}
