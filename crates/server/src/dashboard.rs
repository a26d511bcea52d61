//! The page at `/`: models, versions, latency, throughput and scores, live, with no asset from elsewhere.
//!
//! Once a second the counters are compared with those of the second before, and the difference is kept for a
//! minute. So percentiles are those of the last seconds, not of all time.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use axum::response::{Html, IntoResponse, Response};
use http::{HeaderValue, header};
use serde_json::{Map, Value, json};

use crate::{
    clock,
    engine::Engine,
    histogram::Counts,
    metrics::{OUTCOMES, STAGES, Stage},
    models::Model,
};

/// The page itself; it asks for `/dashboard.json` every second.
const PAGE: &str = include_str!("dashboard/page.html");
/// Seconds that are kept.
const SECONDS_KEPT: usize = 60;
/// Seconds over which percentiles of stages are taken.
const SECONDS_RECENT: usize = 10;

/// The last minute.
#[derive(Debug, Default)]
pub struct History(Mutex<VecDeque<Second>>);

/// What happened in one second.
#[derive(Debug)]
struct Second {
    outcomes: [u64; OUTCOMES.len()],
    samples: u64,
    stages: Vec<Counts>,
    batches: Counts,
}

/// Counters at one moment.
struct Moment {
    outcomes: [u64; OUTCOMES.len()],
    samples: u64,
    stages: Vec<Counts>,
    batches: Counts,
}

impl Moment {
    fn of(engine: &Engine) -> Moment {
        let metrics = &engine.metrics;
        Moment {
            outcomes: std::array::from_fn(|place| metrics.outcome(OUTCOMES[place].0)),
            samples: metrics.samples.load(Ordering::Relaxed),
            stages: STAGES.iter().map(|(stage, _)| metrics.stage(*stage)).collect(),
            batches: metrics.batch_samples.counts(),
        }
    }

    fn since(&self, before: &Moment) -> Second {
        Second {
            outcomes: std::array::from_fn(|place| self.outcomes[place] - before.outcomes[place]),
            samples: self.samples - before.samples,
            stages: self.stages.iter().zip(&before.stages).map(|(now, then)| now.since(then)).collect(),
            batches: self.batches.since(&before.batches),
        }
    }
}

/// Compares the counters every second, for as long as the server runs.
pub async fn watch(engine: Arc<Engine>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    let mut before = Moment::of(&engine);
    loop {
        ticks.tick().await;
        let now = Moment::of(&engine);
        let mut seconds = engine.history.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seconds.len() == SECONDS_KEPT {
            seconds.pop_front();
        }
        seconds.push_back(now.since(&before));
        drop(seconds);
        before = now;
    }
}

/// The page. It may load nothing from elsewhere, and nobody may frame it.
pub fn page() -> Response {
    let mut response = Html(PAGE).into_response();
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                  img-src data:; frame-ancestors 'none'";
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    response
}

/// What the page shows.
pub fn data(engine: &Engine) -> Value {
    let (waiting_requests, waiting_samples) = engine.waiting();
    let metrics = &engine.metrics;
    let log = engine.log.counts();
    let mut page = recent(engine);
    let now = json!({
        "now_us": clock::unix_us(),
        // What the page says of the tiles and of the stages.
        "recent_seconds": SECONDS_RECENT,
        "started_us": engine.started_us(),
        "program": env!("CARGO_PKG_VERSION"),
        "ready": engine.is_ready(),
        "draining": engine.is_draining(),
        "models": engine.models.all().iter().map(|model| about(model)).collect::<Vec<_>>(),
        "queue": { "requests": waiting_requests, "samples": waiting_samples },
        "connections": metrics.connections.load(Ordering::Relaxed),
        "swaps": metrics.swaps.load(Ordering::Relaxed),
        "load_failures": metrics.load_failures.load(Ordering::Relaxed),
        "log": { "on": engine.log.is_on(), "written": log.written, "dropped": log.dropped, "problem": engine.log.problem() },
    });
    if let Value::Object(now) = now {
        page.extend(now);
    }
    Value::Object(page)
}

/// The last minute: a row a second, and percentiles by stage.
fn recent(engine: &Engine) -> Map<String, Value> {
    let seconds = engine.history.0.lock().unwrap_or_else(PoisonError::into_inner);
    let rows: Vec<Value> = seconds
        .iter()
        .map(|second| {
            let total = &second.stages[Stage::Total as usize];
            let outcomes = OUTCOMES.iter().zip(second.outcomes).map(|((_, name), count)| (*name, count));
            let mut row: Map<String, Value> =
                outcomes.map(|(name, count)| (name.to_owned(), count.into())).collect();
            row.insert("samples".to_owned(), second.samples.into());
            row.insert("p50_us".to_owned(), total.percentile(0.5).into());
            row.insert("p99_us".to_owned(), total.percentile(0.99).into());
            Value::Object(row)
        })
        .collect();
    let last = || seconds.iter().rev().take(SECONDS_RECENT);
    let stages = STAGES.iter().map(|(stage, name)| {
        let mut all = Counts::default();
        last().for_each(|second| all.merge(&second.stages[*stage as usize]));
        let us = |share| all.percentile(share);
        json!({ "stage": name, "count": all.count(), "p50_us": us(0.5), "p90_us": us(0.9), "p99_us": us(0.99),
                "p999_us": us(0.999) })
    });
    let mut batches = Counts::default();
    last().for_each(|second| batches.merge(&second.batches));
    let mut page = Map::new();
    page.insert("stages".to_owned(), stages.collect());
    page.insert("seconds".to_owned(), rows.into());
    page.insert(
        "batch_samples_mean".to_owned(),
        (batches.sum() as f64 / batches.count().max(1) as f64).into(),
    );
    page
}

fn about(model: &Model) -> Value {
    let entry = model.entry();
    let loaded = model.loaded();
    let tasks = loaded.iter().flat_map(|loaded| loaded.outputs.iter().zip(&loaded.tallies));
    let tasks = tasks.map(|([name, _], tally)| {
        json!({ "task": name, "count": tally.count(), "mean": tally.mean(), "tenths": tally.tenths() })
    });
    let version = loaded.as_ref().map(|loaded| loaded.snapshot.version());
    json!({
        "name": entry.name,
        "version": entry.version,
        "state": entry.state,
        "reason": entry.reason,
        "step": version.map(|version| version.step),
        "data_time": version.and_then(|version| version.data_time),
        "published_ms": loaded.as_ref().and_then(|loaded| loaded.published_ms),
        "judged": loaded.as_ref().map(|loaded| loaded.judged["candidate"].clone()),
        "since_us": loaded.as_ref().map(|loaded| loaded.since_us),
        "bytes": loaded.as_ref().map(|loaded| loaded.snapshot.bytes()),
        "tasks": tasks.collect::<Vec<_>>(),
    })
}
