//! The third message: gradients of pooled vectors, to the owners of the rows.
//!
//! One message per pair of ranks and chunk of samples: the vectors of pooled features `[sample][feature]`, then
//! those of part features, one per part bag. Encoded or not, the owner ends up with the same floats in the same
//! places:
//!
//! ```text
//!   [sample of the chunk][pooled_width] | [part bag of the chunk][columns] of each part feature
//! ```
//!
//! A gradient travels once per bag and is not added up on the way: a row's gradients are added in the order of the
//! global batch, which only the owner sees whole.

use std::ops::Range;

use campanile_comm::Buffer;
use campanile_kernels::codec::Codec;
use campanile_spec::Pooling;
use campanile_tables::GradientBlock;

use crate::{
    chunks::Chunks,
    ids::{Ids, Received},
    route::{Owner, Route},
    vectors::Wire,
};

/// Writes the gradients of some samples for one owner.
pub(crate) fn write(
    (route, owner, wire): (&Route, &Owner, Wire),
    ids: &Ids,
    samples: Range<usize>,
    gradient: &[f32],
    (out, scratch): (&mut Buffer, &mut Vec<f32>),
) {
    let parts: Vec<(usize, Range<usize>)> = owner
        .parts
        .iter()
        .enumerate()
        .map(|(place, lane)| {
            let bags = &ids.parts[lane.feature][lane.row_range].samples;
            let at = |sample: usize| bags.partition_point(|bag| (*bag as usize) < sample);
            (place, at(samples.start)..at(samples.end))
        })
        .collect();
    let part_bytes = |(place, bags): &(usize, Range<usize>)| {
        bags.len() * wire.codec.bytes(owner.parts[*place].columns.len())
    };
    let pooled_bytes = samples.len() * wire.sample_bytes(&owner.pooled);
    out.resize(pooled_bytes + parts.iter().map(part_bytes).sum::<usize>());
    let (pooled_out, mut parts_out) = out.bytes_mut().split_at_mut(pooled_bytes);
    let rows = gradient[samples.start * route.pooled_width..samples.end * route.pooled_width]
        .chunks_exact(route.pooled_width.max(1));
    if wire.codec == Codec::F32 {
        let vectors: &mut [f32] = bytemuck::cast_slice_mut(pooled_out);
        for (row, part) in rows.zip(vectors.chunks_exact_mut(owner.pooled_width.max(1))) {
            for lane in &owner.pooled {
                let dim = lane.columns.len();
                part[lane.owner_offset..][..dim].copy_from_slice(&row[lane.pooled_offset..][..dim]);
            }
        }
    } else {
        scratch.resize(owner.pooled_width, 0.0);
        let sample_bytes = wire.sample_bytes(&owner.pooled).max(1);
        for (row, part) in rows.zip(pooled_out.chunks_exact_mut(sample_bytes)) {
            for lane in &owner.pooled {
                let dim = lane.columns.len();
                scratch[lane.owner_offset..][..dim].copy_from_slice(&row[lane.pooled_offset..][..dim]);
            }
            wire.encode_rows(&owner.pooled, scratch, part);
        }
    }
    for (place, bags) in parts {
        let lane = &owner.parts[place];
        let dim = lane.columns.len();
        for &sample in &ids.parts[lane.feature][lane.row_range].samples[bags] {
            let (own, rest) = parts_out.split_at_mut(wire.codec.bytes(dim));
            let vector = &gradient[sample as usize * route.pooled_width + lane.pooled_offset..][..dim];
            wire.codec.encode(wire.isa, vector, own);
            parts_out = rest;
        }
    }
}

/// Turns a received message into floats, in place or by way of `scratch`, and weighs the gradients of means.
pub(crate) fn read(
    (owner, wire): (&Owner, Wire),
    ids: &Received<'_>,
    (samples, runs): (usize, Range<usize>),
    (message, scratch): (&mut Buffer, &mut Buffer),
) {
    if wire.codec != Codec::F32 {
        let lanes = (0..samples).flat_map(|_| owner.pooled.iter().map(|lane| lane.columns.len()));
        let bags = |(lane, bags): (&crate::route::Lane, &crate::ids::PartBags<'_>)| {
            std::iter::repeat_n(lane.columns.len(), bags.range(runs.clone()).len())
        };
        let dims = lanes.chain(owner.parts.iter().zip(&ids.parts).flat_map(bags));
        scratch.resize(dims.clone().sum::<usize>() * size_of::<f32>());
        let (mut bytes, mut floats) = (message.bytes(), scratch.values_mut::<f32>());
        for dim in dims {
            let (own, rest) = bytes.split_at(wire.codec.bytes(dim));
            let (to, left) = floats.split_at_mut(dim);
            wire.codec.decode(wire.isa, own, to);
            (bytes, floats) = (rest, left);
        }
        std::mem::swap(message, scratch);
    }
    let mut floats = &mut message.values_mut::<f32>()[samples * owner.pooled_width..];
    for (lane, bags) in owner.parts.iter().zip(&ids.parts) {
        let (range, dim) = (bags.range(runs.clone()), lane.columns.len());
        let (own, rest) = floats.split_at_mut(range.len() * dim);
        if !bags.inverse.is_empty() {
            for (vector, inverse) in own.chunks_exact_mut(dim).zip(&bags.inverse[range]) {
                vector.iter_mut().for_each(|g| *g *= inverse);
            }
        }
        floats = rest;
    }
}

