//! Backward and update of rows, in one pass over the rows that a batch touches.
//!
//! For every unique row of a [`Merge`], in rising order:
//!
//! ```text
//!   g  = sum over its occurrences, in their order, of weight * gradient        from 0, multiplied then added
//!   g *= norm_max / |g|                     if |g| > norm_max > 0
//!   g += l2 * w                             if l2 is not 0
//!   w, state = rule(w, state, g)            once
//! ```
//!
//! The gradient of the table is never laid out: `g` is one row in the first-level cache. The next rows, their
//! state and the gradients that reach them are asked for ahead of their use.
//!
//! Arithmetic is in `f32`, every operation rounded on its own, as the formulas of [`Rule`] read from left to
//! right; roots and divisions are exact, and sums over a row go over sixteen partial sums, so all levels give
//! the same bits. 16-bit rows are decoded, updated in `f32` and stored with stochastic rounding seeded by
//! (seed, table, row, step, element).
#![allow(unsafe_code)]

mod rule;

use crate::{
    isa::Isa,
    lanes::{self, Kernel, Lanes, prefetch_span},
    merge::{Merge, Occurrence},
    pool::{Bf16, Element, F16, Place, rows_ahead},
    random,
};
use rule::{Columns, Rated, each_column};

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
    /// `sigma = (sqrt(n + g*g) - sqrt(n)) / lr; z += g - sigma*w; n += g*g; w = 0 where |z| <= l1, else
    /// -(z - sign(z)*l1) / ((beta + sqrt(n)) / lr + l2)`. State: all `z`, then all `n`.
    /// With `lr` 0 nothing changes.
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
    assert_eq!(gradients.len(), merge.block_count(), "gradient blocks and bag blocks");
    for (block, gradient) in gradients.iter().enumerate() {
        gradient.place.check(gradient.samples, dim, gradient.values.len());
        assert!(merge.samples(block) <= gradient.samples, "block {block} lacks gradients");
    }
    let frozen = matches!(step.rule, Rule::Ftrl { .. }) && step.learning_rate == 0.0;
    if frozen || merge.occurrences().is_empty() {
        return;
    }
    scratch.sources.clear();
    scratch.sources.extend(gradients.iter().map(|gradient| Source {
        start: gradient.values.as_ptr().wrapping_add(gradient.place.offset).expose_provenance(),
        stride: gradient.place.stride,
    }));
    scratch.gradient.resize(dim.max(scratch.gradient.len()), 0.0);
    let kernel = Update {
        state: state.as_mut_ptr(),
        state_floats,
        dim,
        merge,
        sources: &scratch.sources,
        step: Rated::new(step),
        gradient: scratch.gradient.as_mut_ptr(),
    };
    match rows {
        RowsMut::F32(rows) => lanes::dispatch(isa, In::<f32, O> { rows: rows.as_mut_ptr(), kernel }),
        RowsMut::F16(rows) => lanes::dispatch(isa, In::<F16, O> { rows: rows.as_mut_ptr().cast(), kernel }),
        RowsMut::Bf16(rows) => lanes::dispatch(isa, In::<Bf16, O> { rows: rows.as_mut_ptr().cast(), kernel }),
    }
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
    merge: &'a Merge<O>,
    sources: &'a [Source],
    step: Rated,
    gradient: *mut f32,
}

struct In<'a, E, O> {
    rows: *mut E,
    kernel: Update<'a, O>,
}

impl<E: Stored, O: Occurrence> Kernel for In<'_, E, O> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let (rows, kernel) = (self.rows, self.kernel);
        let (dim, occurrences, starts) = (kernel.dim, kernel.merge.occurrences(), kernel.merge.starts());
        let unique = starts.len() - 1;
        let distance = rows_ahead(dim * size_of::<E>()).min(unique);
        let row_of = |segment: usize| occurrences[starts[segment] as usize].row() as usize;
        for segment in 0..distance {
            kernel.ask_row(rows, row_of(segment));
        }
        for &occurrence in occurrences.iter().take(GRADIENTS_AHEAD) {
            kernel.ask_gradient(occurrence);
        }
        let (seed, table) = (kernel.step.seed, kernel.step.table);
        for segment in 0..unique {
            if segment + distance < unique {
                kernel.ask_row(rows, row_of(segment + distance));
            }
            let (start, end) = (starts[segment] as usize, starts[segment + 1] as usize);
            let row = occurrences[start].row() as usize;
            let key = if E::ROUNDS {
                random::step_key(seed, table, kernel.step.first_row + row as u64, kernel.step.step)
            } else {
                0
            };
            // SAFETY: every row of a merge is below its row count, for which rows and state have room; the
            // sources have all samples of their blocks.
            unsafe {
                kernel.sum_gradient::<V>(start, end);
                let weights = rows.add(row * dim);
                let state = kernel.state.add(row * kernel.state_floats);
                kernel.step.apply::<V, E>(weights, state, kernel.gradient, dim, key);
            }
        }
    }
}

impl<O: Occurrence> Update<'_, O> {
    #[inline(always)]
    fn ask_row<E>(&self, rows: *const E, row: usize) {
        prefetch_span(rows.wrapping_add(row * self.dim), self.dim * size_of::<E>());
        if self.state_floats > 0 {
            prefetch_span(self.state.wrapping_add(row * self.state_floats), self.state_floats * 4);
        }
    }

    #[inline(always)]
    fn address(&self, occurrence: O) -> *const f32 {
        let (block, sample) = self.merge.vector(occurrence.vector());
        let source = self.sources[block];
        std::ptr::with_exposed_provenance::<f32>(source.start).wrapping_add(sample * source.stride)
    }

    #[inline(always)]
    fn ask_gradient(&self, occurrence: O) {
        prefetch_span(self.address(occurrence), self.dim * 4);
    }

    /// Sums the weighted gradients of occurrences `start..end` into the scratch row.
    #[inline(always)]
    unsafe fn sum_gradient<V: Lanes>(&self, start: usize, end: usize) {
        let occurrences = self.merge.occurrences();
        for position in start..end {
            if let Some(&next) = occurrences.get(position + GRADIENTS_AHEAD) {
                self.ask_gradient(next);
            }
            let occurrence = occurrences[position];
            let (from, weight) = (self.address(occurrence), occurrence.weight());
            // SAFETY: the vector is inside its block, and the scratch row has `dim` floats.
            unsafe {
                if position == start {
                    each_column::<V>(self.dim, &First { from, weight, to: self.gradient });
                } else {
                    each_column::<V>(self.dim, &Next { from, weight, to: self.gradient });
                }
            }
        }
    }
}

/// `to = 0 + weight * from`.
struct First {
    from: *const f32,
    weight: f32,
    to: *mut f32,
}

/// `to += weight * from`.
struct Next {
    from: *const f32,
    weight: f32,
    to: *mut f32,
}

impl Columns for First {
    #[inline(always)]
    unsafe fn at<L: Lanes>(&self, column: usize) {
        // SAFETY: both rows have the columns; see `sum_gradient`.
        unsafe {
            let product = L::splat(self.weight).mul(L::load(self.from.add(column)));
            L::splat(0.0).add(product).store(self.to.add(column));
        }
    }
}

impl Columns for Next {
    #[inline(always)]
    unsafe fn at<L: Lanes>(&self, column: usize) {
        // SAFETY: both rows have the columns; see `sum_gradient`.
        unsafe {
            let product = L::splat(self.weight).mul(L::load(self.from.add(column)));
            L::load(self.to.add(column)).add(product).store(self.to.add(column));
        }
    }
}

#[cfg(test)]
mod tests;
