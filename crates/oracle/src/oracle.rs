//! What training computes: lookup, network, loss, gradients, updates, written the shortest way.
//!
//! There are no threads, ranks, vector instructions or buffers to reuse here. A network is written once, as
//! a list of operations (`network`); walking the list backwards gives the gradients. What is kept exactly
//! is the *order of arithmetic*, because the engine must return the same bits:
//!
//! - A matrix product sums over `k` in rising order with `mul_add` into one accumulator that starts at zero;
//!   `k` is cut into blocks of 512, and the sums of later blocks are added to that of the first.
//! - Where a value is used twice, its gradients are added in the reverse order of use.
//! - Sums over samples are formed inside a grain, in sample order, then over grains along a binary tree.
//! - Gradients of a row are added by feature, then sample, then place in the bag; then the row moves once.
//! - Sums of squares of a row go by blocks of 32, each over 16 partial sums and a fixed tree.
//!
//! Rows are `f32` (16-bit rows, whose rounding is random by design, are tested in `tables`), matrix products
//! are `f32`, and first values are given by the caller: the random numbers are `kernels`' business.

use std::ops::Range;

use crate::{
    distil,
    elementary::{cross_entropy, sigmoid},
    matrix::Matrix,
    moves::{Row, first_row, first_weights, follow_row, move_dense, update_row},
    sums::{add_products, sum_over_grains},
    towers::{self, vectors_above},
    two_towers,
    wire::travel,
};
use campanile_spec::{
    Batch, CrossRank, DcnStructure, Distil, Follow, Grains, Heads, ModelSpec, NetworkSpec, Pooling,
    TableSpec,
    config::{DenseTraining, ExchangeFormat, SparseTraining},
};

/// One dense weight: a matrix `[out, in]` or a vector, and where it lies in the flat weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// For example `bottom.0.weight`.
    pub name: String,
    /// `[out, in]` or `[out]`.
    pub shape: Vec<usize>,
    /// Its place.
    pub range: Range<usize>,
}

/// What a step saw before it moved the weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The mean loss: `(1/B)` times the sum over samples and tasks of both weights times the cross-entropy.
    pub loss: f64,
    /// Per task, the sum over samples of sample weight times cross-entropy.
    pub task_losses: Vec<f64>,
    /// What the teacher's terms add to the mean loss.
    pub teacher_loss: f64,
    /// `[sample][task]`.
    pub logits: Vec<f32>,
    /// The gradient of the mean loss for all dense weights, before L2 and clipping.
    pub gradient: Vec<f32>,
    /// The pooled vectors `[sample][pooled_width]`, and the gradient for them before it travels.
    pub pooled: Vec<f32>,
    /// Laid out as `pooled`.
    pub pooled_gradient: Vec<f32>,
}

/// A model with its weights and the state of its optimizers.
#[derive(Debug, Clone)]
pub struct Oracle {
    pub(crate) spec: ModelSpec,
    grains: Grains,
    sparse: SparseTraining,
    dense: DenseTraining,
    distil: Distil,
    pub(crate) follow: Follow,
    steps: u64,
    /// How pooled vectors and their gradients travel.
    pub exchange: ExchangeFormat,
    /// What the flat dense weights are.
    pub parameters: Vec<Parameter>,
    /// All dense weights.
    pub weights: Row,
    /// The rows of every table.
    pub tables: Vec<Vec<Row>>,
    /// The weights of every task's adapter; none without one.
    pub adapters: Vec<Row>,
}

impl Oracle {
    /// A model whose weights and rows are all zero: set their first values in the public fields.
    pub fn new(spec: &ModelSpec, grains: Grains, sparse: &SparseTraining, dense: &DenseTraining) -> Oracle {
        Oracle::student(spec, grains, sparse, dense, &Distil::default())
    }

