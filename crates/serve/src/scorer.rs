//! Scoring: the working memory of one thread, from requests to probabilities.
//!
//! Samples of all requests of a call go through the network together, a few hundred at a time: enough to use
//! the weights well, few enough that their vectors stay in the cache. Which samples share a pass cannot be
//! seen in the scores: a matrix product has the same bits for any number of rows (`kernels::gemm`).

use std::{ops::Range, sync::Arc};

use campanile_model::{
    Workspace,
    network::{Dense, Landing},
};
use campanile_spec::{FeatureBags, ModelSpec, elementary::exp};

use crate::{Inputs, Request, RequestError, Side, Snapshot};

/// Samples of one pass through the network.
const PASS_SAMPLES: usize = 128;

/// Logits and probabilities, `[sample][task]`, over the samples of all requests of a call, in their order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scores {
    /// Number of tasks.
    pub task_count: usize,
    /// `[sample][task]`.
    pub logits: Vec<f32>,
    /// `[sample][task]`: `1 / (1 + exp(-logit))`, worked out in `f64` as the metrics do.
    pub probabilities: Vec<f32>,
    /// The last hidden vectors `[sample][float]`, if [`Scorer::score_and_keep_hidden`] was asked.
    pub hidden: Vec<f32>,
}

impl Scores {
    /// The part of some samples.
    pub fn samples(&self, samples: Range<usize>) -> (&[f32], &[f32]) {
        let places = samples.start * self.task_count..samples.end * self.task_count;
        (&self.logits[places.clone()], &self.probabilities[places])
    }
}

/// One thread's working memory. It serves any snapshot, and allocates only when the shape of the model changes.
#[derive(Debug, Default)]
pub struct Scorer {
    made: Option<Made>,
    dense: Vec<f32>,
    pooled: Vec<f32>,
}

#[derive(Debug)]
struct Made {
    model: ModelSpec,
    /// The inputs of the snapshot that was scored last. A snapshot and its deltas share them, and have one model: to
    /// know them again takes no look at the model, whose many names take longer to compare than a row to find.
    inputs: Arc<Inputs>,
    workspace: Workspace,
}

/// Some samples of one request in a pass.
struct Stretch<'a> {
    request: &'a Request,
    samples: Range<usize>,
    /// Where they stand in the pass.
    place: usize,
}

impl Scorer {
    /// A scorer without memory yet.
    pub fn new() -> Scorer {
        Scorer::default()
    }

    /// Scores finished requests together.
    ///
    /// # Errors
    /// When a request was prepared for other inputs than the snapshot's; prepare it again then.
    ///
    /// # Panics
    /// If a request is not finished.
    pub fn score(
        &mut self,
        snapshot: &Snapshot,
        requests: &[&Request],
        out: &mut Scores,
    ) -> Result<(), RequestError> {
        self.score_all(snapshot, requests, false, out)
    }

    /// As [`Scorer::score`], and leaves the last hidden vectors in the scores: none for models that have no such vector
    /// ([`Snapshot::hidden_width`]).
    ///
    /// # Errors
    /// As [`Scorer::score`].
    ///
    /// # Panics
    /// As [`Scorer::score`].
    pub fn score_and_keep_hidden(
        &mut self,
        snapshot: &Snapshot,
        requests: &[&Request],
        out: &mut Scores,
    ) -> Result<(), RequestError> {
        self.score_all(snapshot, requests, true, out)
    }

    fn score_all(
        &mut self,
        snapshot: &Snapshot,
        requests: &[&Request],
        keep_hidden: bool,
        out: &mut Scores,
    ) -> Result<(), RequestError> {
        requests.iter().try_for_each(|request| check(snapshot, request))?;
        self.fit(snapshot);
        out.task_count = snapshot.model().tasks.len();
        out.logits.clear();
        out.hidden.clear();
        let (mut first, mut done) = (0, 0);
        let once = |request: &Request| snapshot.model().dense_count > 0 && request.dense_is_shared();
        // `first` is the request at which the next pass begins, `done` how many of its samples are scored.
        while first < requests.len() {
            let mut count = 0;
            // What a user's dense inputs give is computed once, and only in passes of its own.
            let dense_once = once(requests[first]);
            while first < requests.len() && count < PASS_SAMPLES {
                let request = requests[first];
                if count > 0 && (dense_once || once(request)) {
                    break;
                }
                let end = request.sample_count().min(done + PASS_SAMPLES - count);
                self.gather(snapshot, &Stretch { request, samples: done..end, place: count });
                count += end - done;
                done = end;
                if done == request.sample_count() {
                    (first, done) = (first + 1, 0);
                }
            }
            if count > 0 {
                self.pass(snapshot, count, dense_once, &mut out.logits);
                if let Some(made) = self.made.as_ref().filter(|_| keep_hidden) {
                    snapshot.network().copy_hidden(&made.workspace, count, &mut out.hidden);
                }
            }
        }
        out.probabilities.clear();
        out.probabilities.extend(out.logits.iter().map(|&logit| probability(logit)));
        Ok(())
    }

