//! The ways of towers: inside the group, then among peers.
//!
//! The flat exchange sends every vector from the owner of its rows to the rank of its sample. Here it goes in two steps, and
//! between them the tower's module may make less of it:
//!
//! ```text
//!   1  ids        (h,l) ─► (g,l)     peers       each rank gathers its peers' bags of its group's features
//!   2  ids        (g,l) ─► (g,m)     members     an ordinary exchange inside the group,
//!   3  vectors    (g,m) ─► (g,l)     members     with one chunk for every peer
//!   4  module on the peers' samples, in the group
//!   5  vectors    (g,l) ─► (h,l)     peers       what the tower hands on: the only bytes that cross groups
//!   6  gradients  (h,l) ─► (g,l)     peers
//!   7  module backwards, in the group
//!   8  gradients  (g,l) ─► (g,m)     members
//! ```
//!
//! Peers' samples are chunks of the exchange inside the group, in the order of the groups. Taken chunk by chunk, and in each
//! chunk member by member, they are in the order of the global batch (rank `h * members + l`), so a row's gradients are added
//! in the order in which the flat exchange adds them: the bits are the same.
//!
//! A codec rounds what crosses groups, vector by vector, and nothing else.

use campanile_comm::{Buffer, CommError, Communicator};
use campanile_kernels::{Isa, codec::Codec};
use campanile_spec::{Bags, Grains, ModelSpec, Plan, Seating};
use campanile_tables::{Table, UpdateReport, UpdateStep};

use crate::{
    Exchange, Manner, ShardedError,
    chunks::Chunks,
    ids::{failure, write_failure},
};

/// Words before a message's bags or vectors: status, then samples.
const HEAD: usize = 64;

/// One rank's part in the exchanges of towers.
pub struct TowerExchange {
    seating: Seating,
    rank: usize,
    grains: Grains,
    inner: Exchange,
    /// By group: the widths of the vectors that it hands on, and where each starts in a sample's row above the towers.
    handed_on: Vec<Vec<(usize, usize)>>,
    above_width: usize,
    forward: Codec,
    backward: Codec,
    isa: Isa,
    /// The peers' bags of this group's features.
    bags: Bags,
    global_count: usize,
    above: Vec<f32>,
    above_gradient: Vec<f32>,
    /// What this group hands on for its peers' samples, `[sample of all peers][width]`, and its gradient.
    output: Vec<f32>,
    output_gradient: Vec<f32>,
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
    /// The part of `rank`, where the plan keeps every group's tables inside it ([`Seating::fits`]).
    ///
    /// # Panics
    /// If the plan does not.
    pub fn new(
        model: &ModelSpec,
        plan: &Plan,
        seating: &Seating,
        rank: usize,
        (grains, forward, backward, isa): (Grains, Codec, Codec, Isa),
    ) -> TowerExchange {
        let (group, member) = seating.place(rank);
        let (sub, _) = seating.model_of(model, group);
        let inside = seating.plan_of(model, plan, group).expect("a plan that keeps groups apart");
        let chunks = Chunks::of_peers(grains, seating.groups, seating.members);
        let manner = Manner { grains, chunks: 1, forward: Codec::F32, backward: Codec::F32, isa };
        let (handed_on, above_width) = layout(model, seating);
        TowerExchange {
            inner: Exchange::with_chunks(&sub, &inside, member, manner, chunks),
            seating: seating.clone(),
            rank,
            grains,
            handed_on,
            above_width,
            forward,
            backward,
            isa,
            bags: Bags::default(),
            global_count: 0,
            above: Vec::new(),
            above_gradient: Vec::new(),
            output: Vec::new(),
            output_gradient: Vec::new(),
        }
    }

