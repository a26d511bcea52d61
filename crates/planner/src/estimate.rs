//! What a placement costs: seconds of every stage, bytes that travel, memory.
//!
//! With `W` ranks, a batch of `B` samples, `n` ids and `f` features of the table a sample, `U(m)` different rows in `m`
//! samples, and a shard that holds `c` columns and the rows that a share `q` of the ids names, its owner
//!
//! ```text
//!   ids        receives 4·B·(n·q + f) bytes (twice the ids with weights)
//!   pool       reads B·n ids of U(B) rows                       rows travel: W·U(B/W)·q rows of U(B)·q
//!   vectors    sends B·f·c floats                               rows travel: W·U(B/W)·q·c in the table's format
//!   gradients  receives B·f·c floats                            rows travel: only for bags with a row of the shard
//!   update     merges B·n·q gradients, moves U(B)·q rows        columns: plus 4 bytes a row and block to the others
//!   codecs     encodes B·f·c floats, decodes as many gradients  takers: the reverse, B/W·f·c
//! ```
//!
//! Where rows travel, every rank also pools its own `B/W·n` ids from what came. A copy on every rank spares ids and
//! vectors; there gradients go to the rank that keeps the row, which sends `U(B)·q` new rows to all.
//!
//! A read or update is *near* (in the cache) when the table fits there or the row was read before in the step, else
//! *far*. What an owner exchanges with its own host goes at the in-host rate, the rest at the rate between hosts.
//! Stages wait for each other, so a step takes the sum over stages of the slowest rank's time.

use std::ops::{Add, AddAssign};

use campanile_spec::{
    COLUMN_BLOCK, Placement, Plan, Returns, Shard, SparseOptimizer, TableSpec,
    topology::{Link, Topology},
};
use serde::Serialize;

use crate::{
    by_towers::modules_everywhere,
    request::{Request, Wire, dense_seconds},
    statistics::TableLoad,
};

/// The stages of a step that a placement decides.
pub const STAGES: [&str; 6] = ["ids", "pool", "vectors", "gradients", "update", "codecs"];
pub(crate) const IDS: usize = 0;
pub(crate) const POOL: usize = 1;
pub(crate) const VECTORS: usize = 2;
pub(crate) const GRADIENTS: usize = 3;
pub(crate) const UPDATE: usize = 4;
/// Encoding and decoding what travels.
pub(crate) const CODECS: usize = 5;

/// Exchanges of a step: ids, vectors, gradients, dense gradients, dense weights, predictions.
pub(crate) const EXCHANGES: f64 = 6.0;

/// A row's number in a list of rows that travels.
const ROW_NUMBER_BYTES: f64 = 4.0;

/// Bytes of working memory for every id that an owner merges.
const MERGE_BYTES_PER_ID: f64 = 16.0;

/// Memory for a message that arrives, of its size (`comm::mpi::pool`).
const ARRIVING_ROOM: f64 = 1.25;

/// What something costs one rank in a step.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Cost {
    /// Seconds by stage.
    pub seconds: [f64; STAGES.len()],
    /// Bytes of rows, state and buffers.
    pub memory_bytes: u64,
    /// Bytes exchanged with ranks of the same host.
    pub in_host_bytes: f64,
    /// Bytes exchanged with other hosts.
    pub cross_host_bytes: f64,
    /// Seconds of exchanges behind which there is time to compute: what the links do by themselves.
    pub hideable_seconds: f64,
}

impl Cost {
    /// Seconds over all stages.
    pub fn total_seconds(&self) -> f64 {
        self.seconds.iter().sum()
    }

    /// The seconds in whole picoseconds, so that sums do not depend on their order.
    pub fn picoseconds(&self) -> u64 {
        (self.total_seconds() * 1e12) as u64
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.seconds.iter_mut().zip(other.seconds).for_each(|(sum, seconds)| *sum += seconds);
        self.memory_bytes = self.memory_bytes.saturating_add(other.memory_bytes);
        self.in_host_bytes += other.in_host_bytes;
        self.cross_host_bytes += other.cross_host_bytes;
        self.hideable_seconds += other.hideable_seconds;
    }
}

