//! One step of a described model on a described cluster: flat, by the ways of towers, and with tower modules.
//!
//! With `S` bytes of a rank's vectors one way, ratio `CR`, towers that are groups of ranks (members) with peers elsewhere:
//!
//! ```text
//!   flat       2 · exchange(S, all ranks)
//!   sptt       2 · (exchange(S, members) + exchange(S / CR, peers)) + 8 S / memory      copies: two, read and written, both ways
//!   network    6 · multiplications · samples / (teraflops · efficiency)
//!   rows       3 · samples · ids · bytes of a row · overhead / memory                     read; read and written on the way back
//!   reduce     sum of the dense gradients over all ranks, of modules' over members
//!   step       network + rows + ways - hidden + max(0, reduce - reduce_behind · network)
//! ```

use campanile_spec::{cluster::Cluster, workload::Workload};
use serde::Serialize;
use thiserror::Error;

use super::{
    exchange::{Circle, all_reduce, all_to_all, half_reduction},
    load::{self, FLOPS_PER_MULTIPLICATION},
    memory::{Fit, fit},
};

/// Bytes of a dense weight's gradient on its way.
const GRADIENT_BYTES: f64 = 4.0;

/// How often local copies touch a vector's bytes: before and after the exchange, read and written, there and back.
const COPY_TOUCHES: f64 = 8.0;

/// How often a row is touched: read, and on the way back read and written.
const ROW_TOUCHES: f64 = 3.0;

/// What is simulated.
#[derive(Debug, Clone, Copy)]
pub struct Setting<'a> {
    /// The machines.
    pub cluster: &'a Cluster,
    /// The model.
    pub workload: &'a Workload,
    /// How many hosts.
    pub hosts: usize,
    /// Groups of ranks that share a part of the features.
    pub towers: usize,
    /// Floats of all vectors over floats of what towers hand on.
    pub ratio: f64,
}

/// How vectors travel, and what of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// From the owner of the rows to the rank of the sample.
    Flat,
    /// Inside a tower's ranks, then among peers; the same model.
    Sptt,
    /// As towers, but with the work of the flat network: what the links alone gain.
    Shortened,
    /// With modules, and a network on what they hand on.
    Towers,
}

impl Variant {
    /// All, in the order of a table's columns.
    pub const ALL: [Variant; 4] = [Variant::Flat, Variant::Sptt, Variant::Shortened, Variant::Towers];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Variant::Flat => "flat",
            Variant::Sptt => "sptt",
            Variant::Shortened => "shortened",
            Variant::Towers => "towers",
        }
    }
}

/// Seconds of one step, and where they go.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Step {
    /// The dense network, forward and backward.
    pub network: f64,
    /// The towers' modules.
    pub modules: f64,
    /// Reading and updating rows.
    pub rows: f64,
    /// Vectors put in another order between two exchanges.
    pub copies: f64,
    /// Vectors and gradients inside hosts.
    pub in_host: f64,
    /// Vectors and gradients between hosts.
    pub cross_host: f64,
    /// Ids on their way.
    pub ids: f64,
    /// What of copies, exchanges and ids hides behind computing.
    pub hidden: f64,
    /// Summing dense gradients over ranks.
    pub reduce: f64,
    /// What of it hides behind the network.
    pub reduce_hidden: f64,
    /// Bytes of vectors and gradients that one rank sends to other hosts.
    pub cross_host_bytes: f64,
}

impl Step {
    /// Computing, whoever waits for it.
    pub fn compute(&self) -> f64 {
        self.network + self.modules + self.rows
    }

    /// Communication that is not hidden: what a step would save on links without end.
    pub fn exposed(&self) -> f64 {
        self.copies + self.in_host + self.cross_host + self.ids - self.hidden + self.reduce
            - self.reduce_hidden
    }

    /// The whole step.
    pub fn seconds(&self) -> f64 {
        self.compute() + self.exposed()
    }
}