/// Where the gradients of all ranks' samples are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Gradients<'a> {
    /// In messages, by chunk and source.
    Came(&'a [Vec<Buffer>]),
    /// With the rank that is alone, for all its samples.
    Stayed(&'a [f32]),
}

impl<'a> Gradients<'a> {
    /// Of a run's pooled vectors.
    fn of_pooled(self, run: &Run, width: usize) -> &'a [f32] {
        let (floats, first) = match self {
            Gradients::Came(_) => (self.message(run), run.samples.start - run.of_chunk.start),
            Gradients::Stayed(floats) => (floats, run.samples.start),
        };
        &floats[first * width..(first + run.samples.len()) * width]
    }

    fn message(self, run: &Run) -> &'a [f32] {
        match self {
            Gradients::Came(messages) => messages[run.chunk][run.source].values(),
            Gradients::Stayed(_) => unreachable!("a rank that is alone has no table cut by rows"),
        }
    }
}

/// The gradients of one shard: by feature, then in the order of the global batch.
pub(crate) fn blocks<'a>(
    shard: usize,
    (route, owner): (&Route, &Owner),
    (chunks, global_count): (&Chunks, usize),
    ids: &[Received<'a>],
    gradients: Gradients<'a>,
) -> Vec<GradientBlock<'a>> {
    let mut blocks = Vec::new();
    let runs = runs(chunks, global_count);
    for (place, lane) in owner.pooled.iter().enumerate().filter(|(_, lane)| lane.shard == shard) {
        for run in &runs {
            blocks.push(GradientBlock {
                bags: ids[run.source].pooled(place, run.samples.clone()),
                pooling: route.features[lane.feature].pooling,
                gradient: gradients.of_pooled(run, owner.pooled_width),
                stride: owner.pooled_width,
                offset: lane.owner_offset,
            });
        }
    }
    for (place, lane) in owner.parts.iter().enumerate().filter(|(_, lane)| lane.shard == shard) {
        for run in &runs {
            let (ids, all) = (&ids[run.source], chunks.runs_of(run.chunk));
            let before = owner.parts[..place].iter().zip(&ids.parts);
            let before: usize =
                before.map(|(lane, bags)| lane.columns.len() * bags.range(all.clone()).len()).sum();
            let (bags, dim) = (&ids.parts[place], lane.columns.len());
            let earlier_runs = bags.range(all.start..run.number).len() * dim;
            let first = run.of_chunk.len() * owner.pooled_width + before + earlier_runs;
            let bags = bags.bags(run.number);
            let floats = (bags.offsets.len() - 1) * dim;
            blocks.push(GradientBlock {
                // Means were weighed when the gradient was read.
                pooling: match route.features[lane.feature].pooling {
                    Pooling::Mean => Pooling::Sum,
                    other => other,
                },
                bags,
                gradient: &gradients.message(run)[first..first + floats],
                stride: dim,
                offset: 0,
            });
        }
    }
    blocks
}

/// A run of some rank's samples.
struct Run {
    source: usize,
    number: usize,
    chunk: usize,
    /// Among the samples that the rank sees: its own, and those of its whole chunk.
    samples: Range<usize>,
    of_chunk: Range<usize>,
}

/// All ranks' runs in the order of the global batch.
fn runs(chunks: &Chunks, global_count: usize) -> Vec<Run> {
    let ends = |source: usize| chunks.run_ends(global_count, source).collect::<Vec<usize>>();
    let ends: Vec<Vec<usize>> = (0..chunks.rank_count()).map(ends).collect();
    let samples = |source: usize, runs: Range<usize>| {
        let before = |run: usize| if run == 0 { 0 } else { ends[source][run - 1] };
        before(runs.start)..before(runs.end)
    };
    let run = |(source, number): (usize, usize)| {
        let chunk = chunks.chunk_of(number);
        let (own, all) = (samples(source, number..number + 1), samples(source, chunks.runs_of(chunk)));
        Run { source, number, chunk, samples: own, of_chunk: all }
    };
    chunks.in_order().into_iter().map(run).collect()
}
