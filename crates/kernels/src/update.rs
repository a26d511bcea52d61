//! Backward and update of rows, in one pass over the rows that a batch touches.
//!
//! For every unique row of a [`Merge`], in rising order:
//!
//! ```text
//!   g  = sum over its occurrences, in their order, of weight * gradient      multiplied, rounded, then added
//!   g *= norm_max / |g|                     if |g| > norm_max > 0
//!   g += l2 * w                             if l2 is not 0
//!   w, state = rule(w, state, g)            once
//! ```
//!
//! The gradient of the table is never laid out: `g` of one row at a time is in the first-level cache, or stays where
//! it came from if it is alone. The next rows, their state and the gradients that reach them are asked for ahead of their use.
//!
//! Arithmetic is in `f32`, every operation rounded on its own, as the formulas of [`Rule`] read from left to
//! right; roots and divisions are exact, and sums over a row go over sixteen partial sums, so all levels give
//! the same bits. State below the normal numbers is kept as zero (`Lanes::flush`). 16-bit rows are decoded, updated in `f32` and stored with stochastic rounding seeded by
//! (seed, table, row, step, element).
#![allow(unsafe_code)]

mod merged;
mod rule;

pub use merged::{Merged, SQUARES_BLOCK};

use std::ops::Range;

use crate::{
    isa::Isa,
    lanes::{self, Kernel, Lanes, prefetch},
    merge::{Merge, Occurrence},
    pool::{Bf16, Element, F16, Lines, Place, rows_ahead},
};
use rule::{Apply, Prepare, Rated, Row};

/// How a row moves, given its merged gradient `g`, its weights `w`, the rate `lr` and the step `t`, counted
/// from 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// `w -= lr * g`. No state.
    Sgd,
    /// `s += g*g; w -= lr * g / (sqrt(s) + epsilon)`. State: `s` per element.
    Adagrad {
        /// Added to the root.
        epsilon: f32,
    },
    /// `s += mean(g*g); w -= lr / (sqrt(s) + epsilon) * g`. State: one `s`.
    RowwiseAdagrad {
        /// Added to the root.
        epsilon: f32,
    },
    /// `m = b1*m + (1-b1)*g; v = b2*v + (1-b2)*g*g; w -= rate * m / (sqrt(v/c2) + epsilon)`, where
    /// `rate = lr/c1`, and `c1 = 1-b1^t` and `c2 = 1-b2^t` are computed in `f64` and rounded, once a step.
    /// State: all `m`, then all `v`.
    Adam {
        /// Decay of `m`.
        beta1: f32,
        /// Decay of `v`.
        beta2: f32,
        /// Added to the root.
        epsilon: f32,
    },
    /// As Adam with one `v = b2*v + (1-b2)*mean(g*g)`, and `w -= rate / (sqrt(v/c2) + epsilon) * m`.
    /// State: all `m`, then `v`.
    RowwiseAdam {
        /// Decay of `m`.
        beta1: f32,
        /// Decay of `v`.
        beta2: f32,
        /// Added to the root.
        epsilon: f32,
    },
    /// `z = -(sign(w)*l1 + l2*w) where n = 0; n += g*g; d = (beta + sqrt(n)) / lr; u = z + (g - d*w);
    /// w = 0 where |u| <= l1, else -(u - sign(u)*l1) / (d + l2); z = u + d*w`. State: all `z`, then all `n`.
    /// With `lr` 0, and where `g*g` is 0, nothing changes. The last `z` is of `w` as it is stored.
    Ftrl {
        /// Smooths the first steps.
        beta: f32,
        /// Drives small weights to exact zero.
        l1: f32,
        /// Shrinks weights.
        l2: f32,
    },
}

impl Rule {
    /// Whether it needs a sum over the whole row.
    pub fn is_rowwise(&self) -> bool {
        matches!(self, Rule::RowwiseAdagrad { .. } | Rule::RowwiseAdam { .. })
    }

    /// Floats of state per row of `dim` elements.
    pub fn state_floats(&self, dim: usize) -> usize {
        match self {
            Rule::Sgd => 0,
            Rule::Adagrad { .. } => dim,
            Rule::RowwiseAdagrad { .. } => 1,
            Rule::Adam { .. } | Rule::Ftrl { .. } => 2 * dim,
            Rule::RowwiseAdam { .. } => dim + 1,
        }
    }
}

/// What is the same for all rows of one update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// How a row moves.
    pub rule: Rule,
    /// `lr` of the formulas.
    pub learning_rate: f32,
    /// The step, counted from 0: `t - 1` of the formulas.
    pub step: u64,
    /// Pulls touched rows to zero; 0 for none.
    pub l2: f32,
    /// A merged gradient is scaled down to this norm; 0 for no limit.
    pub norm_max: f32,
    /// Key of stochastic rounding.
    pub seed: u64,
    /// Key of the table.
    pub table: u64,
    /// The number, in the whole table, of the first row of this part.
    pub first_row: u64,
    /// The number, in the whole row, of the first column of this part.
    pub first_column: usize,
}

