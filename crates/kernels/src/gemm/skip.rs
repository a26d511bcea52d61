//! Products of one row, without the weights that it would multiply by zero.
//!
//! One row uses every weight once, so the product takes as long as its weights take to come from a farther cache. After a
//! ReLU about half of the row is zero: the terms that are not are listed once, and panels are walked along the list.
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

use super::cuts::Cuts;
use super::product::Ending;
use super::tile::{Step, TileLoops, Tiles, finish};
use super::word::{Pair, Whole, Word, magnitude};
use super::{BLOCK, Operands};
use crate::simd::Vector;

/// Entries of the list by which weights are asked for ahead of their use: no processor guesses where the list goes on.
const AHEAD: usize = 8;

/// Entries behind the end of a list that may be written: a register is stored whole, and who looks ahead must find something.
const SPARE: usize = 16;
const _: () = assert!(AHEAD <= SPARE);

/// The words of a row that are not zero.
#[derive(Debug, Default)]
pub(super) struct Present {
    /// Their places; then the first ones again, for who looks ahead.
    places: Vec<u32>,
    values: Vec<f32>,
    /// Where the list's part of each block of the sum ends.
    ends: Vec<usize>,
}

impl Present {
    /// Lists the words of `row` that are not zero.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `loops`.
    unsafe fn list(&mut self, loops: &TileLoops, row: &[f32]) {
        let room = row.len() + SPARE;
        if self.places.len() < room {
            self.places.resize(room, 0);
            self.values.resize(room, 0.0);
        }
        self.ends.clear();
        let (mut count, block) = (0, loops.words(BLOCK));
        for (number, words) in row.chunks(block).enumerate() {
            let (places, values) = (&mut self.places[count..], &mut self.values[count..]);
            // SAFETY: the caller has the level.
            count += unsafe { (loops.skip.list)(words, number * block, places, values) };
            self.ends.push(count);
        }
        for entry in 0..AHEAD {
            self.places[count + entry] = if count > 0 { self.places[entry % count] } else { 0 };
        }
    }
}

/// Writes the words that are not zero and their places, which begin at `first`. How many there are.
///
/// # Safety
///
/// The processor has the instructions of `V`.
#[inline(always)]
unsafe fn list<V: Vector, W: Word<V>>(
    words: &[f32],
    first: usize,
    places: &mut [u32],
    values: &mut [f32],
) -> usize {
    assert!(places.len().min(values.len()) >= words.len() + V::LANES);
    let mut count = 0;
    for start in (0..words.len()).step_by(V::LANES) {
        // SAFETY: lanes that are words are read; `count` is at most `start`, so whole registers fit behind it.
        unsafe {
            let from = words.as_ptr().add(start);
            let lanes = V::LANES.min(words.len() - start);
            let word = if lanes == V::LANES { V::load(from) } else { V::load_first(from, lanes) };
            let (places, values) = (places.as_mut_ptr().add(count), values.as_mut_ptr().add(count));
            count += word.store_present(magnitude(W::TERMS), (first + start) as u32, places, values);
        }
    }
    count
}

/// Some groups of panels, and the list to walk them along.
#[derive(Debug)]
pub(crate) struct Walk<'a> {
    /// `a` are the values of the list.
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
    pub list: unsafe fn(&[f32], usize, &mut [u32], &mut [f32]) -> usize,
    /// `[registers of a panel - 1][panels at once - 1]`.
    pub walks: &'static [&'static [WalkLoop]],
}

/// `c = row b`, and what `ending` adds to that, along the words of the row that are not zero. Whether it is done: if not,
/// `c` may hold anything, and the caller must multiply everything.
///
/// # Safety
///
/// The processor has the instructions of `loops`.
///
/// # Panics
///
/// If an operand is too small for the result.
pub(super) unsafe fn multiply(
    loops: &TileLoops,
    present: &mut Present,
    row: &[f32],
    right: &[f32],
    ending: Ending<'_>,
    c: &mut [f32],
) -> bool {
    let (depth, columns) = (row.len(), c.len());
    assert!(
        right.len() >= columns.next_multiple_of(loops.lanes) * depth,
        "a right operand of {}",
        right.len()
    );
    assert!(ending.bias.is_none_or(|bias| bias.len() == columns) && ending.mask.is_none());
    // SAFETY: the caller has the level.
    unsafe { present.list(loops, row) };
    let cuts: Cuts = loops.panels(Operands::F32, columns).cuts;
    for run in cuts.runs(0..cuts.len()) {
        let table = loops.skip.walks[run.first.length - 1];
        let width = run.first.length * loops.lanes;
        let mut panel = 0;
        while panel < run.count {
            let together = table.len().min(run.count - panel);
            let count = (run.count - panel) / together;
            let first = run.first.start * loops.lanes + panel * width;
            let step = together * width;
            let tiles = Tiles {
                count,
                step: Step { a: 0, b: step * depth, c: step, mask: 0, columns: step },
                depth,
                a: present.values.as_ptr(),
                a_stride: 0,
                b: right[first * depth..].as_ptr(),
                next_b: std::ptr::null(),
                next_floats: 0,
                c: c[first..].as_mut_ptr(),
                c_stride: 0,
                columns: columns - first,
                finish: ending.finish(0, first),
            };
            let walk = Walk { tiles, places: &present.places, ends: &present.ends };
            // SAFETY: places are below `depth`, the panels lie inside `right`, and the caller has the level.
            if !unsafe { table[together - 1](&walk) } {
                return false;
            }
            panel += count * together;
        }
    }
    true
}