impl Add for Cost {
    type Output = Cost;

    fn add(mut self, other: Cost) -> Cost {
        self += other;
        self
    }
}

/// What a placement costs.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacementCost {
    /// One per shard: what its owner pays.
    pub shards: Vec<Cost>,
    /// What every rank pays on top.
    pub everywhere: Cost,
}

/// What a plan costs every rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// Of the tables, by rank.
    pub ranks: Vec<Cost>,
    /// The dense network, on every rank.
    pub network_seconds: f64,
    /// Exchange and update of the dense weights, on every rank.
    pub weights_seconds: f64,
    /// The part of it behind which there is time to compute.
    pub weights_hideable_seconds: f64,
    /// Judging predictions, on the first rank.
    pub rest_seconds: f64,
    /// What reading the input takes from computing.
    pub read_seconds: f64,
    /// Waiting for messages to get under way.
    pub latency_seconds: f64,
    /// Sending vectors and gradients in the chunks of a pipeline, and not in one message each.
    pub chunk_seconds: f64,
    /// Bytes of a rank that are not tables.
    pub dense_bytes: u64,
    /// A step, one thing after the other.
    pub step_seconds: f64,
    /// A step when exchanges hide behind computing as well as they can.
    pub overlapped_seconds: f64,
}

impl Prediction {
    /// The busiest rank's seconds for tables.
    pub fn load_max(&self) -> f64 {
        self.ranks.iter().map(Cost::total_seconds).fold(0.0, f64::max)
    }

    /// The mean over ranks.
    pub fn load_mean(&self) -> f64 {
        self.ranks.iter().map(Cost::total_seconds).sum::<f64>() / self.ranks.len() as f64
    }

    /// Seconds of a stage on its slowest rank.
    pub fn slowest(&self, stage: usize) -> f64 {
        self.ranks.iter().map(|rank| rank.seconds[stage]).fold(0.0, f64::max)
    }

    /// Seconds in which vectors, gradients and ids travel.
    pub fn exchange_seconds(&self) -> f64 {
        self.slowest(IDS) + self.slowest(VECTORS) + self.slowest(GRADIENTS)
    }

    /// Seconds of tables and network.
    pub fn compute_seconds(&self) -> f64 {
        self.slowest(POOL) + self.slowest(UPDATE) + self.slowest(CODECS) + self.network_seconds
    }

    /// Fills in what a whole step takes. Reading goes on while links are at work, whether or not computing does.
    ///
    /// In a pipeline vectors and gradients hide behind the network, codecs and messages, but for the first chunk's vectors and
    /// the last one's gradients; sums of dense gradients hide behind the update of rows, and new weights behind the next lookup.
    pub(crate) fn add_up(&mut self, request: &Request<'_>) {
        let (exchange, compute) = (self.exchange_seconds() + self.weights_seconds, self.compute_seconds());
        let tables = self.ranks.iter().map(|rank| rank.hideable_seconds).fold(0.0, f64::max);
        let other = self.rest_seconds + self.latency_seconds;
        let reading = request.topology.compute.read_seconds(compute, request.read_seconds());
        self.read_seconds = (reading - tables - self.weights_hideable_seconds).max(0.0);
        self.step_seconds = exchange + compute + self.read_seconds + other;
        let between_chunks = 1.0 - 1.0 / request.dense.chunks.max(1) as f64;
        let rows = self.slowest(POOL) + self.slowest(UPDATE);
        // Whatever keeps processors busy between two chunks leaves the links time.
        let between = self.network_seconds + self.slowest(CODECS) + reading + self.chunk_seconds;
        let hidden = (tables * between_chunks).min(between) + self.weights_hideable_seconds.min(rows);
        let at_best = compute + reading + exchange + self.chunk_seconds - hidden + other;
        self.overlapped_seconds = at_best.min(self.step_seconds + self.chunk_seconds);
    }

