//! The innermost loop: one tile of the result, held in registers while `k` runs.
//!
//! ```text
//!             panel of B: LANES * NV columns, packed so that each k is one contiguous run
//!             k ┌────┬────┐
//!               │ b0 │ b1 │   two (AVX2) or three (AVX-512) registers, loaded once per k
//!               └────┴────┘
//!    A  ┌─┐     ┌────┬────┐
//!  MR   │a│  ×  │ accumulators, MR * NV registers
//!  rows └─┘     └────┴────┘
//! ```
//!
//! 6 by 16 on AVX2 keeps 12 of 16 registers as accumulators, more than the 8 that two multiply-add pipes of four
//! cycles need, and reads 8 values per 12 multiply-adds. AVX-512 has 32 registers: 8 by 48 keeps 24. Everything
//! that must happen to a result afterwards (adding to what is there, bias, ReLU, mask) happens here, while it is
//! still in registers.
#![allow(unsafe_code)]

use super::Operands;
use super::cuts::Cuts;
use super::pack::{self, Layout, PackLoops};
use super::product::Ending;
use super::skip::{self, SkipLoops};
use super::word::{Pair, Whole, Word};
use crate::isa::{Isa, Level};
use crate::matrix::MatrixMut;
use crate::simd::Vector;

/// A run of equal tiles, along the rows or along the columns of the result. Pointers, because tiles of one matrix
/// overlap in memory (rows interleave).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tiles {
    /// How many tiles.
    pub count: usize,
    /// From one tile to the next.
    pub step: Step,
    /// Terms to sum.
    pub depth: usize,
    /// The first element of A: `MR` rows `a_stride` apart, or `[depth][MR]` where packed, or terms `a_stride` apart.
    pub a: *const f32,
    pub a_stride: usize,
    /// The first element of B: `[depth][NV registers]`.
    pub b: *const f32,
    /// What will be B next, to be brought nearer meanwhile, and how many floats of it.
    pub next_b: *const f32,
    pub next_floats: usize,
    /// The first element of the result.
    pub c: *mut f32,
    pub c_stride: usize,
    /// Columns from the first tile's to the end of the result; the last tile's registers may reach further.
    pub columns: usize,
    pub finish: Finish,
}

/// How far each operand lies from one tile to the next, in floats.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Step {
    pub a: usize,
    pub b: usize,
    pub c: usize,
    pub mask: usize,
    pub columns: usize,
}

/// What happens to a tile's sums before they are stored, in this order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Finish {
    /// Add the sums to what is there.
    pub add: bool,
    /// Add one value per column; null for none.
    pub bias: *const f32,
    /// Zero below zero.
    pub relu: bool,
    /// Zero where this is not above zero; null for none.
    pub mask: *const f32,
    pub mask_stride: usize,
}

impl Finish {
    /// The sums replace what is there.
    pub(crate) const STORE: Finish =
        Finish { add: false, bias: std::ptr::null(), relu: false, mask: std::ptr::null(), mask_stride: 0 };
}

impl Tiles {
    /// Moves on to the next tile.
    #[inline(always)]
    pub(super) fn advance(&mut self) {
        self.a = self.a.wrapping_add(self.step.a);
        self.b = self.b.wrapping_add(self.step.b);
        self.c = self.c.wrapping_add(self.step.c);
        self.columns = self.columns.wrapping_sub(self.step.columns);
        if !self.finish.bias.is_null() {
            self.finish.bias = self.finish.bias.wrapping_add(self.step.columns);
        }
        if !self.finish.mask.is_null() {
            self.finish.mask = self.finish.mask.wrapping_add(self.step.mask);
        }
    }
}

/// A compiled tile loop.
///
/// # Safety
///
/// The processor has its instructions, and the pointers of [`Tiles`] are good for all of its tiles, as far as there are
/// columns.
pub(crate) type TileLoop = unsafe fn(&Tiles);

/// The tile loops of one level: `[registers - 1][rows - 1]`.
#[derive(Debug)]
pub(crate) struct TileLoops {
    pub lanes: usize,
    /// Terms of a sum that a word of an operand holds. Depths of packed operands count words.
    pub terms: usize,
    pub rows_max: usize,
    pub registers_max: usize,
    pub in_place: &'static [&'static [TileLoop]],
    pub packed: &'static [&'static [TileLoop]],
    pub across: &'static [&'static [TileLoop]],
    pub pack: &'static PackLoops,
    /// For one row, without what it multiplies by zero.
    pub skip: &'static SkipLoops,
    /// Stores one row of sums that lies at `b`, this many registers long.
    pub finish_row: unsafe fn(&Tiles, usize),
}