    /// As [`Oracle::new`], for a model that learns from a teacher as well.
    pub fn student(
        spec: &ModelSpec,
        grains: Grains,
        sparse: &SparseTraining,
        dense: &DenseTraining,
        distil: &Distil,
    ) -> Oracle {
        let parameters = layout(spec, distil);
        let weights = first_weights(dense.optimizer, &parameters);
        let adapters = distil::first_adapters(distil, spec.tasks.len());
        let rows = |table: &TableSpec| vec![first_row(sparse.optimizer, table.dim); table.row_count as usize];
        let tables = spec.tables.iter().map(rows).collect();
        let (spec, sparse, dense) = (spec.clone(), sparse.clone(), dense.clone());
        let exchange = ExchangeFormat::default();
        let distil = *distil;
        Oracle {
            spec,
            grains,
            sparse,
            dense,
            distil,
            follow: Follow::default(),
            steps: 0,
            exchange,
            parameters,
            weights,
            tables,
            adapters,
        }
    }

    /// One dense weight by its name, if the model has it.
    pub fn weight(&self, name: &str) -> Option<&[f32]> {
        let parameter = self.parameters.iter().find(|p| p.name == name)?;
        Some(&self.weights.values[parameter.range.clone()])
    }

    /// The logits `[sample][task]` of a batch.
    pub fn predict(&self, batch: &Batch) -> Vec<f32> {
        let (tape, logits) = self.forward(self.inputs(batch));
        self.serving(&tape.nodes[logits].1)
    }

    /// One training step: everything that happens to a batch, in order.
    pub fn train_step(&mut self, batch: &Batch) -> Step {
        let [dense, pooled] = self.inputs(batch);
        let corrected = distil::adapt(&self.distil, self.grains, self.steps, &mut self.adapters, batch);
        let (mut logits, mut pooled_gradient) = (Vec::new(), Vec::new());
        let (mut gradients, mut task_losses, mut teacher_loss) = (Vec::new(), Vec::new(), 0.0);
        for grain in 0..self.grains.count() {
            let samples = self.grains.samples(batch.sample_count, grain);
            let (tape, last) = self.forward([dense.rows(samples.clone()), pooled.rows(samples.clone())]);
            let output = &tape.nodes[last].1;
            let (losses, mut logit_gradient) = self.loss(batch, samples.clone(), output);
            teacher_loss += distil::add_teacher(
                &self.distil,
                &self.spec,
                batch,
                samples.clone(),
                output,
                &corrected,
                &mut logit_gradient,
            );
            let mut gradient = vec![0.0; self.weights.values.len()];
            let mut back = tape.backward(logit_gradient, &mut gradient);
            distil::pull(&self.distil, &self.spec, batch, samples, &pooled, &mut back);
            pooled_gradient.extend(back.data);
            logits.extend(self.serving(output));
            gradients.push(gradient);
            task_losses.push(losses);
        }
        let gradient = sum_over_grains(gradients);
        let task_losses = sum_over_grains(task_losses);
        let tasks = self.spec.tasks.iter().zip(&task_losses);
        let loss =
            tasks.map(|(task, sum)| f64::from(task.weight) * sum).sum::<f64>() / batch.sample_count as f64;
        let mut arrived = Matrix { data: pooled_gradient.clone(), ..pooled };
        if !self.spec.has_tower_modules() {
            travel(self.exchange.backward, &self.spec.pooled_offsets(), &mut arrived);
        }
        self.update_tables(batch, &arrived);
        self.update_dense(&gradient);
        self.steps += 1;
        Step { loss, task_losses, teacher_loss, logits, gradient, pooled: pooled.data, pooled_gradient }
    }

    fn forward(&self, inputs: [Matrix; 2]) -> (Tape<'_>, usize) {
        let nodes = inputs.map(|value| (Op::Input, value)).into();
        let distil = self.distil;
        let mut tape =
            Tape { distil, parameters: self.parameters.clone(), weights: &self.weights.values, nodes };
        let logits = network(&self.spec, self.exchange, &mut tape);
        (tape, logits)
    }

    /// The serving logits `[sample][task]` among all.
    fn serving(&self, all: &Matrix) -> Vec<f32> {
        (0..all.samples).flat_map(|n| all.row(n)[..self.spec.tasks.len()].to_vec()).collect()
    }

