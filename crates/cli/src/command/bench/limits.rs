//! What this machine can do at best, measured in the same run: multiply-adds, and rows at random places.

use std::{hint::black_box, time::Instant};

use campanile_kernels::{
    Isa,
    gemm::{Activation, Linear, Operands, Scratch},
    matrix::{Matrix, MatrixMut},
};

/// GFLOP/s of one thread in the best matrix product that we have, on operands that stay in cache.
pub fn gemm_peak(operands: Operands) -> f64 {
    const SIZE: usize = 256;
    let isa = Isa::detect();
    let mut linear = Linear::new(isa, operands, SIZE, SIZE);
    linear.pack(&vec![0.01; SIZE * SIZE]);
    let x = vec![0.5f32; SIZE * SIZE];
    let mut y = vec![0.0f32; SIZE * SIZE];
    let mut scratch = Scratch::default();
    let flops = 2.0 * (SIZE * SIZE * SIZE) as f64;
    let mut best: f64 = 0.0;
    for _ in 0..40 {
        let start = Instant::now();
        for _ in 0..4 {
            let x = Matrix::contiguous(black_box(&x), SIZE);
            linear.forward(&mut scratch, x, None, Activation::Identity, MatrixMut::contiguous(&mut y, SIZE));
        }
        best = best.max(4.0 * flops / start.elapsed().as_secs_f64() / 1e9);
    }
    best
}

/// Nanoseconds to read, and to read and write, a row of `floats` at a random place of a table as large as the
/// benchmark's, by one thread, with prefetch.
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
