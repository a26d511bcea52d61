//! Products of one row or a few, without the weights that they would multiply by zero.
//!
//! One row uses every weight once, so the product takes as long as its weights take to come from a farther cache. After a
//! ReLU about half of the row is zero: the terms that are not are listed once, and panels are walked along the list. Several
//! rows share one list, without the terms that are zero in each of them; what is zero in one sample often is so in the next.
//!
//! ```text
//!   row      .5  0  0  2  0 -1        panels  k ┌───┬───┬─ ...   several at once: their sums do not wait for
//!   places    0        3     5                0 │ * │ * │        one another, and an entry of the list is read
//!   values   .5        2    -1                3 │ * │ * │        once for all
//!                                             5 │ * │ * │
//! ```
//!
//! **The bits are those of the whole sum.** With finite weights a term that is left out is +0 or -0, and adding that changes a
//! sum in one case: -0 and +0 are +0. Sums start at +0, and only underflow makes them -0. Compare the sum along the list, `s`,
//! with the whole one, `d`, term by term. They start equal, and a term that is left out can only make `d` +0 while `s`
//! stays -0. From there a product that is not zero makes them equal again, one of +0 makes both +0, and one of -0
//! changes neither. So where `s` ends at anything but -0, it is `d`. Where a sum ends at -0, which takes products below 1e-45, the
//! caller multiplies everything; and so it does where a weight is not finite, for zero times infinity is NaN.
#![allow(unsafe_code)]

use std::ops::Range;

use super::cuts::Cuts;
use super::product::Ending;
use super::tile::{Finish, Step, TileLoops, Tiles, finish};
use super::word::{Pair, Whole, Word, magnitude};
use super::{BLOCK, Operands};
use crate::matrix::{Matrix, MatrixMut, Store};
use crate::simd::Vector;

/// Entries of the list by which weights are asked for ahead of their use: no processor guesses where the list goes on.
const AHEAD: usize = 8;

/// Entries behind the end of a list that may be written: a register is stored whole, and who looks ahead must find something.
const SPARE: usize = 16;
const _: () = assert!(AHEAD <= SPARE);

/// Several rows are multiplied whole where the list has more than this share of their terms: what is left out must pay for
/// making the list.
const SHARE_MAX: (usize, usize) = (15, 16);

/// The words of a few rows, without those that are zero in each row.
#[derive(Debug, Default)]
pub(super) struct Present {
    /// Their places; then the first ones again, for who looks ahead.
    places: Vec<u32>,
    /// `[row][entry]`, rows [`Present::stride`] apart.
    values: Vec<f32>,
    stride: usize,
    /// Where the list's part of each block of the sum ends.
    ends: Vec<usize>,
}

impl Present {
    /// Lists the words that are not zero in at least one row.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `loops`.
    unsafe fn list(&mut self, loops: &TileLoops, rows: Matrix<'_>) {
        let depth = rows.columns();
        self.stride = depth + SPARE;
        if self.places.len() < self.stride {
            self.places.resize(self.stride, 0);
        }
        if self.values.len() < rows.rows() * self.stride {
            self.values.resize(rows.rows() * self.stride, 0.0);
        }
        self.ends.clear();
        let (mut count, block) = (0, loops.words(BLOCK));
        for first in (0..depth).step_by(block) {
            let words = first..depth.min(first + block);
            // SAFETY: the caller has the level.
            count += unsafe { (loops.skip.list)(self, rows, words, count) };
            self.ends.push(count);
        }
        for entry in 0..AHEAD {
            self.places[count + entry] = if count > 0 { self.places[entry % count] } else { 0 };
        }
    }

    fn entries(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }
}

/// Appends those of `words` that are not zero in at least one row to a list of `entries`. How many there are.
///
/// # Safety
///
/// The processor has the instructions of `V`.
#[inline(always)]
unsafe fn list<V: Vector, W: Word<V>>(
    present: &mut Present,
    rows: Matrix<'_>,
    words: Range<usize>,
    entries: usize,
) -> usize {
    let Present { places, values, stride, .. } = present;
    let mut count = entries;
    assert!(words.end <= rows.columns() && entries <= words.start && words.end + V::LANES <= *stride);
    assert!(*stride <= places.len() && rows.rows() * *stride <= values.len());
    for start in words.clone().step_by(V::LANES) {
        let lanes = V::LANES.min(words.end - start);
        // SAFETY: lanes that are words are read; `count` is at most `start`, so whole registers fit behind it.
        unsafe {
            let load = |row: usize| {
                let from = rows.as_ptr().add(row * rows.stride() + start);
                if lanes == V::LANES { V::load(from) } else { V::load_first(from, lanes) }
            };
            let mut any = load(0);
            for row in 1..rows.rows() {
                any = any.or(load(row));
            }
            let present = any.lanes_with(magnitude(W::TERMS));
            V::store_places(present, start as u32, places.as_mut_ptr().add(count));
            for row in 0..rows.rows() {
                load(row).store_present(present, values.as_mut_ptr().add(row * *stride + count));
            }
            count += present.count_ones() as usize;
        }
    }
    count - entries
}

