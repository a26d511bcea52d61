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
use super::word::{Pair, Rounded, Whole, Word};
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
    /// Copies a matrix that lies `[row][k]` as words, without gaps between its rows.
    pub words: unsafe fn(Matrix<'_>, &mut [f32]),
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
/// The processor has the instructions of `V` and `W`.
#[inline(always)]
unsafe fn from_rows<V: Vector, W: Word<V>>(layout: Layout, source: Matrix<'_>, packed: &mut [f32]) {
    let depth = source.rows().div_ceil(W::TERMS);
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
                unsafe { piece_rows::<V, W>(source, first, chunk.clone(), to, width) };
            }
        }
    }
}

/// Copies words `chunk` of the `width` columns from `first` on into a piece, zeros for columns that do not exist.
///
/// # Safety
///
/// The processor has the instructions of `V` and `W`.
#[inline(always)]
unsafe fn piece_rows<V: Vector, W: Word<V>>(
    source: Matrix<'_>,
    first: usize,
    chunk: std::ops::Range<usize>,
    piece: &mut [f32],
    width: usize,
) {
    let registers = width.div_ceil(V::LANES);
    let first_row = chunk.start * W::TERMS;
    // The last word may lack its last term.
    let whole_words = chunk.end.min(source.rows() / W::TERMS) - chunk.start;
    // A register that is wider than the piece reads the neighbour's columns and writes where the next row will
    // be written: fine, but not past the end of either.
    let readable = first + registers * V::LANES <= source.columns();
    let writable = chunk.end * width + registers * V::LANES - width <= piece.len();
    assert!(first_row + (chunk.len() - 1) * W::TERMS < source.rows() && first < source.columns());
    assert!(chunk.end * width <= piece.len());
    // SAFETY: `readable` and `writable` cover the fast loops, and `copy` is bounded by what it is told.
    unsafe {
        let from = source.as_ptr().add(first_row * source.stride() + first);
        let to = piece.as_mut_ptr().add(chunk.start * width);
        let fast = readable && writable;
        match registers {
            1 if fast => registers_down::<V, W, 1>(from, source.stride(), to, width, whole_words),
            2 if fast => registers_down::<V, W, 2>(from, source.stride(), to, width, whole_words),
            3 if fast => registers_down::<V, W, 3>(from, source.stride(), to, width, whole_words),
            _ => {}
        }
        let columns = width.min(source.columns() - first);
        for word in if fast && registers <= 3 { whole_words } else { 0 }..chunk.len() {
            let from = from.add(word * W::TERMS * source.stride());
            let second = (word < whole_words).then(|| from.wrapping_add(source.stride()));
            copy::<V, W>(from, second, columns, to.add(word * width), width);
        }
    }
}

/// Moves `COUNT` registers per word, `words` times.
///
/// # Safety
///
/// The processor has the instructions of `V` and `W`, and the pointers are good for as much.
#[inline(always)]
unsafe fn registers_down<V: Vector, W: Word<V>, const COUNT: usize>(
    from: *const f32,
    from_stride: usize,
    to: *mut f32,
    to_stride: usize,
    words: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        for k in 0..words {
            for j in 0..COUNT {
                let from = from.add(k * W::TERMS * from_stride + j * V::LANES);
                let first = V::load(from);
                let second = if W::TERMS == 2 { V::load(from.add(from_stride)) } else { first };
                W::across(first, second).store(to.add(k * to_stride + j * V::LANES));
            }
        }
    }
}

/// Writes the words of `columns` columns, and zeros up to `width`. The second terms are zero where there are none.
///
/// # Safety
///
/// The processor has the instructions of `V` and `W`, and the pointers are good for as much.
#[inline(always)]
unsafe fn copy<V: Vector, W: Word<V>>(
    from: *const f32,
    second: Option<*const f32>,
    columns: usize,
    to: *mut f32,
    width: usize,
) {
    // SAFETY: the caller's contract; every access below is bounded by what it names.
    unsafe {
        for c in (0..width).step_by(V::LANES) {
            let lanes = columns.saturating_sub(c).min(V::LANES);
            let first = V::load_first(from.wrapping_add(c), lanes);
            let second = match second {
                Some(second) if W::TERMS == 2 => V::load_first(second.wrapping_add(c), lanes),
                _ => V::zero(),
            };
            W::across(first, second).store_first(to.add(c), (width - c).min(V::LANES));
        }
    }
}

/// The side of the squares that are turned in registers.
const SQUARE: usize = 8;

