//! The dot interaction of DLRM: nanoseconds a sample, and its share of this core's multiply-adds.
//!
//! Run with `cargo bench -p campanile-kernels --bench interact`. Every figure is the best of many short rounds;
//! the peak is measured between them.

use campanile_kernels::interact::{Scratch, Vectors, backward, forward};
use campanile_kernels::matrix::{Matrix, MatrixMut, Store};
use campanile_kernels::{Isa, peak};
use std::time::Instant;

const SAMPLES: usize = 256;
const ROUNDS: usize = 300;

fn main() {
    let isa = Isa::detect();
    println!("{:?}, {SAMPLES} samples a call", isa.level());
    for (count, width) in [(27, 16), (27, 64), (27, 128)] {
        let shape = Vectors { count, width };
        let vectors = vec![0.5f32; SAMPLES * shape.floats()];
        let gradient = vec![0.25f32; SAMPLES * shape.pairs()];
        let mut pairs = gradient.clone();
        let mut out = vectors.clone();
        let vectors = Matrix::contiguous(&vectors, shape.floats());
        let gradient = Matrix::contiguous(&gradient, shape.pairs());
        let mut scratch = Scratch::default();
        let mut best = [f64::INFINITY; 3];
        for _ in 0..ROUNDS {
            let start = Instant::now();
            let operations = peak::multiply_adds(isa, 10_000);
            best[0] = best[0].min(start.elapsed().as_secs_f64() / operations);
            let start = Instant::now();
            forward(isa, &mut scratch, shape, vectors, MatrixMut::contiguous(&mut pairs, shape.pairs()));
            best[1] = best[1].min(start.elapsed().as_secs_f64());
            let start = Instant::now();
            let to = MatrixMut::contiguous(&mut out, shape.floats());
            backward(isa, &mut scratch, shape, vectors, gradient, Store::Replace, to);
            best[2] = best[2].min(start.elapsed().as_secs_f64());
        }
        let per_sample = |seconds: f64| seconds * 1e9 / SAMPLES as f64;
        let useful = (2 * shape.pairs() * width) as f64;
        println!(
            "{count} vectors of {width:>3}: forward {:6.0} ns ({:.0} % of the peak), backward {:6.0} ns ({:.0} %)",
            per_sample(best[1]),
            100.0 * useful * best[0] * SAMPLES as f64 / best[1],
            per_sample(best[2]),
            100.0 * 2.0 * useful * best[0] * SAMPLES as f64 / best[2],
        );
    }
}
