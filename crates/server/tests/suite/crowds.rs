//! Many clients that send nothing, little, or too much at once: whoever asks properly is answered meanwhile.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::atomic::Ordering,
    time::Duration,
};

use campanile_serve::{Options, Snapshot};
use campanile_server::{
    client::{GrpcClient, RestClient, RestRequest},
    places::Patience,
    proto::{ModelInferRequest, model_infer_request::InferInputTensor},
    queue::QueueLimits,
    server::Server,
};
use serde_json::{Value, json};

use crate::fixture::{Settings, Trained, ask, binary_request, columns, read_binary};

fn good_request(samples: u64) -> RestRequest {
    let snapshot = Snapshot::open(Trained::tiny().newest(), "tiny", &Options::default()).unwrap();
    binary_request("/v2/models/tiny/infer", &columns(&Trained::tiny().samples(samples), snapshot.inputs()))
}

fn good_message() -> ModelInferRequest {
    let snapshot = Snapshot::open(Trained::tiny().newest(), "tiny", &Options::default()).unwrap();
    let columns = columns(&Trained::tiny().samples(3), snapshot.inputs());
    let input = |column: &crate::fixture::Column| InferInputTensor {
        name: column.name.clone(),
        datatype: column.datatype.to_owned(),
        shape: column.shape.iter().map(|length| *length as i64).collect(),
        ..InferInputTensor::default()
    };
    ModelInferRequest {
        model_name: "tiny".to_owned(),
        inputs: columns.iter().map(input).collect(),
        raw_input_contents: columns.iter().map(|column| column.bytes.clone()).collect(),
        ..ModelInferRequest::default()
    }
}

/// Health, REST and gRPC, each on a new connection.
fn assert_everybody_is_answered(server: &Server) {
    assert_eq!(ask(server, "GET", "/v2/health/ready", "").0, 200);
    read_binary(&RestClient::connect(server.http).unwrap().send(&good_request(3)).unwrap());
    GrpcClient::connect(server.grpc.unwrap()).unwrap().infer(&good_message(), None).unwrap();
}

fn connections(address: SocketAddr, count: usize, bytes: &[u8]) -> Vec<TcpStream> {
    let open = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        let _ = stream.write_all(bytes);
        stream
    };
    (0..count).map(open).collect()
}

#[test]
fn idle_and_slow_connections_beyond_all_places_lock_out_nobody() {
    let mut settings = Settings::new();
    settings.options.connections_max = 32;
    let server = settings.start();
    let (http, grpc) = (server.http, server.grpc.unwrap());
    let slow = b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{";
    let mut held = Vec::new();
    for bytes in [&b""[..], b"G", b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n", slow] {
        for address in [http, grpc] {
            held.extend(connections(address, 40, bytes));
        }
        assert_everybody_is_answered(&server);
    }
    assert_eq!(server.engine().metrics.connections_refused.load(Ordering::Relaxed), 0);
    assert!(server.engine().metrics.connections_displaced.load(Ordering::Relaxed) > 0);
    drop(held);
    assert!(server.stop());
}

#[test]
fn who_is_being_answered_keeps_its_place_and_a_newcomer_is_turned_away() {
    let mut settings = Settings::new();
    settings.options.connections_max = 2;
    // Requests of three samples wait until there are three of them.
    settings.queue = QueueLimits { batch_samples_max: 9, wait: Duration::from_secs(60), ..settings.queue };
    let server = settings.start();
    let address = server.http;
    let ask =
        || std::thread::spawn(move || RestClient::connect(address).unwrap().send(&good_request(3)).unwrap());
    let answered = [ask(), ask()];
    while server.engine().waiting().0 < 2 {
        std::thread::yield_now();
    }
    let health = RestRequest::new("GET", "/v2/health/live", &[], b"");
    assert!(RestClient::connect(address).and_then(|mut client| client.send(&health)).is_err());
    assert_eq!(server.engine().metrics.connections_refused.load(Ordering::Relaxed), 1);
    // The other address has places of its own.
    GrpcClient::connect(server.grpc.unwrap()).unwrap().infer(&good_message(), None).unwrap();
    for one in answered {
        assert_eq!(one.join().unwrap().status, 200);
    }
    assert_eq!(RestClient::connect(address).unwrap().send(&health).unwrap().status, 200);
    assert!(server.stop());
}

#[test]
fn a_silent_client_loses_its_connection() {
    let mut settings = Settings::new();
    let short = Duration::from_millis(20);
    settings.options.patience = Patience { headers: short, idle: short, ..Patience::default() };
    let server = settings.start();
    for bytes in [&b""[..], b"G", b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"] {
        for mut stream in connections(server.http, 1, bytes) {
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            assert_eq!(answer.is_empty(), bytes.is_empty() || bytes == b"G", "{answer:?}");
        }
    }
    assert!(server.stop());
}

#[test]
fn a_body_that_does_not_come_is_told_so_over_both_transports() {
    let mut settings = Settings::new();
    let short = Duration::from_millis(20);
    settings.options.patience = Patience { body: short, call: short, ..Patience::default() };
    let server = settings.start();
    let head = b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{";
    let mut stream = connections(server.http, 1, head).remove(0);
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");
    // Over gRPC, a message of which half never comes.
    let (code, words) = half_a_message(server.grpc.unwrap(), 1000, 10);
    assert_eq!(code, "4", "{words}");
    assert!(server.stop());
}

/// What is answered to a message that claims more bytes than come: the code and the words.
fn half_a_message(address: SocketAddr, claimed: u32, sent: usize) -> (String, String) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        std::future::poll_fn(|context| sender.poll_ready(context)).await.unwrap();
        let request =
            http::Request::post(format!("http://{address}/inference.GRPCInferenceService/ModelInfer"))
                .header("content-type", "application/grpc")
                .body(())
                .unwrap();
        let (answer, mut body) = sender.send_request(request, false).unwrap();
        let mut bytes = vec![0];
        bytes.extend_from_slice(&claimed.to_be_bytes());
        bytes.resize(5 + sent, 0);
        body.send_data(bytes.into(), false).unwrap();
        let answer = answer.await.unwrap();
        let text = |name| answer.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        (text("grpc-status").unwrap_or_default(), text("grpc-message").unwrap_or_default())
    })
}

