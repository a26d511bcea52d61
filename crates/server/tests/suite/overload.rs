//! More than a server can do: refused at once, never late, never lost.

use std::{sync::Arc, time::Duration};

use campanile_serve::{Options, Snapshot};
use campanile_server::{
    ServeError,
    client::{GrpcClient, RestClient, RestRequest},
    engine::{Engine, ScoringThreads},
    metrics::Transport,
    passage::Passage,
    proto::ModelInferRequest,
    protocol::{InferRequest, Limits, Tensor},
    queue::QueueLimits,
};

use crate::fixture::{Settings, Trained, ask, binary_request, columns};

/// A request that the tiny model takes.
fn request(timeout_us: u64) -> InferRequest {
    let trained = Trained::tiny();
    let snapshot = Snapshot::open(trained.newest(), "tiny", &Options::default()).unwrap();
    let tensor = |column: crate::fixture::Column| {
        let shape: Vec<i64> = column.shape.iter().map(|length| *length as i64).collect();
        let datatype = campanile_server::protocol::Datatype::parse(column.datatype).unwrap();
        Tensor::new(column.name, datatype, &shape, column.bytes, &Limits::default()).unwrap()
    };
    let inputs = columns(&trained.samples(3), snapshot.inputs()).into_iter().map(tensor).collect();
    InferRequest { inputs, timeout_us, ..InferRequest::default() }
}

async fn infer(engine: &Arc<Engine>, timeout_us: u64) -> Result<(), ServeError> {
    let request = request(timeout_us);
    let mut passage = Passage::begin(Transport::Rest, "tiny", None);
    engine.infer(("tiny", ""), request, &mut passage).await.map(drop)
}

#[test]
fn a_full_queue_refuses_at_once_a_late_request_is_told_and_what_waits_is_answered() {
    let mut settings = Settings::new();
    settings.queue.jobs_max = 2;
    let (engine, _) = settings.engine();
    engine.models.follow().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // Nobody scores yet, so what waits stays.
        let waiting: Vec<_> = (0..2)
            .map(|_| {
                let engine = Arc::clone(&engine);
                tokio::spawn(async move { infer(&engine, 0).await })
            })
            .collect();
        while engine.waiting().0 < 2 {
            tokio::task::yield_now().await;
        }
        assert!(matches!(infer(&engine, 0).await, Err(ServeError::Busy { waiting: 2 })));
        let threads = ScoringThreads::start(&engine, 1).unwrap();
        for one in waiting {
            one.await.unwrap().unwrap();
        }
        threads.finish();
        assert!(matches!(infer(&engine, 0).await, Err(ServeError::ShuttingDown)));
    });
}

#[test]
fn a_request_whose_time_is_over_is_not_scored() {
    let (engine, _) = Settings::new().engine();
    engine.models.follow().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        assert!(matches!(infer(&engine, 300_000).await, Err(ServeError::Late { timeout_us: 300_000 })));
        // It is still in line, but a thread that comes now does not score it.
        assert_eq!(engine.waiting().0, 1);
        let threads = ScoringThreads::start(&engine, 1).unwrap();
        infer(&engine, 0).await.unwrap();
        threads.finish();
    });
    assert_eq!(engine.metrics.batch_requests.counts().sum(), 1);
}

#[test]
fn a_request_of_one_microsecond_is_too_late_even_when_nobody_waits() {
    let server = Settings::new().start();
    let body = |timeout: u64| {
        serde_json::json!({ "parameters": { "timeout": timeout }, "inputs": [
            { "name": "dense", "datatype": "FP32", "shape": [1, 2], "data": [0, 0] },
            { "name": "prepared_rows", "datatype": "INT64", "shape": [1, 4], "data": [1, 1, 1, 1] }] })
        .to_string()
    };
    let (status, answer) = ask(&server, "POST", "/v2/models/tiny/infer", &body(1));
    assert!(status == 504 && answer["error"].as_str().unwrap().contains("time of 1 micro"), "{answer}");
    assert_eq!(server.engine().metrics.batch_requests.counts().sum(), 0, "it was not scored");
    assert_eq!(ask(&server, "POST", "/v2/models/tiny/infer", &body(60_000_000)).0, 200);
    assert!(server.stop());
}