    /// The dense inputs and the pooled vectors.
    fn inputs(&self, batch: &Batch) -> [Matrix; 2] {
        let (samples, offsets) = (batch.sample_count, self.spec.pooled_offsets());
        let mut pooled = Matrix::zeros(samples, self.spec.pooled_width());
        for (f, feature) in self.spec.features.iter().enumerate() {
            let bags = batch.bags.feature(f);
            for sample in 0..samples {
                let out = &mut pooled.row_mut(sample)[offsets[f]..offsets[f + 1]];
                for (place, row) in bags.range(sample).zip(bags.bag(sample)) {
                    let row = &self.tables[feature.table.0 as usize][*row as usize].values;
                    let given = bags.weights.get(place).filter(|_| feature.pooling == Pooling::Weighted);
                    let weight = *given.unwrap_or(&1.0);
                    out.iter_mut().zip(row).for_each(|(sum, value)| *sum += weight * value);
                }
                if feature.pooling == Pooling::Mean {
                    let count = bags.bag(sample).len().max(1) as f32;
                    out.iter_mut().for_each(|sum| *sum /= count);
                }
            }
        }
        // With towers it is what they hand on that travels.
        if !self.spec.has_tower_modules() {
            travel(self.exchange.forward, &offsets, &mut pooled);
        }
        [Matrix { samples, width: self.spec.dense_count, data: batch.dense.clone() }, pooled]
    }

    /// Per task the sum of weighted cross-entropies, and the gradient of the mean loss for the logits.
    fn loss(&self, batch: &Batch, samples: Range<usize>, logits: &Matrix) -> (Vec<f64>, Matrix) {
        let mut losses = vec![0.0f64; self.spec.tasks.len()];
        let scale = 1.0 / batch.sample_count as f64;
        let gradient = Matrix::from(samples.len(), logits.width, |n, task| {
            let sample = samples.start + n;
            if task >= self.spec.tasks.len() {
                return 0.0; // A head that only the teacher speaks to.
            }
            let label = f64::from(batch.labels[task * batch.sample_count + sample]);
            if label.is_nan() {
                return 0.0;
            }
            let weight = batch.weights.get(sample).map_or(1.0, |w| f64::from(*w));
            let z = f64::from(logits.row(n)[task]);
            losses[task] += weight * cross_entropy(z, label);
            ((sigmoid(z) - label) * (weight * f64::from(self.spec.tasks[task].weight) * scale)) as f32
        });
        (losses, gradient)
    }

    /// Merges the gradients of every touched row in order, then moves the row once.
    fn update_tables(&mut self, batch: &Batch, pooled_gradient: &Matrix) {
        let offsets = self.spec.pooled_offsets();
        for (t, table) in self.spec.tables.iter().enumerate() {
            let mut merged: Vec<Option<Vec<f32>>> = vec![None; table.row_count as usize];
            let features = self.spec.features.iter().enumerate();
            for (f, feature) in features.filter(|(_, feature)| feature.table.0 as usize == t) {
                let bags = batch.bags.feature(f);
                for sample in 0..batch.sample_count {
                    let gradient = &pooled_gradient.row(sample)[offsets[f]..offsets[f + 1]];
                    for (place, row) in bags.range(sample).zip(bags.bag(sample)) {
                        let weight = match feature.pooling {
                            Pooling::Sum => 1.0,
                            Pooling::Mean => 1.0 / bags.bag(sample).len() as f32,
                            Pooling::Weighted => *bags.weights.get(place).unwrap_or(&1.0),
                        };
                        let sum = merged[*row as usize].get_or_insert_with(|| vec![0.0; table.dim]);
                        sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += weight * g);
                    }
                }
            }
            for (row, gradient) in self.tables[t].iter_mut().zip(merged) {
                let Some(gradient) = gradient else { continue };
                if self.spec.follows(t) {
                    follow_row(&self.follow, self.steps, row, &gradient);
                } else {
                    update_row(&self.sparse, self.steps, row, gradient);
                }
            }
        }
    }

    /// Clips the whole gradient, adds L2, and moves every dense weight.
    fn update_dense(&mut self, gradient: &[f32]) {
        let segments = self.spec.weight_segments(gradient.len());
        let rate_shares = self.spec.rate_shares(gradient.len());
        move_dense(&self.dense, self.steps, &mut self.weights, gradient, (&segments, &rate_shares));
    }
}

