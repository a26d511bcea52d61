//! Looking up rows that live on other ranks, and giving them their gradients.
//!
//! A rank holds samples for all tables but rows of only some. A lookup therefore goes out and back, and the
//! gradient takes the way of the vectors in reverse:
//!
//! ```text
//!   bags ──ids by owner──► owners pool own rows ──vectors by sample──► network
//!                          owners merge, update ◄──gradients by owner── network
//! ```
//!
//! An owner sees the samples of all ranks in rank order, which is the order of the global batch, so sums over
//! samples are formed in the same order for every number of ranks and every plan.
//!
//! Each way is started and finished apart, so that the caller can compute in between: ids of the next batch travel
//! during this one, and vectors and gradients travel in chunks of samples, one while another
//! computes. Whether a caller does so changes no result. What was started first must be finished first.
//!
//! Message buffers go round and are never freed: after the first steps nothing is allocated.

use std::{mem::take, ops::Range};

use campanile_comm::{Buffer, CommError, Communicator, Pending};
use campanile_kernels::{Isa, codec::Codec};
use campanile_spec::{Bags, Grains, ModelSpec, Plan, Pooling};
use campanile_tables::{Table, TableError, UpdateReport, UpdateStep};
use thiserror::Error;

use crate::{
    chunks::Chunks,
    gradients::{self, Gradients},
    ids::{self, Failed, Ids},
    route::Route,
    update::{Owned, Scratch},
    vectors::{self, Loaned, Wire},
};

/// Why a lookup or a push failed, on all ranks at once.
#[derive(Debug, Error)]
pub enum ShardedError {
    /// Ranks could not talk, or one of them gave up.
    #[error(transparent)]
    Comm(#[from] CommError),
}

/// How an exchange is done; the codecs change results, the rest does not.
#[derive(Debug, Clone, Copy)]
pub struct Manner {
    /// The cut of a batch.
    pub grains: Grains,
    /// How many runs a rank's samples are cut into, at most.
    pub chunks: usize,
    /// How pooled vectors travel.
    pub forward: Codec,
    /// How their gradients travel.
    pub backward: Codec,
    /// The level of instructions.
    pub isa: Isa,
}

/// One rank's part in the exchange of ids, vectors and gradients.
pub struct Exchange {
    route: Route,
    owned: Owned,
    rank: usize,
    chunks: Chunks,
    forward: Wire,
    backward: Wire,
    poolings: Vec<Pooling>,
    /// The batch at work, and the one whose ids are on their way.
    current: Ids,
    next: Ids,
    next_is_here: bool,
    /// By chunk: vectors on their way, or the gradients that return in the same memory; one per rank.
    messages: Vec<Vec<Buffer>>,
    loaned: Loaned,
    pooled: Buffer,
    gradient: Buffer,
    floats: Vec<f32>,
    decoded: Buffer,
    scratch: Scratch,
}

impl Exchange {
    /// The part of `rank` under `plan`.
    pub fn new(model: &ModelSpec, plan: &Plan, rank: usize, manner: Manner) -> Exchange {
        let chunks = Chunks::new(manner.grains, plan.rank_count, manner.chunks);
        Exchange::with_chunks(model, plan, rank, manner, chunks)
    }

    /// The same with another cut of the samples.
    pub(crate) fn with_chunks(
        model: &ModelSpec,
        plan: &Plan,
        rank: usize,
        manner: Manner,
        chunks: Chunks,
    ) -> Exchange {
        let route = Route::new(model, plan);
        let empty = || vec![Buffer::new(); plan.rank_count];
        let ids = || Ids { received: empty(), ..Ids::default() };
        Exchange {
            owned: Owned::new(plan, &route, rank),
            rank,
            messages: (0..chunks.count()).map(|_| empty()).collect(),
            chunks,
            forward: Wire { codec: manner.forward, isa: manner.isa },
            backward: Wire { codec: manner.backward, isa: manner.isa },
            poolings: model.features.iter().map(|f| f.pooling).collect(),
            current: ids(),
            next: ids(),
            next_is_here: false,
            loaned: Loaned::default(),
            pooled: Buffer::new(),
            gradient: Buffer::new(),
            floats: Vec::new(),
            decoded: Buffer::new(),
            scratch: Scratch::default(),
            route,
        }
    }

