//! Laying operands out as the tile loops read them, rounding on the way where asked.
//!
//! *Right* operands become panels: all `k` of a few registers' columns, then the next columns; columns that do
//! not exist are zero. *Left* operands become `[k][rows of the tile]` per tile. Both keep `first * depth` as the
//! place where a panel or tile begins.
//!
//! Packing costs a few moves per element and is paid back `columns / 16` times per element, so it must not stroll:
//! everything moves in whole registers, and a source line is read by all pieces that share it while it is near.
#![allow(unsafe_code)]

use super::Operands;
use super::cuts::{Cuts, Piece};
use crate::matrix::{Matrix, Store};
use crate::simd::Vector;

/// How a level lays out one operand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub operands: Operands,
    /// Columns that one unit of a cut stands for: a register for panels, one for tiles.
    pub unit: usize,
    pub cuts: Cuts,
}

impl Layout {
    fn width(&self, piece: Piece) -> (usize, usize) {
        (piece.start * self.unit, piece.length * self.unit)
    }
}

/// The packing loops of one level.
///
/// # Safety
///
/// Each may only run where the processor has the level's instructions.
#[derive(Debug)]
pub(crate) struct PackLoops {
    /// Cuts a matrix that lies `[k][column]` into pieces `[k][columns of the piece]`.
    pub from_rows: unsafe fn(Layout, Matrix<'_>, &mut [f32]),
    /// The same for a matrix that lies `[column][k]`.
    pub from_columns: unsafe fn(Layout, Matrix<'_>, &mut [f32]),
    /// Copies a matrix, rounded to bfloat16, without gaps between its rows.
    pub rounded: unsafe fn(Matrix<'_>, &mut [f32]),
    /// Stores or adds a matrix, rows and columns swapped.
    pub turned: unsafe fn(Matrix<'_>, Store, &mut [f32]),
    /// The sum of each column, from zero, in the order of the rows.
    pub column_sums: unsafe fn(Matrix<'_>, Store, &mut [f32]),
}

/// Floats that a packed operand takes.
pub(crate) fn packed_floats(layout: Layout, depth: usize) -> usize {
    layout.cuts.total() * layout.unit * depth
}

/// Rows of the source that are visited together, so that its lines stay near.
const DEPTH_CHUNK: usize = 16;
/// Columns that are visited together.
const COLUMN_CHUNK: usize = 48;

/// # Safety
///
/// The processor has the instructions of `V`.
#[inline(always)]
unsafe fn from_rows<V: Vector, const BF16: bool>(layout: Layout, source: Matrix<'_>, packed: &mut [f32]) {
    let depth = source.rows();
    assert!(packed.len() >= packed_floats(layout, depth), "{} floats for a packed operand", packed.len());
    let Some(widest) = layout.cuts.iter().next() else { return };
    let together = (COLUMN_CHUNK / layout.width(widest).1).max(1);
    for group in (0..layout.cuts.len()).step_by(together) {
        let group = group..layout.cuts.len().min(group + together);
        for chunk in (0..depth).step_by(DEPTH_CHUNK) {
            let chunk = chunk..depth.min(chunk + DEPTH_CHUNK);
            for piece in group.clone() {
                let (first, width) = layout.width(layout.cuts.get(piece));
                let to = &mut packed[first * depth..][..width * depth];
                // SAFETY: the caller's contract.
                unsafe { piece_rows::<V, BF16>(source, first, chunk.clone(), to, width) };
            }
        }
    }
}

/// Copies rows `chunk` of the `width` columns from `first` on into a piece, zeros for columns that do not exist.
///
/// # Safety
///
/// The processor has the instructions of `V`.
#[inline(always)]
unsafe fn piece_rows<V: Vector, const BF16: bool>(
    source: Matrix<'_>,
    first: usize,
    chunk: std::ops::Range<usize>,
    piece: &mut [f32],
    width: usize,
) {
    let registers = width.div_ceil(V::LANES);
    // A register that is wider than the piece reads the neighbour's columns and writes where the next row will
    // be written: fine, but not past the end of either.
    let readable = first + registers * V::LANES <= source.columns();
    let writable = chunk.end * width + registers * V::LANES - width <= piece.len();
    assert!(chunk.end <= source.rows() && chunk.end * width <= piece.len() && first < source.columns());
    // SAFETY: `readable` and `writable` cover the fast loops, and `copy` is bounded by what it is told.
    unsafe {
        let from = source.as_ptr().add(chunk.start * source.stride() + first);
        let to = piece.as_mut_ptr().add(chunk.start * width);
        let rows = chunk.len();
        match registers {
            1 if readable && writable => registers_down::<V, BF16, 1>(from, source.stride(), to, width, rows),
            2 if readable && writable => registers_down::<V, BF16, 2>(from, source.stride(), to, width, rows),
            3 if readable && writable => registers_down::<V, BF16, 3>(from, source.stride(), to, width, rows),
            _ => {
                let columns = width.min(source.columns() - first);
                for k in 0..rows {
                    let from = from.add(k * source.stride());
                    copy::<V, BF16>(from, (columns, columns), to.add(k * width), (width, width));
                }
            }
        }
    }
}

/// Moves `COUNT` registers per row, `rows` times.
///
/// # Safety
///
/// The processor has the instructions of `V`, and the pointers are good for as much.
#[inline(always)]
unsafe fn registers_down<V: Vector, const BF16: bool, const COUNT: usize>(
    from: *const f32,
    from_stride: usize,
    to: *mut f32,
    to_stride: usize,
    rows: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        for k in 0..rows {
            for j in 0..COUNT {
                let value = V::load(from.add(k * from_stride + j * V::LANES));
                let value = if BF16 { value.round_to_bf16() } else { value };
                value.store(to.add(k * to_stride + j * V::LANES));
            }
        }
    }
}

/// Copies `columns` floats and zeros up to `width`; may read up to `readable` and write up to `writable`.
///
/// # Safety
///
/// The processor has the instructions of `V`, and the pointers are good for as much.
#[inline(always)]
unsafe fn copy<V: Vector, const BF16: bool>(
    from: *const f32,
    (columns, readable): (usize, usize),
    to: *mut f32,
    (width, writable): (usize, usize),
) {
    // SAFETY: the caller's contract; every access below is bounded by what it names.
    unsafe {
        for c in (0..width).step_by(V::LANES) {
            let from = from.wrapping_add(c);
            let whole = c + V::LANES <= readable && columns >= width;
            let value = if whole {
                V::load(from)
            } else {
                V::load_first(from, columns.saturating_sub(c).min(V::LANES))
            };
            let value = if BF16 { value.round_to_bf16() } else { value };
            if c + V::LANES <= writable {
                value.store(to.add(c));
            } else {
                value.store_first(to.add(c), width - c);
            }
        }
    }
}

/// The side of the squares that are turned in registers.
const SQUARE: usize = 8;

/// # Safety
///
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn from_columns<const BF16: bool>(layout: Layout, source: Matrix<'_>, packed: &mut [f32]) {
    use crate::simd::Avx2;
    let depth = source.columns();
    assert!(packed.len() >= packed_floats(layout, depth), "{} floats for a packed operand", packed.len());
    assert!(layout.unit.is_multiple_of(SQUARE));
    for piece in layout.cuts.iter() {
        let (first, width) = layout.width(piece);
        let panel = &mut packed[first * depth..][..width * depth];
        for k in (0..depth).step_by(SQUARE) {
            let terms = SQUARE.min(depth - k);
            for j in (0..width).step_by(SQUARE) {
                // SAFETY: rows that exist are read up to their end, and the panel is written inside `width *
                // depth`, whose every square is whole in `j` and has `terms` rows in `k`.
                unsafe {
                    let mut rows = [Avx2::zero(); SQUARE];
                    let present = source.rows().saturating_sub(first + j).min(SQUARE);
                    // A loop and not `array::from_fn`: a closure that is not inlined loses the target features.
                    for (i, row) in rows.iter_mut().enumerate().take(present) {
                        let from = source.row(first + j + i)[k..].as_ptr();
                        *row = if terms == SQUARE { Avx2::load(from) } else { Avx2::load_first(from, terms) };
                        if BF16 {
                            *row = row.round_to_bf16();
                        }
                    }
                    let columns = Avx2::transpose(rows);
                    for (i, column) in columns.into_iter().enumerate().take(terms) {
                        column.store(panel.as_mut_ptr().add((k + i) * width + j));
                    }
                }
            }
        }
    }
}

/// # Safety
///
/// The processor has the instructions of `V`.
#[inline(always)]
unsafe fn rounded<V: Vector>(source: Matrix<'_>, target: &mut [f32]) {
    let columns = source.columns();
    assert!(target.len() >= source.rows() * columns);
    for r in 0..source.rows() {
        let to = &mut target[r * columns..][..columns];
        // SAFETY: both rows are `columns` long.
        unsafe {
            copy::<V, true>(source.row(r).as_ptr(), (columns, columns), to.as_mut_ptr(), (columns, columns));
        }
    }
}

/// # Safety
///
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn turned(source: Matrix<'_>, store: Store, target: &mut [f32]) {
    use crate::simd::Avx2;
    let (rows, columns) = (source.rows(), source.columns());
    assert_eq!(target.len(), rows * columns);
    for j in (0..columns).step_by(SQUARE) {
        let width = SQUARE.min(columns - j);
        for i in (0..rows).step_by(SQUARE) {
            let height = SQUARE.min(rows - i);
            // SAFETY: rows that exist are read for the columns that exist, and written likewise.
            unsafe {
                let square = Avx2::transpose(std::array::from_fn(|r| match i + r < rows {
                    true => Avx2::load_first(source.row(i + r)[j..].as_ptr(), width),
                    false => Avx2::zero(),
                }));
                for (c, values) in square.into_iter().enumerate().take(width) {
                    let to = target.as_mut_ptr().add((j + c) * rows + i);
                    let whole = height == SQUARE;
                    let old = || if whole { Avx2::load(to) } else { Avx2::load_first(to, height) };
                    let values = if store == Store::Add { old().add(values) } else { values };
                    if whole { values.store(to) } else { values.store_first(to, height) }
                }
            }
        }
    }
}

/// # Safety
///
/// The processor has the instructions of `V`.
#[inline(always)]
unsafe fn column_sums<V: Vector>(source: Matrix<'_>, store: Store, target: &mut [f32]) {
    const REGISTERS: usize = 12;
    assert_eq!(target.len(), source.columns());
    for first in (0..target.len()).step_by(REGISTERS * V::LANES) {
        let columns = target.len() - first;
        let lanes = |j: usize| columns.saturating_sub(j * V::LANES).min(V::LANES);
        // SAFETY: only lanes that are columns are read or written.
        unsafe {
            let whole = lanes(REGISTERS - 1) == V::LANES;
            let mut sums = [V::zero(); REGISTERS];
            for k in 0..source.rows() {
                let row = source.row(k)[first..].as_ptr();
                for (j, sum) in sums.iter_mut().enumerate() {
                    let at = row.wrapping_add(j * V::LANES);
                    *sum = sum.add(if whole { V::load(at) } else { V::load_first(at, lanes(j)) });
                }
            }
            for (j, sum) in sums.into_iter().enumerate() {
                let to = target.as_mut_ptr().wrapping_add(first + j * V::LANES);
                let sum = if store == Store::Add { V::load_first(to, lanes(j)).add(sum) } else { sum };
                sum.store_first(to, lanes(j));
            }
        }
    }
}

macro_rules! pack_loops {
    ($name:ident, $vector:ty, $features:literal) => {
        pub(crate) mod $name {
            use super::*;

            pub(crate) static LOOPS: PackLoops =
                PackLoops { from_rows, from_columns, rounded, turned, column_sums };

            // SAFETY of the five: each has the features, and hands the rest of its contract on.
            #[target_feature(enable = $features)]
            unsafe fn from_rows(layout: Layout, source: Matrix<'_>, packed: &mut [f32]) {
                match layout.operands {
                    // SAFETY: as above.
                    Operands::F32 => unsafe { super::from_rows::<$vector, false>(layout, source, packed) },
                    // SAFETY: as above.
                    Operands::Bf16 => unsafe { super::from_rows::<$vector, true>(layout, source, packed) },
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn from_columns(layout: Layout, source: Matrix<'_>, packed: &mut [f32]) {
                match layout.operands {
                    // SAFETY: as above.
                    Operands::F32 => unsafe { super::from_columns::<false>(layout, source, packed) },
                    // SAFETY: as above.
                    Operands::Bf16 => unsafe { super::from_columns::<true>(layout, source, packed) },
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn rounded(source: Matrix<'_>, target: &mut [f32]) {
                // SAFETY: as above.
                unsafe { super::rounded::<$vector>(source, target) }
            }

            #[target_feature(enable = $features)]
            unsafe fn turned(source: Matrix<'_>, store: Store, target: &mut [f32]) {
                // SAFETY: as above.
                unsafe { super::turned(source, store, target) }
            }

            #[target_feature(enable = $features)]
            unsafe fn column_sums(source: Matrix<'_>, store: Store, target: &mut [f32]) {
                // SAFETY: as above.
                unsafe { super::column_sums::<$vector>(source, store, target) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
pack_loops!(avx2, crate::simd::Avx2, "avx2,fma");
#[cfg(target_arch = "x86_64")]
pack_loops!(avx512, crate::simd::Avx512, "avx512f,avx512dq,avx2,fma");