#[test]
fn large_requests_keep_no_memory_behind() {
    let (engine, _) = Settings::new().engine();
    engine.models.follow().unwrap();
    let trained = Trained::tiny();
    let loaded = engine.models.served("tiny", "").unwrap();
    let inputs = loaded.snapshot.inputs();
    for _ in 0..25 {
        let mut request = campanile_serve::Request::new();
        request.begin(inputs, 1 << 16).unwrap();
        assert!(request.memory_bytes() >= (4 << 16) * inputs.dense_count());
        engine.keep(request);
    }
    let mut small = campanile_serve::Request::new();
    small.begin(inputs, trained.samples(3).sample_count).unwrap();
    engine.keep(small);
    assert!(engine.spare_bytes() < 10_000, "{} bytes are kept", engine.spare_bytes());
    assert!(engine.spare_bytes() > 0, "small requests are used again");
}

#[test]
fn both_transports_carry_the_clients_time() {
    let mut settings = Settings::new();
    // An idle thread waits for company much longer than the clients do.
    settings.queue = QueueLimits { wait: Duration::from_millis(300), ..settings.queue };
    let server = settings.start();
    let columns = columns(
        &Trained::tiny().samples(2),
        Snapshot::open(Trained::tiny().newest(), "t", &Options::default()).unwrap().inputs(),
    );
    let message = ModelInferRequest {
        model_name: "tiny".to_owned(),
        inputs: columns
            .iter()
            .map(|column| campanile_server::proto::model_infer_request::InferInputTensor {
                name: column.name.clone(),
                datatype: column.datatype.to_owned(),
                shape: column.shape.iter().map(|length| *length as i64).collect(),
                ..Default::default()
            })
            .collect(),
        raw_input_contents: columns.iter().map(|column| column.bytes.clone()).collect(),
        ..ModelInferRequest::default()
    };
    let mut grpc = GrpcClient::connect(server.grpc.unwrap()).unwrap();
    let late = grpc.infer(&message, Some(Duration::from_millis(20))).unwrap_err();
    assert_eq!(late.0, tonic::Code::DeadlineExceeded, "{late:?}");
    grpc.infer(&message, Some(Duration::from_secs(20))).unwrap();
    drop(grpc);
    let body = serde_json::json!({ "parameters": { "timeout": 5000 }, "inputs": [
        { "name": "dense", "datatype": "FP32", "shape": [1, 2], "data": [0, 0] },
        { "name": "prepared_rows", "datatype": "INT64", "shape": [1, 4], "data": [1, 1, 1, 1] }] });
    let (status, answer) = ask(&server, "POST", "/v2/models/tiny/infer", &body.to_string());
    assert_eq!(status, 504, "{answer}");
    assert!(server.stop());
}

#[test]
fn a_server_that_drains_answers_what_is_under_way_and_nothing_new() {
    let mut settings = Settings::new();
    settings.queue = QueueLimits { wait: Duration::from_millis(300), ..settings.queue };
    let server = settings.start();
    let snapshot = Snapshot::open(Trained::tiny().newest(), "t", &Options::default()).unwrap();
    let request =
        binary_request("/v2/models/tiny/infer", &columns(&Trained::tiny().samples(2), snapshot.inputs()));
    let address = server.http;
    // A connection that does nothing must not hold the server up.
    let mut idle = RestClient::connect(address).unwrap();
    idle.send(&RestRequest::new("GET", "/v2/health/ready", &[], b"")).unwrap();
    // First it is not ready, and answers on; whoever spreads requests has time to notice.
    server.engine().announce_end();
    assert_eq!(ask(&server, "GET", "/v2/health/ready", "").0, 503);
    assert_eq!(RestClient::connect(address).unwrap().send(&request).unwrap().status, 200);
    let request = request.clone();
    let under_way =
        std::thread::spawn(move || RestClient::connect(address).unwrap().send(&request).unwrap().status);
    while server.engine().waiting().0 == 0 {
        std::thread::yield_now();
    }
    // While what is under way is answered, the listener is open and a new request is told in words.
    let mut late = RestClient::connect(address).unwrap();
    assert_eq!(late.send(&RestRequest::new("GET", "/v2/health/live", &[], b"")).unwrap().status, 200);
    let engine = Arc::clone(server.engine());
    let refused = std::thread::spawn(move || {
        while !engine.is_draining() {
            std::thread::yield_now();
        }
        let body = b"{\"inputs\": []}";
        let answer = late.send(&RestRequest::new("POST", "/v2/models/tiny/infer", &[], body)).unwrap();
        (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
    });
    assert!(server.stop(), "every connection ends in time");
    let (status, words) = refused.join().unwrap();
    assert!(status == 503 && words.contains("shutting down"), "{status} {words}");
    assert_eq!(under_way.join().unwrap(), 200);
    assert!(RestClient::connect(address).is_err());
    assert!(idle.send(&RestRequest::new("GET", "/v2/health/ready", &[], b"")).is_err());
}
