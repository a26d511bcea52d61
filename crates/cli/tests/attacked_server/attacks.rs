//! What clients send that mean harm, and a neighbour who may write into the registry. Each goes on at its own bounded rate.

use std::{
    collections::VecDeque,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use campanile_server::client::{RestClient, RestRequest};
use prost::Message;
use serde_json::{Value, json};

use super::{
    Target,
    requests::{INFER, JSON, body, input, inputs, message, post},
};

/// Connections that an attack holds at the same time.
const HELD_MAX: usize = 1100;

/// One way of meaning harm.
pub struct Attack {
    pub name: &'static str,
    /// Between two rounds.
    pause_ms: u64,
    round: fn(&mut Round<'_>),
}

/// One round of an attack, and what it keeps from the rounds before.
struct Round<'a> {
    target: Target,
    registry: &'a Path,
    number: u64,
    held: VecDeque<TcpStream>,
}

pub const ALL: &[Attack] = &[
    Attack { name: "connections that send nothing", pause_ms: 200, round: idle },
    Attack { name: "connections that send one byte", pause_ms: 200, round: one_byte },
    Attack { name: "bodies that come slowly", pause_ms: 200, round: slow_bodies },
    Attack { name: "messages of gRPC that never end", pause_ms: 500, round: half_messages },
    Attack { name: "answers that nobody reads", pause_ms: 500, round: unread },
    Attack { name: "one large value for thousands of candidates", pause_ms: 500, round: expanding },
    Attack { name: "names of a megabyte", pause_ms: 500, round: long_names },
    Attack { name: "a large question about the repository", pause_ms: 500, round: large_index },
    Attack { name: "columns of any name", pause_ms: 200, round: columns },
    Attack { name: "large requests", pause_ms: 2000, round: large },
    Attack { name: "foreign pages", pause_ms: 200, round: foreign },
    Attack { name: "lengths that wrap around", pause_ms: 200, round: wrapping },
    Attack { name: "bytes that are no request", pause_ms: 200, round: nonsense },
    Attack { name: "packed bodies and long headers", pause_ms: 200, round: packed },
    Attack { name: "streams that are reset", pause_ms: 500, round: resets },
    Attack { name: "damaged models", pause_ms: 1000, round: registry },
];

/// Goes on until told to stop; how many rounds there were.
pub fn run(attack: &Attack, target: Target, registry: &Path, stop: &AtomicBool) -> u64 {
    let mut round = Round { target, registry, number: 0, held: VecDeque::new() };
    while !stop.load(Ordering::Relaxed) {
        (attack.round)(&mut round);
        round.number += 1;
        thread::sleep(Duration::from_millis(attack.pause_ms));
    }
    round.number
}

impl Round<'_> {
    /// Opens connections, sends on each, and keeps the youngest.
    fn hold(&mut self, address: SocketAddr, count: usize, bytes: &[u8]) {
        for _ in 0..count {
            let Ok(mut stream) = TcpStream::connect(address) else { continue };
            let _ = stream.set_write_timeout(Some(Duration::from_millis(50)));
            let _ = stream.write_all(bytes);
            self.held.push_back(stream);
        }
        while self.held.len() > HELD_MAX {
            self.held.pop_front();
        }
    }

    /// Asks once, whatever comes of it.
    fn ask(&self, request: &RestRequest) -> Option<u16> {
        let mut client = RestClient::connect(self.target.http).ok()?;
        client.send(request).ok().map(|answer| answer.status)
    }
}

fn idle(round: &mut Round<'_>) {
    let count = if round.number == 0 { HELD_MAX } else { 20 };
    round.hold(round.target.http, count, b"");
    round.hold(round.target.grpc, count, b"");
}

fn one_byte(round: &mut Round<'_>) {
    round.hold(round.target.http, 20, b"G");
    round.hold(round.target.grpc, 20, b"P");
}

