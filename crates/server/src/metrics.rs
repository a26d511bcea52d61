//! What the server counts, and the text that Prometheus reads.
//!
//! Everything that is counted is a field: adding is an atomic increment, without a name to look up, a lock, or a
//! label to hash. The page of the server and `/metrics` read the same fields.

use std::{
    fmt::Write,
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
};

use crate::{
    engine::Engine,
    histogram::{Counts, Histogram},
};

/// The stages of an answer, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// From bytes to a request that can be scored.
    Read,
    /// Waiting for a scoring thread.
    Queue,
    /// In the model, together with the rest of the batch.
    Score,
    /// From scores to bytes.
    Write,
    /// From the first byte of the body that was read to the answer.
    Total,
}

/// Every stage with its label.
pub const STAGES: &[(Stage, &str)] = &[
    (Stage::Read, "read"),
    (Stage::Queue, "queue"),
    (Stage::Score, "score"),
    (Stage::Write, "write"),
    (Stage::Total, "total"),
];

/// How a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// HTTP with JSON or binary tensors.
    Rest,
    /// gRPC.
    Grpc,
}

impl Transport {
    /// Its label.
    pub fn name(self) -> &'static str {
        TRANSPORTS[self as usize].1
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// With scores.
    Scored,
    /// The client must change something.
    Refused,
    /// There was no place in the queue.
    Busy,
    /// Its time was over.
    Late,
    /// Something of ours.
    Failed,
}

/// Every outcome with its label.
pub const OUTCOMES: &[(Outcome, &str)] = &[
    (Outcome::Scored, "scored"),
    (Outcome::Refused, "refused"),
    (Outcome::Busy, "busy"),
    (Outcome::Late, "late"),
    (Outcome::Failed, "failed"),
];

const TRANSPORTS: &[(Transport, &str)] = &[(Transport::Rest, "rest"), (Transport::Grpc, "grpc")];

/// What the server counts, apart from what belongs to one snapshot.
#[derive(Debug, Default)]
pub struct Metrics {
    stages: [Histogram; STAGES.len()],
    /// Samples of a batch.
    pub batch_samples: Histogram,
    /// Requests of a batch.
    pub batch_requests: Histogram,
    outcomes: [[AtomicU64; OUTCOMES.len()]; TRANSPORTS.len()],
    /// Samples that were scored.
    pub samples: AtomicU64,
    /// Ids that their direct tables have no row for.
    pub unknown_ids: AtomicU64,
    /// Snapshots that came into service.
    pub swaps: AtomicU64,
    /// Snapshots that could not.
    pub load_failures: AtomicU64,
    /// Connections that are open.
    pub connections: AtomicI64,
    /// Connections that were turned away.
    pub connections_refused: AtomicU64,
    /// Connections that lost their places to others.
    pub connections_displaced: AtomicU64,
    /// Scoring threads that had to start anew.
    pub scorer_restarts: AtomicU64,
}

/// What one snapshot answered for one task.
#[derive(Debug, Default)]
pub struct ScoreTally {
    count: AtomicU64,
    /// Probabilities in units of 2^-32, so that adding is atomic.
    sum: AtomicU64,
    tenths: [AtomicU64; 10],
}

impl Metrics {
    /// Counts the time of a stage.
    pub fn add_stage(&self, stage: Stage, us: u64) {
        self.stages[stage as usize].add(us);
    }

    /// What a stage holds.
    pub fn stage(&self, stage: Stage) -> Counts {
        self.stages[stage as usize].counts()
    }