/// All weights of a model by name.
pub(crate) fn layout(spec: &ModelSpec, distil: &Distil) -> Vec<Parameter> {
    let inputs = [Matrix::zeros(0, spec.dense_count), Matrix::zeros(0, spec.pooled_width())];
    let mut tape = Tape {
        distil: *distil,
        parameters: Vec::new(),
        weights: &[],
        nodes: inputs.map(|x| (Op::Input, x)).into(),
    };
    network(spec, ExchangeFormat::default(), &mut tape);
    tape.parameters
}

// ------------------------------------------------------------------------------------------------- networks

/// Writes the model's operations on the tape and returns the node of the logits: `[sample][task]`, then those of the
/// heads that learn from a teacher, laid out alike.
pub(crate) fn network(spec: &ModelSpec, exchange: ExchangeFormat, tape: &mut Tape) -> usize {
    let above = vectors_above(spec, exchange, tape);
    let first = |tape: &mut Tape, bottom: &[usize]| tape.mlp("bottom", DENSE, bottom);
    let has_dense = spec.dense_count > 0;
    let beside =
        |dense, above: &[(usize, String)]| [dense].into_iter().chain(above.iter().map(|v| v.0)).collect();
    match &spec.network {
        NetworkSpec::Dlrm { bottom, top } => {
            let width = spec.interaction_width(bottom);
            let mut vectors = if has_dense { vec![first(tape, bottom)] } else { Vec::new() };
            for (x, name) in above {
                let (equal, project) = (tape.nodes[x].1.width == width, format!("project.{name}"));
                vectors.push(if equal { x } else { tape.linear(&project, "weight", x, width, Tail::Bare) });
            }
            let pairs = tape.push(Op::Dots(vectors.clone()));
            let input = if has_dense { tape.push(Op::Beside(vec![vectors[0], pairs])) } else { pairs };
            heads(spec, tape, input, None, top)
        }
        NetworkSpec::Dcn { bottom, cross_layers, cross_rank, structure, deep } => {
            let dense = if has_dense { first(tape, bottom) } else { DENSE };
            let x0 = tape.push(Op::Beside(beside(dense, &above)));
            let x = tape.cross_layers("cross", x0, *cross_layers, *cross_rank);
            match structure {
                DcnStructure::Stacked => heads(spec, tape, x, None, deep),
                DcnStructure::Parallel => heads(spec, tape, x0, Some(x), deep),
            }
        }
        NetworkSpec::Mlp { hidden } => {
            let input = tape.push(Op::Beside(beside(DENSE, &above)));
            heads(spec, tape, input, None, hidden)
        }
        NetworkSpec::TwoTower { item_features, item_dense, user, item, width } => {
            let inputs = two_towers::inputs(spec, tape, above, item_features, item_dense);
            two_towers::dots(spec, tape, inputs, [("user", user), ("item", item)], *width)
        }
        NetworkSpec::LogisticRegression | NetworkSpec::FactorizationMachine => {
            let linear = tape.linear("linear", "weight", DENSE, spec.tasks.len(), Tail::Bias);
            let rows = above.into_iter().map(|(row, _)| row).collect();
            tape.push(Op::Factorization(linear, rows))
        }
    }
}

