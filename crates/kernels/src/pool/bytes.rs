//! Rows of one byte an element: a quarter of the memory, for answering and not for training.
//!
//! A row is `dim` codes and then two `f32`, its step and its least value, side by side so that a lookup finds
//! all of it in the lines it asks for. Element `i` stands for `least + step * code[i]`, worked out in `f32` and
//! rounded after each operation; a row's elements are at most half a step off. Sums follow the same order as
//! those of wider rows ([`super::pool`]), so all levels return the same bits.
#![allow(unsafe_code)]

use super::{Bags, Place, Pool, RowOutside, check_rows, rows_ahead};
use crate::{
    isa::Isa,
    lanes::{self, Kernel, Lanes, prefetch},
};

/// Bytes behind the codes of a row.
const TAIL: usize = 8;

/// Codes from 0 to this.
const CODE_MAX: f32 = 255.0;

/// Bytes of a row of `dim` elements.
pub fn row_bytes(dim: usize) -> usize {
    dim + TAIL
}

/// Writes the nearest row of bytes.
///
/// # Panics
/// If `to` does not have [`row_bytes`] bytes.
pub fn quantise(from: &[f32], to: &mut [u8]) {
    assert_eq!(to.len(), row_bytes(from.len()), "bytes of a row of {}", from.len());
    let least = from.iter().copied().fold(f32::INFINITY, f32::min);
    let most = from.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let step = (most - least) / CODE_MAX;
    // A row of equal elements, or none, has no step; one too small to divide by is none either.
    let inverse = if step.is_normal() { step.recip() } else { 0.0 };
    let (codes, tail) = to.split_at_mut(from.len());
    for (code, value) in codes.iter_mut().zip(from) {
        *code = ((value - least) * inverse).round_ties_even().clamp(0.0, CODE_MAX) as u8;
    }
    let (step, least) =
        if inverse > 0.0 { (step, least) } else { (0.0, if least.is_finite() { least } else { 0.0 }) };
    tail[..4].copy_from_slice(&step.to_le_bytes());
    tail[4..].copy_from_slice(&least.to_le_bytes());
}

/// Pools every bag into its place in `out`, as [`super::pool`] does.
///
/// # Errors
/// When a bag names a row beyond the table. Nothing is written then.
///
/// # Panics
/// If `dim` is 0 or does not fit the rows, if the bags' arrays do not fit together, or if `out` is too small.
pub fn pool(
    isa: Isa,
    (rows, dim): (&[u8], usize),
    bags: Bags<'_>,
    how: Pool,
    (out, place): (&mut [f32], Place),
) -> Result<(), RowOutside> {
    bags.check(isa);
    let width = row_bytes(dim);
    assert!(dim > 0 && rows.len().is_multiple_of(width), "{} bytes are no rows of {dim}", rows.len());
    place.check(bags.count(), dim, out.len());
    check_rows(isa, bags.rows, 0, rows.len() / width)?;
    let weights = if how == Pool::Weighted { bags.weights } else { &[] };
    let bags = Bags { weights, ..bags };
    lanes::dispatch(isa, Lookup { rows, dim, bags, mean: how == Pool::Mean, out, place });
    Ok(())
}

struct Lookup<'a> {
    rows: &'a [u8],
    dim: usize,
    bags: Bags<'a>,
    mean: bool,
    out: &'a mut [f32],
    place: Place,
}

impl Kernel for Lookup<'_> {
    type Output = ();

    /// Plain loops: inside a level's function the compiler makes them vectors, and no operation is fused.
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let Lookup { rows, dim, bags, mean, out, place } = self;
        let width = row_bytes(dim);
        let ahead = rows_ahead(width);
        let ask = |id: u32| {
            let first = rows.as_ptr().wrapping_add(id as usize * width);
            (0..width).step_by(64).for_each(|at| prefetch(first.wrapping_add(at)));
            prefetch(first.wrapping_add(width - 1));
        };
        bags.rows.iter().take(ahead).for_each(|&id| ask(id));
        let mut start = 0;
        for bag in 0..bags.count() {
            let end = (bags.offsets[bag + 1] - bags.offsets[0]) as usize;
            let sum = &mut out[bag * place.stride + place.offset..][..dim];
            sum.fill(0.0);
            for position in start..end {
                if let Some(&next) = bags.rows.get(position + ahead) {
                    ask(next);
                }
                let row = &rows[bags.rows[position] as usize * width..][..width];
                let weight = bags.weights.get(position).copied().unwrap_or(1.0);
                add_row(sum, row, weight);
            }
            if mean && end - start > 1 {
                let count = (end - start) as f32;
                sum.iter_mut().for_each(|value| *value /= count);
            }
            start = end;
        }
    }
}

