//! OpenTelemetry traces: one span a request with a child for each stage, sent to a collector over OTLP (gRPC).
//!
//! Spans are made when a request has ended, out of times that are measured anyway, so tracing adds nothing to the way
//! of a request but this. A bounded queue and a thread of its own carry them away; what does not fit is dropped by
//! the library, never waited for. A client's `traceparent` makes its span the
//! parent; which requests are traced is ours to say.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use opentelemetry::{
    Context, KeyValue,
    propagation::{Extractor, TextMapPropagator},
    trace::{Span, SpanKind, Status, TraceContextExt, Tracer, TracerProvider},
};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{Sampler, SdkTracer, SdkTracerProvider},
};

use crate::{clock, error::ServeError, metrics::Stage, passage::Passage};

/// The header with the caller's trace.
pub const TRACEPARENT: &str = "traceparent";

/// Where traces go.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    share: f64,
    requests: AtomicU64,
}

/// The one header that is read.
struct Parent<'a>(&'a str);

impl Extractor for Parent<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        (key == TRACEPARENT).then_some(self.0)
    }

    fn keys(&self) -> Vec<&str> {
        vec![TRACEPARENT]
    }
}

impl Traces {
    /// Sends the given share of traces to a collector such as `http://127.0.0.1:4317`. Must be called inside the
    /// runtime that will carry them.
    ///
    /// # Errors
    /// When the address is none.
    pub fn to(collector: &str, share: f64) -> Result<Traces, ExporterBuildError> {
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(collector).build()?;
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(Sampler::AlwaysOn)
            .with_resource(Resource::builder().with_service_name("campanile").build())
            .build();
        let tracer = provider.tracer("campanile-server");
        Ok(Traces { provider, tracer, share, requests: AtomicU64::new(0) })
    }

    /// A request that has ended.
    pub fn record(&self, passage: &Passage, outcome: &'static str, failure: Option<&ServeError>) {
        // Counted, not drawn from the trace's id: a client chooses that one.
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let due = |number: u64| (number as f64 * self.share).floor();
        if due(number + 1) <= due(number) {
            return;
        }
        let parent = match &passage.traceparent {
            Some(header) => {
                TraceContextPropagator::new().extract_with_context(&Context::new(), &Parent(header))
            }
            None => Context::new(),
        };
        let now_us = clock::unix_us();
        let begun_us = now_us.saturating_sub(clock::us_between(passage.started, clock::now()));
        let attributes = vec![
            KeyValue::new("rpc.system", passage.transport.name()),
            KeyValue::new("request.id", passage.id.clone()),
            KeyValue::new("model.name", passage.model.clone()),
            KeyValue::new("model.version", passage.version.clone()),
            KeyValue::new("request.samples", passage.samples as i64),
            KeyValue::new("outcome", outcome),
        ];
        let mut span = self
            .tracer
            .span_builder("infer")
            .with_kind(SpanKind::Server)
            .with_start_time(moment(begun_us))
            .with_attributes(attributes)
            .start_with_context(&self.tracer, &parent);
        if let Some(failure) = failure {
            span.set_status(Status::error(failure.told()));
        }
        let inside = Context::new().with_remote_span_context(span.span_context().clone());
        let mut at = begun_us;
        for (stage, name, us) in passage.stages().filter(|(stage, ..)| *stage != Stage::Total) {
            // Writing ends with the request; the others follow each other from its beginning.
            let from = if stage == Stage::Write { now_us.saturating_sub(us) } else { at };
            let mut part = self
                .tracer
                .span_builder(name)
                .with_start_time(moment(from))
                .start_with_context(&self.tracer, &inside);
            part.end_with_timestamp(moment(from + us));
            at = from + us;
        }
        span.end_with_timestamp(moment(now_us));
    }

    /// Sends what waits; whether all of it could be sent.
    pub fn finish(&self) -> bool {
        self.provider.shutdown().is_ok()
    }
}

fn moment(unix_us: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(unix_us)
}
