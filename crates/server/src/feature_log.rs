//! Scored requests, noted for training.
//!
//! ```text
//!   answer ──offer──► bounded queue ──one thread──► Sink (segments in a directory, or an event log)
//!              └─full: counted, dropped                └─disk fails: counted, dropped, tried again
//! ```
//!
//! Nothing here is ever waited for: an answer goes out whether or not its record can be kept, and every record that
//! is lost is counted. Which requests are noted depends on their id alone, so that a second server, or a second
//! run, notes the same ones.

mod record;
mod room;
mod rows;
mod segments;

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread::JoinHandle,
};

pub use record::{Record, RecordError};
pub use room::Room;
pub use rows::{ROWS_BYTES_MAX, RawColumns, Rows, RowsError};
pub use segments::{SEGMENT_MAGIC, SegmentError, SegmentReader, Segments, make_own};

/// Where records go: the local directory of [`Segments`], or an event log, whose impressions are a record's
/// [rows](Record::rows).
pub trait Sink: Send {
    /// Adds a record behind the others, in memory, or hands over a part of it where it is large.
    ///
    /// # Errors
    /// When this record cannot be taken, or not all of it; the sink must be ready for the next one then.
    fn append(&mut self, record: &Record) -> io::Result<()>;

    /// Hands over what was added since the last call.
    ///
    /// # Errors
    /// When it could not be kept; then none of it is, and the sink must be ready for the next.
    fn flush(&mut self) -> io::Result<()>;
}

/// Records that may wait for the disk.
const WAITING_MAX: usize = 4096;
/// Bytes of records that may wait for the disk.
const WAITING_BYTES_MAX: u64 = 64 << 20;

/// What became of the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogCounts {
    /// Kept.
    pub written: u64,
    /// Lost: the queue was full or the sink failed.
    pub dropped: u64,
}

/// The log as the engine sees it.
#[derive(Debug, Default)]
pub struct FeatureLog {
    shared: Arc<Shared>,
    /// Records whose id hashes below this are noted.
    threshold: u64,
    sender: Option<SyncSender<Record>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    written: AtomicU64,
    dropped: AtomicU64,
    waiting_bytes: AtomicU64,
    /// The last failure of the sink, until it works again.
    problem: Mutex<Option<String>>,
}

impl FeatureLog {
    /// A log that notes nothing.
    pub fn off() -> FeatureLog {
        FeatureLog::default()
    }

    /// Notes this share of the requests, from 0 to 1.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(sink: Box<dyn Sink>, share: f64) -> io::Result<FeatureLog> {
        let shared = Arc::new(Shared::default());
        let (sender, records) = sync_channel(WAITING_MAX);
        let thread = std::thread::Builder::new().name("feature-log".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || write_all(&records, sink, &shared)
        })?;
        let threshold = (share.clamp(0.0, 1.0) * 2f64.powi(32)) as u64;
        Ok(FeatureLog { shared, threshold, sender: Some(sender), thread: Mutex::new(Some(thread)) })
    }

    /// Whether anything is noted at all.
    pub fn is_on(&self) -> bool {
        self.sender.is_some()
    }

    /// Whether a request of this id is to be noted.
    pub fn wants(&self, id: &str) -> bool {
        self.sender.is_some() && u64::from(crc32c::crc32c(id.as_bytes())) < self.threshold
    }

    /// Notes a record, or counts it as lost.
    pub fn offer(&self, record: Record) {
        let Some(sender) = &self.sender else { return };
        let bytes = record.bytes();
        let waiting = self.shared.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        let sent = match waiting + bytes > WAITING_BYTES_MAX {
            true => Err(TrySendError::Full(record)),
            false => sender.try_send(record),
        };
        if let Err(TrySendError::Disconnected(_)) = &sent {
            lose(&self.shared, 0, &io::Error::other("its writer has stopped; start the server again"));
        }
        if sent.is_err() {
            self.shared.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What became of the records so far.
    pub fn counts(&self) -> LogCounts {
        LogCounts {
            written: self.shared.written.load(Ordering::Relaxed),
            dropped: self.shared.dropped.load(Ordering::Relaxed),
        }
    }

    /// Why records are being lost, if they are.
    pub fn problem(&self) -> Option<String> {
        self.shared.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes what waits and ends the thread.
    pub fn finish(&mut self) {
        self.sender = None;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // Whatever it lost has been counted.
            let _ = thread.join();
        }
    }
}

impl Drop for FeatureLog {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Bytes that are gathered before they are handed over.
const GATHERED_BYTES_MAX: u64 = 1 << 20;

fn write_all(records: &Receiver<Record>, mut sink: Box<dyn Sink>, shared: &Shared) {
    while let Ok(first) = records.recv() {
        let (mut gathered, mut bytes, mut next) = (0, 0, Some(first));
        while let Some(record) = next {
            bytes += record.bytes();
            // A panic over one record is that record's problem: this thread is the only one that writes.
            let appended = catch_unwind(AssertUnwindSafe(|| sink.append(&record)));
            match appended.unwrap_or_else(|_| Err(io::Error::other("an internal error in one record"))) {
                Ok(()) => gathered += 1,
                Err(error) => lose(shared, 1, &error),
            }
            next = if bytes < GATHERED_BYTES_MAX { records.try_recv().ok() } else { None };
        }
        match sink.flush() {
            Ok(()) if gathered > 0 => {
                shared.written.fetch_add(gathered, Ordering::Relaxed);
                *shared.problem.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
            Ok(()) => {}
            Err(error) => lose(shared, gathered, &error),
        }
        shared.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

fn lose(shared: &Shared, count: u64, error: &io::Error) {
    shared.dropped.fetch_add(count, Ordering::Relaxed);
    *shared.problem.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
}

#[cfg(test)]
mod tests;
