//! The oracle's gradients against finite differences, for every network, head and way of pooling.
//!
//! The loss is a smooth function of each weight except where a ReLU opens or closes, and its `f32` logits
//! carry rounding noise of about 1e-7. With steps of 1/1024 the central difference is then good to about
//! 1e-4, and must be within 2e-3 of the largest gradient of its kind. Where a ReLU turns inside the step, the
//! central difference is wrong but one of the two sides is right: there the gradient must lie between the
//! left and the right difference. One unit that is nearly at zero takes all its inputs' weights with it, so
//! one element in eight, over several first weights, may need that.

use campanile_oracle::Oracle;
use campanile_spec::{
    AdapterSpec, Bags, Batch, CrossRank, DcnStructure, DenseOptimizer, Distil, DistilMethod, FeatureSpec,
    Follow, Grains, Heads, LearningRate, ModelSpec, NetworkSpec, Pooling, Precision, RowFormat, RowInit,
    Schedule, SparseOptimizer, TableId, TableSpec, TaskSpec, TowerModule, TowerSpec, TowerVariant, Towers,
    config::{DenseTraining, SparseTraining},
};

const STEP: f32 = 1.0 / 1024.0;
const TOLERANCE: f64 = 2e-3;
const SAMPLES: usize = 6;
const ROWS: u64 = 5;

