//! Which features belong together: the tower partitioner.
//!
//! ```text
//!   pooled vectors of a probe ─► affinity ─► distance ─► points (metric MDS) ─► towers of bounded size ─► swaps
//!                                mean |cos|   1 - a or a    SMACOF                exact assignment
//! ```
//!
//! A *coherent* partition puts features that interact into one tower, where the tower's module sees them together; a
//! *diverse* one spreads similar features, so that each tower sees a bit of everything. Everything here is a function of
//! its input and a seed: the same bytes on every machine.

pub mod affinity;
pub mod assign;
pub mod baselines;
pub mod cluster;
pub mod mds;
mod random;
pub mod score;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use affinity::{Affinity, Measure};
pub use score::{Score, adjusted_rand_index};

/// Of every feature, the number of its tower.
pub type Partition = Vec<usize>;

/// What towers should be like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Features that interact strongly end up together.
    Coherent,
    /// Similar features are spread.
    Diverse,
}

/// A partition that is wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// How many towers.
    pub towers: usize,
    /// What they should be like.
    pub strategy: Strategy,
    /// What is balanced: the weight of each feature, such as 1, its lookups times its dim, or its width.
    pub weights: Vec<f64>,
    /// A tower may be heavier than the mean by this share of it, and always by a part of one feature.
    pub tolerance: f64,
    /// Dimensions of the points that are clustered.
    pub dimensions: usize,
    /// Beginnings that are tried; the best is taken.
    pub restarts: usize,
    /// Decides the beginnings.
    pub seed: u64,
}

/// A partition, and where its features lie.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    /// The towers, numbered in the order of their first features.
    pub partition: Partition,
    /// How good it is.
    pub score: Score,
    /// Points in two dimensions, for a picture.
    pub map: Vec<[f64; 2]>,
    /// How far the map's distances are from those that are wanted: 0 is exact, 1 is no relation.
    pub map_stress: f64,
}

/// Why no partition can be made.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum TowersError {
    /// No tower may be empty.
    #[error("{towers} towers for {features} features: there must be from 1 to {features}")]
    TowerCount {
        /// Asked for.
        towers: usize,
        /// There are.
        features: usize,
    },
    /// A partition of other features.
    #[error("the partition has {found} features, and the affinities are those of {wanted}")]
    FeatureCount {
        /// Given.
        found: usize,
        /// Wanted.
        wanted: usize,
    },
    /// A weight that cannot be balanced.
    #[error("feature number {feature} weighs {weight}: a weight must be above 0")]
    Weight {
        /// Which.
        feature: usize,
        /// Its weight.
        weight: f64,
    },
}

/// Learns towers from affinities.
///
/// # Errors
/// When the numbers of towers, features and weights do not fit.
pub fn propose(affinity: &Affinity, wanted: &Wanted) -> Result<Proposal, TowersError> {
    let features = affinity.features();
    check(features, wanted)?;
    let distances = affinity.distances(wanted.strategy);
    let dimensions = wanted.dimensions.clamp(1, features.saturating_sub(1).max(1));
    let points = mds::embed(&distances, dimensions, wanted.restarts, wanted.seed);
    let capacity = assign::Capacity::new(&wanted.weights, wanted.towers, wanted.tolerance);
    let partition = numbered(&cluster::cluster(&points, &distances, &capacity, wanted));
    let flat = mds::embed(&distances, 2.min(dimensions), wanted.restarts, wanted.seed);
    let map = (0..features).map(|f| [flat.of(f)[0], flat.of(f).get(1).copied().unwrap_or(0.0)]).collect();
    let score = score::score(affinity, &partition, &wanted.weights)?;
    Ok(Proposal { partition, score, map, map_stress: mds::stress(&distances, &flat) })
}

fn check(features: usize, wanted: &Wanted) -> Result<(), TowersError> {
    if wanted.towers == 0 || wanted.towers > features {
        return Err(TowersError::TowerCount { towers: wanted.towers, features });
    }
    check_weights(features, &wanted.weights)
}

/// One weight a feature, all above zero.
pub(crate) fn check_weights(features: usize, weights: &[f64]) -> Result<(), TowersError> {
    if weights.len() != features {
        return Err(TowersError::FeatureCount { found: weights.len(), wanted: features });
    }
    let bad = weights.iter().position(|weight| !weight.is_finite() || *weight <= 0.0);
    bad.map_or(Ok(()), |feature| Err(TowersError::Weight { feature, weight: weights[feature] }))
}

/// The same towers, numbered in the order of their first features.
pub fn numbered(partition: &[usize]) -> Partition {
    let mut order: Vec<usize> = Vec::new();
    partition
        .iter()
        .map(|tower| {
            order.iter().position(|seen| seen == tower).unwrap_or_else(|| {
                order.push(*tower);
                order.len() - 1
            })
        })
        .collect()
}

/// A square table of numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Square {
    side: usize,
    values: Vec<f64>,
}

impl Square {
    /// Every value from its place.
    pub fn from_fn(side: usize, value: impl Fn(usize, usize) -> f64) -> Square {
        let places = (0..side).flat_map(|i| (0..side).map(move |j| (i, j)));
        Square { side, values: places.map(|(i, j)| value(i, j)).collect() }
    }

    /// Rows and columns.
    pub fn side(&self) -> usize {
        self.side
    }

    /// One value.
    pub fn at(&self, i: usize, j: usize) -> f64 {
        self.values[i * self.side + j]
    }

    /// A row.
    pub fn row(&self, i: usize) -> &[f64] {
        &self.values[i * self.side..][..self.side]
    }
}