fn slow_bodies(round: &mut Round<'_>) {
    let head =
        format!("POST {INFER} HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nContent-Length: 16000000\r\n\r\n");
    let bytes = [head.as_bytes(), &vec![b' '; 256 << 10]].concat();
    round.hold(round.target.http, 10, &bytes);
    if round.held.len() > 200 {
        round.held.drain(..100);
    }
}

/// One connection of gRPC: what `then` does with it, and no more.
fn on_grpc<T: Future<Output = ()>>(
    address: SocketAddr,
    builder: &h2::client::Builder,
    then: impl FnOnce(h2::client::SendRequest<bytes::Bytes>) -> T,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let Ok(stream) = tokio::net::TcpStream::connect(address).await else { return };
        let Ok((sender, connection)) = builder.handshake(stream).await else { return };
        tokio::spawn(connection);
        let _ = tokio::time::timeout(Duration::from_secs(5), then(sender)).await;
    });
}

fn call(address: SocketAddr) -> http::Request<()> {
    http::Request::post(format!("http://{address}/inference.GRPCInferenceService/ModelInfer"))
        .header("content-type", "application/grpc")
        .body(())
        .unwrap()
}

/// A message with its prefix, which may claim another length.
fn framed(bytes: &[u8], claimed: u32) -> bytes::Bytes {
    [&[0][..], &claimed.to_be_bytes(), bytes].concat().into()
}

fn half_messages(round: &mut Round<'_>) {
    let address = round.target.grpc;
    on_grpc(address, &h2::client::Builder::new(), |mut sender| async move {
        let mut open = Vec::new();
        for _ in 0..200 {
            let Ok((answer, mut body)) = sender.send_request(call(address), false) else { break };
            let _ = body.send_data(framed(&[7; 100], 16_000_000), false);
            open.push((answer, body));
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    });
}

fn unread(round: &mut Round<'_>) {
    let address = round.target.grpc;
    let large = message(8192).encode_to_vec();
    let mut builder = h2::client::Builder::new();
    // No byte of an answer may leave.
    builder.initial_window_size(0);
    on_grpc(address, &builder, |mut sender| async move {
        let mut open = Vec::new();
        for _ in 0..4 {
            let Ok((answer, mut body)) = sender.send_request(call(address), false) else { break };
            let _ = body.send_data(framed(&large, large.len() as u32), true);
            open.push((answer, body));
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    });
    let head = format!("POST {INFER} HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\n");
    let body = body(inputs(512));
    let one = [format!("{head}Content-Length: {}\r\n\r\n", body.len()).as_bytes(), &body].concat();
    round.hold(round.target.http, 2, &one.repeat(4));
    if round.held.len() > 100 {
        round.held.drain(..50);
    }
}

fn expanding(round: &mut Round<'_>) {
    let mut all = inputs(2000);
    all.push(input("log.seen", "BYTES", &[1], json!(["x".repeat(160_000)])));
    round.ask(&post(INFER, &body(all)));
}

fn long_names(round: &mut Round<'_>) {
    let name = "\u{1}é".repeat(1 << 19);
    round.ask(&post(INFER, &body(vec![input(&name, "FP32", &[1], json!([1]))])));
    let shape = vec![1; 200_000];
    round.ask(&post(INFER, &body(vec![input("price", "FP32", &shape, json!([1]))])));
    round.ask(&post(&format!("/v2/models/{}/infer", "n".repeat(8000)), b"{\"inputs\": []}"));
}

fn large_index(round: &mut Round<'_>) {
    let body = format!("{{\"x\":[{}0]}}", "0,".repeat(4 << 20));
    round.ask(&post("/v2/repository/index", body.as_bytes()));
}

fn columns(round: &mut Round<'_>) {
    for place in 0..20 {
        let mut all = inputs(4);
        all.push(input(&format!("log.column-{}-{place}", round.number), "INT64", &[1], json!([1])));
        round.ask(&post(INFER, &body(all)));
    }
}

fn large(round: &mut Round<'_>) {
    let ids: Vec<u32> = (0..400_000).map(|place| place % 100).collect();
    let mut all = inputs(4000);
    all[1] = input("item", "INT64", &[4000, 100], json!(ids));
    let request = post(INFER, &body(all));
    for _ in 0..3 {
        round.ask(&request);
    }
}

fn foreign(round: &mut Round<'_>) {
    let good = body(inputs(4));
    let refused = |request: &RestRequest| {
        let status = round.ask(request);
        assert!(status.is_none_or(|status| status >= 400), "{status:?}");
    };
    refused(&RestRequest::new("POST", INFER, &["Origin: http://evil.example"], &good));
    refused(&RestRequest::new("POST", INFER, &["Content-Type: text/plain"], &good));
    refused(&RestRequest::for_host("evil.example", "POST", INFER, &[JSON], &good));
    let unload = "/v2/repository/models/ranker/unload";
    refused(&RestRequest::new("POST", unload, &["Origin: null"], b""));
}

fn wrapping(round: &mut Round<'_>) {
    let mut all = inputs(2);
    all.push(input("log.seen", "INT64", &[3], json!([1, 2, 3])));
    all.push(input("log.seen.lengths", "INT64", &[3], json!([-1, -1, 5])));
    round.ask(&post(INFER, &body(all)));
    let mut all = inputs(2);
    all.push(input("item.lengths", "INT64", &[2], json!([4_294_967_295u64, 4_294_967_297u64])));
    round.ask(&post(INFER, &body(all)));
}

fn nonsense(round: &mut Round<'_>) {
    let mut random = round.number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    let mut bytes: Vec<u8> = Vec::new();
    bytes.resize_with(4000, || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 56) as u8
    });
    let preface = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &bytes].concat();
    for address in [round.target.http, round.target.grpc] {
        for bytes in [&bytes, &preface] {
            let Ok(mut stream) = TcpStream::connect(address) else { continue };
            let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
            let _ = stream.write_all(bytes).and_then(|()| stream.read(&mut [0; 1000]).map(drop));
        }
    }
    let deep = format!("{{\"inputs\": {}", "[".repeat(100_000));
    round.ask(&post(INFER, deep.as_bytes()));
    let value: Value = json!({ "inputs": [input("price", "FP32", &[1 << 40, 1 << 40], json!([1]))] });
    round.ask(&post(INFER, value.to_string().as_bytes()));
}

