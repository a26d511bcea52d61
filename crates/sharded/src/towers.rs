//! The ways of towers: inside the group, then among peers.
//!
//! The flat exchange sends every vector from the owner of its rows to the rank of its sample. Here it goes in two steps, and
//! between them the tower's module may make less of it:
//!
//! ```text
//!   1  ids        (h,l) ─► (g,l)     peers       each rank gathers its peers' bags of its group's features
//!   2  ids        (g,l) ─► (g,m)     members     an ordinary exchange inside the group,
//!   3  vectors    (g,m) ─► (g,l)     members     with chunks for every peer
//!   4  module on the peers' samples, in the group
//!   5  vectors    (g,l) ─► (h,l)     peers       what the tower hands on: the only bytes that cross groups
//!   6  gradients  (h,l) ─► (g,l)     peers
//!   7  module backwards, in the group
//!   8  gradients  (g,l) ─► (g,m)     members
//! ```
//!
//! As in the flat exchange, every way is started and finished apart, and vectors and gradients travel in *parts*: part `k` has
//! the `k`-th run of grains of every peer's samples. So a module works on one part while another is on its way between hosts,
//! and the ids of the next batch take both their steps during this one.
//!
//! Parts are the chunks of the exchange inside the group. Taken peer by peer, and of each peer member by member, their runs are
//! in the order of the global batch (rank `h * members + l`), so a row's gradients are added in the order in which the flat
//! exchange adds them: the bits are the same.
//!
//! A codec rounds what crosses groups, vector by vector, and nothing else. Ids are looked at before they leave home, so that
//! a failure is known to all ranks when the ids are where they belong: a rank's peers are in all groups, and pass it on to
//! their members.

mod bags;
mod lanes;

use std::{mem::take, ops::Range};

use campanile_comm::{Buffer, Communicator, Pending};
use campanile_kernels::{Isa, codec::Codec};
use campanile_spec::{Bags, Grains, ModelSpec, Plan, Seating};
use campanile_tables::{Table, UpdateReport, UpdateStep};

use self::lanes::{Lanes, above, side_by_side};
use crate::{
    Exchange, Manner, ShardedError,
    chunks::Chunks,
    ids::{Failed, failure, write_failure},
};

/// One rank's part in the exchanges of towers.
pub struct TowerExchange {
    seating: Seating,
    model: ModelSpec,
    group: usize,
    member: usize,
    chunks: Chunks,
    grains: Grains,
    inner: Exchange,
    /// Whether this group's vectors are handed on as they are.
    is_plain: bool,
    /// What this group hands on, side by side; and the places of all groups' in a sample's row above the towers.
    out: Ways,
    above_of: Vec<Ways>,
    above_width: usize,
    /// The batch at work, and the one whose ids are on their way.
    current: Batch,
    next: Batch,
    /// By part: vectors on their way, or the gradients that return in the same memory; one per peer.
    messages: Vec<Vec<Buffer>>,
    id_messages: Vec<Buffer>,
    above: Vec<f32>,
    above_gradient: Vec<f32>,
    /// What this group hands on for its peers' samples, `[sample of all peers][width]`, and its gradient; empty where the
    /// vectors are handed on as they are.
    output: Vec<f32>,
    output_gradient: Vec<f32>,
}

/// The peers' bags of this group's features.
#[derive(Default)]
struct Batch {
    bags: Bags,
    global_count: usize,
}

/// One group's vectors on their way forth and back.
struct Ways {
    forward: Lanes,
    backward: Lanes,
    width: usize,
}

/// The two sub-groups of ranks that a rank belongs to.
pub struct Circles {
    /// The ranks of its group.
    pub members: Box<dyn Communicator>,
    /// The ranks of all groups with its place.
    pub peers: Box<dyn Communicator>,
}

