//! What every event log must do: one suite, run on each backend.

use std::path::Path;

use campanile_stream::log::{DirectoryLog, Limit, Log, LogError, Record, Records, Sync, TopicOptions};
use proptest::prelude::*;

const ALL: Limit = Limit { records: usize::MAX, bytes: usize::MAX };

fn small(partitions: u32) -> TopicOptions {
    TopicOptions { partitions, segment_bytes: 200, sync: Sync::Never, ..TopicOptions::default() }
}

fn append(log: &dyn Log, topic: &str, partition: u32, payloads: &[&str], time_ms: u64) -> u64 {
    let records: Vec<Record<'_>> =
        payloads.iter().map(|payload| Record { time_ms, payload: payload.as_bytes() }).collect();
    log.append(topic, partition, &records).unwrap()
}

fn read(log: &dyn Log, topic: &str, partition: u32, from: u64, limit: Limit) -> Vec<String> {
    let mut out = Records::default();
    log.read(topic, partition, from, limit, &mut out).unwrap();
    for (place, record) in out.iter().enumerate() {
        assert_eq!(record.offset, from + place as u64);
    }
    out.iter().map(|record| String::from_utf8(record.payload.to_vec()).unwrap()).collect()
}

/// The suite: `open` opens the same log anew each time, as another process would.
fn suite(open: &dyn Fn() -> Box<dyn Log>) {
    let log = open();
    log.create("clicks", small(2)).unwrap();
    log.create("clicks", small(2)).unwrap();
    let error = log.create("clicks", small(3)).unwrap_err();
    assert!(matches!(error, LogError::OtherPartitions { found: 2, wanted: 3, .. }), "{error}");

    // Numbers run on per partition, over appends, segments and reopenings.
    assert_eq!(append(&*log, "clicks", 0, &["a", "b"], 1), 0);
    assert_eq!(append(&*log, "clicks", 1, &["x"], 1), 0);
    assert_eq!(append(&*log, "clicks", 0, &[], 1), 2);
    for n in 2..40 {
        assert_eq!(append(&*log, "clicks", 0, &[&format!("record {n}")], n), n);
    }
    assert_eq!(log.range("clicks", 0).unwrap(), 0..40);
    drop(log);
    let log = open();
    assert_eq!(append(&*log, "clicks", 0, &["after"], 40), 40);
    assert_eq!(log.range("clicks", 0).unwrap(), 0..41);

    // Reads begin anywhere, stop at limits, and are empty at the end.
    let all = read(&*log, "clicks", 0, 0, ALL);
    assert_eq!((all.len(), &all[0][..], &all[40][..]), (41, "a", "after"));
    for from in [0, 1, 7, 23, 39, 40, 2, 41] {
        assert_eq!(read(&*log, "clicks", 0, from, ALL), all[from as usize..], "from {from}");
    }
    assert_eq!(read(&*log, "clicks", 0, 5, Limit { records: 3, bytes: usize::MAX }), all[5..8]);
    assert_eq!(read(&*log, "clicks", 0, 5, Limit { records: 9, bytes: 10 }), all[5..7]);
    assert_eq!(read(&*log, "clicks", 0, 5, Limit { records: 9, bytes: 0 }), all[5..6]);
    assert_eq!(read(&*log, "clicks", 1, 0, ALL), ["x"]);
    let mut out = Records::default();
    log.last("clicks", 0, &mut out).unwrap();
    let last = out.last().unwrap();
    assert_eq!((last.offset, last.time_ms, last.payload), (40, 40, &b"after"[..]));
    log.create("empty", small(1)).unwrap();
    log.last("empty", 0, &mut out).unwrap();
    assert!(out.is_empty());
    assert_eq!(read(&*log, "empty", 0, 0, ALL), [""; 0]);

    // A second opener sees what the first appends.
    let other = open();
    assert_eq!(read(&*other, "clicks", 0, 40, ALL), ["after"]);
    append(&*log, "clicks", 0, &["later"], 41);
    assert_eq!(read(&*other, "clicks", 0, 41, ALL), ["later"]);

    // Groups have cursors of their own, and keep them.
    assert_eq!(log.committed("joiner", "clicks", 0).unwrap(), 0);
    log.commit("joiner", "clicks", 0, 17).unwrap();
    log.commit("joiner", "clicks", 1, 1).unwrap();
    log.commit("joiner", "clicks", 0, 18).unwrap();
    let cursor = |group: &str, partition| open().committed(group, "clicks", partition).unwrap();
    assert_eq!((cursor("joiner", 0), cursor("joiner", 1), cursor("trainer", 0)), (18, 1, 0));

    // Mistakes have names.
    let said = |outcome: Result<u64, LogError>| outcome.unwrap_err().to_string();
    assert!(said(log.append("views", 0, &[])).contains("no topic `views`"));
    assert!(said(log.append("clicks", 2, &[])).contains("partition 2"));
    assert!(said(log.committed("../up", "clicks", 0)).contains("cannot be the name"));
    assert!(log.create("a/b", small(1)).unwrap_err().to_string().contains("cannot be the name"));
    log.sync().unwrap();
}