/// A value in [-1, 1) that depends on two numbers only.
fn value(kind: u64, index: usize) -> f32 {
    let mixed = (index as u64 + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(kind.wrapping_mul(0x2545_f491_4f6c_dd1d));
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 / (1u32 << 23) as f32 - 1.0
}

/// Three features over two tables, of which the first two share one.
fn model(
    dims: [usize; 2],
    dense_count: usize,
    tasks: usize,
    network: NetworkSpec,
    heads: Heads,
) -> ModelSpec {
    let table = |name: &str, dim| TableSpec {
        name: name.into(),
        row_count: ROWS,
        dim,
        format: RowFormat::F32,
        init: RowInit::Zeros,
    };
    let feature =
        |name: &str, table, pooling| FeatureSpec { name: name.into(), table: TableId(table), pooling };
    ModelSpec {
        dense_count,
        features: vec![
            feature("sum", 0, Pooling::Sum),
            feature("mean", 0, Pooling::Mean),
            feature("weighted", 1, Pooling::Weighted),
        ],
        tables: vec![table("shared", dims[0]), table("own", dims[1])],
        tasks: (0..tasks)
            .map(|t| TaskSpec { name: format!("task{t}"), weight: 1.0 + t as f32 * 0.5 })
            .collect(),
        network,
        heads,
        precision: Precision::F32,
        towers: campanile_spec::Towers::default(),
        followers: Vec::new(),
    }
}

/// Bags of 0 to 3 rows, absent labels, sample weights.
fn batch(spec: &ModelSpec) -> Batch {
    let (mut offsets, mut rows) = (vec![0], Vec::new());
    for bag in 0..spec.features.len() * SAMPLES {
        rows.extend((0..bag % 4).map(|place| ((bag * 3 + place * place) % ROWS as usize) as u32));
        offsets.push(rows.len() as u32);
    }
    let weights = (0..rows.len()).map(|i| 0.5 + value(1, i).abs()).collect();
    let label = |i: usize| if i % 7 == 3 { f32::NAN } else { f32::from(i.is_multiple_of(3)) };
    Batch {
        sample_count: SAMPLES,
        dense: (0..SAMPLES * spec.dense_count).map(|i| value(2, i)).collect(),
        bags: Bags::new(spec.features.len(), SAMPLES, offsets, rows, weights).expect("valid bags"),
        labels: (0..SAMPLES * spec.tasks.len()).map(label).collect(),
        weights: (0..SAMPLES).map(|i| 0.5 + value(3, i).abs()).collect(),
        teacher_logits: (0..SAMPLES * spec.tasks.len())
            .map(|i| if i % 5 == 4 { f32::NAN } else { 3.0 * value(6, i) })
            .collect(),
        teacher_delays: (0..SAMPLES).map(|i| 10.0 * i as f32).collect(),
        segments: (0..SAMPLES as u32).map(|i| i % 3).collect(),
        ..Batch::default()
    }
}

/// Compares all gradients of `spec`; rows move by plain SGD with rate 1, so a row's move is its gradient.
fn check(spec: &ModelSpec) {
    check_student(spec, &Distil::default());
}

/// The same with a teacher; its adapter, which the model takes as it is, must not be seen in the gradients.
fn check_student(spec: &ModelSpec, distil: &Distil) {
    let counts: Vec<[usize; 2]> = (0..4).flat_map(|seed| check_seed(spec, distil, seed)).collect();
    let [kinks, all] = counts.iter().fold([0, 0], |sum, count| [sum[0] + count[0], sum[1] + count[1]]);
    assert!(kinks * 8 <= all, "{kinks} kinks in {all}: {spec:?}");
}

/// The kinks met and the elements compared, for the dense weights and every table.
fn check_seed(spec: &ModelSpec, distil: &Distil, seed: u64) -> Vec<[usize; 2]> {
    let rate = LearningRate { base: 1.0, schedule: Schedule::Constant };
    let sparse =
        SparseTraining { optimizer: SparseOptimizer::Sgd, learning_rate: rate, l2: 0.0, row_norm_max: 0.0 };
    let optimizer = DenseOptimizer::Sgd { momentum: 0.0 };
    let dense = DenseTraining { optimizer, learning_rate: rate, l2: 0.0, norm_max: 0.0 };
    let mut oracle = Oracle::student(spec, Grains::new(2), &sparse, &dense, distil);
    oracle.weights.values.iter_mut().enumerate().for_each(|(i, w)| *w = 0.7 * value(40 + seed, i));
    for (t, table) in oracle.tables.iter_mut().enumerate() {
        for (r, row) in table.iter_mut().enumerate() {
            row.values
                .iter_mut()
                .enumerate()
                .for_each(|(i, w)| *w = value(50 + t as u64 + 2 * seed, r * 64 + i));
        }
    }
    let batch = batch(spec);
    let mut after = oracle.clone();
    let step = after.train_step(&batch);
    let loss_of = |oracle: &Oracle| {
        let step = oracle.clone().train_step(&batch);
        step.loss + step.teacher_loss
    };

    let all: Vec<usize> = (0..oracle.weights.values.len()).collect();
    let dense_differences = differences(&all, |i, by| {
        let mut moved = oracle.clone();
        moved.weights.values[i] += by;
        loss_of(&moved)
    });
    let mut counts = vec![compare("dense weights", &dense_differences, |i| f64::from(step.gradient[i]))];

    for (t, table) in spec.tables.iter().enumerate() {
        let all: Vec<usize> = (0..ROWS as usize * table.dim).collect();
        let row_differences = differences(&all, |i, by| {
            let mut moved = oracle.clone();
            moved.tables[t][i / table.dim].values[i % table.dim] += by;
            loss_of(&moved)
        });
        let at = |oracle: &Oracle, i: usize| f64::from(oracle.tables[t][i / table.dim].values[i % table.dim]);
        let what = format!("rows of `{}`", table.name);
        counts.push(compare(&what, &row_differences, |i| at(&oracle, i) - at(&after, i)));
    }
    counts
}

/// The left and right differences of the loss for every weight.
fn differences(weights: &[usize], loss: impl Fn(usize, f32) -> f64) -> Vec<(f64, f64)> {
    let here = loss(weights[0], 0.0);
    let step = f64::from(STEP);
    weights.iter().map(|&i| ((here - loss(i, -STEP)) / step, (loss(i, STEP) - here) / step)).collect()
}

fn compare(what: &str, differences: &[(f64, f64)], gradient: impl Fn(usize) -> f64) -> [usize; 2] {
    let largest = (0..differences.len()).map(|i| gradient(i).abs()).fold(0.0, f64::max);
    assert!(largest > 1e-3, "{what}: no gradient to compare");
    let mut kinks = 0;
    for (i, (left, right)) in differences.iter().enumerate() {
        let (gradient, tolerance) = (gradient(i), TOLERANCE * largest);
        if (0.5 * (left + right) - gradient).abs() > tolerance {
            let between = left.min(*right) - tolerance..=left.max(*right) + tolerance;
            assert!(between.contains(&gradient), "{what}, element {i}: {left}, {right}, gradient {gradient}");
            kinks += 1;
        }
    }
    [kinks, differences.len()]
}

#[test]
fn dlrm() {
    for (dims, dense_count, tasks, heads) in
        [([4, 4], 3, 1, Heads::Shared), ([4, 3], 3, 2, Heads::Separate), ([5, 2], 0, 2, Heads::Shared)]
    {
        check(&model(
            dims,
            dense_count,
            tasks,
            NetworkSpec::Dlrm { bottom: vec![5, 4], top: vec![6] },
            heads,
        ));
    }
    check(&model([3, 2], 0, 1, NetworkSpec::Dlrm { bottom: vec![], top: vec![] }, Heads::Shared));
}

#[test]
fn dcn() {
    for structure in [DcnStructure::Stacked, DcnStructure::Parallel] {
        for cross_rank in [CrossRank::Full, CrossRank::Low(2)] {
            for (bottom, heads) in [(vec![4], Heads::Shared), (vec![], Heads::Separate)] {
                let network =
                    NetworkSpec::Dcn { bottom, cross_layers: 2, cross_rank, structure, deep: vec![5, 3] };
                check(&model([2, 3], 2, 2, network, heads));
            }
        }
    }
    let structure = DcnStructure::Parallel;
    let network = NetworkSpec::Dcn {
        bottom: vec![],
        cross_layers: 1,
        cross_rank: CrossRank::Full,
        structure,
        deep: vec![],
    };
    check(&model([2, 3], 0, 1, network, Heads::Shared));
}

fn tower(name: &str, features: &[usize], module: TowerModule) -> TowerSpec {
    TowerSpec { name: name.into(), features: features.to_vec(), module }
}

fn with_towers(spec: ModelSpec, list: Vec<TowerSpec>) -> ModelSpec {
    ModelSpec { towers: Towers { variant: TowerVariant::Towers, module_rate: 1.0, list }, ..spec }
}

#[test]
fn towers_of_dlrm() {
    let dlrm = || NetworkSpec::Dlrm { bottom: vec![5, 2], top: vec![6] };
    let ensemble = |per_feature, mixed| TowerModule::Ensemble { per_feature, mixed, width: 2 };
    // Features that do not lie side by side, one matrix for two features, and one that passes and is projected.
    let apart = vec![tower("a", &[0, 2], ensemble(2, 1)), tower("b", &[1], TowerModule::Identity)];
    check(&with_towers(model([4, 4], 3, 1, dlrm(), Heads::Shared), apart));
    let mixed = vec![tower("a", &[1, 2], ensemble(0, 2)), tower("b", &[0], ensemble(1, 1))];
    check(&with_towers(model([4, 3], 3, 2, dlrm(), Heads::Separate), mixed));
    let crossed = TowerModule::Cross { layers: 2, rank: CrossRank::Low(2), width: 2 };
    let no_dense = NetworkSpec::Dlrm { bottom: vec![], top: vec![4] };
    check(&with_towers(
        model([4, 3], 0, 1, no_dense, Heads::Shared),
        vec![tower("all", &[0, 1, 2], crossed)],
    ));
}

#[test]
fn towers_of_dcn_and_mlp() {
    let crossed = |rank| TowerModule::Cross { layers: 2, rank, width: 2 };
    let ensemble = TowerModule::Ensemble { per_feature: 1, mixed: 1, width: 3 };
    let towers = |one, two| vec![tower("a", &[0, 2], one), tower("b", &[1], two)];
    let dcn = NetworkSpec::Dcn {
        bottom: vec![3],
        cross_layers: 1,
        cross_rank: CrossRank::Full,
        structure: DcnStructure::Parallel,
        deep: vec![5],
    };
    let list = towers(crossed(CrossRank::Full), crossed(CrossRank::Low(1)));
    check(&with_towers(model([3, 2], 2, 1, dcn, Heads::Shared), list));
    let mlp = NetworkSpec::Mlp { hidden: vec![6] };
    check(&with_towers(model([3, 3], 2, 2, mlp, Heads::Shared), towers(ensemble, crossed(CrossRank::Full))));
}

#[test]
fn mlp() {
    check(&model([3, 2], 4, 3, NetworkSpec::Mlp { hidden: vec![6, 4] }, Heads::Separate));
    check(&model([3, 2], 4, 2, NetworkSpec::Mlp { hidden: vec![] }, Heads::Shared));
}

fn two_tower(user: &[usize], item: &[usize], item_dense: &[usize]) -> NetworkSpec {
    let (user, item, item_dense) = (user.to_vec(), item.to_vec(), item_dense.to_vec());
    NetworkSpec::TwoTower { item_features: vec!["mean".into()], item_dense, user, item, width: 3 }
}

#[test]
fn two_towers() {
    check(&model([3, 2], 4, 2, two_tower(&[5, 4], &[4], &[2]), Heads::Shared));
    check(&model([3, 2], 2, 2, two_tower(&[5], &[], &[]), Heads::Separate));
    check(&model([3, 2], 0, 1, two_tower(&[], &[], &[]), Heads::Shared));
}

#[test]
fn logistic_regression_and_factorization_machine() {
    check(&model([1, 1], 3, 1, NetworkSpec::LogisticRegression, Heads::Shared));
    check(&model([2, 2], 3, 2, NetworkSpec::LogisticRegression, Heads::Shared));
    check(&model([4, 4], 3, 1, NetworkSpec::FactorizationMachine, Heads::Shared));
    check(&model([6, 6], 0, 2, NetworkSpec::FactorizationMachine, Heads::Shared));
}

fn student(method: DistilMethod) -> Distil {
    let optimizer = DenseOptimizer::Sgd { momentum: 0.0 };
    let adapter =
        AdapterSpec { weight: 2.0, hidden: 3, segments: 2, freshness: true, optimizer, learning_rate: 1.0 };
    Distil { method, weight: 3.0, label_scale: 1.5, gradient_scale: 1.0, fade_seconds: 40.0, adapter }
}

#[test]
fn students_of_a_teacher() {
    let dlrm = NetworkSpec::Dlrm { bottom: vec![5, 4], top: vec![6] };
    let structure = DcnStructure::Parallel;
    let (bottom, cross_rank) = (vec![4], CrossRank::Low(2));
    let dcn = NetworkSpec::Dcn { bottom, cross_layers: 2, cross_rank, structure, deep: vec![5, 3] };
    for method in [DistilMethod::OneHead, DistilMethod::Auxiliary, DistilMethod::Adapter] {
        check_student(&model([4, 3], 3, 2, dlrm.clone(), Heads::Shared), &student(method));
        check_student(&model([2, 3], 2, 2, dcn.clone(), Heads::Separate), &student(method));
        check_student(&model([2, 3], 2, 2, two_tower(&[4], &[5], &[1]), Heads::Shared), &student(method));
    }
    let machine = NetworkSpec::FactorizationMachine;
    check_student(&model([4, 4], 3, 1, machine, Heads::Shared), &student(DistilMethod::OneHead));
}

/// The gradient of one step, all weights begun alike.
fn gradient_of(spec: &ModelSpec, distil: &Distil) -> (Oracle, Vec<f32>) {
    let rate = LearningRate { base: 1.0, schedule: Schedule::Constant };
    let sparse =
        SparseTraining { optimizer: SparseOptimizer::Sgd, learning_rate: rate, l2: 0.0, row_norm_max: 0.0 };
    let optimizer = DenseOptimizer::Sgd { momentum: 0.0 };
    let dense = DenseTraining { optimizer, learning_rate: rate, l2: 0.0, norm_max: 0.0 };
    let mut oracle = Oracle::student(spec, Grains::new(2), &sparse, &dense, distil);
    oracle.weights.values.iter_mut().enumerate().for_each(|(i, w)| *w = 0.7 * value(40, i));
    for (r, row) in oracle.tables.iter_mut().flatten().enumerate() {
        row.values.iter_mut().enumerate().for_each(|(i, w)| *w = value(50, r * 64 + i));
    }
    let gradient = oracle.train_step(&batch(spec)).gradient;
    (oracle, gradient)
}

/// A factor on what the teacher's heads send back reaches the shared layers, and no head.
#[test]
fn scaled_gradients_reach_the_shared_layers_only() {
    let spec = model([4, 3], 3, 2, NetworkSpec::Dlrm { bottom: vec![5, 4], top: vec![6] }, Heads::Shared);
    let by =
        |gradient_scale| gradient_of(&spec, &Distil { gradient_scale, ..student(DistilMethod::Adapter) });
    let ((oracle, none), (_, one), (_, seven)) = (by(0.0), by(1.0), by(7.0));
    let mut compared = [0, 0];
    for parameter in &oracle.parameters {
        let is_head = ["top.1", "auxiliary.", "adapted."].iter().any(|head| parameter.name.starts_with(head));
        compared[usize::from(is_head)] += 1;
        for i in parameter.range.clone() {
            let factor = if is_head { 1.0 } else { 7.0 };
            let (found, wanted) = (seven[i] - none[i], factor * (one[i] - none[i]));
            assert!((found - wanted).abs() <= 1e-5, "{}: {found} instead of {wanted}", parameter.name);
            assert!(!is_head || seven[i] == one[i], "{}", parameter.name);
        }
    }
    assert_eq!(compared, [7, 6]);
}

/// The adapter moves down the slope of its own loss and nothing else: compared with differences of that loss, worked out
/// here.
#[test]
fn an_adapter_learns_from_labels_alone() {
    let spec = model([4, 3], 3, 1, NetworkSpec::Mlp { hidden: vec![6] }, Heads::Shared);
    let mut distil = student(DistilMethod::Adapter);
    distil.adapter.hidden = 0;
    let (oracle, _) = gradient_of(&spec, &distil);
    let moved: Vec<f64> = oracle.adapters[0].values.iter().map(|w| f64::from(-w)).collect();
    let batch = batch(&spec);
    let loss = |weights: &[f64]| -> f64 {
        let terms = (0..SAMPLES).filter_map(|sample| {
            let word = campanile_spec::distil::Word::of(&batch, 0, sample)?;
            let mut inputs = vec![0.0; distil.adapter.input_count()];
            distil.adapter.write_inputs(word, &mut inputs);
            let added: f64 = inputs.iter().zip(weights).map(|(x, w)| f64::from(*x) * w).sum();
            let z = f64::from(word.logit) + added + weights[inputs.len()];
            let label = f64::from(batch.labels[sample]);
            let term = f64::from(batch.weights[sample]) * (z.max(0.0) - z * label + (-z.abs()).exp().ln_1p());
            (!label.is_nan()).then_some(term)
        });
        terms.sum::<f64>() / SAMPLES as f64
    };
    for i in 0..moved.len() {
        let at = |by: f64| {
            let mut weights = vec![0.0; moved.len()];
            weights[i] = by;
            loss(&weights)
        };
        let slope = (at(1e-4) - at(-1e-4)) / 2e-4;
        assert!((slope - moved[i]).abs() < 1e-5, "weight {i}: moved {} on a slope of {slope}", moved[i]);
    }
}

/// A row that follows the teacher moves by the gradient of the distance to its embedding, and by nothing of the labels;
/// where there is no embedding it stays.
#[test]
fn a_row_that_follows_is_drawn_to_the_embedding_alone() {
    let mut spec = model([4, 3], 2, 1, NetworkSpec::Mlp { hidden: vec![6] }, Heads::Shared);
    let follow = Follow {
        features: vec!["sum".into()],
        floats: 3,
        optimizer: SparseOptimizer::Sgd,
        learning_rate: 1.0,
        format: RowFormat::F32,
    };
    spec.add_follower(0, &follow);
    let rate = LearningRate { base: 1.0, schedule: Schedule::Constant };
    let sparse =
        SparseTraining { optimizer: SparseOptimizer::Sgd, learning_rate: rate, l2: 0.1, row_norm_max: 1e-3 };
    let optimizer = DenseOptimizer::Sgd { momentum: 0.0 };
    let dense = DenseTraining { optimizer, learning_rate: rate, l2: 0.0, norm_max: 0.0 };
    let distil = Distil { fade_seconds: 20.0, ..Distil::default() };
    let mut oracle = Oracle::student(&spec, Grains::new(2), &sparse, &dense, &distil).following(&follow);
    oracle.weights.values.iter_mut().enumerate().for_each(|(i, w)| *w = value(40, i));
    for (t, row) in
        oracle.tables.iter_mut().enumerate().flat_map(|(t, rows)| rows.iter_mut().map(move |r| (t, r)))
    {
        row.values.iter_mut().enumerate().for_each(|(i, w)| *w = value(50 + t as u64, i));
    }
    // One id a sample, row 1 twice; the fourth sample has no embedding, and nobody names row 4.
    let ids: Vec<u32> = [vec![1, 2, 1, 3, 0, 0], vec![0; 12]].concat();
    let mut bags = Bags::one_row_each(3, SAMPLES, ids.clone());
    bags.repeat(&spec.followers);
    let embeddings = (0..SAMPLES * 3).map(|i| if i / 3 == 3 { f32::NAN } else { value(8, i) }).collect();
    let batch = Batch { bags, teacher_embeddings: embeddings, ..batch(&spec) };
    let distance = |rows: &[campanile_oracle::Row]| -> f64 {
        let term = |sample: usize| {
            let Some(e) = batch.teacher_embedding(sample) else { return 0.0 };
            let row = &rows[ids[sample] as usize].values;
            let square: f64 = row.iter().zip(e).map(|(v, e)| f64::from(v - e).powi(2)).sum();
            let fading = 0.5f64.powf(f64::from(batch.teacher_delays[sample]) / 20.0);
            0.5 * f64::from(batch.weights[sample]) * fading * square / SAMPLES as f64
        };
        (0..SAMPLES).map(term).sum()
    };
    let before = oracle.tables[2].clone();
    oracle.train_step(&batch);
    for (row, after) in oracle.tables[2].iter().enumerate() {
        for element in 0..3 {
            let moved = |by: f32| {
                let mut rows = before.clone();
                rows[row].values[element] += by;
                distance(&rows)
            };
            let slope = (moved(STEP) - moved(-STEP)) / (2.0 * f64::from(STEP));
            let step = f64::from(before[row].values[element]) - f64::from(after.values[element]);
            assert!((slope - step).abs() < 1e-5, "row {row}: slope {slope}, moved by {step}");
            assert_eq!(step == 0.0, row >= 3, "row {row} moved by {step}");
        }
    }
}
