//! The order of an epoch: blocks permuted, then rows inside a block, both from (seed, epoch).
//!
//! ```text
//!   rows of the split     |  block 4  |  block 5  |  6 |        (first and last block may be short)
//!   positions of epoch 1  |  6 |  block 4  |  block 5  |        inside a block: a permutation of its rows
//! ```
//!
//! A position's row follows from (seed, epoch, position) alone, so every rank and every resumed run finds it
//! without reading what came before.

use std::ops::Range;

use crate::value::{mix, scale};

/// Which rows stand at which positions in one epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Order {
    /// Blocks of the file with the split's rows in them, in visiting order.
    runs: Vec<Run>,
    /// Position of each run's first row, and one past the last.
    starts: Vec<u64>,
}

/// The rows of one block that belong to the split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    /// The block of the file.
    pub block: u64,
    /// Rows inside the block.
    pub rows: Range<u32>,
}

/// A stretch of positions that one block serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// The block's run.
    pub run: Run,
    /// Places in the run's visiting order.
    pub places: Range<usize>,
}

impl Order {
    /// The order of the split's rows, `rows` of the file; `shuffle` holds (seed, epoch).
    pub fn new(rows: Range<u64>, block_rows: u64, shuffle: Option<(u64, u64)>) -> Order {
        let blocks = rows.start / block_rows..rows.end.div_ceil(block_rows);
        let mut runs: Vec<Run> = blocks
            .map(|block| {
                let first = block * block_rows;
                let within = |row: u64| row.clamp(first, first + block_rows) - first;
                Run { block, rows: within(rows.start) as u32..within(rows.end) as u32 }
            })
            .filter(|run| !run.rows.is_empty())
            .collect();
        if let Some((seed, epoch)) = shuffle {
            permute(&mut runs, key(seed, epoch, u64::MAX));
        }
        let mut starts = vec![0];
        starts.extend(runs.iter().scan(0, |position, run| {
            *position += run.rows.len() as u64;
            Some(*position)
        }));
        Order { runs, starts }
    }

    /// The stretches that serve a range of positions, in order.
    pub fn stretches(&self, positions: Range<u64>) -> impl Iterator<Item = Stretch> + '_ {
        let first = self.starts.partition_point(|&start| start <= positions.start).saturating_sub(1);
        let serves = self.runs[first.min(self.runs.len())..].iter().zip(self.starts.windows(2).skip(first));
        serves
            .take_while({
                let end = positions.end;
                move |(_, ends)| ends[0] < end
            })
            .filter_map(move |(run, ends)| {
                let places = positions.start.max(ends[0]) - ends[0]..positions.end.min(ends[1]) - ends[0];
                let places = places.start as usize..places.end as usize;
                (!places.is_empty()).then(|| Stretch { run: run.clone(), places })
            })
    }
}

/// The rows of a run in their visiting order for (seed, epoch).
pub(crate) fn permuted_rows(run: &Run, seed: u64, epoch: u64, out: &mut Vec<u32>) {
    out.clear();
    out.extend(run.rows.clone());
    permute(out, key(seed, epoch, run.block));
}

fn key(seed: u64, epoch: u64, block: u64) -> u64 {
    mix(mix(mix(seed ^ 0x5851_f42d_4c95_7f2d).wrapping_add(epoch)).wrapping_add(block))
}

/// Fisher and Yates.
fn permute<T>(items: &mut [T], key: u64) {
    for last in (1..items.len()).rev() {
        items.swap(last, scale(mix(key.wrapping_add(last as u64)), last as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rows_at(
        order: &Order,
        positions: Range<u64>,
        block_rows: u64,
        shuffle: Option<(u64, u64)>,
    ) -> Vec<u64> {
        let mut rows = Vec::new();
        for stretch in order.stretches(positions) {
            let mut inside: Vec<u32> = stretch.run.rows.clone().collect();
            if let Some((seed, epoch)) = shuffle {
                permuted_rows(&stretch.run, seed, epoch, &mut inside);
            }
            rows.extend(
                inside[stretch.places].iter().map(|&row| stretch.run.block * block_rows + u64::from(row)),
            );
        }
        rows
    }

    proptest! {
        #[test]
        fn every_row_stands_once_and_ranges_agree(
            start in 0_u64..50, count in 0_u64..200, block_rows in 1_u64..40, cut in 0_u64..200,
            shuffle in prop::option::of((any::<u64>(), 0_u64..4)),
        ) {
            let order = Order::new(start..start + count, block_rows, shuffle);
            let all = rows_at(&order, 0..count, block_rows, shuffle);
            let cut = cut.min(count);
            let mut halves = rows_at(&order, 0..cut, block_rows, shuffle);
            halves.extend(rows_at(&order, cut..count, block_rows, shuffle));
            prop_assert_eq!(&halves, &all);
            let mut sorted = all.clone();
            sorted.sort_unstable();
            prop_assert_eq!(&sorted, &(start..start + count).collect::<Vec<_>>());
            if shuffle.is_none() {
                prop_assert_eq!(&all, &sorted);
            }
        }
    }

    #[test]
    fn epochs_differ_and_repeat() {
        let at = |epoch| rows_at(&Order::new(0..1000, 64, Some((7, epoch))), 0..1000, 64, Some((7, epoch)));
        assert_eq!(at(1), at(1));
        assert_ne!(at(1), at(2));
    }
}
