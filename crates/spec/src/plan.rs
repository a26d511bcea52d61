//! Where tables live.
//!
//! A table is cut into shards: rectangles of rows and columns, each on one rank. That one form covers every
//! placement that the planner knows:
//!
//! ```text
//!   whole        one shard                       by columns   column blocks on several ranks
//!   by rows      row ranges on several ranks     grid         column blocks on hosts, row ranges inside each
//!   host rows    row ranges on one host's ranks  replicated   row ranges that are kept up, and a copy everywhere
//! ```
//!
//! No result depends on the plan. Columns are cut only at multiples of [`COLUMN_BLOCK`], because sums over a row
//! (row-wise optimizers, the int8 codec) are formed block by block.

use std::{fmt, ops::Range};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::model::{ModelSpec, TableId, TableSpec};

/// Columns over which a sum is formed before sums are added: the grid on which a table can be cut by columns.
pub const COLUMN_BLOCK: usize = 32;

/// Which rank holds what. Every rank computes the same plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Ranks of the run.
    pub rank_count: usize,
    /// One per table of the model.
    pub placements: Vec<Placement>,
}

/// Where one table lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Rectangles that cover the table once: every range of columns has the same ranges of rows.
    pub shards: Vec<Shard>,
    /// Whether every rank keeps a copy of all rows to look up; the shards then say who updates which rows.
    #[serde(default)]
    pub replicated: bool,
    /// What travels back from a lookup.
    pub returns: Returns,
}

/// Some rows and columns of a table on one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// The owner.
    pub rank: usize,
    /// Rows of the whole table.
    pub rows: Range<u64>,
    /// Columns of the whole table.
    pub columns: Range<usize>,
}

/// What travels from the owner of rows to the rank of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Returns {
    /// One pooled vector per bag. The owner must hold all rows.
    Pooled,
    /// Every row that a rank's samples name, once; the samples' rank pools them, in the order of the bag.
    Rows,
}

/// A plan that does not fit its model.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the plan does not fit: {what}")]
pub struct PlanError {
    /// What is wrong, with the table's name.
    pub what: String,
}

impl Plan {
    /// Tables whole, the costliest first, each to the rank with the least to do so far.
    ///
    /// A table costs what its features read and write in a step: their number times the bytes of a row. The
    /// number of rows does not matter for time, and memory is one process's here.
    pub fn balanced(model: &ModelSpec, rank_count: usize) -> Plan {
        assert!(rank_count > 0, "a plan needs a rank");
        let mut costs: Vec<usize> = vec![0; model.tables.len()];
        for feature in &model.features {
            let table = feature.table.0 as usize;
            costs[table] += model.tables[table].dim * model.tables[table].format.element_bytes();
        }
        let mut order: Vec<usize> = (0..costs.len()).collect();
        order.sort_by_key(|&table| (std::cmp::Reverse(costs[table]), table));
        let mut loads = vec![0; rank_count];
        let mut owners = vec![0; costs.len()];
        for table in order {
            let rank = (0..rank_count).min_by_key(|&rank| (loads[rank], rank)).unwrap_or(0);
            loads[rank] += costs[table];
            owners[table] = rank;
        }
        let placements = model.tables.iter().zip(owners).map(|(table, rank)| Placement::whole(table, rank));
        Plan { rank_count, placements: placements.collect() }
    }

    /// The placement of a table.
    pub fn of(&self, table: TableId) -> &Placement {
        &self.placements[table.0 as usize]
    }

    /// The shards of a rank, by table and then in the placement's order.
    pub fn shards_of(&self, rank: usize) -> impl Iterator<Item = (TableId, &Shard)> {
        self.placements.iter().enumerate().flat_map(move |(table, placement)| {
            let own = placement.shards.iter().filter(move |shard| shard.rank == rank);
            own.map(move |shard| (TableId(table as u32), shard))
        })
    }

    /// Checks that the plan covers `model` exactly, on ranks that exist.
    ///
    /// # Errors
    /// The first table that is not covered once, is cut off the column grid, or names a rank that is not there.
    pub fn check(&self, model: &ModelSpec) -> Result<(), PlanError> {
        if self.placements.len() != model.tables.len() {
            let (found, wanted) = (self.placements.len(), model.tables.len());
            return Err(PlanError { what: format!("it places {found} tables, the model has {wanted}") });
        }
        for (table, placement) in model.tables.iter().zip(&self.placements) {
            placement.check(table, self.rank_count).map_err(|what| PlanError {
                what: format!("table `{}`: {what}; make a new one with `campanile plan`", table.name),
            })?;
        }
        Ok(())
    }
}

