//! Layers: operations a second in matrix products and pairwise dots, forward and backward, grain by grain.

use std::hint::black_box;

use campanile_kernels::{
    Isa,
    gemm::{Activation, Linear, Operands, Scratch},
    interact,
    matrix::{Matrix, MatrixMut, Store},
};
use campanile_spec::topology::ProductRates;

use super::clock::seconds_each;

/// Vectors that meet in the interaction.
const VECTORS: usize = 27;

/// Wider vectors are as fast as these.
const DOTS_WIDTH_MAX: usize = 256;

/// About how many operations a timed run has, so that a clock can tell.
const OPERATIONS: f64 = 2e7;

/// All rates for layers of a width.
pub fn rates(width: usize, samples: usize) -> ProductRates {
    ProductRates {
        width,
        f32_flops_per_second: product(Operands::F32, width, samples),
        bf16_flops_per_second: product(Operands::Bf16, width, samples),
        dots_flops_per_second: dots(width.min(DOTS_WIDTH_MAX), samples),
    }
}

fn product(operands: Operands, width: usize, samples: usize) -> f64 {
    let mut layer = Linear::new(Isa::detect(), operands, width, width);
    layer.pack(&vec![0.01; width * width]);
    let (x, mut y) = (vec![0.5f32; samples * width], vec![0.0f32; samples * width]);
    let (mut dx, mut dw, mut db) = (x.clone(), vec![0.0f32; width * width], vec![0.0f32; width]);
    let bias = vec![0.0f32; width];
    let mut scratch = Scratch::default();
    let flops = 6.0 * (width * width * samples) as f64;
    let turns = (OPERATIONS / flops).ceil().max(1.0);
    let seconds = seconds_each(|| {
        for _ in 0..turns as usize {
            let input = Matrix::contiguous(black_box(&x), width);
            let out = MatrixMut::contiguous(&mut y, width);
            layer.forward(&mut scratch, input, Some(&bias), Activation::Relu, out);
            let gradient = Matrix::contiguous(&y, width);
            let back = MatrixMut::contiguous(&mut dx, width);
            layer.backward_data(&mut scratch, gradient, Some(input), Store::Replace, back);
            layer.backward_weights(&mut scratch, gradient, input, &mut dw, Some(&mut db));
        }
    });
    turns * flops / seconds
}

fn dots(width: usize, samples: usize) -> f64 {
    let (isa, shape) = (Isa::detect(), interact::Vectors { count: VECTORS, width });
    let values = vec![0.5f32; samples * shape.floats()];
    let mut gradients = values.clone();
    let mut pairs = vec![0.0f32; samples * shape.pairs()];
    let mut scratch = interact::Scratch::default();
    let flops = 3.0 * 2.0 * (shape.pairs() * width * samples) as f64;
    let turns = (OPERATIONS / flops).ceil().max(1.0);
    let seconds = seconds_each(|| {
        for _ in 0..turns as usize {
            let all = Matrix::contiguous(black_box(&values), shape.floats());
            interact::forward(
                isa,
                &mut scratch,
                shape,
                all,
                MatrixMut::contiguous(&mut pairs, shape.pairs()),
            );
            let of_pairs = Matrix::contiguous(&pairs, shape.pairs());
            let out = MatrixMut::contiguous(&mut gradients, shape.floats());
            interact::backward(isa, &mut scratch, shape, all, of_pairs, Store::Replace, out);
        }
    });
    turns * flops / seconds
}
