//! A layer's weights in panels, and its three products as walks over tiles.
//!
//! The forward product has `k` over the inputs, the backward one over the outputs, so the weights are packed
//! twice, once a step; every grain of the step then reads the panels. The gradient of the weights has `k` over
//! samples: its operands are new in every call and are packed into the caller's scratch.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use super::pack::packed_floats;
use super::product::{Ending, Left, SHALLOW, multiply};
use super::tile::{TileLoops, loops_for};
use super::word::are_finite;
use super::{Activation, BLOCK, Operands, Scratch, skip};
use crate::buffer::Buffer;
use crate::isa::Isa;
use crate::matrix::{Matrix, MatrixMut, Store};

/// Whether the gradient of the weights is computed turned, inputs by outputs. The gradient of the outputs is then
/// the operand that is packed in whole registers and not by sixes, which pays where it is much the larger one; but
/// turning the result back costs more than that where the sums are short. A turned result cannot be added to block
/// by block.
fn is_turned(samples: usize, inputs: usize, outputs: usize) -> bool {
    let narrow = if samples <= SHALLOW { 16 } else { 64 };
    inputs <= narrow && 4 * inputs <= outputs && samples <= BLOCK
}

/// Rows that lie a multiple of this many floats apart fall into the same one or two sets of the nearest cache, which
/// cannot hold them together: such a left operand is packed even where few terms make that dear.
const CROWDED: usize = 512;

/// Bytes of a left operand that are rounded before they are multiplied: they stay in a small second-level cache.
const ROUNDED_BYTES: usize = 192 * 1024;

/// Panels that are packed together just before their use: their rows are then long enough to be read ahead.
const PANELS_NEAR: usize = 6;

/// The packed weights. Having one proves that the processor has the instructions of `loops`.
#[derive(Debug, Clone)]
pub(super) struct Panels {
    loops: &'static TileLoops,
    operands: Operands,
    forward: Buffer,
    backward: Buffer,
    /// Whether all weights are finite. Nobody asks while a model trains, so it is found out when somebody does.
    finite: OnceLock<bool>,
}

impl Panels {
    /// Panels for a level that has tile loops; the plain level has none.
    pub(super) fn new(isa: Isa, operands: Operands) -> Option<Panels> {
        let loops = loops_for(isa, operands)?;
        let (forward, backward) = (Buffer::default(), Buffer::default());
        Some(Panels { loops, operands, forward, backward, finite: OnceLock::new() })
    }