/// The rows of a table's part, to be changed.
#[derive(Debug)]
pub enum RowsMut<'a> {
    /// 32-bit floats.
    F32(&'a mut [f32]),
    /// IEEE halves, as bits.
    F16(&'a mut [u16]),
    /// bfloat16, as bits.
    Bf16(&'a mut [u16]),
}

impl RowsMut<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            RowsMut::F32(values) => values.len(),
            RowsMut::F16(values) | RowsMut::Bf16(values) => values.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The gradients of one block of bags: the vector of sample `s` is `values[s * stride + offset..][..dim]`.
#[derive(Debug, Clone, Copy)]
pub struct Gradient<'a> {
    /// The matrix.
    pub values: &'a [f32],
    /// Where the vectors lie in it.
    pub place: Place,
    /// How many vectors there are.
    pub samples: usize,
}

/// Memory of the update, kept from call to call.
#[derive(Debug, Default)]
pub struct Scratch {
    gradient: Vec<f32>,
    sources: Vec<Source>,
}

/// Where a block's vectors start, and the distance from one to the next.
#[derive(Debug, Clone, Copy)]
struct Source {
    /// An address as a number, so that the scratch may travel between threads; valid during one call.
    start: usize,
    stride: usize,
}

/// Updates every row of a sorted merge exactly once. `gradients` are the blocks in the order of their push.
///
/// # Panics
/// If the arrays do not fit together: rows of `dim` elements, state as the rule asks, one gradient block per
/// pushed block with all its samples.
pub fn update<O: Occurrence>(
    isa: Isa,
    (rows, state, dim): (RowsMut<'_>, &mut [f32], usize),
    merge: &Merge<O>,
    gradients: &[Gradient<'_>],
    step: &Step,
    scratch: &mut Scratch,
) {
    let row_count = merge.row_count();
    assert!(
        dim > 0 && rows.len() == row_count * dim,
        "{} elements are not {row_count} rows of {dim}",
        rows.len()
    );
    let state_floats = step.rule.state_floats(dim);
    assert_eq!(state.len(), row_count * state_floats, "the state of {row_count} rows of {dim}");
    sources(merge, gradients, dim, &mut scratch.sources);
    let frozen = matches!(step.rule, Rule::Ftrl { .. }) && step.learning_rate == 0.0;
    if frozen || merge.occurrences().is_empty() {
        return;
    }
    scratch.gradient.resize(dim.max(scratch.gradient.len()), 0.0);
    let kernel = Update {
        state: state.as_mut_ptr(),
        state_floats,
        dim,
        starts: merge.starts(),
        unique: merge.unique_rows(),
        vectors: Vectors::new(merge, &scratch.sources),
        step: Rated::new(step),
        scratch: scratch.gradient.as_mut_ptr(),
    };
    match rows {
        RowsMut::F32(rows) => lanes::dispatch(isa, In::<f32, O> { rows: rows.as_mut_ptr(), kernel }),
        RowsMut::F16(rows) => lanes::dispatch(isa, In::<F16, O> { rows: rows.as_mut_ptr().cast(), kernel }),
        RowsMut::Bf16(rows) => lanes::dispatch(isa, In::<Bf16, O> { rows: rows.as_mut_ptr().cast(), kernel }),
    }
}

/// Where the gradient vectors of every block start, checked to have all that the merge names.
fn sources<O: Occurrence>(merge: &Merge<O>, gradients: &[Gradient<'_>], dim: usize, out: &mut Vec<Source>) {
    assert_eq!(gradients.len(), merge.block_count(), "gradient blocks and bag blocks");
    for (block, gradient) in gradients.iter().enumerate() {
        gradient.place.check(gradient.samples, dim, gradient.values.len());
        assert!(merge.samples(block) <= gradient.samples, "block {block} lacks gradients");
    }
    out.clear();
    out.extend(gradients.iter().map(|gradient| Source {
        start: gradient.values.as_ptr().wrapping_add(gradient.place.offset).expose_provenance(),
        stride: gradient.place.stride,
    }));
}

/// An element that can be written back.
pub(crate) trait Stored: Element {
    /// Whether writing rounds, and so needs random bits.
    const ROUNDS: bool;
    /// # Safety
    /// As [`Lanes`]: `to` is good for a vector of elements.
    unsafe fn store<V: Lanes>(value: V, to: *mut Self, key: u64, element: usize);
}

impl Stored for f32 {
    const ROUNDS: bool = false;
    #[inline(always)]
    unsafe fn store<V: Lanes>(value: V, to: *mut f32, _key: u64, _element: usize) {
        // SAFETY: handed on to the caller.
        unsafe { value.store(to) }
    }
}

impl Stored for F16 {
    const ROUNDS: bool = true;
    #[inline(always)]
    unsafe fn store<V: Lanes>(value: V, to: *mut F16, key: u64, element: usize) {
        // SAFETY: handed on to the caller.
        unsafe { value.store_f16_stochastic(to.cast(), V::element_bits(key, element)) }
    }
}

impl Stored for Bf16 {
    const ROUNDS: bool = true;
    #[inline(always)]
    unsafe fn store<V: Lanes>(value: V, to: *mut Bf16, key: u64, element: usize) {
        // SAFETY: handed on to the caller.
        unsafe { value.store_bf16_stochastic(to.cast(), V::element_bits(key, element)) }
    }
}

/// Occurrences ahead of its use at which a gradient vector is asked for. Gradients were written a moment ago
/// and lie in the last-level cache at worst.
const GRADIENTS_AHEAD: usize = 8;

struct Update<'a, O> {
    state: *mut f32,
    state_floats: usize,
    dim: usize,
    starts: &'a [u32],
    unique: &'a [u32],
    vectors: Vectors<'a, O>,
    step: Rated,
    /// Good for a row.
    scratch: *mut f32,
}

/// The occurrences of a merge, and the gradient vectors that they name.
#[derive(Clone, Copy)]
struct Vectors<'a, O> {
    occurrences: &'a [O],
    sample_bits: u32,
    sample_mask: u64,
    sources: &'a [Source],
}

struct In<'a, E, O> {
    rows: *mut E,
    kernel: Update<'a, O>,
}

impl<E: Stored, O: Occurrence> Kernel for In<'_, E, O> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        // SAFETY: handed on to the caller.
        unsafe {
            // As in `pool`: a known length saves instructions where rows are short. It is a parameter of the type, for the
            // compiler may make one call of calls that differ in an argument only.
            match self.kernel.dim {
                16 if V::COUNT > 1 && O::PLAIN => self.walk::<V, 16>(),
                32 if V::COUNT > 1 && O::PLAIN => self.walk::<V, 32>(),
                64 if V::COUNT > 1 && O::PLAIN => self.walk::<V, 64>(),
                128 if V::COUNT > 1 && O::PLAIN => self.walk::<V, 128>(),
                _ => self.walk::<V, 0>(),
            }
        }
    }
}