/// The tile loops of a level for `f32` words; the plain level has none. An [`Isa`] proves that the processor can run them.
pub(crate) fn loops_of(isa: Isa) -> Option<&'static TileLoops> {
    match isa.level() {
        Level::Scalar => None,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => Some(&avx2::LOOPS),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 | Level::Avx512Bf16 | Level::Amx => Some(&avx512::LOOPS),
        #[cfg(not(target_arch = "x86_64"))]
        _ => None,
    }
}

/// The tile loops of a level for a product's operands.
pub(crate) fn loops_for(isa: Isa, operands: Operands) -> Option<&'static TileLoops> {
    match (isa.level(), operands) {
        #[cfg(target_arch = "x86_64")]
        (Level::Avx512Bf16 | Level::Amx, Operands::Bf16) => Some(&pairs::LOOPS),
        _ => loops_of(isa),
    }
}

impl TileLoops {
    /// Words that this many terms take.
    pub(crate) fn words(&self, terms: usize) -> usize {
        terms.div_ceil(self.terms)
    }

    /// Panels of a right operand with this many columns; their pieces count registers.
    pub(crate) fn panels(&self, operands: Operands, columns: usize) -> Layout {
        let cuts = Cuts::new(columns.div_ceil(self.lanes), self.registers_max);
        Layout { operands, unit: self.lanes, cuts }
    }

    /// Tiles of a left operand with this many rows.
    pub(crate) fn tiles(&self, operands: Operands, rows: usize) -> Layout {
        Layout { operands, unit: 1, cuts: Cuts::new(rows, self.rows_max) }
    }
}

/// A lies `[row][k]`, rows a stride apart.
const ALONG: usize = 0;
/// A is packed, `[k][row of the tile]`.
const PACKED: usize = 1;
/// A lies `[k][row]`, terms a stride apart.
const ACROSS: usize = 2;

/// From one term of a row of A to the next.
#[inline(always)]
fn next_term<const MR: usize, const LAYOUT: usize>(a_stride: usize) -> usize {
    match LAYOUT {
        PACKED => MR,
        ACROSS => a_stride,
        _ => 1,
    }
}

/// The loop itself. `LAYOUT` says how A lies.
///
/// # Safety
///
/// As for [`TileLoop`].
#[inline(always)]
unsafe fn run<V: Vector, W: Word<V>, const MR: usize, const NV: usize, const LAYOUT: usize>(tiles: &Tiles) {
    let mut now = *tiles;
    let (mut coming, end) = (now.next_b, now.next_b.wrapping_add(now.next_floats));
    for _ in 0..tiles.count {
        // SAFETY: the caller's contract covers every tile of the run; B is padded to whole registers.
        unsafe {
            let result = |line: usize| now.c.wrapping_add(line / NV * now.c_stride + line % NV * V::LANES);
            // The result's lines are asked for one by one while the sums are made: all at once they would be in one
            // another's way. Where the sums are short there is no time for that.
            let steps = now.depth / UNROLL;
            let spread = steps >= MR * NV;
            if !spread {
                (0..MR * NV).for_each(|line| V::prefetch(result(line)));
            }
            let mut sums = [[V::zero(); NV]; MR];
            let (mut a, mut b) = (now.a, now.b);
            for step in 0..steps {
                if spread && step < MR * NV {
                    V::prefetch(result(step));
                }
                if coming < end {
                    V::prefetch_near(coming);
                    coming = coming.wrapping_add(LINE);
                }
                for k in 0..UNROLL {
                    term::<V, W, MR, NV, LAYOUT>(&mut sums, a, now.a_stride, b, k);
                }
                // After the last step both stand beyond what is theirs, by up to a stride.
                a = a.wrapping_add(UNROLL * next_term::<MR, LAYOUT>(now.a_stride));
                b = b.wrapping_add(UNROLL * NV * V::LANES);
            }
            for k in 0..now.depth % UNROLL {
                term::<V, W, MR, NV, LAYOUT>(&mut sums, a, now.a_stride, b, k);
            }
            if now.columns >= NV * V::LANES {
                finish::<V, MR, NV, true>(&now, sums);
            } else {
                finish::<V, MR, NV, false>(&now, sums);
            }
        }
        now.advance();
    }
}

