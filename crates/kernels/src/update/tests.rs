use proptest::prelude::*;

use super::*;
use crate::{
    half::{bf16_nearest, bf16_stochastic, f16_nearest, f16_stochastic, f32_from_bf16, f32_from_f16},
    merge::{Plain, Weighted, Weighting},
    pool::Bags,
};

const FIRST_ROW: u32 = 50;
const ROW_COUNT: usize = 7;

fn rules() -> impl Strategy<Value = Rule> {
    prop::sample::select(vec![
        Rule::Sgd,
        Rule::Adagrad { epsilon: 1e-6 },
        Rule::RowwiseAdagrad { epsilon: 1e-6 },
        Rule::Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-8 },
        Rule::RowwiseAdam { beta1: 0.9, beta2: 0.99, epsilon: 1e-8 },
        Rule::Ftrl { beta: 1.0, l1: 0.05, l2: 0.1 },
    ])
}

#[derive(Debug, Clone)]
struct Problem {
    dim: usize,
    /// Bags of each block.
    blocks: Vec<Vec<Vec<u32>>>,
    step: Step,
    format: usize,
}

fn problems() -> impl Strategy<Value = Problem> {
    let row = FIRST_ROW..FIRST_ROW + ROW_COUNT as u32;
    let bags = prop::collection::vec(prop::collection::vec(row, 0..5), 0..6);
    let step =
        (rules(), 0_u64..5, prop::sample::select(vec![0.0, 0.01]), prop::sample::select(vec![0.0, 0.7, 1e9]));
    // Any length, and often one of those that have a loop of their own.
    let dim = prop_oneof![1_usize..=150, prop::sample::select(vec![16, 32, 64, 128])];
    (dim, prop::collection::vec(bags, 0..4), step, 0_usize..3).prop_map(
        |(dim, blocks, (rule, step, l2, norm_max), format)| {
            let l2 = if matches!(rule, Rule::Ftrl { .. }) { 0.0 } else { l2 };
            let step = Step {
                rule,
                learning_rate: 0.1,
                step,
                l2,
                norm_max,
                seed: 11,
                table: 12,
                first_row: u64::from(FIRST_ROW),
                first_column: 0,
            };
            Problem { dim, blocks, step, format }
        },
    )
}

fn noise(key: u64, element: usize) -> f32 {
    (crate::random::element_bits(key, element) >> 8) as f32 / (1 << 23) as f32 - 1.0
}

/// Rows as bits, in any format, and their state.
#[derive(Debug, Clone, PartialEq)]
struct Held {
    f32: Vec<f32>,
    half: Vec<u16>,
    state: Vec<f32>,
}

impl Held {
    fn rows(&mut self, format: usize) -> RowsMut<'_> {
        match format {
            0 => RowsMut::F32(&mut self.f32),
            1 => RowsMut::F16(&mut self.half),
            _ => RowsMut::Bf16(&mut self.half),
        }
    }

    /// Calls `copy(whole, part)` for the places of every float of a part's columns and of their state.
    fn places(columns: Range<usize>, problem: &Problem, mut copy: impl FnMut(bool, usize, usize)) {
        let (dim, width) = (problem.dim, columns.len());
        let (whole, part) = (problem.step.rule.state_floats(dim), problem.step.rule.state_floats(width));
        for row in 0..ROW_COUNT {
            (0..width).for_each(|at| copy(false, row * dim + columns.start + at, row * width + at));
            // Each element's state by kind; what is left is one number for the row.
            for kind in 0..part / width {
                (0..width).for_each(|at| {
                    copy(true, row * whole + kind * dim + columns.start + at, row * part + kind * width + at)
                });
            }
            for rest in 0..part % width {
                copy(true, row * whole + whole / dim * dim + rest, row * part + part / width * width + rest);
            }
        }
    }

    fn columns(&self, columns: Range<usize>, problem: &Problem) -> Held {
        let (rows, state) = (ROW_COUNT * columns.len(), problem.step.rule.state_floats(columns.len()));
        let mut part =
            Held { f32: vec![0.0; rows], half: vec![0; rows], state: vec![0.0; ROW_COUNT * state] };
        Held::places(columns, problem, |is_state, whole, at| {
            if is_state {
                part.state[at] = self.state[whole];
            } else {
                (part.f32[at], part.half[at]) = (self.f32[whole], self.half[whole]);
            }
        });
        part
    }

    fn put(&mut self, columns: Range<usize>, part: &Held, problem: &Problem) {
        Held::places(columns, problem, |is_state, whole, at| {
            if is_state {
                self.state[whole] = part.state[at];
            } else {
                (self.f32[whole], self.half[whole]) = (part.f32[at], part.half[at]);
            }
        });
    }
}

