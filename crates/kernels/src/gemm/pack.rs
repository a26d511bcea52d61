//! Laying operands out as the tile loops read them, rounding on the way where asked.
//!
//! *Right* operands become panels: all `k` of a few registers' columns, then the next columns; columns that do
//! not exist are zero. *Left* operands become `[k][rows of the tile]` per tile. Both keep `first * depth` as the
//! place where a panel or tile begins.
#![allow(unsafe_code)]

use super::cuts::{Cuts, Piece};
use super::tile::TileLoops;
use super::{Operands, round_to_bf16};
use crate::matrix::Matrix;

/// How a level lays out one operand.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub operands: Operands,
    pub lanes: usize,
    pub cuts: Cuts,
}

impl Layout {
    /// Panels of a right operand with this many columns; their pieces count registers.
    pub(super) fn panels(loops: &TileLoops, operands: Operands, columns: usize) -> Layout {
        let cuts = Cuts::new(columns.div_ceil(loops.lanes), loops.registers_max);
        Layout { operands, lanes: loops.lanes, cuts }
    }

    /// Tiles of a left operand with this many rows.
    pub(super) fn tiles(loops: &TileLoops, operands: Operands, rows: usize) -> Layout {
        Layout { operands, lanes: 1, cuts: Cuts::new(rows, loops.rows_max) }
    }
}

/// Packs a right operand whose memory is `[k][column]`.
pub(super) fn right_from_rows(layout: Layout, source: Matrix<'_>, packed: &mut [f32]) {
    pieces_from_rows(layout, source, packed);
}

/// Packs a left operand whose memory is `[k][row]`.
pub(super) fn left_from_rows(layout: Layout, source: Matrix<'_>, packed: &mut [f32]) {
    pieces_from_rows(layout, source, packed);
}

fn pieces_from_rows(layout: Layout, source: Matrix<'_>, packed: &mut [f32]) {
    let depth = source.rows();
    for Piece { start, length } in layout.cuts.iter() {
        let (first, width) = (start * layout.lanes, length * layout.lanes);
        let columns = width.min(source.columns() - first);
        let piece = &mut packed[first * depth..][..width * depth];
        for (k, to) in piece.chunks_exact_mut(width).enumerate() {
            let from = &source.row(k)[first..][..columns];
            match layout.operands {
                Operands::F32 => to[..columns].copy_from_slice(from),
                Operands::Bf16 => to.iter_mut().zip(from).for_each(|(to, from)| *to = round_to_bf16(*from)),
            }
            to[columns..].fill(0.0);
        }
    }
}

/// Packs a right operand whose memory is `[column][k]`.
pub(super) fn right_from_columns(layout: Layout, source: Matrix<'_>, packed: &mut [f32]) {
    let depth = source.columns();
    for Piece { start, length } in layout.cuts.iter() {
        let (first, width) = (start * layout.lanes, length * layout.lanes);
        let columns = width.min(source.rows() - first);
        let panel = &mut packed[first * depth..][..width * depth];
        for j in 0..columns {
            for (k, from) in source.row(first + j).iter().enumerate() {
                panel[k * width + j] = layout.operands.round(*from);
            }
        }
        for to in panel.chunks_exact_mut(width) {
            to[columns..].fill(0.0);
        }
    }
}

/// Copies a matrix, rounded.
pub(super) fn rounded_rows<'a>(source: Matrix<'_>, room: &'a mut [f32]) -> Matrix<'a> {
    for (to, r) in room.chunks_exact_mut(source.columns()).zip(0..source.rows()) {
        to.iter_mut().zip(source.row(r)).for_each(|(to, from)| *to = round_to_bf16(*from));
    }
    Matrix::new(room, source.rows(), source.columns(), source.columns())
}
