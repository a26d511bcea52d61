//! Exact AUC and GAUC: samples are held, up to a limit, and sorted when asked.
//!
//! Above its limit AUC falls back to the histogram. GAUC instead drops half of the groups, chosen by the hash of
//! the group, and goes on with the others: the groups that stay are complete, so their GAUC is that of an even
//! sample of all groups.

use campanile_spec::{NO_GROUP, elementary::whole_power};
use serde::{Deserialize, Serialize};

use super::auc::area;
use super::tally::One;
use super::values::{AucKind, MetricValues, finite};

/// Samples up to which AUC is exact, by default: 12 bytes each.
pub const AUC_SAMPLES_MAX: usize = 1 << 24;
/// Samples up to which GAUC looks at all groups, by default: 24 bytes each.
pub const GAUC_SAMPLES_MAX: usize = 1 << 22;

/// A sample as it is held; the logit is a key whose order is the logit's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Held {
    rank: u32,
    /// Bits of the label.
    label: u32,
    /// Bits of the weight.
    weight: u32,
}

/// Samples held for exact AUC and GAUC.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ranking {
    auc_samples_max: usize,
    gauc_samples_max: usize,
    /// `None` once there were too many.
    all: Option<Vec<Held>>,
    grouped: Vec<(u64, Held)>,
    /// How often half of the groups were dropped.
    halvings: u32,
}

impl Held {
    fn of(one: &One) -> Held {
        // Adding zero makes -0 and 0 equal; flipping bits makes the order of floats that of integers.
        let bits = (one.logit + 0.0).to_bits();
        let rank = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
        Held { rank, label: (one.label as f32).to_bits(), weight: (one.weight as f32).to_bits() }
    }

    /// Positive and negative weight.
    fn weights(&self) -> (f64, f64) {
        let (label, weight) = (f64::from(f32::from_bits(self.label)), f64::from(f32::from_bits(self.weight)));
        (weight * label, weight * (1.0 - label))
    }
}

impl Ranking {
    /// Nothing held yet.
    pub fn new(auc_samples_max: usize, gauc_samples_max: usize) -> Ranking {
        Ranking { auc_samples_max, gauc_samples_max, all: Some(Vec::new()), grouped: Vec::new(), halvings: 0 }
    }

    /// Adds a sample, of a group if it has one: samples without are not one group.
    pub fn add(&mut self, one: &One, group: Option<u64>) {
        let held = Held::of(one);
        match &mut self.all {
            Some(all) if all.len() < self.auc_samples_max => all.push(held),
            _ => self.all = None,
        }
        let Some(group) = group.filter(|&group| group != NO_GROUP && kept(group, self.halvings)) else {
            return;
        };
        self.grouped.push((group, held));
        while self.grouped.len() > self.gauc_samples_max {
            self.halvings += 1;
            let halvings = self.halvings;
            self.grouped.retain(|&(group, _)| kept(group, halvings));
        }
    }

    /// Puts the exact AUC and the GAUC into `values`.
    pub fn improve(&self, values: &mut MetricValues) {
        if let Some(all) = &self.all {
            let mut sorted = all.clone();
            sorted.sort_unstable_by_key(|held| (held.rank, held.label, held.weight));
            values.auc = exact_auc(&sorted);
            values.auc_kind = AucKind::Exact;
        }
        let mut sorted = self.grouped.clone();
        sorted.sort_unstable_by_key(|(group, held)| (*group, held.rank, held.label, held.weight));
        let (mut sum, mut weight) = (0.0, 0.0);
        for group in sorted.chunk_by(|a, b| a.0 == b.0) {
            let members: Vec<Held> = group.iter().map(|&(_, held)| held).collect();
            if let Some(auc) = exact_auc(&members) {
                let impressions: f64 =
                    members.iter().map(|held| f64::from(f32::from_bits(held.weight))).sum();
                sum += impressions * auc;
                weight += impressions;
                values.gauc_groups += 1;
            }
        }
        values.gauc = finite(sum / weight);
        values.gauc_group_share =
            if self.grouped.is_empty() { 0.0 } else { whole_power(0.5, u64::from(self.halvings)) };
    }
}

/// The AUC of samples by rising rank; equal ranks are tied.
fn exact_auc(sorted: &[Held]) -> Option<f64> {
    area(sorted.chunk_by(|a, b| a.rank == b.rank).map(|tied| {
        tied.iter().map(Held::weights).fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }))
}

/// Whether a group is still looked at after so many halvings.
fn kept(group: u64, halvings: u32) -> bool {
    // The finaliser of splitmix64: every bit of the group decides.
    let mut hash = group.wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (hash ^ (hash >> 31)).trailing_zeros() >= halvings
}