/// `sum += weight * row`.
#[inline(always)]
fn add_row(sum: &mut [f32], row: &[u8], weight: f32) {
    let (codes, tail) = row.split_at(sum.len());
    let float = |at: usize| f32::from_le_bytes([tail[at], tail[at + 1], tail[at + 2], tail[at + 3]]);
    let (step, least) = (float(0), float(4));
    for (sum, &code) in sum.iter_mut().zip(codes) {
        *sum += weight * (least + step * f32::from(code));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn restored(row: &[u8], dim: usize) -> Vec<f32> {
        let mut out = vec![0.0; dim];
        add_row(&mut out, row, 1.0);
        out
    }

    #[test]
    fn rows_that_have_no_step_come_back() {
        for row in [vec![0.25; 5], vec![0.0; 3], vec![-7.0], vec![1e-44, 2e-44]] {
            let mut bytes = vec![0; row_bytes(row.len())];
            quantise(&row, &mut bytes);
            assert!(
                restored(&bytes, row.len()).iter().zip(&row).all(|(a, b)| (a - b).abs() < 1e-40),
                "{row:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn an_element_is_half_a_step_off_at_most(row in prop::collection::vec(-3.0f32..5.0, 1..70)) {
            let mut bytes = vec![0; row_bytes(row.len())];
            quantise(&row, &mut bytes);
            let most = row.iter().copied().fold(f32::MIN, f32::max);
            let step = (most - row.iter().copied().fold(f32::MAX, f32::min)) / 255.0;
            for (back, value) in restored(&bytes, row.len()).iter().zip(&row) {
                prop_assert!((back - value).abs() <= step * 0.5001 + 1e-6, "{value} came back as {back}, step {step}");
            }
        }

        #[test]
        fn every_level_returns_the_bits_of_plain_loops(
            dim in 1..70usize,
            values in prop::collection::vec(-1.0f32..1.0, 70 * 5),
            lengths in prop::collection::vec(0..6u32, 1..6),
            picks in prop::collection::vec((0..5u32, 0.5f32..2.0), 30),
            how in prop::sample::select(vec![Pool::Sum, Pool::Mean, Pool::Weighted]),
        ) {
            let mut rows = vec![0; 5 * row_bytes(dim)];
            for (row, bytes) in rows.chunks_exact_mut(row_bytes(dim)).enumerate() {
                quantise(&values[row * dim..][..dim], bytes);
            }
            let offsets: Vec<u32> = [0].into_iter().chain(lengths.iter().scan(0, |end, n| { *end += n; Some(*end) })).collect();
            let count = offsets[lengths.len()] as usize;
            let (ids, weights): (Vec<u32>, Vec<f32>) = picks[..count].iter().copied().unzip();
            let bags = Bags { offsets: &offsets, rows: &ids, weights: &weights };
            let place = Place { stride: dim + 3, offset: 2 };
            let mut wanted = vec![9.0; lengths.len() * (dim + 3)];
            for bag in 0..lengths.len() {
                let positions = offsets[bag] as usize..offsets[bag + 1] as usize;
                for element in 0..dim {
                    let mut sum = 0.0;
                    for at in positions.clone() {
                        let value = restored(&rows[ids[at] as usize * row_bytes(dim)..][..row_bytes(dim)], dim)[element];
                        sum += if how == Pool::Weighted { weights[at] * value } else { value };
                    }
                    let mean = how == Pool::Mean && positions.len() > 1;
                    wanted[bag * (dim + 3) + 2 + element] = if mean { sum / positions.len() as f32 } else { sum };
                }
            }
            for isa in Isa::all() {
                let mut out = vec![9.0; wanted.len()];
                pool(isa, (&rows, dim), bags, how, (&mut out, place)).unwrap();
                let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(bits(&out), bits(&wanted), "{:?}", isa);
            }
        }
    }
}
