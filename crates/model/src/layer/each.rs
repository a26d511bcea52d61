//! One matrix for many vectors of a sample: `y_f = x_f Wᵀ` for each of a tower's features.
//!
//! The gradient of `W` is summed over the samples of one feature after the other, apart from what is there already, and
//! added once: so the right one of two grains still adds a whole sum to its left neighbour's, as the tree of grains wants.

use std::ops::Range;

use campanile_kernels::{
    gemm::{self, Activation},
    matrix::Store,
};

use super::{Backward, Forward, Read};
use crate::workspace::Place;

/// A linear layer that vectors side by side share.
#[derive(Debug)]
pub(crate) struct Each {
    pub x: Read,
    pub y: Place,
    /// `W` in the flat weights, `[out, in]`.
    pub weight: Range<usize>,
    /// How many vectors.
    pub count: usize,
    pub product: gemm::Linear,
}

impl Each {
    /// Takes the step's weights.
    pub fn prepare(&mut self, parameters: &[f32]) {
        self.product.pack(&parameters[self.weight.clone()]);
    }

    /// The columns of one vector before and after.
    fn columns(&self, vector: usize) -> (Place, Place) {
        let (inputs, outputs) = (self.x.place.width / self.count, self.y.width / self.count);
        (self.x.place.columns(vector * inputs, inputs), self.y.columns(vector * outputs, outputs))
    }

    pub fn forward(&self, pass: &mut Forward<'_>) {
        let Forward { values, scratch, .. } = pass;
        for vector in 0..self.count {
            let (x, y) = self.columns(vector);
            values.write(y, |values, y| {
                self.product.forward(&mut scratch.gemm, values.read(x), None, Activation::Identity, y);
            });
        }
    }

    pub fn backward(&self, pass: &mut Backward<'_>) {
        let Backward { values, gradients, gradient, store, scratch, .. } = pass;
        scratch.sums.resize(self.weight.len(), 0.0);
        for vector in 0..self.count {
            let (x, y) = self.columns(vector);
            let (dy, value, sums) = (gradients.read(y), values.read(x), &mut scratch.sums);
            if vector == 0 {
                self.product.backward_weights_anew(&mut scratch.gemm, dy, value, sums, None);
            } else {
                self.product.backward_weights(&mut scratch.gemm, dy, value, sums, None);
            }
            gradients.write(x, |gradients, dx| {
                let dy = gradients.read(y);
                self.product.backward_data(&mut scratch.gemm, dy, None, self.x.store, dx);
            });
        }
        let gradient = gradient[self.weight.clone()].iter_mut();
        for (sum, own) in gradient.zip(&scratch.sums) {
            *sum = if *store == Store::Add { *sum + own } else { *own };
        }
    }

    pub fn forward_flops(&self) -> u64 {
        2 * (self.weight.len() * self.count) as u64
    }
}
