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

pub mod bytes;
pub mod probe;

use crate::{
    isa::Isa,
    lanes::{self, Columns, Kernel, Lanes, each_column, prefetch},
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
    /// Panics unless the arrays fit together; the kernels trust them afterwards. True if every bag has one row.
    pub(crate) fn check(&self, isa: Isa) -> bool {
        let (Some(first), Some(last)) = (self.offsets.first(), self.offsets.last()) else {
            panic!("bags without offsets");
        };
        let lengths = lanes::dispatch(isa, Lengths { offsets: self.offsets });
        // A fall would add 2^32 to the sum of the lengths, so the sum shows it.
        assert_eq!(lengths.sum, u64::from(last.wrapping_sub(*first)), "offsets fall");
        assert_eq!(lengths.sum, self.rows.len() as u64, "offsets do not end at the rows");
        assert!(
            self.weights.is_empty() || self.weights.len() == self.rows.len(),
            "{} rows come with {} weights",
            self.rows.len(),
            self.weights.len()
        );
        lengths.all_one
    }

    /// How many bags.
    pub fn count(&self) -> usize {
        self.offsets.len() - 1
    }
}

/// Looks at the length of every bag once.
struct Lengths<'a> {
    offsets: &'a [u32],
}

struct LengthsFound {
    sum: u64,
    all_one: bool,
}

impl Kernel for Lengths<'_> {
    type Output = LengthsFound;
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) -> LengthsFound {
        let (mut sum, mut differs) = (0, 0);
        for (next, offset) in self.offsets[1..].iter().zip(self.offsets) {
            let length = next.wrapping_sub(*offset);
            sum += u64::from(length);
            differs |= length ^ 1;
        }
        LengthsFound { sum, all_one: differs == 0 }
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
    let one_row_each = bags.check(isa);
    assert!(dim > 0 && table.len().is_multiple_of(dim), "{} elements are no rows of {dim}", table.len());
    place.check(bags.count(), dim, out.len());
    check_rows(isa, bags.rows, first_row, table.len() / dim)?;
    let (out, weights) = (out.as_mut_ptr(), if how == Pool::Weighted { bags.weights } else { &[] });
    let (bags, mean) = (Bags { weights, ..bags }, how == Pool::Mean);
    let kernel = Lookup { dim, first_row, bags, one_row_each, mean, out, place };
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
const AHEAD_BYTES: usize = 8192;
const AHEAD_ROWS: (usize, usize) = (6, 128);

/// How many rows ahead of its use a row is asked for.
pub(crate) fn rows_ahead(row_bytes: usize) -> usize {
    (AHEAD_BYTES / row_bytes).clamp(AHEAD_ROWS.0, AHEAD_ROWS.1)
}

/// Rows in memory and how to ask for one.
#[derive(Clone, Copy)]
pub(crate) struct Lines {
    row_bytes: usize,
    /// Every row starts at the head of a line.
    aligned: bool,
}

impl Lines {
    pub(crate) fn new<T>(first: *const T, row_bytes: usize) -> Lines {
        Lines { row_bytes, aligned: row_bytes.is_multiple_of(64) && first.addr().is_multiple_of(64) }
    }

    /// Rows that may start anywhere.
    #[inline(always)]
    pub(crate) fn unaligned(row_bytes: usize) -> Lines {
        Lines { row_bytes, aligned: false }
    }

    /// Asks for all lines of the row at `address`.
    #[inline(always)]
    pub(crate) fn ask<T>(self, address: *const T) {
        let first = address.cast::<u8>();
        let mut at = 0;
        while at < self.row_bytes {
            prefetch(first.wrapping_add(at));
            at += 64;
        }
        // A row that does not start at a line's head may reach one line further than its length in lines.
        if self.row_bytes > 0 && !self.aligned && (first.addr() & 63) + self.row_bytes > at {
            prefetch(first.wrapping_add(self.row_bytes - 1));
        }
    }
}

/// Copies rows of `width` bytes to `out`, one after the other, asking for the next ones while it does.
///
/// # Panics
/// If a row is beyond `all`, or `out` is too small.
pub fn copy_rows(all: &[u8], rows: impl Iterator<Item = usize> + Clone, out: &mut [u8], width: usize) {
    let lines = Lines::new(all.as_ptr(), width);
    let distance = rows_ahead(width);
    let ask = |row: usize| lines.ask(all.as_ptr().wrapping_add(row * width));
    rows.clone().take(distance).for_each(ask);
    let mut ahead = rows.clone().skip(distance);
    for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
        if let Some(next) = ahead.next() {
            ask(next);
        }
        out.copy_from_slice(&all[row * width..][..width]);
    }
}

struct Lookup<'a> {
    dim: usize,
    first_row: u32,
    bags: Bags<'a>,
    one_row_each: bool,
    mean: bool,
    out: *mut f32,
    place: Place,
}

struct From<'a, E> {
    rows: *const E,
    kernel: Lookup<'a>,
}

impl<E: Element> Kernel for From<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        // SAFETY: handed on to the caller.
        unsafe {
            // A known length lets the compiler lay a row's columns out flat: with one row a bag a lookup then
            // takes half the instructions, and the memory sees twice as many rows at once.
            match self.kernel.dim {
                16 if V::COUNT > 1 => self.walk::<V>(16),
                32 if V::COUNT > 1 => self.walk::<V>(32),
                64 if V::COUNT > 1 => self.walk::<V>(64),
                128 if V::COUNT > 1 => self.walk::<V>(128),
                dim => self.walk::<V>(dim),
            }
        }
    }
}