    /// Bytes of a rank, tables and all.
    pub fn memory_of(&self, rank: usize) -> u64 {
        self.ranks[rank].memory_bytes + self.dense_bytes
    }
}

/// What a plan costs every rank.
///
/// # Panics
/// If the plan is not for the request's model and topology.
pub fn predict(request: &Request<'_>, plan: &Plan) -> Prediction {
    let rank_count = request.topology.rank_count();
    assert_eq!(plan.rank_count, rank_count, "a plan for another topology");
    assert_eq!(plan.placements.len(), request.loads.len(), "a plan for another model");
    let mut ranks = vec![Cost::default(); rank_count];
    for (table, placement) in plan.placements.iter().enumerate() {
        let cost = placement_cost(request, table, placement);
        placement.shards.iter().zip(&cost.shards).for_each(|(shard, cost)| ranks[shard.rank] += *cost);
        ranks.iter_mut().for_each(|rank| *rank += cost.everywhere);
    }
    let dense = dense_seconds(request, request.module_weights());
    let network_seconds = dense.network + modules_everywhere(request);
    let mut latency_seconds = 0.0;
    if rank_count > 1 {
        latency_seconds += EXCHANGES * request.topology.in_host.latency_seconds;
    }
    if request.topology.hosts > 1 {
        latency_seconds += EXCHANGES * request.topology.between_hosts().latency_seconds;
    }
    let mut prediction = Prediction {
        ranks,
        network_seconds,
        weights_seconds: dense.weights,
        weights_hideable_seconds: dense.weights_hideable,
        rest_seconds: request.judge_seconds(),
        read_seconds: 0.0,
        latency_seconds,
        chunk_seconds: request.chunk_exchanges() * message_seconds(request.topology),
        dense_bytes: dense_bytes(request),
        step_seconds: 0.0,
        overlapped_seconds: 0.0,
    };
    prediction.add_up(request);
    prediction
}

/// Seconds of a rank for a message to every other rank.
fn message_seconds(topology: &Topology) -> f64 {
    let near = topology.ranks_per_host - 1;
    let far = topology.rank_count() - topology.ranks_per_host;
    near as f64 * topology.in_host.message_seconds + far as f64 * topology.between_hosts().message_seconds
}

/// Bytes of a rank that are not tables: dense weights and what belongs to them, vectors of its own samples.
pub fn dense_bytes(request: &Request<'_>) -> u64 {
    let dense = request.dense;
    let weights =
        (dense.parameter_count as f64 + request.module_weights()) * dense.floats_per_parameter * 4.0;
    let vectors = request.local_samples() * request.model.pooled_width() as f64 * 4.0;
    let mut bytes = weights + 2.0 * vectors;
    if request.topology.hosts > 1 {
        // Ranks are processes: what arrives lies beside what was sent, with some room to grow.
        let ranks = request.topology.rank_count() as f64;
        let slices = 2.0 * (ranks - 1.0) / ranks * dense.parameter_count as f64 * 4.0;
        bytes += ARRIVING_ROOM * (vectors + slices);
    }
    bytes as u64 + dense.fixed_bytes
}

/// What placing a table like this costs. Only the cut matters, not which ranks hold the parts.
pub fn placement_cost(request: &Request<'_>, table: usize, placement: &Placement) -> PlacementCost {
    let pricing = Pricing::new(request, table);
    let column_parts = placement.column_cuts().len().saturating_sub(1).max(1);
    let shards = placement.shards.iter().map(|shard| match (placement.replicated, placement.returns) {
        (true, _) => pricing.keeper(shard),
        (false, Returns::Pooled) => pricing.pooling_owner(shard, column_parts),
        (false, Returns::Rows) => pricing.sending_owner(shard, column_parts),
    });
    let shards = shards.collect();
    let everywhere = match (placement.replicated, placement.returns) {
        (true, _) => pricing.copy_holder(),
        (false, Returns::Pooled) => pricing.taker(),
        (false, Returns::Rows) => pricing.pooling_asker(),
    };
    PlacementCost { shards, everywhere }
}

