//! Layers: operations a second in matrix products and pairwise dots, forward and backward, grain by grain.

use std::hint::black_box;

use campanile_kernels::{
    Isa,
    gemm::{Activation, Linear, Operands, Scratch},
    interact,
    matrix::{Matrix, MatrixMut, Store},
};
use campanile_spec::topology::{NARROW_OTHER, ProductRates};

use super::clock::seconds_each;

/// Vectors that meet in the interaction.
const VECTORS: usize = 27;

/// Wider vectors are as fast as these.
const DOTS_WIDTH_MAX: usize = 256;

/// Layers one above the other.
const LAYERS: usize = 4;

/// About how many operations a timed run has, so that a clock can tell.
const OPERATIONS: f64 = 2e7;

/// All rates for layers of a width.
pub fn rates(width: usize, samples: usize) -> ProductRates {
    ProductRates {
        width,
        f32_flops_per_second: product(Operands::F32, width, samples),
        bf16_flops_per_second: product(Operands::Bf16, width, samples),
        dots_flops_per_second: dots(width.min(DOTS_WIDTH_MAX), samples),
        narrow_flops_per_second: narrow(width, samples),
    }
}

/// Some layers of one width, one above the other: in a network of one layer all would stay in the cache.
struct Stack {
    layers: Vec<Linear>,
    activations: Vec<Vec<f32>>,
    gradients: Vec<Vec<f32>>,
    weight_gradients: Vec<Vec<f32>>,
    bias: Vec<f32>,
    bias_gradient: Vec<f32>,
    scratch: Scratch,
    width: usize,
}

impl Stack {
    fn new(operands: Operands, width: usize, samples: usize) -> Stack {
        let layer = |_| {
            let mut layer = Linear::new(Isa::detect(), operands, width, width);
            layer.pack(&vec![0.01; width * width]);
            layer
        };
        Stack {
            layers: (0..LAYERS).map(layer).collect(),
            activations: vec![vec![0.5; samples * width]; LAYERS + 1],
            gradients: vec![vec![0.5; samples * width]; 2],
            weight_gradients: vec![vec![0.0; width * width]; LAYERS],
            bias: vec![0.0; width],
            bias_gradient: vec![0.0; width],
            scratch: Scratch::default(),
            width,
        }
    }

    /// Operations of a pass with so many samples.
    fn flops(width: usize, samples: usize) -> f64 {
        6.0 * (LAYERS * width * width * samples) as f64
    }

    /// Forward through all layers and back.
    fn pass(&mut self) {
        let Stack { layers, activations, gradients, weight_gradients, bias, bias_gradient, scratch, width } =
            self;
        for (place, layer) in layers.iter().enumerate() {
            let (below, above) = activations.split_at_mut(place + 1);
            let input = Matrix::contiguous(black_box(&below[place]), *width);
            let out = MatrixMut::contiguous(&mut above[0], *width);
            layer.forward(scratch, input, Some(bias), Activation::Relu, out);
        }
        for (place, layer) in layers.iter().enumerate().rev() {
            let (one, other) = gradients.split_at_mut(1);
            let (from, to) = if place % 2 == 0 { (&one[0], &mut other[0]) } else { (&other[0], &mut one[0]) };
            let (input, gradient) =
                (Matrix::contiguous(&activations[place], *width), Matrix::contiguous(from, *width));
            let back = MatrixMut::contiguous(to, *width);
            layer.backward_data(scratch, gradient, Some(input), Store::Replace, back);
            layer.backward_weights(
                scratch,
                gradient,
                input,
                &mut weight_gradients[place],
                Some(bias_gradient),
            );
        }
    }
}

fn product(operands: Operands, width: usize, samples: usize) -> f64 {
    let mut stack = Stack::new(operands, width, samples);
    let flops = Stack::flops(width, samples);
    let turns = (OPERATIONS / flops).ceil().max(1.0);
    let seconds = seconds_each(|| (0..turns as usize).for_each(|_| stack.pass()));
    turns * flops / seconds
}

/// Layers that are narrow on one side; from the width of their other side on they are as fast as layers of one width.
fn narrow(width: usize, samples: usize) -> f64 {
    let mut layer = Linear::new(Isa::detect(), Operands::F32, NARROW_OTHER, width);
    layer.pack(&vec![0.01; NARROW_OTHER * width]);
    let (input, gradient) = (vec![0.5; samples * NARROW_OTHER], vec![0.5; samples * width]);
    let (mut out, mut back) = (gradient.clone(), input.clone());
    let (mut weights, mut scratch) = (vec![0.0; NARROW_OTHER * width], Scratch::default());
    let flops = 6.0 * (NARROW_OTHER * width * samples) as f64;
    let turns = (OPERATIONS / flops).ceil().max(1.0);
    let seconds = seconds_each(|| {
        for _ in 0..turns as usize {
            let below = Matrix::contiguous(black_box(&input), NARROW_OTHER);
            let above = Matrix::contiguous(black_box(&gradient), width);
            let scratch = &mut scratch;
            layer.forward(scratch, below, None, Activation::Identity, MatrixMut::contiguous(&mut out, width));
            let to = MatrixMut::contiguous(&mut back, NARROW_OTHER);
            layer.backward_data(scratch, above, None, Store::Replace, to);
            layer.backward_weights(scratch, above, below, &mut weights, None);
        }
    });
    turns * flops / seconds
}

/// Something to compute while an exchange is under way.
pub struct Work(Stack);

/// Its layers, and samples of a pass.
const WORK_WIDTH: usize = 256;
const WORK_SAMPLES: usize = 16;

impl Default for Work {
    fn default() -> Work {
        Work(Stack::new(Operands::F32, WORK_WIDTH, WORK_SAMPLES))
    }
}

impl Work {
    /// How many turns one rank alone does in so many seconds.
    pub fn turns_in(&mut self, seconds: f64) -> usize {
        let each = seconds_each(|| self.0.pass());
        (seconds / each).ceil().max(1.0) as usize
    }

    /// So many turns.
    pub fn run(&mut self, turns: usize) {
        (0..turns).for_each(|_| self.0.pass());
    }
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
