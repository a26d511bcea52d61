use proptest::prelude::*;

use super::*;

/// Samples with many ties, and weights.
fn samples(
    count: impl Into<prop::collection::SizeRange>,
) -> impl Strategy<Value = Vec<(f32, bool, f32, u64)>> {
    let logit = prop_oneof![(-3i32..3).prop_map(|z| z as f32 * 0.5), -20f32..20.0];
    prop::collection::vec((logit, any::<bool>(), 0.1f32..3.0, 0u64..5), count)
}

/// Counts every pair of a positive and a negative.
fn naive_auc(samples: &[(f32, bool, f32, u64)]) -> Option<f64> {
    let (mut won, mut pairs) = (0.0, 0.0);
    for positive in samples.iter().filter(|sample| sample.1) {
        for negative in samples.iter().filter(|sample| !sample.1) {
            let weight = f64::from(positive.2) * f64::from(negative.2);
            pairs += weight;
            won += match positive.0.total_cmp(&negative.0) {
                std::cmp::Ordering::Greater => weight,
                std::cmp::Ordering::Equal => 0.5 * weight,
                std::cmp::Ordering::Less => 0.0,
            };
        }
    }
    (pairs > 0.0).then(|| won / pairs)
}

struct Columns {
    logits: Vec<f32>,
    labels: Vec<f32>,
    weights: Vec<f32>,
    groups: Vec<u64>,
}

impl Columns {
    fn of(samples: &[(f32, bool, f32, u64)]) -> Columns {
        Columns {
            logits: samples.iter().map(|sample| sample.0).collect(),
            labels: samples.iter().map(|sample| f32::from(sample.1)).collect(),
            weights: samples.iter().map(|sample| sample.2).collect(),
            groups: samples.iter().map(|sample| sample.3).collect(),
        }
    }

    fn scored(&self) -> Scored<'_> {
        Scored {
            logits: &self.logits,
            labels: &self.labels,
            weights: &self.weights,
            groups: &self.groups,
            ..Scored::default()
        }
    }
}

fn evaluated(samples: &[(f32, bool, f32, u64)]) -> MetricValues {
    let mut metrics = TaskMetrics::for_evaluation();
    metrics.add(&Columns::of(samples).scored());
    metrics.snapshot()
}

fn close(found: Option<f64>, wanted: Option<f64>) -> bool {
    match (found, wanted) {
        (Some(found), Some(wanted)) => (found - wanted).abs() <= 1e-9 * wanted.abs().max(1.0),
        (found, wanted) => found == wanted,
    }
}

