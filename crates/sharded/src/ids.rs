//! The first message of a batch: which rows a rank's samples name, told to their owners.
//!
//! One message per pair of ranks, in words of 32 bits:
//!
//! ```text
//!   status | samples                               status 1: the rest is the words of a failure
//!   pooled features   ids, weighted? | offsets: features * samples + 1 | rows | weights, if any
//!   part features     bags, ids, weighted?, mean? | end of each run | offsets: bags + 1 | rows | weights | inverse
//!   lent shards       count | rows, each once
//! ```
//!
//! A failure (bad data, an id beyond its table) travels in place of the ids, so that all ranks learn of it in the
//! exchange that they are in anyway, and leave together.

use std::ops::Range;

use campanile_comm::{Buffer, CommError};
use campanile_spec::{Bags, FeatureBags};

use crate::{
    chunks::Chunks,
    route::{Owner, Route, Way},
    split::{Loan, Part, split},
};

const OK: u32 = 0;
const FAILED: u32 = 1;

/// The ids of a batch, those sent and those received.
#[derive(Default)]
pub(crate) struct Ids {
    /// What every rank sent here.
    pub received: Vec<Buffer>,
    /// Samples of the global batch.
    pub global_count: usize,
    /// Samples of this rank.
    pub sample_count: usize,
    /// By feature, by range of rows; empty for features that are pooled by their owner.
    pub parts: Vec<Vec<Part>>,
    /// By borrowed table.
    pub loans: Vec<Loan>,
}

impl Ids {
    /// Fills `messages`, one per owner, with the ids of this rank's samples.
    ///
    /// # Errors
    /// Words on an id that is beyond its table.
    pub fn write(
        &mut self,
        route: &Route,
        chunks: &Chunks,
        (bags, global_count): (&Bags, usize),
        rank: usize,
        messages: &mut [Buffer],
    ) -> Result<(), String> {
        self.global_count = global_count;
        self.sample_count = bags.sample_count();
        self.parts.resize_with(route.features.len(), Vec::new);
        for (feature, spec) in route.features.iter().enumerate().filter(|(_, f)| f.way != Way::Pooled) {
            let cuts = route.row_cuts(feature);
            split(&bags.feature(feature), spec.pooling, cuts, &mut self.parts[feature]).map_err(|row| {
                format!(
                    "table `{}` has {} rows, and row {row} was asked for; give it more rows, or hash its ids",
                    route.table_name(feature),
                    cuts[cuts.len() - 1]
                )
            })?;
        }
        self.loans.resize_with(route.borrowed.len(), Loan::default);
        for (loan, table) in self.loans.iter_mut().zip(&route.borrowed) {
            loan.list(&table.row_cuts, table.features.iter().map(|&feature| bags.feature(feature)));
        }
        let ends: Vec<usize> = chunks.run_ends(global_count, rank).collect();
        for (message, owner) in messages.iter_mut().zip(&route.owners) {
            self.write_one(message, owner, bags, &ends);
        }
        Ok(())
    }

    fn write_one(&self, message: &mut Buffer, owner: &Owner, bags: &Bags, run_ends: &[usize]) {
        let samples = bags.sample_count();
        let weighted = !bags.weights().is_empty();
        let ids: usize = owner.pooled.iter().map(|lane| bags.feature(lane.feature).rows.len()).sum();
        let part = |lane: &crate::route::Lane| &self.parts[lane.feature][lane.row_range];
        let part_words = |part: &Part| {
            4 + run_ends.len()
                + part.offsets.len()
                + part.rows.len()
                + part.weights.len()
                + part.inverse.len()
        };
        let words = 2
            + 2
            + (owner.pooled.len() * samples + 1)
            + ids * (1 + usize::from(weighted))
            + owner.parts.iter().map(|lane| part_words(part(lane))).sum::<usize>()
            + owner.lent.iter().map(|l| 1 + self.loans[l.borrowed].rows[l.row_range].len()).sum::<usize>();
        message.resize(words * size_of::<u32>());
        let mut out = Words { words: message.values_mut::<u32>() };
        out.put(&[OK, samples as u32, ids as u32, u32::from(weighted)]);
        write_pooled(&mut out, owner, bags, weighted);
        for lane in &owner.parts {
            let part = part(lane);
            let flags = [u32::from(!part.weights.is_empty()), u32::from(!part.inverse.is_empty())];
            out.put(&[part.samples.len() as u32, part.rows.len() as u32]);
            out.put(&flags);
            for end in run_ends {
                out.put(&[part.samples.partition_point(|sample| (*sample as usize) < *end) as u32]);
            }
            out.put(&part.offsets);
            out.put(&part.rows);
            out.put(bytemuck::cast_slice(&part.weights));
            out.put(bytemuck::cast_slice(&part.inverse));
        }
        for lent in &owner.lent {
            let rows = &self.loans[lent.borrowed].rows[lent.row_range];
            out.put(&[rows.len() as u32]);
            out.put(rows);
        }
        assert!(out.words.is_empty(), "an id message with {} words too many", out.words.len());
    }

    /// The ids that a rank sent.
    pub fn from<'a>(&'a self, source: usize, owner: &Owner, run_count: usize) -> Received<'a> {
        Received::read(self.received[source].values(), owner, run_count)
    }
}