impl Placement {
    /// All of a table on one rank, which sends pooled vectors.
    pub fn whole(table: &TableSpec, rank: usize) -> Placement {
        let shard = Shard { rank, rows: 0..table.row_count, columns: 0..table.dim };
        Placement { shards: vec![shard], replicated: false, returns: Returns::Pooled }
    }

    /// Even ranges of rows on some ranks, in their order.
    pub fn by_rows(table: &TableSpec, ranks: &[usize]) -> Placement {
        Placement::grid(table, &[ranks.to_vec()])
    }

    /// Even ranges of columns on some ranks, in their order; with more ranks than column blocks the last ones
    /// get nothing.
    pub fn by_columns(table: &TableSpec, ranks: &[usize]) -> Placement {
        let columns: Vec<Vec<usize>> = ranks.iter().map(|&rank| vec![rank]).collect();
        Placement::grid(table, &columns)
    }

    /// A copy on every rank; each updates an even range of rows and sends the new ones to all.
    pub fn replicated(table: &TableSpec, rank_count: usize) -> Placement {
        let ranks: Vec<usize> = (0..rank_count).collect();
        Placement { replicated: true, ..Placement::by_rows(table, &ranks) }
    }

    /// Even ranges of columns, one for each list of ranks, each cut into even ranges of rows on those ranks. All
    /// lists must have one length.
    pub fn grid(table: &TableSpec, ranks: &[Vec<usize>]) -> Placement {
        let blocks = table.dim.div_ceil(COLUMN_BLOCK);
        let column_cut = |part: usize| (blocks * part / ranks.len() * COLUMN_BLOCK).min(table.dim);
        let mut shards = Vec::new();
        for (part, ranks_of_rows) in ranks.iter().enumerate() {
            let columns = column_cut(part)..column_cut(part + 1);
            let count = ranks_of_rows.len() as u64;
            assert_eq!(ranks_of_rows.len(), ranks[0].len(), "table `{}`: an uneven grid", table.name);
            for (place, &rank) in (0..).zip(ranks_of_rows) {
                let rows = table.row_count * place / count..table.row_count * (place + 1) / count;
                if !columns.is_empty() && (!rows.is_empty() || table.row_count == 0 && place == 0) {
                    shards.push(Shard { rank, rows, columns: columns.clone() });
                }
            }
        }
        let returns = if ranks[0].len() == 1 { Returns::Pooled } else { Returns::Rows };
        Placement { shards, replicated: false, returns }
    }

    /// The same placement with another kind of answer.
    #[must_use]
    pub fn returning(mut self, returns: Returns) -> Placement {
        self.returns = returns;
        self
    }

