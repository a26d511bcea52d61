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
use crate::simd::Vector;

/// One call of the innermost loop. Pointers, because tiles of one matrix overlap in memory (rows interleave).
#[derive(Debug, Clone, Copy)]
pub(super) struct Tile {
    /// Terms to sum.
    pub depth: usize,
    /// The first element of A: `MR` rows `a_stride` apart, or `[depth][MR]` where packed.
    pub a: *const f32,
    pub a_stride: usize,
    /// The first element of B: `depth` rows of `NV` registers, `b_stride` apart.
    pub b: *const f32,
    pub b_stride: usize,
    /// The first element of the result.
    pub c: *mut f32,
    pub c_stride: usize,
    /// Columns that exist; the registers may reach further.
    pub columns: usize,
    pub finish: Finish,
}

/// What happens to a tile's sums before they are stored, in this order.
#[derive(Debug, Clone, Copy)]
pub(super) struct Finish {
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
    pub(super) const STORE: Finish =
        Finish { add: false, bias: std::ptr::null(), relu: false, mask: std::ptr::null(), mask_stride: 0 };
}

/// A compiled tile loop.
///
/// # Safety
///
/// The processor has its instructions, and the pointers of [`Tile`] are good for the tile's rows and `columns`.
pub(super) type TileLoop = unsafe fn(&Tile);

/// The tile loops of one level: `[registers - 1][rows - 1]`.
#[derive(Debug)]
pub(super) struct TileLoops {
    pub lanes: usize,
    pub rows_max: usize,
    pub registers_max: usize,
    pub in_place: &'static [&'static [TileLoop]],
    pub packed: &'static [&'static [TileLoop]],
    pub pack: &'static PackLoops,
}

impl TileLoops {
    /// Panels of a right operand with this many columns; their pieces count registers.
    pub(super) fn panels(&self, operands: Operands, columns: usize) -> Layout {
        let cuts = Cuts::new(columns.div_ceil(self.lanes), self.registers_max);
        Layout { operands, unit: self.lanes, cuts }
    }

    /// Tiles of a left operand with this many rows.
    pub(super) fn tiles(&self, operands: Operands, rows: usize) -> Layout {
        Layout { operands, unit: 1, cuts: Cuts::new(rows, self.rows_max) }
    }
}

/// The loop itself. `PACKED` says how A lies.
///
/// # Safety
///
/// As for [`TileLoop`].
#[inline(always)]
unsafe fn run<V: Vector, const MR: usize, const NV: usize, const PACKED: bool>(tile: &Tile) {
    // SAFETY: the caller's contract covers rows, depth and columns; B is padded to whole registers.
    unsafe {
        let (a, b) = (tile.a, tile.b);
        for i in 0..MR {
            V::prefetch(tile.c.wrapping_add(i * tile.c_stride));
        }
        let mut sums = [[V::zero(); NV]; MR];
        for k in 0..tile.depth {
            let b = b.add(k * tile.b_stride);
            let right: [V; NV] = std::array::from_fn(|j| V::load(b.add(j * V::LANES)));
            for (i, sums) in sums.iter_mut().enumerate() {
                let left = V::splat(*if PACKED { a.add(k * MR + i) } else { a.add(i * tile.a_stride + k) });
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = sum.add_product(left, right);
                }
            }
        }
        if tile.columns == NV * V::LANES {
            finish::<V, MR, NV, true>(tile, sums);
        } else {
            finish::<V, MR, NV, false>(tile, sums);
        }
    }
}

/// Stores the sums, after what [`Finish`] asks for. `WHOLE` says that every lane has a column.
///
/// # Safety
///
/// As for [`TileLoop`].
#[inline(always)]
unsafe fn finish<V: Vector, const MR: usize, const NV: usize, const WHOLE: bool>(
    tile: &Tile,
    sums: [[V; NV]; MR],
) {
    let Finish { add, bias, relu, mask, mask_stride } = tile.finish;
    // SAFETY: the caller's contract; lanes without a column are neither read nor written.
    unsafe {
        let load = |from: *const f32, lanes: usize| {
            if WHOLE { V::load(from) } else { V::load_first(from, lanes) }
        };
        for j in 0..NV {
            let column = j * V::LANES;
            let lanes = tile.columns.saturating_sub(column).min(V::LANES);
            let bias = (!bias.is_null()).then(|| load(bias.add(column), lanes));
            for (i, sums) in sums.iter().enumerate() {
                let mut sum = sums[j];
                let c = tile.c.add(i * tile.c_stride + column);
                if add {
                    sum = load(c, lanes).add(sum);
                }
                if let Some(bias) = bias {
                    sum = sum.add(bias);
                }
                if relu {
                    sum = sum.relu();
                }
                if !mask.is_null() {
                    sum = sum.zero_where_not_positive(load(mask.add(i * mask_stride + column), lanes));
                }
                if WHOLE { sum.store(c) } else { sum.store_first(c, lanes) }
            }
        }
    }
}

macro_rules! tile_loops {
    ($name:ident, $vector:ty, $features:literal, rows $rows:literal: $($mr:literal)*, registers $registers:literal: $($nv:literal)*) => {
        pub(super) mod $name {
            use super::*;

            #[target_feature(enable = $features)]
            unsafe fn in_place<const MR: usize, const NV: usize>(tile: &Tile) {
                // SAFETY: this function has the features, and hands its contract on.
                unsafe { run::<$vector, MR, NV, false>(tile) }
            }

            #[target_feature(enable = $features)]
            unsafe fn packed<const MR: usize, const NV: usize>(tile: &Tile) {
                // SAFETY: this function has the features, and hands its contract on.
                unsafe { run::<$vector, MR, NV, true>(tile) }
            }

            tile_loops!(@table $name, $vector, $rows, $registers, [$($mr)*] $($nv)*);
        }
    };
    (@table $name:ident, $vector:ty, $rows:literal, $registers:literal, $mrs:tt $($nv:literal)*) => {
        pub(in crate::gemm) static LOOPS: TileLoops = TileLoops {
            lanes: <$vector>::LANES,
            rows_max: $rows,
            registers_max: $registers,
            in_place: &[$(tile_loops!(@row in_place $nv $mrs)),*],
            packed: &[$(tile_loops!(@row packed $nv $mrs)),*],
            pack: &pack::$name::LOOPS,
        };
    };
    (@row $function:ident $nv:literal [$($mr:literal)*]) => { &[$($function::<$mr, $nv>),*] };
}

#[cfg(target_arch = "x86_64")]
tile_loops!(avx2, crate::simd::Avx2, "avx2,fma", rows 6: 1 2 3 4 5 6, registers 2: 1 2);
#[cfg(target_arch = "x86_64")]
tile_loops!(avx512, crate::simd::Avx512, "avx512f,avx512dq", rows 8: 1 2 3 4 5 6 7 8, registers 3: 1 2 3);
