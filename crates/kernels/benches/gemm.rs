//! The three products of a linear layer, beside this core's own limit measured in the same run.
//!
//! Run with `cargo bench -p campanile-kernels --bench gemm`; arguments: `scalar|avx2|avx512` for a lower level,
//! `bf16` for rounded operands, and any part of a shape's name (`479`) to see only those.
//!
//! Every figure is the best of several rounds by this thread's CPU time; peak and products take turns, so a
//! neighbour disturbs both.
#![allow(unsafe_code)]

use campanile_kernels::Isa;
use campanile_kernels::gemm::{Activation, Linear, Operands, Scratch};
use campanile_kernels::isa::Level;
use campanile_kernels::matrix::{Matrix, MatrixMut, Store};
use campanile_kernels::peak;

/// The layers of DLRM and DCN-v2 as the literature configures them, inputs to outputs.
const MODELS: [(&str, &[(usize, usize)]); 4] = [
    ("kaggle", &[(13, 512), (512, 256), (256, 64), (64, 16), (367, 512), (512, 256), (256, 1)]),
    (
        "terabyte",
        &[(13, 512), (512, 256), (256, 128), (479, 1024), (1024, 1024), (1024, 512), (512, 256), (256, 1)],
    ),
    ("kaggle cross", &[(432, 64), (64, 432)]),
    ("terabyte cross", &[(3456, 64), (64, 3456)]),
];
const ROUNDS: usize = 9;
/// Floating-point operations in one measurement, so that the clock's own cost does not show.
const WORK: f64 = 3e7;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let given = |name: &str| arguments.iter().any(|a| a == name);
    let ceiling = if given("scalar") {
        Level::Scalar
    } else if given("avx2") {
        Level::Avx2
    } else if given("avx512") {
        Level::Avx512
    } else {
        Level::Amx
    };
    let isa = Isa::detect().at_most(ceiling);
    let operands = if given("bf16") { Operands::Bf16 } else { Operands::F32 };
    let words = ["scalar", "avx2", "avx512", "bf16"];
    let filter = arguments.iter().find(|a| !words.contains(&a.as_str()));
    println!("{:?}, {operands:?} operands; GFLOP/s (share of the f32 peak of the same rounds)", isa.level());
    for rows in [256, 16] {
        println!(
            "\n{rows} rows\n{:>24} {:>14} {:>14} {:>14} {:>8}",
            "layer", "forward", "data", "weights", "peak"
        );
        for (model, layers) in MODELS {
            let mut total = Totals::default();
            for &(inputs, outputs) in layers {
                let name = format!("{model} {inputs}>{outputs}");
                if filter.is_some_and(|part| !name.contains(part.as_str())) {
                    continue;
                }
                total.add(&layer(&name, isa, operands, rows, (inputs, outputs)));
            }
            if total.flops > 0.0 {
                println!(
                    "{:>24} {:>14.1} % of the peak, all products",
                    model,
                    100.0 * total.ideal / total.seconds
                );
            }
        }
    }
}

/// Time of all products of a model, and what it would be at the peak.
#[derive(Default)]
struct Totals {
    flops: f64,
    seconds: f64,
    ideal: f64,
}

impl Totals {
    fn add(&mut self, other: &Totals) {
        self.flops += other.flops;
        self.seconds += other.seconds;
        self.ideal += other.ideal;
    }
}

fn layer(name: &str, isa: Isa, operands: Operands, rows: usize, (inputs, outputs): (usize, usize)) -> Totals {
    let floats = |n: usize, seed: usize| -> Vec<f32> {
        (0..n).map(|i| (((i + seed) * 2_654_435_761) % 1021) as f32 / 510.0 - 1.0).collect()
    };
    let (x, dy) = (floats(rows * inputs, 1), floats(rows * outputs, 2));
    let (w, bias) = (floats(inputs * outputs, 3), floats(outputs, 4));
    let (mut y, mut dx) = (vec![0.0; rows * outputs], vec![0.0; rows * inputs]);
    let (mut dw, mut db) = (vec![0.0; inputs * outputs], vec![0.0; outputs]);
    let mut linear = Linear::new(isa, operands, inputs, outputs);
    linear.pack(&w);
    let (x, dy) = (Matrix::contiguous(&x, inputs), Matrix::contiguous(&dy, outputs));
    let flops = 2.0 * (rows * inputs * outputs) as f64;
    let calls = (WORK / flops).ceil().clamp(1.0, 20_000.0) as usize;
    let mut scratch = Scratch::default();
    let mut best = [f64::INFINITY; 4];
    for _ in 0..ROUNDS {
        let per_flop = [
            seconds(|| peak::multiply_adds(isa, 100_000)),
            seconds(|| {
                for _ in 0..calls {
                    let y = MatrixMut::contiguous(&mut y, outputs);
                    linear.forward(&mut scratch, x, Some(&bias), Activation::Relu, y);
                }
                flops * calls as f64
            }),
            seconds(|| {
                for _ in 0..calls {
                    let dx = MatrixMut::contiguous(&mut dx, inputs);
                    linear.backward_data(&mut scratch, dy, Some(x), Store::Replace, dx);
                }
                flops * calls as f64
            }),
            seconds(|| {
                for _ in 0..calls {
                    linear.backward_weights(&mut scratch, dy, x, &mut dw, Some(&mut db));
                }
                flops * calls as f64
            }),
        ];
        for (best, now) in best.iter_mut().zip(per_flop) {
            *best = best.min(now);
        }
    }
    let cell = |i: usize| format!("{:.1} ({:.0} %)", 1e-9 / best[i], 100.0 * best[0] / best[i]);
    println!("{name:>24} {:>14} {:>14} {:>14} {:>8.1}", cell(1), cell(2), cell(3), 1e-9 / best[0]);
    Totals {
        flops: 3.0 * flops,
        seconds: flops * (best[1] + best[2] + best[3]),
        ideal: 3.0 * flops * best[0],
    }
}

/// This thread's CPU seconds per floating-point operation of `work`.
fn seconds(work: impl FnOnce() -> f64) -> f64 {
    let start = thread_seconds();
    let flops = work();
    (thread_seconds() - start) / flops
}

fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer, and the clock exists on every Linux.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "no clock of this thread's CPU time");
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