impl<E: Stored, O: Occurrence> In<'_, E, O> {
    #[inline(always)]
    unsafe fn walk<V: Lanes, const DIM: usize>(&self) {
        let dim = if DIM == 0 { self.kernel.dim } else { DIM };
        // Copies: what is read through `self` would be read again after every store to a row.
        let (rows, state, scratch) = (self.rows, self.kernel.state, self.kernel.scratch);
        let (unique, starts, vectors) = (self.kernel.unique, self.kernel.starts, self.kernel.vectors);
        let (step, state_floats) = (&self.kernel.step, self.kernel.state_floats);
        let (prepares, is_short) = (step.prepares(), step.is_short());
        let row_lines = Lines::new(rows, dim * size_of::<E>());
        let state_lines = Lines::new(state, state_floats * 4);
        let ask = |row: u32| {
            row_lines.ask(rows.wrapping_add(row as usize * dim));
            if state_floats == 1 {
                prefetch(state.wrapping_add(row as usize));
            } else {
                state_lines.ask(state.wrapping_add(row as usize * state_floats));
            }
        };
        let ahead = unique.get(rows_ahead(dim * size_of::<E>())..).unwrap_or(&[]);
        unique[..unique.len() - ahead.len()].iter().for_each(|row| ask(*row));
        for &occurrence in vectors.occurrences.iter().take(GRADIENTS_AHEAD) {
            vectors.ask_gradient(occurrence, dim);
        }
        for (segment, (&row, ends)) in unique.iter().zip(starts.windows(2)).enumerate() {
            if let Some(&next) = ahead.get(segment) {
                ask(next);
            }
            let positions = ends[0] as usize..ends[1] as usize;
            let row = row as usize;
            // SAFETY: every row of a merge is below its row count, for which rows and state have room; the
            // sources have all samples of their blocks, and the scratch has a row.
            unsafe {
                let g = vectors.gradient::<V>(positions, (scratch, dim), !prepares);
                let (w, state) = (rows.add(row * dim), state.add(row * state_floats));
                if prepares {
                    V::apart(Prepare { step, w, g: scratch, dim, squares: None });
                }
                let key = if E::ROUNDS { step.key(row) } else { 0 };
                let apply = Apply { step, row: Row { w, g, state, key, mean_of_squares: None }, dim };
                if is_short { apply.move_along::<V>() } else { V::apart(apply) }
            }
        }
    }
}

