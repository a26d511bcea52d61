//! Features to towers at the least cost, no tower too full and none too empty: exact, by shortest augmenting paths.
//!
//! Features come one unit at a time. A unit goes to the tower where it costs least in the end: that tower may be full, and
//! then hands one of its units on to another, and so on to one with room. Each such path is a shortest one, so after every
//! unit the assignment is the cheapest of those that there are (successive shortest paths of a minimum-cost flow).
//!
//! With equal weights a feature is one unit, and the result is exact. With unequal ones a feature is several units, which a
//! few features (fewer than there are towers) then have in two towers; these go whole to where most of them is, and moves
//! and swaps at the least cost repair what that overfills. Balancing unequal weights exactly is a hard problem.

use super::Square;

/// Units of all features together, at most, when weights differ.
const UNITS_MAX: f64 = 2048.0;

/// How full towers may be.
#[derive(Debug, Clone, PartialEq)]
pub struct Capacity {
    towers: usize,
    /// Of every feature.
    units: Vec<u32>,
    /// Least and most units of a tower.
    least: u32,
    most: u32,
}

impl Capacity {
    /// For features of these weights. A tower holds the mean weight, give or take `tolerance` of it and the rest of a
    /// division: 26 equal features in 8 towers are 3 or 4 each with no tolerance at all.
    pub fn new(weights: &[f64], towers: usize, tolerance: f64) -> Capacity {
        let total: f64 = weights.iter().sum();
        let equal = weights.iter().all(|weight| *weight == weights[0]);
        let unit = if equal { weights.first().copied().unwrap_or(1.0) } else { total / UNITS_MAX };
        let units: Vec<u32> = weights.iter().map(|weight| ((weight / unit).round() as u32).max(1)).collect();
        let mean = f64::from(units.iter().sum::<u32>()) / towers as f64;
        let spread = mean * tolerance.max(0.0);
        let largest = units.iter().copied().max().unwrap_or(0);
        let least = if equal { ((mean - spread).floor() as u32).max(1) } else { 1 };
        Capacity { towers, units, least, most: ((mean + spread).ceil() as u32).max(largest) }
    }

    /// How many towers.
    pub fn towers(&self) -> usize {
        self.towers
    }

    /// The load of every tower, in units.
    pub fn loads(&self, partition: &[usize]) -> Vec<u32> {
        let mut loads = vec![0; self.towers];
        partition.iter().zip(&self.units).for_each(|(tower, units)| loads[*tower] += units);
        loads
    }

    /// Whether no tower is too full or too empty.
    pub fn holds(&self, partition: &[usize]) -> bool {
        self.loads(partition).iter().all(|load| (self.least..=self.most).contains(load))
    }

    /// By how much towers are too full or too empty, in all.
    pub(super) fn excess(&self, loads: &[u32]) -> u32 {
        let one = |load: &u32| load.saturating_sub(self.most) + self.least.saturating_sub(*load);
        loads.iter().map(one).sum()
    }

    /// Units of a feature.
    pub(super) fn units(&self, feature: usize) -> u32 {
        self.units[feature]
    }

    fn is_equal(&self) -> bool {
        self.units.iter().all(|units| *units == 1)
    }
}

/// Of every feature its tower, where `cost(feature, tower)` is summed over a feature's units and is least.
pub fn assign(capacity: &Capacity, cost: &dyn Fn(usize, usize) -> f64) -> Vec<usize> {
    let (features, towers) = (capacity.units.len(), capacity.towers);
    let costs: Vec<Vec<f64>> = (0..features).map(|f| (0..towers).map(|t| cost(f, t)).collect()).collect();
    let mut flow = Flow { capacity, costs, units: vec![vec![0; towers]; features], loads: vec![0; towers] };
    for feature in 0..features {
        for _ in 0..capacity.units[feature] {
            flow.add_unit(feature);
        }
    }
    let most = |units: &Vec<u32>| {
        let best = units.iter().copied().max().unwrap_or(0);
        units.iter().position(|u| *u == best).unwrap_or(0)
    };
    let mut partition: Vec<usize> = flow.units.iter().map(most).collect();
    if !capacity.is_equal() {
        repair(capacity, &flow.costs, &mut partition);
    }
    partition
}

struct Flow<'a> {
    capacity: &'a Capacity,
    costs: Vec<Vec<f64>>,
    /// Of every feature, its units in every tower.
    units: Vec<Vec<u32>>,
    loads: Vec<u32>,
}