fn packed(round: &mut Round<'_>) {
    round.ask(&RestRequest::new("POST", INFER, &[JSON, "Content-Encoding: gzip"], &[0x1f; 100_000]));
    let long = format!("X-Long: {}", "x".repeat(100_000));
    round.ask(&RestRequest::new("POST", INFER, &[JSON, &long], b"{}"));
    round.ask(&RestRequest::new("POST", INFER, &[JSON], &vec![b' '; 20_000_000]));
}

fn resets(round: &mut Round<'_>) {
    let address = round.target.grpc;
    on_grpc(address, &h2::client::Builder::new(), |mut sender| async move {
        for _ in 0..200 {
            let Ok((_, mut body)) = sender.send_request(call(address), false) else { break };
            body.send_reset(h2::Reason::CANCEL);
            tokio::task::yield_now().await;
        }
    });
}

/// Models beside the good one that are none: a release that is its own base, numbers that no memory has, no JSON at all.
fn registry(round: &mut Round<'_>) {
    let texts = [
        "{\"format\": \"campanile release\", \"model\": \"evil\", \"number\": 1, \"base\": 1}",
        "{\"rows_per_file\": 0, \"tables\": [{\"rows\": 4000000000, \"dim\": 4611686018427387904}]}",
        "no JSON",
    ];
    let text = texts[(round.number % 3) as usize];
    let model = round.registry.join(format!("evil-{}", round.number % 5));
    let version = model.join("versions/000000000001");
    let _ = std::fs::create_dir_all(&version);
    for file in ["release.json", "manifest.json"] {
        let _ = std::fs::write(version.join(file), text);
    }
    let _ = std::fs::write(model.join("current"), "{\"format\": \"campanile pointer\", \"number\": 1}");
}