    /// Where columns are cut: all starts and the end.
    pub fn column_cuts(&self) -> Vec<usize> {
        let mut cuts: Vec<usize> =
            self.shards.iter().flat_map(|shard| [shard.columns.start, shard.columns.end]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    }

    /// Where rows are cut: all starts and the end.
    pub fn row_cuts(&self) -> Vec<u64> {
        let mut cuts: Vec<u64> =
            self.shards.iter().flat_map(|shard| [shard.rows.start, shard.rows.end]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    }

    fn check(&self, table: &TableSpec, rank_count: usize) -> Result<(), String> {
        if let Some(shard) = self.shards.iter().find(|shard| shard.rank >= rank_count) {
            return Err(format!("rank {} is beyond the {rank_count} ranks of the plan", shard.rank));
        }
        let (columns, rows) = (self.column_cuts(), self.row_cuts());
        let ends = (columns.first(), columns.last(), rows.first(), rows.last());
        if ends != (Some(&0), Some(&table.dim), Some(&0), Some(&table.row_count)) {
            return Err(format!("its shards do not cover {} rows of {} floats", table.row_count, table.dim));
        }
        let inner = &columns[1..columns.len() - 1];
        if let Some(cut) = inner.iter().find(|cut| !cut.is_multiple_of(COLUMN_BLOCK)) {
            return Err(format!("columns are cut at {cut}, which is no multiple of {COLUMN_BLOCK}"));
        }
        // A table without rows has no row range, but still one shard per range of columns.
        let row_ranges: Vec<Range<u64>> = if rows.len() == 1 {
            std::iter::once(0..0).collect()
        } else {
            rows.windows(2).map(|cut| cut[0]..cut[1]).collect()
        };
        let column_ranges = columns.windows(2).map(|cut| cut[0]..cut[1]);
        for columns in column_ranges {
            for rows in &row_ranges {
                let owners = self
                    .shards
                    .iter()
                    .filter(|shard| shard.rows == *rows && shard.columns == columns)
                    .count();
                if owners != 1 {
                    return Err(format!("{owners} ranks own rows {rows:?}, columns {columns:?}"));
                }
            }
        }
        if self.shards.len() != row_ranges.len() * (columns.len() - 1) {
            return Err("its shards are not a grid".to_owned());
        }
        if self.replicated && columns.len() > 2 {
            return Err("it is replicated, so only its rows can be cut".to_owned());
        }
        if self.returns == Returns::Pooled && row_ranges.len() > 1 {
            return Err("it is cut by rows, so rows must travel, not pooled vectors".to_owned());
        }
        Ok(())
    }
}

impl fmt::Display for Placement {
    /// In a few words: `whole on 3`, `by rows on 0-3`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranks: Vec<usize> = self.shards.iter().map(|shard| shard.rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let (by_rows, by_columns) = (self.row_cuts().len() > 2, self.column_cuts().len() > 2);
        let kind = match (self.replicated, by_rows, by_columns) {
            (true, ..) => return write!(f, "replicated"),
            (_, false, false) => "whole on",
            (_, true, false) => "by rows on",
            (_, false, true) => "by columns on",
            (_, true, true) => "grid on",
        };
        match ranks.as_slice() {
            [first, .., last] if last - first + 1 == ranks.len() => write!(f, "{kind} {first}-{last}"),
            ranks => {
                let ranks: Vec<String> = ranks.iter().map(ToString::to_string).collect();
                write!(f, "{kind} {}", ranks.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{RowFormat, RowInit};

    fn table(row_count: u64, dim: usize) -> TableSpec {
        TableSpec { name: "t".into(), row_count, dim, format: RowFormat::F32, init: RowInit::Zeros }
    }

    #[test]
    fn every_way_to_cut_a_table_covers_it_once() {
        for (rows, dim) in [(0, 16), (1, 33), (3, 64), (1000, 128), (7, 100)] {
            let table = table(rows, dim);
            for ranks in 1..6 {
                let all: Vec<usize> = (0..ranks).collect();
                let pairs: Vec<Vec<usize>> = (0..ranks).map(|rank| vec![rank, (rank + 1) % ranks]).collect();
                for placement in [
                    Placement::whole(&table, ranks - 1),
                    Placement::by_rows(&table, &all),
                    Placement::by_columns(&table, &all),
                    Placement::replicated(&table, ranks),
                    Placement::grid(&table, &pairs),
                ] {
                    placement.check(&table, ranks).unwrap_or_else(|e| panic!("{e}: {placement:?}"));
                }
            }
        }
    }

    #[test]
    fn a_plan_that_does_not_fit_says_why() {
        let table = table(10, 64);
        let why = |placement: Placement| placement.check(&table, 2).unwrap_err();
        assert!(why(Placement::whole(&table, 2)).contains("rank 2 is beyond"));
        let mut gap = Placement::by_rows(&table, &[0, 1]);
        gap.shards[1].rows = 6..10;
        assert!(why(gap).contains("0 ranks own rows"));
        let mut off_grid = Placement::by_columns(&table, &[0, 1]);
        off_grid.shards[0].columns = 0..20;
        off_grid.shards[1].columns = 20..64;
        assert!(why(off_grid).contains("cut at 20"));
        let pooled = Placement::by_rows(&table, &[0, 1]).returning(Returns::Pooled);
        assert!(why(pooled).contains("rows must travel"));
        let mut twice = Placement::whole(&table, 0);
        twice.shards.push(twice.shards[0].clone());
        assert!(why(twice).contains("2 ranks own"));
    }

    #[test]
    fn placements_are_told_in_a_few_words() {
        let table = table(10, 64);
        assert_eq!(Placement::whole(&table, 3).to_string(), "whole on 3");
        assert_eq!(Placement::by_rows(&table, &[0, 1, 2]).to_string(), "by rows on 0-2");
        assert_eq!(Placement::by_columns(&table, &[0, 2]).to_string(), "by columns on 0,2");
        assert_eq!(Placement::grid(&table, &[vec![0, 1], vec![2, 3]]).to_string(), "grid on 0-3");
        assert_eq!(Placement::replicated(&table, 4).to_string(), "replicated");
    }
}
