//! The event log on NATS JetStream, for stages on several machines.
//!
//! Every partition is a stream with one subject, so that its sequence numbers are our offsets plus one and have no
//! gaps. Each message says which one it follows, so a second writer, or a message that was lost on the way, is noticed
//! by the server and cannot leave a hole. A cursor is the last message of a subject of its own. A message is the
//! record's time (u64, little-endian) and its payload.
//!
//! The server keeps what it has acknowledged by its own rules for syncing and replication; [`TopicOptions::sync`] says
//! nothing here.

mod reading;

use std::{
    collections::BTreeMap,
    ops::Range,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_nats::{
    ConnectOptions, Event,
    jetstream::{self, message::PublishMessage, stream},
};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::{runtime::Runtime, sync::Notify};

use self::reading::{Consumer, FETCH_MAX, Reading};
use super::{Limit, Log, LogError, Offset, PAYLOAD_BYTES_MAX, Record, Records, TopicOptions, check_name};

/// The most messages that wait for their acknowledgement at once.
const WINDOW: usize = 1000;
/// How long a request may take before the server counts as gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where the server is, and how to get in.
#[derive(Clone, Default)]
pub struct Server {
    /// For example `nats://127.0.0.1:4222` or `tls://broker:4222`; several with commas between.
    pub url: String,
    /// Names all streams, so that several logs can share a server.
    pub prefix: String,
    /// A credentials file, as `nsc` makes them.
    pub credentials: Option<PathBuf>,
    /// User and password.
    pub user: Option<(String, String)>,
    /// Certificates to trust beside the system's.
    pub root_certificates: Option<PathBuf>,
    /// Copies of every stream in a cluster; 0 means 1.
    pub replicas: usize,
}

/// A log on a server.
pub struct JetStreamLog {
    server: Server,
    runtime: Runtime,
    context: jetstream::Context,
    /// The last message of a subject is a group's cursor.
    cursors: stream::Stream,
    /// Told when the connection is lost.
    lost: Arc<Notify>,
    /// How often it was.
    losses: Arc<AtomicU64>,
    topics: Mutex<BTreeMap<String, Arc<Topic>>>,
}

struct Topic {
    options: TopicOptions,
    partitions: Vec<Partition>,
}

struct Partition {
    subject: String,
    stream: stream::Stream,
    /// The number of the next record, when this process has written the last.
    next: Mutex<Option<Offset>>,
    /// What the last read left.
    consumer: Mutex<Consumer>,
}

impl JetStreamLog {
    /// Connects.
    ///
    /// # Errors
    /// When the server cannot be reached, does not let us in, or has no JetStream.
    pub fn open(server: Server) -> Result<JetStreamLog, LogError> {
        check_name(&server.prefix)?;
        let failed = |action: &'static str| {
            let url = server.url.clone();
            move |error: &dyn std::fmt::Display| remote(&url, action, error)
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| failed("start")(&error))?;
        let (lost, losses) = (Arc::new(Notify::new()), Arc::new(AtomicU64::new(0)));
        let (context, cursors) = runtime.block_on(async {
            let (told, counted) = (Arc::clone(&lost), Arc::clone(&losses));
            let mut options =
                ConnectOptions::new().request_timeout(Some(PATIENCE)).event_callback(move |event| {
                    if matches!(event, Event::Disconnected) {
                        counted.fetch_add(1, Ordering::Relaxed);
                        told.notify_waiters();
                    }
                    std::future::ready(())
                });
            if let Some((user, password)) = &server.user {
                options = options.user_and_password(user.clone(), password.clone());
            }
            if let Some(path) = &server.credentials {
                options = options
                    .credentials_file(path)
                    .await
                    .map_err(|error| failed("read credentials for")(&error))?;
            }
            // Of several servers the first alone has the scheme.
            options = options.require_tls(server.url.starts_with("tls://"));
            if let Some(path) = &server.root_certificates {
                // Certificates are of no use to a connection that anybody may read.
                options = options.add_root_certificates(path.clone()).require_tls(true);
            }
            let urls: Vec<&str> = server.url.split(',').map(str::trim).collect();
            let client = options.connect(urls).await.map_err(|error| failed("connect to")(&error))?;
            let mut context = jetstream::new(client);
            context.set_timeout(PATIENCE);
            let head = stream_part(&server.prefix);
            let config = stream::Config {
                name: format!("{head}_cursors"),
                subjects: vec![format!("{head}.cursors.>")],
                max_messages_per_subject: 1,
                num_replicas: server.replicas.max(1),
                ..Default::default()
            };
            let cursors = context.get_or_create_stream(config).await;
            let cursors = cursors.map_err(|error| failed("make a stream on")(&error))?;
            Ok::<_, LogError>((context, cursors))
        })?;
        Ok(JetStreamLog {
            server,
            runtime,
            context,
            cursors,
            lost,
            losses,
            topics: Mutex::new(BTreeMap::new()),
        })
    }

    fn stream_name(&self, topic: &str, partition: u32) -> String {
        format!("{}_{}_{partition}", stream_part(&self.server.prefix), stream_part(topic))
    }

    fn subject(&self, topic: &str, partition: u32) -> String {
        format!("{}.{}.{partition}", stream_part(&self.server.prefix), stream_part(topic))
    }

    fn error(&self, action: &'static str) -> impl Fn(&dyn std::fmt::Display) -> LogError + '_ {
        move |error| remote(&self.server.url, action, error)
    }

    /// Does something with the server, and gives up as soon as the connection is lost: an answer that was on its way then never
    /// comes, and waiting for it would take all patience.
    fn unless_lost<T>(
        &self,
        action: &'static str,
        work: impl Future<Output = Result<T, LogError>>,
    ) -> Result<T, LogError> {
        self.runtime.block_on(async {
            tokio::select! {
                done = work => done,
                () = self.lost.notified() => Err(self.error(action)(&"the connection was lost")),
            }
        })
    }

    /// What the server has of a topic's partition, if it has it.
    fn options_of(&self, topic: &str) -> Option<TopicOptions> {
        let name = self.stream_name(topic, 0);
        let found = self.runtime.block_on(self.context.get_stream(name)).ok()?;
        decode_options(found.cached_info().config.description.as_deref()?)
    }

    fn topic(&self, name: &str) -> Result<Arc<Topic>, LogError> {
        if let Some(topic) = lock(&self.topics).get(name) {
            return Ok(Arc::clone(topic));
        }
        check_name(name)?;
        let Some(options) = self.options_of(name) else {
            let (path, topic) = (PathBuf::from(&self.server.url), name.to_owned());
            return Err(LogError::NoTopic { path, topic, known: self.known()?.join(", ") });
        };
        let mut partitions = Vec::new();
        for partition in 0..options.partitions {
            let found = self.runtime.block_on(self.context.get_stream(self.stream_name(name, partition)));
            partitions.push(Partition {
                subject: self.subject(name, partition),
                stream: found.map_err(|error| self.error("find a stream on")(&error))?,
                next: Mutex::new(None),
                consumer: Mutex::new(None),
            });
        }
        let topic = Arc::new(Topic { options, partitions });
        lock(&self.topics).insert(name.to_owned(), Arc::clone(&topic));
        Ok(topic)
    }

    /// The names of all topics.
    fn known(&self) -> Result<Vec<String>, LogError> {
        let head = format!("{}_", stream_part(&self.server.prefix));
        self.runtime.block_on(async {
            let mut names = Vec::new();
            let mut streams = self.context.stream_names();
            while let Some(name) = streams.next().await {
                let name = name.map_err(|error| self.error("list streams on")(&error))?;
                if let Some(topic) = name.strip_prefix(&head).and_then(|rest| rest.strip_suffix("_0")) {
                    names.push(topic.replace('~', "."));
                }
            }
            names.sort();
            Ok(names)
        })
    }

    async fn range_of(&self, partition: &Partition) -> Result<Range<Offset>, LogError> {
        let info =
            partition.stream.get_info().await.map_err(|error| self.error("ask about a stream on")(&error))?;
        // An emptied stream still knows where it was: the first is then one past the last.
        let end = info.state.last_sequence;
        Ok(info.state.first_sequence.saturating_sub(1).min(end)..end)
    }

    fn cursor(&self, group: &str, topic: &str, partition: u32) -> Result<String, LogError> {
        check_name(group)?;
        check_name(topic)?;
        let [head, group, topic] = [&self.server.prefix[..], group, topic].map(stream_part);
        Ok(format!("{head}.cursors.{group}.{topic}.{partition}"))
    }
}

impl Topic {
    fn partition(&self, name: &str, partition: u32) -> Result<&Partition, LogError> {
        let count = self.partitions.len() as u32;
        let topic = name.to_owned();
        self.partitions.get(partition as usize).ok_or(LogError::NoPartition { topic, partition, count })
    }
}

impl Log for JetStreamLog {
    fn create(&self, topic: &str, options: TopicOptions) -> Result<(), LogError> {
        check_name(topic)?;
        if let Some(found) = self.options_of(topic) {
            let (found, wanted) = (found.partitions, options.partitions);
            let topic = topic.to_owned();
            return if found == wanted {
                Ok(())
            } else {
                Err(LogError::OtherPartitions { topic, found, wanted })
            };
        }
        // The first partition comes last: a topic without it is not there.
        for partition in (0..options.partitions).rev() {
            let config = stream::Config {
                name: self.stream_name(topic, partition),
                subjects: vec![self.subject(topic, partition)],
                description: Some(encode_options(&options)),
                max_bytes: if options.keep_bytes == 0 { -1 } else { options.keep_bytes as i64 },
                num_replicas: self.server.replicas.max(1),
                ..Default::default()
            };
            let made = self.runtime.block_on(self.context.get_or_create_stream(config));
            made.map_err(|error| self.error("make a stream on")(&error))?;
        }
        Ok(())
    }

    fn options(&self, topic: &str) -> Result<TopicOptions, LogError> {
        Ok(self.topic(topic)?.options)
    }

    /// When the server made the stream.
    fn identity(&self, topic: &str) -> Result<u64, LogError> {
        let found = self.topic(topic)?;
        let created = found.partitions.first().map(|place| place.stream.cached_info().created);
        Ok(created.map_or(0, |created| created.unix_timestamp_nanos() as u64))
    }

    fn append(&self, topic: &str, partition: u32, records: &[Record<'_>]) -> Result<Offset, LogError> {
        if let Some(long) = records.iter().find(|record| record.payload.len() > PAYLOAD_BYTES_MAX) {
            return Err(LogError::TooLong { bytes: long.payload.len() });
        }
        let found = self.topic(topic)?;
        let partition = found.partition(topic, partition)?;
        let mut next = lock(&partition.next);
        self.unless_lost("write to", async {
            let first = match *next {
                Some(first) => first,
                None => self.range_of(partition).await?.end,
            };
            // Unknown until all are acknowledged.
            *next = None;
            // The first is waited for alone: behind one that does not fit, the next might fit by chance.
            let (head, rest) = records.split_at(records.len().min(1));
            let mut last = first;
            for records in std::iter::once(head).chain(rest.chunks(WINDOW)) {
                let mut waiting = Vec::with_capacity(records.len());
                for record in records {
                    let payload = [&record.time_ms.to_le_bytes()[..], record.payload].concat();
                    let message =
                        PublishMessage::build().payload(Bytes::from(payload)).expected_last_sequence(last);
                    let sent = self.context.send_publish(partition.subject.clone(), message).await;
                    waiting.push(sent.map_err(|error| self.error("write to")(&error))?);
                    last += 1;
                }
                for ack in waiting {
                    ack.await.map_err(|error| self.error("write to")(&error))?;
                }
            }
            *next = Some(first + records.len() as u64);
            Ok(first)
        })
    }

    fn read(
        &self,
        topic: &str,
        partition: u32,
        from: Offset,
        limit: Limit,
        out: &mut Records,
    ) -> Result<(), LogError> {
        out.clear();
        let found = self.topic(topic)?;
        let place = found.partition(topic, partition)?;
        let mut consumer = lock(&place.consumer);
        let of = Reading { topic, partition, place };
        self.unless_lost("read from", self.pull(of, from, limit, &mut consumer, out))
    }

    fn range(&self, topic: &str, partition: u32) -> Result<Range<Offset>, LogError> {
        let found = self.topic(topic)?;
        self.unless_lost("ask about a stream on", self.range_of(found.partition(topic, partition)?))
    }

    fn commit(&self, group: &str, topic: &str, partition: u32, next: Offset) -> Result<(), LogError> {
        let subject = self.cursor(group, topic, partition)?;
        self.topic(topic)?.partition(topic, partition)?;
        let value = Bytes::copy_from_slice(&next.to_le_bytes());
        self.unless_lost("commit to", async {
            let sent = self.context.publish(subject, value).await;
            let ack = sent.map_err(|error| self.error("commit to")(&error))?;
            ack.await.map(drop).map_err(|error| self.error("commit to")(&error))
        })
    }

    fn committed(&self, group: &str, topic: &str, partition: u32) -> Result<Offset, LogError> {
        let subject = self.cursor(group, topic, partition)?;
        let found = match self.runtime.block_on(self.cursors.get_last_raw_message_by_subject(&subject)) {
            Ok(found) => found,
            Err(error) if error.kind() == stream::LastRawMessageErrorKind::NoMessageFound => return Ok(0),
            Err(error) => return Err(self.error("ask for a cursor of")(&error)),
        };
        let bytes = found.payload.first_chunk().filter(|_| found.payload.len() == 8);
        bytes.map(|bytes| u64::from_le_bytes(*bytes)).ok_or_else(|| {
            self.error("read a cursor of")(&format!("{} bytes are no cursor", found.payload.len()))
        })
    }

    fn sync(&self) -> Result<(), LogError> {
        // Whatever was appended was acknowledged.
        Ok(())
    }

    fn trim(&self, topic: &str, partition: u32, before: Offset) -> Result<Offset, LogError> {
        let found = self.topic(topic)?;
        let place = found.partition(topic, partition)?;
        self.unless_lost("remove old records from", async {
            let range = self.range_of(place).await?;
            let before = before.min(range.end);
            if before > range.start {
                // Removes what is below the sequence number, which is one above the offset.
                let purged = place.stream.purge().sequence(before + 1).await;
                purged.map_err(|error| self.error("remove old records from")(&error))?;
            }
            Ok(before.max(range.start))
        })
    }

    fn retain(&self, now_ms: u64) -> Result<u64, LogError> {
        let mut gone = 0;
        for name in self.known()? {
            let topic = self.topic(&name)?;
            if topic.options.keep_ms == 0 {
                continue; // The server itself keeps to the limit of bytes.
            }
            for number in 0..topic.options.partitions {
                let range = self.range(&name, number)?;
                let mut start = range.start;
                let mut records = Records::default();
                'old: while start < range.end {
                    let limit = Limit { records: FETCH_MAX, bytes: 1 << 20 };
                    match self.read(&name, number, start, limit, &mut records) {
                        // The server keeps to its limit of bytes meanwhile.
                        Err(LogError::Gone { start: oldest, .. }) => {
                            start = oldest;
                            continue;
                        }
                        read => read?,
                    }
                    if records.is_empty() {
                        break;
                    }
                    for record in records.iter() {
                        if record.time_ms.saturating_add(topic.options.keep_ms) >= now_ms {
                            break 'old;
                        }
                        start = record.offset + 1;
                    }
                }
                gone += self.trim(&name, number, start)? - range.start;
            }
        }
        Ok(gone)
    }
}

/// A name as part of a stream's: these have no dots, and ours no tildes.
fn stream_part(name: &str) -> String {
    name.replace('.', "~")
}

fn remote(url: &str, action: &'static str, error: &dyn std::fmt::Display) -> LogError {
    LogError::Remote { url: url.to_owned(), action, problem: error.to_string() }
}

fn encode_options(options: &TopicOptions) -> String {
    format!(
        "campanile: partitions {}, keep_ms {}, keep_bytes {}",
        options.partitions, options.keep_ms, options.keep_bytes
    )
}

fn decode_options(text: &str) -> Option<TopicOptions> {
    let rest = text.strip_prefix("campanile: ")?;
    let value =
        |key: &str| rest.split(", ").find_map(|pair| pair.strip_prefix(key)?.trim().parse::<u64>().ok());
    Some(TopicOptions {
        partitions: value("partitions ")? as u32,
        keep_ms: value("keep_ms ")?,
        keep_bytes: value("keep_bytes ")?,
        ..TopicOptions::default()
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
