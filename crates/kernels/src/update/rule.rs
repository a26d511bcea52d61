//! The formulas of [`Rule`], one row at a time, at any level.

use super::{Rule, Step, Stored};
use crate::lanes::Lanes;

/// Something done to each column of a row on its own.
pub(super) trait Columns {
    /// # Safety
    /// As [`Lanes`]; the row must have the columns from `column` on that a vector takes.
    unsafe fn at<L: Lanes>(&self, column: usize);
}

/// Does it to all columns: whole vectors first, the rest one by one.
///
/// # Safety
/// As [`Lanes`]; the row must have `dim` columns.
#[inline(always)]
pub(super) unsafe fn each_column<V: Lanes>(dim: usize, columns: &impl Columns) {
    let mut column = 0;
    // SAFETY: no step reaches beyond `dim`.
    unsafe {
        while column + V::COUNT <= dim {
            columns.at::<V>(column);
            column += V::COUNT;
        }
        while column < dim {
            columns.at::<f32>(column);
            column += 1;
        }
    }
}

/// A [`Step`] with everything in it that needs computing only once.
pub(super) struct Rated {
    rule: Rule,
    learning_rate: f32,
    /// `lr / c1` of Adam.
    rate: f32,
    /// `c2` of Adam.
    correction: f32,
    l2: f32,
    norm_max: f32,
    pub(super) seed: u64,
    pub(super) table: u64,
    pub(super) first_row: u64,
    pub(super) step: u64,
}

impl Rated {
    pub(super) fn new(step: &Step) -> Rated {
        let (rate, correction) = match step.rule {
            Rule::Adam { beta1, beta2, .. } | Rule::RowwiseAdam { beta1, beta2, .. } => {
                let left = |beta: f32| (1.0 - power(f64::from(beta), step.step + 1)) as f32;
                (step.learning_rate / left(beta1), left(beta2))
            }
            _ => (step.learning_rate, 1.0),
        };
        Rated {
            rule: step.rule,
            learning_rate: step.learning_rate,
            rate,
            correction,
            l2: step.l2,
            norm_max: step.norm_max,
            seed: step.seed,
            table: step.table,
            first_row: step.first_row,
            step: step.step,
        }
    }

    /// Applies the rule to one row, whose merged gradient is in `g`.
    ///
    /// # Safety
    /// As [`Lanes`]; `w` and `g` must have `dim` elements and `state` what the rule asks.
    #[inline(always)]
    pub(super) unsafe fn apply<V: Lanes, E: Stored>(
        &self,
        w: *mut E,
        state: *mut f32,
        g: *mut f32,
        dim: usize,
        key: u64,
    ) {
        // SAFETY: handed on to the caller.
        unsafe {
            if self.norm_max > 0.0 {
                let norm = V::sum_of_squares(g, dim).sqrt();
                if norm > self.norm_max {
                    each_column::<V>(dim, &Scale { g, factor: self.norm_max / norm });
                }
            }
            if self.l2 != 0.0 {
                each_column::<V>(dim, &Decay { g, w, l2: self.l2 });
            }
            let mean_of_squares = || V::sum_of_squares(g, dim) / dim as f32;
            match self.rule {
                Rule::Sgd => {
                    each_column::<V>(dim, &Minus { w, key, direction: g, factor: self.learning_rate })
                }
                Rule::RowwiseAdagrad { epsilon } => {
                    let sum = state.read() + mean_of_squares();
                    state.write(sum);
                    let factor = self.learning_rate / (sum.sqrt() + epsilon);
                    each_column::<V>(dim, &Minus { w, key, direction: g, factor });
                }
                Rule::Adagrad { epsilon } => {
                    each_column::<V>(dim, &Adagrad { w, key, g, s: state, lr: self.learning_rate, epsilon });
                }
                Rule::Adam { beta1, beta2, epsilon } => {
                    let v = state.add(dim);
                    let moments = Moments { g, m: state, v, beta1, beta2 };
                    let (rate, correction) = (self.rate, self.correction);
                    each_column::<V>(dim, &Adam { w, key, moments, rate, correction, epsilon });
                }
                Rule::RowwiseAdam { beta1, beta2, epsilon } => {
                    let v = beta2 * state.add(dim).read() + (1.0 - beta2) * mean_of_squares();
                    state.add(dim).write(v);
                    let factor = self.rate / ((v / self.correction).sqrt() + epsilon);
                    each_column::<V>(dim, &RowwiseAdam { w, key, g, m: state, beta1, factor });
                }
                Rule::Ftrl { beta, l1, l2 } => {
                    let n = state.add(dim);
                    each_column::<V>(
                        dim,
                        &Ftrl { w, key, g, z: state, n, lr: self.learning_rate, beta, l1, l2 },
                    );
                }
            }
        }
    }
}

/// `base` to a power, by squaring: additions and multiplications only, so the same on every machine.
fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}

struct Scale {
    g: *mut f32,
    factor: f32,
}

impl Columns for Scale {
    #[inline(always)]
    unsafe fn at<L: Lanes>(&self, column: usize) {
        // SAFETY: the row has the columns; see `each_column`.
        unsafe {
            let g = self.g.add(column);
            L::load(g).mul(L::splat(self.factor)).store(g);
        }
    }
}

