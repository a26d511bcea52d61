//! The examples that came after a checkpoint: what a gate judges versions on.
//!
//! Neither the checkpoint nor any version before it was trained on them, so that both are judged fairly, and on what the
//! stream is like now.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use campanile_data::Transforms;
use campanile_spec::{Batch, Grains, config::Run};
use campanile_stream::{log::Log, topics::EXAMPLES};
use campanile_train::{
    TrainError,
    loader::{Feed, LocalBatch, Mark},
    run::Stream,
};

use crate::{End, Stop, examples::Examples};

/// How long to wait before looking for more examples.
const PAUSE: Duration = Duration::from_millis(50);
/// Examples that are put together.
const BATCH: u64 = 256;

/// Recent examples of a log, for one job.
#[derive(Clone)]
pub struct Recent {
    log: Arc<dyn Log>,
    run: Run,
    transforms: Transforms,
    stop: Arc<Stop>,
    /// Set when the run has ended, whatever the stream does.
    ended: Arc<Stop>,
}

impl Recent {
    /// For a job, with the transforms of its data. When `stop` asks for an end, nobody waits for examples any more.
    pub fn new(log: Arc<dyn Log>, run: &Run, transforms: &Transforms, stop: Arc<Stop>) -> Recent {
        Recent { log, run: run.clone(), transforms: transforms.clone(), stop, ended: Arc::default() }
    }

    /// The run has ended: from now on what there is must do.
    pub fn wait_no_more(&self) {
        self.ended.ask(End::AtEnd);
    }

    /// The same examples as another model reads them, with its own columns and transforms.
    #[must_use]
    pub fn as_read_by(&self, run: &Run, transforms: &Transforms) -> Recent {
        // Which examples there are is for this job to say.
        let (only, corrections) = (self.run.only.clone(), self.run.corrections);
        let mut run = Run { only, corrections, ..run.clone() };
        run.data.bad_rows = self.run.data.bad_rows;
        Recent { run, transforms: transforms.clone(), ..self.clone() }
    }

    /// The tasks whose labels the job reads, in its order.
    pub fn tasks(&self) -> impl Iterator<Item = &str> {
        self.run.model.tasks.iter().map(|task| task.name.as_str())
    }

    /// How the job reads them.
    pub fn transforms(&self) -> &Transforms {
        &self.transforms
    }

    /// Where the `count` examples from `next` on begin, or about that, once they are there; when there will be no more,
    /// where the last ones begin.
    ///
    /// # Errors
    /// When the log fails.
    pub fn start(&self, next: u64, count: u64) -> Result<u64, TrainError> {
        let failed = |error: campanile_stream::log::LogError| TrainError::Stream(error.to_string());
        loop {
            let there = self.log.range(EXAMPLES, 0).map_err(failed)?;
            if next + count <= there.end {
                return Ok(next);
            }
            if self.stop.end().max(self.ended.end()) >= End::AtEnd {
                return Ok(next.min(there.end.saturating_sub(count)).max(there.start));
            }
            self.ended.wait(PAUSE);
        }
    }

    /// About `count` examples from `start` on.
    ///
    /// # Errors
    /// When the log fails, or has what the job cannot read.
    pub fn batches(&self, start: u64, count: u64) -> Result<Vec<Batch>, TrainError> {
        let size = BATCH.min(count).max(1);
        let nobody_more = Arc::new(Stop::new(End::AtEnd));
        let examples = Examples::new(Arc::clone(&self.log), &self.run, &self.transforms, nobody_more);
        let examples = examples.without_words();
        let feed = Feed {
            row_count: count,
            batch_size: size as usize,
            grains: Grains::new(1),
            rank: 0,
            rank_count: 1,
        };
        let mut source = examples.source(feed, 0, Mark { next: start, ..Mark::default() })?;
        let mut batches = Vec::new();
        for step in 0..count / size {
            let mut read = LocalBatch::default();
            if !source.read(step, &mut read, &AtomicBool::new(false))? {
                break;
            }
            batches.push(read.samples);
        }
        Ok(batches)
    }
}
