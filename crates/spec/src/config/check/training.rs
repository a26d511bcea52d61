//! Optimizers, rates and limits.

use super::{Problem, between};
use crate::{
    config::{
        DenseTraining, SparseTraining,
        raw::{RawDense, RawSparse},
    },
    distil::{AdapterSpec, Distil, DistilMethod},
    model::{ModelSpec, NetworkSpec},
    optimizer::{DenseOptimizer, LearningRate, Schedule, SparseOptimizer},
};

/// A number that no key has business above.
const HUGE: f32 = 1e6;

pub(super) fn sparse(raw: RawSparse) -> Result<SparseTraining, Problem> {
    let learning_rate = learning_rate("run.sparse", raw.learning_rate, raw.schedule)?;
    sparse_optimizer("run.sparse.optimizer", raw.optimizer)?;
    if matches!(raw.optimizer, SparseOptimizer::Ftrl { .. }) && raw.l2 != 0.0 {
        let advice = "\"ftrl\" has an l2 of its own; write it in run.sparse.optimizer";
        return Err(Problem::value("run.sparse.l2", raw.l2, advice));
    }
    between("run.sparse.l2", raw.l2, 0.0, HUGE)?;
    between("run.sparse.row_norm_max", raw.row_norm_max, 0.0, f32::MAX)?;
    let (optimizer, l2, row_norm_max) = (raw.optimizer, raw.l2, raw.row_norm_max);
    Ok(SparseTraining { optimizer, learning_rate, l2, row_norm_max })
}

pub(super) fn sparse_optimizer(section: &str, optimizer: SparseOptimizer) -> Result<(), Problem> {
    match optimizer {
        SparseOptimizer::Sgd => Ok(()),
        SparseOptimizer::Adagrad { epsilon, initial }
        | SparseOptimizer::RowwiseAdagrad { epsilon, initial } => adagrad(section, epsilon, initial),
        SparseOptimizer::Adam { beta1, beta2, epsilon }
        | SparseOptimizer::RowwiseAdam { beta1, beta2, epsilon } => adam(section, beta1, beta2, epsilon),
        SparseOptimizer::Ftrl { beta, l1, l2 } => [("beta", beta), ("l1", l1), ("l2", l2)]
            .into_iter()
            .try_for_each(|(key, value)| between(&format!("{section}.{key}"), value, 0.0, HUGE)),
    }
}

/// A rate that stays as it is.
pub(super) fn rate(section: &str, base: f32) -> Result<(), Problem> {
    learning_rate(section, base, Schedule::Constant).map(drop)
}

pub(super) fn dense(raw: RawDense) -> Result<DenseTraining, Problem> {
    let learning_rate = learning_rate("run.dense", raw.learning_rate, raw.schedule)?;
    dense_optimizer("run.dense.optimizer", raw.optimizer)?;
    between("run.dense.l2", raw.l2, 0.0, HUGE)?;
    between("run.dense.norm_max", raw.norm_max, 0.0, f32::MAX)?;
    let (optimizer, l2, norm_max) = (raw.optimizer, raw.l2, raw.norm_max);
    Ok(DenseTraining { optimizer, learning_rate, l2, norm_max })
}

fn dense_optimizer(section: &str, optimizer: DenseOptimizer) -> Result<(), Problem> {
    match optimizer {
        DenseOptimizer::Sgd { momentum } => below_one(&format!("{section}.momentum"), momentum),
        DenseOptimizer::Adagrad { epsilon, initial } => adagrad(section, epsilon, initial),
        DenseOptimizer::Adam { beta1, beta2, epsilon } => adam(section, beta1, beta2, epsilon),
        DenseOptimizer::Adamw { beta1, beta2, epsilon, decay } => {
            adam(section, beta1, beta2, epsilon)?;
            between(&format!("{section}.decay"), decay, 0.0, HUGE)
        }
    }
}

/// The most segments of an adapter.
const ADAPTER_SEGMENTS_MAX: usize = 4096;

/// The widest hidden layer of an adapter.
const ADAPTER_HIDDEN_MAX: usize = 4096;