impl Problem {
    fn held(&self) -> Held {
        let exact: Vec<f32> = (0..ROW_COUNT * self.dim).map(|i| noise(1, i)).collect();
        let half =
            exact.iter().map(|v| if self.format == 1 { f16_nearest(*v) } else { bf16_nearest(*v) }).collect();
        let floats = self.step.rule.state_floats(self.dim);
        Held { f32: exact, half, state: (0..ROW_COUNT * floats).map(|i| noise(2, i).abs()).collect() }
    }

    /// The gradient of one vector's element.
    fn gradient(&self, block: usize, sample: usize, element: usize) -> f32 {
        noise(100 + block as u64, sample * self.dim + element) * [1e-2, 1.0][sample % 2]
    }

    fn run<O: Occurrence>(&self, isa: Isa, weighting: Weighting) -> Held {
        let mut merge = Merge::<O>::default();
        merge.begin(FIRST_ROW, ROW_COUNT, 6, self.blocks.len());
        let mut values = Vec::new();
        for (block, bags) in self.blocks.iter().enumerate() {
            let rows = bags.concat();
            let ends = bags.iter().scan(0, |end, bag| {
                *end += bag.len() as u32;
                Some(*end)
            });
            let offsets: Vec<u32> = std::iter::once(0).chain(ends).collect();
            let weights: Vec<f32> = (0..rows.len()).map(weight).collect();
            let bags_of_block = Bags { offsets: &offsets, rows: &rows, weights: &weights };
            merge.push(isa, bags_of_block, weighting).expect("rows of the table");
            let stride = self.dim + block;
            let mut matrix = vec![f32::NAN; bags.len() * stride];
            for sample in 0..bags.len() {
                for element in 0..self.dim {
                    matrix[sample * stride + block + element] = self.gradient(block, sample, element);
                }
            }
            values.push(matrix);
        }
        merge.sort();
        let gradients: Vec<Gradient<'_>> = values
            .iter()
            .enumerate()
            .map(|(block, values)| Gradient {
                values,
                place: Place { stride: self.dim + block, offset: block },
                samples: self.blocks[block].len(),
            })
            .collect();
        let mut held = self.held();
        let rows = match self.format {
            0 => RowsMut::F32(&mut held.f32),
            1 => RowsMut::F16(&mut held.half),
            _ => RowsMut::Bf16(&mut held.half),
        };
        let part = (rows, held.state.as_mut_slice(), self.dim);
        update(isa, part, &merge, &gradients, &self.step, &mut Scratch::default());
        held
    }

    /// The same with the columns in two places, cut at `cut`, that tell each other their sums of squares.
    fn run_by_columns(&self, isa: Isa, weighting: Weighting, cut: usize) -> Held {
        let whole = self.held();
        let mut merge = Merge::<Weighted>::default();
        merge.begin(FIRST_ROW, ROW_COUNT, 6, self.blocks.len());
        let mut values = Vec::new();
        for (block, bags) in self.blocks.iter().enumerate() {
            let rows = bags.concat();
            let ends = bags.iter().scan(0, |end, bag| {
                *end += bag.len() as u32;
                Some(*end)
            });
            let offsets: Vec<u32> = std::iter::once(0).chain(ends).collect();
            let weights: Vec<f32> = (0..rows.len()).map(weight).collect();
            merge.push(isa, Bags { offsets: &offsets, rows: &rows, weights: &weights }, weighting).unwrap();
            let each = |sample| (0..self.dim).map(move |element| self.gradient(block, sample, element));
            values.push((0..bags.len()).flat_map(each).collect::<Vec<f32>>());
        }
        merge.sort();
        let columns = [0..cut, cut..self.dim];
        let mut parts = columns.clone().map(|columns| {
            let mut merged = Merged::default();
            let gradients: Vec<Gradient<'_>> = values
                .iter()
                .zip(&self.blocks)
                .map(|(values, bags)| {
                    let place = Place { stride: self.dim, offset: columns.start };
                    Gradient { values, place, samples: bags.len() }
                })
                .collect();
            merged.merge(isa, columns.len(), &merge, &gradients);
            (merged, whole.columns(columns.clone(), self), columns)
        });
        let sums = |parts: &[(Merged, Held, Range<usize>); 2]| -> Vec<f32> {
            let [first, second] = [0, 1].map(|part| {
                let mut sums = Vec::new();
                parts[part].0.squares(isa, &mut sums);
                sums
            });
            let (a, b) = (cut.div_ceil(32), (self.dim - cut).div_ceil(32));
            let rows = parts[0].0.rows().len();
            (0..rows)
                .map(|row| {
                    let blocks = first[row * a..][..a].iter().chain(&second[row * b..][..b]);
                    blocks.fold(0.0, |sum, block| sum + block)
                })
                .collect()
        };
        let squares = sums(&parts);
        for (merged, held, columns) in &mut parts {
            let step = Step { first_column: columns.start, ..self.step };
            merged.limit(isa, &held.rows(self.format), &step, &squares);
        }
        let means: Vec<f32> = sums(&parts).iter().map(|sum| sum / self.dim as f32).collect();
        let mut held = whole;
        for (merged, part, columns) in &mut parts {
            let step = Step { first_column: columns.start, ..self.step };
            let mut state = std::mem::take(&mut part.state);
            merged.apply(isa, (part.rows(self.format), &mut state), &step, &means);
            part.state = state;
            held.put(columns.clone(), part, self);
        }
        held
    }

