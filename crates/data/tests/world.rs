//! The synthetic world keeps its promises: pure, calibrated, and each knob does its own thing only.

use std::sync::LazyLock;

use campanile_data::world::{View, World, WorldSpec};
use campanile_spec::Batch;
use campanile_spec::data::Split;
use campanile_spec::world::{Conversion, ConversionLabel, Domain, Drift, PerFeature, Signal};
use proptest::prelude::*;

fn read(world: &World, split: Split, positions: std::ops::Range<u64>) -> Batch {
    let mut batch = Batch::default();
    world.read(split, 0, positions, &mut batch);
    batch
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn assert_same(a: &Batch, b: &Batch) {
    assert_eq!(a.bags, b.bags);
    assert_eq!(bits(&a.dense), bits(&b.dense));
    assert_eq!(bits(&a.labels), bits(&b.labels), "labels, with their absent ones");
    assert_eq!(bits(&a.true_probabilities), bits(&b.true_probabilities));
    assert_eq!((&a.times, &a.groups, &a.segments), (&b.times, &b.groups, &b.segments));
}

fn logit(probability: f32) -> f64 {
    let p = f64::from(probability);
    (p / (1.0 - p)).ln()
}

fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = values.into_iter().fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}

/// Small enough that every combination of ids comes often; nothing but the ids decides.
fn tiny(features: usize, vocabulary: u64) -> WorldSpec {
    WorldSpec {
        train_samples: 100_000,
        valid_samples: 0,
        test_samples: 0,
        dense_count: 0,
        sparse_count: features,
        vocabulary: PerFeature::All(vocabulary),
        zipf_exponent: PerFeature::All(0.3),
        hidden_groups: 1,
        across_pairs: 0,
        signal: Signal { main: 0.8, inside: 0.0, across: 0.0, dense: 0.0, dense_curve: 0.0, domain: 0.0 },
        ..WorldSpec::default()
    }
}

