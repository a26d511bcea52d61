//! Reading a partition: a consumer that forgets nothing and acknowledges nothing pulls the messages behind an offset.

use std::{sync::atomic::Ordering, time::Duration};

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use futures_util::StreamExt;

use super::{JetStreamLog, Partition};
use crate::log::{Limit, LogError, Offset, Records, Stored};

/// The most messages asked for at once.
pub(super) const FETCH_MAX: usize = 4096;
/// How long a message that is known to be there may take to come.
const ARRIVAL: Duration = Duration::from_secs(5);

/// A consumer, the record that it will give next, and how often the connection had been lost when it was made: a server that
/// comes back does not know it.
pub(super) type Consumer = Option<(PullConsumer, Offset, u64)>;

/// What is read.
#[derive(Clone, Copy)]
pub(super) struct Reading<'a> {
    pub topic: &'a str,
    pub partition: u32,
    pub place: &'a Partition,
}

/// What is asked of a consumer.
struct Ask {
    from: Offset,
    count: usize,
    /// To wait for one message, where otherwise only what is at hand comes.
    is_patient: bool,
}

impl JetStreamLog {
    /// Takes records from `from` on, as far as the stream goes now.
    pub(super) async fn pull(
        &self,
        of: Reading<'_>,
        from: Offset,
        limit: Limit,
        consumer: &mut Consumer,
        out: &mut Records,
    ) -> Result<(), LogError> {
        let range = self.range_of(of.place).await?;
        if from < range.start {
            return Err(gone(of, from, range.start));
        }
        let (mut at, mut is_patient) = (from, false);
        while at < range.end && !out.is_full(limit) {
            let losses = self.losses.load(Ordering::Relaxed);
            let pull = match consumer.take() {
                Some((pull, reached, made)) if reached == at && made == losses => pull,
                _ => self.consumer(of.place, at).await?,
            };
            let left = (range.end - at).min((limit.records.max(1) - out.len()) as u64) as usize;
            let ask = Ask { from: at, count: left.min(FETCH_MAX), is_patient };
            let came = self.take(of, ask, &pull, limit, out).await?;
            let taken = out.last().map_or(at, |record| record.offset + 1);
            // What was fetched above the limit is fetched again by another consumer.
            *consumer = (came.unwrap_or(at) == taken).then_some((pull, taken, losses));
            if taken == at && is_patient {
                // Never as if the log ended here: a reader might end with it.
                let problem = format!("record {at} of {} is there and did not come", of.place.subject);
                return Err(self.error("read from")(&problem));
            }
            // A busy server may know of a message before its consumer does, and answer that there is none.
            is_patient = taken == at;
            at = taken;
        }
        Ok(())
    }

    /// Takes what comes, and says up to where.
    async fn take(
        &self,
        of: Reading<'_>,
        ask: Ask,
        pull: &PullConsumer,
        limit: Limit,
        out: &mut Records,
    ) -> Result<Option<Offset>, LogError> {
        let messages = if ask.is_patient {
            pull.batch().max_messages(1).expires(ARRIVAL).messages().await
        } else {
            pull.fetch().max_messages(ask.count).messages().await
        };
        let mut messages = messages.map_err(|error| self.error("read from")(&error))?;
        let mut came = None;
        while let Some(message) = messages.next().await {
            let message = message.map_err(|error| self.error("read from")(&error))?;
            let sequence = message.info().map_err(|error| self.error("read from")(&error))?.stream_sequence;
            came = Some(sequence);
            if out.is_full(limit) {
                continue;
            }
            let (time, payload) = message.payload.split_first_chunk().ok_or_else(|| {
                self.error("read from")(&format!("message {sequence} of {} is no record", of.place.subject))
            })?;
            // Somebody may have deleted a message, or retention may have overtaken this read.
            let (offset, wanted) = (sequence - 1, out.last().map_or(ask.from, |record| record.offset + 1));
            if offset != wanted {
                return Err(gone(of, wanted, offset));
            }
            out.push(Stored { offset, time_ms: u64::from_le_bytes(*time), payload });
        }
        Ok(came)
    }

    async fn consumer(&self, partition: &Partition, from: Offset) -> Result<PullConsumer, LogError> {
        let config = pull::Config {
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: from + 1 },
            ack_policy: AckPolicy::None,
            inactive_threshold: Duration::from_secs(60),
            memory_storage: true,
            num_replicas: 1,
            ..Default::default()
        };
        let made = partition.stream.create_consumer(config).await;
        made.map_err(|error| self.error("read from")(&error))
    }
}

/// The error of a record that the log no longer has.
fn gone(of: Reading<'_>, offset: Offset, start: Offset) -> LogError {
    LogError::Gone { topic: of.topic.to_owned(), partition: of.partition, offset, start }
}
