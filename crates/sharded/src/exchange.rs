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
//! Pooling happens at the owner, so one vector travels per bag, not one per id. An owner sees the samples of
//! all ranks in rank order, which is the order of the global batch, so sums over samples are formed in the
//! same order for every number of ranks.
//!
//! A message buffer goes round: vectors travel in it to the samples' rank, which fills the same buffer with
//! gradients and sends it back. After the first step nothing is allocated.

use std::mem::take;

use campanile_comm::{Buffer, CommError, Communicator};
use campanile_spec::{Bags, FeatureBags, ModelSpec, Plan, Pooling};
use campanile_tables::{GradientBlock, Table, TableError, UpdateReport, UpdateScratch, UpdateStep};
use thiserror::Error;

use crate::route::{OwnedFeature, Route};

/// Why a lookup or a push failed, on all ranks at once.
#[derive(Debug, Error)]
pub enum ShardedError {
    /// Ranks could not talk, or one of them gave up.
    #[error(transparent)]
    Comm(#[from] CommError),
}

/// One rank's part in the exchange of ids, vectors and gradients.
pub struct Exchange {
    route: Route,
    rank: usize,
    /// For each table of the model, its place among this rank's tables.
    places: Vec<Option<usize>>,
    tables_of_features: Vec<usize>,
    poolings: Vec<Pooling>,
    /// The ids that every rank sent for this rank's tables in the running step.
    ids: Vec<Buffer>,
    /// Vectors on their way, or the gradients that return in the same memory; one per rank.
    vectors: Vec<Buffer>,
    pooled: Buffer,
    gradient: Buffer,
    sample_count: usize,
    scratch: UpdateScratch,
}

impl Exchange {
    /// The part of `rank` under `plan`.
    pub fn new(model: &ModelSpec, plan: &Plan, rank: usize) -> Exchange {
        let mut places = vec![None; model.tables.len()];
        for (place, table) in plan.shards_of(rank).map(|(table, _)| table).enumerate() {
            places[table.0 as usize] = Some(place);
        }
        Exchange {
            route: Route::new(model, plan),
            rank,
            places,
            tables_of_features: model.features.iter().map(|f| f.table.0 as usize).collect(),
            poolings: model.features.iter().map(|f| f.pooling).collect(),
            ids: vec![Buffer::new(); plan.rank_count],
            vectors: vec![Buffer::new(); plan.rank_count],
            pooled: Buffer::new(),
            gradient: Buffer::new(),
            sample_count: 0,
            scratch: UpdateScratch::default(),
        }
    }

    /// Looks up all bags of this rank's samples; [`Exchange::pooled`] then has their vectors. `tables` are this
    /// rank's tables in table order.
    ///
    /// # Errors
    /// When a rank has an id beyond its table, or has left; on all ranks.
    pub fn lookup(
        &mut self,
        comm: &dyn Communicator,
        tables: &[Table],
        bags: &Bags,
    ) -> Result<(), ShardedError> {
        self.sample_count = bags.sample_count();
        let mut messages = take(&mut self.ids);
        for (message, owned) in messages.iter_mut().zip(&self.route.owned) {
            write_ids(message, owned, bags);
        }
        self.ids = comm.all_to_all(messages)?;
        let outcome = self.pool_own(tables);
        comm.agree(outcome.map_err(|error| error.to_string()))?;
        self.vectors = comm.all_to_all(take(&mut self.vectors))?;
        self.assemble();
        Ok(())
    }

    /// The vectors of this rank's samples, `[sample][pooled_width]` in feature order.
    pub fn pooled(&self) -> &[f32] {
        if self.route.owned.len() == 1 { self.vectors[0].values() } else { self.pooled.values() }
    }

    /// The vectors, and room for their gradients in the same layout.
    pub fn pooled_and_gradient(&mut self) -> (&[f32], &mut [f32]) {
        let bytes = self.sample_count * self.route.pooled_width * size_of::<f32>();
        self.gradient.resize(bytes);
        let pooled = if self.route.owned.len() == 1 { &self.vectors[0] } else { &self.pooled };
        (pooled.values(), self.gradient.values_mut())
    }

    /// Sends the gradients to the owners of the rows, which merge duplicates in global sample order and update
    /// every touched row once.
    ///
    /// # Errors
    /// When a rank fails or has left; on all ranks.
    pub fn push(
        &mut self,
        comm: &dyn Communicator,
        tables: &mut [Table],
        step: &UpdateStep,
    ) -> Result<UpdateReport, ShardedError> {
        if self.route.owned.len() == 1 {
            std::mem::swap(&mut self.vectors[0], &mut self.gradient);
        } else {
            self.disassemble();
            self.vectors = comm.all_to_all(take(&mut self.vectors))?;
        }
        let outcome = self.update_own(tables, step);
        // An update that fails leaves rows half way, so nobody may go on from here.
        comm.agree(outcome.as_ref().map(|_| ()).map_err(|error| error.to_string()))?;
        Ok(outcome.unwrap_or_default())
    }

    fn pool_own(&mut self, tables: &[Table]) -> Result<(), TableError> {
        let width = self.route.widths[self.rank];
        for (ids, vectors) in self.ids.iter().zip(&mut self.vectors) {
            let ids = IdMessage::read(ids);
            vectors.resize(ids.sample_count * width * size_of::<f32>());
            let out = vectors.values_mut::<f32>();
            for (place, owned) in self.route.owned[self.rank].iter().enumerate() {
                let Some(table) = self.places[self.tables_of_features[owned.feature]] else { continue };
                let pooling = self.poolings[owned.feature];
                tables[table].pool(pooling, &ids.feature(place), out, width, owned.owner_offset)?;
            }
        }
        Ok(())
    }

