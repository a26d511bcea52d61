//! The second message: pooled vectors and lent rows, back to the samples' rank.
//!
//! One message per pair of ranks and chunk of samples:
//!
//! ```text
//!   64 bytes of head (status; 1: the words of a failure follow)
//!   pooled vectors    [sample of the chunk][feature], each encoded by itself
//!   lent rows         with the first chunk: every shard's rows as they are stored
//! ```
//!
//! A codec changes values, so it is applied to every vector, also to those that are pooled from lent or mirrored
//! rows and never travel: no result may show where a table lives.

use std::ops::Range;

use campanile_comm::Buffer;
use campanile_kernels::{
    Isa,
    codec::Codec,
    pool::{self, Bags as KernelBags, Place, Pool, Rows},
};
use campanile_spec::{Bags, FeatureBags, Pooling, RowFormat};
use campanile_tables::{Table, TableError};

use crate::{
    ids::{Ids, Received},
    route::{Lane, Owner, Route, Way},
};

/// Bytes before the vectors, so that these start on a cache line.
const HEAD: usize = 64;

/// How vectors travel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wire {
    pub codec: Codec,
    pub isa: Isa,
}

impl Wire {
    /// Bytes of all vectors of one sample.
    pub fn sample_bytes(&self, lanes: &[Lane]) -> usize {
        lanes.iter().map(|lane| self.codec.bytes(lane.columns.len())).sum()
    }

    /// Encodes vectors that lie side by side in rows of floats, row by row.
    pub fn encode_rows(&self, lanes: &[Lane], floats: &[f32], bytes: &mut [u8]) {
        let width: usize = lanes.iter().map(|lane| lane.columns.len()).sum();
        if self.codec == Codec::F32 {
            bytemuck::cast_slice_mut(bytes).copy_from_slice(floats);
            return;
        }
        let sample_bytes = self.sample_bytes(lanes).max(1);
        for (row, mut bytes) in floats.chunks_exact(width.max(1)).zip(bytes.chunks_exact_mut(sample_bytes)) {
            let mut at = 0;
            for lane in lanes {
                let dim = lane.columns.len();
                let (own, rest) = bytes.split_at_mut(self.codec.bytes(dim));
                self.codec.encode(self.isa, &row[at..at + dim], own);
                (bytes, at) = (rest, at + dim);
            }
        }
    }
}

/// The floats of a buffer from the head on.
fn floats_mut(buffer: &mut Buffer, count: usize) -> &mut [f32] {
    bytemuck::cast_slice_mut(&mut buffer.bytes_mut()[HEAD..HEAD + count * 4])
}

