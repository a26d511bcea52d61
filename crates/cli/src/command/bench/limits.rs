//! What this machine can do at best, measured in the same run: multiply-adds, and rows at random places.

use std::{hint::black_box, time::Instant};

use campanile_kernels::{
    Isa, cross, interact,
    matrix::{Matrix, MatrixMut, Store},
    peak::{bf16_multiply_adds, multiply_adds},
};

use crate::args::BenchPrecision;

/// Samples of a grain in the measurement of the interaction.
const SAMPLES: usize = 256;

/// Seconds that a sample's pairwise dots take one thread, forward and backward.
pub fn dot_seconds(vectors: usize, width: usize) -> f64 {
    let (isa, shape) = (Isa::detect(), interact::Vectors { count: vectors, width });
    let values = vec![0.5f32; SAMPLES * shape.floats()];
    let mut gradients = values.clone();
    let mut pairs = vec![0.0f32; SAMPLES * shape.pairs()];
    let mut scratch = interact::Scratch::default();
    best_of_rounds(|| {
        let all = Matrix::contiguous(black_box(&values), shape.floats());
        interact::forward(isa, &mut scratch, shape, all, MatrixMut::contiguous(&mut pairs, shape.pairs()));
        let of_pairs = Matrix::contiguous(&pairs, shape.pairs());
        let out = MatrixMut::contiguous(&mut gradients, shape.floats());
        interact::backward(isa, &mut scratch, shape, all, of_pairs, Store::Replace, out);
    })
}

/// Seconds that the element-wise part of a sample's cross layers takes one thread, forward and backward.
pub fn cross_seconds(width: usize, layers: usize) -> f64 {
    let isa = Isa::detect();
    let x = vec![0.5f32; SAMPLES * width];
    let (mut y, mut z) = (x.clone(), x.clone());
    best_of_rounds(|| {
        let input = Matrix::contiguous(black_box(&x), width);
        cross::forward(isa, input, input, input, MatrixMut::contiguous(&mut y, width));
        let saved = cross::Saved { x0: input, u: input };
        let du = MatrixMut::contiguous(&mut y, width);
        cross::backward(isa, saved, input, du, MatrixMut::contiguous(&mut z, width));
    }) * layers as f64
}

/// Seconds per sample in the best round.
fn best_of_rounds(mut round: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..20 {
        let start = Instant::now();
        round();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best / SAMPLES as f64
}

/// GFLOP/s of one thread that does nothing but multiply and add, in the operands of the benchmark.
pub fn multiply_add_peak(precision: BenchPrecision) -> f64 {
    let isa = Isa::detect();
    let mut best: f64 = 0.0;
    for _ in 0..20 {
        let start = Instant::now();
        let operations = match precision {
            BenchPrecision::F32 => multiply_adds(isa, 200_000),
            BenchPrecision::Bf16 => bf16_multiply_adds(isa, 200_000),
        };
        best = best.max(operations / start.elapsed().as_secs_f64() / 1e9);
    }
    best
}

/// Nanoseconds to read, and to read and write, a row of `floats` at a random place of a table as large as the
/// benchmark's, by one thread. The order is known beforehand, so the processor can run ahead.
pub fn row_nanoseconds(floats: usize) -> (f64, f64) {
    let rows = 600_000usize;
    let mut table = vec![1.0f32; rows * floats];
    let mut state = 1u64;
    let order: Vec<u32> = (0..400_000)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % rows as u64) as u32
        })
        .collect();
    let (mut read, mut write) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..3 {
        let start = Instant::now();
        let mut sum = [0.0f32; 16];
        for &row in &order {
            for chunk in table[row as usize * floats..][..floats].chunks_exact(16) {
                sum.iter_mut().zip(chunk).for_each(|(s, v)| *s += v);
            }
        }
        black_box(sum);
        read = read.min(start.elapsed().as_secs_f64());
        let start = Instant::now();
        for &row in &order {
            for value in &mut table[row as usize * floats..][..floats] {
                *value += 1e-3;
            }
        }
        black_box(&mut table);
        write = write.min(start.elapsed().as_secs_f64());
    }
    (read * 1e9 / order.len() as f64, write * 1e9 / order.len() as f64)
}