#[test]
fn bodies_of_all_connections_together_have_a_budget_and_small_requests_pass() {
    let mut settings = Settings::new();
    settings.options.request_bytes_max = 4 << 20;
    let server = settings.start();
    let length = 1 << 20;
    let head =
        format!("POST /v2/models/tiny/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
    let slow = [head.as_bytes(), &vec![b' '; length - 1]].concat();
    // Some of these fit the budget and wait for their last byte; the others are told that they do not.
    let mut held = connections(server.http, 12, &slow);
    let mut told = 0;
    let mut last = None;
    for stream in &mut held {
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let mut answer = [0; 12];
        if stream.read_exact(&mut answer).is_ok() {
            assert_eq!(&answer, b"HTTP/1.1 429");
            told += 1;
        } else {
            last = Some(stream);
        }
    }
    assert!((1..12).contains(&told), "{told} of 12 were refused");
    assert_everybody_is_answered(&server);
    // A message of gRPC is counted by what it claims, not by what came of it.
    let (code, words) = half_a_message(server.grpc.unwrap(), 3 << 20, 10);
    assert!(code == "8" && words.contains("memory"), "{code} {words}");
    // Who was within the budget is answered when its body is there.
    let mut answer = [0; 12];
    let last = last.unwrap();
    last.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    last.write_all(b" ").unwrap();
    last.read_exact(&mut answer).unwrap();
    assert!(matches!(&answer, b"HTTP/1.1 400" | b"HTTP/1.1 429"), "{answer:?}");
    drop(held);
    assert!(server.stop());
}

/// Requests that expand: many short numbers in a body become rows, lengths and marks, which are counted while they wait.
#[test]
fn what_a_request_expands_to_is_within_the_budget() {
    let mut settings = Settings::new();
    settings.options.request_bytes_max = 4 << 20;
    let server = settings.start();
    let ids = |count: usize| {
        json!({ "inputs": [{ "name": "sparse_2", "datatype": "UINT8", "shape": [1, count], "data": vec![1; count] }] })
            .to_string()
    };
    let (status, answer) = ask(&server, "POST", "/v2/models/tiny/infer", &ids(100_000));
    assert!(status == 429 && answer["error"].as_str().unwrap().contains("memory"), "{answer}");
    let (status, answer) = ask(&server, "POST", "/v2/models/tiny/infer", &ids(1000));
    assert!(status == 400 && answer["error"].as_str().unwrap().contains("is missing"), "{answer}");
    assert!(server.stop());
}

#[test]
fn a_refusal_can_be_read_by_who_is_still_sending() {
    let mut settings = Settings::new();
    settings.limits.body_bytes_max = 1000;
    let server = settings.start();
    // Far more than the system keeps for a connection: without a reader, sending ends with a reset.
    let long = vec![b' '; 16 << 20];
    let answer = |head: &str, body: &[u8]| -> (String, Value) {
        let mut stream = TcpStream::connect(server.http).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head[9..12].to_owned(), serde_json::from_str(body).unwrap())
    };
    let post = "POST /v2/models/tiny/infer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    let length = format!("Content-Length: {}\r\n\r\n", long.len());
    let many = "X-Many: 1\r\n".repeat(100);
    let long_header = format!("X-Long: {}\r\n\r\n", "x".repeat(30_000));
    let far_too_long = format!("X-Long: {}\r\n\r\n", "x".repeat(300_000));
    for (head, body, status, words) in [
        (format!("{post}{length}"), &long[..], "413", "larger than the limit of 1000"),
        (format!("{post}Content-Encoding: gzip\r\n{length}"), &long, "415", "encoding `gzip`"),
        (format!("{post}Content-Type: text/plain\r\n{length}"), &long, "415", "application/json"),
        (format!("{post}{long_header}"), b"", "431", "headers are more than"),
        (format!("{post}{far_too_long}"), b"", "431", "headers are more than"),
        (format!("{post}{many}\r\n"), b"", "431", "headers are more than"),
        ("nonsense\r\n\r\n".to_owned(), b"", "400", "no HTTP request"),
        (format!("{}Connection: close\r\n\r\n", post.replace("POST", "GET")), b"", "405", "another way"),
    ] {
        let (found, body) = answer(&head, body);
        let error = body["error"].as_str().unwrap();
        assert!(found == status && error.contains(words), "{head:.120}: {found} {error}");
    }
    assert!(server.stop());
}

