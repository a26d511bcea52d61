//! A reader's cursor, and what tells whether the log is still the one that it was in.

use thiserror::Error;

use super::{Limit, Log, LogError, Offset, Records};

/// How far a topic's partition is read, and what it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor {
    /// The first record that was not read.
    pub next: Offset,
    /// [Identity](Log::identity) of the topic; 0 where it is not known.
    pub identity: u64,
    /// [Checksum](super::Stored::sum) of the record before `next`; 0 where it is not known.
    pub sum: u64,
}

/// Why a cursor cannot be gone on from.
#[derive(Debug, Error)]
pub enum CursorError {
    /// The log failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The topic was made anew, or the log is another one.
    #[error(
        "topic `{topic}` is not the one that was read up to record {next}: it was made anew, or this is another log"
    )]
    OtherTopic {
        /// The topic.
        topic: String,
        /// How far the other one was read.
        next: Offset,
    },
    /// The topic ends before the cursor.
    #[error(
        "topic `{topic}` ends at record {end}, and it was read up to record {next}: records {end} to {} are lost, or this is another log", next - 1
    )]
    Lost {
        /// The topic.
        topic: String,
        /// Where it ends.
        end: Offset,
        /// How far it was read.
        next: Offset,
    },
    /// The last record that was read is another now.
    #[error(
        "record {offset} of topic `{topic}` is another than the one that was read: the log lost records, or this is another log"
    )]
    OtherRecord {
        /// The topic.
        topic: String,
        /// The record.
        offset: Offset,
    },
}

impl Cursor {
    /// Refuses a log that is not the one that was read. A record that retention has removed says nothing.
    ///
    /// # Errors
    /// When the topic is another one, ends before the cursor, or has another record before it; or the log fails.
    pub fn check(&self, log: &dyn Log, topic: &str, partition: u32) -> Result<(), CursorError> {
        let Cursor { next, identity, sum } = *self;
        if next == 0 {
            return Ok(());
        }
        let found = log.identity(topic)?;
        if identity != 0 && found != identity {
            return Err(CursorError::OtherTopic { topic: topic.to_owned(), next });
        }
        let range = log.range(topic, partition)?;
        if range.end < next {
            return Err(CursorError::Lost { topic: topic.to_owned(), end: range.end, next });
        }
        if sum == 0 || next <= range.start {
            return Ok(());
        }
        let mut last = Records::default();
        match log.read(topic, partition, next - 1, Limit { records: 1, bytes: 1 }, &mut last) {
            // Retention was faster.
            Err(LogError::Gone { .. }) => return Ok(()),
            read => read?,
        }
        if last.last().map(|record| record.sum()) == Some(sum) {
            return Ok(());
        }
        Err(CursorError::OtherRecord { topic: topic.to_owned(), offset: next - 1 })
    }
}
