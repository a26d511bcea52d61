//! Every optimizer on every course of the learning rate, against the formulas of the literature in `f64`: nothing here
//! is shared with the engine or the oracle, not even the form of FTRL, which is told by all its past here.

use std::f64::consts::PI;

use campanile_kernels::Isa;
use campanile_model::optimizer::{Update, first_state};
use campanile_spec::{
    Bags, DenseOptimizer, LearningRate, Pooling, RowFormat, RowInit, Schedule, SparseOptimizer, TableSpec,
    config::DenseTraining,
};
use campanile_tables::{GradientBlock, Table, UpdateScratch, UpdateStep};

const STEPS: u64 = 40;
const DIM: usize = 19;
const ROWS: u64 = 3;

fn schedules() -> Vec<Schedule> {
    let decay = |power, end_factor| Schedule::WarmupPolynomial {
        warmup_steps: 5,
        decay_start: 12,
        decay_steps: 20,
        power,
        end_factor,
    };
    let cosine = Schedule::Cosine { warmup_steps: 7, total_steps: 33, end_factor: 0.05 };
    vec![Schedule::Constant, decay(2.0, 0.01), decay(0.7, 0.1), cosine]
}

/// The rate of a step, counted from 0.
fn rate(learning_rate: &LearningRate, step: u64) -> f64 {
    let t = step as f64;
    let (warmup, end, left): (f64, f32, f64) = match learning_rate.schedule {
        Schedule::Constant => (0.0, 0.0, 1.0),
        Schedule::WarmupPolynomial { warmup_steps, decay_start, decay_steps, power, end_factor } => {
            let done = ((t - decay_start as f64) / decay_steps as f64).clamp(0.0, 1.0);
            (warmup_steps as f64, end_factor, (1.0 - done).powf(f64::from(power)))
        }
        Schedule::Cosine { warmup_steps, total_steps, end_factor } => {
            let done = ((t - warmup_steps as f64) / (total_steps - warmup_steps) as f64).clamp(0.0, 1.0);
            (warmup_steps as f64, end_factor, 0.5 + 0.5 * (PI * done).cos())
        }
    };
    let warm = if t < warmup { (t + 1.0) / warmup } else { 1.0 };
    f64::from(learning_rate.base) * warm * (f64::from(end) + (1.0 - f64::from(end)) * left)
}

/// One element's past: `(gradient, mean square over the row, rate, step from 1)` of each of its moves.
struct Past {
    first: f64,
    moves: Vec<(f64, f64, f64, u64)>,
}

/// Where a weight is after all its moves.
fn weight_after(optimizer: &SparseOptimizer, past: &Past) -> f64 {
    let wide = f64::from;
    let Past { first, moves } = past;
    let (mut w, mut m, mut v) = (*first, 0.0, 0.0);
    match *optimizer {
        SparseOptimizer::Sgd => moves.iter().for_each(|(g, _, lr, _)| w -= lr * g),
        SparseOptimizer::Adagrad { epsilon, initial } => {
            v = wide(initial);
            for (g, _, lr, _) in moves {
                v += g * g;
                w -= lr * g / (v.sqrt() + wide(epsilon));
            }
        }
        SparseOptimizer::RowwiseAdagrad { epsilon, initial } => {
            v = wide(initial);
            for (g, mean, lr, _) in moves {
                v += mean;
                w -= lr * g / (v.sqrt() + wide(epsilon));
            }
        }
        SparseOptimizer::Adam { beta1, beta2, epsilon }
        | SparseOptimizer::RowwiseAdam { beta1, beta2, epsilon } => {
            let (b1, b2) = (wide(beta1), wide(beta2));
            let rowwise = matches!(optimizer, SparseOptimizer::RowwiseAdam { .. });
            for (g, mean, lr, t) in moves {
                m = b1 * m + (1.0 - b1) * g;
                v = b2 * v + (1.0 - b2) * if rowwise { *mean } else { g * g };
                let (mh, vh) = (m / (1.0 - b1.powi(*t as i32)), v / (1.0 - b2.powi(*t as i32)));
                w -= lr * mh / (vh.sqrt() + wide(epsilon));
            }
        }
        SparseOptimizer::Ftrl { beta, l1, l2 } => {
            return ftrl(*first, moves, [wide(beta), wide(l1), wide(l2)]);
        }
    }
    w
}