#[test]
fn grpc_says_what_it_does_not_do() {
    let server = Settings::new().start();
    let address = server.grpc.unwrap();
    // HTTP/1, which a web page can make a browser speak, is not spoken here.
    let unload = "POST /inference.GRPCInferenceService/RepositoryModelUnload HTTP/1.1\r\nHost: localhost\r\n\
                  Content-Type: application/grpc\r\nContent-Length: 5\r\n\r\n\0\0\0\0\0";
    let mut heard = Vec::new();
    let _ = connections(address, 1, unload.as_bytes()).remove(0).read_to_end(&mut heard);
    assert!(!heard.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&heard));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let status = |path: &str, headers: &[(&str, &str)]| {
        runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            std::future::poll_fn(|context| sender.poll_ready(context)).await.unwrap();
            let request = http::Request::post(format!("http://{address}{path}"));
            let request = headers.iter().fold(request, |all, (name, value)| all.header(*name, *value));
            let (answer, _) = sender.send_request(request.body(()).unwrap(), true).unwrap();
            let answer = answer.await.unwrap();
            let text = |name| answer.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
            (text("grpc-status").unwrap_or_default(), text("grpc-message").unwrap_or_default())
        })
    };
    let grpc = ("content-type", "application/grpc");
    let (code, words) = status("/inference.GRPCInferenceService/ModelConfig", &[grpc]);
    assert!(code == "12" && words.contains("ModelConfig"), "{code} {words}");
    let live = "/inference.GRPCInferenceService/ServerLive";
    assert_eq!(status(live, &[grpc, ("origin", "http://evil.example")]).0, "7");
    assert_eq!(status(live, &[("content-type", "text/plain")]).0, "3");
    // Who never reads hears no goodbye, and would be waited for.
    drop(runtime);
    let mut message = good_message();
    let one = campanile_server::proto::InferParameter {
        parameter_choice: Some(campanile_server::proto::infer_parameter::ParameterChoice::Int64Param(1)),
    };
    message.parameters.insert("class_count".to_owned(), one);
    let (code, words) = GrpcClient::connect(address).unwrap().infer(&message, None).unwrap_err();
    assert!(code == tonic::Code::InvalidArgument && words.contains("`class_count`"), "{words}");
    assert!(server.stop());
}
