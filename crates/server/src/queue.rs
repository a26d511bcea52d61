//! Requests wait here for a scoring thread, and leave in batches.
//!
//! ```text
//!   push ──full?──► refused at once (429)
//!     │
//!     ▼
//!   [ a a b a ] ──take──► a a a     the oldest job, and those that may share its call, up to the batch's samples
//!                         b         stays first in line
//! ```
//!
//! A batch forms by itself while all threads are busy; an idle thread starts at once unless it was told to wait a
//! little for company. A job whose client has given up, or whose time is over, leaves without being scored.
//!
//! Invariant: at most `jobs_max` jobs and `samples_max` samples wait. Who is refused learns it before waiting.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::clock;

/// What waits.
pub trait Job {
    /// How many samples it has.
    fn samples(&self) -> usize;
    /// Jobs with the same key may be scored in one call.
    fn key(&self) -> usize;
    /// When nobody waits for the answer any more; `None` if somebody always does.
    fn deadline(&self) -> Option<Instant>;
    /// Whether the client went away.
    fn is_abandoned(&self) -> bool;
}

/// How much may wait, and how batches form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// Jobs that may wait.
    pub jobs_max: usize,
    /// Samples that may wait, over all jobs.
    pub samples_max: usize,
    /// Samples of a batch; a larger job makes a batch of its own.
    pub batch_samples_max: usize,
    /// How long a job waits for company before a thread that is idle scores it in a batch that is not full.
    pub wait: Duration,
}

/// Why a job was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// As much waits as may.
    Full,
    /// The server is going away.
    Closed,
}

/// A bounded queue with many writers and several scoring threads.
#[derive(Debug)]
pub struct Queue<J> {
    limits: QueueLimits,
    state: Mutex<State<J>>,
    arrived: Condvar,
}

#[derive(Debug)]
struct State<J> {
    jobs: VecDeque<J>,
    /// When each job came.
    arrivals: VecDeque<Instant>,
    samples: usize,
    closed: bool,
}

/// What a scoring thread got.
#[derive(Debug)]
pub struct Batch<J> {
    /// Jobs with one key, the oldest first.
    pub jobs: Vec<J>,
    /// Jobs whose time was over.
    pub late: Vec<J>,
}

impl<J: Job> Queue<J> {
    /// An empty queue.
    pub fn new(limits: QueueLimits) -> Queue<J> {
        let jobs = VecDeque::with_capacity(limits.jobs_max);
        let arrivals = VecDeque::with_capacity(limits.jobs_max);
        let state = State { jobs, arrivals, samples: 0, closed: false };
        Queue { limits, state: Mutex::new(state), arrived: Condvar::new() }
    }

    /// Lines a job up, or gives it back at once.
    ///
    /// # Errors
    /// With the job when there is no place for it.
    pub fn push(&self, job: J) -> Result<(), (J, Refused)> {
        let mut state = self.lock();
        if state.closed {
            return Err((job, Refused::Closed));
        }
        let samples = state.samples + job.samples();
        // A job that is larger than the limit may still come when nobody waits.
        if state.jobs.len() >= self.limits.jobs_max
            || (samples > self.limits.samples_max && !state.jobs.is_empty())
        {
            return Err((job, Refused::Full));
        }
        state.samples = samples;
        state.jobs.push_back(job);
        state.arrivals.push_back(clock::now());
        drop(state);
        self.arrived.notify_one();
        Ok(())
    }

    /// Waits for work; `None` when the queue is closed and empty.
    pub fn take(&self) -> Option<Batch<J>> {
        let mut state = self.lock();
        loop {
            while state.jobs.is_empty() {
                if state.closed {
                    return None;
                }
                state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state = self.wait_for_company(state);
            let batch = self.cut(&mut state);
            if !batch.jobs.is_empty() || !batch.late.is_empty() {
                let more = !state.jobs.is_empty();
                drop(state);
                if more {
                    self.arrived.notify_one();
                }
                return Some(batch);
            }
        }
    }

    /// How many jobs and samples wait.
    pub fn waiting(&self) -> (usize, usize) {
        let state = self.lock();
        (state.jobs.len(), state.samples)
    }

    /// Whether a job would be alone: nobody waits, and nobody is to be waited for.
    pub fn is_idle(&self) -> bool {
        let state = self.lock();
        self.limits.wait.is_zero() && state.jobs.is_empty() && !state.closed
    }

    /// Takes no more; what waits is still scored.
    pub fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_company<'a>(&self, mut state: MutexGuard<'a, State<J>>) -> MutexGuard<'a, State<J>> {
        if self.limits.wait.is_zero() {
            return state;
        }
        while !state.closed && state.samples < self.limits.batch_samples_max {
            let Some(oldest) = state.arrivals.front() else { break };
            let left = (*oldest + self.limits.wait).saturating_duration_since(clock::now());
            if left.is_zero() {
                break;
            }
            state = self.arrived.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }

    /// Cuts a batch: the oldest job that is still wanted, and those behind it that may go along.
    fn cut(&self, state: &mut State<J>) -> Batch<J> {
        let now = clock::now();
        let mut batch = Batch { jobs: Vec::new(), late: Vec::new() };
        let (mut place, mut samples) = (0, 0);
        while place < state.jobs.len() {
            let job = &state.jobs[place];
            let is_late = job.deadline().is_some_and(|deadline| deadline <= now);
            let is_gone = job.is_abandoned();
            let goes_along = batch.jobs.first().is_none_or(|first: &J| {
                first.key() == job.key() && samples + job.samples() <= self.limits.batch_samples_max
            });
            if !(is_late || is_gone || goes_along) {
                place += 1;
                continue;
            }
            let Some(job) = state.jobs.remove(place) else { break };
            state.arrivals.remove(place);
            state.samples -= job.samples();
            match (is_gone, is_late) {
                (true, _) => drop(job),
                (false, true) => batch.late.push(job),
                (false, false) => {
                    samples += job.samples();
                    batch.jobs.push(job);
                    if samples >= self.limits.batch_samples_max {
                        break;
                    }
                }
            }
        }
        batch
    }
}

#[cfg(test)]
mod tests;