impl Circles {
    /// Splits all ranks.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn new(comm: &dyn Communicator, seating: &Seating) -> Result<Circles, ShardedError> {
        let (group, member) = seating.place(comm.rank());
        Ok(Circles { members: comm.split(group as u32)?, peers: comm.split(member as u32)? })
    }
}

impl TowerExchange {
    /// The part of `rank`, where the plan keeps every group's tables inside it ([`Seating::fits`]). The codecs of `manner`
    /// are those of what crosses groups.
    ///
    /// # Panics
    /// If the plan does not.
    pub fn new(
        model: &ModelSpec,
        plan: &Plan,
        seating: &Seating,
        rank: usize,
        manner: Manner,
    ) -> TowerExchange {
        let (group, member) = seating.place(rank);
        let (sub, _) = seating.model_of(model, group);
        let inside = seating.plan_of(model, plan, group).expect("a plan that keeps groups apart");
        let chunks = Chunks::of_peers(manner.grains, (seating.groups, seating.members), manner.chunks);
        let unrounded = Manner { forward: Codec::F32, backward: Codec::F32, ..manner };
        let codecs = (manner.forward, manner.backward, manner.isa);
        let (places, above_width) = above(model, seating);
        let (own, own_width) = side_by_side(&places[group]);
        TowerExchange {
            inner: Exchange::with_chunks(&sub, &inside, member, unrounded, chunks),
            is_plain: sub.tower_modules().next().is_none(),
            out: Ways::new(&own, own_width, codecs),
            above_of: places.iter().map(|places| Ways::new(places, above_width, codecs)).collect(),
            seating: seating.clone(),
            model: model.clone(),
            group,
            member,
            chunks,
            grains: manner.grains,
            above_width,
            current: Batch::default(),
            next: Batch::default(),
            messages: vec![vec![Buffer::new(); seating.groups]; chunks.count()],
            id_messages: vec![Buffer::new(); seating.groups],
            above: Vec::new(),
            above_gradient: Vec::new(),
            output: Vec::new(),
            output_gradient: Vec::new(),
        }
    }

    /// How many parts vectors and gradients travel in.
    pub fn part_count(&self) -> usize {
        self.chunks.count()
    }