/// Terms between two checks of the loop's end.
const UNROLL: usize = 4;

/// Floats of a line of memory.
const LINE: usize = 16;

/// Terms by which B is asked for ahead of its use: it streams from farther caches where few rows share it.
const AHEAD: usize = 16;

/// Adds term `k` to every sum.
///
/// # Safety
///
/// As for [`TileLoop`].
#[inline(always)]
unsafe fn term<V: Vector, W: Word<V>, const MR: usize, const NV: usize, const LAYOUT: usize>(
    sums: &mut [[V; NV]; MR],
    a: *const f32,
    a_stride: usize,
    b: *const f32,
    k: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        V::prefetch(b.wrapping_add((k + AHEAD) * NV * V::LANES));
        let right: [V; NV] = std::array::from_fn(|j| V::load(b.add((k * NV + j) * V::LANES)));
        for (i, sums) in sums.iter_mut().enumerate() {
            let row = if LAYOUT == ALONG { i * a_stride } else { i };
            let left = V::splat(*a.add(row + k * next_term::<MR, LAYOUT>(a_stride)));
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = W::add_product(*sum, left, right);
            }
        }
    }
}

/// Stores the sums, after what [`Finish`] asks for. `WHOLE` says that every lane has a column.
///
/// # Safety
///
/// As for [`TileLoop`].
#[inline(always)]
pub(super) unsafe fn finish<V: Vector, const MR: usize, const NV: usize, const WHOLE: bool>(
    tiles: &Tiles,
    mut sums: [[V; NV]; MR],
) {
    let Finish { add, bias, relu, mask, mask_stride } = tiles.finish;
    // SAFETY: the caller's contract; lanes without a column are neither read nor written.
    unsafe {
        let lanes = |j: usize| tiles.columns.saturating_sub(j * V::LANES).min(V::LANES);
        let load = |from: *const f32, j: usize| {
            let from = from.wrapping_add(j * V::LANES);
            if WHOLE { V::load(from) } else { V::load_first(from, lanes(j)) }
        };
        if add {
            each(&mut sums, |i, j, sum| load(tiles.c.wrapping_add(i * tiles.c_stride), j).add(sum));
        }
        if !bias.is_null() {
            let bias: [V; NV] = std::array::from_fn(|j| load(bias, j));
            each(&mut sums, |_, j, sum| sum.add(bias[j]));
        }
        if relu {
            each(&mut sums, |_, _, sum| sum.relu());
        }
        if !mask.is_null() {
            each(&mut sums, |i, j, sum| {
                sum.zero_where_not_positive(load(mask.wrapping_add(i * mask_stride), j))
            });
        }
        each(&mut sums, |i, j, sum| {
            let c = tiles.c.wrapping_add(i * tiles.c_stride + j * V::LANES);
            if WHOLE {
                sum.store(c)
            } else {
                sum.store_first(c, lanes(j))
            }
            sum
        });
    }
}

/// Changes every sum. Each stage is its own short loop, so that the sums stay in registers.
#[inline(always)]
fn each<V: Vector, const MR: usize, const NV: usize>(
    sums: &mut [[V; NV]; MR],
    change: impl Fn(usize, usize, V) -> V,
) {
    for (i, sums) in sums.iter_mut().enumerate() {
        for (j, sum) in sums.iter_mut().enumerate() {
            *sum = change(i, j, *sum);
        }
    }
}

/// Stores a row of sums from memory, one register at a time.
///
/// # Safety
///
/// As for [`TileLoop`], and `b` is good for `registers` registers.
#[inline(always)]
unsafe fn stored_row<V: Vector>(tiles: &Tiles, registers: usize) {
    let mut now = *tiles;
    now.step = Step { b: V::LANES, c: V::LANES, mask: V::LANES, columns: V::LANES, a: 0 };
    for _ in 0..registers.min(tiles.columns.div_ceil(V::LANES)) {
        // SAFETY: the caller's contract.
        unsafe {
            let sums = [[V::load(now.b)]];
            if now.columns >= V::LANES {
                finish::<V, 1, 1, true>(&now, sums);
            } else {
                finish::<V, 1, 1, false>(&now, sums);
            }
        }
        now.advance();
    }
}