    /// Has the memory for a model of this shape.
    fn fit(&mut self, snapshot: &Snapshot) {
        if let Some(made) = &mut self.made {
            if Arc::ptr_eq(&made.inputs, snapshot.inputs()) {
                return;
            }
            if made.model == *snapshot.model() {
                made.inputs = Arc::clone(snapshot.inputs());
                return;
            }
        }
        let mut workspace = snapshot.network().workspace(PASS_SAMPLES);
        let lands = snapshot.network().landing(&mut workspace).is_some();
        let (model, inputs) = (snapshot.model().clone(), Arc::clone(snapshot.inputs()));
        self.made = Some(Made { model, inputs, workspace });
        self.dense.resize(PASS_SAMPLES * snapshot.model().dense_count, 0.0);
        self.pooled.resize(if lands { 0 } else { PASS_SAMPLES * snapshot.pooled_width() }, 0.0);
    }

    /// Puts dense inputs and pooled vectors of some samples in their places of the pass.
    fn gather(&mut self, snapshot: &Snapshot, stretch: &Stretch<'_>) {
        let Stretch { request, samples, place } = stretch;
        if samples.is_empty() {
            return;
        }
        let dense_width = snapshot.model().dense_count;
        self.dense[place * dense_width..][..samples.len() * dense_width]
            .copy_from_slice(&request.dense_values()[samples.start * dense_width..samples.end * dense_width]);
        // Vectors are written where the network reads them, if it takes them as they are.
        let landing = self.made.as_mut().and_then(|made| snapshot.network().landing(&mut made.workspace));
        let Landing { floats, stride, offset } = landing.unwrap_or_else(|| Landing {
            floats: &mut self.pooled,
            stride: snapshot.pooled_width(),
            offset: 0,
        });
        let pooled = &mut floats[place * stride..][..samples.len() * stride];
        for (index, feature) in snapshot.model().features.iter().enumerate() {
            let (table, first) = snapshot.feature(index);
            let (ids, offset) = (snapshot.model().ids_of(index), offset + first);
            let bags = request.feature(ids);
            if request.side(ids) == Some(Side::Once) {
                table.pool(feature.pooling, &bags, &mut pooled[..stride], stride, offset);
                let dim = snapshot.model().table_of(index).dim;
                for sample in 1..samples.len() {
                    pooled.copy_within(offset..offset + dim, sample * stride + offset);
                }
            } else {
                table.pool(feature.pooling, &slice(&bags, samples), pooled, stride, offset);
            }
        }
    }

    fn pass(&mut self, snapshot: &Snapshot, count: usize, dense_once: bool, logits: &mut Vec<f32>) {
        let Some(made) = &mut self.made else { unreachable!("a pass has memory") };
        let (width, workspace) = (snapshot.model().dense_count, &mut made.workspace);
        let (network, weights) = (snapshot.network(), snapshot.parameters());
        let dense = &self.dense[..if dense_once { width } else { count * width }];
        if network.landing(workspace).is_some() {
            let dense = if dense_once { Dense::Once(dense) } else { Dense::Each(dense) };
            network.forward_landed(workspace, weights, count, dense);
        } else {
            let pooled = &self.pooled[..count * snapshot.pooled_width()];
            match dense_once {
                true => network.forward_with_dense_once(workspace, weights, count, dense, pooled),
                false => network.forward(workspace, weights, count, dense, pooled),
            }
        }
        logits.extend_from_slice(made.workspace.logits(count));
    }
}

fn check(snapshot: &Snapshot, request: &Request) -> Result<(), RequestError> {
    assert!(request.is_finished(), "a request is finished before it is scored");
    match request.inputs() {
        Some(inputs) if inputs.same_as(snapshot.inputs()) => Ok(()),
        inputs => Err(RequestError::OtherInputs {
            found: inputs.map_or_else(String::new, |inputs| inputs.fingerprint().to_owned()),
            wanted: snapshot.inputs().fingerprint().to_owned(),
        }),
    }
}

/// The bags of some samples.
fn slice<'a>(bags: &FeatureBags<'a>, samples: &Range<usize>) -> FeatureBags<'a> {
    let offsets = &bags.offsets[samples.start..=samples.end];
    let rows = offsets[0] as usize..offsets[samples.len()] as usize;
    let weights = if bags.weights.is_empty() { &[][..] } else { &bags.weights[rows.clone()] };
    FeatureBags { offsets, rows: &bags.rows[rows], weights }
}

/// The probability of a logit, as the metrics have it.
fn probability(logit: f32) -> f32 {
    let logit = f64::from(logit);
    let small = exp(-logit.abs());
    let larger = 1.0 / (1.0 + small);
    (if logit >= 0.0 { larger } else { small * larger }) as f32
}
