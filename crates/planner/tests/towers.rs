//! The tower partitioner: exactness against trying everything, limits that hold, and planted groups that are found.

use campanile_planner::towers::{
    Affinity, Square, Strategy, TowersError, Wanted, adjusted_rand_index,
    affinity::{Measure, Meter},
    assign::{Capacity, assign, cost_of},
    baselines, numbered, propose,
    score::score,
};
use proptest::prelude::*;

fn wanted(features: usize, towers: usize) -> Wanted {
    Wanted {
        towers,
        strategy: Strategy::Coherent,
        weights: vec![1.0; features],
        tolerance: 0.0,
        dimensions: 8,
        restarts: 8,
        seed: 1,
    }
}

/// Numbers from a seed, from 0 to 1.
fn noise(seed: u64, place: usize) -> f64 {
    let mixed =
        (place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 11) as f64 / (1u64 << 53) as f64
}

/// Affinities of planted groups: higher by `signal` inside, with noise of `spread` everywhere.
fn planted(groups: &[usize], signal: f64, spread: f64, seed: u64) -> Affinity {
    Affinity::new(Square::from_fn(groups.len(), |i, j| {
        let inside = if groups[i] == groups[j] { signal } else { 0.0 };
        0.2 + inside + spread * noise(seed, i.max(j) * groups.len() + i.min(j))
    }))
}

/// Every partition that holds, tried.
fn cheapest(capacity: &Capacity, cost: &Square, features: usize) -> f64 {
    let towers = capacity.towers();
    let count = towers.pow(features as u32);
    let partition =
        |number: usize| (0..features).map(|f| number / towers.pow(f as u32) % towers).collect::<Vec<_>>();
    let holding = (0..count).map(partition).filter(|partition| capacity.holds(partition));
    holding.map(|partition| cost_of(capacity, &partition, cost)).fold(f64::INFINITY, f64::min)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// With equal weights no partition within the limits is cheaper.
    #[test]
    fn the_assignment_is_the_cheapest(
        features in 1usize..8,
        towers in 1usize..4,
        tolerance in prop_oneof![Just(0.0), Just(0.5)],
        costs in prop::collection::vec(0.0f64..1.0, 32),
    ) {
        prop_assume!(towers <= features);
        let capacity = Capacity::new(&vec![1.0; features], towers, tolerance);
        let cost = Square::from_fn(8, |f, t| costs[(f * 4 + t % 4) % 32]);
        let found = assign(&capacity, &|feature, tower| cost.at(feature, tower));
        prop_assert!(capacity.holds(&found), "{found:?} in {capacity:?}");
        let best = cheapest(&capacity, &cost, features);
        prop_assert!((cost_of(&capacity, &found, &cost) - best).abs() < 1e-9, "{found:?}, best {best}");
    }

    /// Unequal weights: no tower is further above the mean than the heaviest feature and the tolerance explain.
    #[test]
    fn unequal_weights_are_balanced(
        weights in prop::collection::vec(0.1f64..3.0, 6..30),
        towers in 2usize..6,
        seed in 0u64..50,
    ) {
        let (features, affinity) = (weights.len(), planted(&vec![0; weights.len()], 0.0, 0.5, seed));
        let wanted = Wanted { weights: weights.clone(), tolerance: 0.1, ..wanted(features, towers) };
        let found = propose(&affinity, &wanted).unwrap();
        let mean = weights.iter().sum::<f64>() / towers as f64;
        let heaviest = weights.iter().copied().fold(0.0, f64::max);
        prop_assert!(found.score.imbalance * mean <= 1.1 * mean + heaviest, "{:?}", found.score);
        prop_assert_eq!(propose(&affinity, &wanted).unwrap(), found);
    }

    /// Sizes differ by one at most, whatever the affinities; and every tower has a feature.
    #[test]
    fn equal_weights_are_dealt_evenly(features in 1usize..30, towers in 1usize..9, seed in 0u64..50, diverse: bool) {
        prop_assume!(towers <= features);
        let affinity = planted(&vec![0; features], 0.0, 0.8, seed);
        let strategy = if diverse { Strategy::Diverse } else { Strategy::Coherent };
        let found = propose(&affinity, &Wanted { strategy, restarts: 2, ..wanted(features, towers) }).unwrap();
        let (least, most) = (found.score.sizes.iter().min().unwrap(), found.score.sizes.iter().max().unwrap());
        prop_assert!(most - least <= 1 && found.score.sizes.len() == towers, "{:?}", found.score.sizes);
        prop_assert_eq!(&numbered(&found.partition), &found.partition);
    }

    /// The order in which features are named changes nothing but the order.
    #[test]
    fn planted_groups_are_found(seed in 0u64..200) {
        let groups: Vec<usize> = (0..26).map(|f| (f * 7 + 3) % 26 % 8).collect();
        let found = propose(&planted(&groups, 0.15, 0.1, seed), &wanted(26, 8)).unwrap();
        prop_assert_eq!(adjusted_rand_index(&found.partition, &groups), 1.0);
    }

    #[test]
    fn the_index_knows_equal_from_unrelated(one in prop::collection::vec(0usize..4, 2..40), shift in 1usize..4) {
        let renamed: Vec<usize> = one.iter().map(|tower| (tower + shift) % 4).collect();
        prop_assert_eq!(adjusted_rand_index(&one, &renamed), 1.0);
        let other: Vec<usize> = (0..one.len()).map(|f| f % 2).collect();
        let (there, back) = (adjusted_rand_index(&one, &other), adjusted_rand_index(&other, &one));
        prop_assert!((there - back).abs() < 1e-12 && there <= 1.0);
    }
}