impl<E: Element> From<'_, E> {
    #[inline(always)]
    unsafe fn walk<V: Lanes>(&self, dim: usize) {
        let Lookup { first_row, bags, .. } = self.kernel;
        let lines = Lines::new(self.rows, dim * size_of::<E>());
        let table = Asked { rows: self.rows, dim, first_row, lines };
        for &id in &bags.rows[..rows_ahead(lines.row_bytes).min(bags.rows.len())] {
            table.ask(id);
        }
        // SAFETY: handed on to the caller.
        unsafe {
            if self.kernel.one_row_each && bags.weights.is_empty() {
                self.kernel.copy_rows::<V, E>(table);
            } else {
                self.kernel.pool_bags::<V, E>(table);
            }
        }
    }
}

/// A table whose rows can be asked for.
#[derive(Clone, Copy)]
struct Asked<E> {
    rows: *const E,
    dim: usize,
    first_row: u32,
    lines: Lines,
}

impl<E> Asked<E> {
    #[inline(always)]
    fn row(&self, id: u32) -> *const E {
        self.rows.wrapping_add(id.wrapping_sub(self.first_row) as usize * self.dim)
    }

    #[inline(always)]
    fn ask(&self, id: u32) {
        self.lines.ask(self.row(id));
    }
}

impl Lookup<'_> {
    #[inline(always)]
    fn vector(&self, sample: usize) -> *mut f32 {
        self.out.wrapping_add(sample * self.place.stride + self.place.offset)
    }

    /// One row in every bag, no weights: no sums, no borders.
    ///
    /// # Safety
    /// As [`Lanes`]; all ids must be in the table, and `out` have a place for every bag.
    #[inline(always)]
    unsafe fn copy_rows<V: Lanes, E: Element>(&self, table: Asked<E>) {
        let ids = self.bags.rows;
        let ahead = ids.get(rows_ahead(table.lines.row_bytes)..).unwrap_or(&[]);
        let mut to = self.vector(0);
        // SAFETY: handed on to the caller.
        unsafe {
            for (&id, &next) in ids.iter().zip(ahead) {
                table.ask(next);
                each_column::<V>(table.dim, &Copied { row: table.row(id), to });
                to = to.wrapping_add(self.place.stride);
            }
            for &id in &ids[ahead.len()..] {
                each_column::<V>(table.dim, &Copied { row: table.row(id), to });
                to = to.wrapping_add(self.place.stride);
            }
        }
    }

    /// # Safety
    /// As [`Lookup::copy_rows`].
    #[inline(always)]
    unsafe fn pool_bags<V: Lanes, E: Element>(&self, table: Asked<E>) {
        let Bags { offsets, rows, weights } = self.bags;
        let distance = rows_ahead(table.lines.row_bytes);
        let mut start = 0;
        for sample in 0..self.bags.count() {
            let end = (offsets[sample + 1] - offsets[0]) as usize;
            let bag = Bag {
                table,
                ids: &rows[start..end],
                weights: if weights.is_empty() { &[] } else { &weights[start..end] },
                divisor: if self.mean && end - start > 1 { Some((end - start) as f32) } else { None },
                ahead: rows.get(start + distance..(end + distance).min(rows.len())).unwrap_or(&[]),
                out: self.vector(sample),
            };
            // SAFETY: handed on to the caller.
            unsafe { bag.pool::<V>() };
            start = end;
        }
    }
}

/// `to = 0 + row`.
struct Copied<E> {
    row: *const E,
    to: *mut f32,
}

impl<E: Element> Columns for Copied<E> {
    #[inline(always)]
    unsafe fn at<L: Lanes>(&self, column: usize) {
        // SAFETY: row and vector have the columns; see `each_column`.
        unsafe {
            let row = E::load::<L>(self.row.add(column));
            L::splat(0.0).add(row).store(self.to.add(column));
        }
    }
}

/// One bag on its way into its vector.
struct Bag<'a, E> {
    table: Asked<E>,
    ids: &'a [u32],
    /// Empty or one per id.
    weights: &'a [f32],
    /// Divides the sum, where there is more than one row to a mean.
    divisor: Option<f32>,
    /// The ids that are asked for while this bag is added, at most one for each of its own.
    ahead: &'a [u32],
    out: *mut f32,
}

impl<E: Element> Bag<'_, E> {
    /// # Safety
    /// As [`Lanes`]; all ids must be in the table, and `out` good for `dim` floats.
    #[inline(always)]
    unsafe fn pool<V: Lanes>(&self) {
        let dim = self.table.dim;
        let mut column;
        // SAFETY: handed on to the caller; the blocks below end at `dim`.
        unsafe {
            // The first block asks for the rows ahead while it works.
            if dim >= 8 * V::COUNT {
                self.block::<V, 8, true>(0);
                column = 8 * V::COUNT;
                while column + 8 * V::COUNT <= dim {
                    self.block::<V, 8, false>(column);
                    column += 8 * V::COUNT;
                }
            } else if dim >= 4 * V::COUNT {
                self.block::<V, 4, true>(0);
                column = 4 * V::COUNT;
            } else if dim >= 2 * V::COUNT {
                self.block::<V, 2, true>(0);
                column = 2 * V::COUNT;
            } else if dim >= V::COUNT {
                self.block::<V, 1, true>(0);
                column = V::COUNT;
            } else {
                self.block::<f32, 1, true>(0);
                column = 1;
            }
            while column + 4 * V::COUNT <= dim {
                self.block::<V, 4, false>(column);
                column += 4 * V::COUNT;
            }
            while column + V::COUNT <= dim {
                self.block::<V, 1, false>(column);
                column += V::COUNT;
            }
            while column < dim {
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
                    self.table.ask(next);
                }
                let row = self.table.row(id).add(column);
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