/// Why something cannot be simulated.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SettingError {
    /// Towers do not divide the machines.
    #[error(
        "{towers} towers cannot be seated on {hosts} hosts of {per_host}: a tower is one or several whole hosts, or an \
         equal part of one"
    )]
    Towers {
        /// Asked for.
        towers: usize,
        /// Hosts.
        hosts: usize,
        /// Ranks of each.
        per_host: usize,
    },
    /// A tower without a feature.
    #[error("{towers} towers for {features} features: a tower needs at least one")]
    Features {
        /// Asked for.
        towers: usize,
        /// Of the model.
        features: usize,
    },
    /// A ratio that leaves nothing.
    #[error(
        "a compression ratio of {ratio}: vectors have from {dim} floats on, so it can be from 1 to {dim}"
    )]
    Ratio {
        /// Asked for.
        ratio: f64,
        /// The narrowest vector.
        dim: usize,
    },
    /// Not whole hosts.
    #[error("{ranks} ranks on hosts of {per_host}: ask for whole hosts, or for a part of one")]
    Ranks {
        /// Asked for.
        ranks: usize,
        /// Ranks of each host.
        per_host: usize,
    },
}

impl<'a> Setting<'a> {
    /// A setting on some ranks. Without a number of towers, as many as there are hosts, or as divide them and have features.
    ///
    /// # Errors
    /// When it cannot be, in words.
    pub fn new(
        (cluster, workload): (&'a Cluster, &'a Workload),
        ranks: usize,
        towers: Option<usize>,
        ratio: f64,
    ) -> Result<Setting<'a>, SettingError> {
        let per_host = cluster.ranks_per_host;
        if ranks == 0 || !ranks.is_multiple_of(per_host) {
            return Err(SettingError::Ranks { ranks, per_host });
        }
        let (hosts, features) = (ranks / per_host, workload.feature_count());
        let most =
            |hosts: usize| (1..=hosts.min(features)).rev().find(|towers| hosts.is_multiple_of(*towers));
        let towers = towers.or_else(|| most(hosts)).unwrap_or(1);
        let whole_hosts = towers > 0 && hosts.is_multiple_of(towers);
        let part_of_host =
            towers > 0 && towers.is_multiple_of(hosts) && per_host.is_multiple_of(towers / hosts);
        if !(whole_hosts || part_of_host) {
            return Err(SettingError::Towers { towers, hosts, per_host });
        }
        if towers > features {
            return Err(SettingError::Features { towers, features });
        }
        let dim = workload.table.iter().map(|group| group.dim).min().unwrap_or(1);
        if !(1.0..=dim as f64).contains(&ratio) {
            return Err(SettingError::Ratio { ratio, dim });
        }
        Ok(Setting { cluster, workload, hosts, towers, ratio })
    }

    /// All ranks.
    pub fn ranks(&self) -> usize {
        self.hosts * self.cluster.ranks_per_host
    }

    /// Samples of all ranks in a step.
    pub fn samples(&self) -> f64 {
        (self.workload.local_batch * self.ranks()) as f64
    }

    /// Where the tables are.
    pub fn fit(&self) -> Fit {
        fit(self.cluster, self.workload, self.hosts)
    }

    fn all(&self) -> Circle {
        Circle { hosts: self.hosts, per_host: self.cluster.ranks_per_host }
    }

    /// The ranks of one tower, and a rank's peers in all towers.
    fn circles(&self) -> (Circle, Circle) {
        let per_host = self.cluster.ranks_per_host;
        if self.towers <= self.hosts {
            let members = Circle { hosts: self.hosts / self.towers, per_host };
            return (members, Circle { hosts: self.towers, per_host: 1 });
        }
        let of_host = self.towers / self.hosts;
        (Circle { hosts: 1, per_host: per_host / of_host }, Circle { hosts: self.hosts, per_host: of_host })
    }

    /// Bytes a second that copies reach.
    fn copy_rate(&self) -> f64 {
        let tier = &self.cluster.tier[0];
        tier.gb_per_second * 1e9 * tier.efficiency
    }

    fn flops_seconds(&self, multiplications: f64) -> f64 {
        let rank = &self.cluster.rank;
        multiplications * FLOPS_PER_MULTIPLICATION * self.workload.local_batch as f64
            / (rank.teraflops * 1e12 * rank.efficiency)
    }

    fn row_seconds(&self) -> f64 {
        let workload = self.workload;
        let bytes = |group: &campanile_spec::workload::TableGroup| {
            group.count as f64 * group.ids * group.dim as f64 * workload.row_element_bytes
        };
        let bytes: f64 = workload.table.iter().map(bytes).sum();
        let touched = ROW_TOUCHES * workload.local_batch as f64 * bytes * self.cluster.rank.row_overhead;
        let tiers = self.fit().tiers;
        let seconds = tiers
            .iter()
            .zip(&self.cluster.tier)
            .map(|(used, tier)| touched * used.id_share / (tier.gb_per_second * 1e9 * tier.efficiency));
        seconds.sum()
    }
}