/// Every head: hidden layers on `input`, then its logits, which beside a parallel cross net see both outputs. The
/// teacher's heads see what the logits see, and send back `gradient_scale` times their gradient.
fn heads(spec: &ModelSpec, tape: &mut Tape, input: usize, cross: Option<usize>, hidden: &[usize]) -> usize {
    let heads: Vec<(String, usize)> = match spec.heads {
        Heads::Shared => vec![("top".to_string(), spec.tasks.len())],
        Heads::Separate => spec.tasks.iter().map(|task| (format!("head.{}", task.name), 1)).collect(),
    };
    let (mut logits, mut lasts) = (Vec::new(), Vec::new());
    for (prefix, outputs) in &heads {
        let deep = tape.mlp(prefix, input, hidden);
        let last = match cross {
            None => deep,
            Some(cross) if hidden.is_empty() => cross,
            Some(cross) => tape.push(Op::Beside(vec![cross, deep])),
        };
        lasts.push(last);
        logits.push(tape.linear(&format!("{prefix}.{}", hidden.len()), "weight", last, *outputs, Tail::Bias));
    }
    let distil = tape.distil;
    for kind in &["auxiliary", "adapted"][..distil.extra_heads()] {
        for ((prefix, outputs), last) in heads.iter().zip(&lasts) {
            let x = tape.push(Op::Scaled(*last, distil.gradient_scale));
            logits.push(tape.linear(&format!("{kind}.{prefix}"), "weight", x, *outputs, Tail::Bias));
        }
    }
    tape.push(Op::Beside(logits))
}

/// The tape's first two nodes: the dense inputs and the pooled vectors.
pub(crate) const DENSE: usize = 0;
pub(crate) const POOLED: usize = 1;

/// One operation on earlier nodes.
pub(crate) enum Op {
    Input,
    /// `x Wᵀ` of a node, with what follows; then the places of `W` and the bias in the flat weights.
    Linear(usize, Tail, [usize; 2]),
    /// Nodes side by side.
    Beside(Vec<usize>),
    /// Some columns of a node.
    Columns(usize, Range<usize>),
    /// A node as it is, whose gradient is multiplied on the way back.
    Scaled(usize, f32),
    /// For every sample the dots of all pairs: (1,0), (2,0), (2,1), (3,0) and so on.
    Dots(Vec<usize>),
    /// `x0 * y + x` of three nodes.
    Cross(usize, usize, usize),
    /// Per task, a linear part plus the rows' linear weights plus half of `(Σv)² - Σv²` over their factors. A
    /// row has a block for each task: one linear weight, then the factors (none in logistic regression).
    Factorization(usize, Vec<usize>),
    /// `x_f Wᵀ` of so many vectors side by side by one matrix; then its place in the flat weights.
    Each(usize, usize, usize),
    /// What a vector is after it has travelled.
    Travel(usize, ExchangeFormat),
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Tail {
    Bare,
    Bias,
    BiasRelu,
}

/// The operations of one forward pass with their values.
pub(crate) struct Tape<'a> {
    pub(crate) distil: Distil,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) weights: &'a [f32],
    pub(crate) nodes: Vec<(Op, Matrix)>,
}

