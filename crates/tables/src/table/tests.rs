//! The table against a plain model: a map from row to floats, and the formulas as they read.

use std::collections::BTreeMap;

use campanile_kernels::{
    half::{bf16_nearest, bf16_stochastic, f16_nearest, f16_stochastic, f32_from_bf16, f32_from_f16},
    random::{element_bits, row_key, step_key},
};
use campanile_spec::{Bags, RowInit};
use proptest::prelude::*;

use super::*;
use crate::cut::RowRun;

const ROW_COUNT: u64 = 12;
const SEED: u64 = 77;

fn spec(dim: usize, format: RowFormat) -> TableSpec {
    TableSpec {
        name: "user".into(),
        row_count: ROW_COUNT,
        dim,
        format,
        init: RowInit::Uniform { bound: 0.5 },
    }
}

fn optimizers() -> impl Strategy<Value = SparseOptimizer> {
    prop::sample::select(vec![
        SparseOptimizer::Sgd,
        SparseOptimizer::Adagrad { epsilon: 1e-6, initial: 0.1 },
        SparseOptimizer::RowwiseAdagrad { epsilon: 1e-6, initial: 0.1 },
        SparseOptimizer::Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-8 },
        SparseOptimizer::RowwiseAdam { beta1: 0.9, beta2: 0.99, epsilon: 1e-8 },
        SparseOptimizer::Ftrl { beta: 1.0, l1: 0.01, l2: 0.1 },
    ])
}

/// One row of the model.
#[derive(Debug, Clone, PartialEq)]
struct Line {
    w: Vec<f32>,
    state: Vec<f32>,
}

type Model = BTreeMap<u32, Line>;

fn decode(format: RowFormat, bytes: &[u8]) -> Vec<f32> {
    let halves = || bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    match format {
        RowFormat::F32 => {
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        }
        RowFormat::F16 => halves().map(f32_from_f16).collect(),
        RowFormat::Bf16 => halves().map(f32_from_bf16).collect(),
    }
}

fn read(table: &Table) -> Model {
    let line = |row: u64| Line {
        w: decode(table.spec().format, table.row_bytes(row..row + 1)),
        state: table.state(row..row + 1).to_vec(),
    };
    table.rows().map(|row| (row as u32, line(row))).collect()
}

/// Bags of two features over a run of samples, with weights.
fn batches() -> impl Strategy<Value = Vec<Vec<Vec<u32>>>> {
    let bag = prop::collection::vec(prop_oneof![0..ROW_COUNT as u32, Just(ROW_COUNT as u32 - 1)], 0..4);
    (1_usize..7)
        .prop_flat_map(move |samples| prop::collection::vec(prop::collection::vec(bag.clone(), samples), 2))
}

fn bags_of(features: &[Vec<Vec<u32>>]) -> Bags {
    let mut offsets = vec![0];
    for bag in features.concat() {
        offsets.push(offsets[offsets.len() - 1] + bag.len() as u32);
    }
    let rows: Vec<u32> = features.concat().concat();
    let weights = (0..rows.len()).map(|i| (i as f32 * 0.9).sin() + 1.5).collect();
    Bags::new(features.len(), features[0].len(), offsets, rows, weights).expect("bags that fit together")
}

fn gradient(samples: usize, dim: usize, step: u64) -> Vec<f32> {
    (0..samples * 2 * dim).map(|i| element_bits(step + 5, i) as f32 / 4e9 - 0.5).collect()
}

const POOLINGS: [Pooling; 2] = [Pooling::Mean, Pooling::Weighted];

fn blocks<'a>(bags: &'a [Bags], gradients: &'a [Vec<f32>], dim: usize) -> Vec<GradientBlock<'a>> {
    let block = |feature: usize, run: usize| GradientBlock {
        bags: bags[run].feature(feature),
        pooling: POOLINGS[feature],
        gradient: &gradients[run],
        stride: 2 * dim,
        offset: feature * dim,
    };
    (0..2).flat_map(|feature| (0..bags.len()).map(move |run| block(feature, run))).collect()
}

fn step(number: u64, optimizer: &SparseOptimizer) -> UpdateStep {
    let l2 = if matches!(optimizer, SparseOptimizer::Ftrl { .. }) { 0.0 } else { 0.001 };
    UpdateStep { learning_rate: 0.1, step: number, l2, row_norm_max: 0.8, seed: SEED }
}