    /// How many chunks a rank's samples have.
    pub fn chunk_count(&self) -> usize {
        self.chunks.count()
    }

    /// The grains of this rank's chunk.
    pub fn grains_of(&self, chunk: usize) -> Range<usize> {
        let runs = self.chunks.runs_of(chunk);
        debug_assert_eq!(runs.len(), 1, "in the flat exchange a chunk is one run");
        self.chunks.grains_of(self.rank, runs.start)
    }

    /// Starts to send the ids of the next batch, which has `global_count` samples over all ranks, or says that this
    /// rank has none to send and why; then all ranks fail when they finish.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn start_ids<'c>(
        &mut self,
        comm: &'c dyn Communicator,
        batch: Result<(&Bags, usize), String>,
    ) -> Result<Pending<'c>, ShardedError> {
        self.start_ids_or_failure(
            comm,
            batch.map_err(|words| Failed { rank: comm.number(comm.rank()), words }),
        )
    }

    /// As [`Exchange::start_ids`], where the failure may be another rank's.
    pub(crate) fn start_ids_or_failure<'c>(
        &mut self,
        comm: &'c dyn Communicator,
        batch: Result<(&Bags, usize), Failed>,
    ) -> Result<Pending<'c>, ShardedError> {
        let mut messages = take(&mut self.next.received);
        let written = batch.and_then(|batch| {
            let written = self.next.write(&self.route, &self.chunks, batch, self.rank, &mut messages);
            written.map_err(|words| Failed { rank: comm.number(comm.rank()), words })
        });
        if let Err(failed) = written {
            ids::write_failure(&mut messages, &failed);
        }
        Ok(comm.start_all_to_all(messages)?)
    }

    /// Waits for the ids of the next batch; [`Exchange::advance`] then makes it the one at work.
    ///
    /// # Errors
    /// When a rank has failed or left; on all ranks.
    pub fn finish_ids(&mut self, pending: Pending<'_>) -> Result<(), ShardedError> {
        self.next.received = pending.wait()?;
        ids::failure(&self.next.received).map_err(CommError::from)?;
        self.next_is_here = true;
        Ok(())
    }

    /// Whether the ids of the next batch have come.
    pub fn next_is_here(&self) -> bool {
        self.next_is_here
    }

    /// Makes the next batch the one at work.
    ///
    /// # Panics
    /// If its ids have not come.
    pub fn advance(&mut self) {
        assert!(take(&mut self.next_is_here), "the next batch is not here");
        std::mem::swap(&mut self.current, &mut self.next);
    }

    /// Whether this rank is alone: it pools vectors where they are read, takes gradients where they are written, and its messages
    /// are empty.
    fn is_alone(&self) -> bool {
        self.route.owners.len() == 1 && self.route.owners[0].parts.is_empty()
    }

    /// Floats of all vectors of a sample.
    pub(crate) fn pooled_width(&self) -> usize {
        self.route.pooled_width
    }

    /// Looks up what all ranks asked for in a chunk, and starts to send it. `shards` are this rank's in the plan's
    /// order.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn start_vectors<'c>(
        &mut self,
        comm: &'c dyn Communicator,
        shards: &[Table],
        chunk: usize,
    ) -> Result<Pending<'c>, ShardedError> {
        let mut messages = take(&mut self.messages[chunk]);
        let answered = match self.is_alone() {
            true => self.pool_own(shards, chunk),
            false => self.answer(shards, chunk, &mut messages),
        };
        if let Err(error) = answered {
            let failed = Failed { rank: comm.number(comm.rank()), words: error.to_string() };
            ids::write_failure(&mut messages, &failed);
        }
        Ok(comm.start_all_to_all(messages)?)
    }

    fn answer(&mut self, shards: &[Table], chunk: usize, messages: &mut [Buffer]) -> Result<(), TableError> {
        let owner = &self.route.owners[self.rank];
        for (source, out) in messages.iter_mut().enumerate() {
            let ids = self.current.from(source, owner, self.chunks.run_count());
            let samples = self.chunks.samples(self.current.global_count, source, chunk);
            let request = (&ids, samples, chunk == 0);
            let memory = (out, &mut self.floats);
            vectors::answer((owner, self.forward), &self.poolings, shards, request, memory)?;
        }
        Ok(())
    }

    fn pool_own(&mut self, shards: &[Table], chunk: usize) -> Result<(), TableError> {
        let owner = &self.route.owners[self.rank];
        let ids = self.current.from(self.rank, owner, self.chunks.run_count());
        let (samples, rows) = self.rows_of(chunk);
        self.pooled.resize(self.current.sample_count * self.route.pooled_width * size_of::<f32>());
        let vectors = &mut self.pooled.values_mut::<f32>()[rows];
        vectors::pool(owner, &self.poolings, shards, (&ids, samples), vectors)?;
        vectors::round_all(&self.route, self.forward, vectors);
        Ok(())
    }

    /// This rank's samples of a chunk, and the floats of their vectors.
    fn rows_of(&self, chunk: usize) -> (Range<usize>, Range<usize>) {
        let samples = self.chunks.samples(self.current.global_count, self.rank, chunk);
        let width = self.route.pooled_width;
        (samples.clone(), samples.start * width..samples.end * width)
    }

    /// Waits for the vectors of a chunk; [`Exchange::pooled`] then has them. `bags` are those of the batch at work.
    ///
    /// # Errors
    /// When a rank has an id beyond its table, or has left; on all ranks.
    pub fn finish_vectors(
        &mut self,
        pending: Pending<'_>,
        mirrors: &[Table],
        bags: &Bags,
        chunk: usize,
    ) -> Result<(), ShardedError> {
        let received = pending.wait()?;
        ids::failure(&received).map_err(CommError::from)?;
        if self.is_alone() {
            self.messages[chunk] = received;
            return Ok(());
        }
        let samples = self.chunks.samples(self.current.global_count, self.rank, chunk);
        let width = self.route.pooled_width;
        self.pooled.resize(self.current.sample_count * width * size_of::<f32>());
        let pooled = self.pooled.values_mut::<f32>();
        for (owner, message) in self.route.owners.iter().zip(&received) {
            vectors::take_vectors((owner, self.forward), message, samples.clone(), (pooled, width));
        }
        if chunk == 0 {
            self.loaned.take(&self.route, &self.current, self.forward, &received, samples.len());
        }
        self.loaned.pool((&self.route, self.forward), &self.current, bags, samples.clone(), pooled);
        vectors::pool_mirrored(&self.route, mirrors, bags, samples.clone(), pooled)
            .expect("ids of mirrored tables were looked at before they were sent");
        vectors::round_unsent(&self.route, self.forward, samples, pooled);
        self.messages[chunk] = received;
        Ok(())
    }

    /// The vectors of this rank's samples, `[sample][pooled_width]` in feature order, as far as their chunks have
    /// come.
    pub fn pooled(&self) -> &[f32] {
        self.pooled.values()
    }

    /// The vectors, and room for their gradients in the same layout.
    pub fn pooled_and_gradient(&mut self) -> (&[f32], &mut [f32]) {
        self.gradient.resize(self.current.sample_count * self.route.pooled_width * size_of::<f32>());
        (self.pooled.values(), self.gradient.values_mut())
    }

    /// Starts to send the gradients of a chunk to the owners of the rows.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn start_gradients<'c>(
        &mut self,
        comm: &'c dyn Communicator,
        chunk: usize,
    ) -> Result<Pending<'c>, ShardedError> {
        let mut messages = take(&mut self.messages[chunk]);
        let (samples, rows) = self.rows_of(chunk);
        if self.is_alone() {
            vectors::round_all(&self.route, self.backward, &mut self.gradient.values_mut()[rows]);
            return Ok(comm.start_all_to_all(messages)?);
        }
        for (owner, message) in self.route.owners.iter().zip(&mut messages) {
            let way = (&self.route, owner, self.backward);
            let memory = (message, &mut self.floats);
            gradients::write(way, &self.current, samples.clone(), self.gradient.values(), memory);
        }
        Ok(comm.start_all_to_all(messages)?)
    }

    /// Waits for the gradients of a chunk.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn finish_gradients(&mut self, pending: Pending<'_>, chunk: usize) -> Result<(), ShardedError> {
        let mut received = pending.wait()?;
        if !self.is_alone() {
            let owner = &self.route.owners[self.rank];
            for (source, message) in received.iter_mut().enumerate() {
                let ids = self.current.from(source, owner, self.chunks.run_count());
                let samples = self.chunks.samples(self.current.global_count, source, chunk).len();
                let memory = (message, &mut self.decoded);
                gradients::read((owner, self.backward), &ids, (samples, self.chunks.runs_of(chunk)), memory);
            }
        }
        self.messages[chunk] = received;
        Ok(())
    }

    /// Merges the gradients of every row in global sample order and updates it once, when all chunks have come.
    ///
    /// # Errors
    /// When a rank has left; on all ranks.
    pub fn update(
        &mut self,
        comm: &dyn Communicator,
        shards: &mut [Table],
        mirrors: &mut [Table],
        step: &UpdateStep,
    ) -> Result<UpdateReport, ShardedError> {
        let owner = &self.route.owners[self.rank];
        let ids: Vec<_> = (0..self.route.owners.len())
            .map(|source| self.current.from(source, owner, self.chunks.run_count()))
            .collect();
        let batch = (&self.chunks, self.current.global_count);
        let gradients = match self.is_alone() {
            true => Gradients::Stayed(self.gradient.values()),
            false => Gradients::Came(&self.messages),
        };
        let blocks = |shard: usize| gradients::blocks(shard, (&self.route, owner), batch, &ids, gradients);
        let manner = (step, self.forward.isa);
        let report = self.owned.update(comm, shards, &blocks, manner, &mut self.scratch)?;
        self.owned.refresh_mirrors(comm, shards, mirrors, &self.scratch)?;
        Ok(report)
    }

    /// A whole lookup, one way after the other.
    ///
    /// # Errors
    /// As the parts that it consists of.
    pub fn lookup(
        &mut self,
        comm: &dyn Communicator,
        (shards, mirrors): (&[Table], &[Table]),
        batch: Result<(&Bags, usize), String>,
    ) -> Result<(), ShardedError> {
        let bags = batch.as_ref().ok().map(|(bags, _)| *bags);
        let pending = self.start_ids(comm, batch)?;
        self.finish_ids(pending)?;
        self.advance();
        let bags = bags.expect("a batch without bags has failed above");
        for chunk in 0..self.chunk_count() {
            let pending = self.start_vectors(comm, shards, chunk)?;
            self.finish_vectors(pending, mirrors, bags, chunk)?;
        }
        Ok(())
    }

    /// A whole push: gradients to the owners, which update their rows.
    ///
    /// # Errors
    /// As the parts that it consists of.
    pub fn push(
        &mut self,
        comm: &dyn Communicator,
        (shards, mirrors): (&mut [Table], &mut [Table]),
        step: &UpdateStep,
    ) -> Result<UpdateReport, ShardedError> {
        for chunk in 0..self.chunk_count() {
            let pending = self.start_gradients(comm, chunk)?;
            self.finish_gradients(pending, chunk)?;
        }
        self.update(comm, shards, mirrors, step)
    }
}
