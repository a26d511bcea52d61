//! A cluster as its data sheets describe it, for the simulator: any number of equal hosts, each with the same ranks.
//!
//! A [`Topology`](crate::topology::Topology) is measured, and prices a job on the machines that were measured. A cluster
//! here is written by hand, from data sheets and assumptions, and prices what nobody has rented yet; every assumption is a
//! key of the file, so that it can be read, doubted and changed.
//!
//! ```text
//!   [rank]        operations a second of one rank (a GPU, or a CPU rank)
//!   [[tier]]      its memories, the fastest first: HBM, DRAM, SSD
//!   [in_host]     its link to the ranks of its host
//!   [cross_host]  its share of the way to other hosts
//!   [reduce]      how sums over all ranks are formed
//!   [overlap]     what hides behind what
//! ```

use crate::{
    config::{error::Problem, keys::section},
    description::{self, DescriptionError, above_zero, shares},
};

section! {
    /// A cluster as described.
    pub struct Cluster {
        /// What it is, for titles.
        pub name: String,
        /// What one rank is called: GPU, CPU rank.
        pub rank_noun: String = "rank".to_owned(),
        /// Ranks on each host.
        pub ranks_per_host: usize,
        /// What one rank computes.
        pub rank: RankSheet,
        /// Its memories, the fastest first.
        pub tier: Vec<MemoryTier>,
        /// From a rank to the others of its host.
        pub in_host: LinkSheet,
        /// From a rank to other hosts, while all ranks of its host send too.
        pub cross_host: LinkSheet,
        /// Sums over all ranks.
        pub reduce: ReduceSheet,
        /// What hides behind what.
        pub overlap: Overlap,
    }
}

section! {
    /// What one rank computes.
    pub struct RankSheet {
        /// Million million operations a second, as the data sheet says.
        pub teraflops: f64,
        /// The share of it that matrix products reach.
        pub efficiency: f64,
        /// The time for rows over what their bytes alone would take: indices, sorting, uneven ranks.
        pub row_overhead: f64 = 1.0,
    }
}

section! {
    /// One kind of memory of a rank.
    pub struct MemoryTier {
        /// HBM, DRAM, SSD.
        pub name: String,
        /// Thousand million bytes of one rank.
        pub gb_per_rank: f64,
        /// Of these, what is not for tables: weights, activations, buffers, the system.
        pub reserved_gb_per_rank: f64 = 0.0,
        /// Thousand million bytes a second that one rank reads or writes.
        pub gb_per_second: f64,
        /// The share of it that rows reach.
        pub efficiency: f64 = 0.7,
    }
}

section! {
    /// A link as its data sheet describes it.
    #[derive(Copy)]
    pub struct LinkSheet {
        /// Thousand million bytes a second of one rank, in one direction.
        pub gb_per_second: f64,
        /// The share of it that large messages reach.
        pub efficiency: f64,
        /// Microseconds of a message, however short: alpha.
        pub message_us: f64,
        /// A message of so many thousand bytes reaches half of it.
        pub half_message_kb: f64 = 0.0,
        /// The share that is lost with every doubling of the hosts that exchange.
        pub congestion_per_doubling: f64 = 0.0,
        /// The share that is left however many there are.
        pub congestion_floor: f64 = 0.3,
    }
}

section! {
    /// How sums over all ranks are formed.
    #[derive(Copy)]
    pub struct ReduceSheet {
        /// Whether a host adds up first, so that every rank carries its part of the host's sum only.
        pub in_host_first: bool = true,
        /// The share of the link between hosts that it reaches.
        pub efficiency: f64 = 0.5,
        /// Parts that are summed one after the other; each costs two messages for every doubling of ranks.
        pub buckets: usize = 8,
    }
}

section! {
    /// What hides behind what.
    #[derive(Copy)]
    pub struct Overlap {
        /// The share of an exchange of vectors that hides behind computing, but never more than there is computing.
        pub exchange_hidden: f64 = 0.0,
        /// The share of the exchange of ids that does: 1 where the next batch's ids travel while this one computes.
        pub ids_hidden: f64 = 1.0,
        /// The share of the network's time behind which the sum of the dense gradients may hide.
        pub reduce_behind: f64 = 0.5,
        /// Whether both links of a rank work at once; where a processor copies the bytes they do not.
        pub links_at_once: bool = true,
    }
}

impl Cluster {
    /// Reads and checks a cluster file's text.
    ///
    /// # Errors
    /// The first mistake, with its line, its key, its value and what to do.
    pub fn parse(text: &str) -> Result<Cluster, DescriptionError> {
        description::parse(text, "the cluster", checked)
    }

    /// Whether a text means to describe a cluster and not a measured topology, which has `[compute]`.
    pub fn is_meant(text: &str) -> bool {
        !description::has_key(text, "compute")
    }
}

