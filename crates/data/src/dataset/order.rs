//! The order of an epoch: blocks permuted, then all rows of a window of [`WINDOW_BLOCKS`] blocks, from (seed, epoch).
//!
//! ```text
//!   rows of the split     |  block 4  |  block 5  |  6 |  ...   (first and last block may be short)
//!   positions of epoch 1  |  rows of 6, 90, 4, ... in any order |  rows of 5, 17, ... |
//! ```
//!
//! A position's row follows from (seed, epoch, position) alone, so every rank and every resumed run finds it
//! without reading what came before. A window is what a reader holds: at about 2 MiB a block, 128 MiB; every block
//! is read once an epoch.

use std::ops::Range;

use crate::value::{mix, scale};

/// Blocks whose rows are mixed: up to this many, the whole split is.
pub(crate) const WINDOW_BLOCKS: usize = 64;

/// Rounds of the permutation inside a window.
const ROUNDS: u64 = 6;

/// Which rows stand at which positions in one epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Order {
    /// Blocks of the file with the split's rows in them, in visiting order.
    runs: Vec<Run>,
    /// Position of each run's first row, and one past the last.
    starts: Vec<u64>,
    /// Seed and epoch, where rows are shuffled.
    shuffle: Option<(u64, u64)>,
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
        Order { runs, starts, shuffle }
    }

    /// The stretches that serve a range of positions, in order.
    pub fn stretches(&self, positions: Range<u64>) -> Vec<Stretch> {
        if self.shuffle.is_some() {
            return positions.map(|position| self.shuffled(position)).collect();
        }
        let first = self.run_of(positions.start);
        let serves = self.runs[first.min(self.runs.len())..].iter().zip(self.starts.windows(2).skip(first));
        let reached = serves.take_while(|(_, ends)| ends[0] < positions.end);
        let stretch = |(run, ends): (&Run, &[u64])| {
            let places = positions.start.max(ends[0]) - ends[0]..positions.end.min(ends[1]) - ends[0];
            Stretch { run: run.clone(), places: places.start as usize..places.end as usize }
        };
        reached.map(stretch).filter(|stretch| !stretch.places.is_empty()).collect()
    }

    /// The runs that positions are drawn from: worth keeping for the positions that follow.
    pub fn runs(&self, positions: Range<u64>) -> &[Run] {
        if positions.is_empty() {
            return &[];
        }
        let (first, last) = (self.run_of(positions.start), self.run_of(positions.end - 1));
        match self.shuffle {
            None => &self.runs[first..=last],
            Some(_) => {
                &self.runs[window_of(first, self.runs.len()).start..window_of(last, self.runs.len()).end]
            }
        }
    }

    fn run_of(&self, position: u64) -> usize {
        self.starts.partition_point(|&start| start <= position).saturating_sub(1)
    }

    fn shuffled(&self, position: u64) -> Stretch {
        let Some((seed, epoch)) = self.shuffle else { unreachable!("only a shuffled order asks") };
        let window = window_of(self.run_of(position), self.runs.len());
        let (first, end) = (self.starts[window.start], self.starts[window.end]);
        let key = key(seed, epoch, window.start as u64 ^ 0x9e37_79b9_7f4a_7c15);
        let position = first + permuted(position - first, end - first, key);
        let run = self.run_of(position);
        let place = (position - self.starts[run]) as usize;
        Stretch { run: self.runs[run].clone(), places: place..place + 1 }
    }
}

fn window_of(run: usize, runs: usize) -> Range<usize> {
    let start = run / WINDOW_BLOCKS * WINDOW_BLOCKS;
    start..(start + WINDOW_BLOCKS).min(runs)
}

/// A permutation of the numbers below `count`: Feistel rounds on as many bits as they need, again while outside.
fn permuted(number: u64, count: u64, key: u64) -> u64 {
    let bits = (64 - (count - 1).leading_zeros()).max(2);
    let (mut low, mut high) = (bits / 2, bits - bits / 2);
    let mut number = number;
    loop {
        for round in 0..ROUNDS {
            let (left, right) = (number >> low, number & ((1 << low) - 1));
            let mixed = left ^ (mix(key.wrapping_add(mix(right + (round << 56)))) & ((1 << high) - 1));
            number = right << high | mixed;
            (low, high) = (high, low);
        }
        if number < count {
            return number;
        }
    }
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

    fn rows_at(order: &Order, positions: Range<u64>, block_rows: u64) -> Vec<u64> {
        let mut rows = Vec::new();
        for stretch in order.stretches(positions) {
            let inside: Vec<u32> = stretch.run.rows.clone().collect();
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
            let all = rows_at(&order, 0..count, block_rows);
            let cut = cut.min(count);
            let mut halves = rows_at(&order, 0..cut, block_rows);
            halves.extend(rows_at(&order, cut..count, block_rows));
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
        let at = |epoch| rows_at(&Order::new(0..1000, 64, Some((7, epoch))), 0..1000, 64);
        assert_eq!(at(1), at(1));
        assert_ne!(at(1), at(2));
    }

    /// Sorted data: every batch has about the share of the later half that all rows have.
    #[test]
    fn blocks_mix() {
        let order = Order::new(0..64_000, 1000, Some((7, 0)));
        for start in (0..64_000).step_by(1000) {
            let later =
                rows_at(&order, start..start + 1000, 1000).iter().filter(|row| **row >= 32_000).count();
            assert!((400..600).contains(&later), "{later} of 1,000 at {start}");
        }
    }
}
