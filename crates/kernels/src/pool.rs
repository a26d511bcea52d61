//! Pooled lookup: the rows of each bag become one vector.
//!
//! One call handles all bags of a feature. Rows are far apart in memory, so the next ones are asked for while
//! the present ones are added, across the borders of bags: a lookup then runs at the rate at which the memory
//! hands out random rows, not at its latency.
//!
//! Every output element starts at zero and takes the rows in the order of the bag: `sum += row`, or
//! `sum += weight * row` (multiplied, rounded, added). A mean is that sum divided once by the number of rows.
//! All levels follow this order and return the same bits.
#![allow(unsafe_code)]

use crate::{
    isa::Isa,
    lanes::{self, Kernel, Lanes, prefetch_span},
};

/// The stored rows of a table, one after another.
#[derive(Debug, Clone, Copy)]
pub enum Rows<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// IEEE halves, as bits.
    F16(&'a [u16]),
    /// bfloat16, as bits.
    Bf16(&'a [u16]),
}

/// How the rows of a bag become one vector. An empty bag gives zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pool {
    /// Their sum.
    Sum,
    /// Their sum divided by their number.
    Mean,
    /// Their sum times the weights of the bags.
    Weighted,
}

/// Bags of row numbers: bag `b` is `rows[offsets[b] - offsets[0]..offsets[b + 1] - offsets[0]]`.
#[derive(Debug, Clone, Copy)]
pub struct Bags<'a> {
    /// One more than there are bags; never falling.
    pub offsets: &'a [u32],
    /// Row numbers of all bags.
    pub rows: &'a [u32],
    /// One weight per row; read by [`Pool::Weighted`] only, where an empty slice means all one.
    pub weights: &'a [f32],
}

/// A matrix of which each row gets (or holds) one vector: vector `b` is `[b * stride + offset..][..dim]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Floats from one row of the matrix to the next.
    pub stride: usize,
    /// Where the vector starts in a row of the matrix.
    pub offset: usize,
}

/// A bag names a row that the table does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowOutside {
    /// The row it names, in the numbering of the bags.
    pub row: u32,
}

impl Rows<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Rows::F32(values) => values.len(),
            Rows::F16(values) | Rows::Bf16(values) => values.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Place {
    /// Panics unless `count` vectors of `dim` floats lie inside `len` floats and do not overlap.
    pub(crate) fn check(self, count: usize, dim: usize, len: usize) {
        let Place { stride, offset } = self;
        assert!(
            offset + dim <= stride || count <= 1,
            "vectors of {dim} at {offset} overlap at stride {stride}"
        );
        let end = if count == 0 { 0 } else { (count - 1) * stride + offset + dim };
        assert!(
            end <= len,
            "{count} vectors of {dim} at {offset}, stride {stride}, do not fit in {len} floats"
        );
    }
}

impl Bags<'_> {
    /// Panics unless the arrays fit together; the kernels trust them afterwards.
    pub(crate) fn check(&self) {
        let (Some(first), Some(last)) = (self.offsets.first(), self.offsets.last()) else {
            panic!("bags without offsets");
        };
        assert!(self.offsets.is_sorted(), "offsets fall");
        assert_eq!((last - first) as usize, self.rows.len(), "offsets do not end at the rows");
        assert!(
            self.weights.is_empty() || self.weights.len() == self.rows.len(),
            "{} rows come with {} weights",
            self.rows.len(),
            self.weights.len()
        );
    }

    /// How many bags.
    pub fn count(&self) -> usize {
        self.offsets.len() - 1
    }
}