fn everything() -> WorldSpec {
    WorldSpec {
        train_samples: 5000,
        valid_samples: 700,
        test_samples: 300,
        bag_min: PerFeature::All(0),
        bag_max: PerFeature::All(3),
        ..WorldSpec::live()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Any range, read by anybody, is the same part of the same stream.
    #[test]
    fn any_slicing_gives_the_same_samples(first in 0u64..4000, length in 0u64..1000, teacher: bool) {
        let view = if teacher { View::Teacher } else { View::Student };
        static WORLD: LazyLock<World> = LazyLock::new(|| World::new(&everything(), 3).unwrap());
        let world = WORLD.clone().seen_by(view);
        let all = read(&world, Split::Train, 0..5000);
        let part = read(&world, Split::Train, first..first + length);
        assert_same(&part, &all.slice(first as usize..(first + length) as usize));
    }
}

#[test]
fn a_batch_that_was_used_before_leaves_no_trace() {
    let world = World::new(&everything(), 3).unwrap();
    let mut used = read(&world, Split::Train, 0..500);
    used.weights = vec![2.0; 500];
    world.read(Split::Train, 0, 600..610, &mut used);
    assert!(used.weights.is_empty());
    assert_eq!(used.sample_count, 10);
    assert_same(&used, &read(&world, Split::Train, 600..610));
}

#[test]
fn splits_follow_each_other_in_one_stream() {
    let spec = everything();
    let world = World::new(&spec, 3).unwrap();
    let whole = WorldSpec { train_samples: 6000, valid_samples: 0, test_samples: 0, ..spec };
    let whole = read(&World::new(&whole, 3).unwrap(), Split::Train, 0..6000);
    assert_same(&read(&world, Split::Train, 0..5000), &whole.slice(0..5000));
    assert_same(&read(&world, Split::Valid, 0..700), &whole.slice(5000..5700));
    assert_same(&read(&world, Split::Test, 0..300), &whole.slice(5700..6000));
    assert!(whole.times.windows(2).all(|pair| pair[0] <= pair[1]));
    assert_eq!(whole.times[5999], 5999, "a thousand a second, in milliseconds");
}

#[test]
fn another_seed_is_another_world() {
    let (a, b) = (World::new(&everything(), 1).unwrap(), World::new(&everything(), 2).unwrap());
    let (a, b) = (read(&a, Split::Train, 0..100), read(&b, Split::Train, 0..100));
    assert_ne!(a.bags, b.bags);
    assert_ne!(a.dense, b.dense);
    assert_ne!(a.true_probabilities, b.true_probabilities);
}

/// The stream is part of what a checkpoint means, so it may not change between versions or machines.
#[test]
fn the_stream_has_the_bits_it_always_had() {
    let world = World::new(&everything(), 42).unwrap().seen_by(View::Teacher);
    let batch = read(&world, Split::Train, 0..2000);
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |value: u64| hash = (hash ^ value).wrapping_mul(0x100_0000_01b3);
    batch.bags.offsets().iter().chain(batch.bags.rows()).for_each(|&value| add(value.into()));
    let floats = batch.dense.iter().chain(&batch.labels).chain(&batch.true_probabilities);
    floats.for_each(|value| add(value.to_bits().into()));
    assert_eq!(hash, GOLDEN, "got {hash:#018x}");
}

const GOLDEN: u64 = 0xc7b4_b471_2c30_ecf2;

#[test]
fn click_rates_are_the_ones_asked_for() {
    for rate in [0.01, 0.05, 0.25, 0.5] {
        let spec = WorldSpec { click_rate: rate, sparse_count: 8, hidden_groups: 2, ..WorldSpec::default() };
        let world = World::new(&spec, 9).unwrap();
        let mut found = 0.0;
        for part in 0..25 {
            let batch = read(&world, Split::Train, part * 40_000..part * 40_000 + 8000);
            found += mean(batch.labels.iter().map(|&label| f64::from(label))) / 25.0;
        }
        // The probe's error of about one per cent, and that of 200 000 labels.
        let noise = 4.0 * (rate * (1.0 - rate) / 200_000.0).sqrt() + 0.03 * rate;
        assert!((found - rate).abs() < noise, "asked {rate}, found {found}");
    }
}

#[test]
fn domains_have_their_own_rates_and_features() {
    // The rates hold over the whole stream; drift moves them within it.
    let spec = WorldSpec { train_samples: 200_000, valid_samples: 0, test_samples: 0, ..WorldSpec::live() };
    let batch = read(&World::new(&spec, 4).unwrap(), Split::Train, 0..200_000);
    let part = |domain: u32| {
        (0..200_000usize).filter(|&sample| batch.segments[sample] == domain).collect::<Vec<_>>()
    };
    for (domain, share, rate) in [(0, 0.6, 0.03), (1, 0.3, 0.05), (2, 0.1, 0.01)] {
        let samples = part(domain);
        let found = samples.len() as f64 / 200_000.0;
        assert!((found - share).abs() < 0.01, "share of {domain}: {found}");
        let found = mean(samples.iter().map(|&sample| f64::from(batch.true_probabilities[sample])));
        assert!((found / rate - 1.0).abs() < 0.06, "rate of {domain}: {found}, asked {rate}");
    }
    let empty = |feature: usize, sample: usize| batch.bags.feature(feature).bag(sample).is_empty();
    assert!(part(1).iter().all(|&sample| empty(4, sample) && empty(5, sample) && !empty(1, sample)));
    assert!(part(2).iter().all(|&sample| empty(1, sample) && empty(8, sample) && !empty(4, sample)));
    assert!(part(0).iter().all(|&sample| (0..14).all(|feature| !empty(feature, sample))));
}

/// In every bin of the true probability the labels are as many as the probabilities say.
fn assert_calibrated(labels: &[f32], probabilities: &[f32]) {
    let mut order: Vec<usize> = (0..labels.len()).filter(|&sample| !labels[sample].is_nan()).collect();
    assert!(order.len() > 1000);
    order.sort_by(|&a, &b| probabilities[a].total_cmp(&probabilities[b]));
    for bin in order.chunks(order.len().div_ceil(20)) {
        let (mut seen, mut wanted, mut variance) = (0.0, 0.0, 0.0);
        for &sample in bin {
            let p = f64::from(probabilities[sample]);
            seen += f64::from(labels[sample]);
            wanted += p;
            variance += p * (1.0 - p);
        }
        assert!((seen - wanted).abs() < 4.5 * variance.sqrt(), "{seen} labels, {wanted} expected");
    }
}

#[test]
fn labels_follow_the_true_probabilities() {
    let batch = read(&World::new(&WorldSpec::default(), 8).unwrap(), Split::Train, 0..200_000);
    assert_calibrated(&batch.labels, &batch.true_probabilities);
}

#[test]
fn conversion_labels_follow_theirs_with_or_without_a_window() {
    for (label, window_seconds) in [
        (ConversionLabel::GivenClick, 0.0),
        (ConversionLabel::GivenClick, 900.0),
        (ConversionLabel::PerImpression, 900.0),
    ] {
        let conversion = Conversion { rate: 0.3, label, window_seconds, ..Conversion::default() };
        let spec = WorldSpec { conversion: Some(conversion), ..WorldSpec::default() };
        let count = 200_000;
        let batch = read(&World::new(&spec, 8).unwrap(), Split::Train, 0..count as u64);
        let (clicks, conversions) = batch.labels.split_at(count);
        assert_calibrated(conversions, &batch.true_probabilities[count..]);
        for (&click, &conversion) in clicks.iter().zip(conversions) {
            match label {
                ConversionLabel::GivenClick => assert_eq!(click == 0.0, conversion.is_nan()),
                ConversionLabel::PerImpression => assert!(conversion <= click),
            }
        }
        let clicked = clicks.iter().zip(conversions).filter(|(click, _)| **click == 1.0);
        let seen = mean(clicked.map(|(_, &conversion)| f64::from(conversion)));
        let within = if window_seconds == 0.0 { 1.0 } else { 1.0 - f64::exp(-0.5) };
        assert!((seen - 0.3 * within).abs() < 0.012, "{label:?} {window_seconds}: {seen}");
    }
}

#[test]
fn events_tell_the_same_story_as_batches_and_know_the_delays() {
    let spec = everything();
    let world = World::new(&spec, 6).unwrap();
    let (events, batch) = (world.events(Split::Valid, 10..700), read(&world, Split::Valid, 10..700));
    for (sample, event) in events.iter().enumerate() {
        assert_eq!(event.example_id, 5010 + sample as u64);
        assert_eq!(event.time_ms, batch.times[sample]);
        assert_eq!((event.user, event.domain), (batch.groups[sample], batch.segments[sample]));
        assert_eq!(f32::from(event.click), batch.labels[sample]);
        assert_eq!(event.click_probability, batch.true_probabilities[sample]);
        assert!(event.click || !event.conversion);
        if event.click {
            assert_eq!(f32::from(event.conversion), batch.labels[690 + sample]);
        }
    }
    let events = world.events(Split::Train, 0..5000);
    let delay = |pick: fn(&campanile_data::world::Event) -> i64| mean(events.iter().map(|e| pick(e) as f64));
    assert!((delay(|e| e.click_delay_ms) / 20_000.0 - 1.0).abs() < 0.06);
    assert!((delay(|e| e.conversion_delay_ms) / 1_800_000.0 - 1.0).abs() < 0.06);
}

/// How strongly two features act together: the variance of the mean logit over (id, id) that is left after each
/// feature's own means are taken out.
fn interaction(batch: &Batch, a: usize, b: usize, vocabulary: usize) -> f64 {
    let mut sums = vec![(0.0, 0.0); vocabulary * vocabulary];
    let (rows_a, rows_b) = (batch.bags.feature(a).rows, batch.bags.feature(b).rows);
    for sample in 0..batch.sample_count {
        let cell = &mut sums[rows_a[sample] as usize * vocabulary + rows_b[sample] as usize];
        cell.0 += logit(batch.true_probabilities[sample]);
        cell.1 += 1.0;
    }
    let cells: Vec<f64> = sums.iter().map(|(sum, count)| sum / count).collect();
    let row = |i: usize| mean((0..vocabulary).map(|j| cells[i * vocabulary + j]));
    let column = |j: usize| mean((0..vocabulary).map(|i| cells[i * vocabulary + j]));
    let all = mean(cells.iter().copied());
    mean((0..vocabulary * vocabulary).map(|cell| {
        let (i, j) = (cell / vocabulary, cell % vocabulary);
        (cells[cell] - row(i) - column(j) + all).powi(2)
    }))
}

#[test]
fn features_interact_inside_their_group_and_in_the_chosen_pairs() {
    let spec = WorldSpec {
        hidden_groups: 3,
        across_pairs: 2,
        signal: Signal { inside: 0.8, across: 0.6, ..tiny(9, 5).signal },
        ..tiny(9, 5)
    };
    let world = World::new(&spec, 12).unwrap();
    let batch = read(&world, Split::Train, 0..100_000);
    let groups = world.hidden_groups();
    assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3, 3]);
    assert_eq!(world.across_pairs().len(), 2);
    for a in 0..9 {
        for b in a + 1..9 {
            let inside = groups.iter().any(|group| group.contains(&a) && group.contains(&b));
            let strength = interaction(&batch, a, b, 5);
            if inside || world.across_pairs().contains(&(a, b)) {
                assert!(strength > 0.01, "{a} {b}: {strength}");
            } else {
                assert!(strength < 0.005, "{a} {b}: {strength}");
            }
        }
    }
}

