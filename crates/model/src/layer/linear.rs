//! A linear layer: `y = x Wᵀ + b`, with or without ReLU.
//!
//! Backwards, the gradient of a ReLU's output must be zeroed where the output is not above zero. Where the
//! first reader of the output is another linear layer, that layer does it while it writes the gradient
//! (`x_is_relu`), at no cost; otherwise the layer does it itself before it starts (`masks_output`).

use std::ops::Range;

use campanile_kernels::{
    elementwise,
    gemm::{self, Activation},
    matrix::Store,
};

use super::{Backward, Forward, Read};
use crate::workspace::{Place, Source};

/// A linear layer.
#[derive(Debug)]
pub(crate) struct Linear {
    pub x: Read,
    pub y: Place,
    /// `W` in the flat weights, `[out, in]`.
    pub weight: Range<usize>,
    pub bias: Option<Range<usize>>,
    pub activation: Activation,
    /// The gradient of `x` is that of a ReLU's output, and nobody else comes after to write it.
    pub x_is_relu: bool,
    /// The gradient of `y` comes unmasked.
    pub masks_output: bool,
    pub product: gemm::Linear,
}

impl Linear {
    /// Takes the step's weights.
    pub fn prepare(&mut self, parameters: &[f32]) {
        self.product.pack(&parameters[self.weight.clone()]);
    }

    pub fn forward(&self, pass: &mut Forward<'_>) {
        let Forward { values, scratch, parameters, .. } = pass;
        let bias = self.bias.as_ref().map(|range| &parameters[range.clone()]);
        values.write(self.y, |values, y| {
            self.product.forward(&mut scratch.gemm, values.read(self.x.place), bias, self.activation, y);
        });
    }

    pub fn backward(&self, pass: &mut Backward<'_>) {
        let Backward { isa, values, gradients, gradient, store, scratch } = pass;
        if self.masks_output {
            gradients.write(self.y, |gradients, mut dy| {
                let y = values.read(self.y);
                for sample in 0..gradients.samples {
                    elementwise::relu_backward(*isa, dy.row(sample), y.row(sample));
                }
            });
        }
        let x = values.read(self.x.place);
        let (dw, db) = self.weight_gradients(gradient);
        let dy = gradients.read(self.y);
        match store {
            Store::Add => self.product.backward_weights(&mut scratch.gemm, dy, x, dw, db),
            Store::Replace => self.product.backward_weights_anew(&mut scratch.gemm, dy, x, dw, db),
        }
        if self.x.place.source == Source::Dense {
            return;
        }
        let mask = self.x_is_relu.then_some(x);
        gradients.write(self.x.place, |gradients, dx| {
            self.product.backward_data(&mut scratch.gemm, gradients.read(self.y), mask, self.x.store, dx);
        });
    }

    /// The gradients of `W` and of the bias, which lies right behind it.
    fn weight_gradients<'a>(&self, gradient: &'a mut [f32]) -> (&'a mut [f32], Option<&'a mut [f32]>) {
        let (weights, behind) = gradient[self.weight.start..].split_at_mut(self.weight.len());
        let bias = self.bias.as_ref().map(|bias| {
            assert_eq!(bias.start, self.weight.end, "the bias lies behind the weights");
            &mut behind[..bias.len()]
        });
        (weights, bias)
    }

    pub fn forward_flops(&self) -> (u64, u64) {
        (2 * self.weight.len() as u64, self.y.width as u64)
    }
}
