//! The log on NATS JetStream beside a bare client: the same messages in the same batches, every batch acknowledged before the
//! next, and pulled in the same portions.
//!
//! `cargo bench -p campanile-stream --features nats --bench jetstream`: starts a server of its own; rounds in turns, medians of
//! the ratios.

use std::time::{Duration, Instant};

use async_nats::jetstream::{
    self,
    consumer::{AckPolicy, pull},
    stream,
};
use bytes::Bytes;
use campanile_stream::log::{Limit, Log, Record, Records, TopicOptions};
use futures_util::StreamExt;

#[path = "../tests/suite/broker.rs"]
#[expect(dead_code, reason = "nobody kills the server here")]
mod broker;

const ROUNDS: usize = 5;
const RECORDS: usize = 60_000;
/// Records of one read.
const PORTION: usize = 4096;

fn main() {
    let Some(broker) = broker::Broker::start() else { return };
    let log = broker.open()();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let client = runtime.block_on(async_nats::connect(broker.url())).expect("the server is there");
    // It starts a task of its own.
    let _inside = runtime.enter();
    let context = jetstream::new(client);
    println!("{RECORDS} records, medians of {ROUNDS} rounds, in thousands a second");
    println!(
        "{:>8} {:>7} {:>10} {:>10} {:>9} {:>10} {:>10} {:>9}",
        "payload", "batch", "append", "bare", "of bare", "read", "bare", "of bare"
    );
    for (bytes, batch) in [(200, 64), (200, 1000), (1024, 1000)] {
        let (mut ours, mut bare) = ([vec![], vec![]], [vec![], vec![]]);
        let mut shares = [vec![], vec![]];
        for round in 0..ROUNDS {
            let name = format!("bench{bytes}-{batch}-{round}");
            let payload = vec![7; bytes];
            let one = runtime.block_on(bare_client(&context, &name, &payload, batch));
            let other = event_log(&*log, &name, &payload, batch);
            for (way, (bare_rate, our_rate)) in [(one.0, other.0), (one.1, other.1)].into_iter().enumerate() {
                ours[way].push(our_rate);
                bare[way].push(bare_rate);
                shares[way].push(100.0 * our_rate / bare_rate);
            }
        }
        let [append, read] = ours.map(median);
        let [bare_append, bare_read] = bare.map(median);
        let [append_share, read_share] = shares.map(median);
        println!(
            "{bytes:>8} {batch:>7} {append:>10.0} {bare_append:>10.0} {append_share:>8.0}% {read:>10.0} {bare_read:>10.0} {read_share:>8.0}%"
        );
    }
}

/// Thousands of messages a second, written and read by a client that does nothing else.
async fn bare_client(context: &jetstream::Context, name: &str, payload: &[u8], batch: usize) -> (f64, f64) {
    let config = stream::Config {
        name: format!("{name}-bare"),
        subjects: vec![format!("{name}.bare")],
        ..Default::default()
    };
    let stream = context.create_stream(config).await.expect("a stream");
    let subject = format!("{name}.bare");
    // As long as a record's message: its time and its payload.
    let message = Bytes::from([&[0; 8], payload].concat());
    let start = Instant::now();
    for first in (0..RECORDS).step_by(batch) {
        let mut waiting = Vec::with_capacity(batch);
        for _ in first..RECORDS.min(first + batch) {
            waiting.push(context.publish(subject.clone(), message.clone()).await.expect("it is sent"));
        }
        for ack in waiting {
            ack.await.expect("it is acknowledged");
        }
    }
    let written = rate(start);
    let config = pull::Config {
        ack_policy: AckPolicy::None,
        inactive_threshold: Duration::from_secs(60),
        memory_storage: true,
        ..Default::default()
    };
    let start = Instant::now();
    let consumer = stream.create_consumer(config).await.expect("a consumer");
    let (mut count, mut sum) = (0, 0u64);
    while count < RECORDS {
        let portion = consumer.fetch().max_messages(PORTION).messages().await;
        let mut portion = portion.expect("messages");
        while let Some(message) = portion.next().await {
            sum += u64::from(message.expect("a message").payload[0]);
            count += 1;
        }
    }
    std::hint::black_box(sum);
    (written, rate(start))
}

/// The same through the log.
fn event_log(log: &dyn Log, topic: &str, payload: &[u8], batch: usize) -> (f64, f64) {
    log.create(topic, TopicOptions::default()).expect("a topic");
    let records = vec![Record { time_ms: 1, payload }; batch];
    let start = Instant::now();
    for first in (0..RECORDS).step_by(batch) {
        log.append(topic, 0, &records[..batch.min(RECORDS - first)]).expect("it is acknowledged");
    }
    let written = rate(start);
    let start = Instant::now();
    let (mut from, mut out, mut sum) = (0, Records::default(), 0u64);
    while from < RECORDS as u64 {
        log.read(topic, 0, from, Limit { records: PORTION, bytes: usize::MAX }, &mut out).expect("records");
        sum += out.iter().map(|record| u64::from(record.payload[0])).sum::<u64>();
        from += out.len() as u64;
    }
    std::hint::black_box(sum);
    (written, rate(start))
}

fn rate(start: Instant) -> f64 {
    RECORDS as f64 / 1e3 / start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