    /// The definition: row by row, element by element, as the formulas read.
    fn naive(&self, weighting: Weighting) -> Held {
        let mut held = self.held();
        let dim = self.dim;
        for row in 0..ROW_COUNT {
            let mut merged: Option<Vec<f32>> = None;
            for (block, bags) in self.blocks.iter().enumerate() {
                let mut position = 0;
                for (sample, bag) in bags.iter().enumerate() {
                    for &named in bag {
                        let weight = match weighting {
                            Weighting::One => 1.0,
                            Weighting::OneOverCount => 1.0 / bag.len() as f32,
                            Weighting::Given => weight(position),
                        };
                        position += 1;
                        if (named - FIRST_ROW) as usize == row {
                            let part = |element| weight * self.gradient(block, sample, element);
                            merged = Some(match merged {
                                None => (0..dim).map(part).collect(),
                                Some(sum) => {
                                    sum.iter().enumerate().map(|(element, g)| g + part(element)).collect()
                                }
                            });
                        }
                    }
                }
            }
            if let Some(gradient) = merged {
                self.naive_row(&mut held, row, gradient);
            }
        }
        held
    }

    fn naive_row(&self, held: &mut Held, row: usize, mut g: Vec<f32>) {
        let (dim, step, range) = (self.dim, &self.step, row * self.dim..(row + 1) * self.dim);
        let mut w: Vec<f32> = match self.format {
            0 => held.f32[range.clone()].to_vec(),
            1 => held.half[range.clone()].iter().map(|h| f32_from_f16(*h)).collect(),
            _ => held.half[range.clone()].iter().map(|h| f32_from_bf16(*h)).collect(),
        };
        let norm = sum_of_squares(&g).sqrt();
        if step.norm_max > 0.0 && norm > step.norm_max {
            g.iter_mut().for_each(|g| *g *= step.norm_max / norm);
        }
        if step.l2 != 0.0 {
            g.iter_mut().zip(&w).for_each(|(g, w)| *g += step.l2 * w);
        }
        let floats = step.rule.state_floats(dim);
        let key = crate::random::step_key(step.seed, step.table, step.step);
        let key = crate::random::row_key(key, step.first_row + row as u64);
        let stored = |element: usize, w: f32| {
            let random = crate::random::element_bits(key, element);
            match self.format {
                0 => w,
                1 => f32_from_f16(f16_stochastic(w, random)),
                _ => f32_from_bf16(bf16_stochastic(w, random)),
            }
        };
        naive_rule(step, &mut w, &mut held.state[row * floats..][..floats], (&g, &stored));
        for (element, w) in w.into_iter().enumerate() {
            let (at, random) = (range.start + element, crate::random::element_bits(key, element));
            match self.format {
                0 => held.f32[at] = w,
                1 => held.half[at] = f16_stochastic(w, random),
                _ => held.half[at] = bf16_stochastic(w, random),
            }
        }
    }
}

fn weight(position: usize) -> f32 {
    (position as f32 * 0.7).cos() * 2.0
}

/// In blocks of 32, each over sixteen partial sums.
fn sum_of_squares(values: &[f32]) -> f32 {
    let block = |values: &[f32]| {
        let mut partial = [0.0f32; 16];
        for (at, value) in values.iter().enumerate() {
            partial[at % 16] += value * value;
        }
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                partial[lane] += partial[lane + half];
            }
        }
        partial[0]
    };
    values.chunks(32).map(block).fold(0.0, |sum, block| sum + block)
}

/// What is below the normal numbers is nothing.
fn flush(state: f32) -> f32 {
    if state.is_subnormal() { 0.0 } else { state }
}

