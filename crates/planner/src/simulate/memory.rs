//! What fits where: tables fill the fastest memory first, and its share of the ids follows from how uneven ids are.
//!
//! The hottest rows live in the fastest tier, as a cache that has settled would hold them. Under Zipf's law with exponent
//! `s`, the hottest `k` of `R` rows get `H(k, s) / H(R, s)` of the ids, `H` being the generalised harmonic number.

use campanile_spec::{cluster::Cluster, workload::Workload};

/// Terms of a harmonic number that are added one by one; the rest is an integral.
const EXACT_TERMS: u32 = 1000;

/// What one tier holds.
#[derive(Debug, Clone, PartialEq)]
pub struct TierUse {
    /// HBM, DRAM, SSD.
    pub name: String,
    /// Bytes of tables there, of all ranks.
    pub bytes: f64,
    /// Bytes that there are for tables.
    pub capacity: f64,
    /// The share of all ids whose rows are there.
    pub id_share: f64,
}

/// Where the tables are.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// Bytes of all tables with their state.
    pub bytes: f64,
    /// The fastest first.
    pub tiers: Vec<TierUse>,
    /// Bytes for which there is no place.
    pub missing: f64,
    /// Hosts that would do.
    pub hosts_needed: usize,
}

/// Fills the memories of `hosts`, the fastest first.
pub fn fit(cluster: &Cluster, workload: &Workload, hosts: usize) -> Fit {
    let ranks = (hosts * cluster.ranks_per_host) as f64;
    let bytes = workload.table_bytes();
    let of_rank =
        |tier: &campanile_spec::cluster::MemoryTier| (tier.gb_per_rank - tier.reserved_gb_per_rank) * 1e9;
    let (mut left, mut held) = (bytes, 0.0);
    let mut tiers = Vec::new();
    for (index, tier) in cluster.tier.iter().enumerate() {
        let capacity = of_rank(tier) * ranks;
        let here = left.min(capacity);
        // Rows without a place are read from the slowest tier, so that there is a figure at all.
        let is_last = index + 1 == cluster.tier.len();
        let end = if is_last { 1.0 } else { ((held + here) / bytes).min(1.0) };
        let id_share = id_share(workload, end) - id_share(workload, held / bytes);
        tiers.push(TierUse { name: tier.name.clone(), bytes: here, capacity, id_share });
        (left, held) = (left - here, held + here);
    }
    let of_host: f64 = cluster.tier.iter().map(of_rank).sum::<f64>() * cluster.ranks_per_host as f64;
    Fit { bytes, tiers, missing: left.max(0.0), hosts_needed: (bytes / of_host).ceil() as usize }
}

/// The share of the ids that name the hottest `share` of every table's rows, tables weighed by the bytes that ids read.
fn id_share(workload: &Workload, share: f64) -> f64 {
    if share <= 0.0 || share >= 1.0 {
        return share.clamp(0.0, 1.0);
    }
    let (mut hit, mut all) = (0.0, 0.0);
    for group in &workload.table {
        let weight = group.count as f64 * group.ids * group.dim as f64;
        let rows = group.rows as f64;
        let exponent = workload.zipf_exponent;
        hit += weight * harmonic(rows * share, exponent) / harmonic(rows, exponent);
        all += weight;
    }
    hit / all
}

/// The sum of `k^-s` for `k` from 1 to `n`, which need not be whole.
fn harmonic(n: f64, s: f64) -> f64 {
    let exact = f64::from(EXACT_TERMS).min(n.floor());
    let sum: f64 = (1..=exact as u32).map(|k| f64::from(k).powf(-s)).sum();
    // The rest, from the middle between two terms on.
    let (from, to) = (exact + 0.5, n + 0.5);
    let integral = |x: f64| if (s - 1.0).abs() < 1e-9 { x.ln() } else { x.powf(1.0 - s) / (1.0 - s) };
    sum + (integral(to) - integral(from)).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_harmonic_number_is_the_sum_it_stands_for() {
        for s in [0.0, 0.5, 1.0, 1.05, 2.0] {
            let sum: f64 = (1..=50_000).map(|k| f64::from(k).powf(-s)).sum();
            assert!((harmonic(50_000.0, s) / sum - 1.0).abs() < 1e-6, "{s}");
        }
    }
}
