//! Linear layers: `Y = X W^T + b` forward, `dX = dY W` and `dW += dY^T X` backward.
//!
//! Everything is row-major; a weight matrix is `[outputs][inputs]`. The weights are packed once a step, for both
//! directions, and read by as many calls (grains, threads) as there are.
//!
//! **The order of every sum is fixed**: one `f32` accumulator per output element, fused multiply-add, `k` rising,
//! cut into blocks of [`BLOCK`] that are summed from zero and added in order. So with [`Operands::F32`] the bits
//! depend neither on the number of rows in a call, nor on tiles and caches, nor on the level of instructions. With
//! [`Operands::Bf16`] both factors are first rounded to bfloat16 and the same holds, except on AMX (see `amx`).

mod scalar;

use crate::Isa;
use crate::matrix::{Matrix, MatrixMut, Store};

/// Terms that are summed into one accumulator before it is added to the result.
pub const BLOCK: usize = 512;

/// The precision of the two factors of every product. Sums are always `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operands {
    /// As they are.
    F32,
    /// Rounded to bfloat16, to nearest, ties to even.
    Bf16,
}

impl Operands {
    /// One factor as the products see it.
    pub fn round(self, value: f32) -> f32 {
        match self {
            Operands::F32 => value,
            Operands::Bf16 => round_to_bf16(value),
        }
    }
}

/// What a layer does to `X W^T + b`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    Identity,
    /// Zero below zero; NaN stays NaN and -0 stays -0.
    Relu,
}

impl Activation {
    /// The activation of one value.
    pub fn apply(self, value: f32) -> f32 {
        match self {
            Activation::Identity => value,
            Activation::Relu if value < 0.0 => 0.0,
            Activation::Relu => value,
        }
    }
}

/// Room for what a call packs or rounds; kept between calls so that no call allocates. One a thread.
#[derive(Debug, Default)]
pub struct Scratch {
    left: Vec<f32>,
    right: Vec<f32>,
}

/// The weights of a linear layer, ready for products in both directions.
#[derive(Debug, Clone)]
pub struct Linear {
    isa: Isa,
    operands: Operands,
    inputs: usize,
    outputs: usize,
    weights: Vec<f32>,
}

impl Linear {
    /// A layer without weights yet: [`Linear::pack`] brings them.
    ///
    /// # Panics
    ///
    /// If there are no inputs or no outputs.
    pub fn new(isa: Isa, operands: Operands, inputs: usize, outputs: usize) -> Linear {
        assert!(inputs > 0 && outputs > 0, "a layer from {inputs} inputs to {outputs} outputs");
        Linear { isa, operands, inputs, outputs, weights: Vec::new() }
    }

    /// How many floats a row of `X` has.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// How many floats a row of `Y` has.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Takes new weights, `[outputs][inputs]`. Allocates on the first call only.
    ///
    /// # Panics
    ///
    /// If `weights` has another length.
    pub fn pack(&mut self, weights: &[f32]) {
        assert_eq!(
            weights.len(),
            self.inputs * self.outputs,
            "weights of {} by {}",
            self.outputs,
            self.inputs
        );
        let operands = self.operands;
        self.weights.clear();
        self.weights.extend(weights.iter().map(|w| operands.round(*w)));
    }

    /// `y = x w^T + bias`, then the activation.
    ///
    /// # Panics
    ///
    /// If the weights were never packed, or a shape does not fit the layer.
    pub fn forward(
        &self,
        scratch: &mut Scratch,
        x: Matrix<'_>,
        bias: Option<&[f32]>,
        activation: Activation,
        y: MatrixMut<'_>,
    ) {
        self.check_input(x);
        self.check_output(y.view());
        assert_eq!(x.rows(), y.rows(), "rows of x and y");
        assert!(bias.is_none_or(|bias| bias.len() == self.outputs), "bias of {} outputs", self.outputs);
        let x = self.operand(&mut scratch.left, x);
        scalar::forward(x, self.packed(), bias, activation, y);
    }

    /// `dx = dy w`, or `dx += dy w`; then zero wherever `mask`, the activations that this layer read, is not
    /// above zero: the derivative of the ReLU before it.
    ///
    /// With [`Store::Add`] each block of [`BLOCK`] terms is added to what is there, in order.
    ///
    /// # Panics
    ///
    /// If the weights were never packed, or a shape does not fit the layer.
    pub fn backward_data(
        &self,
        scratch: &mut Scratch,
        dy: Matrix<'_>,
        mask: Option<Matrix<'_>>,
        store: Store,
        dx: MatrixMut<'_>,
    ) {
        self.check_output(dy);
        self.check_input(dx.view());
        assert_eq!(dy.rows(), dx.rows(), "rows of dy and dx");
        if let Some(mask) = mask {
            self.check_input(mask);
            assert_eq!(mask.rows(), dx.rows(), "rows of mask and dx");
        }
        let dy = self.operand(&mut scratch.left, dy);
        scalar::backward_data(dy, self.packed(), mask, store, dx);
    }

    /// `dw += dy^T x` and `db += ` the column sums of `dy`.
    ///
    /// Each sum over the rows starts at zero (in blocks of [`BLOCK`] rows for `dw`) and is then added to what is
    /// there. The bias gradient is never rounded to bfloat16: it has no second factor.
    ///
    /// # Panics
    ///
    /// If a shape does not fit the layer.
    pub fn backward_weights(
        &self,
        scratch: &mut Scratch,
        dy: Matrix<'_>,
        x: Matrix<'_>,
        dw: &mut [f32],
        db: Option<&mut [f32]>,
    ) {
        self.check_output(dy);
        self.check_input(x);
        assert_eq!(dy.rows(), x.rows(), "rows of dy and x");
        assert_eq!(dw.len(), self.inputs * self.outputs, "dw of {} by {}", self.outputs, self.inputs);
        if let Some(db) = db {
            assert_eq!(db.len(), self.outputs, "db of {} outputs", self.outputs);
            scalar::backward_bias(dy, db);
        }
        let dy = self.operand(&mut scratch.left, dy);
        let x = self.operand(&mut scratch.right, x);
        scalar::backward_weights(dy, x, dw);
    }

    fn packed(&self) -> &[f32] {
        assert!(!self.weights.is_empty(), "a layer is used before its weights are packed");
        &self.weights
    }

    fn check_input(&self, x: Matrix<'_>) {
        assert_eq!(x.columns(), self.inputs, "columns against the layer's inputs");
    }

    fn check_output(&self, y: Matrix<'_>) {
        assert_eq!(y.columns(), self.outputs, "columns against the layer's outputs");
    }

    /// `x` as the products read it.
    fn operand<'a>(&self, room: &'a mut Vec<f32>, x: Matrix<'a>) -> Matrix<'a> {
        if self.operands == Operands::F32 {
            return x;
        }
        room.clear();
        for r in 0..x.rows() {
            room.extend(x.row(r).iter().map(|v| round_to_bf16(*v)));
        }
        Matrix::new(room, x.rows(), x.columns(), x.columns())
    }
}

/// The nearest bfloat16, ties to even, as `f32`. NaN stays NaN.
pub fn round_to_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    if value.is_nan() {
        return f32::from_bits((bits | 0x0040_0000) & 0xffff_0000);
    }
    f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
}