impl Flow<'_> {
    /// How willingly a tower takes one more: first those that are too empty, then those with room; a full one does not.
    fn welcome(&self, tower: usize) -> u8 {
        match self.loads[tower] {
            load if load < self.capacity.least => 0,
            load if load < self.capacity.most => 1,
            _ => 2,
        }
    }

    fn add_unit(&mut self, feature: usize) {
        let towers = self.capacity.towers;
        // The cheapest unit that each tower could hand on to each other one.
        let mut hand_on = vec![vec![(f64::INFINITY, usize::MAX); towers]; towers];
        for (other, units) in self.units.iter().enumerate() {
            for from in (0..towers).filter(|tower| units[*tower] > 0) {
                for (to, best) in hand_on[from].iter_mut().enumerate() {
                    let change = self.costs[other][to] - self.costs[other][from];
                    if to != from && change < best.0 {
                        *best = (change, other);
                    }
                }
            }
        }
        // Shortest ways from the new unit to every tower (Bellman and Ford; costs may be below zero, rounds may not).
        let mut ways: Vec<(f64, Option<usize>)> =
            self.costs[feature].iter().map(|cost| (*cost, None)).collect();
        for _ in 0..towers {
            let mut shorter = false;
            for from in 0..towers {
                for to in 0..towers {
                    let length = ways[from].0 + hand_on[from][to].0;
                    if length + 1e-12 < ways[to].0 && !passes(&ways, from, to) {
                        ways[to] = (length, Some(from));
                        shorter = true;
                    }
                }
            }
            if !shorter {
                break;
            }
        }
        // Any cost is less than leaving a tower too empty, and no cost is worth overfilling one.
        let better = |a: &usize, b: &usize| {
            self.welcome(*a).cmp(&self.welcome(*b)).then(ways[*a].0.total_cmp(&ways[*b].0))
        };
        let Some(end) = (0..towers).min_by(better) else { return };
        self.loads[end] += 1;
        let mut to = end;
        while let Some(from) = ways[to].1 {
            let moved = hand_on[from][to].1;
            self.units[moved][from] -= 1;
            self.units[moved][to] += 1;
            to = from;
        }
        self.units[feature][to] += 1;
    }
}

/// Whether the way to `from` passes `to`: rounding must not close a ring.
fn passes(ways: &[(f64, Option<usize>)], from: usize, to: usize) -> bool {
    let mut at = Some(from);
    while let Some(tower) = at {
        if tower == to {
            return true;
        }
        at = ways[tower].1;
    }
    false
}

/// Moves and swaps, the cheapest first for what they repair, until no tower is too full or nothing helps.
fn repair(capacity: &Capacity, costs: &[Vec<f64>], partition: &mut [usize]) {
    for _ in 0..partition.len() * capacity.towers {
        let loads = capacity.loads(partition);
        let excess = capacity.excess(&loads);
        if excess == 0 {
            return;
        }
        let mut best: Option<(f64, Vec<(usize, usize)>)> = None;
        for change in changes(partition, capacity.towers) {
            let mut loads = loads.clone();
            let mut price = 0.0;
            for &(feature, to) in &change {
                loads[partition[feature]] -= capacity.units[feature];
                loads[to] += capacity.units[feature];
                let units = f64::from(capacity.units[feature]);
                price += units * (costs[feature][to] - costs[feature][partition[feature]]);
            }
            let after = capacity.excess(&loads);
            if after < excess {
                let value = price / f64::from(excess - after);
                if best.as_ref().is_none_or(|(least, _)| value < *least) {
                    best = Some((value, change));
                }
            }
        }
        let Some((_, change)) = best else { return };
        change.into_iter().for_each(|(feature, to)| partition[feature] = to);
    }
}

/// Every move of one feature and every swap of two.
pub(super) fn changes(partition: &[usize], towers: usize) -> Vec<Vec<(usize, usize)>> {
    let mut changes = Vec::new();
    for feature in 0..partition.len() {
        changes.extend((0..towers).filter(|to| *to != partition[feature]).map(|to| vec![(feature, to)]));
        for other in 0..feature {
            if partition[other] != partition[feature] {
                changes.push(vec![(feature, partition[other]), (other, partition[feature])]);
            }
        }
    }
    changes
}

/// The cost of a partition: for every feature its units times its cost there.
pub fn cost_of(capacity: &Capacity, partition: &[usize], cost: &Square) -> f64 {
    partition.iter().enumerate().map(|(f, t)| f64::from(capacity.units[f]) * cost.at(f, *t)).sum()
}