/// One table with all that its price depends on.
struct Pricing<'a> {
    request: &'a Request<'a>,
    table: &'a TableSpec,
    load: &'a TableLoad,
    ranks: f64,
    batch: f64,
    /// Different rows in the batch, and in one rank's samples.
    distinct: f64,
    distinct_local: f64,
    is_near: bool,
}

impl<'a> Pricing<'a> {
    fn new(request: &'a Request<'a>, table: usize) -> Pricing<'a> {
        let (spec, load) = (&request.model.tables[table], &request.loads[table]);
        let batch = request.batch_size as f64;
        let bytes = spec.row_count.saturating_mul((spec.dim * spec.format.element_bytes()) as u64);
        let rows = spec.row_count as f64;
        Pricing {
            request,
            table: spec,
            load,
            ranks: request.topology.rank_count() as f64,
            batch,
            distinct: load.distinct_rows(batch).min(rows),
            distinct_local: load.distinct_rows(request.local_samples()).min(rows),
            is_near: bytes <= request.topology.compute.cache_bytes,
        }
    }

    /// The owner of all rows of some columns, which sends pooled vectors.
    fn pooling_owner(&self, shard: &Shard, column_parts: usize) -> Cost {
        let columns = shard.columns.len() as f64;
        let vectors = self.batch * self.load.features as f64 * columns;
        let mut cost = self.owner(shard, 1.0, column_parts);
        cost.seconds[POOL] = self.pool_seconds(columns, self.batch * self.load.ids_per_sample, self.distinct);
        self.exchange(&mut cost, VECTORS, vectors * Wire::bytes(self.request.wire.forward));
        self.exchange(&mut cost, GRADIENTS, vectors * Wire::bytes(self.request.wire.backward));
        cost.seconds[CODECS] = self.request.sender_seconds(vectors, vectors);
        // Gradients come back in the memory that the vectors left in.
        cost.memory_bytes += (vectors * 4.0) as u64;
        cost
    }

    /// The owner of some rows, which sends the rows themselves.
    fn sending_owner(&self, shard: &Shard, column_parts: usize) -> Cost {
        let (columns, share) = (shard.columns.len() as f64, self.share(shard));
        let mut cost = self.owner(shard, share, column_parts);
        let sent = self.ranks * (self.distinct_local * share).min(self.rows(shard));
        let different = (self.distinct * share).min(self.rows(shard));
        cost.seconds[POOL] = self.pool_seconds(columns, sent, different);
        let row_bytes = columns * self.table.format.element_bytes() as f64;
        // Every rank lists the rows that it asks for; the lists come with its ids.
        self.exchange(&mut cost, IDS, sent * ROW_NUMBER_BYTES);
        self.exchange(&mut cost, VECTORS, sent * row_bytes);
        let gradients = self.batch * self.part_bags(share) * columns;
        self.exchange(&mut cost, GRADIENTS, gradients * Wire::bytes(self.request.wire.backward));
        cost.seconds[CODECS] = self.request.sender_seconds(0.0, gradients);
        cost.memory_bytes += (sent * (row_bytes + ROW_NUMBER_BYTES) + gradients * 4.0) as u64;
        cost
    }

    /// What all owners have in common: ids come in, rows are kept, merged and moved.
    fn owner(&self, shard: &Shard, share: f64, column_parts: usize) -> Cost {
        let mut cost = Cost::default();
        let ids = self.batch * self.load.ids_per_sample * share;
        let id_bytes = if self.load.weighted { 8.0 } else { 4.0 };
        let message = ids * id_bytes + self.batch * self.load.features as f64 * 4.0;
        self.exchange(&mut cost, IDS, message);
        let moved = (self.distinct * share).min(self.rows(shard));
        cost.seconds[UPDATE] = self.update_seconds(shard.columns.len(), ids, moved);
        if column_parts > 1 && is_row_wise(self.request.optimizer) {
            let blocks = shard.columns.len().div_ceil(COLUMN_BLOCK) as f64;
            self.exchange(&mut cost, UPDATE, moved * blocks * 4.0 * (column_parts - 1) as f64);
        }
        cost.memory_bytes = self.stored_bytes(shard) + (message + ids * MERGE_BYTES_PER_ID) as u64;
        cost
    }

    /// The rank that keeps up some rows of a table that all have.
    fn keeper(&self, shard: &Shard) -> Cost {
        let (columns, share) = (shard.columns.len() as f64, self.share(shard));
        let mut cost = self.owner(shard, share, 1);
        let gradients = self.batch * self.part_bags(share) * columns;
        self.exchange(&mut cost, GRADIENTS, gradients * Wire::bytes(self.request.wire.backward));
        let row_bytes = columns * self.table.format.element_bytes() as f64;
        let moved = (self.distinct * share).min(self.rows(shard));
        cost.seconds[CODECS] = self.request.sender_seconds(0.0, gradients);
        // New rows go to every rank, with the list of which they are, this one's copy too. The rows that it keeps lie beside the copies.
        self.exchange(&mut cost, UPDATE, moved * (row_bytes + ROW_NUMBER_BYTES) * self.ranks);
        cost.memory_bytes += (gradients * 4.0) as u64;
        cost
    }

    /// Every rank, when vectors come to it.
    fn taker(&self) -> Cost {
        let mut cost = Cost::default();
        cost.seconds[CODECS] = self.request.taker_seconds(self.local_floats());
        cost
    }

    /// Every rank, when it pools its own vectors: they are rounded as if they had travelled.
    fn rounding_seconds(&self) -> f64 {
        let floats = self.local_floats();
        self.request.sender_seconds(floats, 0.0) + self.request.taker_seconds(floats)
    }

    /// Floats of the table's vectors of a rank's own samples.
    fn local_floats(&self) -> f64 {
        self.request.local_samples() * (self.load.features * self.table.dim) as f64
    }

    /// Every rank, when all have a copy: pools its own samples, and writes the rows that moved.
    fn copy_holder(&self) -> Cost {
        let dim = self.table.dim as f64;
        let mut cost = Cost::default();
        let ids = self.request.local_samples() * self.load.ids_per_sample;
        cost.seconds[POOL] = self.pool_seconds(dim, ids, self.distinct_local);
        let rates = self.request.topology.compute.rows(dim);
        let write = if self.is_near { rates.pool_near_ns } else { rates.pool_far_ns };
        cost.seconds[UPDATE] = self.distinct * write * 1e-9;
        cost.seconds[CODECS] = self.rounding_seconds();
        let bytes = (self.table.dim * self.table.format.element_bytes()) as u64;
        cost.memory_bytes = self.table.row_count.saturating_mul(bytes);
        cost
    }

    /// Every rank, when rows come to it: pools its own samples from them.
    fn pooling_asker(&self) -> Cost {
        let dim = self.table.dim as f64;
        let mut cost = Cost::default();
        let ids = self.request.local_samples() * self.load.ids_per_sample;
        let rates = self.request.topology.compute.rows(dim);
        cost.seconds[POOL] = ids * rates.pool_near_ns * 1e-9;
        cost.seconds[CODECS] = self.rounding_seconds();
        let rows = self.distinct_local * dim * self.table.format.element_bytes() as f64;
        cost.memory_bytes = (rows + ids * 8.0) as u64;
        cost
    }

    fn pool_seconds(&self, columns: f64, ids: f64, distinct: f64) -> f64 {
        let compute = &self.request.topology.compute;
        let near = compute.rows(columns).pool_near_ns;
        if self.is_near {
            return ids * near * 1e-9;
        }
        // Half-width rows cost half as much to fetch, but as much to add.
        let fetched = compute.rows(columns * self.table.format.element_bytes() as f64 / 4.0);
        let fetch = (fetched.pool_far_ns - fetched.pool_near_ns).max(0.0);
        (ids * near + distinct.min(ids) * fetch) * 1e-9
    }

    fn update_seconds(&self, columns: usize, ids: f64, rows: f64) -> f64 {
        let compute = &self.request.topology.compute;
        let rates = compute.rows(columns as f64);
        let near = ids * rates.merge_ns + rows * rates.update_near_ns;
        if self.is_near {
            return near * 1e-9;
        }
        let floats = (columns * self.table.format.element_bytes()) as f64 / 4.0
            + self.request.optimizer.state_floats(columns) as f64;
        let fetched = compute.rows(floats);
        (near + rows * (fetched.update_far_ns - fetched.update_near_ns).max(0.0)) * 1e-9
    }

    /// Adds `bytes` between an owner and all ranks alike to a stage; with one rank nothing travels.
    fn exchange(&self, cost: &mut Cost, stage: usize, bytes: f64) {
        if self.ranks <= 1.0 {
            return;
        }
        let topology = self.request.topology;
        let cross = bytes * (topology.hosts - 1) as f64 / topology.hosts as f64;
        // What stays on the rank is copied all the same, at the speed of its host.
        let in_host = bytes - cross;
        travel(cost, stage, (topology.in_host, in_host), (topology.between_hosts(), cross));
        cost.in_host_bytes += in_host - bytes / self.ranks;
        cost.cross_host_bytes += cross;
    }

    fn stored_bytes(&self, shard: &Shard) -> u64 {
        stored_bytes(self.table, self.request.optimizer, shard)
    }

    fn rows(&self, shard: &Shard) -> f64 {
        (shard.rows.end - shard.rows.start) as f64
    }

    /// Share of the ids that name the shard's rows.
    fn share(&self, shard: &Shard) -> f64 {
        let all = self.table.row_count.max(1) as f64;
        self.load.share_of_rows(shard.rows.start as f64 / all, shard.rows.end as f64 / all)
    }

    /// Bags of a sample that have a row among a share of the ids, if ids fall anywhere.
    fn part_bags(&self, share: f64) -> f64 {
        let ids_per_bag = self.load.ids_per_sample / self.load.bags_per_sample.max(1e-9);
        let mut misses = 1.0;
        for _ in 0..(ids_per_bag as usize).min(10_000) {
            misses *= 1.0 - share;
        }
        misses *= 1.0 - share * ids_per_bag.fract();
        self.load.bags_per_sample * (1.0 - misses)
    }
}

/// Adds the time of bytes inside a host and between hosts to a stage. An update waits for what it exchanges.
pub(crate) fn travel(cost: &mut Cost, stage: usize, inside: (Link, f64), between: (Link, f64)) {
    for (link, bytes) in [inside, between] {
        let seconds = bytes / link.bytes_per_second;
        cost.seconds[stage] += seconds;
        if stage != UPDATE {
            cost.hideable_seconds += seconds * link.hidden_share;
        }
    }
}

/// Bytes of a shard's rows and their state.
pub fn stored_bytes(table: &TableSpec, optimizer: &SparseOptimizer, shard: &Shard) -> u64 {
    let columns = shard.columns.len();
    let row = columns * table.format.element_bytes() + optimizer.state_floats(columns) * 4;
    (shard.rows.end - shard.rows.start).saturating_mul(row as u64)
}

fn is_row_wise(optimizer: &SparseOptimizer) -> bool {
    matches!(optimizer, SparseOptimizer::RowwiseAdagrad { .. } | SparseOptimizer::RowwiseAdam { .. })
}