/// Some groups of panels, and the list to walk them along.
#[derive(Debug)]
pub(crate) struct Walk<'a> {
    /// `a` are the values of the list, rows `a_stride` apart.
    tiles: Tiles,
    places: &'a [u32],
    ends: &'a [usize],
}

/// A compiled walk. Whether all results are written; where not, some sum ended at -0.
///
/// # Safety
///
/// The processor has its instructions, and the pointers of [`Walk`] are good for all of its panels and places.
pub(crate) type WalkLoop = unsafe fn(&Walk<'_>) -> bool;

/// The loops of one level.
#[derive(Debug)]
pub(crate) struct SkipLoops {
    /// See [`list`].
    list: unsafe fn(&mut Present, Matrix<'_>, Range<usize>, usize) -> usize,
    /// For one row: `[registers of a panel - 1][panels at once - 1]`.
    one_row: &'static [&'static [WalkLoop]],
    /// For several: `[registers of a panel - 1][rows - 2]`.
    several_rows: &'static [&'static [WalkLoop]],
}

impl SkipLoops {
    /// The most rows that can be multiplied at once.
    pub(super) fn rows_max(&self) -> usize {
        self.several_rows[0].len() + 1
    }

    /// The walk over panels of so many registers, and how many of them it takes at once where there are `panels`.
    fn walk(&self, rows: usize, registers: usize, panels: usize) -> (WalkLoop, usize) {
        if rows > 1 {
            return (self.several_rows[registers - 1][rows - 2], 1);
        }
        let walks = self.one_row[registers - 1];
        let together = walks.len().min(panels);
        (walks[together - 1], together)
    }
}

/// `c = rows b`, and what `ending` adds to that, along the words that are not zero in at least one row. Whether it is done: if
/// not, `c` may hold anything, and the caller must multiply everything.
///
/// # Safety
///
/// The processor has the instructions of `loops`.
///
/// # Panics
///
/// If there are more rows than [`SkipLoops::rows_max`], or an operand is too small for the result.
pub(super) unsafe fn multiply(
    loops: &TileLoops,
    present: &mut Present,
    rows: Matrix<'_>,
    right: &[f32],
    ending: Ending<'_>,
    mut c: MatrixMut<'_>,
) -> bool {
    let (depth, columns) = (rows.columns(), c.columns());
    assert!(
        right.len() >= columns.next_multiple_of(loops.lanes) * depth,
        "a right operand of {}",
        right.len()
    );
    assert!(rows.rows() == c.rows() && (1..=loops.skip.rows_max()).contains(&c.rows()));
    assert!(ending.bias.is_none_or(|bias| bias.len() == columns) && ending.mask.is_none());
    assert!(ending.store == Store::Replace);
    // SAFETY: the caller has the level.
    unsafe { present.list(loops, rows) };
    if rows.rows() > 1 && present.entries() * SHARE_MAX.1 > depth * SHARE_MAX.0 {
        return false;
    }
    let cuts: Cuts = loops.panels(Operands::F32, columns).cuts;
    for run in cuts.runs(0..cuts.len()) {
        let width = run.first.length * loops.lanes;
        let mut panel = 0;
        while panel < run.count {
            let (walk, together) = loops.skip.walk(rows.rows(), run.first.length, run.count - panel);
            let count = (run.count - panel) / together;
            let first = run.first.start * loops.lanes + panel * width;
            let step = together * width;
            let tiles = Tiles {
                count,
                step: Step { a: 0, b: step * depth, c: step, mask: 0, columns: step },
                depth,
                a: present.values.as_ptr(),
                a_stride: present.stride,
                b: right[first * depth..].as_ptr(),
                next_b: std::ptr::null(),
                next_floats: 0,
                c: c.as_mut_ptr().wrapping_add(first),
                c_stride: c.stride(),
                columns: columns - first,
                finish: ending.finish(0, first),
            };
            // SAFETY: places are below `depth`, the panels lie inside `right`, and the caller has the level.
            if !unsafe { walk(&Walk { tiles, places: &present.places, ends: &present.ends }) } {
                return false;
            }
            panel += count * together;
        }
    }
    true
}

