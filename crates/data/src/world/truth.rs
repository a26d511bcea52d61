//! The true logit of an impression.
//!
//! Every id has a hidden effect and a hidden vector, drawn from (seed, feature, row); a bag has the mean of its
//! ids'. The click logit is
//!
//! ```text
//!   bias of the domain
//!   + main    sum over features of the effects
//!   + inside  sum over hidden groups, over pairs of features in the group, of the dot product of their vectors
//!   + across  the same over a few pairs from different groups
//!   + dense   a . x + c . (x^2 - 1)
//!   + domain  sum over features of an effect that the id has in this domain only
//!   + drift   a walk for all, a walk of the domain, and the ids' walks
//! ```
//!
//! The first four parts are measured once and scaled to the deviations that the world asks for, and the biases
//! are solved for the click rates (`calibrate`), so the knobs mean what they say for any shape of features.

use campanile_spec::world::WorldSpec;

use super::impressions::Impressions;
use super::random::{FineWalk, draw, four, key_for, normal, walk};

/// Factors of a hidden vector: a factorization machine with this many contains the `inside` part of one group.
pub const HIDDEN_RANK: usize = 4;

/// Impressions whose vectors are held at a time; all their features then fit in the second-level cache.
const BLOCK: usize = 256;

/// The scaled parts of the click logit.
pub const PART_COUNT: usize = 4;
/// Place of the main effects.
pub const MAIN: usize = 0;
/// Place of the interactions inside groups.
pub const INSIDE: usize = 1;
/// Place of the interactions across groups.
pub const ACROSS: usize = 2;
/// Place of the dense effects.
pub const DENSE: usize = 3;

/// What the logit of one impression is made of, before scaling.
#[derive(Debug, Clone, Copy, Default)]
pub struct Parts {
    /// Main, inside, across, dense.
    pub scaled: [f32; PART_COUNT],
    /// Domain effects and drift, which need no scaling.
    pub plain: f32,
    /// The ids' effects on the conversion.
    pub conversion: f32,
}

/// The hidden truth of a world.
#[derive(Debug, Clone)]
pub struct Truth {
    features: Vec<FeatureTruth>,
    /// Features of each hidden group.
    pub groups: Vec<Vec<usize>>,
    /// Pairs of features of different groups that interact.
    pub across: Vec<(usize, usize)>,
    dense_linear: Vec<f32>,
    dense_curve: Vec<f32>,
    global: FineWalk,
    segments: Vec<FineWalk>,
    drift: [f32; 3],
    domain_strength: f32,
    has_conversion: bool,
}

#[derive(Debug, Clone)]
struct FeatureTruth {
    effect: u64,
    vector: u64,
    conversion: u64,
    item_walk: u64,
    /// One per domain.
    domain: Vec<u64>,
}

impl Truth {
    /// The truth of a checked world.
    pub fn new(spec: &WorldSpec, seed: u64) -> Truth {
        let domain_count = spec.domains_or_one().len();
        let keys = key_for(seed, "truth");
        let feature = |f: usize| {
            let key = draw(keys, f as u64);
            FeatureTruth {
                effect: draw(key, 0),
                vector: draw(key, 1),
                conversion: draw(key, 2),
                item_walk: draw(key, 3),
                domain: (0..domain_count).map(|domain| draw(key, 4 + domain as u64)).collect(),
            }
        };
        let groups = hidden_groups(spec, key_for(seed, "groups"));
        let across = pairs_across(spec, &groups, key_for(seed, "across"));
        // Per id, so that the sum over all features has the deviation asked for.
        let per_feature = 1.0 / (spec.sparse_count as f64).sqrt();
        let drift = [spec.drift.global, spec.drift.segment, spec.drift.item * per_feature];
        let walks = key_for(seed, "drift");
        let (dense_linear, dense_curve) = dense_effects(spec, key_for(seed, "dense"));
        Truth {
            features: (0..spec.sparse_count).map(feature).collect(),
            groups,
            across,
            dense_linear,
            dense_curve,
            global: FineWalk::new(draw(walks, 0)),
            segments: (0..domain_count).map(|domain| FineWalk::new(draw(walks, 1 + domain as u64))).collect(),
            drift: drift.map(|knob| knob as f32),
            domain_strength: (spec.signal.domain * per_feature) as f32,
            has_conversion: spec.conversion.is_some(),
        }
    }

    /// The parts of every impression's logit.
    pub fn parts(&self, seen: &Impressions) -> Vec<Parts> {
        let count = seen.keys.len();
        let mut parts = vec![Parts::default(); count];
        let mut vectors = vec![[0f32; HIDDEN_RANK]; self.features.len() * BLOCK];
        for first in (0..count).step_by(BLOCK) {
            let block = first..count.min(first + BLOCK);
            for feature in 0..self.features.len() {
                let vectors = &mut vectors[feature * BLOCK..][..BLOCK];
                self.add_feature(feature, seen, first, &mut parts[block.clone()], vectors);
            }
            self.add_interactions(&vectors, &mut parts[block.clone()]);
        }
        self.add_dense(seen, &mut parts);
        self.add_shared_drift(seen, &mut parts);
        parts
    }