/// The walk itself, over panels of `NV` registers, of which `N` are summed at once.
///
/// # Safety
///
/// As for [`WalkLoop`].
#[inline(always)]
unsafe fn run<V: Vector, W: Word<V>, const NV: usize, const N: usize>(walk: &Walk<'_>) -> bool {
    let Walk { mut tiles, places, ends } = *walk;
    let panel = tiles.depth * NV * V::LANES;
    let entries = ends.last().copied().unwrap_or(0);
    assert!(entries + AHEAD <= places.len());
    for group in 0..tiles.count {
        let next = if group + 1 < tiles.count { tiles.step.b } else { 0 };
        // SAFETY: the caller's contract covers every place of every panel of the group.
        unsafe {
            let mut total = [V::zero(); N];
            let (mut start, mut has_minus_zero) = (0, false);
            for (block, &end) in ends.iter().enumerate() {
                let mut sums = [V::zero(); N];
                for entry in start..end {
                    let ahead = *places.get_unchecked(entry + AHEAD) as usize * (NV * V::LANES);
                    let ahead = tiles.b.wrapping_add(ahead + if entry + AHEAD < entries { 0 } else { next });
                    let at = tiles.b.add(*places.get_unchecked(entry) as usize * (NV * V::LANES));
                    let left = V::splat(*tiles.a.add(entry));
                    for (j, sum) in sums.iter_mut().enumerate() {
                        let offset = j / NV * panel + j % NV * V::LANES;
                        if (j % NV * V::LANES).is_multiple_of(LINE) {
                            V::prefetch(ahead.wrapping_add(offset));
                        }
                        *sum = W::add_product(*sum, left, V::load(at.add(offset)));
                    }
                }
                for (total, sum) in total.iter_mut().zip(sums) {
                    has_minus_zero |= sum.has_minus_zero();
                    *total = if block == 0 { sum } else { total.add(sum) };
                }
                start = end;
            }
            if has_minus_zero {
                return false;
            }
            if tiles.columns >= N * V::LANES {
                finish::<V, 1, N, true>(&tiles, [total]);
            } else {
                finish::<V, 1, N, false>(&tiles, [total]);
            }
        }
        tiles.advance();
    }
    true
}

/// Floats of a line of memory.
const LINE: usize = 16;

macro_rules! skip_loops {
    ($name:ident, $vector:ty, $word:ty, $features:literal, $($nv:literal: $($n:literal)*),*) => {
        pub(crate) mod $name {
            use super::*;

            #[target_feature(enable = $features)]
            unsafe fn list(words: &[f32], first: usize, places: &mut [u32], values: &mut [f32]) -> usize {
                // SAFETY: this function has the features, and hands its contract on.
                unsafe { super::list::<$vector, $word>(words, first, places, values) }
            }

            #[target_feature(enable = $features)]
            unsafe fn walk<const NV: usize, const N: usize>(walk: &Walk<'_>) -> bool {
                // SAFETY: this function has the features, and hands its contract on.
                unsafe { run::<$vector, $word, NV, N>(walk) }
            }

            pub(crate) static LOOPS: SkipLoops =
                SkipLoops { list, walks: &[$(&[$(walk::<$nv, $n>),*]),*] };
        }
    };
}

#[cfg(target_arch = "x86_64")]
skip_loops!(avx2, crate::simd::Avx2, Whole, "avx2,fma", 1: 1 2 3 4, 2: 2 4 6 8);
#[cfg(target_arch = "x86_64")]
skip_loops!(avx512, crate::simd::Avx512, Whole, "avx512f,avx512dq", 1: 1 2 3 4, 2: 2 4 6 8, 3: 3 6, 4: 4 8);
#[cfg(target_arch = "x86_64")]
skip_loops!(pairs, crate::simd::Avx512, Pair, "avx512f,avx512dq,avx512bf16", 1: 1 2 3 4, 2: 2 4 6 8, 3: 3 6, 4: 4 8);

#[cfg(test)]
mod tests;
