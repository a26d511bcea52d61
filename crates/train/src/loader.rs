//! The next batch, prepared while the current one trains.
//!
//! Batches come from a [`Source`]: prepared data, or a stream that has no end. In prepared data, which rows make up a step's batch is a pure function of the step: position `step % steps_per_epoch` of epoch
//! `step / steps_per_epoch`, cut into grains. So a run resumes by its step alone, and a rank reads just the
//! rows of its own grains.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::JoinHandle,
};

use campanile_data::{DataError, Dataset, Reader, UnknownIds};
use campanile_spec::{Batch, Grains, config::Run};

use crate::TrainError;

/// A rank's samples of a global batch.
#[derive(Debug, Default)]
pub struct LocalBatch {
    /// This rank's samples.
    pub samples: Batch,
    /// Samples of the global batch.
    pub global_count: usize,
    /// Place of the first of this rank's samples in the global batch.
    pub first: usize,
    /// How far a stream is read with this batch; none for prepared data, where that follows from the step.
    pub mark: Option<Mark>,
}

/// How far a stream is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mark {
    /// The first record that was not trained on.
    pub next: u64,
    /// The newest time of those that were, in milliseconds.
    pub time_ms: i64,
    /// The identity of the topic, and a checksum of the record before `next`, by which the log is known again; 0 where they are not
    /// known.
    pub identity: u64,
    /// The checksum.
    pub sum: u64,
}

/// Where the batches of a run come from, one for each step, in order.
pub trait Source: Send {
    /// Reads this rank's part of the batch of `step`. False when there is none and will be none; then it is so on all
    /// ranks. A source that waits looks at `nobody_waits` now and then, and gives up when it is set.
    ///
    /// # Errors
    /// When the data cannot be read.
    fn read(
        &mut self,
        step: u64,
        out: &mut LocalBatch,
        nobody_waits: &AtomicBool,
    ) -> Result<bool, TrainError>;
}

/// Prepared data as a source.
struct FromDataset {
    feed: Feed,
    reader: Reader,
    unknown: UnknownIds,
}

impl Source for FromDataset {
    fn read(&mut self, step: u64, out: &mut LocalBatch, _: &AtomicBool) -> Result<bool, TrainError> {
        self.feed.read(&mut self.reader, step, out)?;
        let (epoch, start) = self.feed.place(step);
        self.unknown.draw(epoch, start + out.first as u64, &mut out.samples.bags);
        Ok(true)
    }
}

/// How steps map to rows.
#[derive(Debug, Clone, Copy)]
pub struct Feed {
    /// Rows of an epoch.
    pub row_count: u64,
    /// Rows of a global batch.
    pub batch_size: usize,
    /// The cut of a batch.
    pub grains: Grains,
    /// This rank.
    pub rank: usize,
    /// All ranks.
    pub rank_count: usize,
}

impl Feed {
    /// Steps of one pass; the last batch may be short.
    pub fn steps_per_epoch(&self) -> u64 {
        self.row_count.div_ceil(self.batch_size as u64)
    }

    /// The epoch of a step, and the position of its batch's first sample in it.
    fn place(&self, step: u64) -> (u64, u64) {
        (step / self.steps_per_epoch(), step % self.steps_per_epoch() * self.batch_size as u64)
    }

    /// Reads this rank's part of the batch of `step`.
    ///
    /// # Errors
    /// When the data cannot be read.
    pub fn read(&self, reader: &mut Reader, step: u64, out: &mut LocalBatch) -> Result<(), DataError> {
        let (epoch, start) = self.place(step);
        let count = (self.row_count - start).min(self.batch_size as u64) as usize;
        let own = self.grains.samples_of_rank(count, self.rank, self.rank_count);
        out.global_count = count;
        out.first = own.start;
        out.mark = None;
        reader.read(epoch, start + own.start as u64..start + own.end as u64, &mut out.samples)
    }
}

/// A thread that reads ahead.
pub struct Loader {
    batches: Receiver<Result<Option<LocalBatch>, TrainError>>,
    used: SyncSender<LocalBatch>,
    thread: Option<JoinHandle<()>>,
    ended: bool,
    nobody_waits: Arc<AtomicBool>,
}

impl Loader {
    /// Starts to read the batches of `steps` of prepared data, at most `ahead` of them in advance, for training a run.
    ///
    /// # Errors
    /// When the data cannot be opened.
    pub fn start(
        run: &Run,
        dataset: &Dataset,
        feed: Feed,
        steps: Range<u64>,
        ahead: usize,
    ) -> Result<Loader, DataError> {
        let (reader, unknown) = (dataset.reader()?, UnknownIds::of(&run.data, run.seed));
        Ok(Loader::of(Box::new(FromDataset { feed, reader, unknown }), steps, ahead, &run.model.followers))
    }

    /// Starts to read the batches of `steps` from a source, at most `ahead` of them in advance. The ids of the features
    /// `followers` come once more behind the others, for the tables that follow a teacher by them.
    pub fn of(mut source: Box<dyn Source>, steps: Range<u64>, ahead: usize, followers: &[usize]) -> Loader {
        let (ahead, followers) = (ahead.max(1), followers.to_vec());
        let (send, batches) = sync_channel(ahead);
        let (used, returned) = sync_channel::<LocalBatch>(ahead + 2);
        let nobody_waits = Arc::new(AtomicBool::new(false));
        let left = Arc::clone(&nobody_waits);
        let thread = std::thread::spawn(move || {
            for step in steps {
                let mut batch = returned.try_recv().unwrap_or_default();
                let read = source.read(step, &mut batch, &left);
                if let Ok(true) = read {
                    batch.samples.bags.repeat(&followers);
                }
                let outcome = read.map(|there| there.then_some(batch));
                let ends = !matches!(outcome, Ok(Some(_)));
                // The receiver is gone when training has ended early; then there is nobody to read for.
                if send.send(outcome).is_err() || ends {
                    return;
                }
            }
        });
        Loader { batches, used, thread: Some(thread), ended: false, nobody_waits }
    }

    /// The batch of the next step; none at the end of a stream, and from then on.
    ///
    /// # Errors
    /// When the data cannot be read.
    ///
    /// # Panics
    /// After the last step, or after an error.
    pub fn next_batch(&mut self) -> Result<Option<LocalBatch>, TrainError> {
        if self.ended {
            return Ok(None);
        }
        let next = self.batches.recv().expect("a batch is asked for once for every step");
        self.ended = matches!(next, Ok(None));
        next
    }

    /// Gives a batch back, so that its memory serves again.
    pub fn give_back(&self, batch: LocalBatch) {
        // When the bin is full or the reader has ended, the batch is simply freed.
        let _ = self.used.try_send(batch);
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        let (_, nobody) = sync_channel(1);
        self.batches = nobody;
        self.nobody_waits.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