    /// Steps 1 and 2: the ids of a batch to their owners, or why this rank has none.
    ///
    /// # Errors
    /// When a rank has failed or left, on all ranks of a group at least. As a failure of step 3 it is to be told with step 5.
    pub fn send_ids(
        &mut self,
        circles: &Circles,
        batch: Result<(&Bags, usize), String>,
    ) -> Result<(), ShardedError> {
        let mut messages = vec![Buffer::new(); self.seating.groups];
        match &batch {
            Ok((bags, _)) => {
                for (message, features) in messages.iter_mut().zip(&self.seating.features) {
                    write_bags(message, bags, features);
                }
            }
            Err(words) => write_failure(&mut messages, words),
        }
        let received = circles.peers.all_to_all(messages)?;
        // A peer's failure goes on to all members, whose peers are all the others.
        let heard = failure(&received).map_err(|error| self.peer_failure(error.into()));
        let asked = match (heard, &batch) {
            (Ok(()), Ok((_, global_count))) => {
                self.global_count = *global_count;
                let (group, _) = self.seating.place(self.rank);
                self.bags =
                    read_bags(&received, self.seating.features[group].len(), std::mem::take(&mut self.bags));
                Ok(())
            }
            (Err(error), _) => Err(error.to_string()),
            (Ok(()), Err(words)) => Err(words.clone()),
        };
        let asked = asked.map(|()| (&self.bags, self.global_count));
        let pending = self.inner.start_ids(&*circles.members, asked)?;
        self.inner.finish_ids(pending).map_err(|error| self.member_failure(error))?;
        self.inner.advance();
        Ok(())
    }

    /// A failure with the number that its rank has among all.
    fn peer_failure(&self, error: ShardedError) -> ShardedError {
        let (_, member) = self.seating.place(self.rank);
        named(error, |peer| peer * self.seating.members + member)
    }

    fn member_failure(&self, error: ShardedError) -> ShardedError {
        let (group, _) = self.seating.place(self.rank);
        named(error, |member| group * self.seating.members + member)
    }

    /// Step 3: the vectors of the peers' samples; [`TowerExchange::pooled`] then has them.
    ///
    /// # Errors
    /// When a rank has an id beyond its table, or has left; on all ranks of the group. It is to be told with step 5, for
    /// the peers wait there.
    pub fn look_up(&mut self, circles: &Circles, shards: &[Table]) -> Result<(), ShardedError> {
        let mut outcome = Ok(());
        for chunk in 0..self.inner.chunk_count() {
            let pending = self.inner.start_vectors(&*circles.members, shards, chunk)?;
            outcome = outcome.and(self.inner.finish_vectors(pending, &[], &self.bags, chunk));
        }
        outcome.map_err(|error| self.member_failure(error))
    }

    /// The vectors of this group's features, `[sample of all peers][width]`.
    pub fn pooled(&self) -> &[f32] {
        self.inner.pooled()
    }

    /// Floats of this group's vectors of a sample, as the module gets them and as it hands them on.
    pub fn widths(&self) -> (usize, usize) {
        let (group, _) = self.seating.place(self.rank);
        (self.inner.pooled_width(), width_of(&self.handed_on[group]))
    }

    /// The grains of a peer, and the place of a grain's samples among those of all peers.
    pub fn grains_of_peer(&self, peer: usize) -> Vec<(usize, std::ops::Range<usize>)> {
        let (_, member) = self.seating.place(self.rank);
        let home = peer * self.seating.members + member;
        let ranks = self.seating.groups * self.seating.members;
        let own = self.grains.samples_of_rank(self.global_count, home, ranks).start;
        let start = self.first_of_peer(peer);
        let place = |grain: usize| {
            let samples = self.grains.samples(self.global_count, grain);
            (grain, start + samples.start - own..start + samples.end - own)
        };
        self.grains.of_rank(home, ranks).map(place).collect()
    }

    fn first_of_peer(&self, peer: usize) -> usize {
        (0..peer).map(|before| self.samples_of_peer(before)).sum()
    }

    fn samples_of_peer(&self, peer: usize) -> usize {
        let (_, member) = self.seating.place(self.rank);
        let ranks = self.seating.groups * self.seating.members;
        self.grains.samples_of_rank(self.global_count, peer * self.seating.members + member, ranks).len()
    }

    /// Room for what the module hands on, and the vectors it gets.
    pub fn pooled_and_output(&mut self) -> (&[f32], &mut [f32]) {
        let floats = self.bags.sample_count() * self.widths().1;
        self.output.resize(floats, 0.0);
        (self.inner.pooled(), &mut self.output)
    }