/// Old records go by time and by size, whole runs of them, never the newest.
fn retention(open: &dyn Fn() -> Box<dyn Log>) {
    let log = open();
    log.create("by_time", TopicOptions { keep_ms: 1000, ..small(1) }).unwrap();
    log.create("by_size", TopicOptions { keep_bytes: 1000, ..small(1) }).unwrap();
    for n in 0..100 {
        append(&*log, "by_time", 0, &["twenty bytes of words"], n * 100);
        append(&*log, "by_size", 0, &["twenty bytes of words"], n * 100);
    }
    assert_eq!(open().options("by_time").unwrap().keep_ms, 1000);
    assert_eq!(open().options("by_size").unwrap().keep_bytes, 1000);
    assert!(log.retain(10_000).unwrap() > 0);
    let by_time = log.range("by_time", 0).unwrap();
    assert!(by_time.start > 70 && by_time.start <= 91 && by_time.end == 100, "{by_time:?}");
    let by_size = log.range("by_size", 0).unwrap();
    assert!(by_size.start > 50 && by_size.start < 100 && by_size.end == 100, "{by_size:?}");
    assert_eq!(read(&*log, "by_time", 0, by_time.start, ALL).len() as u64, 100 - by_time.start);
    let error = log.read("by_time", 0, 0, ALL, &mut Records::default()).unwrap_err();
    assert!(matches!(error, LogError::Gone { offset: 0, .. }), "{error}");
    assert_eq!(append(&*log, "by_time", 0, &["next"], 10_000), 100);
    assert_eq!(log.retain(10_000).unwrap(), 0);

    // What its one reader needs no more goes too, and what it needs stays.
    log.create("trimmed", small(1)).unwrap();
    for n in 0..50 {
        append(&*log, "trimmed", 0, &["twenty bytes of words"], n);
    }
    assert_eq!(log.trim("trimmed", 0, 0).unwrap(), 0);
    let start = log.trim("trimmed", 0, 30).unwrap();
    assert!(start > 15 && start <= 30, "{start}");
    assert_eq!(log.range("trimmed", 0).unwrap(), start..50);
    assert_eq!(read(&*log, "trimmed", 0, 30, ALL).len(), 20);
    assert!(log.trim("trimmed", 0, 50).unwrap() > 40);
    assert_eq!(append(&*log, "trimmed", 0, &["next"], 50), 50);
    assert_eq!(read(&*log, "trimmed", 0, 50, ALL), ["next"]);
    assert_eq!(open().range("trimmed", 0).unwrap().end, 51);
}

fn directory(home: &Path) -> impl Fn() -> Box<dyn Log> {
    let home = home.to_owned();
    move || Box::new(DirectoryLog::open(&home).unwrap())
}

