//! The threads that score. Each has its own working memory; batches come from the queue.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
};

use campanile_serve::{Request, Scorer, Scores};

use super::{Engine, Part, ScoreJob};
use crate::{clock, queue::Batch};

/// Running threads; they end when the engine is closed and nothing waits.
#[derive(Debug)]
pub struct ScoringThreads {
    engine: Arc<Engine>,
    threads: Vec<JoinHandle<()>>,
}

impl ScoringThreads {
    /// Starts so many threads, at least one.
    ///
    /// # Errors
    /// When the system gives none.
    pub fn start(engine: &Arc<Engine>, count: usize) -> std::io::Result<ScoringThreads> {
        let start = |number| {
            let engine = Arc::clone(engine);
            std::thread::Builder::new().name(format!("score-{number}")).spawn(move || run(&engine))
        };
        let threads = (0..count.max(1)).map(start).collect::<Result<_, _>>()?;
        engine.desks.limit.store(count.max(1), Ordering::Relaxed);
        Ok(ScoringThreads { engine: Arc::clone(engine), threads })
    }

    /// Lets what waits be scored, and ends the threads.
    pub fn finish(self) {
        self.engine.desks.limit.store(0, Ordering::Relaxed);
        self.engine.queue.close();
        for thread in self.threads {
            // A thread that failed has been counted; there is nothing left to save.
            let _ = thread.join();
        }
    }
}

fn run(engine: &Engine) {
    let (mut scorer, mut scores) = (Scorer::new(), Scores::default());
    while let Some(batch) = engine.queue.take() {
        // A panic is a mistake of ours. It costs the requests of its batch, which learn it because their sender is
        // dropped, and not the thread.
        engine.desks.busy.fetch_add(1, Ordering::Relaxed);
        let done = catch_unwind(AssertUnwindSafe(|| score(engine, &mut scorer, &mut scores, batch)));
        engine.desks.busy.fetch_sub(1, Ordering::Relaxed);
        if done.is_err() {
            engine.metrics.scorer_restarts.fetch_add(1, Ordering::Relaxed);
            (scorer, scores) = (Scorer::new(), Scores::default());
        }
    }
}

fn score(engine: &Engine, scorer: &mut Scorer, scores: &mut Scores, batch: Batch<ScoreJob>) {
    for late in batch.late {
        engine.keep(late.request);
        let _ = late.answer.send(None);
    }
    let Some(first) = batch.jobs.first() else { return };
    let loaded = Arc::clone(&first.loaded);
    let start = clock::now();
    let requests: Vec<&Request> = batch.jobs.iter().map(|job| &job.request).collect();
    if let Err(error) = scorer.score(&loaded.snapshot, &requests, scores) {
        // Requests are prepared with the snapshot that scores them, so this is a mistake of ours as well.
        panic!("a request was prepared for another snapshot: {error}");
    }
    let end = clock::now();
    let samples = requests.iter().map(|request| request.sample_count()).sum::<usize>();
    engine.metrics.batch_samples.add(samples as u64);
    engine.metrics.batch_requests.add(requests.len() as u64);
    let mut place = 0;
    for job in batch.jobs {
        let count = job.request.sample_count();
        let (logits, probabilities) = scores.samples(place..place + count);
        place += count;
        let part = Part {
            logits: logits.to_vec(),
            probabilities: probabilities.to_vec(),
            queue_us: clock::us_between(job.pushed, start),
            score_us: clock::us_between(start, end),
            request: job.request,
        };
        // A client that went away meanwhile needs no answer.
        let _ = job.answer.send(Some(part));
    }
}