    /// Step 5: what the towers hand on, to the samples' ranks; `above` then has it. `looked_up` is how
    /// step 3 ended.
    ///
    /// # Errors
    /// When any rank has failed in step 3, or left; on all ranks.
    pub fn exchange_vectors(
        &mut self,
        circles: &Circles,
        looked_up: Result<(), ShardedError>,
    ) -> Result<(), ShardedError> {
        let (group, _) = self.seating.place(self.rank);
        let mut messages = vec![Buffer::new(); self.seating.groups];
        match &looked_up {
            Ok(()) => {
                let lanes = &self.handed_on[group];
                let width = width_of(lanes);
                for (peer, message) in messages.iter_mut().enumerate() {
                    let first = self.first_of_peer(peer);
                    let rows = &self.output[first * width..(first + self.samples_of_peer(peer)) * width];
                    encode(message, (self.forward, self.isa), lanes.iter().map(|lane| lane.0), rows);
                }
            }
            Err(error) => write_failure(&mut messages, &error.to_string()),
        }
        let received = circles.peers.all_to_all(messages)?;
        failure(&received).map_err(|error| self.peer_failure(error.into()))?;
        let samples = self.samples_of_peer(group);
        self.above.resize(samples * self.above_width, 0.0);
        let above_width = self.above_width.max(1);
        for (lanes, message) in self.handed_on.iter().zip(&received) {
            let mut bytes = &message.bytes()[HEAD..];
            for row in self.above.chunks_exact_mut(above_width) {
                for &(width, start) in lanes {
                    let (own, rest) = bytes.split_at(self.forward.bytes(width));
                    self.forward.decode(self.isa, own, &mut row[start..start + width]);
                    bytes = rest;
                }
            }
        }
        Ok(())
    }

    /// The vectors above the towers of this rank's samples, and room for their gradients.
    pub fn above_and_gradient(&mut self) -> (&[f32], &mut [f32]) {
        self.above_gradient.resize(self.above.len(), 0.0);
        (&self.above, &mut self.above_gradient)
    }

    /// Step 6: the gradients of what the towers have handed on, back to them.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn exchange_gradients(&mut self, circles: &Circles) -> Result<(), ShardedError> {
        let (group, _) = self.seating.place(self.rank);
        let mut messages = vec![Buffer::new(); self.seating.groups];
        let mut rows = Vec::new();
        for (lanes, message) in self.handed_on.iter().zip(&mut messages) {
            rows.clear();
            for row in self.above_gradient.chunks_exact(self.above_width.max(1)) {
                lanes.iter().for_each(|&(width, start)| rows.extend_from_slice(&row[start..start + width]));
            }
            encode(message, (self.backward, self.isa), lanes.iter().map(|lane| lane.0), &rows);
        }
        let received = circles.peers.all_to_all(messages)?;
        let lanes = &self.handed_on[group];
        let width = width_of(lanes).max(1);
        self.output_gradient.resize(self.bags.sample_count() * width_of(lanes), 0.0);
        for (peer, message) in received.iter().enumerate() {
            let (first, count) = (self.first_of_peer(peer), self.samples_of_peer(peer));
            let mut bytes = &message.bytes()[HEAD..];
            for row in self.output_gradient[first * width..(first + count) * width].chunks_exact_mut(width) {
                let mut at = 0;
                for &(width, _) in lanes {
                    let (own, rest) = bytes.split_at(self.backward.bytes(width));
                    self.backward.decode(self.isa, own, &mut row[at..at + width]);
                    (bytes, at) = (rest, at + width);
                }
            }
        }
        Ok(())
    }

    /// The gradient of what was handed on; the vectors that the module got, and room for their gradients.
    pub fn for_backward(&mut self) -> (&[f32], &[f32], &mut [f32]) {
        let (pooled, gradient) = self.inner.pooled_and_gradient();
        (&self.output_gradient, pooled, gradient)
    }

    /// Step 8, and the update of this rank's rows.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn push(
        &mut self,
        circles: &Circles,
        shards: &mut [Table],
        step: &UpdateStep,
    ) -> Result<UpdateReport, ShardedError> {
        self.inner.push(&*circles.members, (shards, &mut []), step)
    }
}

/// By group the vectors that it hands on, and the width of a sample's row above: first the vectors that pass as they are, in
/// feature order, then the modules', in the towers' order ([`ModelSpec::vector_widths`]).
fn layout(model: &ModelSpec, seating: &Seating) -> (Vec<Vec<(usize, usize)>>, usize) {
    let plain = model.plain_features();
    let widths = model.vector_widths();
    let mut starts = vec![0];
    widths.iter().for_each(|width| starts.push(starts[starts.len() - 1] + width));
    let mut groups: Vec<Vec<(usize, usize)>> = vec![Vec::new(); seating.groups];
    for (place, feature) in plain.iter().enumerate() {
        let group = seating.features.iter().position(|own| own.contains(feature)).unwrap_or(0);
        groups[group].push((widths[place], starts[place]));
    }
    let mut place = plain.len();
    for tower in model.tower_modules() {
        let number = model.towers.list.iter().position(|other| other == tower).unwrap_or(0);
        let group = seating.towers.iter().position(|own| own.contains(&number)).unwrap_or(0);
        for _ in 0..tower.vector_count() {
            groups[group].push((widths[place], starts[place]));
            place += 1;
        }
    }
    (groups, starts[starts.len() - 1])
}