#[test]
fn the_directory_is_an_event_log() {
    let home = tempfile::tempdir().unwrap();
    suite(&directory(home.path()));
}

#[test]
fn the_directory_forgets_as_asked() {
    let home = tempfile::tempdir().unwrap();
    retention(&directory(home.path()));
}

#[test]
fn two_processes_cannot_write_one_partition() {
    let home = tempfile::tempdir().unwrap();
    let (one, two) = (directory(home.path())(), directory(home.path())());
    one.create("clicks", small(2)).unwrap();
    append(&*one, "clicks", 0, &["a"], 1);
    let error = two.append("clicks", 0, &[Record { time_ms: 1, payload: b"b" }]).unwrap_err();
    assert!(matches!(error, LogError::Busy { .. }), "{error}");
    append(&*two, "clicks", 1, &["b"], 1);
    drop(one);
    append(&*two, "clicks", 0, &["b"], 1);
}

proptest! {
    /// However far a crash got with its last write, whole records stay, the rest goes, and appending goes on.
    #[test]
    fn a_torn_write_costs_only_itself(cut in 0usize..500, zeros in 0usize..40, more in 1usize..5) {
        let home = tempfile::tempdir().unwrap();
        let open = directory(home.path());
        let log = open();
        log.create("t", TopicOptions { segment_bytes: 300, sync: Sync::Never, ..TopicOptions::default() }).unwrap();
        let payload = |n: u64| format!("{n}: {}", "x".repeat(n as usize % 23));
        for n in 0..30 {
            append(&*log, "t", 0, &[&payload(n)], n);
        }
        drop(log);
        let mut segments: Vec<_> = std::fs::read_dir(home.path().join("topics/t/0")).unwrap()
            .map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some()).collect();
        segments.sort();
        let last = segments.pop().unwrap();
        let bytes = std::fs::read(&last).unwrap();
        let mut torn = bytes[..bytes.len().saturating_sub(cut).max(16)].to_vec();
        // What the system had made room for but not filled, all inside the record that was being written.
        let whole = torn.len();
        torn.resize((whole + zeros).min(bytes.len()), 0);
        std::fs::write(&last, &torn).unwrap();

        let log = open();
        let kept = log.range("t", 0).unwrap().end;
        prop_assert!(kept <= 30);
        if cut == 0 {
            prop_assert_eq!(kept, 30);
        }
        for n in 0..more as u64 {
            prop_assert_eq!(append(&*log, "t", 0, &[&payload(kept + n)], 0), kept + n);
        }
        let want: Vec<String> = (0..kept + more as u64).map(payload).collect();
        prop_assert_eq!(read(&*log, "t", 0, 0, ALL), want);
    }
}

#[test]
fn a_flipped_bit_is_named_and_nothing_behind_it_is_read_or_lost() {
    let home = tempfile::tempdir().unwrap();
    let open = directory(home.path());
    let log = open();
    log.create("t", TopicOptions { sync: Sync::EveryAppend, ..TopicOptions::default() }).unwrap();
    for n in 0..10 {
        append(&*log, "t", 0, &[&format!("record {n}")], n);
    }
    drop(log);
    let path = home.path().join("topics/t/0/00000000000000000000.log");
    let mut bytes = std::fs::read(&path).unwrap();
    let place = bytes.len() / 2;
    bytes[place] ^= 4;
    std::fs::write(&path, &bytes).unwrap();
    let log = open();
    let mut out = Records::default();
    let error = log.read("t", 0, 0, ALL, &mut out).unwrap_err().to_string();
    assert!(error.contains("00000000000000000000.log is damaged at byte"), "{error}");
    let error = log.append("t", 0, &[Record { time_ms: 0, payload: b"new" }]).unwrap_err();
    assert!(matches!(error, LogError::Damaged { .. }), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "nothing was cut off");
}