    /// The loops whose level this proves.
    pub(super) fn loops(&self) -> &'static TileLoops {
        self.loops
    }

    /// Packs `[outputs][inputs]` for both directions.
    pub(super) fn pack(&mut self, weights: Matrix<'_>) {
        let (outputs, inputs) = (weights.rows(), weights.columns());
        let forward = self.loops.panels(self.operands, outputs);
        let backward = self.loops.panels(self.operands, inputs);
        self.finite = OnceLock::new();
        // SAFETY: `Panels::new` checked the level.
        unsafe {
            let room = self.forward.room(packed_floats(forward, self.loops.words(inputs)));
            (self.loops.pack.from_columns)(forward, weights, room);
            let room = self.backward.room(packed_floats(backward, self.loops.words(outputs)));
            (self.loops.pack.from_rows)(backward, weights, room);
        }
    }

    /// See [`super::Linear::forward`].
    pub(super) fn forward(
        &self,
        scratch: &mut Scratch,
        x: Matrix<'_>,
        bias: Option<&[f32]>,
        activation: Activation,
        mut y: MatrixMut<'_>,
    ) {
        let ending = Ending { bias, relu: activation == Activation::Relu, ..Ending::plain(Store::Replace) };
        if self.forward_skipping(scratch, x, ending, y.lend()) {
            return;
        }
        self.along(scratch, x, self.forward.floats(), ending, y);
    }

    /// The forward product of a few rows, without the weights that they multiply by zero. Whether it could be done so; if not,
    /// `y` may hold anything.
    fn forward_skipping(
        &self,
        scratch: &mut Scratch,
        x: Matrix<'_>,
        ending: Ending<'_>,
        y: MatrixMut<'_>,
    ) -> bool {
        if !(1..=self.loops.skip.rows_max()).contains(&x.rows()) {
            return false;
        }
        let finite = || are_finite(self.forward.words(), self.loops.terms);
        if !*self.finite.get_or_init(finite) {
            return false;
        }
        let Scratch { left, present, .. } = scratch;
        let x = self.rounded(left, x);
        // SAFETY: `Panels::new` checked the level.
        unsafe { skip::multiply(self.loops, present, x, self.forward.floats(), ending, y) }
    }

    /// See [`super::Linear::backward_data`].
    pub(super) fn backward_data(
        &self,
        scratch: &mut Scratch,
        dy: Matrix<'_>,
        mask: Option<Matrix<'_>>,
        store: Store,
        dx: MatrixMut<'_>,
    ) {
        self.along(scratch, dy, self.backward.floats(), Ending { mask, ..Ending::plain(store) }, dx);
    }

    /// `c = a b`, and what `ending` adds to that, with `b` packed.
    ///
    /// Where `a` must be rounded first, that goes by a few rows at a time, which are still near when they are multiplied.
    fn along(
        &self,
        scratch: &mut Scratch,
        a: Matrix<'_>,
        b: &[f32],
        ending: Ending<'_>,
        mut c: MatrixMut<'_>,
    ) {
        let words = self.loops.words(a.columns());
        let together = match self.operands {
            Operands::F32 => a.rows(),
            Operands::Bf16 => (ROUNDED_BYTES / (4 * words)).next_multiple_of(self.loops.rows_max),
        };
        for first in (0..a.rows()).step_by(together.max(1)) {
            let rows = together.min(a.rows() - first);
            let mask = ending.mask.map(|mask| mask.rows_from(first, rows));
            let a = self.rounded(&mut scratch.left, a.rows_from(first, rows));
            // SAFETY: `Panels::new` checked the level.
            unsafe {
                multiply(self.loops, Left::InPlace(a), b, Ending { mask, ..ending }, c.rows_from(first, rows))
            }
        }
    }

    /// See [`super::Linear::backward_weights`].
    pub(super) fn backward_weights(
        &self,
        scratch: &mut Scratch,
        dy: Matrix<'_>,
        x: Matrix<'_>,
        store: Store,
        dw: &mut [f32],
        db: Option<&mut [f32]>,
    ) {
        if let Some(db) = db {
            self.backward_bias(dy, store, db);
        }
        let (outputs, inputs) = (dy.columns(), x.columns());
        if is_turned(dy.rows(), inputs, outputs) {
            let Scratch { left, right, turned, .. } = scratch;
            let turned = turned.room(inputs * outputs);
            self.across((left, right), x, dy, Store::Replace, MatrixMut::contiguous(turned, outputs));
            // SAFETY: `Panels::new` checked the level.
            unsafe { (self.loops.pack.turned)(Matrix::contiguous(turned, outputs), store, dw) };
        } else {
            let Scratch { left, right, .. } = scratch;
            self.across((left, right), dy, x, store, MatrixMut::contiguous(dw, inputs));
        }
    }

    /// `c = a^T b`, or added: the product over the rows of both.
    ///
    /// A panel of `b` is packed just before it is used and overwritten by the next, so it never leaves the nearest
    /// cache; unless the sums are short, when all of `b` is small and the result is better written along its rows.
    fn across(
        &self,
        (left, right): (&mut Buffer, &mut Buffer),
        a: Matrix<'_>,
        b: Matrix<'_>,
        store: Store,
        mut c: MatrixMut<'_>,
    ) {
        let (depth, columns) = (self.loops.words(a.rows()), b.columns());
        let left =
            if self.operands == Operands::F32 && depth <= SHALLOW && !a.stride().is_multiple_of(CROWDED) {
                Left::Across(a)
            } else {
                let tiles = self.loops.tiles(self.operands, a.columns());
                let left = left.room(packed_floats(tiles, depth));
                // SAFETY: `Panels::new` checked the level.
                unsafe { (self.loops.pack.from_rows)(tiles, a, left) };
                Left::Packed { data: left, rows: a.columns(), depth }
            };
        let window = if depth <= SHALLOW {
            columns
        } else {
            PANELS_NEAR * self.loops.lanes * self.loops.registers_max
        };
        for first in (0..columns).step_by(window) {
            let width = window.min(columns - first);
            let panels = self.loops.panels(self.operands, width);
            let right = right.room(packed_floats(panels, depth));
            // SAFETY: `Panels::new` checked the level.
            unsafe {
                (self.loops.pack.from_rows)(panels, b.columns_from(first, width), right);
                multiply(self.loops, left, right, Ending::plain(store), c.columns_from(first, width));
            }
        }
    }

    /// The gradient of the bias.
    pub(super) fn backward_bias(&self, dy: Matrix<'_>, store: Store, db: &mut [f32]) {
        // SAFETY: `Panels::new` checked the level.
        unsafe { (self.loops.pack.column_sums)(dy, store, db) }
    }

    /// `x` as the products see it.
    fn rounded<'a>(&self, room: &'a mut Buffer, x: Matrix<'a>) -> Matrix<'a> {
        if self.operands == Operands::F32 {
            return x;
        }
        let words = self.loops.words(x.columns());
        let room = room.room(x.rows() * words);
        // SAFETY: `Panels::new` checked the level.
        unsafe { (self.loops.pack.words)(x, room) };
        Matrix::new(room, x.rows(), words, words)
    }
}