/// Writes the pooled vector of every bag to its place in `out`; `bags` name rows from `first_row` on.
///
/// # Errors
/// When a bag names a row before `first_row` or beyond the table. Nothing is written then.
///
/// # Panics
/// If `dim` is 0 or does not divide the rows, if the bags' arrays do not fit together, or if `out` is too small.
pub fn pool(
    isa: Isa,
    (table, dim): (Rows<'_>, usize),
    first_row: u32,
    bags: Bags<'_>,
    how: Pool,
    (out, place): (&mut [f32], Place),
) -> Result<(), RowOutside> {
    bags.check();
    assert!(dim > 0 && table.len().is_multiple_of(dim), "{} elements are no rows of {dim}", table.len());
    place.check(bags.count(), dim, out.len());
    check_rows(isa, bags.rows, first_row, table.len() / dim)?;
    let (out, weights) = (out.as_mut_ptr(), if how == Pool::Weighted { bags.weights } else { &[] });
    let kernel =
        Lookup { dim, first_row, bags: Bags { weights, ..bags }, mean: how == Pool::Mean, out, place };
    match table {
        Rows::F32(rows) => lanes::dispatch(isa, From::<f32> { rows: rows.as_ptr(), kernel }),
        Rows::F16(rows) => lanes::dispatch(isa, From::<F16> { rows: rows.as_ptr().cast(), kernel }),
        Rows::Bf16(rows) => lanes::dispatch(isa, From::<Bf16> { rows: rows.as_ptr().cast(), kernel }),
    }
    Ok(())
}

/// Checks that every one of `rows` is in `first_row..first_row + row_count`.
///
/// # Errors
/// With the first row that is not.
pub fn check_rows(isa: Isa, rows: &[u32], first_row: u32, row_count: usize) -> Result<(), RowOutside> {
    // One wrapping subtraction turns both bounds into one, and the largest of all is found without a branch.
    if lanes::dispatch(isa, Largest { rows, first_row }).is_none_or(|largest| (largest as usize) < row_count)
    {
        return Ok(());
    }
    let outside = |row: &&u32| row.wrapping_sub(first_row) as usize >= row_count;
    Err(RowOutside { row: *rows.iter().find(outside).expect("the largest row is outside") })
}

struct Largest<'a> {
    rows: &'a [u32],
    first_row: u32,
}

impl Kernel for Largest<'_> {
    type Output = Option<u32>;
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) -> Option<u32> {
        self.rows.iter().map(|row| row.wrapping_sub(self.first_row)).max()
    }
}

/// The element of a stored row.
pub(crate) trait Element: Copy {
    /// # Safety
    /// As [`Lanes`]: `from` is good for a vector of elements.
    unsafe fn load<V: Lanes>(from: *const Self) -> V;
}

/// The bits of an IEEE half.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct F16(u16);

/// The bits of a bfloat16.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Bf16(u16);

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const f32) -> V {
        // SAFETY: handed on to the caller.
        unsafe { V::load(from) }
    }
}

impl Element for F16 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const F16) -> V {
        // SAFETY: handed on to the caller.
        unsafe { V::load_f16(from.cast()) }
    }
}

impl Element for Bf16 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Bf16) -> V {
        // SAFETY: handed on to the caller.
        unsafe { V::load_bf16(from.cast()) }
    }
}

/// Bytes of rows that are asked for ahead of their use, and the bounds of that distance in rows. Measured by
/// `tables/benches/rows.rs`.
const AHEAD_BYTES: usize = 4096;
const AHEAD_ROWS: (usize, usize) = (6, 32);

/// How many rows ahead of its use a row is asked for.
pub(crate) fn rows_ahead(row_bytes: usize) -> usize {
    (AHEAD_BYTES / row_bytes).clamp(AHEAD_ROWS.0, AHEAD_ROWS.1)
}

#[derive(Clone, Copy)]
struct Lookup<'a> {
    dim: usize,
    first_row: u32,
    bags: Bags<'a>,
    mean: bool,
    out: *mut f32,
    place: Place,
}

struct From<'a, E> {
    rows: *const E,
    kernel: Lookup<'a>,
}

/// One bag on its way into its vector.
struct Bag<'a, E> {
    rows: *const E,
    dim: usize,
    first_row: u32,
    ids: &'a [u32],
    /// Empty or one per id.
    weights: &'a [f32],
    /// Divides the sum, where there is more than one row to a mean.
    divisor: Option<f32>,
    /// The ids that are asked for while this bag is added; as many as the bag has or fewer.
    ahead: &'a [u32],
    out: *mut f32,
}