#[test]
fn each_part_of_the_signal_has_the_deviation_asked_for() {
    let none = Signal { main: 0.0, inside: 0.0, across: 0.0, dense: 0.0, dense_curve: 0.3, domain: 0.0 };
    for (signal, wanted) in [
        (Signal { main: 0.7, ..none }, 0.7),
        (Signal { inside: 0.9, ..none }, 0.9),
        (Signal { across: 0.4, ..none }, 0.4),
        (Signal { dense: 0.6, ..none }, 0.6),
        (Signal { main: 0.6, dense: 0.8, ..none }, 1.0),
        (none, 0.0),
    ] {
        let spec = WorldSpec { signal, ..WorldSpec::default() };
        let world = World::new(&spec, 21).unwrap();
        let logits: Vec<f64> = (0..20)
            .flat_map(|n| read(&world, Split::Train, n * 50_000..n * 50_000 + 2000).true_probabilities)
            .map(logit)
            .collect();
        let centre = mean(logits.iter().copied());
        let deviation = mean(logits.iter().map(|z| (z - centre).powi(2))).sqrt();
        assert!((deviation - wanted).abs() < 0.03 * wanted + 1e-6, "{signal:?}: {deviation}");
    }
}

#[test]
fn a_linear_world_is_exactly_additive() {
    let world = World::new(&tiny(2, 3), 5).unwrap();
    let batch = read(&world, Split::Train, 0..2000);
    assert!(interaction(&batch, 0, 1, 3) < 1e-9);
}