/// `argmin_w  w·Σg + ½ Σ sigma_s (w - w_s)² + l1 |w| + ½ l2 w²`, where the sigmas up to `t` sum to one over the rate of the
/// element at `t`, `(beta + sqrt(Σg²)) / lr_t`; and the first value is where the sum stood before any gradient.
fn ftrl(first: f64, moves: &[(f64, f64, f64, u64)], [beta, l1, l2]: [f64; 3]) -> f64 {
    let sign = if first == 0.0 { 0.0 } else { first.signum() };
    let (mut gradients, mut squares) = (-(sign * l1 + l2 * first), 0.0);
    let (mut w, mut centres): (f64, Vec<(f64, f64)>) = (first, Vec::new());
    for (g, _, lr, _) in moves {
        gradients += g;
        squares += g * g;
        let before: f64 = centres.iter().map(|(sigma, _)| sigma).sum();
        centres.push(((beta + f64::sqrt(squares)) / lr - before, w));
        let curvature: f64 = centres.iter().map(|(sigma, _)| sigma).sum();
        let pull: f64 = centres.iter().map(|(sigma, centre)| sigma * centre).sum::<f64>() - gradients;
        w = pull.signum() * (pull.abs() - l1).max(0.0) / (curvature + l2);
    }
    w
}