fn write_pooled(out: &mut Words<'_>, owner: &Owner, bags: &Bags, weighted: bool) {
    out.put(&[0]);
    let mut before = 0;
    for lane in &owner.pooled {
        let feature = bags.feature(lane.feature);
        let base = feature.offsets[0];
        let to = out.take(feature.offsets.len() - 1);
        for (to, from) in to.iter_mut().zip(&feature.offsets[1..]) {
            *to = from - base + before;
        }
        before += feature.rows.len() as u32;
    }
    for lane in &owner.pooled {
        out.put(bags.feature(lane.feature).rows);
    }
    if weighted {
        for lane in &owner.pooled {
            out.put(bytemuck::cast_slice(bags.feature(lane.feature).weights));
        }
    }
}

/// A rank that cannot go on, by its number among all, and why.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Failed {
    pub rank: usize,
    pub words: String,
}

/// Fills all messages with a failure.
pub(crate) fn write_failure(messages: &mut [Buffer], Failed { rank, words }: &Failed) {
    for message in messages {
        message.resize((2 + words.len().div_ceil(4)) * 4);
        message.values_mut::<u32>()[..2].copy_from_slice(&[FAILED, *rank as u32]);
        let text = &mut message.bytes_mut()[8..];
        text.fill(b' ');
        text[..words.len()].copy_from_slice(words.as_bytes());
    }
}

/// The first failure, by place in the group, that came in place of ids or vectors.
pub(crate) fn failure(received: &[Buffer]) -> Result<(), Failed> {
    let is_failure = |message: &&Buffer| message.len() >= 8 && message.bytes()[..4] == FAILED.to_ne_bytes();
    let Some(message) = received.iter().find(is_failure) else { return Ok(()) };
    let words = String::from_utf8_lossy(&message.bytes()[8..]).trim_end().to_owned();
    Err(Failed { rank: message.values::<u32>()[1] as usize, words })
}

impl From<Failed> for CommError {
    fn from(Failed { rank, words }: Failed) -> CommError {
        CommError::RankFailed { rank, message: words }
    }
}

/// What is left to write of a message.
struct Words<'a> {
    words: &'a mut [u32],
}

impl<'a> Words<'a> {
    fn take(&mut self, count: usize) -> &'a mut [u32] {
        let (taken, rest) = std::mem::take(&mut self.words).split_at_mut(count);
        self.words = rest;
        taken
    }

    fn put(&mut self, values: &[u32]) {
        self.take(values.len()).copy_from_slice(values);
    }
}

/// One rank's ids for this rank's shards.
pub(crate) struct Received<'a> {
    sample_count: usize,
    offsets: &'a [u32],
    rows: &'a [u32],
    weights: &'a [f32],
    pub parts: Vec<PartBags<'a>>,
    /// By lent shard.
    pub lent: Vec<&'a [u32]>,
}

/// The bags of a feature as far as they lie in this rank's rows.
pub(crate) struct PartBags<'a> {
    /// How many bags come before the end of each run of samples.
    run_ends: &'a [u32],
    offsets: &'a [u32],
    rows: &'a [u32],
    weights: &'a [f32],
    /// One over the rows of the whole bag, for means; else empty.
    pub inverse: &'a [f32],
}

impl<'a> Received<'a> {
    fn read(words: &'a [u32], owner: &Owner, run_count: usize) -> Received<'a> {
        let mut left = words;
        let mut take = |count: usize| {
            let (taken, rest) = left.split_at(count);
            left = rest;
            taken
        };
        let head = take(4);
        let (sample_count, ids, weighted) = (head[1] as usize, head[2] as usize, head[3] == 1);
        let offsets = take(owner.pooled.len() * sample_count + 1);
        let rows = take(ids);
        let weights = bytemuck::cast_slice(take(if weighted { ids } else { 0 }));
        let parts = owner.parts.iter().map(|_| {
            let head = take(4);
            let (bags, ids) = (head[0] as usize, head[1] as usize);
            PartBags {
                run_ends: take(run_count),
                offsets: take(bags + 1),
                rows: take(ids),
                weights: bytemuck::cast_slice(take(if head[2] == 1 { ids } else { 0 })),
                inverse: bytemuck::cast_slice(take(if head[3] == 1 { bags } else { 0 })),
            }
        });
        let parts = parts.collect();
        let lent = owner.lent.iter().map(|_| {
            let count = take(1)[0] as usize;
            take(count)
        });
        let lent = lent.collect();
        assert!(left.is_empty(), "an id message with {} words too many", left.len());
        Received { sample_count, offsets, rows, weights, parts, lent }
    }

    /// Some samples' bags of the pooled feature at `place`.
    pub fn pooled(&self, place: usize, samples: Range<usize>) -> FeatureBags<'a> {
        let first = place * self.sample_count;
        let offsets = &self.offsets[first + samples.start..=first + samples.end];
        cut(offsets, self.rows, self.weights)
    }
}

impl<'a> PartBags<'a> {
    /// The bags of some runs, counted among all of them.
    pub fn range(&self, runs: Range<usize>) -> Range<usize> {
        let before = |run: usize| if run == 0 { 0 } else { self.run_ends[run - 1] as usize };
        before(runs.start)..before(runs.end)
    }

    /// The bags of a run.
    pub fn bags(&self, run: usize) -> FeatureBags<'a> {
        let range = self.range(run..run + 1);
        cut(&self.offsets[range.start..=range.end], self.rows, self.weights)
    }
}

/// The bags between some offsets of a longer array.
pub(crate) fn cut<'a>(offsets: &'a [u32], rows: &'a [u32], weights: &'a [f32]) -> FeatureBags<'a> {
    let ids = offsets[0] as usize..offsets[offsets.len() - 1] as usize;
    let weights = if weights.is_empty() { weights } else { &weights[ids.clone()] };
    FeatureBags { offsets, rows: &rows[ids], weights }
}
