//! The update of a row whose columns lie in several places.
//!
//! Some rules, and the limit on a gradient's norm, need a sum over the whole row. Where a table is cut by
//! columns nobody has a whole row, so the update goes in turns, between which those who hold the parts tell each
//! other the sums of squares of their column blocks:
//!
//! ```text
//!   merge    g of every touched row, laid out           then: squares(), tell, add up in block order
//!   limit    g *= norm_max / |g|, g += l2 * w           then: squares() again, tell, add up
//!   apply    the rule, with the mean of squares given
//! ```
//!
//! The bits are those of [`super::update`] on whole rows, which needs no turns and lays nothing out.
#![allow(unsafe_code)]

use super::{
    Gradient, RowsMut, Source, Step, Stored, Vectors,
    rule::{Apply, Prepare, Rated, Row},
    sources,
};
use crate::{
    isa::Isa,
    lanes::{self, Kernel, Lanes},
    merge::{Merge, Occurrence},
    pool::{Bf16, F16},
};

/// Columns whose squares are summed before such sums are added; a table may be cut by columns at its multiples.
pub const SQUARES_BLOCK: usize = lanes::SQUARES_BLOCK;

/// The merged gradients of all touched rows, laid out; memory is kept from step to step.
#[derive(Debug, Default)]
pub struct Merged {
    dim: usize,
    /// Touched rows, counted from the first of the table's part, rising.
    rows: Vec<u32>,
    /// `[row][dim]`.
    values: Vec<f32>,
    sources: Vec<Source>,
}

impl Merged {
    /// Adds up the gradients of every touched row, in the order of the merge.
    ///
    /// # Panics
    /// If the gradients do not fit the merge, as in [`super::update`].
    pub fn merge<O: Occurrence>(
        &mut self,
        isa: Isa,
        dim: usize,
        merge: &Merge<O>,
        gradients: &[Gradient<'_>],
    ) {
        sources(merge, gradients, dim, &mut self.sources);
        self.dim = dim;
        self.rows.clear();
        self.rows.extend(merge.unique_rows());
        self.values.resize(self.rows.len() * dim, 0.0);
        if !self.rows.is_empty() {
            lanes::dispatch(isa, Merging { sources: &self.sources, merge, out: &mut self.values, dim });
        }
    }

    /// The touched rows, counted from the first of the table's part, rising.
    pub fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// Appends the sums of squares of every row's blocks of [`SQUARES_BLOCK`] columns, `[row][block]`.
    pub fn squares(&self, isa: Isa, out: &mut Vec<f32>) {
        lanes::dispatch(isa, Squares { merged: self, out });
    }

    /// Limits the norm of every row's gradient and adds the pull of `l2`. `squares` are the sums over whole rows;
    /// they may be missing when there is no limit.
    ///
    /// # Panics
    /// If `rows` does not have every touched row, or sums are missing that are needed.
    pub fn limit(&mut self, isa: Isa, rows: &RowsMut<'_>, step: &Step, squares: &[f32]) {
        self.check(rows.len());
        assert!(
            step.norm_max == 0.0 || squares.len() == self.rows.len(),
            "{} sums of {} rows",
            squares.len(),
            self.rows.len()
        );
        let step = &Rated::new(step);
        if step.prepares() {
            match rows {
                RowsMut::F32(rows) => {
                    lanes::dispatch(isa, Limit::<f32> { rows: rows.as_ptr(), merged: self, step, squares })
                }
                RowsMut::F16(rows) => {
                    let rows = rows.as_ptr().cast();
                    lanes::dispatch(isa, Limit::<F16> { rows, merged: self, step, squares })
                }
                RowsMut::Bf16(rows) => {
                    let rows = rows.as_ptr().cast();
                    lanes::dispatch(isa, Limit::<Bf16> { rows, merged: self, step, squares })
                }
            }
        }
    }

    /// Applies the rule to every touched row. `means` are the means of squares over whole rows, for the rules
    /// that need them; others may give none.
    ///
    /// # Panics
    /// If `rows` and `state` do not have every touched row, or means are missing that are needed.
    pub fn apply(&self, isa: Isa, (rows, state): (RowsMut<'_>, &mut [f32]), step: &Step, means: &[f32]) {
        self.check(rows.len());
        assert_eq!(state.len(), rows.len() / self.dim.max(1) * step.rule.state_floats(self.dim), "state");
        assert!(means.is_empty() || means.len() == self.rows.len(), "{} means", means.len());
        assert!(!means.is_empty() || !step.rule.is_rowwise() || self.rows.is_empty(), "means are missing");
        let frozen = matches!(step.rule, super::Rule::Ftrl { .. }) && step.learning_rate == 0.0;
        if frozen || self.rows.is_empty() {
            return;
        }
        let state_floats = step.rule.state_floats(self.dim);
        let step = &Rated::new(step);
        let state = (state.as_mut_ptr(), state_floats);
        match rows {
            RowsMut::F32(rows) => lanes::dispatch(
                isa,
                Move::<f32> { rows: rows.as_mut_ptr(), merged: self, step, state, means },
            ),
            RowsMut::F16(rows) => {
                let rows = rows.as_mut_ptr().cast();
                lanes::dispatch(isa, Move::<F16> { rows, merged: self, step, state, means })
            }
            RowsMut::Bf16(rows) => {
                let rows = rows.as_mut_ptr().cast();
                lanes::dispatch(isa, Move::<Bf16> { rows, merged: self, step, state, means })
            }
        }
    }

    fn check(&self, elements: usize) {
        let needed = self.rows.last().map_or(0, |row| (*row as usize + 1) * self.dim);
        assert!(needed <= elements, "row {:?} is beyond {elements} elements", self.rows.last());
    }
}

struct Merging<'a, O> {
    sources: &'a [Source],
    merge: &'a Merge<O>,
    out: &'a mut [f32],
    dim: usize,
}

impl<O: Occurrence> Kernel for Merging<'_, O> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let (merge, dim) = (self.merge, self.dim);
        let vectors = Vectors::new(merge, self.sources);
        let starts = merge.starts();
        for (segment, out) in starts.windows(2).zip(self.out.chunks_exact_mut(dim)) {
            // SAFETY: the sources have all samples of their blocks, and `out` is a row.
            unsafe { vectors.add_up::<V>(segment[0] as usize..segment[1] as usize, out.as_mut_ptr(), dim) }
        }
    }
}