struct Decay<E> {
    g: *mut f32,
    w: *const E,
    l2: f32,
}

impl<E: Stored> Columns for Decay<E> {
    #[inline(always)]
    unsafe fn at<L: Lanes>(&self, column: usize) {
        // SAFETY: the row has the columns; see `each_column`.
        unsafe {
            let g = self.g.add(column);
            let pull = L::splat(self.l2).mul(E::load::<L>(self.w.add(column)));
            L::load(g).add(pull).store(g);
        }
    }
}

/// `w -= factor * direction`.
struct Minus<E> {
    w: *mut E,
    key: u64,
    direction: *const f32,
    factor: f32,
}

impl<E: Stored> Columns for Minus<E> {
    #[inline(always)]
    unsafe fn at<L: Lanes>(&self, column: usize) {
        // SAFETY: the row has the columns; see `each_column`.
        unsafe {
            let w = self.w.add(column);
            let change = L::splat(self.factor).mul(L::load(self.direction.add(column)));
            E::store(E::load::<L>(w).sub(change), w, self.key, column);
        }
    }
}

struct Adagrad<E> {
    w: *mut E,
    key: u64,
    g: *const f32,
    s: *mut f32,
    lr: f32,
    epsilon: f32,
}

impl<E: Stored> Columns for Adagrad<E> {
    #[inline(always)]
    unsafe fn at<L: Lanes>(&self, column: usize) {
        // SAFETY: the row has the columns; see `each_column`.
        unsafe {
            let (w, s) = (self.w.add(column), self.s.add(column));
            let g = L::load(self.g.add(column));
            let sum = L::load(s).add(g.mul(g));
            sum.store(s);
            let change = L::splat(self.lr).mul(g).div(sum.sqrt().add(L::splat(self.epsilon)));
            E::store(E::load::<L>(w).sub(change), w, self.key, column);
        }
    }
}

struct Moments {
    g: *const f32,
    m: *mut f32,
    v: *mut f32,
    beta1: f32,
    beta2: f32,
}

struct Adam<E> {
    w: *mut E,
    key: u64,
    moments: Moments,
    rate: f32,
    correction: f32,
    epsilon: f32,
}

impl<E: Stored> Columns for Adam<E> {
    #[inline(always)]
    unsafe fn at<L: Lanes>(&self, column: usize) {
        let Moments { g, m, v, beta1, beta2 } = self.moments;
        // SAFETY: the row has the columns; see `each_column`.
        unsafe {
            let (w, m, v) = (self.w.add(column), m.add(column), v.add(column));
            let g = L::load(g.add(column));
            let mean = L::splat(beta1).mul(L::load(m)).add(L::splat(1.0 - beta1).mul(g));
            let square = L::splat(beta2).mul(L::load(v)).add(L::splat(1.0 - beta2).mul(g).mul(g));
            mean.store(m);
            square.store(v);
            let root = square.div(L::splat(self.correction)).sqrt().add(L::splat(self.epsilon));
            let change = L::splat(self.rate).mul(mean).div(root);
            E::store(E::load::<L>(w).sub(change), w, self.key, column);
        }
    }
}

struct RowwiseAdam<E> {
    w: *mut E,
    key: u64,
    g: *const f32,
    m: *mut f32,
    beta1: f32,
    factor: f32,
}

impl<E: Stored> Columns for RowwiseAdam<E> {
    #[inline(always)]
    unsafe fn at<L: Lanes>(&self, column: usize) {
        // SAFETY: the row has the columns; see `each_column`.
        unsafe {
            let (w, m) = (self.w.add(column), self.m.add(column));
            let g = L::load(self.g.add(column));
            let mean = L::splat(self.beta1).mul(L::load(m)).add(L::splat(1.0 - self.beta1).mul(g));
            mean.store(m);
            let change = L::splat(self.factor).mul(mean);
            E::store(E::load::<L>(w).sub(change), w, self.key, column);
        }
    }
}

struct Ftrl<E> {
    w: *mut E,
    key: u64,
    g: *const f32,
    z: *mut f32,
    n: *mut f32,
    lr: f32,
    beta: f32,
    l1: f32,
    l2: f32,
}

impl<E: Stored> Columns for Ftrl<E> {
    #[inline(always)]
    unsafe fn at<L: Lanes>(&self, column: usize) {
        // SAFETY: the row has the columns; see `each_column`.
        unsafe {
            let (w, z, n) = (self.w.add(column), self.z.add(column), self.n.add(column));
            let (g, lr, l1) = (L::load(self.g.add(column)), L::splat(self.lr), L::splat(self.l1));
            let before = L::load(n);
            let after = before.add(g.mul(g));
            let root = after.sqrt();
            let sigma = root.sub(before.sqrt()).div(lr);
            let pull = L::load(z).add(g.sub(sigma.mul(E::load::<L>(w))));
            pull.store(z);
            after.store(n);
            let slope = L::splat(self.beta).add(root).div(lr).add(L::splat(self.l2));
            // `sign(z)*l1 - z` is the negated numerator, exactly.
            let moved = l1.copysign(pull).sub(pull).div(slope);
            E::store(pull.zero_where_within(l1, moved), w, self.key, column);
        }
    }
}
