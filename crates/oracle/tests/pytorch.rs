//! Twenty steps of four models against the losses that PyTorch recorded (`bench/truth/record.py`), from the
//! same weights, rows and batches, which one integer formula gives in both languages.
//!
//! Both train in `f32`, each with its own order of sums, so losses differ a little: by at most 3e-7 when
//! they were recorded. The test asks for 1e-5.

use campanile_oracle::Oracle;
use campanile_spec::{
    Bags, Batch, CrossRank, DcnStructure, DenseOptimizer, FeatureSpec, Grains, Heads, LearningRate,
    ModelSpec, NetworkSpec, Pooling, Precision, RowFormat, RowInit, Schedule, SparseOptimizer, TableId,
    TableSpec, TaskSpec,
    config::{DenseTraining, SparseTraining},
};

const SAMPLES: usize = 32;
const BATCHES: usize = 4;
const ROWS: usize = 40;
const DENSE: usize = 4;

/// 32 bits that depend on two numbers only.
fn bits(kind: u32, index: usize) -> u32 {
    let x = (index as u32).wrapping_mul(2_654_435_761);
    let x = x.wrapping_add(kind.wrapping_mul(2_246_822_519)).wrapping_add(374_761_393);
    let x = (x ^ (x >> 15)).wrapping_mul(2_246_822_519);
    let x = (x ^ (x >> 13)).wrapping_mul(3_266_489_917);
    x ^ (x >> 16)
}

/// A number in [-1, 1) that `f32` holds exactly.
fn value(kind: u32, index: usize) -> f32 {
    (bits(kind, index) >> 8) as f32 / (1u32 << 23) as f32 - 1.0
}

fn batch(step: usize, features: usize, tasks: usize) -> Batch {
    let base = step % BATCHES * SAMPLES;
    let dense: Vec<f32> = (0..SAMPLES * DENSE).map(|i| value(2, base * DENSE + i)).collect();
    let (mut offsets, mut rows, mut row_weights) = (vec![0], Vec::new(), Vec::new());
    for f in 0..features {
        for n in 0..SAMPLES {
            let bag = (base + n) * 8 + f;
            for place in 0..if f == 0 { 1 } else { bits(3, bag) as usize % 4 } {
                rows.push(bits(4, bag * 4 + place) % ROWS as u32);
                row_weights.push(value(7, bag * 4 + place));
            }
            offsets.push(rows.len() as u32);
        }
    }
    let label = |task: usize, n: usize| {
        let score = dense[n * DENSE + task] + if rows[n] as usize % 3 == task { 0.5 } else { -0.25 };
        let absent = tasks > 1 && bits(6, (base + n) * 2 + task).is_multiple_of(5);
        if absent { f32::NAN } else { f32::from(score > 0.0) }
    };
    let labels =
        (0..tasks).flat_map(|task| (0..SAMPLES).map(move |n| (task, n))).map(|(t, n)| label(t, n)).collect();
    let weights = (0..SAMPLES).map(|n| 0.5 + value(5, base + n).abs());
    Batch {
        sample_count: SAMPLES,
        labels,
        weights: if tasks > 1 { weights.collect() } else { Vec::new() },
        bags: Bags::new(features, SAMPLES, offsets, rows, row_weights).expect("valid bags"),
        dense,
        ..Batch::default()
    }
}

fn model(dims: [usize; 3], poolings: [Pooling; 3], tasks: usize, network: NetworkSpec) -> ModelSpec {
    let table = |(t, dim): (usize, usize)| TableSpec {
        name: format!("table{t}"),
        row_count: ROWS as u64,
        dim,
        format: RowFormat::F32,
        init: RowInit::Zeros,
    };
    let feature = |(f, pooling): (usize, Pooling)| FeatureSpec {
        name: format!("feature{f}"),
        table: TableId(f as u32),
        pooling,
    };
    ModelSpec {
        dense_count: DENSE,
        features: poolings.into_iter().enumerate().map(feature).collect(),
        tables: dims.into_iter().enumerate().map(table).collect(),
        tasks: (0..tasks).map(|t| TaskSpec { name: format!("task{t}"), weight: [1.0, 0.5][t] }).collect(),
        heads: if tasks > 1 && !matches!(network, NetworkSpec::Mlp { .. }) {
            Heads::Separate
        } else {
            Heads::Shared
        },
        network,
        precision: Precision::F32,
        towers: campanile_spec::Towers::default(),
        followers: Vec::new(),
    }
}

