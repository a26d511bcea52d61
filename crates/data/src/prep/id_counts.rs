//! How many ids of each split have no row of their own: the first thing to look at when a model does badly on new data.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::rows_of_shares;
use crate::{
    rows::{BagStore, RowBuffer, Schema},
    transforms::Transforms,
};

/// The row of all ids that a vocabulary does not have.
const UNKNOWN_ROW: u32 = 0;

/// The ids of a vocabulary column in one split.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdCounts {
    /// The column.
    pub column: String,
    /// Ids in all.
    pub ids: u64,
    /// Those among them that share the row of unknown ids.
    pub unknown: u64,
}

impl IdCounts {
    /// The share of unknown ids; 0 without ids.
    pub fn share(&self) -> f64 {
        self.unknown as f64 / self.ids.max(1) as f64
    }
}

/// The counts of all splits, growing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SplitIds {
    /// Train, valid and test; by vocabulary column.
    pub splits: [Vec<IdCounts>; 3],
}

/// Which rows of a chunk belong to which split, where the place of a row decides.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowShares {
    pub total: u64,
    pub valid: f64,
    pub test: f64,
}

impl SplitIds {
    /// Counts a chunk; where the place of a row decides its split, `shares` says how, and `before` how many rows came
    /// before the chunk.
    pub fn add(
        &mut self,
        rows: &[RowBuffer; 3],
        (schema, transforms): (&Schema, &Transforms),
        shares: Option<RowShares>,
        before: u64,
    ) {
        let columns = transforms.counted();
        for counts in &mut self.splits {
            let fresh = |&column: &usize| IdCounts {
                column: transforms.sparse_name(column).to_owned(),
                ..IdCounts::default()
            };
            if counts.is_empty() {
                *counts = columns.iter().map(fresh).collect();
            }
        }
        for (split, rows) in rows.iter().enumerate() {
            let parts = match shares {
                None => [(split, 0..rows.row_count), (0, 0..0), (0, 0..0)],
                Some(shares) => shares.parts(before, rows.row_count),
            };
            for (split, part) in parts.into_iter().filter(|(_, part)| !part.is_empty()) {
                for (counts, &column) in self.splits[split].iter_mut().zip(&columns) {
                    let bags = &rows.bags[column];
                    let ids = match schema.features[column].bags {
                        BagStore::List => {
                            let start = if part.start == 0 { 0 } else { bags.ends[part.start - 1] as usize };
                            start..bags.ends[part.end - 1] as usize
                        }
                        BagStore::One | BagStore::OneOrNone => part.clone(),
                    };
                    counts.ids += ids.len() as u64;
                    counts.unknown += bags.rows[ids].iter().filter(|row| **row == UNKNOWN_ROW).count() as u64;
                }
            }
        }
    }
}

impl RowShares {
    /// The rows of a chunk by split.
    fn parts(self, before: u64, rows: usize) -> [(usize, Range<usize>); 3] {
        let [train, valid, _] = rows_of_shares(self.total, self.valid, self.test);
        let within = |row: u64| row.saturating_sub(before).min(rows as u64) as usize;
        let (first, second) = (within(train), within(train + valid));
        [(0, 0..first), (1, first..second), (2, second..rows)]
    }
}