struct Squares<'a> {
    merged: &'a Merged,
    out: &'a mut Vec<f32>,
}

impl Kernel for Squares<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        for row in self.merged.values.chunks_exact(self.merged.dim.max(1)) {
            for block in row.chunks(SQUARES_BLOCK) {
                // SAFETY: the block has its length.
                self.out.push(unsafe { V::block_of_squares(block.as_ptr(), block.len()) });
            }
        }
    }
}

struct Limit<'a, E> {
    rows: *const E,
    merged: &'a mut Merged,
    step: &'a Rated,
    squares: &'a [f32],
}

impl<E: Stored> Kernel for Limit<'_, E> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let Limit { rows, merged, step, squares } = self;
        let dim = merged.dim;
        for (place, (row, g)) in
            merged.rows.iter().zip(merged.values.chunks_exact_mut(dim.max(1))).enumerate()
        {
            let w = rows.wrapping_add(*row as usize * dim);
            let squares = Some(squares.get(place).copied().unwrap_or(0.0));
            // SAFETY: every touched row is inside `rows`, and `g` is a row.
            unsafe { V::apart(Prepare { step, w, g: g.as_mut_ptr(), dim, squares }) }
        }
    }
}

struct Move<'a, E> {
    rows: *mut E,
    merged: &'a Merged,
    step: &'a Rated,
    state: (*mut f32, usize),
    means: &'a [f32],
}

impl<E: Stored> Kernel for Move<'_, E> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let Move { rows, merged, step, state: (state, state_floats), means } = self;
        let dim = merged.dim;
        for (place, (row, g)) in merged.rows.iter().zip(merged.values.chunks_exact(dim.max(1))).enumerate() {
            let row = *row as usize;
            let row = Row {
                w: rows.wrapping_add(row * dim),
                g: g.as_ptr(),
                state: state.wrapping_add(row * state_floats),
                key: if E::ROUNDS { step.key(row) } else { 0 },
                mean_of_squares: means.get(place).copied(),
            };
            // SAFETY: every touched row is inside `rows` and `state`, and `g` is a row.
            unsafe { V::apart(Apply { step, row, dim }) }
        }
    }
}
