//! Scoring a small request on the thread that read it, when a core is free and nobody waits.
//!
//! Handing a request to a scoring thread and its scores back wakes two threads, which takes longer than scoring a
//! few dozen candidates. As soon as anybody waits, or as many requests are being scored as there are scoring threads,
//! requests go through the queue, where batches form.
//!
//! Invariant: with a scorer at work here and in the scoring threads, no more are at work than there are scoring
//! threads, but for those that began in the same instant.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use campanile_serve::{Request, Scorer, Scores};

use super::{Engine, Part};
use crate::{clock, models::Loaded};

/// A larger request would keep a thread of the network from its other connections for too long.
const HERE_SAMPLES_MAX: usize = 128;

/// Who is scoring, and the working memory of those who score here.
#[derive(Debug, Default)]
pub struct Desks {
    /// How many may score; none before scoring threads run, and none when they end.
    pub(super) limit: AtomicUsize,
    /// How many do, here and in scoring threads.
    pub(super) busy: AtomicUsize,
    memory: Mutex<Vec<(Scorer, Scores)>>,
}

/// A place that is given back whatever happens.
struct Seat<'a>(&'a Desks);

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Desks {
    fn sit(&self) -> Option<Seat<'_>> {
        let limit = self.limit.load(Ordering::Relaxed);
        let taken = self
            .busy
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |busy| (busy < limit).then_some(busy + 1));
        taken.ok().map(|_| Seat(self))
    }
}

impl Engine {
    /// Scores the request at once if that is better than lining up; gives it back otherwise. `Ok(None)` means that
    /// scoring failed, which is a mistake of ours.
    pub(super) fn score_here(&self, loaded: &Loaded, request: Request) -> Result<Option<Part>, Request> {
        let count = request.sample_count();
        if count > HERE_SAMPLES_MAX || !self.queue.is_idle() {
            return Err(request);
        }
        let Some(_seat) = self.desks.sit() else { return Err(request) };
        let memory = self.desks.memory.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let (mut scorer, mut scores) = memory.unwrap_or_default();
        let start = clock::now();
        let done =
            catch_unwind(AssertUnwindSafe(|| scorer.score(&loaded.snapshot, &[&request], &mut scores)));
        if !matches!(done, Ok(Ok(()))) {
            self.metrics.scorer_restarts.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        }
        let score_us = clock::us_between(start, clock::now());
        self.metrics.batch_samples.add(count as u64);
        self.metrics.batch_requests.add(1);
        let (logits, probabilities) = (scores.logits.clone(), scores.probabilities.clone());
        self.desks.memory.lock().unwrap_or_else(PoisonError::into_inner).push((scorer, scores));
        Ok(Some(Part { request, logits, probabilities, queue_us: 0, score_us }))
    }
}
