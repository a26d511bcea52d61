//! One matrix product as a walk over tiles.
//!
//! ```text
//! for each block of 512 terms          (the order of sums: fixed)
//!   for each group of row tiles        (their part of A stays in the second-level cache)
//!     for each panel of B              (stays in the first-level cache, or near it)
//!       for each row tile of the group
//! ```
//!
//! While the first row tiles use a panel, the next panel is asked for: large weights live in the third-level cache, which
//! other programs of the machine may empty.
//!
//! Where a sum is short, most of the traffic is the result's: then the panels are grouped and run innermost, so
//! that the result is written along its rows. Only the first loop is part of the contract; the others are free, for no sum crosses tiles.
#![allow(unsafe_code)]

use super::cuts::{Cuts, Piece, Run};
use super::tile::{Finish, Step, TileLoops, Tiles};
use super::{BLOCK, Operands};
use crate::matrix::{Matrix, MatrixMut, Store};

/// Bytes of A that a group of row tiles may take: half of a small second-level cache.
const GROUP_BYTES: usize = 192 * 1024;

/// Sums of at most this many terms are bound by the traffic of the result.
pub(crate) const SHALLOW: usize = 96;

/// The left operand.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Left<'a> {
    /// Row-major, read where it lies.
    InPlace(Matrix<'a>),
    /// The same, but rows of the product are columns of this matrix.
    Across(Matrix<'a>),
    /// `[tile][k][row of the tile]`, see `pack`.
    Packed { data: &'a [f32], rows: usize, depth: usize },
}

impl Left<'_> {
    fn rows(&self) -> usize {
        match self {
            Left::InPlace(a) => a.rows(),
            Left::Across(a) => a.columns(),
            Left::Packed { rows, .. } => *rows,
        }
    }

    fn depth(&self) -> usize {
        match self {
            Left::InPlace(a) => a.columns(),
            Left::Across(a) => a.rows(),
            Left::Packed { depth, .. } => *depth,
        }
    }
}

/// What follows the sums.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ending<'a> {
    pub store: Store,
    pub bias: Option<&'a [f32]>,
    pub relu: bool,
    pub mask: Option<Matrix<'a>>,
}

impl Ending<'_> {
    /// The sums and nothing else.
    pub(crate) fn plain(store: Store) -> Self {
        Ending { store, bias: None, relu: false, mask: None }
    }

    /// The same for the tile whose first element is at this row and column.
    pub(crate) fn finish(&self, row: usize, column: usize) -> Finish {
        let bias = self.bias.map_or(std::ptr::null(), |bias| bias[column..].as_ptr());
        let (mask, mask_stride) = self.mask.map_or((std::ptr::null(), 0), |mask| {
            (mask.as_ptr().wrapping_add(row * mask.stride() + column), mask.stride())
        });
        Finish { add: self.store == Store::Add, bias, relu: self.relu, mask, mask_stride }
    }
}

/// `c = a b`, and what `ending` adds to that. `right` is packed in panels.
///
/// # Safety
///
/// The processor has the instructions of `loops`.
///
/// # Panics
///
/// If an operand is too small for the result.
pub(crate) unsafe fn multiply(
    loops: &TileLoops,
    left: Left<'_>,
    right: &[f32],
    ending: Ending<'_>,
    mut c: MatrixMut<'_>,
) {
    let (rows, columns, depth) = (c.rows(), c.columns(), left.depth());
    let panels = loops.panels(Operands::F32, columns).cuts;
    assert_eq!(left.rows(), rows, "rows of the left operand");
    assert!(
        right.len() >= columns.next_multiple_of(loops.lanes) * depth,
        "a right operand of {}",
        right.len()
    );
    assert!(ending.bias.is_none_or(|bias| bias.len() == columns));
    assert!(ending.mask.is_none_or(|mask| (mask.rows(), mask.columns()) == (rows, columns)));
    if let Left::Packed { data, .. } = left {
        assert!(data.len() >= rows * depth, "a left operand of {}", data.len());
    }
    let walk = Walk { loops, left, right, ending, c: c.as_mut_ptr(), c_stride: c.stride(), columns };
    let tiles = loops.tiles(Operands::F32, rows).cuts;
    if depth == 0 && ending.store == Store::Replace {
        (0..rows).for_each(|r| c.row(r).fill(0.0)); // The empty sum; only a gradient over no samples has one.
    }
    let block = loops.words(BLOCK);
    for k in (0..depth).step_by(block) {
        let terms = Piece { start: k, length: block.min(depth - k) };
        let near = |length_max: usize| (GROUP_BYTES / (4 * terms.length * length_max)).max(1);
        // SAFETY of both walks: the asserts above, and the cuts stay inside rows, columns and depth.
        if terms.length <= SHALLOW {
            for_groups(&panels, near(loops.registers_max * loops.lanes), |group| {
                for tile in tiles.iter() {
                    for run in panels.runs(group.clone()) {
                        // SAFETY: as above.
                        unsafe { walk.along_columns(terms, tile, run) }
                    }
                }
            });
        } else {
            for_groups(&tiles, near(loops.rows_max), |group| {
                for (place, panel) in panels.iter().enumerate() {
                    let mut next = (place + 1 < panels.len()).then(|| panels.get(place + 1));
                    for run in tiles.runs(group.clone()) {
                        // SAFETY: as above.
                        unsafe { walk.along_rows(terms, run, panel, next.take()) }
                    }
                }
            });
        }
    }
}

