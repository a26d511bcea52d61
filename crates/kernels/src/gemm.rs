//! Linear layers: `Y = X W^T + b` forward, `dX = dY W` and `dW += dY^T X` backward.
//!
//! Everything is row-major; a weight matrix is `[outputs][inputs]`. The weights are packed once a step, for both
//! directions, and read by as many calls (grains, threads) as there are.
//!
//! **The order of every sum is fixed**: one `f32` accumulator per output element, fused multiply-add, `k` rising,
//! cut into blocks of [`BLOCK`] that are summed from zero and added in order. So with [`Operands::F32`] the bits
//! depend neither on the number of rows in a call, nor on tiles and caches, nor on the level of instructions. With
//! [`Operands::Bf16`] both factors are first rounded to bfloat16 and the same holds, except that products of pairs
//! (AVX512_BF16, see `word`) take denormals for zero, and that AMX adds in another order (see `amx`).

#[cfg(target_arch = "x86_64")]
mod amx;
pub(crate) mod cuts;
pub(crate) mod pack;
mod panels;
pub(crate) mod product;
pub(crate) mod scalar;
pub(crate) mod skip;
pub(crate) mod tile;
pub(crate) mod word;

use crate::buffer::Buffer;
use crate::isa::Isa;
use crate::matrix::{Matrix, MatrixMut, Store};
use panels::Panels;
use skip::Present;

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
    left: Buffer,
    right: Buffer,
    turned: Buffer,
    present: Present,
}

/// The weights of a linear layer, ready for products in both directions.
#[derive(Debug, Clone)]
pub struct Linear {
    operands: Operands,
    inputs: usize,
    outputs: usize,
    packed: bool,
    weights: Weights,
}

/// The weights as a level wants them.
#[derive(Debug, Clone)]
enum Weights {
    /// As they came, for the plain loops.
    Plain(Vec<f32>),
    /// In panels, for the tile loops.
    Panels(Panels),
    /// In bfloat16 tiles, for AMX.
    #[cfg(target_arch = "x86_64")]
    Tiles(amx::layer::Tiles),
}

impl Weights {
    /// Narrow layers gain nothing from tiles of 32 terms by 32 columns.
    const TILES_MIN: usize = 32;

    fn new(isa: Isa, operands: Operands, inputs: usize, outputs: usize) -> Weights {
        let Some(panels) = Panels::new(isa, operands) else { return Weights::Plain(Vec::new()) };
        #[cfg(target_arch = "x86_64")]
        if operands == Operands::Bf16
            && inputs.min(outputs) >= Weights::TILES_MIN
            && let Some(tiles) = amx::layer::Tiles::at(isa, &panels, inputs, outputs)
        {
            return Weights::Tiles(tiles);
        }
        Weights::Panels(panels)
    }
}

impl Linear {
    /// A layer without weights yet: [`Linear::pack`] brings them.
    ///
    /// # Panics
    ///
    /// If there are no inputs or no outputs.
    pub fn new(isa: Isa, operands: Operands, inputs: usize, outputs: usize) -> Linear {
        assert!(inputs > 0 && outputs > 0, "a layer from {inputs} inputs to {outputs} outputs");
        let weights = Weights::new(isa, operands, inputs, outputs);
        Linear { operands, inputs, outputs, packed: false, weights }
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
        self.packed = true;
        match &mut self.weights {
            Weights::Plain(plain) => {
                plain.clear();
                plain.extend(weights.iter().map(|weight| self.operands.round(*weight)));
            }
            Weights::Panels(panels) => panels.pack(Matrix::contiguous(weights, self.inputs)),
            #[cfg(target_arch = "x86_64")]
            Weights::Tiles(tiles) => tiles.pack(Matrix::contiguous(weights, self.inputs)),
        }
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
        self.check_weights();
        self.check_input(x);
        self.check_output(y.view());
        assert_eq!(x.rows(), y.rows(), "rows of x and y");
        assert!(bias.is_none_or(|bias| bias.len() == self.outputs), "bias of {} outputs", self.outputs);
        match &self.weights {
            Weights::Plain(w) => {
                let x = self.rounded(&mut scratch.left, x);
                scalar::forward(x, w, bias, activation, y);
            }
            Weights::Panels(panels) => panels.forward(scratch, x, bias, activation, y),
            #[cfg(target_arch = "x86_64")]
            Weights::Tiles(tiles) => tiles.forward(scratch, x, bias, activation, y),
        }
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
        self.check_weights();
        self.check_output(dy);
        self.check_input(dx.view());
        assert_eq!(dy.rows(), dx.rows(), "rows of dy and dx");
        if let Some(mask) = mask {
            self.check_input(mask);
            assert_eq!(mask.rows(), dx.rows(), "rows of mask and dx");
        }
        match &self.weights {
            Weights::Plain(w) => {
                let dy = self.rounded(&mut scratch.left, dy);
                scalar::backward_data(dy, w, mask, store, dx);
            }
            Weights::Panels(panels) => panels.backward_data(scratch, dy, mask, store, dx),
            #[cfg(target_arch = "x86_64")]
            Weights::Tiles(tiles) => tiles.backward_data(scratch, dy, mask, store, dx),
        }
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
        self.weight_gradients(scratch, dy, x, Store::Add, dw, db);
    }

