//! Some rows of a data set, evenly spread over all: the first ones of a file are seldom like the rest.

use std::ops::Range;

use campanile_spec::{Bags, Batch};

use super::{Kind, Reader};
use crate::error::DataError;

/// Packed blocks that rows of one part of a batch may lie in: what a reader then holds.
const BLOCKS_AT_ONCE: u64 = 16;

/// The row that stands at `place` of `count` that are evenly spread over `rows`.
pub(crate) fn row_at(place: u64, count: u64, rows: u64) -> u64 {
    (u128::from(place) * u128::from(rows) / u128::from(count)) as u64
}

impl Reader {
    /// Writes the rows at `positions` of `count` that are evenly spread over all.
    pub(super) fn read_spread(
        &mut self,
        epoch: u64,
        positions: Range<u64>,
        count: u64,
        out: &mut Batch,
    ) -> Result<(), DataError> {
        if positions.is_empty() {
            // A rank may have no samples of a short batch; its columns are there all the same.
            return self.read_runs(epoch, std::slice::from_ref(&positions), out);
        }
        let all = self.dataset.all_rows();
        // A world makes its rows from one run; of packed ones few blocks are held at a time.
        let reach = match &self.dataset.kind {
            Kind::Packed { file, .. } => BLOCKS_AT_ONCE * file.header().block_rows as u64,
            Kind::World { .. } | Kind::Empty => 1,
        };
        let mut parts = Vec::new();
        let mut runs: Vec<Range<u64>> = Vec::new();
        for place in positions {
            let row = row_at(place, count, all);
            if runs.first().is_some_and(|first| row >= first.start + reach) {
                parts.push(self.read_part(epoch, &runs)?);
                runs.clear();
            }
            match runs.last_mut() {
                Some(last) if last.end == row && reach > 1 => last.end += 1,
                _ => runs.push(row..row + 1),
            }
        }
        if !runs.is_empty() {
            parts.push(self.read_part(epoch, &runs)?);
        }
        *out = joined(&parts);
        Ok(())
    }

    fn read_part(&mut self, epoch: u64, runs: &[Range<u64>]) -> Result<Batch, DataError> {
        let mut part = Batch::default();
        self.read_runs(epoch, runs, &mut part)?;
        Ok(part)
    }
}

/// Batches of the same columns as one.
fn joined(parts: &[Batch]) -> Batch {
    let count: usize = parts.iter().map(|part| part.sample_count).sum();
    // `[task][sample]`: the tasks follow from the lengths.
    let by_task = |column: fn(&Batch) -> &[f32]| -> Vec<f32> {
        let tasks = parts.first().map_or(0, |part| column(part).len() / part.sample_count.max(1));
        let of_task = |task: usize| {
            parts.iter().flat_map(move |part| &column(part)[task * part.sample_count..][..part.sample_count])
        };
        (0..tasks).flat_map(of_task).copied().collect()
    };
    let floats = |column: fn(&Batch) -> &[f32]| parts.iter().flat_map(column).copied().collect();
    Batch {
        sample_count: count,
        dense: floats(|part| &part.dense),
        bags: joined_bags(parts, count),
        labels: by_task(|part| &part.labels),
        weights: floats(|part| &part.weights),
        times: parts.iter().flat_map(|part| &part.times).copied().collect(),
        groups: parts.iter().flat_map(|part| &part.groups).copied().collect(),
        segments: parts.iter().flat_map(|part| &part.segments).copied().collect(),
        true_probabilities: by_task(|part| &part.true_probabilities),
        teacher_logits: by_task(|part| &part.teacher_logits),
        teacher_delays: floats(|part| &part.teacher_delays),
        teacher_embeddings: floats(|part| &part.teacher_embeddings),
    }
}

fn joined_bags(parts: &[Batch], sample_count: usize) -> Bags {
    let features = parts.first().map_or(0, |part| part.bags.feature_count());
    let (mut offsets, mut rows, mut weights) = (vec![0], Vec::new(), Vec::new());
    for feature in 0..features {
        for part in parts {
            let own = part.bags.feature(feature);
            let base = rows.len() as u32;
            offsets.extend(own.offsets[1..].iter().map(|end| end - own.offsets[0] + base));
            rows.extend_from_slice(own.rows);
            weights.extend_from_slice(own.weights);
        }
    }
    Bags::new(features, sample_count, offsets, rows, weights)
        .unwrap_or_else(|error| unreachable!("the parts were bags already: {error}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn spread_rows_are_different_and_reach_over_all(count in 1_u64..500, more in 0_u64..100_000) {
            let rows = count + more;
            let chosen: Vec<u64> = (0..count).map(|place| row_at(place, count, rows)).collect();
            prop_assert!(chosen.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert_eq!(chosen[0], 0);
            // Between two of them, and after the last one, there are never more rows than the stride.
            let stride = rows.div_ceil(count);
            prop_assert!(chosen.windows(2).all(|pair| pair[1] - pair[0] <= stride));
            prop_assert!(rows - chosen[chosen.len() - 1] <= stride);
        }
    }
}