impl Tape<'_> {
    /// Linear layers with ReLU, named `prefix.0` and so on.
    pub(crate) fn mlp(&mut self, prefix: &str, input: usize, widths: &[usize]) -> usize {
        let mut layer =
            |x, (i, width)| self.linear(&format!("{prefix}.{i}"), "weight", x, width, Tail::BiasRelu);
        widths.iter().copied().enumerate().fold(input, &mut layer)
    }

    /// Cross layers named `prefix.0` and so on.
    pub(crate) fn cross_layers(&mut self, prefix: &str, x0: usize, layers: usize, rank: CrossRank) -> usize {
        let width = self.nodes[x0].1.width;
        (0..layers).fold(x0, |x, layer| {
            let prefix = format!("{prefix}.{layer}");
            let y = match rank {
                CrossRank::Full => self.linear(&prefix, "weight", x, width, Tail::Bias),
                CrossRank::Low(rank) => {
                    let thin = self.linear(&prefix, "v", x, rank, Tail::Bare);
                    self.linear(&prefix, "u", thin, width, Tail::Bias)
                }
            };
            self.push(Op::Cross(x0, y, x))
        })
    }

    pub(crate) fn linear(
        &mut self,
        prefix: &str,
        matrix: &str,
        x: usize,
        outputs: usize,
        tail: Tail,
    ) -> usize {
        let inputs = self.nodes[x].1.width;
        let shape = vec![outputs, inputs];
        let weight = if inputs > 0 { self.parameter(format!("{prefix}.{matrix}"), shape) } else { 0 };
        let has_bias = tail != Tail::Bare;
        let bias = if has_bias { self.parameter(format!("{prefix}.bias"), vec![outputs]) } else { 0 };
        let (w, b, x_value) = (&self.weights[weight..], &self.weights[bias..], &self.nodes[x].1);
        let value = Matrix::from(x_value.samples, outputs, |n, o| {
            let sum = add_products(0.0, inputs, |k| (x_value.row(n)[k], w[o * inputs + k]));
            let sum = if has_bias { sum + b[o] } else { sum };
            if tail == Tail::BiasRelu && sum < 0.0 { 0.0 } else { sum }
        });
        self.nodes.push((Op::Linear(x, tail, [weight, bias]), value));
        self.nodes.len() - 1
    }

    /// The place of a weight; on the first, empty pass it is added to the layout.
    pub(crate) fn parameter(&mut self, name: String, shape: Vec<usize>) -> usize {
        if let Some(known) = self.parameters.iter().find(|p| p.name == name) {
            return known.range.start;
        }
        let start = self.parameters.last().map_or(0, |p| p.range.end);
        let range = start..start + shape.iter().product::<usize>();
        self.parameters.push(Parameter { name, shape, range });
        0
    }

    /// Every other operation, forward.
    pub(crate) fn push(&mut self, op: Op) -> usize {
        let node = |i: &usize| &self.nodes[*i].1;
        let samples = node(&POOLED).samples;
        let value = match &op {
            Op::Input | Op::Linear(..) | Op::Each(..) => unreachable!("made by `new`, `linear` and `each`"),
            Op::Travel(x, format) => {
                let mut arrived = node(x).clone();
                travel(format.forward, &[0, arrived.width], &mut arrived);
                arrived
            }
            Op::Beside(parts) => {
                let data = (0..samples).flat_map(|n| parts.iter().flat_map(move |p| node(p).row(n))).copied();
                Matrix { samples, width: parts.iter().map(|p| node(p).width).sum(), data: data.collect() }
            }
            Op::Columns(x, range) => {
                Matrix::from(samples, range.len(), |n, i| node(x).row(n)[range.start + i])
            }
            Op::Scaled(x, _) => node(x).clone(),
            Op::Dots(vectors) => {
                let pairs: Vec<_> = (0..vectors.len()).flat_map(|i| (0..i).map(move |j| (i, j))).collect();
                Matrix::from(samples, pairs.len(), |n, p| {
                    let (a, b) = (node(&vectors[pairs[p].0]).row(n), node(&vectors[pairs[p].1]).row(n));
                    a.iter().zip(b).fold(0.0, |sum, (a, b)| a.mul_add(*b, sum))
                })
            }
            Op::Cross(x0, y, x) => Matrix::from(samples, node(x).width, |n, i| {
                node(x0).row(n)[i].mul_add(node(y).row(n)[i], node(x).row(n)[i])
            }),
            Op::Factorization(linear, rows) => Matrix::from(samples, node(linear).width, |n, task| {
                let block = rows.first().map_or(1, |row| node(row).width / node(linear).width);
                let at = |row: &usize, k: usize| node(row).row(n)[task * block + k];
                let sum = |k: usize| rows.iter().fold(0.0, |sum, row| sum + at(row, k));
                let squares = |k: usize| rows.iter().fold(0.0, |sum, row| sum + at(row, k) * at(row, k));
                let pairs = (1..block).fold(0.0, |pairs, k| pairs + (sum(k) * sum(k) - squares(k)));
                node(linear).row(n)[task] + sum(0) + 0.5 * pairs
            }),
        };
        self.nodes.push((op, value));
        self.nodes.len() - 1
    }

    /// Adds the weights' gradients to `gradient` and returns that of the pooled vectors.
    pub(crate) fn backward(&self, logit_gradient: Matrix, gradient: &mut [f32]) -> Matrix {
        let zeros = self.nodes.iter().map(|(_, value)| Matrix::zeros(value.samples, value.width));
        let mut gradients: Vec<Matrix> = zeros.collect();
        gradients[self.nodes.len() - 1] = logit_gradient;
        for index in (0..self.nodes.len()).rev() {
            let (before, after) = gradients.split_at_mut(index);
            self.node_backward(index, &mut after[0], before, gradient);
        }
        gradients.swap_remove(POOLED)
    }

    /// One operation backwards: adds to the gradients of the nodes that it read.
    fn node_backward(&self, index: usize, dy: &mut Matrix, before: &mut [Matrix], gradient: &mut [f32]) {
        let value = |i: &usize| &self.nodes[*i].1;
        match &self.nodes[index].0 {
            Op::Input => {}
            Op::Linear(x, tail, [weight, bias]) => {
                let (inputs, outputs, x_value) = (value(x).width, dy.width, value(x));
                if *tail == Tail::BiasRelu {
                    let closed = dy.data.iter_mut().zip(&value(&index).data).filter(|(_, y)| **y <= 0.0);
                    closed.for_each(|(g, _)| *g = 0.0);
                }
                for (place, sum) in gradient[*weight..][..outputs * inputs].iter_mut().enumerate() {
                    let (o, i) = (place / inputs, place % inputs);
                    *sum = add_products(*sum, dy.samples, |n| (dy.row(n)[o], x_value.row(n)[i]));
                }
                if *tail != Tail::Bare {
                    let sums = gradient[*bias..][..outputs].iter_mut().enumerate();
                    sums.for_each(|(o, sum)| *sum += (0..dy.samples).fold(0.0, |sum, n| sum + dy.row(n)[o]));
                }
                let w = &self.weights[*weight..];
                before[*x].change(|n, i, g| add_products(g, outputs, |o| (dy.row(n)[o], w[o * inputs + i])));
            }
            Op::Each(x, count, weight) => {
                towers::each_backward(self, (*x, *count, *weight), dy, before, gradient)
            }
            Op::Travel(x, format) => {
                travel(format.backward, &[0, dy.width], dy);
                before[*x].change(|n, i, g| g + dy.row(n)[i]);
            }
            Op::Beside(parts) => {
                let mut start = 0;
                for part in parts {
                    before[*part].change(|n, i, g| g + dy.row(n)[start + i]);
                    start += value(part).width;
                }
            }
            Op::Columns(x, range) => {
                let inside =
                    |n: usize, i: usize| if range.contains(&i) { dy.row(n)[i - range.start] } else { 0.0 };
                before[*x].change(|n, i, g| g + inside(n, i));
            }
            Op::Scaled(x, factor) => before[*x].change(|n, i, g| g + factor * dy.row(n)[i]),
            Op::Dots(vectors) => {
                let pair = |a: usize, b: usize| a.max(b) * (a.max(b) - 1) / 2 + a.min(b);
                for (i, vector) in vectors.iter().enumerate() {
                    before[*vector].change(|n, k, g| {
                        let others = (0..vectors.len()).filter(|j| *j != i);
                        let terms = others.map(|j| (dy.row(n)[pair(i, j)], value(&vectors[j]).row(n)[k]));
                        g + terms.fold(0.0f32, |sum, (a, b)| a.mul_add(b, sum))
                    });
                }
            }
            Op::Cross(x0, y, x) => {
                before[*y].change(|n, i, g| g + dy.row(n)[i] * value(x0).row(n)[i]);
                before[*x0].change(|n, i, g| dy.row(n)[i].mul_add(value(y).row(n)[i], g));
                before[*x].change(|n, i, g| g + dy.row(n)[i]);
            }
            Op::Factorization(linear, rows) => {
                before[*linear].change(|n, task, g| g + dy.row(n)[task]);
                for row in rows {
                    let block = value(row).width / dy.width;
                    before[*row].change(|n, i, g| {
                        let sum = rows.iter().fold(0.0, |sum, row| sum + value(row).row(n)[i]);
                        let slope = if i % block == 0 { 1.0 } else { sum - value(row).row(n)[i] };
                        g + dy.row(n)[i / block] * slope
                    });
                }
            }
        }
    }
}