/// Round trip through text, as a checkpoint does it.
fn restored(metrics: &TaskMetrics) -> TaskMetrics {
    serde_json::from_str(&serde_json::to_string(metrics).unwrap()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn exact_auc_counts_every_pair(samples in samples(0..60)) {
        let values = evaluated(&samples);
        prop_assert_eq!(values.auc_kind, AucKind::Exact);
        prop_assert!(close(values.auc, naive_auc(&samples)), "{:?}", values.auc);
    }

    #[test]
    fn histogram_auc_is_within_the_error_it_states(samples in samples(1..80)) {
        let mut metrics = TaskMetrics::for_training(4);
        metrics.add(&Columns::of(&samples).scored());
        for values in [metrics.snapshot(), metrics.window().unwrap()] {
            let AucKind::Histogram { error_max } = values.auc_kind else { panic!("{:?}", values.auc_kind) };
            match (values.auc, naive_auc(&samples)) {
                (Some(found), Some(wanted)) => {
                    prop_assert!((found - wanted).abs() <= error_max.unwrap() + 1e-12, "{found} {wanted}");
                }
                (found, wanted) => prop_assert_eq!(found, wanted),
            }
        }
    }

    #[test]
    fn gauc_is_the_weighted_mean_over_groups_of_both_classes(samples in samples(0..60)) {
        let (mut sum, mut weight, mut groups) = (0.0, 0.0, 0);
        for group in 0..5 {
            let members: Vec<_> = samples.iter().copied().filter(|sample| sample.3 == group).collect();
            if let Some(auc) = naive_auc(&members) {
                let impressions: f64 = members.iter().map(|sample| f64::from(sample.2)).sum();
                sum += impressions * auc;
                weight += impressions;
                groups += 1;
            }
        }
        let values = evaluated(&samples);
        prop_assert_eq!(values.gauc_groups, groups);
        prop_assert!(close(values.gauc, (weight > 0.0).then(|| sum / weight)), "{:?}", values.gauc);
    }

    /// Saved and restored anywhere, the metrics go on to the same bits.
    #[test]
    fn restoring_changes_no_bit(steps in prop::collection::vec(samples(0..12), 1..40), at in 0usize..40) {
        for fresh in [TaskMetrics::for_training(20), TaskMetrics::for_evaluation()] {
            let (mut straight, mut broken) = (fresh.clone(), fresh);
            for (step, samples) in steps.iter().enumerate() {
                if step == at {
                    broken = restored(&broken);
                }
                straight.add(&Columns::of(samples).scored());
                broken.add(&Columns::of(samples).scored());
            }
            prop_assert_eq!(&straight, &broken);
            prop_assert_eq!(straight.snapshot(), broken.snapshot());
            prop_assert_eq!(restored(&straight), straight);
        }
    }
}

#[test]
fn known_values() {
    let labels = [1.0, 0.0, 0.0, 1.0];
    let logits = [2.0f32, -1.0, 0.5, 0.0];
    let mut metrics = TaskMetrics::for_evaluation();
    metrics.add(&Scored { logits: &logits, labels: &labels, ..Scored::default() });
    let values = metrics.snapshot();
    // Softplus by hand: ln(1+e^-2), ln(1+e^-1), ln(1+e^0.5), ln 2.
    let wanted = (0.126_928_011 + 0.313_261_688 + 0.974_076_984 + std::f64::consts::LN_2) / 4.0;
    assert!((values.logloss.unwrap() - wanted).abs() < 1e-8);
    assert!((values.ne.unwrap() - wanted / std::f64::consts::LN_2).abs() < 1e-8);
    assert_eq!(values.label_rate, Some(0.5));
    // Sigmoids by hand: 0.880797, 0.268941, 0.622459, 0.5.
    assert!(
        (values.calibration.unwrap() - (0.880_797_078 + 0.268_941_421 + 0.622_459_331 + 0.5) / 2.0).abs()
            < 1e-8
    );
    assert_eq!(values.auc, Some(0.75));
    assert_eq!((values.gauc, values.best_ne, values.count), (None, None, 4));
}

#[test]
fn the_mean_label_as_prediction_has_ne_one() {
    let labels: Vec<f32> = (0..1000).map(|n| f32::from(n % 10 == 0)).collect();
    let logits = vec![(0.1f32 / 0.9).ln(); 1000];
    let mut metrics = TaskMetrics::for_evaluation();
    metrics.add(&Scored { logits: &logits, labels: &labels, ..Scored::default() });
    let values = metrics.snapshot();
    assert!((values.ne.unwrap() - 1.0).abs() < 1e-6);
    assert!((values.calibration.unwrap() - 1.0).abs() < 1e-6);
    assert_eq!(values.auc, Some(0.5));
}

#[test]
fn extreme_logits_lose_nothing() {
    let mut metrics = TaskMetrics::for_evaluation();
    metrics.add(&Scored { logits: &[1000.0, -1000.0, 90.0], labels: &[1.0, 0.0, 0.0], ..Scored::default() });
    let values = metrics.snapshot();
    assert_eq!(values.logloss, Some(30.0));
    assert_eq!(values.non_finite, 0);
}

#[test]
fn a_diverged_model_is_counted_and_has_no_loss() {
    let mut metrics = TaskMetrics::for_training(2);
    metrics.add(&Scored { logits: &[f32::NAN, 1.0], labels: &[1.0, 0.0], ..Scored::default() });
    let values = metrics.snapshot();
    assert_eq!((values.non_finite, values.logloss, values.ne), (1, None, None));
    assert_eq!(restored(&metrics), metrics);
}

#[test]
fn absent_labels_are_left_out() {
    let mut metrics = TaskMetrics::for_evaluation();
    metrics.add(&Scored { logits: &[1.0, 2.0, 3.0], labels: &[1.0, f32::NAN, 0.0], ..Scored::default() });
    let values = metrics.snapshot();
    assert_eq!((values.count, values.label_rate), (2, Some(0.5)));
}

#[test]
fn without_samples_or_with_one_class_there_is_no_ratio() {
    let empty = TaskMetrics::for_evaluation().snapshot();
    assert_eq!(
        (empty.count, empty.logloss, empty.ne, empty.auc, empty.calibration),
        (0, None, None, None, None)
    );
    let mut metrics = TaskMetrics::for_evaluation();
    metrics.add(&Scored { logits: &[1.0, 2.0], labels: &[0.0, 0.0], groups: &[1, 1], ..Scored::default() });
    let values = metrics.snapshot();
    assert!(values.logloss.is_some());
    assert_eq!((values.ne, values.auc, values.calibration, values.gauc), (None, None, None, None));
}

#[test]
fn a_window_forgets_and_a_run_does_not() {
    let mut metrics = TaskMetrics::for_training(3);
    let mut last = TaskMetrics::for_training(3);
    for step in 0..10u32 {
        let logits: Vec<f32> = (0..20).map(|n| ((n * 7 + step * 3) % 11) as f32 * 0.3 - 1.5).collect();
        let labels: Vec<f32> = (0..20).map(|n| f32::from((n + step) % 3 == 0)).collect();
        let scored = Scored { logits: &logits, labels: &labels, ..Scored::default() };
        metrics.add(&scored);
        if step >= 7 {
            last.add(&scored);
        }
    }
    assert_eq!(metrics.window(), last.window());
    assert_eq!(metrics.window().unwrap().count, 60);
    assert_eq!(metrics.snapshot().count, 200);
}

#[test]
fn a_long_window_moves_by_parts_and_never_exceeds_its_length() {
    let mut metrics = TaskMetrics::for_training(100);
    for step in 1..=1000u64 {
        metrics.add(&Scored { logits: &[0.0], labels: &[1.0], ..Scored::default() });
        let count = metrics.window().unwrap().count;
        assert!(count <= step.min(98) && count >= step.min(92), "{step}: {count}");
    }
}

#[test]
fn segments_have_their_own_calibration() {
    let mut metrics = TaskMetrics::for_training(1);
    metrics.add(&Scored {
        logits: &[0.0, 0.0, 0.0, 0.0],
        labels: &[1.0, 0.0, 1.0, 1.0],
        segments: &[0, 0, 3, 3],
        ..Scored::default()
    });
    let segments = metrics.snapshot().segments;
    assert_eq!(segments.iter().map(|s| (s.segment, s.count)).collect::<Vec<_>>(), [(0, 2), (3, 2)]);
    assert_eq!((segments[0].calibration, segments[1].calibration), (Some(1.0), Some(0.5)));
}

#[test]
fn the_true_probabilities_give_the_best_ne() {
    let truth: Vec<f32> = (0..10_000).map(|n| 0.05 + 0.9 * (n % 100) as f32 / 100.0).collect();
    let labels: Vec<f32> = (0..10_000u32)
        .map(|n| f32::from((n.wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32) < truth[n as usize]))
        .collect();
    let logits: Vec<f32> = truth.iter().map(|p| (p / (1.0 - p)).ln()).collect();
    let mut metrics = TaskMetrics::for_evaluation();
    metrics.add(&Scored {
        logits: &logits,
        labels: &labels,
        true_probabilities: &truth,
        ..Scored::default()
    });
    let values = metrics.snapshot();
    assert!((values.ne.unwrap() - values.truth_ne.unwrap()).abs() < 1e-6);
    assert!((values.ne.unwrap() / values.best_ne.unwrap() - 1.0).abs() < 0.03);
}

#[test]
fn above_the_limit_auc_falls_to_the_histogram_and_says_so() {
    let samples: Vec<(f32, bool, f32, u64)> =
        (0..100).map(|n| (((n * 37) % 101) as f32 * 0.05, n % 3 == 0, 1.0, n % 20)).collect();
    let mut metrics = TaskMetrics::for_evaluation_within(99, 60);
    metrics.add(&Columns::of(&samples).scored());
    let values = metrics.snapshot();
    let AucKind::Histogram { error_max: Some(error_max) } = values.auc_kind else { panic!("{values:?}") };
    assert!((values.auc.unwrap() - naive_auc(&samples).unwrap()).abs() <= error_max);
    assert!(values.gauc_group_share < 1.0 && values.gauc_groups < 20);
    assert!(values.gauc.is_some());
}

#[test]
#[should_panic(expected = "1 weights for 2 logits")]
fn a_column_of_another_length_is_the_callers_mistake() {
    let scored = Scored { logits: &[0.0; 2], labels: &[0.0; 2], weights: &[1.0], ..Scored::default() };
    TaskMetrics::for_evaluation().add(&scored);
}

/// Impressions of nobody are not one user's: they are left out of GAUC, and count everywhere else.
#[test]
fn samples_without_a_group_have_no_part_in_gauc() {
    let mut metrics = TaskMetrics::for_evaluation();
    let (no, user) = (campanile_spec::NO_GROUP, 7);
    metrics.add(&Scored {
        logits: &[0.0, 0.0, -3.0, -2.0, 2.0, 3.0],
        labels: &[0.0, 1.0, 0.0, 0.0, 1.0, 1.0],
        groups: &[user, user, no, no, no, no],
        ..Scored::default()
    });
    let values = metrics.snapshot();
    assert_eq!((values.gauc, values.gauc_groups, values.count), (Some(0.5), 1, 6));
    assert!(values.auc.unwrap() > 0.9);
}