impl<E: Element> Kernel for From<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let Lookup { dim, first_row, bags, mean, out, place } = self.kernel;
        let distance = rows_ahead(dim * size_of::<E>()).min(bags.rows.len());
        let base = bags.offsets[0];
        for &id in &bags.rows[..distance] {
            prefetch_row(self.rows, dim, id.wrapping_sub(first_row));
        }
        let mut asked = distance;
        let mut start = 0;
        for sample in 0..bags.count() {
            let end = (bags.offsets[sample + 1] - base) as usize;
            let until = (end + distance).min(bags.rows.len());
            let bag = Bag {
                rows: self.rows,
                dim,
                first_row,
                ids: &bags.rows[start..end],
                weights: if bags.weights.is_empty() { &[] } else { &bags.weights[start..end] },
                divisor: if mean && end - start > 1 { Some((end - start) as f32) } else { None },
                ahead: &bags.rows[asked.min(until)..until],
                // SAFETY: `Place::check` found room for every bag's vector.
                out: unsafe { out.add(sample * place.stride + place.offset) },
            };
            // SAFETY: `check_rows` found every id in the table; the rest is handed on to the caller.
            unsafe { bag.pool::<V>() };
            (start, asked) = (end, until);
        }
    }
}

#[inline(always)]
fn prefetch_row<E>(rows: *const E, dim: usize, local: u32) {
    prefetch_span(rows.wrapping_add(local as usize * dim), dim * size_of::<E>());
}

impl<E: Element> Bag<'_, E> {
    /// # Safety
    /// All ids must be in the table, and `out` good for `dim` floats.
    #[inline(always)]
    unsafe fn pool<V: Lanes>(&self) {
        let mut column = 0;
        // SAFETY: handed on to the caller; the blocks below end at `dim`.
        unsafe {
            // The first block asks for the rows ahead while it works.
            if self.dim >= 8 * V::COUNT {
                self.block::<V, 8, true>(0);
                column = 8 * V::COUNT;
                while column + 8 * V::COUNT <= self.dim {
                    self.block::<V, 8, false>(column);
                    column += 8 * V::COUNT;
                }
            } else if self.dim >= 4 * V::COUNT {
                self.block::<V, 4, true>(0);
                column = 4 * V::COUNT;
            } else if self.dim >= 2 * V::COUNT {
                self.block::<V, 2, true>(0);
                column = 2 * V::COUNT;
            } else {
                for &id in self.ahead {
                    prefetch_row(self.rows, self.dim, id.wrapping_sub(self.first_row));
                }
            }
            while column + 4 * V::COUNT <= self.dim {
                self.block::<V, 4, false>(column);
                column += 4 * V::COUNT;
            }
            while column + V::COUNT <= self.dim {
                self.block::<V, 1, false>(column);
                column += V::COUNT;
            }
            while column < self.dim {
                self.block::<f32, 1, false>(column);
                column += 1;
            }
        }
    }

    /// `N` vectors of columns, over all rows of the bag, with the sums in registers.
    ///
    /// # Safety
    /// As [`Bag::pool`], and the block must end at `dim` or before.
    #[inline(always)]
    unsafe fn block<V: Lanes, const N: usize, const ASK: bool>(&self, column: usize) {
        // SAFETY: every id is in the table and the block inside the row; `out` has `dim` floats.
        unsafe {
            let mut sums = [V::splat(0.0); N];
            for (position, &id) in self.ids.iter().enumerate() {
                if ASK && let Some(&next) = self.ahead.get(position) {
                    prefetch_row(self.rows, self.dim, next.wrapping_sub(self.first_row));
                }
                let row = self.rows.add(id.wrapping_sub(self.first_row) as usize * self.dim + column);
                if self.weights.is_empty() {
                    for (n, sum) in sums.iter_mut().enumerate() {
                        *sum = sum.add(E::load::<V>(row.add(n * V::COUNT)));
                    }
                } else {
                    let weight = V::splat(*self.weights.get_unchecked(position));
                    for (n, sum) in sums.iter_mut().enumerate() {
                        *sum = sum.add(weight.mul(E::load::<V>(row.add(n * V::COUNT))));
                    }
                }
            }
            if let Some(divisor) = self.divisor {
                let divisor = V::splat(divisor);
                for sum in &mut sums {
                    *sum = sum.div(divisor);
                }
            }
            for (n, sum) in sums.into_iter().enumerate() {
                sum.store(self.out.add(column + n * V::COUNT));
            }
        }
    }
}

#[cfg(test)]
mod tests;
