//! Products with bfloat16 operands on AMX tiles.
//!
//! A tile register holds 16 rows of 64 bytes: 16 by 32 bfloat16 of a left operand, 16 by 16 `f32` of a result, or
//! 16 by 16 *pairs* of a right operand, the two of a pair being neighbours in `k`. One instruction multiplies two
//! tiles into a third. Operands are packed into such tiles, 1 KiB each, `[block of 16 rows or columns][block of 32
//! k]`, so that a load reads 16 neighbouring lines; the 32 by 32 results of four tiles go through a small buffer,
//! where the ending (add, bias, ReLU, mask) is that of the tile loops.
//!
//! In memory every tile is 256 words of two bfloat16. Two ways of reading a matrix make all four packings:
//!
//! ```text
//!              rows of the tile   word r of row i          transposed it is
//!   straight   i of 16 rows       (k = 2r, k = 2r + 1)     a right operand that lies [column][k]
//!   paired     r of 16 pairs      column i of rows 2r, +1  a left operand that lies [k][row]
//! ```
//!
//! **Not the twin's bits**: the hardware adds two products at a time and flushes denormals. Against the twin an
//! element differs by at most [`error_bound`]; it does not depend on the rows in the call, so the contract of same
//! bits holds between runs on such processors. Rounding the operands is exactly the twin's.
#![allow(unsafe_code)]

pub(super) mod kernel;
pub(super) mod layer;
#[cfg(test)]
mod tests;

use super::product::Ending;
use super::tile::{TileLoops, finish_sums};
use super::{BLOCK, round_to_bf16};
use crate::isa::{Isa, Level};
use crate::matrix::{Matrix, MatrixMut, Store};
use kernel::{Session, Sums, TileUnit};

/// Rows of a left tile, columns of a right one, pairs of `k` in both.
const SIDE: usize = 16;
/// Terms that one tile holds.
const DEPTH: usize = 2 * SIDE;
/// Words of a tile.
pub(super) const TILE_WORDS: usize = SIDE * SIDE;
/// Tiles of a block of [`BLOCK`] terms.
const BLOCK_TILES: usize = BLOCK / DEPTH;

/// How the matrix that is to be packed lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lying {
    /// `[row or column][k]`.
    Along,
    /// `[k][row or column]`.
    Across,
}

/// Which operand a matrix becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

/// What is packed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin<'a> {
    pub source: Matrix<'a>,
    pub lying: Lying,
    pub side: Side,
}

/// A packed operand.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packed<'a> {
    pub words: &'a [u32],
    /// Rows of a left operand, columns of a right one.
    pub length: usize,
    pub depth: usize,
}

impl Packed<'_> {
    /// The first of `count` neighbouring tiles.
    fn tiles(&self, block: usize, k: usize, count: usize) -> *const u32 {
        let first = block * self.depth.div_ceil(DEPTH) + k;
        self.words[first * TILE_WORDS..][..count * TILE_WORDS].as_ptr()
    }
}

/// Words that an operand takes when packed.
pub(super) fn packed_words(length: usize, depth: usize) -> usize {
    length.div_ceil(SIDE) * depth.div_ceil(DEPTH) * TILE_WORDS
}

