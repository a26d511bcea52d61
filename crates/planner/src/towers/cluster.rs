//! Points to towers: k-means whose assignment step is exact and bounded, then swaps on the distances themselves.
//!
//! k-means sees points, which follow the wanted distances only as well as their dimensions allow. So the best clustering is
//! refined on the distances: any move or swap that brings features of one tower closer together, and keeps towers within
//! their capacity, is made, the best one first, until none is left.

use super::{
    Partition, Square, Wanted,
    assign::{Capacity, assign, changes},
    mds::{Points, squared},
    random::Random,
};

/// Rounds of one k-means at most.
const ROUNDS_MAX: usize = 100;

/// The best of some beginnings, by the mean distance inside towers.
pub fn cluster(points: &Points, distances: &Square, capacity: &Capacity, wanted: &Wanted) -> Partition {
    let mut best: Option<(f64, Partition)> = None;
    for restart in 0..wanted.restarts.max(1) {
        let mut partition = k_means(points, capacity, wanted.seed, restart as u64);
        refine(&mut partition, distances, capacity);
        let cost = inside(&partition, distances);
        if best.as_ref().is_none_or(|(least, _)| cost < least - 1e-12) {
            best = Some((cost, partition));
        }
    }
    best.map_or_else(Vec::new, |(_, partition)| partition)
}

/// The sum of distances of all pairs in one tower.
pub fn inside(partition: &[usize], distances: &Square) -> f64 {
    let pairs = (0..partition.len()).flat_map(|i| (0..i).map(move |j| (i, j)));
    pairs.filter(|(i, j)| partition[*i] == partition[*j]).map(|(i, j)| distances.at(i, j)).sum()
}

fn k_means(points: &Points, capacity: &Capacity, seed: u64, restart: u64) -> Partition {
    let towers = capacity.towers();
    let mut centres = first_centres(points, towers, &mut Random::new(seed, 1000 + restart));
    let mut partition = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let next = assign(capacity, &|feature, tower| squared(points.of(feature), &centres[tower]));
        if next == partition {
            break;
        }
        partition = next;
        for (tower, centre) in centres.iter_mut().enumerate() {
            let own: Vec<usize> =
                (0..partition.len()).filter(|feature| partition[*feature] == tower).collect();
            for (dimension, value) in centre.iter_mut().enumerate() {
                let sum: f64 = own.iter().map(|feature| points.of(*feature)[dimension]).sum();
                *value = if own.is_empty() { *value } else { sum / own.len() as f64 };
            }
        }
    }
    partition
}

/// Points far from those chosen before are likelier (k-means++).
fn first_centres(points: &Points, towers: usize, random: &mut Random) -> Vec<Vec<f64>> {
    let mut centres: Vec<Vec<f64>> = vec![points.of(random.below(points.count())).to_vec()];
    while centres.len() < towers {
        let far = |point: usize| {
            centres.iter().map(|centre| squared(points.of(point), centre)).fold(f64::INFINITY, f64::min)
        };
        let weights: Vec<f64> = (0..points.count()).map(far).collect();
        let mut left = random.share() * weights.iter().sum::<f64>();
        let chosen = weights.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        centres.push(points.of(chosen.unwrap_or(centres.len() % points.count())).to_vec());
    }
    centres
}

/// The best move or swap, again and again.
fn refine(partition: &mut [usize], distances: &Square, capacity: &Capacity) {
    let mut loads = capacity.loads(partition);
    for _ in 0..partition.len() * partition.len() {
        let excess = capacity.excess(&loads);
        let mut best: Option<(f64, Vec<(usize, usize)>)> = None;
        for change in changes(partition, capacity.towers()) {
            let gain = gain(partition, distances, &change);
            if gain > best.as_ref().map_or(1e-9, |(gain, _)| *gain)
                && capacity.excess(&after(&loads, partition, capacity, &change)) <= excess
            {
                best = Some((gain, change));
            }
        }
        let Some((_, change)) = best else { return };
        loads = after(&loads, partition, capacity, &change);
        change.into_iter().for_each(|(feature, to)| partition[feature] = to);
    }
}

fn after(loads: &[u32], partition: &[usize], capacity: &Capacity, change: &[(usize, usize)]) -> Vec<u32> {
    let mut loads = loads.to_vec();
    for &(feature, to) in change {
        loads[partition[feature]] -= capacity.units(feature);
        loads[to] += capacity.units(feature);
    }
    loads
}

/// By how much the sum inside towers falls.
fn gain(partition: &[usize], distances: &Square, change: &[(usize, usize)]) -> f64 {
    let to_tower = |feature: usize, tower: usize| -> f64 {
        let row = distances.row(feature).iter().zip(partition).enumerate();
        row.filter(|(other, (_, at))| *other != feature && **at == tower).map(|(_, (d, _))| d).sum()
    };
    let moved =
        |&(feature, to): &(usize, usize)| to_tower(feature, partition[feature]) - to_tower(feature, to);
    let single: f64 = change.iter().map(moved).sum();
    match change {
        // Each was counted as if the other stayed where the first goes.
        [(a, _), (b, _)] => single + 2.0 * distances.at(*a, *b),
        _ => single,
    }
}
