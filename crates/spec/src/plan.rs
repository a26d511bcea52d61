//! Where tables live.

use serde::{Deserialize, Serialize};

use crate::model::{ModelSpec, TableId};

/// Which rank holds which table. Every rank computes the same plan; no result depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Ranks of the run.
    pub rank_count: usize,
    /// One per table of the model.
    pub placements: Vec<Placement>,
}

/// Where one table lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// All of it on one rank.
    Whole {
        /// The owner.
        rank: usize,
    },
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
        let mut placements = vec![Placement::Whole { rank: 0 }; costs.len()];
        for table in order {
            let rank = (0..rank_count).min_by_key(|&rank| (loads[rank], rank)).unwrap_or(0);
            loads[rank] += costs[table];
            placements[table] = Placement::Whole { rank };
        }
        Plan { rank_count, placements }
    }

    /// The rank that holds a table.
    pub fn owner(&self, table: TableId) -> usize {
        match self.placements[table.0 as usize] {
            Placement::Whole { rank } => rank,
        }
    }

    /// The tables of a rank, in table order.
    pub fn tables_of(&self, rank: usize) -> Vec<TableId> {
        (0..self.placements.len() as u32).map(TableId).filter(|&table| self.owner(table) == rank).collect()
    }
}
