//! One sample's interaction on the tile loops.
//!
//! With 27 vectors of 16 floats a sample has 351 pairs, 11 thousand operations: too few to call a matrix product
//! and too many for plain loops. Forward turns the vectors once, so that they are the columns of a right operand,
//! and visits only the tiles that reach below the diagonal; the triangle is then copied out in whole registers.
#![allow(unsafe_code)]

use super::{Scratch, Store, Vectors, pair};
use crate::gemm::BLOCK;
use crate::gemm::Operands;
use crate::gemm::pack::packed_floats;
use crate::gemm::product::{Ending, Left, multiply};
use crate::gemm::tile::{Finish, Step, TileLoops, Tiles};
use crate::matrix::{Matrix, MatrixMut};

/// # Safety
///
/// The processor has the instructions of `loops`.
pub(super) unsafe fn forward(
    loops: &TileLoops,
    scratch: &mut Scratch,
    shape: Vectors,
    vectors: &[f32],
    pairs: &mut [f32],
) {
    let Vectors { count, width } = shape;
    if shape.pairs() == 0 {
        return;
    }
    if width == 0 {
        return pairs.fill(0.0);
    }
    let layout = loops.panels(Operands::F32, count);
    let stride = layout.cuts.total() * loops.lanes;
    let panels = scratch.panels.room(packed_floats(layout, width));
    let square = scratch.square.room(count * stride);
    // SAFETY: the caller has the level.
    unsafe { (loops.pack.from_columns)(layout, Matrix::contiguous(vectors, width), panels) };
    assert_eq!(vectors.len(), count * width);
    for k in (0..width).step_by(BLOCK) {
        for rows in loops.tiles(Operands::F32, count).cuts.iter() {
            // Row i has pairs with columns below i only.
            for panel in layout
                .cuts
                .iter()
                .take_while(|panel| panel.start * loops.lanes + 1 < rows.start + rows.length)
            {
                let first = panel.start * loops.lanes;
                let tile = Tiles {
                    count: 1,
                    step: Step::default(),
                    depth: BLOCK.min(width - k),
                    a: vectors[rows.start * width + k..].as_ptr(),
                    a_stride: width,
                    b: panels[first * width + k * panel.length * loops.lanes..].as_ptr(),
                    next_b: std::ptr::null(),
                    next_floats: 0,
                    c: square[rows.start * stride + first..].as_mut_ptr(),
                    c_stride: stride,
                    columns: stride - first,
                    finish: Finish { add: k > 0, ..Finish::STORE },
                };
                // SAFETY: rows and panels are pieces of `count` vectors, `stride` floats are whole registers,
                // and the caller has the level.
                unsafe { loops.in_place[panel.length - 1][rows.length - 1](&tile) };
            }
        }
    }
    copy_triangle(count, square, stride, pairs);
}

/// Floats that are copied at a time. Every register is a multiple of this.
const RUN: usize = 8;

/// Copies `length` floats, or a few more where both sides have them: what is too much is overwritten later.
fn copy_runs(from: &[f32], to: &mut [f32], length: usize) {
    let whole = length.next_multiple_of(RUN);
    match (from.get(..whole), to.get_mut(..whole)) {
        (Some(from), Some(to)) => to.as_chunks_mut::<RUN>().0.copy_from_slice(from.as_chunks::<RUN>().0),
        _ => to[..length].copy_from_slice(&from[..length]),
    }
}

/// Copies the part of each row that lies below the diagonal; a row's surplus is overwritten by the next.
fn copy_triangle(count: usize, square: &[f32], stride: usize, pairs: &mut [f32]) {
    for i in 1..count {
        copy_runs(&square[i * stride..], &mut pairs[pair(i, 0)..], i);
    }
}

/// # Safety
///
/// The processor has the instructions of `loops`.
pub(super) unsafe fn backward(
    loops: &TileLoops,
    scratch: &mut Scratch,
    (shape, store): (Vectors, Store),
    vectors: &[f32],
    gradient: &[f32],
    out: &mut [f32],
) {
    let Vectors { count, width } = shape;
    if shape.floats() == 0 {
        return;
    }
    let stride = count.next_multiple_of(loops.lanes);
    let square = scratch.square.room(count * stride);
    fill_square(count, gradient, square, stride);
    let layout = loops.panels(Operands::F32, width);
    let panels = scratch.panels.room(packed_floats(layout, count));
    // SAFETY: the caller has the level.
    unsafe {
        (loops.pack.from_rows)(layout, Matrix::contiguous(vectors, width), panels);
        let left = Left::InPlace(Matrix::new(square, count, count, stride));
        multiply(loops, left, panels, Ending::plain(store), MatrixMut::contiguous(out, width));
    }
}

/// Both triangles of the pairs' gradients, and zeros on the diagonal. A row's surplus lies on and beyond the
/// diagonal, where the zero and the later rows' columns overwrite it.
fn fill_square(count: usize, gradient: &[f32], square: &mut [f32], stride: usize) {
    assert!(count <= stride && count * stride <= square.len());
    square[0] = 0.0;
    for i in 1..count {
        let row = &gradient[pair(i, 0)..];
        copy_runs(row, &mut square[i * stride..][..stride], i);
        square[i * stride + i] = 0.0;
        for (j, value) in row[..i].iter().enumerate() {
            // SAFETY: j < i < count <= stride, so this is row j of the square.
            unsafe { *square.get_unchecked_mut(j * stride + i) = *value };
        }
    }
}