/// Packs a matrix into tiles; what does not exist is zero.
///
/// # Safety
///
/// The processor has the instructions of `loops`.
pub(super) unsafe fn pack(loops: &TileLoops, from: Origin<'_>, words: &mut [u32]) {
    match loops.lanes {
        // SAFETY: loops of sixteen lanes are AVX-512's.
        #[cfg(target_arch = "x86_64")]
        16 => unsafe { pack_avx512(from, words) },
        // SAFETY: all other loops are AVX2's.
        #[cfg(target_arch = "x86_64")]
        _ => unsafe { pack_avx2(from, words) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => unreachable!("there are no tile loops on this processor"),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
fn pack_avx512(from: Origin<'_>, words: &mut [u32]) {
    // SAFETY: this function has AVX2.
    unsafe { pack_tiles(from, words) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn pack_avx2(from: Origin<'_>, words: &mut [u32]) {
    // SAFETY: this function has AVX2.
    unsafe { pack_tiles(from, words) }
}

/// # Safety
///
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn pack_tiles(Origin { source, lying, side }: Origin<'_>, words: &mut [u32]) {
    let (length, depth) = match lying {
        Lying::Along => (source.rows(), source.columns()),
        Lying::Across => (source.columns(), source.rows()),
    };
    let k_tiles = depth.div_ceil(DEPTH);
    for (index, tile) in
        words[..packed_words(length, depth)].as_chunks_mut::<TILE_WORDS>().0.iter_mut().enumerate()
    {
        let (first, k) = (index / k_tiles * SIDE, index % k_tiles * DEPTH);
        match lying {
            Lying::Along => straight(source, first, k, tile),
            Lying::Across => paired(source, k, first, tile),
        }
        if (lying == Lying::Along) == (side == Side::Right) {
            // SAFETY: the caller has AVX2.
            unsafe { transpose(tile) };
        }
    }
}

/// Two neighbours in `k`, rounded, the first in the low half.
#[inline(always)]
fn pair(first: f32, second: f32) -> u32 {
    round_to_bf16(first).to_bits() >> 16 | round_to_bf16(second).to_bits()
}

/// Word `r` of row `i` is elements `2r` and `2r + 1`, from column `k` on, of row `first + i`.
#[inline(always)]
fn straight(source: Matrix<'_>, first: usize, k: usize, tile: &mut [u32; TILE_WORDS]) {
    for (i, words) in tile.chunks_exact_mut(SIDE).enumerate() {
        let row = if first + i < source.rows() { &source.row(first + i)[k..] } else { &[] };
        if let Some(row) = row.first_chunk::<DEPTH>() {
            for (word, two) in words.iter_mut().zip(row.as_chunks::<2>().0) {
                *word = pair(two[0], two[1]);
            }
            continue;
        }
        let at = |k: usize| row.get(k).copied().unwrap_or(0.0);
        for (r, word) in words.iter_mut().enumerate() {
            *word = pair(at(2 * r), at(2 * r + 1));
        }
    }
}

/// Word `i` of row `r` is element `first + i` of rows `k + 2r` and `k + 2r + 1`.
#[inline(always)]
fn paired(source: Matrix<'_>, k: usize, first: usize, tile: &mut [u32; TILE_WORDS]) {
    for (r, words) in tile.chunks_exact_mut(SIDE).enumerate() {
        let row = |k: usize| if k < source.rows() { &source.row(k)[first..] } else { &[] };
        let (even, odd) = (row(k + 2 * r), row(k + 2 * r + 1));
        if let (Some(even), Some(odd)) = (even.first_chunk::<SIDE>(), odd.first_chunk::<SIDE>()) {
            for (word, (even, odd)) in words.iter_mut().zip(even.iter().zip(odd)) {
                *word = pair(*even, *odd);
            }
            continue;
        }
        let at = |row: &[f32], i: usize| row.get(i).copied().unwrap_or(0.0);
        for (i, word) in words.iter_mut().enumerate() {
            *word = pair(at(even, i), at(odd, i));
        }
    }
}

/// Swaps rows and columns of words, in squares of eight.
///
/// # Safety
///
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn transpose(tile: &mut [u32; TILE_WORDS]) {
    use crate::simd::{Avx2, Vector};
    let words = tile.as_mut_ptr().cast::<f32>();
    // SAFETY: each of the four squares lies inside the tile, and moving floats keeps their bits.
    unsafe {
        let at = |i: usize, j: usize| words.add(i * 8 * SIDE + j * 8);
        let load =
            |from: *mut f32| -> [Avx2; 8] { std::array::from_fn(|row| Avx2::load(from.add(row * SIDE))) };
        let store = |square: [Avx2; 8], to: *mut f32| {
            square.into_iter().enumerate().for_each(|(row, values)| values.store(to.add(row * SIDE)));
        };
        for i in 0..2 {
            store(Avx2::transpose(load(at(i, i))), at(i, i));
        }
        let (above, below) = (Avx2::transpose(load(at(0, 1))), Avx2::transpose(load(at(1, 0))));
        store(above, at(1, 0));
        store(below, at(0, 1));
    }
}

/// `c = a b`, and what `ending` adds to that: the tile walk of `product`, with larger tiles.
///
/// # Safety
///
/// The processor has the instructions of `loops` and of `unit`.
pub(super) unsafe fn multiply(
    loops: &TileLoops,
    unit: &TileUnit,
    (left, right): (Packed<'_>, Packed<'_>),
    ending: Ending<'_>,
    mut c: MatrixMut<'_>,
) {
    let (rows, columns, depth) = (c.rows(), c.columns(), left.depth);
    assert_eq!((left.length, right.length, right.depth), (rows, columns, depth), "operands of a product");
    assert!(ending.bias.is_none_or(|bias| bias.len() == columns));
    assert!(ending.mask.is_none_or(|mask| (mask.rows(), mask.columns()) == (rows, columns)));
    if depth == 0 && ending.store == Store::Replace {
        (0..rows).for_each(|r| c.row(r).fill(0.0));
    }
    let (row_tiles, column_tiles, k_tiles) =
        (rows.div_ceil(SIDE), columns.div_ceil(SIDE), depth.div_ceil(DEPTH));
    // SAFETY: the caller has the instructions; begin and end enclose the walk.
    unsafe {
        (unit.begin)();
        for k in (0..k_tiles).step_by(BLOCK_TILES) {
            let count = BLOCK_TILES.min(k_tiles - k);
            let mut ending = if k + count == k_tiles { ending } else { Ending::plain(ending.store) };
            if k > 0 {
                ending.store = Store::Add;
            }
            let mut walk = Walk { left, right, k, count, sums: Sums::zero() };
            for column in (0..column_tiles).step_by(2) {
                for row in (0..row_tiles).step_by(2) {
                    walk.two_by_two(loops, unit, ending, (row, column), &mut c);
                }
            }
        }
        (unit.end)();
    }
}

/// A block of terms of a product.
struct Walk<'a> {
    left: Packed<'a>,
    right: Packed<'a>,
    k: usize,
    count: usize,
    sums: Sums,
}

impl Walk<'_> {
    /// The four tiles of the result from this one on, or as many of them as there are.
    ///
    /// # Safety
    ///
    /// As for [`multiply`], inside the unit's begin and end.
    unsafe fn two_by_two(
        &mut self,
        loops: &TileLoops,
        unit: &TileUnit,
        ending: Ending<'_>,
        (row, column): (usize, usize),
        c: &mut MatrixMut<'_>,
    ) {
        let Walk { left, right, k, count, ref mut sums } = *self;
        let two_rows = row + 1 < c.rows().div_ceil(SIDE);
        let two_columns = column + 1 < c.columns().div_ceil(SIDE);
        let session = Session {
            count,
            left: [row, row + usize::from(two_rows)].map(|row| left.tiles(row, k, count)),
            right: [column, column + usize::from(two_columns)].map(|column| right.tiles(column, k, count)),
            two_rows,
            two_columns,
        };
        // SAFETY: `tiles` checked that `count` tiles follow each pointer inside its operand, and the caller has
        // the instructions.
        unsafe {
            (unit.multiply)(&session, sums);
            finish_sums(loops, sums.floats(), 2 * SIDE, ending, (row * SIDE, column * SIDE), c);
        }
    }
}

/// Multiplies two by two rows of 16 tiles that stay near, `rounds` times, and returns how many floating-point
/// operations that were: the best that packed operands can hope for. None where the level has no tiles.
pub(crate) fn near_products(isa: Isa, rounds: usize) -> Option<f64> {
    if isa.level() != Level::Amx {
        return None;
    }
    let words = vec![0u32; BLOCK_TILES * TILE_WORDS];
    let [left, right] = [[words.as_ptr(); 2]; 2];
    let session = Session { count: BLOCK_TILES, left, right, two_rows: true, two_columns: true };
    let mut sums = Sums::zero();
    // SAFETY: the level proves the instructions; as many tiles follow the pointer as the session counts.
    unsafe {
        (kernel::HARDWARE.begin)();
        for _ in 0..rounds {
            (kernel::HARDWARE.multiply)(&session, &mut sums);
        }
        (kernel::HARDWARE.end)();
    }
    std::hint::black_box(sums);
    Some((rounds * 2 * (2 * SIDE) * (2 * SIDE) * BLOCK) as f64)
}

/// Whether AMX multiplies as it is documented to: 33 by 70 by 40 numbers against plain sums. Asked once a process,
/// before any layer uses it, because a hypervisor may promise what it does not deliver.
///
/// # Safety
///
/// The processor, the system and the kernel have promised AVX-512 and AMX to this process.
pub(crate) unsafe fn instructions_work() -> bool {
    const ROWS: usize = 33;
    const TERMS: usize = 70;
    const COLUMNS: usize = 40;
    let number = |i: usize| ((i * 2_654_435_761) % 255) as f32 / 64.0 - 2.0;
    let a: Vec<f32> = (0..ROWS * TERMS).map(number).collect();
    let b: Vec<f32> = (0..TERMS * COLUMNS).map(|i| number(i + 7)).collect();
    let (mut left, mut right) = (vec![0; packed_words(ROWS, TERMS)], vec![0; packed_words(COLUMNS, TERMS)]);
    let mut c = vec![0.0; ROWS * COLUMNS];
    let loops = &super::tile::avx512::LOOPS;
    // SAFETY: the caller's promise.
    unsafe {
        let origin = Origin { source: Matrix::contiguous(&a, TERMS), lying: Lying::Along, side: Side::Left };
        pack(loops, origin, &mut left);
        let origin =
            Origin { source: Matrix::contiguous(&b, COLUMNS), lying: Lying::Across, side: Side::Right };
        pack(loops, origin, &mut right);
        let left = Packed { words: &left, length: ROWS, depth: TERMS };
        let right = Packed { words: &right, length: COLUMNS, depth: TERMS };
        let to = MatrixMut::contiguous(&mut c, COLUMNS);
        multiply(loops, &kernel::HARDWARE, (left, right), Ending::plain(Store::Replace), to);
    }
    (0..ROWS * COLUMNS).all(|place| {
        let (row, column) = (place / COLUMNS, place % COLUMNS);
        let product = |k: usize| round_to_bf16(a[row * TERMS + k]) * round_to_bf16(b[k * COLUMNS + column]);
        let want: f32 = (0..TERMS).map(product).sum();
        let magnitude: f32 = (0..TERMS).map(|k| product(k).abs()).sum();
        (c[place] - want).abs() <= 2.0 * error_bound(TERMS, magnitude)
    })
}

/// By how much an element may differ from the twin's, where `magnitude` is the sum of the absolute products over
/// its `terms`: both sides round each addition once, and AMX takes denormals for zero.
pub fn error_bound(terms: usize, magnitude: f32) -> f32 {
    let steps = terms as f32 + 2.0;
    steps * (f32::EPSILON * magnitude + 2.0 * f32::MIN_POSITIVE)
}