impl<'a, O: Occurrence> Vectors<'a, O> {
    fn new(merge: &'a Merge<O>, sources: &'a [Source]) -> Vectors<'a, O> {
        let sample_bits = merge.sample_bits();
        let sample_mask = (1 << sample_bits) - 1;
        Vectors { occurrences: merge.occurrences(), sample_bits, sample_mask, sources }
    }

    #[inline(always)]
    fn address(&self, occurrence: O) -> *const f32 {
        // A shift by 32 leaves no block, so it is done on 64 bits.
        let vector = u64::from(occurrence.vector());
        let source = self.sources[(vector >> self.sample_bits) as usize];
        let sample = (vector & self.sample_mask) as usize;
        std::ptr::with_exposed_provenance::<f32>(source.start).wrapping_add(sample * source.stride)
    }

    #[inline(always)]
    fn ask_gradient(&self, occurrence: O, dim: usize) {
        Lines::unaligned(dim * 4).ask(self.address(occurrence));
    }

    /// The merged gradient of the occurrences of one row: in `scratch`, or, if it `may_stay` and occurs once,
    /// where it is.
    ///
    /// # Safety
    /// As [`Vectors::add_up`].
    #[inline(always)]
    unsafe fn gradient<V: Lanes>(
        &self,
        positions: Range<usize>,
        (scratch, dim): (*mut f32, usize),
        may_stay: bool,
    ) -> *const f32 {
        let (start, end) = (positions.start, positions.end);
        if O::PLAIN && end - start == 1 && may_stay {
            if let Some(&next) = self.occurrences.get(start + GRADIENTS_AHEAD) {
                self.ask_gradient(next, dim);
            }
            return self.address(self.occurrences[start]);
        }
        // SAFETY: handed on to the caller.
        unsafe { self.add_up::<V>(positions, scratch, dim) }
        scratch
    }

    /// Adds up the gradients of some occurrences, in their order.
    ///
    /// # Safety
    /// As [`Lanes`]; there must be an occurrence, and `out` must have `dim` floats.
    #[inline(always)]
    unsafe fn add_up<V: Lanes>(&self, positions: Range<usize>, out: *mut f32, dim: usize) {
        let (start, end) = (positions.start, positions.end);
        for position in start + GRADIENTS_AHEAD..(end + GRADIENTS_AHEAD).min(self.occurrences.len()) {
            self.ask_gradient(self.occurrences[position], dim);
        }
        let occurrences = &self.occurrences[positions];
        let mut column = 0;
        // SAFETY: the blocks end at `dim`; the rest is handed on to the caller.
        unsafe {
            while column + 8 * V::COUNT <= dim {
                self.block::<V, 8>(occurrences, column, out);
                column += 8 * V::COUNT;
            }
            while column + 2 * V::COUNT <= dim {
                self.block::<V, 2>(occurrences, column, out);
                column += 2 * V::COUNT;
            }
            while column + V::COUNT <= dim {
                self.block::<V, 1>(occurrences, column, out);
                column += V::COUNT;
            }
            while column < dim {
                self.block::<f32, 1>(occurrences, column, out);
                column += 1;
            }
        }
    }

    /// `N` vectors of columns, over all occurrences, with the sums in registers.
    ///
    /// # Safety
    /// As [`Vectors::add_up`], and the block must end at the end of the scratch row or before.
    #[inline(always)]
    unsafe fn block<V: Lanes, const N: usize>(&self, occurrences: &[O], column: usize, scratch: *mut f32) {
        // SAFETY: every vector is inside its block of gradients; the rest is handed on to the caller.
        unsafe {
            let mut sums = [V::splat(0.0); N];
            // The first is taken as it is: 0 + x would be the same but for the sign of a zero.
            let first = self.address(occurrences[0]).add(column);
            for (n, sum) in sums.iter_mut().enumerate() {
                *sum = weighted::<V, O>(occurrences[0], first.add(n * V::COUNT));
            }
            for &occurrence in &occurrences[1..] {
                let from = self.address(occurrence).add(column);
                for (n, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.add(weighted::<V, O>(occurrence, from.add(n * V::COUNT)));
                }
            }
            for (n, sum) in sums.into_iter().enumerate() {
                sum.store(scratch.add(column + n * V::COUNT));
            }
        }
    }
}

/// # Safety
/// As [`Lanes`].
#[inline(always)]
unsafe fn weighted<V: Lanes, O: Occurrence>(occurrence: O, gradient: *const f32) -> V {
    // SAFETY: handed on to the caller.
    unsafe {
        let gradient = V::load(gradient);
        if O::PLAIN { gradient } else { V::splat(occurrence.weight()).mul(gradient) }
    }
}

#[cfg(test)]
mod tests;
