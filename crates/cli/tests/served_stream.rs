//! From answers to a trained model with no glue: what `serve` logs, `join` joins and `train --stream` trains on.
#![cfg(all(feature = "live", feature = "serve"))]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
};

use campanile_stream::{
    log::{DirectoryLog, Log, Record, address},
    records::{Example, Schemas, TICK, impression_id},
};

#[path = "../../stream/tests/suite/broker.rs"]
#[cfg(feature = "nats")]
#[expect(dead_code, reason = "logs are opened by their address here, and the broker lives")]
mod broker;

#[path = "suite/stream_fixture.rs"]
#[expect(dead_code, reason = "worlds are for the other tests of streams")]
mod stream_fixture;

use stream_fixture::{records, succeed, weights};

const REQUESTS: usize = 24;
const CANDIDATES: usize = 4;

/// A job on a CSV file; a teacher's reads the column `seen` as well.
fn job(home: &Path, name: &str, file: &str, extra: &str) -> String {
    let text = format!(
        r#"
[run]
seed = 3
batch_size = 16
[run.data]
kind = "csv"
shuffle = false
sparse = [{{ name = "user", rows = 100 }}, {{ name = "item", rows = 100, list = true }}{extra}]
[[run.data.label]]
name = "click"
[[run.data.dense]]
name = "price"
[run.tables]
dim = 4
[run.model]
kind = "mlp"
hidden = [8]
[run.sparse]
optimizer = "rowwise_adagrad"
learning_rate = 0.05
[run.dense]
optimizer = "adam"
learning_rate = 0.01
[process]
threads = 1
cache_dir = "{0}/cache"
output_dir = "{0}/{name}"
[process.data]
train = ["{0}/{file}"]
"#,
        home.display()
    );
    let path = home.join(format!("{name}.toml"));
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// A candidate of a request: its price, its items, and what only a teacher reads.
fn candidate(request: usize, place: usize) -> (f64, [usize; 2], usize) {
    let number = request * CANDIDATES + place;
    (number as f64 / 8.0, [number % 13, number % 7], number % 5)
}

fn is_clicked(request: usize, place: usize) -> bool {
    (request * 7 + place * 3).is_multiple_of(5)
}

/// Rows of candidates as a file.
fn write_rows(path: &Path, candidates: impl Iterator<Item = (usize, usize)>) {
    let mut text = "click,user,item,price,seen\n".to_owned();
    for (request, place) in candidates {
        let (price, items, seen) = candidate(request, place);
        let click = u8::from(is_clicked(request, place));
        text += &format!("{click},user-{},{}|{},{price},{seen}\n", request % 6, items[0], items[1]);
    }
    std::fs::write(path, text).unwrap();
}

fn all() -> impl Iterator<Item = (usize, usize)> {
    (0..REQUESTS * CANDIDATES).map(|number| (number / CANDIDATES, number % CANDIDATES))
}

/// The body of a request for all candidates: the user once, everything else for each.
fn body(request: usize) -> String {
    let candidates: Vec<_> = (0..CANDIDATES).map(|place| candidate(request, place)).collect();
    let list = |values: Vec<String>| values.join(",");
    let prices = list(candidates.iter().map(|(price, ..)| price.to_string()).collect());
    let items =
        list(candidates.iter().flat_map(|(_, items, _)| items.map(|item| item.to_string())).collect());
    let seen = list(candidates.iter().map(|(.., seen)| seen.to_string()).collect());
    format!(
        r#"{{"id": "request-{request}", "inputs": [
            {{"name": "user", "datatype": "BYTES", "shape": [1], "data": ["user-{}"]}},
            {{"name": "item", "datatype": "INT64", "shape": [{CANDIDATES}, 2], "data": [{items}]}},
            {{"name": "price", "datatype": "FP32", "shape": [{CANDIDATES}], "data": [{prices}]}},
            {{"name": "log.seen", "datatype": "INT64", "shape": [{CANDIDATES}], "data": [{seen}]}}]}}"#,
        request % 6
    )
}