    /// Puts the vectors of all owners side by side, in feature order.
    fn assemble(&mut self) {
        if self.route.owned.len() == 1 {
            return;
        }
        let pooled_width = self.route.pooled_width;
        self.pooled.resize(self.sample_count * pooled_width * size_of::<f32>());
        let pooled = self.pooled.values_mut::<f32>();
        for ((owned, &width), vectors) in self.route.owned.iter().zip(&self.route.widths).zip(&self.vectors) {
            if width == 0 {
                continue;
            }
            let vectors = vectors.values::<f32>();
            for (row, part) in pooled.chunks_exact_mut(pooled_width).zip(vectors.chunks_exact(width)) {
                for f in owned {
                    row[f.pooled_offset..][..f.dim].copy_from_slice(&part[f.owner_offset..][..f.dim]);
                }
            }
        }
    }

    /// Cuts the gradients up by owner, into the buffers that the vectors came in.
    fn disassemble(&mut self) {
        let pooled_width = self.route.pooled_width;
        let gradient = self.gradient.values::<f32>();
        for ((owned, &width), vectors) in
            self.route.owned.iter().zip(&self.route.widths).zip(&mut self.vectors)
        {
            vectors.resize(self.sample_count * width * size_of::<f32>());
            if width == 0 {
                continue;
            }
            let parts = vectors.values_mut::<f32>();
            for (row, part) in gradient.chunks_exact(pooled_width).zip(parts.chunks_exact_mut(width)) {
                for f in owned {
                    part[f.owner_offset..][..f.dim].copy_from_slice(&row[f.pooled_offset..][..f.dim]);
                }
            }
        }
    }

    fn update_own(&mut self, tables: &mut [Table], step: &UpdateStep) -> Result<UpdateReport, TableError> {
        let width = self.route.widths[self.rank];
        let messages: Vec<IdMessage<'_>> = self.ids.iter().map(IdMessage::read).collect();
        let mut total = UpdateReport::default();
        for (table, place) in self.places.iter().enumerate() {
            let Some(place) = *place else { continue };
            let mut blocks = Vec::new();
            for (message_place, owned) in self.route.owned[self.rank].iter().enumerate() {
                if self.tables_of_features[owned.feature] != table {
                    continue;
                }
                for (ids, vectors) in messages.iter().zip(&self.vectors) {
                    blocks.push(GradientBlock {
                        bags: ids.feature(message_place),
                        pooling: self.poolings[owned.feature],
                        gradient: vectors.values(),
                        stride: width,
                        offset: owned.owner_offset,
                    });
                }
            }
            let report = tables[place].update(&blocks, step, &mut self.scratch)?;
            total.ids_seen += report.ids_seen;
            total.rows_touched += report.rows_touched;
        }
        Ok(total)
    }
}

/// Words before the arrays of an id message: samples, ids, whether weights follow, features.
const HEADER_WORDS: usize = 4;

/// The ids of one rank's samples for one owner's features:
/// `header | offsets: features * samples + 1 | rows | weights, if any`, all in words of 32 bits.
struct IdMessage<'a> {
    sample_count: usize,
    offsets: &'a [u32],
    rows: &'a [u32],
    weights: &'a [f32],
}

fn write_ids(message: &mut Buffer, owned: &[OwnedFeature], bags: &Bags) {
    let samples = bags.sample_count();
    let weighted = !bags.weights().is_empty();
    let ids: usize = owned.iter().map(|f| bags.feature(f.feature).rows.len()).sum();
    let offsets_end = HEADER_WORDS + owned.len() * samples + 1;
    let rows_end = offsets_end + ids;
    message.resize((rows_end + if weighted { ids } else { 0 }) * size_of::<u32>());
    let words = message.values_mut::<u32>();
    words[..HEADER_WORDS].copy_from_slice(&[
        samples as u32,
        ids as u32,
        u32::from(weighted),
        owned.len() as u32,
    ]);
    words[HEADER_WORDS] = 0;
    let mut next = 0;
    for (place, f) in owned.iter().enumerate() {
        let feature = bags.feature(f.feature);
        let offsets = &mut words[HEADER_WORDS + 1 + place * samples..][..samples];
        let base = feature.offsets[0];
        for (to, from) in offsets.iter_mut().zip(&feature.offsets[1..]) {
            *to = from - base + next as u32;
        }
        words[offsets_end + next..][..feature.rows.len()].copy_from_slice(feature.rows);
        if weighted {
            words[rows_end + next..][..feature.rows.len()]
                .copy_from_slice(bytemuck::cast_slice(feature.weights));
        }
        next += feature.rows.len();
    }
}

impl<'a> IdMessage<'a> {
    fn read(message: &'a Buffer) -> IdMessage<'a> {
        let words = message.values::<u32>();
        let (samples, ids, weighted, features) =
            (words[0] as usize, words[1] as usize, words[2], words[3] as usize);
        let (offsets, rest) = words[HEADER_WORDS..].split_at(features * samples + 1);
        let (rows, weights) = rest.split_at(ids);
        assert_eq!(weights.len(), if weighted == 1 { ids } else { 0 }, "an id message of the wrong length");
        IdMessage { sample_count: samples, offsets, rows, weights: bytemuck::cast_slice(weights) }
    }

    fn feature(&self, place: usize) -> FeatureBags<'a> {
        let offsets = &self.offsets[place * self.sample_count..=(place + 1) * self.sample_count];
        let range = offsets[0] as usize..offsets[self.sample_count] as usize;
        let weights = if self.weights.is_empty() { &[][..] } else { &self.weights[range.clone()] };
        FeatureBags { offsets, rows: &self.rows[range], weights }
    }
}