/// Trains and compares with the recorded losses.
fn check(name: &str, spec: &ModelSpec, dense: (DenseOptimizer, f32), sparse: (SparseOptimizer, f32)) {
    let rate = |base| LearningRate { base, schedule: Schedule::Constant };
    let sparse =
        SparseTraining { optimizer: sparse.0, learning_rate: rate(sparse.1), l2: 0.0, row_norm_max: 0.0 };
    let dense = DenseTraining { optimizer: dense.0, learning_rate: rate(dense.1), l2: 0.0, norm_max: 0.0 };
    let mut oracle = Oracle::new(spec, Grains::new(4), &sparse, &dense);
    oracle.weights.values.iter_mut().enumerate().for_each(|(i, weight)| *weight = 0.4 * value(1, i));
    for (t, table) in oracle.tables.iter_mut().enumerate() {
        let values = table.iter_mut().flat_map(|row| &mut row.values);
        values.enumerate().for_each(|(i, weight)| *weight = 0.5 * value(20 + t as u32, i));
    }
    let recorded: serde_json::Value = serde_json::from_str(include_str!("pytorch.json")).expect("valid JSON");
    let losses: Vec<f64> = serde_json::from_value(recorded[name].clone()).expect("recorded losses");
    assert_eq!(losses.len(), 20);
    assert!(losses[19] < 0.9 * losses[0], "{name}: PyTorch learned nothing, so the comparison says little");
    for (step, wanted) in losses.iter().enumerate() {
        let found = oracle.train_step(&batch(step, 3, spec.tasks.len())).loss;
        assert!((found - wanted).abs() <= 1e-5 * wanted, "{name}, step {step}: {found}, PyTorch {wanted}");
    }
}

const ROWWISE: SparseOptimizer = SparseOptimizer::RowwiseAdagrad { epsilon: 1e-8, initial: 0.0 };
const SUM_MEAN_SUM: [Pooling; 3] = [Pooling::Sum, Pooling::Mean, Pooling::Sum];

#[test]
fn dlrm() {
    let network = NetworkSpec::Dlrm { bottom: vec![16, 8], top: vec![12] };
    let spec = model([8, 8, 8], SUM_MEAN_SUM, 1, network);
    check("dlrm", &spec, (DenseOptimizer::Sgd { momentum: 0.0 }, 0.5), (ROWWISE, 0.1));
}

#[test]
fn dcn_low_rank_stacked() {
    let network = NetworkSpec::Dcn {
        bottom: vec![6],
        cross_layers: 2,
        cross_rank: CrossRank::Low(3),
        structure: DcnStructure::Stacked,
        deep: vec![12, 7],
    };
    let spec = model([5, 8, 3], SUM_MEAN_SUM, 1, network);
    let adagrad = DenseOptimizer::Adagrad { epsilon: 1e-8, initial: 0.0 };
    check("dcn", &spec, (adagrad, 0.05), (ROWWISE, 0.1));
}

/// Projections, weighted bags, separate heads, absent labels, sample and task weights, momentum.
#[test]
fn dlrm_with_two_tasks() {
    let network = NetworkSpec::Dlrm { bottom: vec![16, 8], top: vec![12] };
    let poolings = [Pooling::Sum, Pooling::Mean, Pooling::Weighted];
    let spec = model([8, 5, 3], poolings, 2, network);
    check("dlrm_two_tasks", &spec, (DenseOptimizer::Sgd { momentum: 0.9 }, 0.1), (SparseOptimizer::Sgd, 2.0));
}

/// One MLP for both tasks, moved by PyTorch's own AdamW and AdaGrad.
#[test]
fn mlp_with_two_tasks() {
    let poolings = [Pooling::Sum, Pooling::Mean, Pooling::Weighted];
    let spec = model([8, 5, 3], poolings, 2, NetworkSpec::Mlp { hidden: vec![10] });
    let adamw = DenseOptimizer::Adamw { beta1: 0.9, beta2: 0.99, epsilon: 1e-6, decay: 0.1 };
    let adagrad = SparseOptimizer::Adagrad { epsilon: 1e-6, initial: 0.01 };
    check("mlp_two_tasks", &spec, (adamw, 0.02), (adagrad, 0.1));
}