/// A server that is ended with the test.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(arguments: &[&str]) -> Served {
        let mut child = Command::new(env!("CARGO_BIN_EXE_campanile"))
            .args(arguments)
            .args(["--http", "127.0.0.1:0", "--no-grpc", "--threads", "1", "--not-ready-seconds", "0"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = lines.by_ref().find_map(|line| {
            let line: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
            let address = line["http"].as_str()?.trim_start_matches("http://").trim_end_matches('/');
            (line["event"] == "listening").then(|| address.to_owned())
        });
        // What it says later must have somewhere to go.
        std::thread::spawn(move || lines.for_each(drop));
        Served { child, address: address.expect("the server listens") }
    }

    fn post(&self, body: &str) -> serde_json::Value {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = "POST /v2/models/ranker/infer HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
        write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    /// Asks it to end, which writes what waits for the log.
    fn end(mut self) {
        let asked = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(asked.success() && self.child.wait().unwrap().success());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn what_was_served_is_what_is_trained_on() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name).display().to_string();
    write_rows(&home.path().join("first.csv"), all());
    let first = job(home.path(), "first", "first.csv", "");
    succeed(&["train", &first]);
    let log = format!("dir:{}", path("log"));
    let model = format!("ranker={}", path("first"));

    let join = ["join", &log, "--task", "click=10m", "--stop-at-end"];
    succeed(&join);
    let server = Served::start(&["serve", "--model", &model, "--log-features", &log, "--log-column", "seen"]);
    let mut clicks = String::new();
    for request in 0..REQUESTS {
        let answer = server.post(&body(request));
        assert_eq!(answer["outputs"][0]["data"].as_array().map(Vec::len), Some(CANDIDATES), "{answer}");
        // A client that got no answer asks again under the same id: still one impression for each candidate.
        if request.is_multiple_of(5) {
            server.post(&body(request));
        }
        let clicked = (0..CANDIDATES).filter(|place| is_clicked(request, *place));
        clicked.for_each(|place| clicks += &format!("{},{place},click\n", answer["id"].as_str().unwrap()));
    }
    server.end();
    std::fs::write(path("clicks.csv"), clicks).unwrap();
    succeed(&["feedback", &log, &path("clicks.csv"), "--tick"]);

    // The windows close when time has passed, which only records can say.
    let directory = DirectoryLog::open(&home.path().join("log")).unwrap();
    let shown = records(&directory, "impressions");
    assert_eq!(shown.len(), (REQUESTS + REQUESTS.div_ceil(5)) * CANDIDATES);
    let time_ms = shown[shown.len() - 1].0 + 3_600_000;
    directory.append("feedback", 0, &[Record { time_ms, payload: TICK }]).unwrap();
    drop(directory);
    succeed(&join);

    let directory = DirectoryLog::open(&home.path().join("log")).unwrap();
    let examples = records(&directory, "examples");
    assert_eq!(examples.len(), REQUESTS * CANDIDATES);
    let mut order = Vec::new();
    for (_, payload) in &examples {
        let example = Example::decode(payload).unwrap();
        let id =
            |(request, place): &(usize, usize)| impression_id(&format!("request-{request}"), *place as u32);
        let (request, place) = all().find(|one| id(one) == example.id).expect("a candidate");
        assert_eq!(example.label(0), Some(is_clicked(request, place)), "{request}, {place}");
        order.push((request, place));
    }
    let columns = Schemas::newest(&directory, "impressions", 0).unwrap().unwrap();
    assert_eq!(
        columns.names(),
        ["price", "user", "item", "seen", "request", "served.ranker", "served.ranker.version"]
    );
    drop(directory);

    // A model that reads what only the log has, trained on the stream and on the same rows as a file: the same bits.
    write_rows(&home.path().join("rows.csv"), order.into_iter());
    let extra = r#", { name = "seen", rows = 50 }"#;
    let by_file = job(home.path(), "by_file", "rows.csv", extra);
    let by_stream = job(home.path(), "by_stream", "rows.csv", extra);
    succeed(&["train", &by_file]);
    succeed(&["train", &by_stream, "--stream", &log, "--stop-at-end"]);
    let (want, found) = (weights(&home.path().join("by_file")), weights(&home.path().join("by_stream")));
    assert!(want.len() > 4, "{:?}", want.keys());
    for (name, bytes) in want.iter().filter(|(name, _)| *name != "next") {
        assert!(&found[name] == bytes, "{name} differs");
    }
}

/// A server that is killed again and again while it answers, by a client that asks everything again under its ids: one example
/// for each candidate, however many of the answers were logged before.
fn killed_servers_give_each_candidate_once(address: &str) {
    let home = tempfile::tempdir().unwrap();
    write_rows(&home.path().join("first.csv"), all());
    succeed(&["train", &job(home.path(), "first", "first.csv", "")]);
    let model = format!("ranker={}", home.path().join("first").display());
    let join = ["join", address, "--task", "click=10m", "--stop-at-end"];
    succeed(&join);
    for killed_at in [5, 17, 11, REQUESTS] {
        let server =
            Served::start(&["serve", "--model", &model, "--log-features", address, "--log-column", "seen"]);
        (0..killed_at).for_each(|request| drop(server.post(&body(request))));
        if killed_at == REQUESTS {
            server.end();
        } else {
            drop(server); // It gets no time to write what waits for the log.
            succeed(&join);
        }
    }
    let log = address::open(address, &address::Entry::default()).unwrap();
    let time_ms = records(&*log, "impressions").last().unwrap().0 + 3_600_000;
    log.append("feedback", 0, &[Record { time_ms, payload: TICK }]).unwrap();
    drop(log);
    succeed(&join);
    let log = address::open(address, &address::Entry::default()).unwrap();
    let mut found: Vec<u64> =
        records(&*log, "examples").iter().map(|(_, bytes)| Example::decode(bytes).unwrap().id).collect();
    found.sort_unstable();
    let mut want: Vec<u64> =
        all().map(|(request, place)| impression_id(&format!("request-{request}"), place as u32)).collect();
    want.sort_unstable();
    assert_eq!(found, want);
}

#[test]
fn killed_servers_give_each_candidate_once_over_a_directory() {
    let home = tempfile::tempdir().unwrap();
    killed_servers_give_each_candidate_once(&format!("dir:{}", home.path().join("log").display()));
}

#[cfg(feature = "nats")]
#[test]
fn killed_servers_give_each_candidate_once_over_a_broker() {
    let Some(broker) = broker::Broker::start() else { return };
    killed_servers_give_each_candidate_once(&format!("{}/served", broker.url()));
}

#[test]
fn mistakes_are_told_in_words() {
    let home = tempfile::tempdir().unwrap();
    let said = |arguments: &[&str]| {
        let output = stream_fixture::campanile(arguments).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let log = format!("dir:{}", home.path().join("log").display());
    let words = said(&["feedback", &log, "/dev/null"]);
    assert!(words.contains("knows no tasks yet: `campanile join` names them"), "{words}");
    succeed(&["join", &log, "--task", "click=5m", "--stop-at-end"]);
    let lines = home.path().join("lines");
    std::fs::write(&lines, "a,0,click\na,0,view\n").unwrap();
    let words = said(&["feedback", &log, &lines.display().to_string()]);
    assert!(words.contains("line 2") && words.contains("`view` is no task of this log"), "{words}");
    let words = said(&["augment", &log, "--teacher", "registry", "--follow"]);
    assert!(words.contains("--follow is for a job file"), "{words}");
    let words = said(&["augment", &log, "--teacher", "registry"]);
    assert!(words.contains("say --model NAME"), "{words}");
    let words = said(&["augment", "job.toml", "--teacher", "registry", "--window", "5m"]);
    assert!(words.contains("--window is for an event log"), "{words}");
}