/// The logit of every combination of domain and two ids, early and late in the stream.
fn change(drift: Drift) -> Vec<((u32, u32, u32), f64)> {
    let domain = |name: &str| Domain { name: name.into(), ..Domain::default() };
    let spec = WorldSpec { drift, domains: vec![domain("a"), domain("b")], ..tiny(2, 3) };
    let world = World::new(&spec, 31).unwrap();
    let look = |first: u64| {
        let batch = read(&world, Split::Train, first..first + 500);
        let mut seen = std::collections::BTreeMap::new();
        for sample in 0..batch.sample_count {
            let row = |feature: usize| batch.bags.feature(feature).rows[sample];
            seen.insert((batch.segments[sample], row(0), row(1)), logit(batch.true_probabilities[sample]));
        }
        assert_eq!(seen.len(), 18);
        seen
    };
    let (early, late) = (look(0), look(90_000));
    early.iter().map(|(&key, z)| (key, late[&key] - z)).collect()
}

#[test]
fn without_drift_the_truth_stands_still() {
    for (_, change) in change(Drift::default()) {
        assert_eq!(change, 0.0, "the same inputs have the same probability, to the bit");
    }
}

#[test]
fn each_kind_of_drift_moves_its_own_kind_of_thing() {
    let same = |a: f64, b: f64| (a - b).abs() < 0.05;
    let global = change(Drift { global: 1.0, ..Drift::default() });
    assert!(global.iter().all(|(_, moved)| same(*moved, global[0].1)), "{global:?}");
    assert!(global[0].1.abs() > 0.1);

    let segment = change(Drift { segment: 1.0, ..Drift::default() });
    let of = |domain: u32| segment.iter().find(|((d, ..), _)| *d == domain).unwrap().1;
    assert!(segment.iter().all(|((domain, ..), moved)| same(*moved, of(*domain))), "{segment:?}");
    assert!(!same(of(0), of(1)));

    let item = change(Drift { item: 1.0, ..Drift::default() });
    for ((_, a, b), moved) in &item {
        let other = item.iter().find(|((domain, x, y), _)| *domain == 1 && (x, y) == (a, b)).unwrap().1;
        assert!(same(*moved, other), "the domain does not matter");
    }
    assert!(item.iter().any(|(_, moved)| !same(*moved, item[0].1)), "{item:?}");
}