/// What was synced and is gone is told to every reader and to the writer, wherever the last segment is cut, and when it is
/// removed.
#[test]
fn a_log_that_lost_what_was_synced_is_told_by_file_and_byte() {
    let record = [Record { time_ms: 0, payload: b"new" }];
    for cut in [0u64, 5, 16, 17, 100, 400, u64::MAX] {
        let home = tempfile::tempdir().unwrap();
        let open = directory(home.path());
        let log = open();
        log.create("t", TopicOptions { sync: Sync::EveryAppend, segment_bytes: 900, ..small(1) }).unwrap();
        for n in 0..40 {
            append(&*log, "t", 0, &[&format!("record {n}")], n);
        }
        let end = log.range("t", 0).unwrap().end;
        drop(log);
        let mut segments: Vec<_> = std::fs::read_dir(home.path().join("topics/t/0"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some())
            .collect();
        segments.sort();
        let path = segments.pop().unwrap();
        if cut == u64::MAX {
            std::fs::remove_file(&path).unwrap();
        } else {
            std::fs::File::options().write(true).open(&path).unwrap().set_len(cut).unwrap();
        }
        for (what, error) in [
            ("read", open().read("t", 0, 0, ALL, &mut Records::default()).unwrap_err()),
            ("read at the end", open().read("t", 0, end, ALL, &mut Records::default()).unwrap_err()),
            ("range", open().range("t", 0).map(drop).unwrap_err()),
            ("append", open().append("t", 0, &record).map(drop).unwrap_err()),
        ] {
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(matches!(error, LogError::Damaged { .. }), "{what}, cut at {cut}: {error}");
            assert!(error.to_string().contains(name), "{what}, cut at {cut}: {error}");
            assert!(error.to_string().contains("are gone"), "{what}, cut at {cut}: {error}");
        }
    }
}

/// A stray name among the topics is none, and ends nothing.
#[test]
fn retention_passes_over_stray_names() {
    let home = tempfile::tempdir().unwrap();
    let log = directory(home.path())();
    log.create("t", TopicOptions { keep_ms: 10, ..small(1) }).unwrap();
    for n in 0..40 {
        append(&*log, "t", 0, &["twenty bytes of words"], n);
    }
    std::fs::create_dir(home.path().join("topics/half made")).unwrap();
    std::fs::create_dir(home.path().join("topics/half-made")).unwrap();
    std::fs::write(home.path().join("topics/.stray"), b"").unwrap();
    assert!(log.retain(1000).unwrap() > 0);
}

/// Records of one append are read in any parts, from any place, by readers that go on and by fresh ones.
#[test]
fn a_frame_is_read_in_any_parts() {
    let home = tempfile::tempdir().unwrap();
    let open = directory(home.path());
    let log = open();
    log.create("t", TopicOptions { segment_bytes: 100_000, sync: Sync::Never, ..TopicOptions::default() })
        .unwrap();
    let payloads: Vec<String> =
        (0..2000).map(|n: usize| format!("{n} {}", "x".repeat(n * 7 % 301))).collect();
    for part in payloads.chunks(700) {
        append(&*log, "t", 0, &part.iter().map(String::as_str).collect::<Vec<_>>(), 5);
    }
    for (records, bytes) in
        [(1, usize::MAX), (7, 1000), (333, usize::MAX), (usize::MAX, 5000), (2000, 70_000)]
    {
        let mut found: Vec<String> = Vec::new();
        while found.len() < payloads.len() {
            let part = read(&*log, "t", 0, found.len() as u64, Limit { records, bytes });
            assert!(!part.is_empty() && part.len() <= records);
            let bytes_found: usize = part.iter().map(String::len).sum();
            assert!(bytes_found < bytes.saturating_add(64 << 10), "it stops when it has enough");
            found.extend(part);
        }
        assert!(found == payloads, "{records} records or {bytes} bytes at a time");
    }
    for from in (0..2000).rev().step_by(97) {
        let limit = Limit { records: 2, bytes: usize::MAX };
        assert_eq!(read(&*log, "t", 0, from as u64, limit), payloads[from..payloads.len().min(from + 2)]);
    }
}

#[test]
fn a_segment_of_an_older_program_is_refused_by_its_format() {
    let home = tempfile::tempdir().unwrap();
    let open = directory(home.path());
    open().create("t", small(1)).unwrap();
    let path = home.path().join("topics/t/0/00000000000000000000.log");
    std::fs::write(&path, [&b"CAMPLOG1"[..], &[0; 8], &[7; 40]].concat()).unwrap();
    let said = |outcome: Result<(), LogError>| outcome.unwrap_err().to_string();
    for words in [
        said(open().read("t", 0, 0, ALL, &mut Records::default())),
        said(open().append("t", 0, &[Record { time_ms: 0, payload: b"new" }]).map(drop)),
    ] {
        assert!(words.contains("0.log is a segment of format `CAMPLOG1`"), "{words}");
        assert!(words.contains("reads and writes `CAMPLOG2`"), "{words}");
    }
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 56, "nothing was cut off");
}