/// Stores the sums of a window of the result, which lie in memory: `sums` has rows `sums_stride` apart, the window
/// begins at `place` (row, column) and ends where the sums or the result end.
///
/// # Safety
///
/// The processor has the instructions of `loops`.
pub(crate) unsafe fn finish_sums(
    loops: &TileLoops,
    sums: &[f32],
    sums_stride: usize,
    ending: Ending<'_>,
    (row, column): (usize, usize),
    c: &mut MatrixMut<'_>,
) {
    let columns = c.columns() - column;
    let finish = ending.finish(row, column);
    for i in 0..(sums.len() / sums_stride).min(c.rows() - row) {
        let to = &mut c.row(row + i)[column..];
        let mut finish = finish;
        finish.mask = if finish.mask.is_null() {
            finish.mask
        } else {
            finish.mask.wrapping_add(i * finish.mask_stride)
        };
        let tiles = Tiles {
            count: 1,
            step: Step::default(),
            depth: 0,
            a: std::ptr::null(),
            a_stride: 0,
            b: sums[i * sums_stride..][..sums_stride].as_ptr(),
            next_b: std::ptr::null(),
            next_floats: 0,
            c: to.as_mut_ptr(),
            c_stride: 0,
            columns,
            finish,
        };
        // SAFETY: the sums have whole registers, the row has `columns` floats, and the caller has the level.
        unsafe { (loops.finish_row)(&tiles, sums_stride / loops.lanes) };
    }
}

macro_rules! tile_loops {
    ($name:ident, $vector:ty, $word:ty, $features:literal, rows $rows:literal: $($mr:literal)*, registers $registers:literal: $($nv:literal)*) => {
        pub(crate) mod $name {
            use super::*;

            #[target_feature(enable = $features)]
            unsafe fn in_place<const MR: usize, const NV: usize>(tiles: &Tiles) {
                // SAFETY: this function has the features, and hands its contract on.
                unsafe { run::<$vector, $word, MR, NV, ALONG>(tiles) }
            }

            #[target_feature(enable = $features)]
            unsafe fn packed<const MR: usize, const NV: usize>(tiles: &Tiles) {
                // SAFETY: this function has the features, and hands its contract on.
                unsafe { run::<$vector, $word, MR, NV, PACKED>(tiles) }
            }

            #[target_feature(enable = $features)]
            unsafe fn across<const MR: usize, const NV: usize>(tiles: &Tiles) {
                // SAFETY: this function has the features, and hands its contract on.
                unsafe { run::<$vector, $word, MR, NV, ACROSS>(tiles) }
            }

            #[target_feature(enable = $features)]
            unsafe fn finish_row(tiles: &Tiles, registers: usize) {
                // SAFETY: this function has the features, and hands its contract on.
                unsafe { stored_row::<$vector>(tiles, registers) }
            }

            tile_loops!(@table $name, $vector, $word, $rows, $registers, [$($mr)*] $($nv)*);
        }
    };
    (@table $name:ident, $vector:ty, $word:ty, $rows:literal, $registers:literal, $mrs:tt $($nv:literal)*) => {
        pub(crate) static LOOPS: TileLoops = TileLoops {
            lanes: <$vector>::LANES,
            terms: <$word as Word<$vector>>::TERMS,
            rows_max: $rows,
            registers_max: $registers,
            in_place: &[$(tile_loops!(@row in_place $nv $mrs)),*],
            packed: &[$(tile_loops!(@row packed $nv $mrs)),*],
            across: &[$(tile_loops!(@row across $nv $mrs)),*],
            pack: &pack::$name::LOOPS,
            skip: &skip::$name::LOOPS,
            finish_row,
        };
    };
    (@row $function:ident $nv:literal [$($mr:literal)*]) => { &[$($function::<$mr, $nv>),*] };
}

#[cfg(target_arch = "x86_64")]
tile_loops!(avx2, crate::simd::Avx2, Whole, "avx2,fma", rows 6: 1 2 3 4 5 6, registers 2: 1 2);
#[cfg(target_arch = "x86_64")]
tile_loops!(avx512, crate::simd::Avx512, Whole, "avx512f,avx512dq", rows 8: 1 2 3 4 5 6 7 8, registers 3: 1 2 3);
#[cfg(target_arch = "x86_64")]
tile_loops!(pairs, crate::simd::Avx512, Pair, "avx512f,avx512dq,avx512bf16", rows 8: 1 2 3 4 5 6 7 8, registers 3: 1 2 3);