    /// As [`Linear::backward_weights`] onto zeros, but `dw` and `db` may hold anything: the first grain spares
    /// zeroing and reading a gradient as large as the weights.
    ///
    /// # Panics
    ///
    /// If a shape does not fit the layer.
    pub fn backward_weights_anew(
        &self,
        scratch: &mut Scratch,
        dy: Matrix<'_>,
        x: Matrix<'_>,
        dw: &mut [f32],
        db: Option<&mut [f32]>,
    ) {
        self.weight_gradients(scratch, dy, x, Store::Replace, dw, db);
    }

    fn weight_gradients(
        &self,
        scratch: &mut Scratch,
        dy: Matrix<'_>,
        x: Matrix<'_>,
        store: Store,
        dw: &mut [f32],
        db: Option<&mut [f32]>,
    ) {
        self.check_output(dy);
        self.check_input(x);
        assert_eq!(dy.rows(), x.rows(), "rows of dy and x");
        assert_eq!(dw.len(), self.inputs * self.outputs, "dw of {} by {}", self.outputs, self.inputs);
        assert!(db.as_ref().is_none_or(|db| db.len() == self.outputs), "db of {} outputs", self.outputs);
        match &self.weights {
            Weights::Plain(_) => {
                if let Some(db) = db {
                    scalar::backward_bias(dy, store, db);
                }
                let dy = self.rounded(&mut scratch.left, dy);
                let x = self.rounded(&mut scratch.right, x);
                scalar::backward_weights(dy, x, store, dw);
            }
            Weights::Panels(panels) => panels.backward_weights(scratch, dy, x, store, dw, db),
            #[cfg(target_arch = "x86_64")]
            Weights::Tiles(tiles) => tiles.backward_weights(scratch, dy, x, store, dw, db),
        }
    }

    fn check_weights(&self) {
        assert!(self.packed, "a layer is used before its weights are packed");
    }

    fn check_input(&self, x: Matrix<'_>) {
        assert_eq!(x.columns(), self.inputs, "columns against the layer's inputs");
    }

    fn check_output(&self, y: Matrix<'_>) {
        assert_eq!(y.columns(), self.outputs, "columns against the layer's outputs");
    }

    /// `x` as the products see it.
    fn rounded<'a>(&self, room: &'a mut Buffer, x: Matrix<'a>) -> Matrix<'a> {
        match self.operands {
            Operands::F32 => x,
            Operands::Bf16 => scalar::rounded(x, room.room(x.rows() * x.columns())),
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub use amx::error_bound;
#[cfg(target_arch = "x86_64")]
pub(crate) use amx::{instructions_work, near_products};

/// The nearest bfloat16, ties to even, as `f32`. NaN stays NaN. It is [`crate::half::bf16_nearest`] there and back,
/// written out because it must melt into the packing loops.
#[inline(always)]
pub fn round_to_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    if value.is_nan() {
        return f32::from_bits((bits | 0x0040_0000) & 0xffff_0000);
    }
    f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
}

#[cfg(test)]
mod tests;
