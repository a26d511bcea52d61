//! What is said about requests: lines with ids, and traces that a collector receives.

use std::{
    io::{self, Write},
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use campanile_serve::{Options, Snapshot};
use campanile_server::{
    client::{RestClient, RestRequest},
    journal::Journal,
    passage::LoggedRequests,
    server::{Server, StartError, TraceOptions},
};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    trace::v1::Span,
};
use tower_service::Service;

use crate::fixture::{Settings, Trained, ask, binary_request, columns};

/// Lines that a test can read.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn read(&self) -> Vec<serde_json::Value> {
        let bytes = self.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn good_request(headers: &[&str]) -> RestRequest {
    let snapshot = Snapshot::open(Trained::tiny().newest(), "tiny", &Options::default()).unwrap();
    let columns = columns(&Trained::tiny().samples(3), snapshot.inputs());
    binary_request("/v2/models/tiny/infer", &columns).with_headers(headers)
}

fn logged(which: LoggedRequests) -> (Server, Lines) {
    let lines = Lines::default();
    let mut settings = Settings::new();
    settings.listeners.logged = which;
    settings.listeners.journal = Some(Journal::new(lines.clone()));
    (settings.start(), lines)
}

#[test]
fn every_request_has_a_line_with_its_id_or_only_those_that_failed() {
    let bad = RestRequest::new("POST", "/v2/models/tiny/infer", &["x-request-id: broken-7"], b"{");
    for which in [LoggedRequests::All, LoggedRequests::Failed, LoggedRequests::None] {
        let (server, lines) = logged(which);
        let mut client = RestClient::connect(server.http).unwrap();
        assert_eq!(client.send(&good_request(&["x-request-id: basket-12"])).unwrap().status, 200);
        assert_eq!(client.send(&bad).unwrap().status, 400);
        server.stop();
        let lines = lines.read();
        let expected = match which {
            LoggedRequests::All => 2,
            LoggedRequests::Failed => 1,
            LoggedRequests::None => 0,
        };
        assert_eq!(lines.len(), expected, "{lines:?}");
        if which == LoggedRequests::All {
            let good = &lines[0];
            assert_eq!((good["id"].as_str(), good["outcome"].as_str()), (Some("basket-12"), Some("scored")));
            assert_eq!((good["model"].as_str(), good["samples"].as_str()), (Some("tiny"), Some("3")));
            for stage in ["read_us", "queue_us", "score_us", "write_us", "total_us"] {
                assert!(good[stage].as_str().unwrap().parse::<u64>().is_ok(), "{stage}: {good}");
            }
        }
        if let Some(failed) = lines.last() {
            assert_eq!(
                (failed["id"].as_str(), failed["outcome"].as_str()),
                (Some("broken-7"), Some("refused"))
            );
            assert!(failed["problem"].as_str().unwrap().contains("not valid"), "{failed}");
        }
    }
}

/// A collector that keeps what it is sent.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let spans = request.into_inner().resource_spans.into_iter().flat_map(|spans| spans.scope_spans);
        self.0.lock().unwrap().extend(spans.flat_map(|spans| spans.spans));
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Listens on a runtime that ends with the test.
    fn start(&self) -> (SocketAddr, tokio::runtime::Runtime) {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let service = TraceServiceServer::new(self.clone());
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let answer =
                        service_fn(move |request: http::Request<Incoming>| service.clone().call(request));
                    let _ = Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), answer)
                        .await;
                });
            }
        });
        (address, runtime)
    }
}

#[test]
fn a_collector_receives_a_span_a_request_with_its_stages_under_the_callers_trace() {
    let collector = Collector::default();
    let (address, runtime) = collector.start();
    let mut settings = Settings::new();
    settings.options.traces = Some(TraceOptions { collector: format!("http://{address}"), share: 0.5 });
    let server = settings.start();
    let mut client = RestClient::connect(server.http).unwrap();
    // Every second request is traced, whatever its caller says of that.
    let asks = "traceparent: 00-11111111111111111111111111111111-b7ad6b7169203331-01";
    assert_eq!(client.send(&good_request(&[asks])).unwrap().status, 200);
    let caller = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    assert_eq!(client.send(&good_request(&[caller, "x-request-id: traced"])).unwrap().status, 200);
    server.stop();
    drop(runtime);
    let spans = collector.0.lock().unwrap().clone();
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["read", "queue", "score", "write", "infer"]);
    let infer = &spans[4];
    assert_eq!(infer.trace_id, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes());
    assert_eq!(infer.parent_span_id, 0xb7ad_6b71_6920_3331_u64.to_be_bytes());
    for part in &spans[..4] {
        assert_eq!(
            (&part.trace_id, &part.parent_span_id),
            (&infer.trace_id, &infer.span_id),
            "{}",
            part.name
        );
        assert!(part.start_time_unix_nano >= infer.start_time_unix_nano, "{}", part.name);
        assert!(part.end_time_unix_nano <= infer.end_time_unix_nano, "{}", part.name);
    }
}

#[test]
fn a_collector_that_is_away_delays_nobody_and_a_wrong_address_is_refused() {
    let mut settings = Settings::new();
    // Nobody listens there: the port was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    settings.options.traces = Some(TraceOptions { collector: format!("http://{free}"), share: 1.0 });
    let server = settings.start();
    let mut client = RestClient::connect(server.http).unwrap();
    for _ in 0..100 {
        assert_eq!(client.send(&good_request(&[])).unwrap().status, 200);
    }
    assert_eq!(ask(&server, "GET", "/v2/health/ready", "").0, 200);
    server.stop();
    let mut settings = Settings::new();
    settings.options.traces =
        Some(TraceOptions { collector: "collector.example:4317".to_owned(), share: 1.0 });
    let (engine, options) = settings.engine();
    match Server::start(engine, &options, Journal::new(io::sink())) {
        Err(error @ StartError::Traces { .. }) => assert_eq!(
            error.to_string(),
            "cannot send traces to collector.example:4317: it is no http:// address; give an address such as \
             http://127.0.0.1:4317"
        ),
        other => panic!("{other:?}"),
    }
}

/// A terminal that takes nothing until it is let go.
struct Stuck(Arc<Mutex<()>>);

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        drop(self.0.lock().unwrap());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn nobody_waits_for_a_terminal_that_takes_no_lines_and_a_line_is_short() {
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().unwrap();
    let mut settings = Settings::new();
    settings.listeners.logged = LoggedRequests::All;
    settings.listeners.journal = Some(Journal::new(Stuck(Arc::clone(&gate))));
    let server = settings.start();
    let mut client = RestClient::connect(server.http).unwrap();
    // More than may wait to be written.
    for _ in 0..2000 {
        assert_eq!(client.send(&good_request(&[])).unwrap().status, 200);
    }
    drop(closed);
    assert!(server.stop());
    let lines = Lines::default();
    let journal = Journal::new(lines.clone());
    journal.say("load failed", &[("problem", &"\u{1}é".repeat(1 << 20))]);
    drop(journal);
    let problem = lines.read()[0]["problem"].as_str().unwrap().len();
    assert!((4000..=4100).contains(&problem), "{problem}");
}