/// Calls `visit` with runs of at most `size` pieces.
fn for_groups(cuts: &Cuts, size: usize, visit: impl Fn(std::ops::Range<usize>)) {
    for first in (0..cuts.len()).step_by(size) {
        visit(first..cuts.len().min(first + size));
    }
}

/// What all tiles of a product share.
struct Walk<'a> {
    loops: &'a TileLoops,
    left: Left<'a>,
    right: &'a [f32],
    ending: Ending<'a>,
    c: *mut f32,
    c_stride: usize,
    columns: usize,
}

impl Walk<'_> {
    /// The tiles of `rows` and a run of panels.
    ///
    /// # Safety
    ///
    /// As for [`multiply`]; the pieces are pieces of its product.
    unsafe fn along_columns(&self, terms: Piece, rows: Piece, panels: Run) {
        let width = panels.first.length * self.loops.lanes;
        let step = Step { a: 0, b: width * self.left.depth(), c: width, mask: width, columns: width };
        // SAFETY: the caller's contract.
        unsafe { self.tiles(terms, rows, (panels.first, None), panels.count, step) }
    }

    /// A run of row tiles and one panel.
    ///
    /// # Safety
    ///
    /// As for [`multiply`]; the pieces are pieces of its product.
    unsafe fn along_rows(&self, terms: Piece, rows: Run, panel: Piece, next: Option<Piece>) {
        let length = rows.first.length;
        let a = match self.left {
            Left::InPlace(a) => length * a.stride(),
            Left::Across(_) => length,
            Left::Packed { depth, .. } => length * depth,
        };
        let mask = self.ending.mask.map_or(0, |mask| length * mask.stride());
        let step = Step { a, b: 0, c: length * self.c_stride, mask, columns: 0 };
        // SAFETY: the caller's contract.
        unsafe { self.tiles(terms, rows.first, (panel, next), rows.count, step) }
    }

    /// # Safety
    ///
    /// As for [`multiply`]; `count` tiles from `rows` and `panel` on, `step` apart, are tiles of its product.
    unsafe fn tiles(
        &self,
        terms: Piece,
        rows: Piece,
        (panel, next): (Piece, Option<Piece>),
        count: usize,
        step: Step,
    ) {
        let depth = self.left.depth();
        let (first, width) = (panel.start * self.loops.lanes, panel.length * self.loops.lanes);
        let (a, a_stride, table) = match self.left {
            Left::InPlace(a) => {
                let start = rows.start * a.stride() + terms.start;
                (a.as_ptr().wrapping_add(start), a.stride(), self.loops.in_place)
            }
            Left::Across(a) => {
                let start = rows.start + terms.start * a.stride();
                (a.as_ptr().wrapping_add(start), a.stride(), self.loops.across)
            }
            Left::Packed { data, .. } => {
                let start = rows.start * depth + terms.start * rows.length;
                (data.as_ptr().wrapping_add(start), 0, self.loops.packed)
            }
        };
        let (next_b, next_floats) = next.map_or((std::ptr::null(), 0), |next| {
            let (first, width) = (next.start * self.loops.lanes, next.length * self.loops.lanes);
            (self.right.as_ptr().wrapping_add(first * depth + terms.start * width), terms.length * width)
        });
        let tiles = Tiles {
            count,
            step,
            depth: terms.length,
            a,
            a_stride,
            b: self.right.as_ptr().wrapping_add(first * depth + terms.start * width),
            next_b,
            next_floats,
            c: self.c.wrapping_add(rows.start * self.c_stride + first),
            c_stride: self.c_stride,
            columns: self.columns - first,
            finish: self.finish(terms, depth, rows.start, first),
        };
        // SAFETY: the pointers above lie inside their operands by the caller's contract.
        unsafe { table[panel.length - 1][rows.length - 1](&tiles) }
    }

    /// Blocks but the first are added; only the last has bias, ReLU and mask.
    fn finish(&self, terms: Piece, depth: usize, row: usize, column: usize) -> Finish {
        let add = terms.start > 0 || self.ending.store == Store::Add;
        if terms.start + terms.length < depth {
            return Finish { add, ..Finish::STORE };
        }
        Finish { add, ..self.ending.finish(row, column) }
    }
}