/// NATS with JetStream, when the feature is on.
#[cfg(feature = "nats")]
mod nats {
    use std::{
        io::{Read, Write},
        net::TcpListener,
        process::{Command, Stdio},
    };

    use campanile_stream::log::{
        address::{self, Entry},
        jetstream::{JetStreamLog, Server},
    };

    use super::*;
    use crate::broker::Broker;

    #[test]
    fn jetstream_is_an_event_log() {
        if let Some(broker) = Broker::start() {
            suite(&broker.open());
        }
    }

    #[test]
    fn jetstream_forgets_as_asked() {
        if let Some(broker) = Broker::start() {
            retention(&broker.open());
        }
    }

    #[test]
    fn a_second_writer_is_noticed_and_leaves_no_hole() {
        let Some(broker) = Broker::start() else { return };
        let (one, two) = (broker.open()(), broker.open()());
        one.create("clicks", small(1)).unwrap();
        append(&*one, "clicks", 0, &["a"], 1);
        append(&*two, "clicks", 0, &["b"], 1);
        let record = Record { time_ms: 1, payload: b"c" };
        let error = one.append("clicks", 0, &[record, record]).unwrap_err();
        assert!(error.to_string().contains("wrong last sequence"), "{error}");
        assert_eq!(read(&*two, "clicks", 0, 0, ALL), ["a", "b"]);
        // Having looked again, it may go on.
        assert_eq!(append(&*one, "clicks", 0, &["c"], 1), 2);
    }

