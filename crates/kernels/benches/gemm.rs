//! The three products of a linear layer, beside this core's own limit measured in the same run.
//!
//! Run with `cargo bench -p campanile-kernels --bench gemm`; arguments: `scalar|avx2|avx512|pairs` for a lower level,
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
/// Passes over all layers. Neighbours come and go in seconds, so one layer's rounds must not stand together.
const ROUNDS: usize = 40;
/// Floating-point operations in one measurement, so that the clock's own cost does not show.
const WORK: f64 = 2e7;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let given = |name: &str| arguments.iter().any(|a| a == name);
    let levels = [
        ("scalar", Level::Scalar),
        ("avx2", Level::Avx2),
        ("avx512", Level::Avx512),
        ("pairs", Level::Avx512Bf16),
    ];
    let ceiling = levels.into_iter().find(|(name, _)| given(name)).map_or(Level::Amx, |(_, level)| level);
    let isa = Isa::detect().at_most(ceiling);
    let operands = if given("bf16") { Operands::Bf16 } else { Operands::F32 };
    let words = ["scalar", "avx2", "avx512", "pairs", "bf16"];
    let filter = arguments.iter().find(|a| !words.contains(&a.as_str()));
    println!(
        "{:?}, {operands:?} operands; GFLOP/s (share of the peak for such operands in the same run)",
        isa.level()
    );
    for rows in [256, 64, 16] {
        let mut layers: Vec<Layer> = MODELS
            .iter()
            .flat_map(|(model, shapes)| {
                shapes.iter().map(move |shape| Layer::new(isa, operands, model, rows, *shape))
            })
            .filter(|layer| filter.is_none_or(|part| layer.name().contains(part.as_str())))
            .collect();
        let mut peak = f64::INFINITY;
        for _ in 0..ROUNDS {
            for layer in &mut layers {
                peak = peak.min(seconds(|| match operands {
                    Operands::F32 => peak::multiply_adds(isa, 200_000),
                    Operands::Bf16 => peak::bf16_multiply_adds(isa, 200_000),
                }));
                layer.round();
            }
        }
        report(rows, peak, &layers);
    }
}

fn report(rows: usize, peak: f64, layers: &[Layer]) {
    println!("\n{rows} rows a call; peak {:.1} GFLOP/s", 1e-9 / peak);
    println!("{:>24} {:>14} {:>14} {:>14} {:>12}", "layer", "forward", "data", "weights", "pack GB/s");
    for (model, _) in MODELS {
        let of_model: Vec<&Layer> = layers.iter().filter(|layer| layer.model == model).collect();
        for layer in &of_model {
            let cell =
                |i: usize| format!("{:.1} ({:.0} %)", 1e-9 / layer.best[i], 100.0 * peak / layer.best[i]);
            let pack = 4e-9 / layer.best[3];
            println!("{:>24} {:>14} {:>14} {:>14} {:>12.1}", layer.name(), cell(0), cell(1), cell(2), pack);
        }
        let ideal: f64 = of_model.iter().map(|layer| 3.0 * layer.flops() * peak).sum();
        let taken: f64 =
            of_model.iter().map(|layer| layer.flops() * layer.best[..3].iter().sum::<f64>()).sum();
        if ideal > 0.0 {
            println!(
                "{model:>24} {:>14.1} % of the peak, the three products of all layers",
                100.0 * ideal / taken
            );
        }
    }
}

/// One layer with its operands, and the best seconds per operation of its three products and of packing.
struct Layer {
    model: &'static str,
    linear: Linear,
    rows: usize,
    scratch: Scratch,
    x: Vec<f32>,
    y: Vec<f32>,
    w: Vec<f32>,
    bias: Vec<f32>,
    dx: Vec<f32>,
    dw: Vec<f32>,
    best: [f64; 4],
}

impl Layer {
    fn new(
        isa: Isa,
        operands: Operands,
        model: &'static str,
        rows: usize,
        (inputs, outputs): (usize, usize),
    ) -> Layer {
        let floats = |n: usize, seed: usize| -> Vec<f32> {
            (0..n).map(|i| (((i + seed) * 2_654_435_761) % 1021) as f32 / 510.0 - 1.0).collect()
        };
        Layer {
            model,
            linear: Linear::new(isa, operands, inputs, outputs),
            rows,
            scratch: Scratch::default(),
            x: floats(rows * inputs, 1),
            y: floats(rows * outputs, 2),
            w: floats(inputs * outputs, 3),
            bias: floats(outputs, 4),
            dx: floats(rows * inputs, 5),
            dw: floats(inputs * outputs, 6),
            best: [f64::INFINITY; 4],
        }
    }

    fn name(&self) -> String {
        format!("{} {}>{}", self.model, self.linear.inputs(), self.linear.outputs())
    }

    fn flops(&self) -> f64 {
        2.0 * (self.rows * self.w.len()) as f64
    }

    /// Times each product once, several calls at a time.
    fn round(&mut self) {
        let (inputs, outputs, flops) = (self.linear.inputs(), self.linear.outputs(), self.flops());
        let calls = (WORK / flops).ceil().min(1000.0) as usize;
        let Layer { linear, scratch, x, y, w, bias, dx, dw, best, .. } = self;
        let mut keep = |i: usize, operations: f64, work: &mut dyn FnMut()| {
            let now = seconds(|| {
                work();
                operations
            });
            best[i] = best[i].min(now);
        };
        keep(3, w.len() as f64, &mut || linear.pack(w));
        let all = flops * calls as f64;
        let x = Matrix::contiguous(x, inputs);
        keep(0, all, &mut || {
            for _ in 0..calls {
                let y = MatrixMut::contiguous(y, outputs);
                linear.forward(scratch, x, Some(bias), Activation::Relu, y);
            }
        });
        let dy = Matrix::contiguous(y, outputs);
        keep(1, all, &mut || {
            for _ in 0..calls {
                let dx = MatrixMut::contiguous(dx, inputs);
                linear.backward_data(scratch, dy, Some(x), Store::Replace, dx);
            }
        });
        keep(2, all, &mut || {
            for _ in 0..calls {
                linear.backward_weights(scratch, dy, x, dw, Some(bias));
            }
        });
        dw.fill(0.0);
        bias.fill(0.5);
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