/// Simulates one step.
pub fn step(setting: &Setting<'_>, variant: Variant) -> Step {
    let (cluster, workload) = (setting.cluster, setting.workload);
    // Without peers elsewhere the two ways are one.
    let by_towers = variant != Variant::Flat && setting.towers > 1;
    let (has_modules, ratio) = match variant {
        Variant::Flat | Variant::Sptt => (false, 1.0),
        Variant::Shortened => (false, setting.ratio),
        Variant::Towers => (true, setting.ratio),
    };
    let network = load::network(workload, if has_modules { ratio } else { 1.0 });
    let modules =
        if has_modules { load::modules(workload, setting.towers, ratio) } else { load::Dense::default() };
    let samples = workload.local_batch as f64;
    let (floats, id_bytes) = (load::floats(workload), samples * load::id_bytes(workload));
    let [pooled, summed] =
        [floats.pooled, floats.summed].map(|floats| samples * floats * workload.wire_bytes);
    // Rows that are cut over some ranks give each of them partial vectors of all the others' samples too.
    let one_way = |circle: Circle| {
        let ranks = (circle.hosts * circle.per_host) as f64;
        all_to_all(cluster, circle, pooled) + half_reduction(cluster, circle, summed * ranks)
    };
    let ((members, peers), all) = (setting.circles(), setting.all());
    let (vectors, ids, copies) = if by_towers {
        let handed_on = all_to_all(cluster, peers, (pooled + summed) / ratio);
        let ids = all_to_all(cluster, peers, id_bytes) + all_to_all(cluster, members, id_bytes);
        (one_way(members) + handed_on, ids, COPY_TOUCHES * (pooled + summed) / setting.copy_rate())
    } else {
        (one_way(all), all_to_all(cluster, all, id_bytes), 0.0)
    };
    let mut reduce = all_reduce(cluster, all, network.weights * GRADIENT_BYTES);
    if has_modules && modules.weights > 0.0 {
        reduce = reduce + all_reduce(cluster, members, modules.weights * GRADIENT_BYTES);
    }
    let mut step = Step {
        network: setting.flops_seconds(network.multiplications),
        modules: setting.flops_seconds(modules.multiplications),
        rows: setting.row_seconds(),
        copies,
        in_host: 2.0 * vectors.in_host,
        cross_host: 2.0 * vectors.cross_host,
        ids: ids.seconds(),
        reduce: reduce.seconds(),
        cross_host_bytes: 2.0 * vectors.cross_host_bytes,
        ..Step::default()
    };
    hide(&mut step, cluster);
    step
}

/// What hides behind what; nothing can hide behind more computing than there is.
fn hide(step: &mut Step, cluster: &Cluster) {
    let overlap = &cluster.overlap;
    let may_hide = overlap.exchange_hidden * (step.copies + step.in_host + step.cross_host)
        + overlap.ids_hidden * step.ids;
    step.hidden = may_hide.min(step.compute());
    let behind_network = overlap.reduce_behind * (step.network + step.modules);
    step.reduce_hidden = step.reduce.min(behind_network).min(step.compute() - step.hidden);
}
