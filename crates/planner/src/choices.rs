//! Every way to place one table, priced: what the search chooses from.

use campanile_spec::{COLUMN_BLOCK, Placement, Returns};

use crate::{
    estimate::{PlacementCost, placement_cost},
    request::Request,
};

/// A part's price: what the search adds up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Price {
    /// Picoseconds of a step.
    pub time: u64,
    /// Bytes.
    pub memory: u64,
}

/// Where the parts of a choice may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Spread {
    /// Each part on a rank of its own.
    Ranks,
    /// Runs of as many parts as a host has ranks, each run on a host of its own, part by part on its ranks.
    Hosts,
    /// Part `r` on rank `r`.
    Everywhere,
}

/// One way to place a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// What it is called.
    pub kind: Kind,
    /// Where its parts may go.
    pub spread: Spread,
    /// Its parts.
    pub parts: Vec<Price>,
    /// What every rank pays on top.
    pub everywhere: Price,
}

/// What a choice is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// On one rank.
    Whole(Returns),
    /// Column blocks on so many ranks.
    Columns {
        /// Ranks.
        parts: usize,
        /// What travels back.
        returns: Returns,
    },
    /// Row ranges on so many ranks.
    Rows {
        /// Ranks.
        parts: usize,
    },
    /// Row ranges on the ranks of one host.
    HostRows,
    /// Column blocks on so many hosts, row ranges inside each.
    Grid {
        /// Hosts.
        hosts: usize,
    },
    /// A copy everywhere.
    Replicated,
}

impl Choice {
    /// Picoseconds over all ranks.
    pub fn total_time(&self, rank_count: usize) -> u64 {
        self.parts.iter().map(|part| part.time).sum::<u64>() + self.everywhere.time * rank_count as u64
    }

    /// The costliest part.
    pub fn largest_time(&self) -> u64 {
        self.parts.iter().map(|part| part.time).max().unwrap_or(0)
    }

    /// The largest part.
    pub fn largest_memory(&self) -> u64 {
        self.parts.iter().map(|part| part.memory).max().unwrap_or(0)
    }
}

impl Kind {
    /// The placement, given the ranks of the parts in order.
    pub fn placement(self, request: &Request<'_>, table: usize, ranks: &[usize]) -> Placement {
        let spec = &request.model.tables[table];
        match self {
            Kind::Whole(returns) => Placement::whole(spec, ranks[0]).returning(returns),
            Kind::Columns { returns, .. } => Placement::by_columns(spec, ranks).returning(returns),
            Kind::Rows { .. } | Kind::HostRows => Placement::by_rows(spec, ranks),
            Kind::Grid { hosts } => {
                let hosts: Vec<Vec<usize>> =
                    ranks.chunks(ranks.len() / hosts).map(<[usize]>::to_vec).collect();
                Placement::grid(spec, &hosts)
            }
            Kind::Replicated => Placement::replicated(spec, request.topology.rank_count()),
        }
    }

    /// In a few words.
    pub fn words(self) -> String {
        match self {
            Kind::Whole(Returns::Pooled) => "whole".to_owned(),
            Kind::Whole(Returns::Rows) => "whole, rows travel".to_owned(),
            Kind::Columns { parts, .. } => format!("by columns over {parts}"),
            Kind::Rows { parts } => format!("by rows over {parts}"),
            Kind::HostRows => "by rows in a host".to_owned(),
            Kind::Grid { hosts } => format!("grid over {hosts} hosts"),
            Kind::Replicated => "replicated".to_owned(),
        }
    }
}

/// All choices for a table, whole first; the first is always there.
pub fn choices(request: &Request<'_>, table: usize) -> Vec<Choice> {
    let spec = &request.model.tables[table];
    let topology = request.topology;
    let (ranks, per_host) = (topology.rank_count(), topology.ranks_per_host);
    let mut kinds = vec![Kind::Whole(Returns::Pooled), Kind::Whole(Returns::Rows)];
    if ranks == 1 {
        kinds.truncate(1);
    } else if request.may_split(&spec.name) {
        let blocks = spec.dim.div_ceil(COLUMN_BLOCK);
        for parts in part_counts(ranks.min(blocks)) {
            kinds.push(Kind::Columns { parts, returns: Returns::Pooled });
            kinds.push(Kind::Columns { parts, returns: Returns::Rows });
        }
        let rows = usize::try_from(spec.row_count).unwrap_or(usize::MAX);
        kinds.extend(part_counts(ranks.min(rows)).map(|parts| Kind::Rows { parts }));
        if topology.hosts > 1 && per_host > 1 && rows >= per_host {
            kinds.push(Kind::HostRows);
            kinds.extend(part_counts(topology.hosts.min(blocks)).map(|hosts| Kind::Grid { hosts }));
        }
        if rows >= ranks && request.may_copy {
            kinds.push(Kind::Replicated);
        }
    }
    kinds.into_iter().map(|kind| choice(request, table, kind)).collect()
}

fn choice(request: &Request<'_>, table: usize, kind: Kind) -> Choice {
    let topology = request.topology;
    let (parts, spread) = match kind {
        Kind::Whole(_) => (1, Spread::Ranks),
        Kind::Columns { parts, .. } | Kind::Rows { parts } => (parts, Spread::Ranks),
        Kind::HostRows => (topology.ranks_per_host, Spread::Hosts),
        Kind::Grid { hosts } => (hosts * topology.ranks_per_host, Spread::Hosts),
        Kind::Replicated => (topology.rank_count(), Spread::Everywhere),
    };
    let example: Vec<usize> = (0..parts).collect();
    let placement = kind.placement(request, table, &example);
    let PlacementCost { shards, everywhere } = placement_cost(request, table, &placement);
    let price = |cost: &crate::estimate::Cost| Price { time: cost.picoseconds(), memory: cost.memory_bytes };
    // Even cuts of fewer rows than parts leave some parts without a shard.
    let mut prices = vec![Price::default(); parts];
    placement.shards.iter().zip(&shards).for_each(|(shard, cost)| prices[shard.rank] = price(cost));
    Choice { kind, spread, parts: prices, everywhere: price(&everywhere) }
}

/// 2, 3, 4, 6, 8, 12, 16 ... and `most`: enough to come within a third of any number of parts.
fn part_counts(most: usize) -> impl Iterator<Item = usize> {
    let doubling = (1..usize::BITS).flat_map(|power| [1usize << power, (1usize << power) / 2 * 3]);
    let below = doubling.take_while(move |&parts| parts < most);
    below.chain((most > 1).then_some(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_counts_rise_to_the_most() {
        assert_eq!(part_counts(1).collect::<Vec<_>>(), [] as [usize; 0]);
        assert_eq!(part_counts(2).collect::<Vec<_>>(), [2]);
        assert_eq!(part_counts(12).collect::<Vec<_>>(), [2, 3, 4, 6, 8, 12]);
        assert_eq!(part_counts(5).collect::<Vec<_>>(), [2, 3, 4, 5]);
    }
}