/// The failure of a rank, by its number among all ranks: the words have it already if they were passed on.
fn named(error: ShardedError, number: impl Fn(usize) -> usize) -> ShardedError {
    let ShardedError::Comm(CommError::RankFailed { rank, message }) = error else { return error };
    let passed_on = message.strip_prefix("rank ").and_then(|rest| rest.split_once(": "));
    let named = match passed_on.and_then(|(rank, words)| Some((rank.parse().ok()?, words.to_owned()))) {
        Some((rank, message)) => CommError::RankFailed { rank, message },
        None => CommError::RankFailed { rank: number(rank), message },
    };
    named.into()
}

fn width_of(lanes: &[(usize, usize)]) -> usize {
    lanes.iter().map(|lane| lane.0).sum()
}

/// Vectors of the given widths side by side, row by row, each encoded by itself.
fn encode(
    message: &mut Buffer,
    (codec, isa): (Codec, Isa),
    widths: impl Iterator<Item = usize> + Clone,
    rows: &[f32],
) {
    let width: usize = widths.clone().sum();
    let row_bytes: usize = widths.clone().map(|width| codec.bytes(width)).sum();
    let count = rows.len().checked_div(width).unwrap_or(0);
    message.resize(HEAD + count * row_bytes);
    message.bytes_mut()[..HEAD].fill(0);
    let mut bytes = &mut message.bytes_mut()[HEAD..];
    for row in rows.chunks_exact(width.max(1)) {
        let mut at = 0;
        for width in widths.clone() {
            let (own, rest) = bytes.split_at_mut(codec.bytes(width));
            codec.encode(isa, &row[at..at + width], own);
            (bytes, at) = (rest, at + width);
        }
    }
}

/// Some features' bags: status, samples, ids, whether weighted; ends of all bags, feature by feature; rows; weights.
fn write_bags(message: &mut Buffer, bags: &Bags, features: &[usize]) {
    let ids: usize = features.iter().map(|&feature| bags.feature(feature).rows.len()).sum();
    let weighted = !bags.weights().is_empty();
    let mut words: Vec<u32> = vec![0, bags.sample_count() as u32, ids as u32, u32::from(weighted)];
    let mut before = 0;
    for &feature in features {
        let own = bags.feature(feature);
        words.extend(own.offsets[1..].iter().map(|end| end - own.offsets[0] + before));
        before += own.rows.len() as u32;
    }
    features.iter().for_each(|&feature| words.extend_from_slice(bags.feature(feature).rows));
    if weighted {
        features.iter().for_each(|&feature| {
            words.extend_from_slice(bytemuck::cast_slice(bags.feature(feature).weights))
        });
    }
    message.resize(size_of_val(&words[..]));
    message.values_mut::<u32>().copy_from_slice(&words);
}

/// The bags of all peers as those of one batch: by feature, the samples of one peer after the other.
fn read_bags(messages: &[Buffer], features: usize, old: Bags) -> Bags {
    let (mut offsets, mut rows, mut weights) = old.into_parts();
    offsets.clear();
    rows.clear();
    weights.clear();
    offsets.push(0);
    let mut samples = 0;
    for feature in 0..features {
        samples = 0;
        for message in messages {
            let words = message.values::<u32>();
            let (count, ids, weighted) = (words[1] as usize, words[2] as usize, words[3] == 1);
            let (ends, ids_at) = (&words[4..4 + features * count], 4 + features * count);
            let start = if feature * count == 0 { 0 } else { ends[feature * count - 1] };
            let own = &ends[feature * count..(feature + 1) * count];
            let base = rows.len() as u32;
            offsets.extend(own.iter().map(|end| end - start + base));
            let range = start as usize..own.last().copied().unwrap_or(start) as usize;
            rows.extend_from_slice(&words[ids_at + range.start..ids_at + range.end]);
            if weighted {
                let at = ids_at + ids;
                weights.extend_from_slice(bytemuck::cast_slice(&words[at + range.start..at + range.end]));
            }
            samples += count;
        }
    }
    Bags::new(features, samples, offsets, rows, weights).expect("bags that were whole before they travelled")
}
