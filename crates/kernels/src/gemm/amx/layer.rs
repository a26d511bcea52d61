//! A layer's weights in tiles, and its three products on them.
//!
//! The same three products as in `panels`. Weight gradients over a handful of samples are left to the panels: a
//! tile takes 32 terms, and most of it would be zeros.
#![allow(unsafe_code)]

use super::kernel::{HARDWARE, TileUnit};
use super::{Lying, Origin, Packed, Side, multiply, pack, packed_words};
use crate::buffer::Buffer;
use crate::gemm::panels::Panels;
use crate::gemm::product::Ending;
use crate::gemm::tile::TileLoops;
use crate::gemm::{Activation, Scratch};
use crate::isa::{Isa, Level};
use crate::matrix::{Matrix, MatrixMut, Store};

/// Weight gradients over fewer samples than this go through the panels.
const SAMPLES_MIN: usize = 16;

/// The packed weights. Having one proves that the processor has the instructions.
#[derive(Debug, Clone)]
pub(in crate::gemm) struct Tiles {
    loops: &'static TileLoops,
    unit: &'static TileUnit,
    panels: Panels,
    inputs: usize,
    outputs: usize,
    forward: Buffer,
    backward: Buffer,
}

impl Tiles {
    /// Tiles for a layer, where the level has them.
    pub(in crate::gemm) fn at(isa: Isa, panels: &Panels, inputs: usize, outputs: usize) -> Option<Tiles> {
        if isa.level() != Level::Amx {
            return None;
        }
        // SAFETY: the level proves the instructions.
        Some(unsafe { Tiles::new(&HARDWARE, panels.clone(), inputs, outputs) })
    }

    /// Tiles for a layer.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `unit`.
    pub(in crate::gemm) unsafe fn new(
        unit: &'static TileUnit,
        panels: Panels,
        inputs: usize,
        outputs: usize,
    ) -> Tiles {
        let (forward, backward) = (Buffer::default(), Buffer::default());
        Tiles { loops: panels.loops(), unit, panels, inputs, outputs, forward, backward }
    }

    /// Packs `[outputs][inputs]` for both directions.
    pub(in crate::gemm) fn pack(&mut self, weights: Matrix<'_>) {
        let room = self.forward.word_room(packed_words(self.outputs, self.inputs));
        let forward = Origin { source: weights, lying: Lying::Along, side: Side::Right };
        // SAFETY: `panels` proves the level of its loops.
        unsafe { pack(self.loops, forward, room) };
        let room = self.backward.word_room(packed_words(self.inputs, self.outputs));
        let backward = Origin { source: weights, lying: Lying::Across, side: Side::Right };
        // SAFETY: as above.
        unsafe { pack(self.loops, backward, room) };
    }

    /// See [`crate::gemm::Linear::forward`].
    pub(in crate::gemm) fn forward(
        &self,
        scratch: &mut Scratch,
        x: Matrix<'_>,
        bias: Option<&[f32]>,
        activation: Activation,
        y: MatrixMut<'_>,
    ) {
        let ending = Ending { bias, relu: activation == Activation::Relu, ..Ending::plain(Store::Replace) };
        let x = self.left(&mut scratch.left, x, Lying::Along);
        let w = Packed { words: self.forward.words(), length: self.outputs, depth: self.inputs };
        // SAFETY: `new` and `panels` prove the instructions.
        unsafe { multiply(self.loops, self.unit, (x, w), ending, y) }
    }

    /// See [`crate::gemm::Linear::backward_data`].
    pub(in crate::gemm) fn backward_data(
        &self,
        scratch: &mut Scratch,
        dy: Matrix<'_>,
        mask: Option<Matrix<'_>>,
        store: Store,
        dx: MatrixMut<'_>,
    ) {
        let ending = Ending { mask, ..Ending::plain(store) };
        let dy = self.left(&mut scratch.left, dy, Lying::Along);
        let w = Packed { words: self.backward.words(), length: self.inputs, depth: self.outputs };
        // SAFETY: `new` and `panels` prove the instructions.
        unsafe { multiply(self.loops, self.unit, (dy, w), ending, dx) }
    }

    /// See [`crate::gemm::Linear::backward_weights`].
    pub(in crate::gemm) fn backward_weights(
        &self,
        scratch: &mut Scratch,
        dy: Matrix<'_>,
        x: Matrix<'_>,
        store: Store,
        dw: &mut [f32],
        db: Option<&mut [f32]>,
    ) {
        let samples = dy.rows();
        if samples < SAMPLES_MIN {
            return self.panels.backward_weights(scratch, dy, x, store, dw, db);
        }
        if let Some(db) = db {
            self.panels.backward_bias(dy, store, db);
        }
        let Scratch { left, right, .. } = scratch;
        let dy = self.left(left, dy, Lying::Across);
        let words = right.word_room(packed_words(self.inputs, samples));
        // SAFETY: `panels` proves the level of its loops.
        unsafe { pack(self.loops, Origin { source: x, lying: Lying::Across, side: Side::Right }, words) };
        let x = Packed { words, length: self.inputs, depth: samples };
        let dw = MatrixMut::contiguous(dw, self.inputs);
        // SAFETY: `new` and `panels` prove the instructions.
        unsafe { multiply(self.loops, self.unit, (dy, x), Ending::plain(store), dw) }
    }

    fn left<'a>(&self, room: &'a mut Buffer, source: Matrix<'_>, lying: Lying) -> Packed<'a> {
        let (length, depth) = match lying {
            Lying::Along => (source.rows(), source.columns()),
            Lying::Across => (source.columns(), source.rows()),
        };
        let words = room.word_room(packed_words(length, depth));
        // SAFETY: `panels` proves the level of its loops.
        unsafe { pack(self.loops, Origin { source, lying, side: Side::Left }, words) };
        Packed { words, length, depth }
    }
}