pub(super) fn distil(distil: &Distil, model: &ModelSpec) -> Result<(), Problem> {
    for (key, value) in [
        ("weight", distil.weight),
        ("label_scale", distil.label_scale),
        ("gradient_scale", distil.gradient_scale),
        ("fade_seconds", distil.fade_seconds),
        ("adapter.weight", distil.adapter.weight),
    ] {
        between(
            &format!("run.distil.{key}"),
            value,
            0.0,
            if key == "fade_seconds" { f32::MAX } else { HUGE },
        )?;
    }
    let AdapterSpec { hidden, segments, optimizer, learning_rate: rate, .. } = distil.adapter;
    between("run.distil.adapter.hidden", hidden, 0, ADAPTER_HIDDEN_MAX)?;
    between("run.distil.adapter.segments", segments, 0, ADAPTER_SEGMENTS_MAX)?;
    dense_optimizer("run.distil.adapter.optimizer", optimizer)?;
    learning_rate("run.distil.adapter", rate, Schedule::Constant)?;
    let without_layers =
        matches!(model.network, NetworkSpec::LogisticRegression | NetworkSpec::FactorizationMachine);
    if distil.extra_heads() > 0 && without_layers {
        let advice =
            "this model has no layers that heads could share; use \"one_head\", or another [run.model]";
        let method = if distil.method == DistilMethod::Adapter { "\"adapter\"" } else { "\"auxiliary\"" };
        return Err(Problem::value("run.distil.method", method, advice));
    }
    Ok(())
}

fn learning_rate(section: &str, base: f32, schedule: Schedule) -> Result<LearningRate, Problem> {
    if !(base > 0.0 && base <= HUGE) {
        let bound = if base > HUGE { "at most 1000000" } else { "above 0" };
        let advice = format!("it must be {bound}; 0.01 to 0.1 is a usual start");
        return Err(Problem::value(&format!("{section}.learning_rate"), base, advice));
    }
    let path = |key: &str| format!("{section}.schedule.{key}");
    match schedule {
        Schedule::Constant => {}
        Schedule::WarmupPolynomial { warmup_steps, decay_start, power, end_factor, .. } => {
            if decay_start < warmup_steps {
                let advice = format!("the decay must not start before the {warmup_steps} warm-up steps end");
                return Err(Problem::value(&path("decay_start"), decay_start, advice));
            }
            between(&path("power"), power, 0.0, 100.0)?;
            between(&path("end_factor"), end_factor, 0.0, 1.0)?;
        }
        Schedule::Cosine { warmup_steps, total_steps, end_factor } => {
            if total_steps <= warmup_steps {
                let advice = format!("it must be above warmup_steps, {warmup_steps}");
                return Err(Problem::value(&path("total_steps"), total_steps, advice));
            }
            between(&path("end_factor"), end_factor, 0.0, 1.0)?;
        }
    }
    Ok(LearningRate { base, schedule })
}

fn adagrad(section: &str, epsilon: f32, initial: f32) -> Result<(), Problem> {
    between(&format!("{section}.epsilon"), epsilon, 0.0, HUGE)?;
    between(&format!("{section}.initial"), initial, 0.0, HUGE)?;
    if epsilon == 0.0 && initial == 0.0 {
        let advice = "with initial = 0 a zero gradient would divide by zero; 1e-8 is usual";
        return Err(Problem::value(&format!("{section}.epsilon"), epsilon, advice));
    }
    Ok(())
}

fn adam(section: &str, beta1: f32, beta2: f32, epsilon: f32) -> Result<(), Problem> {
    below_one(&format!("{section}.beta1"), beta1)?;
    below_one(&format!("{section}.beta2"), beta2)?;
    if epsilon > 0.0 {
        return Ok(());
    }
    Err(Problem::value(&format!("{section}.epsilon"), epsilon, "it must be above 0; 1e-8 is usual"))
}

fn below_one(path: &str, value: f32) -> Result<(), Problem> {
    if (0.0..1.0).contains(&value) {
        return Ok(());
    }
    Err(Problem::value(path, value, "it must be at least 0 and below 1"))
}