/// A number in [-1, 1), from where it is used.
fn noise(step: u64, row: u64, element: usize) -> f32 {
    let mixed = (step * 131 + row * 17 + element as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// Row 0 moves every step, row 1 every third, row 2 for the first time when the rate has fallen.
fn moves_in(row: u64, step: u64) -> bool {
    [true, step.is_multiple_of(3), step > 25][row as usize]
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn sparse_optimizers() -> Vec<SparseOptimizer> {
    let (beta1, beta2, epsilon) = (0.9, 0.99, 1e-8);
    vec![
        SparseOptimizer::Sgd,
        SparseOptimizer::Adagrad { epsilon, initial: 0.1 },
        SparseOptimizer::RowwiseAdagrad { epsilon, initial: 0.1 },
        SparseOptimizer::Adam { beta1, beta2, epsilon },
        SparseOptimizer::RowwiseAdam { beta1, beta2, epsilon },
        SparseOptimizer::Ftrl { beta: 1.0, l1: 0.0, l2: 0.0 },
        SparseOptimizer::Ftrl { beta: 1.0, l1: 0.3, l2: 0.1 },
        SparseOptimizer::Ftrl { beta: 0.0, l1: 0.02, l2: 0.0 },
    ]
}

fn table(optimizer: &SparseOptimizer, isa: Isa) -> Table {
    let spec = TableSpec {
        name: "t".into(),
        row_count: ROWS,
        dim: DIM,
        format: RowFormat::F32,
        init: RowInit::Uniform { bound: 0.5 },
    };
    Table::new(&spec, 0..ROWS, optimizer, 5).unwrap().with_isa(isa)
}

/// Moves some rows by a gradient for each element.
fn train(table: &mut Table, step: UpdateStep, rows: &[u32], gradient: impl Fn(u32, usize) -> f32) {
    let values: Vec<f32> =
        rows.iter().flat_map(|row| (0..DIM).map(|element| gradient(*row, element))).collect();
    let bags = Bags::one_row_each(1, rows.len(), rows.to_vec());
    let block = GradientBlock {
        bags: bags.feature(0),
        pooling: Pooling::Sum,
        gradient: &values,
        stride: DIM,
        offset: 0,
    };
    table.update(&[block], &step, &mut UpdateScratch::default()).unwrap();
}

#[test]
fn rows_follow_the_literature_on_every_schedule() {
    for (optimizer, schedule) in
        sparse_optimizers().into_iter().flat_map(|one| schedules().into_iter().map(move |s| (one, s)))
    {
        let learning_rate = LearningRate { base: 0.05, schedule };
        let mut table = table(&optimizer, Isa::detect());
        let first = floats(table.row_bytes(0..ROWS));
        let mut pasts: Vec<Past> =
            first.iter().map(|w| Past { first: f64::from(*w), moves: Vec::new() }).collect();
        for step in 0..STEPS {
            let rows: Vec<u32> = (0..ROWS).filter(|row| moves_in(*row, step)).map(|row| row as u32).collect();
            let gradient = |row: u32, element| 0.4 * noise(step, u64::from(row), element);
            for row in &rows {
                let wide = |element| f64::from(gradient(*row, element));
                let mean = (0..DIM).map(|element| wide(element) * wide(element)).sum::<f64>() / DIM as f64;
                for element in 0..DIM {
                    let one = (wide(element), mean, rate(&learning_rate, step), step + 1);
                    pasts[*row as usize * DIM + element].moves.push(one);
                }
            }
            let step = UpdateStep {
                learning_rate: learning_rate.at(step),
                step,
                l2: 0.0,
                row_norm_max: 0.0,
                seed: 1,
            };
            train(&mut table, step, &rows, gradient);
            for (place, (found, past)) in floats(table.row_bytes(0..ROWS)).iter().zip(&pasts).enumerate() {
                let want = weight_after(&optimizer, past);
                assert!(
                    (f64::from(*found) - want).abs() < 1e-5,
                    "{optimizer:?}, {schedule:?}, step {}, place {place}: {found}, the literature has {want}",
                    step.step
                );
            }
        }
    }
}

#[test]
fn a_row_keeps_its_first_value_until_gradients_move_it() {
    for (optimizer, isa) in
        sparse_optimizers().into_iter().flat_map(|one| Isa::all().into_iter().map(move |isa| (one, isa)))
    {
        let mut table = table(&optimizer, isa);
        let first = floats(table.row_bytes(0..ROWS));
        let step =
            |learning_rate, step| UpdateStep { learning_rate, step, l2: 0.0, row_norm_max: 0.0, seed: 1 };
        train(&mut table, step(0.05, 0), &[0, 1], |_, _| 0.0);
        assert_eq!(floats(table.row_bytes(0..ROWS)), first, "{optimizer:?} {isa:?}: no gradient");
        // A rate of almost nothing: whatever the rule makes of a gradient, it cannot go far.
        train(&mut table, step(1e-7, 1), &[0, 1], |_, element| 0.3 - 0.6 * (element % 2) as f32);
        for (found, first) in floats(table.row_bytes(0..ROWS)).iter().zip(&first) {
            assert!((found - first).abs() < 1e-6, "{optimizer:?} {isa:?}: {first} became {found}");
        }
    }
}

#[test]
fn no_state_stays_below_the_normal_numbers() {
    // Adam's means fade by a tenth a step: 1,000 steps lead them through all denormals.
    for (optimizer, isa) in
        sparse_optimizers().into_iter().flat_map(|one| Isa::all().into_iter().map(move |isa| (one, isa)))
    {
        let optimizer = match optimizer {
            SparseOptimizer::Adam { beta1, epsilon, .. } => {
                SparseOptimizer::Adam { beta1, beta2: 0.9, epsilon }
            }
            SparseOptimizer::RowwiseAdam { beta1, epsilon, .. } => {
                SparseOptimizer::RowwiseAdam { beta1, beta2: 0.9, epsilon }
            }
            SparseOptimizer::Adagrad { epsilon, .. } => SparseOptimizer::Adagrad { epsilon, initial: 0.0 },
            SparseOptimizer::RowwiseAdagrad { epsilon, .. } => {
                SparseOptimizer::RowwiseAdagrad { epsilon, initial: 0.0 }
            }
            other => other,
        };
        let mut table = table(&optimizer, isa);
        for number in 0..1_000 {
            let step = UpdateStep { learning_rate: 1e-3, step: number, l2: 0.0, row_norm_max: 0.0, seed: 1 };
            // Row 1 only ever sees gradients whose squares are denormal.
            let gradient = |row: u32, _: usize| match (row, number) {
                (0, 0) => 0.1,
                (0, _) => 0.0,
                _ => 1e-20,
            };
            train(&mut table, step, &[0, 1], gradient);
            let held = table.state(0..ROWS);
            assert!(
                held.iter().all(|state| !state.is_subnormal()),
                "{optimizer:?} {isa:?}: {:?} after step {number}",
                held.iter().find(|state| state.is_subnormal())
            );
        }
        let adam = matches!(optimizer, SparseOptimizer::Adam { .. } | SparseOptimizer::RowwiseAdam { .. });
        assert!(!adam || table.state(0..1).iter().all(|state| *state == 0.0), "{optimizer:?} {isa:?}");
    }
}

fn dense_optimizers() -> Vec<DenseOptimizer> {
    let (beta1, beta2, epsilon) = (0.9, 0.95, 1e-8);
    vec![
        DenseOptimizer::Sgd { momentum: 0.0 },
        DenseOptimizer::Sgd { momentum: 0.9 },
        DenseOptimizer::Adagrad { epsilon, initial: 0.1 },
        DenseOptimizer::Adam { beta1, beta2, epsilon },
        DenseOptimizer::Adamw { beta1, beta2, epsilon, decay: 0.2 },
    ]
}

/// Where a dense weight is after its moves.
fn dense_after(optimizer: &DenseOptimizer, past: &Past) -> f64 {
    let wide = f64::from;
    let like = |optimizer| weight_after(&optimizer, past);
    match *optimizer {
        DenseOptimizer::Sgd { momentum } => {
            let moved = past.moves.iter().fold((past.first, 0.0), |(w, u), (g, _, lr, _)| {
                let u = wide(momentum) * u + g;
                (w - lr * u, u)
            });
            moved.0
        }
        DenseOptimizer::Adagrad { epsilon, initial } => like(SparseOptimizer::Adagrad { epsilon, initial }),
        DenseOptimizer::Adam { beta1, beta2, epsilon } => {
            like(SparseOptimizer::Adam { beta1, beta2, epsilon })
        }
        DenseOptimizer::Adamw { beta1, beta2, epsilon, decay } => {
            let (b1, b2, mut w, mut m, mut v) = (wide(beta1), wide(beta2), past.first, 0.0, 0.0);
            for (g, _, lr, t) in &past.moves {
                w -= lr * wide(decay) * w;
                m = b1 * m + (1.0 - b1) * g;
                v = b2 * v + (1.0 - b2) * g * g;
                let (mh, vh) = (m / (1.0 - b1.powi(*t as i32)), v / (1.0 - b2.powi(*t as i32)));
                w -= lr * mh / (vh.sqrt() + wide(epsilon));
            }
            w
        }
    }
}

#[test]
fn dense_weights_follow_the_literature_on_every_schedule() {
    for (optimizer, schedule) in
        dense_optimizers().into_iter().flat_map(|one| schedules().into_iter().map(move |s| (one, s)))
    {
        let learning_rate = LearningRate { base: 0.05, schedule };
        let training = DenseTraining { optimizer, learning_rate, l2: 0.0, norm_max: 0.0 };
        let mut weights: Vec<f32> = (0..DIM).map(|place| noise(999, 0, place)).collect();
        let mut pasts: Vec<Past> =
            weights.iter().map(|w| Past { first: f64::from(*w), moves: Vec::new() }).collect();
        let mut state = first_state(&optimizer, DIM);
        for step in 0..STEPS {
            let gradient: Vec<f32> = (0..DIM).map(|place| 0.4 * noise(step, 7, place)).collect();
            let mut views: Vec<&mut [f32]> = state.iter_mut().map(Vec::as_mut_slice).collect();
            Update::new(&training, step, 1.0).apply(&mut weights, &mut views, &gradient);
            for ((found, past), g) in weights.iter().zip(&mut pasts).zip(&gradient) {
                past.moves.push((f64::from(*g), 0.0, rate(&learning_rate, step), step + 1));
                let want = dense_after(&optimizer, past);
                assert!(
                    (f64::from(*found) - want).abs() < 1e-5,
                    "{optimizer:?}, {schedule:?}, step {step}: {found}, {want}"
                );
            }
        }
    }
}

#[test]
fn no_dense_state_stays_below_the_normal_numbers() {
    for optimizer in dense_optimizers() {
        let optimizer = match optimizer {
            DenseOptimizer::Adagrad { epsilon, .. } => DenseOptimizer::Adagrad { epsilon, initial: 0.0 },
            other => other,
        };
        let learning_rate = LearningRate { base: 1e-3, schedule: Schedule::Constant };
        let training = DenseTraining { optimizer, learning_rate, l2: 0.0, norm_max: 0.0 };
        let (mut weights, mut state) = (vec![0.5; 40], first_state(&optimizer, 40));
        for step in 0..2_500 {
            let gradient: Vec<f32> = (0..40)
                .map(|place| if place % 2 == 0 && step == 0 { 0.1 } else { (place % 2) as f32 * 1e-20 })
                .collect();
            let mut views: Vec<&mut [f32]> = state.iter_mut().map(Vec::as_mut_slice).collect();
            Update::new(&training, step, 1.0).apply(&mut weights, &mut views, &gradient);
            let found = state.concat().into_iter().find(|state| state.is_subnormal());
            assert_eq!(found, None, "{optimizer:?} after step {step}");
        }
    }
}