    /// Adds what single ids of a feature do, and leaves the bags' vectors.
    fn add_feature(
        &self,
        feature: usize,
        seen: &Impressions,
        first: usize,
        parts: &mut [Parts],
        vectors: &mut [[f32; HIDDEN_RANK]],
    ) {
        let truth = &self.features[feature];
        let offsets = &seen.offsets[feature * seen.keys.len() + first..];
        for (sample, (parts, vector)) in parts.iter_mut().zip(vectors).enumerate() {
            let bag = &seen.rows[offsets[sample] as usize..offsets[sample + 1] as usize];
            let (mut effect, mut conversion, mut plain) = (0f32, 0f32, 0f32);
            *vector = [0.0; HIDDEN_RANK];
            for &row in bag {
                let row = u64::from(row);
                effect += normal(draw(truth.effect, row));
                let own = four(draw(truth.vector, row));
                for (sum, value) in vector.iter_mut().zip(own) {
                    *sum += value;
                }
                if self.has_conversion {
                    conversion += normal(draw(truth.conversion, row));
                }
                if self.domain_strength > 0.0 {
                    let key = truth.domain[seen.domains[first + sample] as usize];
                    plain += self.domain_strength * normal(draw(key, row));
                }
                if self.drift[2] > 0.0 {
                    let moment = seen.moments[first + sample] as f32;
                    plain += self.drift[2] * walk(draw(truth.item_walk, row), moment);
                }
            }
            let mean = if bag.len() > 1 { 1.0 / bag.len() as f32 } else { 1.0 };
            parts.scaled[MAIN] += effect * mean;
            parts.conversion += conversion * mean;
            parts.plain += plain * mean;
            if bag.len() > 1 {
                vector.iter_mut().for_each(|value| *value *= mean);
            }
        }
    }

    fn add_interactions(&self, vectors: &[[f32; HIDDEN_RANK]], parts: &mut [Parts]) {
        for group in self.groups.iter().filter(|group| group.len() > 1) {
            for (sample, parts) in parts.iter_mut().enumerate() {
                // The sum over pairs is half of (square of the sum - sum of the squares).
                let (mut sum, mut squares) = ([0f32; HIDDEN_RANK], 0f32);
                for &feature in group {
                    let vector = &vectors[feature * BLOCK + sample];
                    for (sum, value) in sum.iter_mut().zip(vector) {
                        *sum += value;
                    }
                    squares += dot(vector, vector);
                }
                parts.scaled[INSIDE] += 0.5 * (dot(&sum, &sum) - squares);
            }
        }
        for &(a, b) in &self.across {
            for (sample, parts) in parts.iter_mut().enumerate() {
                parts.scaled[ACROSS] += dot(&vectors[a * BLOCK + sample], &vectors[b * BLOCK + sample]);
            }
        }
    }

    fn add_dense(&self, seen: &Impressions, parts: &mut [Parts]) {
        let width = self.dense_linear.len();
        if width == 0 {
            return;
        }
        for (parts, inputs) in parts.iter_mut().zip(seen.dense.chunks_exact(width)) {
            for ((&x, &slope), &bend) in inputs.iter().zip(&self.dense_linear).zip(&self.dense_curve) {
                parts.scaled[DENSE] += slope * x + bend * (x * x - 1.0);
            }
        }
    }

    fn add_shared_drift(&self, seen: &Impressions, parts: &mut [Parts]) {
        let [global, segment, _] = self.drift;
        if global == 0.0 && segment == 0.0 {
            return;
        }
        for ((parts, &moment), &domain) in parts.iter_mut().zip(&seen.moments).zip(&seen.domains) {
            let moment = moment as f32;
            parts.plain +=
                global * self.global.at(moment) + segment * self.segments[domain as usize].at(moment);
        }
    }
}

#[inline(always)]
fn dot(a: &[f32; HIDDEN_RANK], b: &[f32; HIDDEN_RANK]) -> f32 {
    (a[0] * b[0] + a[1] * b[1]) + (a[2] * b[2] + a[3] * b[3])
}

/// Features in a seeded order, cut into groups as equal as can be; inside a group they are sorted.
fn hidden_groups(spec: &WorldSpec, key: u64) -> Vec<Vec<usize>> {
    let (features, groups) = (spec.sparse_count, spec.hidden_groups);
    let mut order: Vec<usize> = (0..features).collect();
    order.sort_by_key(|&feature| (draw(key, feature as u64), feature));
    let cut = |group: usize| {
        let mut members = order[features * group / groups..features * (group + 1) / groups].to_vec();
        members.sort_unstable();
        members
    };
    (0..groups).map(cut).collect()
}

/// The seeded choice of pairs whose features stand in different groups.
fn pairs_across(spec: &WorldSpec, groups: &[Vec<usize>], key: u64) -> Vec<(usize, usize)> {
    let mut group_of = vec![0; spec.sparse_count];
    for (group, members) in groups.iter().enumerate() {
        members.iter().for_each(|&feature| group_of[feature] = group);
    }
    let features = spec.sparse_count;
    let mut pairs: Vec<(usize, usize)> = (0..features)
        .flat_map(|a| (a + 1..features).map(move |b| (a, b)))
        .filter(|&(a, b)| group_of[a] != group_of[b])
        .collect();
    pairs.sort_by_key(|&(a, b)| (draw(key, (a * features + b) as u64), a, b));
    pairs.truncate(spec.across_pairs);
    pairs.sort_unstable();
    pairs
}

/// Slopes and bends of the dense inputs, with the asked share of the variance in the bends.
fn dense_effects(spec: &WorldSpec, key: u64) -> (Vec<f32>, Vec<f32>) {
    // Variance of x^2 for the sum of four uniforms that `normal` is.
    const SQUARE_VARIANCE: f64 = 1.7;
    let count = spec.dense_count as u64;
    let raw = |kind: u64| (0..count).map(move |input| f64::from(normal(draw(key, 2 * input + kind))));
    let shrink = |kind: u64, variance: f64| {
        let norm: f64 = raw(kind).map(|value| value * value).sum::<f64>();
        let factor = if norm > 0.0 { (variance / norm).sqrt() } else { 0.0 };
        raw(kind).map(|value| (value * factor) as f32).collect()
    };
    (shrink(0, 1.0 - spec.signal.dense_curve), shrink(1, spec.signal.dense_curve / SQUARE_VARIANCE))
}
