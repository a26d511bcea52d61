//! The passes before packing: counting rows, and measuring what `standardise` and vocabularies need.

use std::{
    fs,
    path::Path,
    sync::{Arc, atomic::AtomicU64},
};

use campanile_spec::data::{IdMap, Split};
use serde::{Deserialize, Serialize};

use super::{
    Preparation,
    count_ids::{IdCounter, RUNS_MAX, merge_column, merge_runs, remove_other_runs},
};
use crate::{
    decode::{Decoded, Decoder},
    error::{DataError, IoContext},
    source::Chunk,
    transforms::{Measured, Standard, Transforms, VOCABULARY_ID_BYTES, Vocabulary},
};

/// Count, mean and sum of squared differences from the mean: enough to add up, and stable.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Moments {
    pub count: u64,
    pub mean: f64,
    pub squares: f64,
}

impl Moments {
    /// Of some values, in their order.
    pub fn of(values: impl Iterator<Item = f64> + Clone) -> Moments {
        let (count, sum) = values.clone().fold((0, 0.0), |(count, sum), value| (count + 1, sum + value));
        if count == 0 {
            return Moments::default();
        }
        let mean = sum / count as f64;
        let squares = values.map(|value| (value - mean) * (value - mean)).sum();
        Moments { count, mean, squares }
    }

    /// Of both together.
    pub fn and(self, other: Moments) -> Moments {
        if other.count == 0 || self.count == 0 {
            return if other.count == 0 { self } else { other };
        }
        let count = self.count + other.count;
        let (difference, share) = (other.mean - self.mean, other.count as f64 / count as f64);
        let squares = self.squares + other.squares + difference * difference * share * self.count as f64;
        Moments { count, mean: self.mean + difference * share, squares }
    }

    /// As `standardise` uses them.
    pub fn standard(self) -> Standard {
        let deviation = (self.squares / self.count.max(1) as f64).sqrt();
        Standard { mean: self.mean, deviation: if deviation > 0.0 { deviation } else { 1.0 } }
    }
}

/// What one chunk adds.
struct ChunkMeasures {
    moments: Vec<Moments>,
    counted: Result<(), DataError>,
    decoded: Decoded,
}