    #[test]
    fn a_message_that_somebody_deleted_is_told_and_not_passed_over() {
        let Some(broker) = Broker::start() else { return };
        let log = broker.open()();
        log.create("clicks", small(1)).unwrap();
        append(&*log, "clicks", 0, &["a", "b", "c", "d"], 1);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let context = async_nats::jetstream::new(async_nats::connect(broker.url()).await.unwrap());
            let stream = context.get_stream("camp_clicks_0").await.unwrap();
            assert!(stream.delete_message(3).await.unwrap());
        });
        for from in [0, 2] {
            let error = log.read("clicks", 0, from, ALL, &mut Records::default()).unwrap_err();
            assert!(matches!(error, LogError::Gone { offset: 2, start: 3, .. }), "{error}");
        }
        assert_eq!(read(&*log, "clicks", 0, 3, ALL), ["d"]);
    }

    /// What a client says first to a server that is no NATS server and has no TLS.
    fn first_words(address: impl FnOnce(u16) -> (String, Entry)) -> Vec<u8> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, entry) = address(listener.local_addr().unwrap().port());
        let client = std::thread::spawn(move || address::open(&address, &entry).map(drop));
        let mut stream = listener.accept().unwrap().0;
        let info = r#"INFO {"server_id":"s","server_name":"s","version":"2.10.0","go":"","host":"","port":4222,"headers":true,"max_payload":1048576,"proto":1,"client_id":1}"#;
        stream.write_all(format!("{info}\r\n").as_bytes()).unwrap();
        let mut words = vec![0; 2000];
        let count = stream.read(&mut words).unwrap();
        words.truncate(count);
        drop((stream, listener));
        assert!(client.join().unwrap().is_err());
        words
    }

    /// Whoever names certificates to trust must not send a password in the clear because `nats://` stands before the host; nor to
    /// the second of two servers.
    #[test]
    fn certificates_ask_for_tls() {
        let home = tempfile::tempdir().unwrap();
        let ca = home.path().join("ca.pem");
        let made = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-subj",
                "/CN=ca",
                "-keyout",
                "/dev/null",
                "-out",
            ])
            .arg(&ca)
            .stderr(Stdio::null())
            .status();
        let Ok(true) = made.map(|status| status.success()) else {
            assert!(std::env::var_os("CI").is_none(), "openssl is needed to make a certificate");
            eprintln!("NOT CHECKED: openssl is not installed, so TLS to a NATS server was not tried");
            return;
        };
        let with_ca = Entry { root_certificates: Some(ca), ..Entry::default() };
        let words = first_words(|port| (format!("nats://shop:secret@127.0.0.1:{port}/camp"), with_ca));
        assert_eq!(words.first(), Some(&0x16), "{:?}", String::from_utf8_lossy(&words));
        let second =
            |port| (format!("tls://shop:secret@127.0.0.1:1,127.0.0.1:{port}/camp"), Entry::default());
        let words = first_words(second);
        assert_eq!(words.first(), Some(&0x16), "{:?}", String::from_utf8_lossy(&words));
    }

    /// A password need not stand in the address.
    #[test]
    fn a_password_comes_beside_the_address() {
        let entry = Entry { password: Some("a secret".to_owned()), ..Entry::default() };
        let words = first_words(|port| (format!("nats://shop@127.0.0.1:{port}/camp"), entry));
        let words = String::from_utf8(words).unwrap();
        assert!(words.contains(r#""user":"shop""#) && words.contains(r#""pass":"a secret""#), "{words}");
    }

    #[test]
    fn a_server_that_is_not_there_is_named() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let url = format!("nats://127.0.0.1:{port}");
        let server = Server { url: url.clone(), prefix: "camp".to_owned(), ..Server::default() };
        let Err(error) = JetStreamLog::open(server) else { panic!("nobody is there") };
        assert!(error.to_string().contains(&url), "{error}");
    }
}

/// Files of a log that somebody else wrote: no count and no length of theirs decides how much memory is taken.
#[test]
fn counts_and_lengths_of_a_foreign_log_are_not_believed() {
    let home = tempfile::tempdir().unwrap();
    let log = DirectoryLog::open(home.path()).unwrap();
    log.create("t", TopicOptions::default()).unwrap();
    append(&log, "t", 0, &["a", "b"], 1);
    let segment = home.path().join("topics/t/0/00000000000000000000.log");
    let mut bytes = std::fs::read(&segment).unwrap();
    // A second frame whose head asks for 60 MiB, of which there are eight bytes.
    bytes.extend([0; 8]);
    bytes.extend((60u32 << 20).to_le_bytes());
    bytes.extend([0; 20]);
    std::fs::write(&segment, bytes).unwrap();
    drop(log);
    let log = DirectoryLog::open(home.path()).unwrap();
    assert_eq!(read(&log, "t", 0, 0, ALL), ["a", "b"]);
    for partitions in ["0", "4611686018427387904", "65537"] {
        let options = home.path().join("topics/t/options");
        let text = std::fs::read_to_string(&options).unwrap();
        let (_, rest) = text.split_once('\n').unwrap();
        std::fs::write(&options, format!("partitions {partitions}\n{rest}")).unwrap();
        let error = DirectoryLog::open(home.path()).unwrap().range("t", 0).unwrap_err().to_string();
        assert!(error.contains("topics/t/options") && error.contains("1 to 65536 can be"), "{error}");
    }
}