/// The update as the documentation has it.
fn update_model(model: &mut Model, table: &Table, bags: &Bags, gradient: &[f32], step: &UpdateStep) {
    let dim = table.spec().dim;
    let mut merged: BTreeMap<u32, Vec<f32>> = BTreeMap::new();
    for feature in 0..2 {
        let one = bags.feature(feature);
        for sample in 0..bags.sample_count() {
            for position in one.range(sample) {
                let weight = match POOLINGS[feature] {
                    Pooling::Mean => 1.0 / one.range(sample).len() as f32,
                    _ => one.weights[position],
                };
                let vector = &gradient[(sample * 2 + feature) * dim..][..dim];
                let part: Vec<f32> = vector.iter().map(|g| weight * g).collect();
                let entry = merged.entry(one.rows[position]);
                entry
                    .and_modify(|sum| sum.iter_mut().zip(&part).for_each(|(sum, part)| *sum += part))
                    .or_insert(part);
            }
        }
    }
    for (row, mut g) in merged {
        let line = model.get_mut(&row).expect("a row of the table");
        let norm = sum_of_squares(&g).sqrt();
        if norm > step.row_norm_max {
            g.iter_mut().for_each(|g| *g *= step.row_norm_max / norm);
        }
        if step.l2 != 0.0 {
            g.iter_mut().zip(&line.w).for_each(|(g, w)| *g += step.l2 * w);
        }
        let key = row_key(step_key(step.seed, table.spec().key(), step.step), u64::from(row));
        let stored = |element: usize, w: f32| {
            let random = element_bits(key, element);
            match table.spec().format {
                RowFormat::F32 => w,
                RowFormat::F16 => f32_from_f16(f16_stochastic(w, random)),
                RowFormat::Bf16 => f32_from_bf16(bf16_stochastic(w, random)),
            }
        };
        move_line(line, (&g, &stored), table.optimizer(), step);
        line.w.iter_mut().enumerate().for_each(|(element, w)| *w = stored(element, *w));
    }
}

fn sum_of_squares(values: &[f32]) -> f32 {
    let block = |values: &[f32]| {
        let mut partial = [0.0f32; 16];
        values.iter().enumerate().for_each(|(at, value)| partial[at % 16] += value * value);
        for half in [8, 4, 2, 1] {
            (0..half).for_each(|lane| partial[lane] += partial[lane + half]);
        }
        partial[0]
    };
    values.chunks(32).map(block).fold(0.0, |sum, block| sum + block)
}

/// What is below the normal numbers is nothing.
fn flush(state: f32) -> f32 {
    if state.is_subnormal() { 0.0 } else { state }
}

/// `stored` is an element as it will be read back.
fn move_line(
    line: &mut Line,
    (g, stored): (&[f32], &dyn Fn(usize, f32) -> f32),
    optimizer: &SparseOptimizer,
    step: &UpdateStep,
) {
    let Line { w, state } = line;
    let (dim, lr, mean) = (w.len(), step.learning_rate, sum_of_squares(g) / w.len() as f32);
    let correction = |beta: f32| (1.0 - f64::from(beta).powi(step.step as i32 + 1)) as f32;
    match *optimizer {
        SparseOptimizer::Sgd => (0..dim).for_each(|i| w[i] -= lr * g[i]),
        SparseOptimizer::Adagrad { epsilon, .. } => {
            for i in 0..dim {
                state[i] = flush(state[i] + g[i] * g[i]);
                w[i] -= lr * g[i] / (state[i].sqrt() + epsilon);
            }
        }
        SparseOptimizer::RowwiseAdagrad { epsilon, .. } => {
            state[0] = flush(state[0] + mean);
            (0..dim).for_each(|i| w[i] -= lr / (state[0].sqrt() + epsilon) * g[i]);
        }
        SparseOptimizer::Adam { beta1, beta2, epsilon } => {
            for i in 0..dim {
                state[i] = flush(beta1 * state[i] + (1.0 - beta1) * g[i]);
                state[dim + i] = flush(beta2 * state[dim + i] + (1.0 - beta2) * g[i] * g[i]);
                let root = (state[dim + i] / correction(beta2)).sqrt() + epsilon;
                w[i] -= lr / correction(beta1) * state[i] / root;
            }
        }
        SparseOptimizer::RowwiseAdam { beta1, beta2, epsilon } => {
            state[dim] = flush(beta2 * state[dim] + (1.0 - beta2) * mean);
            let root = (state[dim] / correction(beta2)).sqrt() + epsilon;
            for i in 0..dim {
                state[i] = flush(beta1 * state[i] + (1.0 - beta1) * g[i]);
                w[i] -= lr / correction(beta1) / root * state[i];
            }
        }
        SparseOptimizer::Ftrl { beta, l1, l2 } => {
            for i in 0..dim {
                if flush(g[i] * g[i]) == 0.0 {
                    continue;
                }
                let sign = if w[i] == 0.0 { 0.0 } else { w[i].signum() };
                let left = if state[dim + i] == 0.0 { -(sign * l1 + l2 * w[i]) } else { state[i] };
                state[dim + i] += g[i] * g[i];
                let slope = (beta + state[dim + i].sqrt()) / lr;
                let u = left + (g[i] - slope * w[i]);
                w[i] = if u.abs() <= l1 { 0.0 } else { -(u - u.signum() * l1) / (slope + l2) };
                state[i] = flush(u + slope * stored(i, w[i]));
            }
        }
    }
}

