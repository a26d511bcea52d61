//! Partitions that learn nothing, to compare with.

use super::{Partition, random::Random};

/// Feature `f` to tower `f` modulo the towers.
pub fn round_robin(features: usize, towers: usize) -> Partition {
    (0..features).map(|feature| feature % towers).collect()
}

/// A seeded shuffle, cut into towers of nearly equal size.
pub fn random(features: usize, towers: usize, seed: u64) -> Partition {
    let mut random = Random::new(seed, 77);
    let mut partition = round_robin(features, towers);
    for last in (1..features).rev() {
        partition.swap(last, random.below(last + 1));
    }
    partition
}

/// The heaviest feature first, each to the lightest tower.
pub fn by_size(weights: &[f64], towers: usize) -> Partition {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]).then(a.cmp(b)));
    let (mut loads, mut partition) = (vec![0.0f64; towers], vec![0; weights.len()]);
    for feature in order {
        let lightest = (0..towers).min_by(|a, b| loads[*a].total_cmp(&loads[*b])).unwrap_or(0);
        loads[lightest] += weights[feature];
        partition[feature] = lightest;
    }
    partition
}
