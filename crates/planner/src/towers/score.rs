//! How good a partition is, learned or written by hand, and how alike two partitions are.

use serde::Serialize;

use super::{Affinity, TowersError, check_weights};

/// What can be said of a partition.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    /// Mean affinity of pairs in one tower; 0 where no tower has two features.
    pub inside: f64,
    /// Mean affinity of pairs in different towers; 0 with one tower.
    pub across: f64,
    /// Features of every tower.
    pub sizes: Vec<usize>,
    /// The heaviest tower's weight over the mean.
    pub imbalance: f64,
}

/// Scores a partition.
///
/// # Errors
/// When it has other features than the affinities, or a weight is not above 0.
pub fn score(affinity: &Affinity, partition: &[usize], weights: &[f64]) -> Result<Score, TowersError> {
    let features = affinity.features();
    if partition.len() != features {
        return Err(TowersError::FeatureCount { found: partition.len(), wanted: features });
    }
    check_weights(features, weights)?;
    let towers = partition.iter().max().map_or(0, |last| last + 1);
    let mut sums = [(0.0, 0u64); 2];
    for i in 0..features {
        for j in 0..i {
            let side = &mut sums[usize::from(partition[i] != partition[j])];
            *side = (side.0 + affinity.at(i, j), side.1 + 1);
        }
    }
    let [inside, across] = sums.map(|(sum, count)| if count == 0 { 0.0 } else { sum / count as f64 });
    let (mut sizes, mut loads) = (vec![0; towers], vec![0.0; towers]);
    for (feature, &tower) in partition.iter().enumerate() {
        sizes[tower] += 1;
        loads[tower] += weights[feature];
    }
    let mean = loads.iter().sum::<f64>() / towers.max(1) as f64;
    let imbalance = if mean > 0.0 { loads.iter().copied().fold(0.0, f64::max) / mean } else { 1.0 };
    Ok(Score { inside, across, sizes, imbalance })
}

/// How alike two partitions are: 1 for the same, about 0 for unrelated ones (Hubert and Arabie).
///
/// # Panics
/// If they have different numbers of features.
pub fn adjusted_rand_index(one: &[usize], two: &[usize]) -> f64 {
    assert_eq!(one.len(), two.len(), "partitions of different features");
    let sides = [one, two].map(|partition| partition.iter().max().map_or(0, |last| last + 1));
    let mut together = vec![0u64; sides[0] * sides[1]];
    one.iter().zip(two).for_each(|(a, b)| together[a * sides[1] + b] += 1);
    let pairs = |count: u64| (count * count.saturating_sub(1) / 2) as f64;
    let sizes = |partition: &[usize], side: usize| {
        let mut sizes = vec![0u64; side];
        partition.iter().for_each(|tower| sizes[*tower] += 1);
        sizes.into_iter().map(pairs).sum::<f64>()
    };
    let (a, b) = (sizes(one, sides[0]), sizes(two, sides[1]));
    let both: f64 = together.into_iter().map(pairs).sum();
    let all = pairs(one.len() as u64);
    let expected = if all > 0.0 { a * b / all } else { 0.0 };
    let most = 0.5 * (a + b);
    if most == expected { 1.0 } else { (both - expected) / (most - expected) }
}
