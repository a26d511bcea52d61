//! The formulas of [`Rule`], one row at a time, at any level.

use super::{Rule, Step, Stored};
use crate::{
    lanes::{Columns, Kernel, Lanes, each_column},
    random,
};

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
    /// Keys the rounding of all rows.
    key: u64,
    first_row: u64,
    first_column: usize,
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
            key: random::step_key(step.seed, step.table, step.step),
            first_row: step.first_row,
            first_column: step.first_column,
        }
    }

    /// The key of a row's rounding; rows are counted from the first of the table's part.
    #[inline(always)]
    pub(super) fn key(&self, row: usize) -> u64 {
        random::from_element(random::row_key(self.key, self.first_row + row as u64), self.first_column)
    }

    /// Whether rows move along their gradient by one factor each: the most common rules, and so little work that a
    /// call would show.
    pub(super) fn is_short(&self) -> bool {
        matches!(self.rule, Rule::Sgd | Rule::RowwiseAdagrad { .. })
    }

    /// Whether a gradient must be changed before the rule sees it.
    pub(super) fn prepares(&self) -> bool {
        self.norm_max > 0.0 || self.l2 != 0.0
    }
}

/// A merged gradient whose norm is limited, and to which the pull of `l2` is added.
///
/// As a [`Kernel`] it asks for `dim` elements at `w` and `g`.
pub(super) struct Prepare<'a, E> {
    pub(super) step: &'a Rated,
    pub(super) w: *const E,
    pub(super) g: *mut f32,
    pub(super) dim: usize,
    /// The sum of the squares of the whole row's gradient, where only a part of the row is here.
    pub(super) squares: Option<f32>,
}

impl<E: Stored> Kernel for Prepare<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let Prepare { step: &Rated { norm_max, l2, .. }, w, g, dim, squares } = self;
        // SAFETY: handed on to the caller.
        unsafe {
            if norm_max > 0.0 {
                let norm = squares.unwrap_or_else(|| V::sum_of_squares(g, dim)).sqrt();
                if norm > norm_max {
                    each_column::<V>(dim, &Scale { g, factor: norm_max / norm });
                }
            }
            if l2 != 0.0 {
                each_column::<V>(dim, &Decay { g, w, l2 });
            }
        }
    }
}

/// The rule, applied to one row, whose merged and prepared gradient is `g`.
///
/// Everything stays in registers between the sum over the row and its move. Numbers written to memory one by one and
/// read back as a vector, for one root of many rows, must wait until their stores have left the processor, behind
/// earlier stores to rows; rows one after the other overlap by themselves.
///
/// As a [`Kernel`] it asks that the row has `dim` weights and gradients, and the state of the rule.
pub(super) struct Apply<'a, E> {
    pub(super) step: &'a Rated,
    pub(super) row: Row<E>,
    pub(super) dim: usize,
}

/// A row that is about to move.
#[derive(Clone, Copy)]
pub(super) struct Row<E> {
    pub(super) w: *mut E,
    pub(super) g: *const f32,
    pub(super) state: *mut f32,
    /// Of its rounding.
    pub(super) key: u64,
    /// The mean of the squares of the whole row's gradient, where only a part of the row is here.
    pub(super) mean_of_squares: Option<f32>,
}

impl<E: Stored> Kernel for Apply<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let Apply { step, row: Row { w, g, state, key, .. }, dim } = self;
        // SAFETY: handed on to the caller.
        unsafe {
            match step.rule {
                Rule::Sgd | Rule::RowwiseAdagrad { .. } => self.move_along::<V>(),
                Rule::Adagrad { epsilon } => {
                    let adagrad = Adagrad { w, key, g, s: state, lr: step.learning_rate, epsilon };
                    each_column::<V>(dim, &adagrad);
                }
                Rule::Adam { beta1, beta2, epsilon } => {
                    let (rate, correction) = (step.rate, step.correction);
                    let moments = Moments { g, m: state, v: state.add(dim), beta1, beta2 };
                    each_column::<V>(dim, &Adam { w, key, moments, rate, correction, epsilon });
                }
                Rule::RowwiseAdam { beta1, beta2, epsilon } => {
                    let place = state.add(dim);
                    let v = (beta2 * place.read() + (1.0 - beta2) * self.mean_of_squares::<V>()).flush();
                    place.write(v);
                    let factor = step.rate / ((v / step.correction).sqrt() + epsilon);
                    each_column::<V>(dim, &RowwiseAdam { w, key, g, m: state, beta1, factor });
                }
                Rule::Ftrl { beta, l1, l2 } => {
                    let (z, n, lr) = (state, state.add(dim), step.learning_rate);
                    each_column::<V>(dim, &Ftrl { w, key, g, z, n, lr, beta, l1, l2 });
                }
            }
        }
    }
}

impl<E: Stored> Apply<'_, E> {
    /// The rules of [`Rated::is_short`].
    ///
    /// # Safety
    /// As the kernel.
    #[inline(always)]
    pub(super) unsafe fn move_along<V: Lanes>(&self) {
        let Row { w, g, state, key, .. } = self.row;
        let mut factor = self.step.learning_rate;
        // SAFETY: handed on to the caller.
        unsafe {
            if let Rule::RowwiseAdagrad { epsilon } = self.step.rule {
                let sum = (state.read() + self.mean_of_squares::<V>()).flush();
                state.write(sum);
                factor /= sum.sqrt() + epsilon;
            }
            each_column::<V>(self.dim, &Minus { w, key, direction: g, factor });
        }
    }

    /// # Safety
    /// As the kernel.
    #[inline(always)]
    unsafe fn mean_of_squares<V: Lanes>(&self) -> f32 {
        match self.row.mean_of_squares {
            // SAFETY: handed on to the caller.
            None => unsafe { V::sum_of_squares(self.row.g, self.dim) / self.dim as f32 },
            Some(mean) => mean,
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
            let sum = L::load(s).add(g.mul(g)).flush();
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
            let (mean, square) = (mean.flush(), square.flush());
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
            let mean = mean.flush();
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
            let (zero, l2) = (L::splat(0.0), L::splat(self.l2));
            let (weight, before, held) = (E::load::<L>(w), L::load(n), L::load(z));
            let square = g.mul(g).flush();
            let after = before.add(square);
            let slope = L::splat(self.beta).add(after.sqrt()).div(lr);
            let first = zero.sub(weight.where_within(zero, zero, l1.copysign(weight)).add(l2.mul(weight)));
            let left = before.where_within(zero, first, held);
            let pull = left.add(g.sub(slope.mul(weight)));
            // `sign(u)*l1 - u` is the negated numerator, exactly.
            let moved = l1.copysign(pull).sub(pull).div(slope.add(l2));
            let moved = pull.where_within(l1, zero, moved);
            E::store(square.where_within(zero, weight, moved), w, self.key, column);
            // Of the weight as it is stored: what rounding took from it stays in `z`.
            let left = pull.add(slope.mul(E::load::<L>(w))).flush();
            square.where_within(zero, held, left).store(z);
            after.store(n);
        }
    }
}