/// `stored` is an element as it will be read back.
fn naive_rule(
    step: &Step,
    w: &mut [f32],
    state: &mut [f32],
    (g, stored): (&[f32], &dyn Fn(usize, f32) -> f32),
) {
    let (dim, lr) = (w.len(), step.learning_rate);
    let mean = sum_of_squares(g) / dim as f32;
    let corrected = |beta: f32| (1.0 - f64::from(beta).powi(step.step as i32 + 1)) as f32;
    match step.rule {
        Rule::Sgd => (0..dim).for_each(|i| w[i] -= lr * g[i]),
        Rule::Adagrad { epsilon } => {
            for i in 0..dim {
                state[i] = flush(state[i] + g[i] * g[i]);
                w[i] -= lr * g[i] / (state[i].sqrt() + epsilon);
            }
        }
        Rule::RowwiseAdagrad { epsilon } => {
            state[0] = flush(state[0] + mean);
            let factor = lr / (state[0].sqrt() + epsilon);
            (0..dim).for_each(|i| w[i] -= factor * g[i]);
        }
        Rule::Adam { beta1, beta2, epsilon } => {
            for i in 0..dim {
                state[i] = flush(beta1 * state[i] + (1.0 - beta1) * g[i]);
                state[dim + i] = flush(beta2 * state[dim + i] + (1.0 - beta2) * g[i] * g[i]);
                let root = (state[dim + i] / corrected(beta2)).sqrt() + epsilon;
                w[i] -= lr / corrected(beta1) * state[i] / root;
            }
        }
        Rule::RowwiseAdam { beta1, beta2, epsilon } => {
            state[dim] = flush(beta2 * state[dim] + (1.0 - beta2) * mean);
            let factor = lr / corrected(beta1) / ((state[dim] / corrected(beta2)).sqrt() + epsilon);
            for i in 0..dim {
                state[i] = flush(beta1 * state[i] + (1.0 - beta1) * g[i]);
                w[i] -= factor * state[i];
            }
        }
        Rule::Ftrl { beta, l1, l2 } => {
            for i in 0..dim {
                if flush(g[i] * g[i]) == 0.0 {
                    continue;
                }
                let sign = if w[i] == 0.0 { 0.0 } else { w[i].signum() };
                let left = if state[dim + i] == 0.0 { -(sign * l1 + l2 * w[i]) } else { state[i] };
                state[dim + i] += g[i] * g[i];
                let slope = (beta + state[dim + i].sqrt()) / lr;
                let u = left + (g[i] - slope * w[i]);
                w[i] = if u.abs() <= l1 { 0.0 } else { -(u - u.signum() * l1) / (slope + l2) };
                state[i] = flush(u + slope * stored(i, w[i]));
            }
        }
    }
}

proptest! {
    #[test]
    fn every_level_matches_the_definition(problem in problems()) {
        for (weighting, plain) in [(Weighting::One, true), (Weighting::OneOverCount, false), (Weighting::Given, false)] {
            let want = problem.naive(weighting);
            for isa in Isa::all() {
                let found = problem.run::<Weighted>(isa, weighting);
                prop_assert_eq!(&found, &want, "{:?} {:?}", isa, weighting);
                if problem.dim > 33 {
                    // One block and the rest; the rest must not be one float, whose state could not be told.
                    let found = problem.run_by_columns(isa, weighting, 32);
                    prop_assert_eq!(&found, &want, "{:?} {:?} by columns", isa, weighting);
                }
                if plain {
                    prop_assert_eq!(&problem.run::<Plain>(isa, weighting), &want, "{:?} without weights", isa);
                }
            }
        }
    }
}

#[test]
fn ftrl_without_a_rate_changes_nothing() {
    let step = Step {
        rule: Rule::Ftrl { beta: 1.0, l1: 0.0, l2: 0.0 },
        learning_rate: 0.0,
        step: 3,
        l2: 0.0,
        norm_max: 0.0,
        seed: 0,
        table: 0,
        first_row: 0,
        first_column: 0,
    };
    let problem = Problem { dim: 5, blocks: vec![vec![vec![FIRST_ROW]]], step, format: 0 };
    assert_eq!(problem.run::<Plain>(Isa::detect(), Weighting::One), problem.held());
}

#[test]
#[should_panic(expected = "lacks gradients")]
fn every_sample_needs_a_gradient() {
    let mut merge = Merge::<Plain>::default();
    merge.begin(0, 1, 2, 1);
    merge
        .push(Isa::detect(), Bags { offsets: &[0, 1, 2], rows: &[0, 0], weights: &[] }, Weighting::One)
        .expect("row 0");
    merge.sort();
    let step = Step {
        rule: Rule::Sgd,
        learning_rate: 0.0,
        step: 3,
        l2: 0.0,
        norm_max: 0.0,
        seed: 0,
        table: 0,
        first_row: 0,
        first_column: 0,
    };
    let gradient = Gradient { values: &[0.0; 4], place: Place { stride: 4, offset: 0 }, samples: 1 };
    let part = (RowsMut::F32(&mut [0.0; 4]), &mut [][..], 4);
    update(Isa::detect(), part, &merge, &[gradient], &step, &mut Scratch::default());
}