fn pool_model(model: &Model, bags: &Bags, feature: usize, pooling: Pooling, dim: usize) -> Vec<f32> {
    let one = bags.feature(feature);
    let mut out = Vec::new();
    for sample in 0..bags.sample_count() {
        let mut sum = vec![0.0; dim];
        for position in one.range(sample) {
            let weight = if pooling == Pooling::Weighted { one.weights[position] } else { 1.0 };
            let w = &model[&one.rows[position]].w;
            sum.iter_mut().zip(w).for_each(|(sum, w)| *sum += weight * w);
        }
        if pooling == Pooling::Mean && one.range(sample).len() > 1 {
            sum.iter_mut().for_each(|sum| *sum /= one.range(sample).len() as f32);
        }
        out.extend(sum);
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Several steps of lookup and update give the model's numbers, at every level, whatever the samples are
    /// cut into.
    #[test]
    fn a_table_is_a_map_of_rows(
        dim in prop_oneof![1_usize..20, Just(16), Just(32), Just(64), 60_usize..70],
        format in prop::sample::select(vec![RowFormat::F32, RowFormat::F16, RowFormat::Bf16]),
        optimizer in optimizers(),
        steps in prop::collection::vec((batches(), any::<prop::sample::Index>()), 1..4),
    ) {
        for isa in Isa::all() {
            let new = || Table::new(&spec(dim, format), 0..ROW_COUNT, &optimizer, SEED).map(|t| t.with_isa(isa));
            let (mut whole, mut cut) = (new().expect("memory"), new().expect("memory"));
            let mut model = read(&whole);
            let mut scratch = UpdateScratch::default();
            for (number, (features, middle)) in steps.iter().enumerate() {
                let bags = bags_of(features);
                let samples = bags.sample_count();
                for (feature, pooling) in [(0, Pooling::Sum), (0, Pooling::Mean), (1, Pooling::Weighted)] {
                    let mut out = vec![0.0; samples * (dim + 3)];
                    whole.pool(pooling, &bags.feature(feature), &mut out, dim + 3, 2).expect("rows of the table");
                    let found: Vec<f32> = out.chunks_exact(dim + 3).flat_map(|v| v[2..][..dim].to_vec()).collect();
                    prop_assert_eq!(found, pool_model(&model, &bags, feature, pooling, dim));
                }
                let (g, step) = (gradient(samples, dim, number as u64), step(number as u64, &optimizer));
                update_model(&mut model, &whole, &bags, &g, &step);
                let (one, one_gradient) = ([bags.clone()], [g.clone()]);
                let report = whole.update(&blocks(&one, &one_gradient, dim), &step, &mut scratch).expect("rows");
                prop_assert_eq!(report.ids_seen, bags.rows().len() as u64);
                prop_assert_eq!(&read(&whole), &model, "{:?}", isa);

                let middle = middle.index(samples + 1);
                let runs = [bags.slice(0..middle), bags.slice(middle..samples)];
                let (first, last) = g.split_at(middle * 2 * dim);
                let gradients = [first.to_vec(), last.to_vec()];
                let again = cut.update(&blocks(&runs, &gradients, dim), &step, &mut scratch).expect("rows");
                prop_assert_eq!(again, report);
                prop_assert_eq!(&read(&cut), &model, "cut at {}", middle);
            }
        }
    }
}

#[test]
fn a_part_holds_the_rows_of_the_whole() {
    let optimizer = SparseOptimizer::RowwiseAdagrad { epsilon: 1e-6, initial: 0.5 };
    for format in [RowFormat::F32, RowFormat::F16, RowFormat::Bf16] {
        for init in [RowInit::Uniform { bound: 0.5 }, RowInit::Normal { deviation: 0.1 }, RowInit::Zeros] {
            let spec = TableSpec { init, ..spec(5, format) };
            let mut whole = Table::new(&spec, 0..ROW_COUNT, &optimizer, SEED).expect("memory");
            let mut part = Table::new(&spec, 7..ROW_COUNT, &optimizer, SEED).expect("memory");
            assert_eq!(part.row_bytes(7..ROW_COUNT), whole.row_bytes(7..ROW_COUNT));
            let distinct: std::collections::BTreeSet<&[u8]> =
                (0..ROW_COUNT).map(|row| whole.row_bytes(row..row + 1)).collect();
            assert_eq!(distinct.len() as u64, if init == RowInit::Zeros { 1 } else { ROW_COUNT });

            let bags = Bags::one_row_each(1, 3, vec![11, 7, 11]);
            let gradient: Vec<f32> = (0..15).map(|i| i as f32 * 0.1 - 0.7).collect();
            let bags = bags.feature(0);
            let block =
                GradientBlock { bags, pooling: Pooling::Sum, gradient: &gradient, stride: 5, offset: 0 };
            for table in [&mut whole, &mut part] {
                let report = table.update(&[block], &step(0, &optimizer), &mut UpdateScratch::default());
                assert_eq!(report, Ok(UpdateReport { ids_seen: 3, rows_touched: 2 }));
            }
            assert_eq!(part.row_bytes(7..ROW_COUNT), whole.row_bytes(7..ROW_COUNT));
            assert_eq!(part.state(7..ROW_COUNT), whole.state(7..ROW_COUNT));
            assert_eq!(whole.state(0..7), [0.5; 7]);
        }
    }
}

#[test]
fn sixteen_bit_rows_start_at_the_nearest_value() {
    let exact =
        Table::new(&spec(9, RowFormat::F32), 0..ROW_COUNT, &SparseOptimizer::Sgd, SEED).expect("memory");
    for (format, nearest) in
        [(RowFormat::F16, f16_nearest as fn(f32) -> u16), (RowFormat::Bf16, bf16_nearest)]
    {
        let rounded =
            Table::new(&spec(9, format), 0..ROW_COUNT, &SparseOptimizer::Sgd, SEED).expect("memory");
        let want: Vec<u8> = decode(RowFormat::F32, exact.row_bytes(0..ROW_COUNT))
            .into_iter()
            .flat_map(|v| nearest(v).to_le_bytes())
            .collect();
        assert_eq!(rounded.row_bytes(0..ROW_COUNT), want);
    }
}

/// Applying the optimizer to every occurrence on its own is another result: the merge is not a detail.
#[test]
fn merging_is_not_the_same_as_updating_per_occurrence() {
    let optimizer = SparseOptimizer::RowwiseAdagrad { epsilon: 1e-6, initial: 0.0 };
    let new = || Table::new(&spec(4, RowFormat::F32), 0..ROW_COUNT, &optimizer, SEED).expect("memory");
    let (mut merged, mut apart) = (new(), new());
    let gradient: Vec<f32> = (0..8).map(|i| i as f32 * 0.1 - 0.3).collect();
    let bags = Bags::one_row_each(1, 2, vec![3, 3]);
    let (both, first, second) = (bags.clone(), bags.slice(0..1), bags.slice(1..2));
    let block =
        |bags, gradient| GradientBlock { bags, pooling: Pooling::Sum, gradient, stride: 4, offset: 0 };
    let (step, mut scratch) = (step(0, &optimizer), UpdateScratch::default());
    merged.update(&[block(both.feature(0), &gradient)], &step, &mut scratch).expect("row 3");
    apart.update(&[block(first.feature(0), &gradient[..4])], &step, &mut scratch).expect("row 3");
    apart.update(&[block(second.feature(0), &gradient[4..])], &step, &mut scratch).expect("row 3");
    assert_ne!(merged.row_bytes(3..4), apart.row_bytes(3..4));
}

#[test]
fn a_row_that_is_not_there_is_named_and_nothing_moves() {
    let optimizer = SparseOptimizer::Sgd;
    let mut table = Table::new(&spec(2, RowFormat::F32), 4..9, &optimizer, SEED).expect("memory");
    let before = table.row_bytes(4..9).to_vec();
    for row in [3, 9, u32::MAX] {
        let bags = Bags::one_row_each(1, 2, vec![5, row]);
        let bags = bags.feature(0);
        let message = format!(
            "table `user`: row {row} is not among rows 4..9 (the table has 12); hash ids to rows, or raise row_count"
        );
        let mut out = [0.0; 4];
        let pooled = table.pool(Pooling::Sum, &bags, &mut out, 2, 0);
        assert_eq!(pooled.expect_err("an unknown row").to_string(), message);
        let block = GradientBlock { bags, pooling: Pooling::Sum, gradient: &[1.0; 4], stride: 2, offset: 0 };
        let updated = table.update(&[block], &step(0, &optimizer), &mut UpdateScratch::default());
        assert_eq!(updated.expect_err("an unknown row").to_string(), message);
    }
    assert_eq!(table.row_bytes(4..9), before);
}

#[test]
fn what_cannot_be_held_is_said_before_it_is_tried() {
    let optimizer = SparseOptimizer::Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-8 };
    let huge = TableSpec { row_count: u64::from(u32::MAX), ..spec(1 << 20, RowFormat::F32) };
    let error = Table::new(&huge, 0..huge.row_count, &optimizer, SEED).expect_err("50 PiB");
    let message = error.to_string();
    assert!(
        message.starts_with("table `user`: 4294967295 rows of 1048576 need 48.00 PiB of memory"),
        "{message}"
    );
    assert!(
        message.ends_with("take fewer rows, a smaller dim, a 16-bit format or a row-wise optimizer"),
        "{message}"
    );

    let error = Table::new(&spec(0, RowFormat::F32), 0..1, &optimizer, SEED).expect_err("no floats");
    assert_eq!(error.to_string(), "table `user`: dim is 0; a row needs at least one float");
    let wide = TableSpec { row_count: 1 << 32, ..spec(1, RowFormat::F32) };
    let error = Table::new(&wide, 0..1, &optimizer, SEED).expect_err("too many rows");
    assert_eq!(
        error.to_string(),
        "table `user`: row_count 4294967296 is above 4294967295, the most that a row number can name"
    );
}

