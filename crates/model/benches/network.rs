//! How long the dense network takes by itself: forward and backward of grains, one thread, beside the core's
//! own peak of multiply-adds. Times are the thread's CPU time, so a busy machine disturbs them less.
//!
//! Run with `cargo bench -p campanile-model --bench network`.
#![allow(unsafe_code)]

use campanile_kernels::{Isa, peak};
use campanile_model::{
    Network,
    network::{Inputs, Outputs},
    optimizer::{self, Update},
};
use campanile_spec::{
    CrossRank, DcnStructure, DenseOptimizer, FeatureSpec, Heads, LearningRate, ModelSpec, NetworkSpec,
    Pooling, Precision, RowFormat, RowInit, Schedule, TableId, TableSpec, TaskSpec, config::DenseTraining,
};

const ROUNDS: usize = 15;

fn spec(dim: usize, network: NetworkSpec, precision: Precision) -> ModelSpec {
    let table = |i: usize| TableSpec {
        name: format!("t{i}"),
        row_count: 1,
        dim,
        format: RowFormat::F32,
        init: RowInit::Zeros,
    };
    let feature =
        |i: usize| FeatureSpec { name: format!("f{i}"), table: TableId(i as u32), pooling: Pooling::Sum };
    ModelSpec {
        dense_count: 13,
        features: (0..26).map(feature).collect(),
        tables: (0..26).map(table).collect(),
        tasks: vec![TaskSpec { name: "click".into(), weight: 1.0 }],
        network,
        heads: Heads::Shared,
        precision,
        towers: campanile_spec::Towers::default(),
        followers: Vec::new(),
    }
}

fn networks() -> Vec<(&'static str, usize, NetworkSpec)> {
    let (kaggle, terabyte) =
        ((vec![512, 256, 64, 16], vec![512, 256]), (vec![512, 256, 128], vec![1024, 1024, 512, 256]));
    let dcn = |bottom: Vec<usize>, deep: Vec<usize>| {
        let (cross_rank, structure) = (CrossRank::Low(64), DcnStructure::Stacked);
        NetworkSpec::Dcn { bottom, cross_layers: 3, cross_rank, structure, deep }
    };
    let dlrm = |bottom: Vec<usize>, top: Vec<usize>| NetworkSpec::Dlrm { bottom, top };
    vec![
        ("kaggle dlrm", 16, dlrm(kaggle.0.clone(), kaggle.1.clone())),
        ("kaggle dcn-v2", 16, dcn(kaggle.0, kaggle.1)),
        ("terabyte dlrm", 128, dlrm(terabyte.0.clone(), terabyte.1.clone())),
        ("terabyte dcn-v2", 128, dcn(terabyte.0, terabyte.1)),
        ("factorization machine", 9, NetworkSpec::FactorizationMachine),
        ("logistic regression", 1, NetworkSpec::LogisticRegression),
    ]
}

fn main() {
    let isa = Isa::detect();
    println!("{:?}, best of {ROUNDS}, peak {:.1} GFLOP/s", isa.level(), peak_gflops(isa));
    measure_optimizers();
    for precision in [Precision::F32, Precision::Bf16] {
        for (name, dim, network) in networks() {
            for grain in [16, 64, 256] {
                measure(name, &spec(dim, network.clone(), precision), isa, grain);
            }
        }
    }
}

/// How long a dense optimizer takes for as many weights as the kaggle model has.
fn measure_optimizers() {
    const COUNT: usize = 475_985;
    let learning_rate = LearningRate { base: 0.01, schedule: Schedule::Constant };
    for (name, optimizer) in [
        ("sgd", DenseOptimizer::Sgd { momentum: 0.0 }),
        ("adagrad", DenseOptimizer::Adagrad { epsilon: 1e-8, initial: 0.0 }),
        ("adam", DenseOptimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }),
    ] {
        let training = DenseTraining { optimizer, learning_rate, l2: 0.0, norm_max: 0.0 };
        let gradient: Vec<f32> = (0..COUNT).map(|i| (i as f32 * 0.37).sin()).collect();
        let (mut weights, mut state) = (gradient.clone(), optimizer::first_state(&optimizer, COUNT));
        let (mut update, mut norm) = (f64::MAX, f64::MAX);
        for step in 0..ROUNDS as u64 {
            let start = cpu_seconds();
            let clip = optimizer::clip_factor(1.0, optimizer::block_squares(&gradient));
            norm = norm.min(cpu_seconds() - start);
            let start = cpu_seconds();
            let mut slices: Vec<&mut [f32]> = state.iter_mut().map(|state| &mut state[..]).collect();
            Update::new(&training, step, clip).apply(&mut weights, &mut slices, &gradient);
            update = update.min(cpu_seconds() - start);
        }
        let share = 1e9 / COUNT as f64;
        println!("{name:<22} update {:.2} ns a weight, norm {:.2} ns", update * share, norm * share);
    }
}

/// This thread's CPU time.
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "no clock of this thread's CPU time");
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn peak_gflops(isa: Isa) -> f64 {
    let run = || {
        let start = cpu_seconds();
        peak::multiply_adds(isa, 1 << 20) / (cpu_seconds() - start) * 1e-9
    };
    (0..ROUNDS).map(|_| run()).fold(0.0, f64::max)
}

fn measure(name: &str, spec: &ModelSpec, isa: Isa, grain: usize) {
    let mut network = Network::new(spec, isa).expect("a valid model");
    let weights = network.initial_parameters(1);
    let mut prepare = f64::MAX;
    for _ in 0..ROUNDS {
        let start = cpu_seconds();
        network.prepare(&weights);
        prepare = prepare.min(cpu_seconds() - start);
    }
    let mut workspace = network.workspace(grain);
    let wave = |count: usize| (0..count).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<f32>>();
    let (dense, pooled) = (wave(grain * spec.dense_count), wave(grain * spec.pooled_width()));
    let logit_gradients = wave(grain);
    let mut gradient = vec![0.0; weights.len()];
    let mut pooled_gradient = vec![0.0; pooled.len()];
    let (mut forward, mut backward) = (f64::MAX, f64::MAX);
    for _ in 0..ROUNDS {
        let start = cpu_seconds();
        network.forward(&mut workspace, &weights, grain, &dense, &pooled);
        forward = forward.min(cpu_seconds() - start);
        let start = cpu_seconds();
        let inputs = Inputs { samples: grain, dense: &dense, pooled: &pooled };
        let outputs = Outputs { gradient: &mut gradient, pooled: &mut pooled_gradient };
        network.backward_anew(&mut workspace, inputs, &logit_gradients, outputs);
        backward = backward.min(cpu_seconds() - start);
    }
    let flops = network.forward_gemm_flops_per_sample() as f64 * grain as f64;
    println!(
        "{name:<22} {:?} grain {grain:>3}  forward {:6.2} us  backward {:6.2} us a sample  products {:6.1} and {:6.1} GFLOP/s  prepare {:.0} us  workspace {:.1} MB",
        spec.precision,
        forward / grain as f64 * 1e6,
        backward / grain as f64 * 1e6,
        flops / forward * 1e-9,
        2.0 * flops / backward * 1e-9,
        prepare * 1e6,
        workspace.bytes() as f64 * 1e-6,
    );
}