/// # Safety
///
/// The processor has AVX2 and the instructions of `W`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn from_columns<V: Vector, W: Word<V>>(layout: Layout, source: Matrix<'_>, packed: &mut [f32]) {
    use crate::simd::Avx2;
    let depth = source.columns().div_ceil(W::TERMS);
    assert!(packed.len() >= packed_floats(layout, depth), "{} floats for a packed operand", packed.len());
    assert!(layout.unit.is_multiple_of(SQUARE));
    for piece in layout.cuts.iter() {
        let (first, width) = layout.width(piece);
        let panel = &mut packed[first * depth..][..width * depth];
        for k in (0..depth).step_by(SQUARE) {
            let words = SQUARE.min(depth - k);
            let terms = (SQUARE * W::TERMS).min(source.columns() - k * W::TERMS);
            for j in (0..width).step_by(SQUARE) {
                // SAFETY: rows that exist are read up to their end, and the panel is written inside `width *
                // depth`, whose every square is whole in `j` and has `words` rows in `k`.
                unsafe {
                    let mut rows = [Avx2::zero(); SQUARE];
                    let present = source.rows().saturating_sub(first + j).min(SQUARE);
                    // A loop and not `array::from_fn`: a closure that is not inlined loses the target features.
                    for (i, row) in rows.iter_mut().enumerate().take(present) {
                        *row = W::eight(source.row(first + j + i)[k * W::TERMS..].as_ptr(), terms);
                    }
                    let columns = Avx2::transpose(rows);
                    for (i, column) in columns.into_iter().enumerate().take(words) {
                        column.store(panel.as_mut_ptr().add((k + i) * width + j));
                    }
                }
            }
        }
    }
}

/// # Safety
///
/// The processor has the instructions of `V` and `W`.
#[inline(always)]
unsafe fn words<V: Vector, W: Word<V>>(source: Matrix<'_>, target: &mut [f32]) {
    let columns = source.columns();
    let words = columns.div_ceil(W::TERMS);
    assert!(target.len() >= source.rows() * words);
    for r in 0..source.rows() {
        let (from, to) = (source.row(r).as_ptr(), target[r * words..][..words].as_mut_ptr());
        // SAFETY: both rows are as long as said, and `load` and `store` stay below that.
        unsafe {
            for word in (0..words).step_by(V::LANES) {
                let terms = columns - word * W::TERMS;
                let load = |start: usize| {
                    let from = from.wrapping_add(word * W::TERMS + start);
                    let lanes = terms.saturating_sub(start).min(V::LANES);
                    if lanes == V::LANES { V::load(from) } else { V::load_first(from, lanes) }
                };
                let first = load(0);
                let values = W::along(first, if W::TERMS == 2 { load(V::LANES) } else { first });
                match words - word {
                    left if left < V::LANES => values.store_first(to.add(word), left),
                    _ => values.store(to.add(word)),
                }
            }
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
    ($name:ident, $vector:ty, $bf16:ty, $features:literal) => {
        pub(crate) mod $name {
            use super::*;

            pub(crate) static LOOPS: PackLoops =
                PackLoops { from_rows, from_columns, words, turned, column_sums };

            // SAFETY of the five: each has the features, and hands the rest of its contract on.
            #[target_feature(enable = $features)]
            unsafe fn from_rows(layout: Layout, source: Matrix<'_>, packed: &mut [f32]) {
                match layout.operands {
                    // SAFETY: as above.
                    Operands::F32 => unsafe { super::from_rows::<$vector, Whole>(layout, source, packed) },
                    // SAFETY: as above.
                    Operands::Bf16 => unsafe { super::from_rows::<$vector, $bf16>(layout, source, packed) },
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn from_columns(layout: Layout, source: Matrix<'_>, packed: &mut [f32]) {
                match layout.operands {
                    // SAFETY: as above.
                    Operands::F32 => unsafe { super::from_columns::<$vector, Whole>(layout, source, packed) },
                    // SAFETY: as above.
                    Operands::Bf16 => unsafe {
                        super::from_columns::<$vector, $bf16>(layout, source, packed)
                    },
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn words(source: Matrix<'_>, target: &mut [f32]) {
                // SAFETY: as above.
                unsafe { super::words::<$vector, $bf16>(source, target) }
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
pack_loops!(avx2, crate::simd::Avx2, Rounded, "avx2,fma");
#[cfg(target_arch = "x86_64")]
pack_loops!(avx512, crate::simd::Avx512, Rounded, "avx512f,avx512dq,avx2,fma");
#[cfg(target_arch = "x86_64")]
pack_loops!(pairs, crate::simd::Avx512, Pair, "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma");
