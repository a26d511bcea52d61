//! What a teacher adds to the loss, for one sample and task at a time; and the adapters that correct it.

use std::ops::Range;

use campanile_spec::{
    Batch, Distil, DistilMethod, Follow, Grains, LearningRate, ModelSpec, Schedule,
    config::{DenseTraining, ExchangeFormat},
    distil::Word,
};

use crate::{
    elementary::{adapter_inputs, cross_entropy, fading, following_weight, sigmoid},
    matrix::Matrix,
    moves::{Row, first_row, first_weights, move_dense},
    oracle::{Op, Oracle, Tape, layout, network},
    sums::sum_over_grains,
};

/// The adapters' weights, all zero: one for each task, or none.
pub(crate) fn first_adapters(distil: &Distil, tasks: usize) -> Vec<Row> {
    let parameters = layout(&distil.adapter.model(), &Distil::default());
    let one = first_weights(distil.adapter.optimizer, &parameters);
    vec![one; if distil.method == DistilMethod::Adapter { tasks } else { 0 }]
}

/// Trains the adapters on the batch's labels, then has them correct the teacher: probabilities `[task][sample]`.
/// Nothing of the model sees the training, and the adapters see nothing of the model.
pub(crate) fn adapt(
    distil: &Distil,
    grains: Grains,
    steps: u64,
    adapters: &mut [Row],
    batch: &Batch,
) -> Vec<f32> {
    let (samples, optimizer) = (batch.sample_count, distil.adapter.optimizer);
    let learning_rate = LearningRate { base: distil.adapter.learning_rate, schedule: Schedule::Constant };
    let training = DenseTraining { optimizer, learning_rate, l2: 0.0, norm_max: 0.0 };
    let mut corrected = Vec::new();
    for (task, weights) in adapters.iter_mut().enumerate() {
        let gradients = (0..grains.count()).map(|grain| {
            let range = grains.samples(samples, grain);
            let tape = added(distil, &weights.values, batch, task, range.clone());
            let output = &tape.nodes[tape.nodes.len() - 1].1;
            let slope = Matrix::from(range.len(), 1, |n, _| {
                adapter_slope(batch, task, range.start + n, output.row(n)[0], 1.0 / samples as f64)
            });
            let mut gradient = vec![0.0; weights.values.len()];
            tape.backward(slope, &mut gradient);
            gradient
        });
        let gradient = sum_over_grains(gradients.collect());
        let all = 0..gradient.len();
        move_dense(&training, steps, weights, &gradient, (std::slice::from_ref(&all), &[]));
        let tape = added(distil, &weights.values, batch, task, 0..samples);
        let output = &tape.nodes[tape.nodes.len() - 1].1;
        corrected.extend((0..samples).map(|n| match Word::of(batch, task, n) {
            Some(word) => sigmoid(f64::from(word.logit + output.row(n)[0])) as f32,
            None => f32::NAN,
        }));
    }
    corrected
}

/// What one task's adapter adds to the teacher's logits of some samples, as the last node of a tape.
fn added<'a>(
    distil: &Distil,
    weights: &'a [f32],
    batch: &Batch,
    task: usize,
    range: Range<usize>,
) -> Tape<'a> {
    let spec = distil.adapter.model();
    let (mut inputs, none) = (Matrix::zeros(range.len(), spec.dense_count), Matrix::zeros(range.len(), 0));
    for (n, sample) in range.enumerate() {
        if let Some(word) = Word::of(batch, task, sample) {
            inputs.row_mut(n).copy_from_slice(&adapter_inputs(&distil.adapter, word));
        }
    }
    let nodes = [inputs, none].map(|value| (Op::Input, value)).into();
    let mut tape =
        Tape { distil: Distil::default(), parameters: layout(&spec, &Distil::default()), weights, nodes };
    network(&spec, ExchangeFormat::default(), &mut tape);
    tape
}

/// Adds the teacher's terms to the gradient of all heads' logits, and returns their loss; `corrected` are the adapter's
/// probabilities.
pub(crate) fn add_teacher(
    distil: &Distil,
    spec: &ModelSpec,
    batch: &Batch,
    samples: Range<usize>,
    logits: &Matrix,
    corrected: &[f32],
    gradient: &mut Matrix,
) -> f64 {
    let mut loss = 0.0;
    let (tasks, scale) = (spec.tasks.len(), 1.0 / batch.sample_count as f64);
    for (n, sample) in samples.enumerate() {
        for task in 0..tasks {
            let Some(word) = Word::of(batch, task, sample).filter(|_| distil.listens()) else { continue };
            let own = batch.weights.get(sample).map_or(1.0, |weight| f64::from(*weight));
            let weight = own * f64::from(spec.tasks[task].weight) * scale * fading(distil, word.delay);
            let scaled = f64::from(distil.label_scale) * sigmoid(f64::from(word.logit));
            let mut toward = |head: usize, target: f64, weight: f64| {
                let place = head * tasks + task;
                let z = f64::from(logits.row(n)[place]);
                loss += weight * cross_entropy(z, target);
                gradient.row_mut(n)[place] += ((sigmoid(z) - target) * weight) as f32;
            };
            let first = usize::from(distil.method != DistilMethod::OneHead);
            toward(first, scaled.min(1.0), weight * f64::from(distil.weight));
            if distil.method == DistilMethod::Adapter {
                let target = f64::from(corrected[task * batch.sample_count + sample]);
                toward(2, target, weight * f64::from(distil.adapter.weight));
            }
        }
    }
    loss
}

impl Oracle {
    /// The same student, whose last tables follow its teacher.
    #[must_use]
    pub fn following(mut self, follow: &Follow) -> Oracle {
        for (place, table) in
            self.spec.tables.iter().enumerate().filter(|(place, _)| self.spec.follows(*place))
        {
            self.tables[place] = vec![first_row(follow.optimizer, table.dim); table.row_count as usize];
        }
        self.follow = follow.clone();
        self
    }
}

/// Writes the gradient of every vector that follows the teacher in place of the network's: it is drawn to the teacher's
/// embedding of its sample, or stays. `pooled` are the vectors of the whole batch, `gradient` is of these samples.
pub(crate) fn pull(
    distil: &Distil,
    spec: &ModelSpec,
    batch: &Batch,
    samples: Range<usize>,
    pooled: &Matrix,
    gradient: &mut Matrix,
) {
    let scale = 1.0 / batch.sample_count as f64;
    for (n, sample) in samples.enumerate() {
        for place in spec.followed_columns() {
            gradient.row_mut(n)[place] = match batch.teacher_embedding(sample) {
                None => 0.0,
                Some(embedding) => {
                    let e = embedding[(place - spec.followed_columns().start) % embedding.len()];
                    let weight = following_weight(batch, distil, sample, scale);
                    ((f64::from(pooled.row(sample)[place]) - f64::from(e)) * weight) as f32
                }
            };
        }
    }
}

/// The gradient of an adapter's loss for what it adds to the teacher's logit.
pub(crate) fn adapter_slope(batch: &Batch, task: usize, sample: usize, added: f32, scale: f64) -> f32 {
    let label = f64::from(batch.labels[task * batch.sample_count + sample]);
    let Some(word) = Word::of(batch, task, sample).filter(|_| !label.is_nan()) else { return 0.0 };
    let weight = batch.weights.get(sample).map_or(1.0, |weight| f64::from(*weight));
    ((sigmoid(f64::from(word.logit + added)) - label) * (weight * scale)) as f32
}
