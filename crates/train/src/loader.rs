//! The next batch, prepared while the current one trains.
//!
//! Which rows make up a step's batch is a pure function of the step: position `step % steps_per_epoch` of epoch
//! `step / steps_per_epoch`, cut into grains. So a run resumes by its step alone, and a rank reads just the
//! rows of its own grains.

use std::{
    ops::Range,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::JoinHandle,
};

use campanile_data::{DataError, Dataset, Reader};
use campanile_spec::{Batch, Grains};

/// A rank's samples of a global batch.
#[derive(Debug, Default)]
pub struct LocalBatch {
    /// This rank's samples.
    pub samples: Batch,
    /// Samples of the global batch.
    pub global_count: usize,
    /// Place of the first of this rank's samples in the global batch.
    pub first: usize,
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

    /// Reads this rank's part of the batch of `step`.
    ///
    /// # Errors
    /// When the data cannot be read.
    pub fn read(&self, reader: &mut Reader, step: u64, out: &mut LocalBatch) -> Result<(), DataError> {
        let epoch = step / self.steps_per_epoch();
        let start = step % self.steps_per_epoch() * self.batch_size as u64;
        let count = (self.row_count - start).min(self.batch_size as u64) as usize;
        let own = self.grains.samples_of_rank(count, self.rank, self.rank_count);
        out.global_count = count;
        out.first = own.start;
        reader.read(epoch, start + own.start as u64..start + own.end as u64, &mut out.samples)
    }
}

/// A thread that reads ahead.
pub struct Loader {
    batches: Receiver<Result<LocalBatch, DataError>>,
    used: SyncSender<LocalBatch>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Starts to read the batches of `steps`, at most `ahead` of them in advance.
    ///
    /// # Errors
    /// When the data cannot be opened.
    pub fn start(
        dataset: &Dataset,
        feed: Feed,
        steps: Range<u64>,
        ahead: usize,
    ) -> Result<Loader, DataError> {
        let mut reader = dataset.reader()?;
        let ahead = ahead.max(1);
        let (send, batches) = sync_channel(ahead);
        let (used, returned) = sync_channel::<LocalBatch>(ahead + 2);
        let thread = std::thread::spawn(move || {
            for step in steps {
                let mut batch = returned.try_recv().unwrap_or_default();
                let outcome = feed.read(&mut reader, step, &mut batch).map(|()| batch);
                let failed = outcome.is_err();
                // The receiver is gone when training has ended early; then there is nobody to read for.
                if send.send(outcome).is_err() || failed {
                    return;
                }
            }
        });
        Ok(Loader { batches, used, thread: Some(thread) })
    }

    /// The batch of the next step.
    ///
    /// # Errors
    /// When the data cannot be read.
    ///
    /// # Panics
    /// After the last step, or after an error.
    pub fn next_batch(&mut self) -> Result<LocalBatch, DataError> {
        self.batches.recv().expect("a batch is asked for once for every step")
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
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