/// A cut sees the rows as they were when it began, however often they move afterwards.
#[test]
fn a_cut_keeps_rows_as_they_were() {
    let optimizer = SparseOptimizer::Adagrad { epsilon: 1e-6, initial: 0.0 };
    let mut table = Table::new(&spec(3, RowFormat::F16), 2..11, &optimizer, SEED).expect("memory");
    let mut scratch = UpdateScratch::default();
    let mut train = |table: &mut Table, number: u64| {
        let bags = Bags::one_row_each(1, 4, vec![10, 2, 5, 10]);
        let (bags, gradient) = (bags.feature(0), [0.5; 12]);
        let block = GradientBlock { bags, pooling: Pooling::Sum, gradient: &gradient, stride: 3, offset: 0 };
        table.update(&[block], &step(number, &optimizer), &mut scratch).expect("rows of the part");
    };
    train(&mut table, 0);
    let (rows, state) = (table.row_bytes(2..11).to_vec(), table.state(2..11).to_vec());
    table.begin_cut();
    train(&mut table, 1);
    train(&mut table, 2);
    assert_ne!(table.row_bytes(2..11), rows);
    let run = table.sweep(RowRun::default()).expect("a piece");
    assert_eq!((run.first_row, run.row_count, run.bytes, run.state), (2, 9, rows.clone(), state.clone()));

    table.write_rows(2..11, &rows, &state);
    assert_eq!((table.row_bytes(2..11), table.state(2..11)), (&rows[..], &state[..]));
}
