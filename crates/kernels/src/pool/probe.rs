//! What the machine can do at best: random rows read, or read and written, and nothing else.
//!
//! Lookups and updates are judged against these rates, measured in the same run on the same rows.
#![allow(unsafe_code)]

use super::{Lines, check_rows};
use crate::{
    isa::Isa,
    lanes::{self, Columns, Kernel, Lanes, each_column, prefetch},
};

/// Reads the rows `ids` of `dim` floats, asking for each `ahead` rows before, and returns the sum of all
/// elements so that nothing can be left out.
///
/// # Panics
/// If `dim` is 0 or an id is outside.
pub fn read_rows(isa: Isa, rows: &[f32], dim: usize, ids: &[u32], ahead: usize) -> f32 {
    check(isa, rows.len(), dim, ids);
    lanes::dispatch(isa, Read { rows: rows.as_ptr(), dim, ids, ahead })
}

/// Reads the rows `ids` of `dim` floats and writes them back plus one; where `state` is not empty, also the one
/// float of state that every row has in it.
///
/// # Panics
/// If `dim` is 0, an id is outside, or the state is not one float per row.
pub fn read_and_write_rows(
    isa: Isa,
    (rows, state, dim): (&mut [f32], &mut [f32], usize),
    ids: &[u32],
    ahead: usize,
) {
    check(isa, rows.len(), dim, ids);
    assert!(state.is_empty() || state.len() == rows.len() / dim, "{} floats of state", state.len());
    let with_state = !state.is_empty();
    let (rows, state) = (rows.as_mut_ptr(), state.as_mut_ptr());
    lanes::dispatch(isa, ReadAndWrite { rows, state, with_state, dim, ids, ahead });
}

fn check(isa: Isa, elements: usize, dim: usize, ids: &[u32]) {
    assert!(dim > 0, "rows of no floats");
    assert_eq!(check_rows(isa, ids, 0, elements / dim), Ok(()), "a probe outside its rows");
}

struct Read<'a> {
    rows: *const f32,
    dim: usize,
    ids: &'a [u32],
    ahead: usize,
}

impl Kernel for Read<'_> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) -> f32 {
        // SAFETY: handed on to the caller. A known length makes short rows cheap, as in the kernels.
        unsafe {
            match self.dim {
                8 => self.walk::<V>(8),
                16 => self.walk::<V>(16),
                64 => self.walk::<V>(64),
                128 => self.walk::<V>(128),
                dim => self.walk::<V>(dim),
            }
        }
    }
}

impl Read<'_> {
    #[inline(always)]
    unsafe fn walk<V: Lanes>(&self, dim: usize) -> f32 {
        let lines = Lines::new(self.rows, dim * 4);
        let (mut lanes, mut rest) = ([0.0; 16], 0.0);
        // SAFETY: every id is inside, no step reaches beyond its row, and no vector has more than 16 lanes.
        unsafe {
            let mut sums = [V::splat(0.0); 4];
            for (position, &id) in self.ids.iter().enumerate() {
                if let Some(&next) = self.ids.get(position + self.ahead) {
                    lines.ask(self.rows.wrapping_add(next as usize * dim));
                }
                let row = self.rows.add(id as usize * dim);
                let mut at = 0;
                while at + 4 * V::COUNT <= dim {
                    for (n, sum) in sums.iter_mut().enumerate() {
                        *sum = sum.add(V::load(row.add(at + n * V::COUNT)));
                    }
                    at += 4 * V::COUNT;
                }
                while at + 2 * V::COUNT <= dim {
                    sums[0] = sums[0].add(V::load(row.add(at)));
                    sums[1] = sums[1].add(V::load(row.add(at + V::COUNT)));
                    at += 2 * V::COUNT;
                }
                while at + V::COUNT <= dim {
                    sums[2] = sums[2].add(V::load(row.add(at)));
                    at += V::COUNT;
                }
                while at < dim {
                    rest += row.add(at).read();
                    at += 1;
                }
            }
            sums[0].add(sums[1]).add(sums[2].add(sums[3])).store(lanes.as_mut_ptr());
        }
        lanes.iter().sum::<f32>() + rest
    }
}

struct ReadAndWrite<'a> {
    rows: *mut f32,
    state: *mut f32,
    with_state: bool,
    dim: usize,
    ids: &'a [u32],
    ahead: usize,
}

impl Kernel for ReadAndWrite<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        // SAFETY: handed on to the caller.
        unsafe {
            match self.dim {
                8 => self.walk::<V>(8),
                16 => self.walk::<V>(16),
                64 => self.walk::<V>(64),
                128 => self.walk::<V>(128),
                dim => self.walk::<V>(dim),
            }
        }
    }
}

impl ReadAndWrite<'_> {
    #[inline(always)]
    unsafe fn walk<V: Lanes>(&self, dim: usize) {
        let lines = Lines::new(self.rows, dim * 4);
        for (position, &id) in self.ids.iter().enumerate() {
            if let Some(&next) = self.ids.get(position + self.ahead) {
                lines.ask(self.rows.wrapping_add(next as usize * dim));
                if self.with_state {
                    prefetch(self.state.wrapping_add(next as usize));
                }
            }
            // SAFETY: every id is inside.
            unsafe {
                if self.with_state {
                    *self.state.add(id as usize) += 1.0;
                }
                each_column::<V>(dim, &PlusOne { row: self.rows.add(id as usize * dim) });
            }
        }
    }
}

struct PlusOne {
    row: *mut f32,
}

impl Columns for PlusOne {
    #[inline(always)]
    unsafe fn at<L: Lanes>(&self, column: usize) {
        // SAFETY: the row has the columns; see `each_column`.
        unsafe { L::load(self.row.add(column)).add(L::splat(1.0)).store(self.row.add(column)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_touch_what_they_say() {
        for isa in Isa::all() {
            let mut rows: Vec<f32> = (0..96).map(|i| i as f32).collect();
            let want: f32 = (32..64).chain(64..96).chain(32..64).sum::<i32>() as f32;
            assert_eq!(read_rows(isa, &rows, 32, &[1, 2, 1], 2), want);
            let mut state = [5.0; 3];
            read_and_write_rows(isa, (&mut rows, &mut state, 32), &[2, 0, 2], 1);
            assert_eq!(state, [6.0, 5.0, 7.0]);
            let expected = (0..96).map(|i| i as f32 + [1.0, 0.0, 2.0][i / 32]);
            assert!(rows.iter().copied().eq(expected), "{isa:?}");
        }
    }
}