/// Pools the vectors of some samples of one rank, and copies the rows that it borrows, into `out`.
///
/// # Errors
/// When an id is beyond its table.
pub(crate) fn answer(
    (owner, wire): (&Owner, Wire),
    features: &[Pooling],
    shards: &[Table],
    (ids, samples, with_rows): (&Received<'_>, Range<usize>, bool),
    (out, scratch): (&mut Buffer, &mut Vec<f32>),
) -> Result<(), TableError> {
    let count = samples.len();
    let vector_bytes = count * wire.sample_bytes(&owner.pooled);
    let lent_bytes = |lent: (&crate::route::Lent, &&[u32])| lent.0.row_bytes * lent.1.len();
    let row_bytes: usize = if with_rows { owner.lent.iter().zip(&ids.lent).map(lent_bytes).sum() } else { 0 };
    out.resize(HEAD + vector_bytes + row_bytes);
    out.bytes_mut()[..4].fill(0);
    let width = owner.pooled_width;
    if wire.codec == Codec::F32 {
        pool(owner, features, shards, (ids, samples), floats_mut(out, count * width))?;
    } else {
        scratch.resize(count * width, 0.0);
        pool(owner, features, shards, (ids, samples), scratch)?;
        wire.encode_rows(&owner.pooled, scratch, &mut out.bytes_mut()[HEAD..HEAD + vector_bytes]);
    }
    if with_rows {
        let mut bytes = &mut out.bytes_mut()[HEAD + vector_bytes..];
        for (lent, rows) in owner.lent.iter().zip(&ids.lent) {
            let (own, rest) = bytes.split_at_mut(lent.row_bytes * rows.len());
            shards[lent.shard].copy_out(rows, own)?;
            bytes = rest;
        }
    }
    Ok(())
}

/// Pools the vectors of some samples of one rank, side by side as the owner has them.
///
/// # Errors
/// When an id is beyond its table.
pub(crate) fn pool(
    owner: &Owner,
    features: &[Pooling],
    shards: &[Table],
    (ids, samples): (&Received<'_>, Range<usize>),
    vectors: &mut [f32],
) -> Result<(), TableError> {
    for (place, lane) in owner.pooled.iter().enumerate() {
        let bags = ids.pooled(place, samples.clone());
        let (pooling, width) = (features[lane.feature], owner.pooled_width);
        shards[lane.shard].pool(pooling, &bags, vectors, width, lane.owner_offset)?;
    }
    Ok(())
}

/// Takes the vectors of an owner's message into the pooled rows of this rank's `samples`.
pub(crate) fn take_vectors(
    (owner, wire): (&Owner, Wire),
    message: &Buffer,
    samples: Range<usize>,
    (pooled, pooled_width): (&mut [f32], usize),
) {
    let sample_bytes = wire.sample_bytes(&owner.pooled);
    // A model without id features has no pooled vectors at all, and rows of no floats cannot be counted.
    if sample_bytes == 0 {
        return;
    }
    let rows =
        pooled[samples.start * pooled_width..samples.end * pooled_width].chunks_exact_mut(pooled_width);
    let bytes = &message.bytes()[HEAD..HEAD + samples.len() * sample_bytes];
    if wire.codec == Codec::F32 {
        let vectors: &[f32] = bytemuck::cast_slice(bytes);
        for (row, part) in rows.zip(vectors.chunks_exact(owner.pooled_width)) {
            for lane in &owner.pooled {
                let dim = lane.columns.len();
                row[lane.pooled_offset..][..dim].copy_from_slice(&part[lane.owner_offset..][..dim]);
            }
        }
        return;
    }
    for (row, mut part) in rows.zip(bytes.chunks_exact(sample_bytes)) {
        for lane in &owner.pooled {
            let dim = lane.columns.len();
            let (own, rest) = part.split_at(wire.codec.bytes(dim));
            wire.codec.decode(wire.isa, own, &mut row[lane.pooled_offset..][..dim]);
            part = rest;
        }
    }
}

/// The rows that this rank has borrowed for a batch: by table, by range of columns, all ranges of rows one after
/// the other.
#[derive(Default)]
pub(crate) struct Loaned {
    rows: Vec<Vec<Buffer>>,
}

impl Loaned {
    /// Takes the lent rows out of all owners' messages; `samples` are those of the message's chunk.
    pub fn take(&mut self, route: &Route, ids: &Ids, wire: Wire, messages: &[Buffer], samples: usize) {
        self.rows.resize_with(route.borrowed.len(), Vec::new);
        for ((rows, table), loan) in self.rows.iter_mut().zip(&route.borrowed).zip(&ids.loans) {
            let count: usize = loan.rows.iter().map(Vec::len).sum();
            rows.resize_with(table.columns.len(), Buffer::new);
            for (rows, columns) in rows.iter_mut().zip(&table.columns) {
                rows.resize(count * columns.len() * table.format.element_bytes());
            }
        }
        for (owner, message) in route.owners.iter().zip(messages) {
            let mut bytes = &message.bytes()[HEAD + samples * wire.sample_bytes(&owner.pooled)..];
            for lent in &owner.lent {
                let loan = &ids.loans[lent.borrowed].rows;
                let before: usize = loan[..lent.row_range].iter().map(Vec::len).sum();
                let (own, rest) = bytes.split_at(loan[lent.row_range].len() * lent.row_bytes);
                let to = self.rows[lent.borrowed][lent.column_range].bytes_mut();
                to[before * lent.row_bytes..][..own.len()].copy_from_slice(own);
                bytes = rest;
            }
        }
    }

    /// Pools some samples of all features whose rows were lent.
    pub fn pool(
        &self,
        (route, wire): (&Route, Wire),
        ids: &Ids,
        bags: &Bags,
        samples: Range<usize>,
        pooled: &mut [f32],
    ) {
        for (place, table) in route.borrowed.iter().enumerate() {
            for (&feature, places) in table.features.iter().zip(&ids.loans[place].places) {
                let whole = bags.feature(feature);
                let bags = samples_of(&whole, places, samples.clone());
                let spec = &route.features[feature];
                for (columns, rows) in table.columns.iter().zip(&self.rows[place]) {
                    let rows = match table.format {
                        RowFormat::F32 => Rows::F32(rows.values()),
                        RowFormat::F16 => Rows::F16(rows.values()),
                        RowFormat::Bf16 => Rows::Bf16(rows.values()),
                    };
                    let place =
                        Place { stride: route.pooled_width, offset: spec.pooled_offset + columns.start };
                    let out = &mut pooled[samples.start * route.pooled_width..];
                    let bags = KernelBags { offsets: bags.offsets, rows: bags.rows, weights: bags.weights };
                    pool::pool(wire.isa, (rows, columns.len()), 0, bags, kernel(spec.pooling), (out, place))
                        .expect("every id has the place of a row that was lent");
                }
            }
        }
    }
}

/// Pools some samples of all features whose tables every rank has.
///
/// # Errors
/// When an id is beyond its table; it was looked at before, so never.
pub(crate) fn pool_mirrored(
    route: &Route,
    mirrors: &[Table],
    bags: &Bags,
    samples: Range<usize>,
    pooled: &mut [f32],
) -> Result<(), TableError> {
    for (table, mirror) in route.mirrored.iter().zip(mirrors) {
        for &feature in &table.features {
            let whole = bags.feature(feature);
            let bags = samples_of(&whole, whole.rows, samples.clone());
            let spec = &route.features[feature];
            let out = &mut pooled[samples.start * route.pooled_width..];
            mirror.pool(spec.pooling, &bags, out, route.pooled_width, spec.pooled_offset)?;
        }
    }
    Ok(())
}

/// Gives the vectors that did not travel the values that they would have after the journey.
pub(crate) fn round_unsent(route: &Route, wire: Wire, samples: Range<usize>, pooled: &mut [f32]) {
    if wire.codec == Codec::F32 {
        return;
    }
    let width = route.pooled_width;
    for row in pooled[samples.start * width..samples.end * width].chunks_exact_mut(width.max(1)) {
        for feature in route.features.iter().filter(|feature| feature.way != Way::Pooled) {
            wire.codec.round(wire.isa, &mut row[feature.pooled_offset..][..feature.dim]);
        }
    }
}

/// Gives all vectors of some rows the values that they would have after a journey.
pub(crate) fn round_all(route: &Route, wire: Wire, pooled: &mut [f32]) {
    if wire.codec == Codec::F32 {
        return;
    }
    for row in pooled.chunks_exact_mut(route.pooled_width.max(1)) {
        for feature in &route.features {
            wire.codec.round(wire.isa, &mut row[feature.pooled_offset..][..feature.dim]);
        }
    }
}

/// Some samples' bags of a feature, with other numbers in place of the rows.
fn samples_of<'a>(whole: &FeatureBags<'a>, rows: &'a [u32], samples: Range<usize>) -> FeatureBags<'a> {
    let offsets = &whole.offsets[samples.start..=samples.end];
    let base = whole.offsets[0] as usize;
    let ids = offsets[0] as usize - base..offsets[offsets.len() - 1] as usize - base;
    let weights = if whole.weights.is_empty() { whole.weights } else { &whole.weights[ids.clone()] };
    FeatureBags { offsets, rows: &rows[ids], weights }
}

fn kernel(pooling: Pooling) -> Pool {
    match pooling {
        Pooling::Sum => Pool::Sum,
        Pooling::Mean => Pool::Mean,
        Pooling::Weighted => Pool::Weighted,
    }
}