fn checked(cluster: Cluster) -> Result<Cluster, Problem> {
    if cluster.ranks_per_host == 0 {
        return Err(Problem::value("ranks_per_host", 0, "it must be at least 1"));
    }
    if cluster.tier.is_empty() {
        return Err(Problem::missing("tier", "it says how much memory a rank has; write [[tier]]"));
    }
    let rank = &cluster.rank;
    above_zero(&[
        ("rank.teraflops", rank.teraflops),
        ("rank.efficiency", rank.efficiency),
        ("rank.row_overhead", rank.row_overhead),
        ("reduce.efficiency", cluster.reduce.efficiency),
    ])?;
    shares(&[
        ("rank.efficiency", rank.efficiency),
        ("reduce.efficiency", cluster.reduce.efficiency),
        ("overlap.exchange_hidden", cluster.overlap.exchange_hidden),
        ("overlap.ids_hidden", cluster.overlap.ids_hidden),
        ("overlap.reduce_behind", cluster.overlap.reduce_behind),
    ])?;
    for (index, tier) in cluster.tier.iter().enumerate() {
        let path = |key: &str| format!("tier[{index}].{key}");
        above_zero(&[
            (&path("gb_per_rank"), tier.gb_per_rank),
            (&path("gb_per_second"), tier.gb_per_second),
            (&path("efficiency"), tier.efficiency),
        ])?;
        shares(&[(&path("efficiency"), tier.efficiency)])?;
        if !(0.0..=tier.gb_per_rank).contains(&tier.reserved_gb_per_rank) {
            let advice = format!("it is a part of the {} in gb_per_rank", tier.gb_per_rank);
            return Err(Problem::value(&path("reserved_gb_per_rank"), tier.reserved_gb_per_rank, advice));
        }
        if index > 0 && tier.gb_per_second > cluster.tier[index - 1].gb_per_second {
            let advice = format!("the fastest tier comes first, and the one before has {}", {
                cluster.tier[index - 1].gb_per_second
            });
            return Err(Problem::value(&path("gb_per_second"), tier.gb_per_second, advice));
        }
    }
    link("in_host", &cluster.in_host)?;
    link("cross_host", &cluster.cross_host)?;
    Ok(cluster)
}

fn link(name: &str, link: &LinkSheet) -> Result<(), Problem> {
    let path = |key: &str| format!("{name}.{key}");
    above_zero(&[
        (&path("gb_per_second"), link.gb_per_second),
        (&path("efficiency"), link.efficiency),
        (&path("congestion_floor"), link.congestion_floor),
    ])?;
    shares(&[
        (&path("efficiency"), link.efficiency),
        (&path("congestion_per_doubling"), link.congestion_per_doubling),
        (&path("congestion_floor"), link.congestion_floor),
    ])?;
    let sizes = [("message_us", link.message_us), ("half_message_kb", link.half_message_kb)];
    match sizes.into_iter().find(|(_, value)| *value < 0.0) {
        Some((key, value)) => Err(Problem::value(&path(key), value, "it must not be negative")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
name = \"two tiers\"
ranks_per_host = 8
[rank]
teraflops = 100
efficiency = 0.5
[[tier]]
name = \"HBM\"
gb_per_rank = 40
gb_per_second = 1500
[[tier]]
name = \"DRAM\"
gb_per_rank = 100
gb_per_second = 30
[in_host]
gb_per_second = 300
efficiency = 0.75
message_us = 4
[cross_host]
gb_per_second = 25
efficiency = 0.75
message_us = 4
";

    #[test]
    fn what_is_left_out_has_a_default() {
        let cluster = Cluster::parse(TEXT).unwrap();
        assert_eq!((cluster.rank.row_overhead, cluster.tier[1].efficiency), (1.0, 0.7));
        assert!(cluster.reduce.in_host_first && cluster.overlap.links_at_once);
        assert!(Cluster::is_meant(TEXT) && !Cluster::is_meant("[compute]\n"));
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        let error = |from: &str, to: &str| Cluster::parse(&TEXT.replace(from, to)).unwrap_err().to_string();
        assert_eq!(
            error("ranks_per_host = 8", "ranks_per_hots = 8"),
            "unknown key `ranks_per_hots` in the cluster at line 2, column 1: did you mean `ranks_per_host`?"
        );
        assert_eq!(
            error("efficiency = 0.5", "efficiency = 50"),
            "`efficiency` in [rank] at line 5, column 14 is 50: it is a share, from 0 to 1"
        );
        assert_eq!(
            error("gb_per_second = 30\n", "gb_per_second = 3000\n"),
            "`gb_per_second` in [[tier]] number 2 at line 13, column 17 is 3000: the fastest tier comes first, and \
             the one before has 1500"
        );
        assert!(error("gb_per_second = 25", "gb_per_second = 0").contains("it must be above zero"));
        assert!(error("[in_host]", "[in_host").starts_with("the cluster is not valid TOML at line 14"));
        assert!(
            error("[cross_host]\ngb_per_second = 25", "[cross_host]").contains("missing key `gb_per_second`")
        );
    }
}