    /// Counts how a request ended.
    pub fn add_outcome(&self, transport: Transport, outcome: Outcome) {
        self.outcomes[transport as usize][outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How many ended so, over all transports.
    pub fn outcome(&self, outcome: Outcome) -> u64 {
        self.outcomes.iter().map(|counts| counts[outcome as usize].load(Ordering::Relaxed)).sum()
    }
}

impl ScoreTally {
    /// Counts probabilities.
    pub fn add(&self, probabilities: impl Iterator<Item = f32>) {
        let (mut count, mut sum, mut tenths) = (0, 0, [0u64; 10]);
        for probability in probabilities.filter(|probability| probability.is_finite()) {
            count += 1;
            sum += (f64::from(probability) * 2f64.powi(32)) as u64;
            tenths[((probability * 10.0) as usize).min(9)] += 1;
        }
        self.count.fetch_add(count, Ordering::Relaxed);
        self.sum.fetch_add(sum, Ordering::Relaxed);
        for (all, new) in self.tenths.iter().zip(tenths).filter(|(_, new)| *new > 0) {
            all.fetch_add(new, Ordering::Relaxed);
        }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The mean probability; 0 when there is none.
    pub fn mean(&self) -> f64 {
        self.sum.load(Ordering::Relaxed) as f64 / 2f64.powi(32) / self.count().max(1) as f64
    }

    /// How many fall into each tenth.
    pub fn tenths(&self) -> [u64; 10] {
        std::array::from_fn(|tenth| self.tenths[tenth].load(Ordering::Relaxed))
    }
}

/// The limits of the buckets that Prometheus sees, in microseconds.
const BUCKETS_US: &[u64] = &[
    50, 100, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 5000, 7500, 10_000, 20_000, 50_000, 100_000,
    250_000, 500_000, 1_000_000, 5_000_000,
];
const BUCKETS_COUNT: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];

/// The text of `/metrics`.
pub fn prometheus(engine: &Engine) -> String {
    let metrics = &engine.metrics;
    let mut page = Page(String::with_capacity(16 << 10));
    page.family("campanile_request_seconds", "histogram", "Time of an answer by stage; total is all of it.");
    for (stage, label) in STAGES {
        let labels = format!("stage=\"{label}\"");
        page.histogram("campanile_request_seconds", &labels, &metrics.stage(*stage), BUCKETS_US, 1e6);
    }
    page.family(
        "campanile_requests_total",
        "counter",
        "Requests for scores by transport and how they ended.",
    );
    for (transport, transport_label) in TRANSPORTS {
        for (outcome, label) in OUTCOMES {
            let count = metrics.outcomes[*transport as usize][*outcome as usize].load(Ordering::Relaxed);
            let labels = format!("transport=\"{transport_label}\",outcome=\"{label}\"");
            page.sample("campanile_requests_total", &labels, count as f64);
        }
    }
    for (name, help, histogram) in [
        ("campanile_batch_samples", "Samples scored in one call.", &metrics.batch_samples),
        ("campanile_batch_requests", "Requests scored in one call.", &metrics.batch_requests),
    ] {
        page.family(name, "histogram", help);
        page.histogram(name, "", &histogram.counts(), BUCKETS_COUNT, 1.0);
    }
    plain_lines(&mut page, engine);
    connection_lines(&mut page, engine);
    model_lines(&mut page, engine);
    page.0
}

/// What is one number.
fn plain_lines(page: &mut Page, engine: &Engine) {
    let metrics = &engine.metrics;
    let (jobs, samples) = engine.waiting();
    let log = engine.log.counts();
    let load = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
    for (name, kind, help, value) in [
        ("campanile_samples_total", "counter", "Samples scored.", load(&metrics.samples)),
        (
            "campanile_unknown_ids_total",
            "counter",
            "Ids that their direct tables have no row for: they count as no id.",
            load(&metrics.unknown_ids),
        ),
        ("campanile_queue_requests", "gauge", "Requests that wait.", jobs as f64),
        ("campanile_queue_samples", "gauge", "Samples that wait.", samples as f64),
        ("campanile_swaps_total", "counter", "Snapshots that came into service.", load(&metrics.swaps)),
        (
            "campanile_load_failures_total",
            "counter",
            "Snapshots that could not.",
            load(&metrics.load_failures),
        ),
        (
            "campanile_scorer_restarts_total",
            "counter",
            "Scoring threads that had to start anew.",
            load(&metrics.scorer_restarts),
        ),
        ("campanile_log_records_total", "counter", "Records written to the feature log.", log.written as f64),
        (
            "campanile_log_dropped_total",
            "counter",
            "Records lost: the queue was full or the disk failed.",
            log.dropped as f64,
        ),
    ] {
        page.family(name, kind, help);
        page.sample(name, "", value);
    }
}

/// What is said of connections, and of following the source.
fn connection_lines(page: &mut Page, engine: &Engine) {
    let metrics = &engine.metrics;
    let load = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
    for (name, kind, help, value) in [
        (
            "campanile_connections",
            "gauge",
            "Open connections.",
            metrics.connections.load(Ordering::Relaxed) as f64,
        ),
        (
            "campanile_connections_refused_total",
            "counter",
            "Connections turned away at the limit.",
            load(&metrics.connections_refused),
        ),
        (
            "campanile_connections_displaced_total",
            "counter",
            "Connections closed because all places were taken and they asked nothing, or slowly.",
            load(&metrics.connections_displaced),
        ),
        (
            "campanile_following",
            "gauge",
            "Whether newer versions are looked for; 0 means that the server must be started again.",
            f64::from(u8::from(engine.following.goes_on())),
        ),
        (
            "campanile_followed_seconds",
            "gauge",
            "When newer versions were last looked for, in seconds since 1970.",
            engine.following.looked_us() as f64 * 1e-6,
        ),
    ] {
        page.family(name, kind, help);
        page.sample(name, "", value);
    }
}

/// What belongs to models and their snapshots.
fn model_lines(page: &mut Page, engine: &Engine) {
    let now_us = crate::clock::unix_us();
    let models = engine.models.all();
    let loaded: Vec<_> = models.iter().filter_map(|model| Some((model, model.loaded()?))).collect();
    page.family("campanile_model_ready", "gauge", "Whether a model answers.");
    for model in &models {
        let labels = format!("model=\"{}\"", escaped(&model.name));
        page.sample("campanile_model_ready", &labels, f64::from(u8::from(model.loaded().is_some())));
    }
    page.family(
        "campanile_model_problem",
        "gauge",
        "Whether the newest version of a model is not in service.",
    );
    for model in &models {
        let labels = format!("model=\"{}\"", escaped(&model.name));
        page.sample("campanile_model_problem", &labels, f64::from(u8::from(model.has_problem())));
    }
    page.family("campanile_model_version", "gauge", "The version in service.");
    for (model, loaded) in &loaded {
        let labels = format!("model=\"{}\"", escaped(&model.name));
        page.sample("campanile_model_version", &labels, loaded.snapshot.version().number as f64);
    }
    page.family("campanile_model_age_seconds", "gauge", "How long the version has been in service.");
    for (model, loaded) in &loaded {
        let labels = format!("model=\"{}\"", escaped(&model.name));
        let age = now_us.saturating_sub(loaded.since_us) as f64 * 1e-6;
        page.sample("campanile_model_age_seconds", &labels, age);
    }
    page.family(
        "campanile_model_staleness_seconds",
        "gauge",
        "How long ago the version in service was published, for models of a registry.",
    );
    for (model, loaded) in &loaded {
        if let Some(published_ms) = loaded.published_ms {
            let labels = format!("model=\"{}\"", escaped(&model.name));
            let staleness = now_us.saturating_sub(published_ms * 1000) as f64 * 1e-6;
            page.sample("campanile_model_staleness_seconds", &labels, staleness);
        }
    }
    page.family("campanile_model_bytes", "gauge", "Bytes of rows and dense weights in service.");
    for (model, loaded) in &loaded {
        let labels = format!("model=\"{}\"", escaped(&model.name));
        page.sample("campanile_model_bytes", &labels, loaded.snapshot.bytes() as f64);
    }
    for (name, kind, help) in [
        ("campanile_scores_total", "counter", "Scores of the version in service."),
        ("campanile_score_mean", "gauge", "Mean probability answered by the version in service."),
    ] {
        page.family(name, kind, help);
        for (model, loaded) in &loaded {
            for ([task, _], tally) in loaded.outputs.iter().zip(&loaded.tallies) {
                let labels = format!(
                    "model=\"{}\",version=\"{}\",task=\"{}\"",
                    escaped(&model.name),
                    loaded.version,
                    escaped(task)
                );
                let value = if kind == "counter" { tally.count() as f64 } else { tally.mean() };
                page.sample(name, &labels, value);
            }
        }
    }
}

/// A label's value as the format wants it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The text as it grows. Writing to a `String` cannot fail.
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let _ = match labels {
            "" => writeln!(self.0, "{name} {value}"),
            labels => writeln!(self.0, "{name}{{{labels}}} {value}"),
        };
    }

    fn histogram(&mut self, name: &str, labels: &str, counts: &Counts, limits: &[u64], unit: f64) {
        let comma = if labels.is_empty() { "" } else { "," };
        for limit in limits {
            let le = *limit as f64 / unit;
            self.sample(
                &format!("{name}_bucket"),
                &format!("{labels}{comma}le=\"{le}\""),
                counts.at_most(*limit) as f64,
            );
        }
        let total = counts.count() as f64;
        self.sample(&format!("{name}_bucket"), &format!("{labels}{comma}le=\"+Inf\""), total);
        self.sample(&format!("{name}_sum"), labels, counts.sum() as f64 / unit);
        self.sample(&format!("{name}_count"), labels, total);
    }
}
