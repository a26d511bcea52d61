//! Metric multidimensional scaling: points whose distances are as near as possible to given ones.
//!
//! SMACOF: each round moves every point to where a quadratic that lies above the stress has its minimum, so the stress never
//! rises. Beginnings are random and seeded; the best of a few is taken.

use super::{Square, random::Random};

/// Rounds at most, and the relative fall of the stress at which they end.
const ROUNDS_MAX: usize = 300;
const FALL_MIN: f64 = 1e-7;

/// Points, one a feature.
#[derive(Debug, Clone, PartialEq)]
pub struct Points {
    dimensions: usize,
    values: Vec<f64>,
}

impl Points {
    /// Coordinates of every point, one point after the other.
    pub fn new(dimensions: usize, values: Vec<f64>) -> Points {
        assert!(values.len().is_multiple_of(dimensions), "{} coordinates", values.len());
        Points { dimensions, values }
    }

    /// The coordinates of one.
    pub fn of(&self, point: usize) -> &[f64] {
        &self.values[point * self.dimensions..][..self.dimensions]
    }

    /// How many coordinates a point has.
    pub fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// How many points.
    pub fn count(&self) -> usize {
        self.values.len() / self.dimensions
    }

    /// The distance of two.
    pub fn distance(&self, i: usize, j: usize) -> f64 {
        squared(self.of(i), self.of(j)).sqrt()
    }
}

/// The square of a distance.
pub(super) fn squared(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

/// Points for the distances, the best of `restarts` beginnings.
pub fn embed(distances: &Square, dimensions: usize, restarts: usize, seed: u64) -> Points {
    let mut best: Option<(f64, Points)> = None;
    for restart in 0..restarts.max(1) {
        let points = smacof(distances, begin(distances.side(), dimensions, seed, restart as u64));
        let stress = raw_stress(distances, &points);
        if best.as_ref().is_none_or(|(least, _)| stress < *least) {
            best = Some((stress, points));
        }
    }
    best.map_or_else(|| Points::new(dimensions, Vec::new()), |(_, points)| points)
}

/// How far the points' distances are from those wanted, over the size of those wanted (Kruskal's stress).
pub fn stress(distances: &Square, points: &Points) -> f64 {
    let size: f64 = pairs(distances.side()).map(|(i, j)| square(distances.at(i, j))).sum();
    if size > 0.0 { (raw_stress(distances, points) / size).sqrt() } else { 0.0 }
}

fn begin(count: usize, dimensions: usize, seed: u64, restart: u64) -> Points {
    let mut random = Random::new(seed, restart + 1);
    Points::new(dimensions, (0..count * dimensions).map(|_| random.share() - 0.5).collect())
}

fn pairs(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).flat_map(|i| (0..i).map(move |j| (i, j)))
}

fn square(x: f64) -> f64 {
    x * x
}

fn raw_stress(distances: &Square, points: &Points) -> f64 {
    pairs(distances.side()).map(|(i, j)| square(points.distance(i, j) - distances.at(i, j))).sum()
}

fn smacof(distances: &Square, mut points: Points) -> Points {
    let mut stress = raw_stress(distances, &points);
    for _ in 0..ROUNDS_MAX {
        points = majorize(distances, &points);
        let now = raw_stress(distances, &points);
        if stress - now <= FALL_MIN * stress {
            break;
        }
        stress = now;
    }
    points
}

/// One round: Guttman's transform `X ← B(X) X / n`.
fn majorize(distances: &Square, points: &Points) -> Points {
    let (count, dimensions) = (points.count(), points.dimensions());
    let mut moved = vec![0.0; count * dimensions];
    for i in 0..count {
        let to = &mut moved[i * dimensions..][..dimensions];
        for j in (0..count).filter(|j| *j != i) {
            let distance = points.distance(i, j);
            let ratio = if distance > 0.0 { distances.at(i, j) / distance } else { 0.0 };
            for (to, (a, b)) in to.iter_mut().zip(points.of(i).iter().zip(points.of(j))) {
                *to += ratio * (a - b);
            }
        }
        to.iter_mut().for_each(|value| *value /= count as f64);
    }
    Points::new(dimensions, moved)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distances that points of the plane have are found again.
    #[test]
    fn a_plane_is_found_again() {
        let mut random = Random::new(7, 0);
        let plane = Points::new(2, (0..40).map(|_| random.share()).collect());
        let distances = Square::from_fn(20, |i, j| plane.distance(i, j));
        let found = embed(&distances, 2, 8, 1);
        assert!(stress(&distances, &found) < 1e-3, "{}", stress(&distances, &found));
        assert_eq!(embed(&distances, 2, 8, 1), found);
    }

    #[test]
    fn no_round_raises_the_stress() {
        let mut random = Random::new(3, 0);
        let values: Vec<f64> = (0..144).map(|_| random.share()).collect();
        let distances =
            Square::from_fn(12, |i, j| if i == j { 0.0 } else { values[i.max(j) * 12 + i.min(j)] });
        let mut points = begin(12, 3, 5, 0);
        let mut stress = raw_stress(&distances, &points);
        for round in 0..50 {
            points = majorize(&distances, &points);
            let now = raw_stress(&distances, &points);
            assert!(now <= stress * (1.0 + 1e-12), "round {round}: {now} after {stress}");
            stress = now;
        }
    }
}