/// The walk itself, of `MR` rows over panels of `NV` registers, of which `N` are summed at once.
///
/// # Safety
///
/// As for [`WalkLoop`].
#[inline(always)]
unsafe fn run<V: Vector, W: Word<V>, const MR: usize, const NV: usize, const N: usize>(
    walk: &Walk<'_>,
) -> bool {
    let Walk { mut tiles, places, ends } = *walk;
    let panel = tiles.depth * NV * V::LANES;
    let entries = ends.last().copied().unwrap_or(0);
    assert!(entries + AHEAD <= places.len());
    for group in 0..tiles.count {
        let next = if group + 1 < tiles.count { tiles.step.b } else { 0 };
        let mut start = 0;
        for (block, &end) in ends.iter().enumerate() {
            // SAFETY: the caller's contract covers every place of every panel of the group.
            unsafe {
                let mut sums = [[V::zero(); N]; MR];
                for entry in start..end {
                    let ahead = *places.get_unchecked(entry + AHEAD) as usize * (NV * V::LANES);
                    let ahead = tiles.b.wrapping_add(ahead + if entry + AHEAD < entries { 0 } else { next });
                    let at = tiles.b.add(*places.get_unchecked(entry) as usize * (NV * V::LANES));
                    let mut right = [V::zero(); N];
                    for (j, right) in right.iter_mut().enumerate() {
                        let offset = j / NV * panel + j % NV * V::LANES;
                        if (j % NV * V::LANES).is_multiple_of(LINE) {
                            V::prefetch(ahead.wrapping_add(offset));
                        }
                        *right = V::load(at.add(offset));
                    }
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let left = V::splat(*tiles.a.add(i * tiles.a_stride + entry));
                        for (sum, right) in sums.iter_mut().zip(right) {
                            *sum = W::add_product(*sum, left, right);
                        }
                    }
                }
                let mut has_minus_zero = false;
                for sum in sums.iter().flatten() {
                    has_minus_zero |= sum.has_minus_zero();
                }
                if has_minus_zero {
                    return false;
                }
                let mut now = tiles;
                if block + 1 < ends.len() {
                    now.finish = Finish::STORE;
                }
                now.finish.add = block > 0;
                if tiles.columns >= N * V::LANES {
                    finish::<V, MR, N, true>(&now, sums);
                } else {
                    finish::<V, MR, N, false>(&now, sums);
                }
            }
            start = end;
        }
        tiles.advance();
    }
    true
}

/// Floats of a line of memory.
const LINE: usize = 16;

macro_rules! skip_loops {
    ($name:ident, $vector:ty, $word:ty, $features:literal, one row $($nv:literal: $($n:literal)*),*; rows $mrs:tt) => {
        pub(crate) mod $name {
            use super::*;

            #[target_feature(enable = $features)]
            unsafe fn list(to: &mut Present, rows: Matrix<'_>, words: Range<usize>, entries: usize) -> usize {
                // SAFETY: this function has the features, and hands its contract on.
                unsafe { super::list::<$vector, $word>(to, rows, words, entries) }
            }

            #[target_feature(enable = $features)]
            unsafe fn walk<const MR: usize, const NV: usize, const N: usize>(walk: &Walk<'_>) -> bool {
                // SAFETY: this function has the features, and hands its contract on.
                unsafe { run::<$vector, $word, MR, NV, N>(walk) }
            }

            pub(crate) static LOOPS: SkipLoops = SkipLoops {
                list,
                one_row: &[$(&[$(walk::<1, $nv, $n>),*]),*],
                several_rows: &[$(skip_loops!(@rows $nv $mrs)),*],
            };
        }
    };
    (@rows $nv:literal [$($mr:literal)*]) => { &[$(walk::<$mr, $nv, $nv>),*] };
}

#[cfg(target_arch = "x86_64")]
skip_loops!(avx2, crate::simd::Avx2, Whole, "avx2,fma", one row 1: 1 2 3 4, 2: 2 4 6 8; rows [2 3 4 5 6]);
#[cfg(target_arch = "x86_64")]
skip_loops!(avx512, crate::simd::Avx512, Whole, "avx512f,avx512dq", one row 1: 1 2 3 4, 2: 2 4 6 8, 3: 3 6; rows [2 3 4 5 6 7 8]);
#[cfg(target_arch = "x86_64")]
skip_loops!(pairs, crate::simd::Avx512, Pair, "avx512f,avx512dq,avx512bf16", one row 1: 1 2 3 4, 2: 2 4 6 8, 3: 3 6; rows [2 3 4 5 6 7 8]);

#[cfg(test)]
mod tests;
