//! What goes wrong outside: damaged snapshots, clients that misbehave, a full disk. The server keeps answering.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    path::Path,
    process::Command,
    time::Duration,
};

use campanile_serve::{Options, Snapshot};
use campanile_server::{
    client::{RestClient, RestRequest},
    feature_log::{FeatureLog, SegmentReader, Segments},
    metrics::Outcome,
    server::Server,
    source::Checkpoints,
};

use crate::fixture::{Settings, Trained, ask, binary_request, bits, columns, offline, read_binary, task};

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// Publishes a checkpoint as training does: whole, by one rename.
fn publish(from: &Path, into: &Path) {
    let name = from.file_name().unwrap();
    let beside = into.join(format!("{}.writing", name.to_str().unwrap()));
    copy(from, &beside);
    fs::rename(&beside, into.join(name)).unwrap();
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    // A minute is far more than any of these take; it only ends a test that would hang.
    for _ in 0..60_000 {
        if holds() {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
    panic!("waited for: {what}");
}

#[test]
fn a_damaged_snapshot_is_never_served_and_the_next_good_one_is() {
    let trained = Trained::tiny();
    let home = tempfile::tempdir().unwrap();
    let parent = trained.newest().parent().unwrap();
    for entry in fs::read_dir(parent).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, home.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    let versions: Vec<&Path> = trained.checkpoints.iter().map(|path| path.as_path()).collect();
    publish(versions[0], home.path());
    let mut settings = Settings::new();
    let directories = BTreeMap::from([("tiny".to_owned(), home.path().to_owned())]);
    settings.source = Box::new(Checkpoints { directories, options: Options::default() });
    let server = settings.start();
    let served = || ask(&server, "POST", "/v2/repository/index", "").1[0].clone();
    let first = served()["version"].clone();
    // A file cut short, then a file with one bit changed, then a manifest that is gone.
    for (place, spoil) in [(1, 0), (2, 1), (3, 2)] {
        let name = versions[place].file_name().unwrap();
        let beside = home.path().join("beside");
        copy(versions[place], &beside);
        let rows = fs::read_dir(&beside).unwrap().map(|entry| entry.unwrap().path());
        let largest = rows.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
        match spoil {
            0 => {
                let file = fs::OpenOptions::new().write(true).open(&largest).unwrap();
                file.set_len(file.metadata().unwrap().len() / 2).unwrap();
            }
            1 => {
                let mut bytes = fs::read(&largest).unwrap();
                *bytes.last_mut().unwrap() ^= 1;
                fs::write(&largest, bytes).unwrap();
            }
            _ => fs::remove_file(beside.join("manifest.json")).unwrap(),
        }
        fs::rename(&beside, home.path().join(name)).unwrap();
        let before = server.engine().metrics.load_failures.load(std::sync::atomic::Ordering::Relaxed);
        wait_until("the damage is told", || {
            server.engine().metrics.load_failures.load(std::sync::atomic::Ordering::Relaxed) > before
                || served()["reason"] != ""
        });
        assert_eq!((&served()["version"], &served()["state"]), (&first, &serde_json::json!("READY")));
        fs::remove_dir_all(home.path().join(name)).unwrap();
        wait_until("the problem is over", || served()["reason"] == "");
    }
    publish(versions[4], home.path());
    wait_until("the good one is served", || served()["version"] != first);
    assert!(server.stop());
}

fn is_alive(server: &Server) -> bool {
    ask(server, "GET", "/v2/models/tiny/ready", "").0 == 200
}

/// Sends bytes and no more, and waits until the server ends the connection.
fn send_and_close(address: SocketAddr, bytes: &[u8]) {
    let mut stream = connect_and_send(address, bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut Vec::new());
}

/// What is answered before the server ends the connection. Our end stays open: to a client that has closed it, the server owes
/// no answer.
fn answer_to(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    let _ = connect_and_send(address, bytes).read_to_end(&mut answer);
    answer
}

fn connect_and_send(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // The server may hang up before everything is written.
    let _ = stream.write_all(bytes);
    stream
}

#[test]
fn half_requests_random_bytes_and_huge_claims_cost_nobody_an_answer() {
    let mut settings = Settings::new();
    settings.limits.body_bytes_max = 100_000;
    let server = settings.start();
    let snapshot = Snapshot::open(Trained::tiny().newest(), "t", &Options::default()).unwrap();
    let batch = Trained::tiny().samples(3);
    let columns = columns(&batch, snapshot.inputs());
    let mut random = 3u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as u32
    };
    let whole =
        b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{\"inputs\":[";
    for length in (0..whole.len()).step_by(7) {
        send_and_close(server.http, &whole[..length]);
        send_and_close(server.grpc.unwrap(), &whole[..length]);
    }
    for _ in 0..50 {
        let bytes: Vec<u8> = (0..next() % 3000).map(|_| next() as u8).collect();
        send_and_close(server.http, &bytes);
        let preface = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &bytes].concat();
        send_and_close(server.grpc.unwrap(), &preface);
    }
    let claim = |headers: &str| {
        format!(
            "POST /v2/models/tiny/infer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n\r\n{{}}"
        )
    };
    for (headers, wanted) in [
        ("Content-Length: 99999999999".to_owned(), "413"),
        ("Content-Length: -1".to_owned(), "400"),
        (format!("X-Long: {}\r\nContent-Length: 2", "x".repeat(200_000)), "431"),
        (format!("{}Content-Length: 2", "X-Many: 1\r\n".repeat(500)), "431"),
        ("Content-Length: 2\r\nInference-Header-Content-Length: 3".to_owned(), "400"),
    ] {
        let answer = answer_to(server.http, claim(&headers).as_bytes());
        let text = String::from_utf8_lossy(&answer);
        assert!(text.starts_with(&format!("HTTP/1.1 {wanted}")), "{headers:.60}: {text:.200}");
    }
    // A body beyond the limit, of which the server did not know before.
    let mut client = RestClient::connect(server.http).unwrap();
    let answer = client.send(&RestRequest::new("POST", "/v2/models/tiny/infer", &[], &vec![b' '; 150_000]));
    assert!(answer.is_err() || answer.unwrap().status == 413);
    // Good requests have been answered all along, and still are.
    let mut client = RestClient::connect(server.http).unwrap();
    let (_, outputs) = read_binary(&client.send(&binary_request("/v2/models/tiny/infer", &columns)).unwrap());
    let wanted = offline(Trained::tiny().newest(), &batch);
    let first = snapshot.tasks().next().unwrap();
    assert_eq!(bits(&outputs[first]), bits(&task(&wanted.probabilities, 0, wanted.task_count)));
    assert!(is_alive(&server));
    assert_eq!(server.engine().metrics.outcome(Outcome::Failed), 0);
    assert!(server.stop());
}

/// A small disk of memory; `None` where we may not make one.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new() -> Option<SmallDisk> {
        let home = tempfile::tempdir().unwrap();
        let mount = ["-t", "tmpfs", "-o", "size=64k", "campanile-test"];
        let made = Command::new("mount").args(mount).arg(home.path()).output();
        made.is_ok_and(|output| output.status.success()).then_some(SmallDisk(home))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[test]
fn a_full_log_disk_costs_records_that_are_counted_and_no_answer() {
    let Some(disk) = SmallDisk::new() else {
        let line = "NOT CHECKED: this user may not mount a small tmpfs, so a full log disk was not tried\n";
        assert!(std::env::var_os("CI").is_none(), "with CI set nothing may be left out. {line}");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        return;
    };
    let directory = disk.0.path().join("log");
    let mut settings = Settings::new();
    settings.log =
        FeatureLog::start(Box::new(Segments::new(&directory, 16 << 10, u64::MAX).unwrap()), 1.0).unwrap();
    let server = settings.start();
    let snapshot = Snapshot::open(Trained::tiny().newest(), "t", &Options::default()).unwrap();
    let request =
        binary_request("/v2/models/tiny/infer", &columns(&Trained::tiny().samples(20), snapshot.inputs()));
    let mut client = RestClient::connect(server.http).unwrap();
    let counts = || server.engine().log.counts();
    let mut answered = 0;
    while counts().dropped == 0 {
        read_binary(&client.send(&request).unwrap());
        answered += 1;
        assert!(answered < 10_000, "64 KiB are full long before this");
    }
    for _ in 0..50 {
        read_binary(&client.send(&request).unwrap());
        answered += 1;
    }
    wait_until("every record is written or lost", || counts().written + counts().dropped == answered);
    let (_, page) = ask(&server, "GET", "/dashboard.json", "");
    assert!(page["log"]["problem"].as_str().unwrap().contains("space"), "{}", page["log"]);
    // Space again: the log goes on.
    let oldest = Segments::list(&directory).unwrap().remove(0);
    fs::remove_file(oldest).unwrap();
    let before = counts().written;
    wait_until("the log works again", || {
        read_binary(&client.send(&request).unwrap());
        counts().written > before
    });
    let engine = std::sync::Arc::clone(server.engine());
    assert!(server.stop());
    wait_until("everything is written", || {
        let counts = engine.log.counts();
        counts.written + counts.dropped == engine.metrics.outcome(Outcome::Scored)
    });
    for path in Segments::list(&directory).unwrap() {
        let mut reader = SegmentReader::open(&path).unwrap();
        while let Some(record) = reader.next_record().unwrap() {
            assert_eq!((record.model.as_str(), record.inputs.len()), ("tiny", 9));
        }
    }
}