#[test]
fn ids_come_and_go_within_their_lives() {
    let spec = WorldSpec { turnover: PerFeature::All(3.0), ..tiny(2, 400) };
    let world = World::new(&spec, 2).unwrap();
    let mut gone = 0;
    for first in [0, 30_000, 60_000, 90_000] {
        let batch = read(&world, Split::Train, first..first + 5000);
        for feature in 0..2 {
            for (sample, &row) in batch.bags.feature(feature).rows.iter().enumerate() {
                let life = world.life(feature, row).unwrap();
                assert!(life.contains(&(first + sample as u64)), "{row} {life:?} {first} + {sample}");
                gone += usize::from(life.end < 100_000);
            }
        }
    }
    assert!(gone > 1000);
}

#[test]
fn a_teacher_sees_more_of_the_same_samples() {
    let spec = everything();
    let student = World::new(&spec, 3).unwrap();
    let teacher = student.clone().seen_by(View::Teacher);
    let (less, more) = (read(&student, Split::Test, 0..300), read(&teacher, Split::Test, 0..300));
    assert_eq!((less.bags.feature_count(), more.bags.feature_count()), (14, 16));
    for feature in 0..14 {
        for sample in 0..300 {
            assert_eq!(less.bags.feature(feature).bag(sample), more.bags.feature(feature).bag(sample));
        }
    }
    assert_eq!((less.dense.len(), more.dense.len()), (300 * 6, 300 * 8));
    assert!(less.dense.chunks(6).zip(more.dense.chunks(8)).all(|(less, more)| less == &more[..6]));
    assert_eq!(bits(&less.labels), bits(&more.labels));
}

#[test]
#[should_panic(expected = "samples 200..400 of Test, which has 300")]
fn reading_past_the_end_is_the_callers_mistake() {
    read(&World::new(&everything(), 3).unwrap(), Split::Test, 200..400);
}