impl Preparation<'_> {
    /// Counts the good rows of every chunk, into `rows.counts`.
    pub(super) fn count_rows(&mut self, decoder: &Decoder) -> Result<(), DataError> {
        let path = self.dir.join("rows.counts");
        let mut counts = read_counts(&path, self.journal.pass.chunks)?;
        let mut chunks = self.chunks(decoder);
        let spare = Arc::clone(&self.spare);
        let mut workers = vec![(); self.workers];
        let work = |_: &mut (), _: u64, chunk: &Chunk| {
            let mut decoded = spare.take(decoder);
            chunk.decode(decoder, &mut decoded);
            decoded
        };
        loop {
            let mut total = self.journal.row_total;
            let more = self.round(&mut chunks, decoder, &mut workers, work, |decoded| {
                let good: usize = decoded.splits.iter().map(|rows| rows.row_count).sum();
                counts.push(good as u32);
                total += good as u64;
                Ok(decoded)
            })?;
            self.journal.row_total = total;
            let bytes: Vec<u8> = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
            super::journal::replace_file(&path, &bytes)?;
            self.journal.save(&self.dir)?;
            if !more {
                return Ok(());
            }
        }
    }

    /// Measures the training split.
    pub(super) fn measure(&mut self, decoder: &Decoder) -> Result<Transforms, DataError> {
        let transforms = &decoder.transforms;
        let (standardised, counted) = (transforms.standardised(), transforms.counted());
        let train_rows = self.train_rows_by_chunk()?;
        self.journal.moments.resize(standardised.len(), Moments::default());
        remove_other_runs(&self.dir, &self.journal.runs)?;
        let next_run = Arc::new(AtomicU64::new(self.journal.next_run));
        let bytes_max = self.memory_bytes() / 3 / self.workers as u64;
        let counter = || IdCounter::new(counted.len(), bytes_max, &self.dir, &next_run);
        let mut workers: Vec<IdCounter> = (0..self.workers).map(|_| counter()).collect();
        let mut chunks = self.chunks(decoder);
        let spare = Arc::clone(&self.spare);
        let work = |ids: &mut IdCounter, number: u64, chunk: &Chunk| {
            let mut decoded = spare.take(decoder);
            chunk.decode(decoder, &mut decoded);
            let rows = &mut decoded.splits[Split::Train as usize];
            if let Some(train_rows) = &train_rows {
                rows.truncate(train_rows[number as usize] as usize, &decoder.schema);
            }
            let moments = (0..standardised.len()).map(|index| match rows.measured.get(index) {
                Some(values) => Moments::of(values.iter().copied()),
                // No row of the chunk was read so far.
                None => Moments::default(),
            });
            let moments = moments.collect();
            let counted = counted
                .iter()
                .enumerate()
                .try_for_each(|(index, &column)| ids.add(index, &rows.bags[column].keys));
            ChunkMeasures { moments, counted, decoded }
        };
        loop {
            let mut moments = self.journal.moments.clone();
            let more = self.round(&mut chunks, decoder, &mut workers, work, |measures| {
                measures.counted?;
                for (sum, &chunk) in moments.iter_mut().zip(&measures.moments) {
                    *sum = sum.and(chunk);
                }
                Ok(measures.decoded)
            })?;
            self.journal.moments = moments;
            for worker in &mut workers {
                worker.spill()?;
                self.journal.runs.extend(worker.take_runs());
            }
            if self.journal.runs.len() >= RUNS_MAX {
                self.journal.runs =
                    vec![merge_runs(&self.dir, &self.journal.runs, counted.len(), &next_run)?];
            }
            self.journal.next_run = next_run.load(std::sync::atomic::Ordering::Relaxed);
            self.journal.save(&self.dir)?;
            remove_other_runs(&self.dir, &self.journal.runs)?;
            if !more {
                break;
            }
        }
        self.with_measured(transforms, &standardised, &counted)
    }

    fn with_measured(
        &self,
        transforms: &Transforms,
        standardised: &[usize],
        counted: &[usize],
    ) -> Result<Transforms, DataError> {
        let mut measured = Measured {
            standards: vec![None; transforms.dense_count()],
            vocabularies: (0..transforms.sparse_count()).map(|_| None).collect(),
        };
        for (&column, moments) in standardised.iter().zip(&self.journal.moments) {
            measured.standards[column] = Some(moments.standard());
        }
        let mut bytes_left = self.memory_bytes() / 2;
        for (index, &column) in counted.iter().enumerate() {
            let vocabulary = self.vocabulary(transforms, index, column, counted.len(), &mut bytes_left)?;
            measured.vocabularies[column] = Some(vocabulary);
        }
        transforms.with_measured(measured)
    }

    /// The ids of a column that are frequent enough, by falling count, then by key, as many as the table holds.
    fn vocabulary(
        &self,
        transforms: &Transforms,
        index: usize,
        column: usize,
        columns: usize,
        bytes_left: &mut u64,
    ) -> Result<Vocabulary, DataError> {
        let spec = transforms.sparse_column(column);
        let IdMap::Vocabulary { min_count } = spec.map else { unreachable!("only vocabularies are counted") };
        let rows = (spec.row_count - 1) as usize;
        let too_large = |ids: usize| DataError::VocabularyTooLarge {
            column: spec.name.clone(),
            ids: ids as u64,
            needed_mib: (ids as u64 * VOCABULARY_ID_BYTES).div_ceil(1 << 20),
            limit_mib: self.options.memory_mib,
        };
        let by_rank = |a: &(u64, u64), b: &(u64, u64)| b.0.cmp(&a.0).then(a.1.cmp(&b.1));
        let mut kept: Vec<(u64, u64)> = Vec::new();
        merge_column(&self.dir, &self.journal.runs, index, columns, |key, count| {
            if count < min_count {
                return Ok(());
            }
            kept.push((count, key));
            // Twice the table's rows are collected before the rarer half goes, so that sorting stays rare.
            if kept.len() >= (rows * 2).max(1024) {
                kept.select_nth_unstable_by(rows, by_rank);
                kept.truncate(rows);
            }
            if kept.len() as u64 * VOCABULARY_ID_BYTES > *bytes_left {
                return Err(too_large(kept.len()));
            }
            Ok(())
        })?;
        kept.sort_unstable_by(by_rank);
        kept.truncate(rows);
        *bytes_left -= (kept.len() as u64 * VOCABULARY_ID_BYTES).min(*bytes_left);
        let keys = kept.into_iter().map(|(_, key)| key).collect();
        Ok(Vocabulary::new(keys).unwrap_or_else(|| unreachable!("a merge gives every key once")))
    }

    /// Where rows decide the split: how many rows of each chunk are training rows.
    fn train_rows_by_chunk(&self) -> Result<Option<Vec<u32>>, DataError> {
        let Some(train) = self.train_row_count() else { return Ok(None) };
        let path = self.dir.join("rows.counts");
        let chunks = fs::metadata(&path).context("look at", &path)?.len() / 4;
        let mut left = train;
        let counts = read_counts(&path, chunks)?.into_iter().map(|count| {
            let taken = u64::from(count).min(left);
            left -= taken;
            taken as u32
        });
        Ok(Some(counts.collect()))
    }
}

/// The counts of the first `chunks` chunks.
fn read_counts(path: &Path, chunks: u64) -> Result<Vec<u32>, DataError> {
    if chunks == 0 {
        return Ok(Vec::new());
    }
    let bytes = fs::read(path).context("read", path)?;
    let counts: Vec<u32> = bytes.as_chunks().0.iter().map(|count| u32::from_le_bytes(*count)).collect();
    match counts.get(..chunks as usize) {
        Some(counts) => Ok(counts.to_vec()),
        None => Err(DataError::Corrupt { path: path.to_path_buf(), reason: "row counts are missing".into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_of_parts_are_those_of_the_whole() {
        let values: Vec<f64> = (0..1000).map(|index| 1e4 + f64::from((index * 37) % 101)).collect();
        let whole = Moments::of(values.iter().copied());
        let parts = values.chunks(77).map(|part| Moments::of(part.iter().copied()));
        let sum = parts.fold(Moments::default(), Moments::and);
        assert_eq!(sum.count, 1000);
        assert!((sum.mean - whole.mean).abs() < 1e-9 * whole.mean);
        assert!((sum.squares - whole.squares).abs() < 1e-9 * whole.squares);
        assert_eq!(Moments::of([3.0, 3.0].into_iter()).standard(), Standard { mean: 3.0, deviation: 1.0 });
    }
}