    /// Step 1: starts to send the ids of the next batch to the peers, or why this rank has none.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn start_ids<'c>(
        &mut self,
        circles: &'c Circles,
        batch: Result<(&Bags, usize), String>,
    ) -> Result<Pending<'c>, ShardedError> {
        let mut messages = take(&mut self.id_messages);
        let checked = batch.and_then(|(bags, count)| bags::check(&self.model, bags).map(|()| (bags, count)));
        match checked {
            Ok((bags, global_count)) => {
                self.next.global_count = global_count;
                for (message, features) in messages.iter_mut().zip(&self.seating.features) {
                    bags::write(message, bags, features);
                }
            }
            Err(words) => {
                let rank = circles.peers.number(circles.peers.rank());
                write_failure(&mut messages, &Failed { rank, words });
            }
        }
        Ok(circles.peers.start_all_to_all(messages)?)
    }

    /// Step 2: waits for the peers' ids, and starts to send them to their owners in the group.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn pass_ids_on<'c>(
        &mut self,
        circles: &'c Circles,
        pending: Pending<'_>,
    ) -> Result<Pending<'c>, ShardedError> {
        self.id_messages = pending.wait()?;
        let passed_on = failure(&self.id_messages).map(|()| {
            let features = self.seating.features[self.group].len();
            let ends: Vec<usize> = self.chunks.run_ends(self.next.global_count, self.member).collect();
            self.next.bags = bags::read(&self.id_messages, features, &ends, take(&mut self.next.bags));
            (&self.next.bags, self.next.global_count)
        });
        self.inner.start_ids_or_failure(&*circles.members, passed_on)
    }

    /// Waits for the ids of the next batch; [`TowerExchange::advance`] then makes it the one at work.
    ///
    /// # Errors
    /// When a rank has failed or left; on all ranks.
    pub fn finish_ids(&mut self, pending: Pending<'_>) -> Result<(), ShardedError> {
        self.inner.finish_ids(pending)
    }

    /// Whether the ids of the next batch have come.
    pub fn next_is_here(&self) -> bool {
        self.inner.next_is_here()
    }

    /// Makes the next batch the one at work.
    ///
    /// # Panics
    /// If its ids have not come.
    pub fn advance(&mut self) {
        self.inner.advance();
        std::mem::swap(&mut self.current, &mut self.next);
    }

    /// A part of a peer's samples, among those of all peers.
    fn samples_of(&self, peer: usize, part: usize) -> Range<usize> {
        let run = self.chunks.run(peer, part);
        self.chunks.samples_of_runs(self.current.global_count, self.member, run..run + 1)
    }

    /// Step 3: looks up what the members asked for, and starts to send it.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn start_pooled<'c>(
        &mut self,
        circles: &'c Circles,
        shards: &[Table],
        part: usize,
    ) -> Result<Pending<'c>, ShardedError> {
        self.inner.start_vectors(&*circles.members, shards, part)
    }

    /// Waits for the vectors of a part of the peers' samples, which [`TowerExchange::pooled_and_output`] then has.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn finish_pooled(&mut self, pending: Pending<'_>, part: usize) -> Result<(), ShardedError> {
        self.inner.finish_vectors(pending, &[], &self.current.bags, part)
    }

    /// Floats of this group's vectors of a sample, as the module gets them and as it hands them on.
    pub fn widths(&self) -> (usize, usize) {
        (self.inner.pooled_width(), self.out.width)
    }

    /// The grains of a part of a peer's samples: counted from the peer's first, each with the place of its samples among
    /// those of all peers.
    pub fn grains_of(&self, peer: usize, part: usize) -> Vec<(usize, Range<usize>)> {
        let grains = self.chunks.grains_of(self.member, self.chunks.run(peer, part));
        let (global_count, samples) = (self.current.global_count, self.samples_of(peer, part));
        let first = self.grains.samples(global_count, grains.start).start;
        let (count, before) = (grains.len(), part * grains.len());
        let place = |grain: usize| {
            let own = self.grains.samples(global_count, grains.start + grain);
            (before + grain, samples.start + own.start - first..samples.start + own.end - first)
        };
        (0..count).map(place).collect()
    }

    /// This rank's own grains of a part, by their numbers in the batch.
    pub fn own_grains(&self, part: usize) -> Range<usize> {
        self.chunks.grains_of(self.member, self.chunks.run(self.group, part))
    }

    /// The vectors of this group's features, `[sample of all peers][width]`, and room for what the module hands on.
    pub fn pooled_and_output(&mut self) -> (&[f32], &mut [f32]) {
        self.output.resize(self.current.bags.sample_count() * self.out.width, 0.0);
        (self.inner.pooled(), &mut self.output)
    }

    /// Step 5: starts to send what the group hands on to the samples' ranks: what the module has left, or the vectors where
    /// there is none.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn start_vectors<'c>(
        &mut self,
        circles: &'c Circles,
        part: usize,
    ) -> Result<Pending<'c>, ShardedError> {
        let mut messages = take(&mut self.messages[part]);
        let handed_on = if self.is_plain { self.inner.pooled() } else { &self.output };
        for (peer, message) in messages.iter_mut().enumerate() {
            let samples = self.samples_of(peer, part);
            let width = self.out.width;
            self.out.forward.encode(&handed_on[samples.start * width..samples.end * width], message);
        }
        Ok(circles.peers.start_all_to_all(messages)?)
    }

    /// Waits for the vectors of a part of this rank's own samples, which [`TowerExchange::above_and_gradient`] then has.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn finish_vectors(&mut self, pending: Pending<'_>, part: usize) -> Result<(), ShardedError> {
        let received = pending.wait()?;
        let rows = self.rows_above(part);
        self.above.resize(self.own_count(self.part_count()) * self.above_width, 0.0);
        for (ways, message) in self.above_of.iter().zip(&received) {
            ways.forward.decode(message, &mut self.above[rows.clone()]);
        }
        self.messages[part] = received;
        Ok(())
    }

    /// Samples of this rank in its first parts.
    fn own_count(&self, parts: usize) -> usize {
        (0..parts).map(|part| self.samples_of(self.group, part).len()).sum()
    }

    /// The floats of a part of this rank's samples in the rows above.
    fn rows_above(&self, part: usize) -> Range<usize> {
        self.own_count(part) * self.above_width..self.own_count(part + 1) * self.above_width
    }

    /// The vectors above the towers of this rank's samples, as far as their parts have come, and room for their gradients.
    pub fn above_and_gradient(&mut self) -> (&[f32], &mut [f32]) {
        self.above_gradient.resize(self.above.len(), 0.0);
        (&self.above, &mut self.above_gradient)
    }

    /// Step 6: starts to send the gradients of what the towers have handed on back to them.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn start_gradients<'c>(
        &mut self,
        circles: &'c Circles,
        part: usize,
    ) -> Result<Pending<'c>, ShardedError> {
        let mut messages = take(&mut self.messages[part]);
        let rows = &self.above_gradient[self.rows_above(part)];
        for (ways, message) in self.above_of.iter().zip(&mut messages) {
            ways.backward.encode(rows, message);
        }
        Ok(circles.peers.start_all_to_all(messages)?)
    }

    /// Waits for the gradients of a part of what this group has handed on.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn finish_gradients(&mut self, pending: Pending<'_>, part: usize) -> Result<(), ShardedError> {
        let received = pending.wait()?;
        let (groups, width) = (self.seating.groups, self.out.width);
        let samples: Vec<Range<usize>> = (0..groups).map(|peer| self.samples_of(peer, part)).collect();
        let gradient = if self.is_plain {
            self.inner.pooled_and_gradient().1
        } else {
            self.output_gradient.resize(self.output.len(), 0.0);
            &mut self.output_gradient[..]
        };
        for (samples, message) in samples.iter().zip(&received) {
            self.out.backward.decode(message, &mut gradient[samples.start * width..samples.end * width]);
        }
        self.messages[part] = received;
        Ok(())
    }

    /// The gradient of what was handed on; the vectors that the module got, and room for their gradients.
    pub fn for_backward(&mut self) -> (&[f32], &[f32], &mut [f32]) {
        let (pooled, gradient) = self.inner.pooled_and_gradient();
        (&self.output_gradient, pooled, gradient)
    }

    /// Step 8: starts to send the gradients of a part of the peers' vectors to the owners of the rows.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn start_pooled_gradients<'c>(
        &mut self,
        circles: &'c Circles,
        part: usize,
    ) -> Result<Pending<'c>, ShardedError> {
        self.inner.start_gradients(&*circles.members, part)
    }

    /// Waits for them.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn finish_pooled_gradients(&mut self, pending: Pending<'_>, part: usize) -> Result<(), ShardedError> {
        self.inner.finish_gradients(pending, part)
    }

    /// The update of this rank's rows, when all parts' gradients have come.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn update(
        &mut self,
        circles: &Circles,
        shards: &mut [Table],
        step: &UpdateStep,
    ) -> Result<UpdateReport, ShardedError> {
        self.inner.update(&*circles.members, shards, &mut [], step)
    }
}

impl Ways {
    fn new(
        vectors: &[Range<usize>],
        row_width: usize,
        (forward, backward, isa): (Codec, Codec, Isa),
    ) -> Ways {
        let lanes = |codec| Lanes::new(vectors, row_width, (codec, isa));
        Ways { forward: lanes(forward), backward: lanes(backward), width: row_width }
    }
}