/// A worked example of the index, from its paper's formula.
#[test]
fn the_index_of_a_small_example() {
    assert!((adjusted_rand_index(&[0, 0, 0, 1, 1, 1], &[0, 0, 1, 1, 2, 2]) - 0.24242424).abs() < 1e-6);
}

#[test]
fn learned_towers_are_better_inside_than_towers_that_learned_nothing() {
    let groups: Vec<usize> = (0..24).map(|f| f * 5 % 24 / 4).collect();
    let affinity = planted(&groups, 0.2, 0.2, 3);
    let weights = vec![1.0; 24];
    let of = |partition: &[usize]| score(&affinity, partition, &weights).unwrap();
    let coherent = propose(&affinity, &wanted(24, 6)).unwrap();
    let diverse = propose(&affinity, &Wanted { strategy: Strategy::Diverse, ..wanted(24, 6) }).unwrap();
    for other in [baselines::round_robin(24, 6), baselines::random(24, 6, 1), baselines::by_size(&weights, 6)]
    {
        let other = of(&other);
        assert!(other.sizes.iter().all(|size| *size == 4) && other.imbalance == 1.0);
        assert!(coherent.score.inside > other.inside && diverse.score.inside < other.inside, "{other:?}");
    }
    assert_eq!(of(&groups), coherent.score, "a partition written by hand is scored the same way");
}

#[test]
fn heavy_features_go_first_to_the_lightest() {
    assert_eq!(baselines::by_size(&[1.0, 5.0, 2.0, 4.0, 2.0], 2), [1, 0, 1, 1, 0]);
    assert_eq!(baselines::round_robin(5, 2), [0, 1, 0, 1, 0]);
}

#[test]
fn affinity_is_the_mean_absolute_cosine() {
    let mut meter = Meter::new(3, Measure::Cosine);
    meter.add(&[1.0, 0.0, 0.0, 2.0, 3.0, 3.0], 2);
    meter.add(&[1.0, 0.0, -4.0, 0.0, 0.0, 0.0], 2); // The third is an empty bag.
    let affinity = meter.finish();
    let root = 0.5f64.sqrt();
    for (i, j, value) in [(0, 0, 1.0), (0, 1, 0.5), (1, 0, 0.5), (0, 2, root), (1, 2, root)] {
        assert!((affinity.at(i, j) - value).abs() < 1e-12, "{i}, {j}: {}", affinity.at(i, j));
    }
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    let affinity = planted(&[0, 0, 1], 0.1, 0.0, 1);
    let error = |wanted: &Wanted| propose(&affinity, wanted).unwrap_err();
    assert_eq!(error(&wanted(3, 4)).to_string(), "4 towers for 3 features: there must be from 1 to 3");
    assert_eq!(error(&wanted(2, 2)), TowersError::FeatureCount { found: 2, wanted: 3 });
    let weights = vec![1.0, 0.0, 1.0];
    assert_eq!(
        error(&Wanted { weights, ..wanted(3, 2) }).to_string(),
        "feature number 1 weighs 0: a weight must be above 0"
    );
}
