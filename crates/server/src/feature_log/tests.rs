use std::{fs, path::Path};

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::protocol::{Datatype, Limits, Tensor};

fn record(number: u64) -> Record {
    let ids = Bytes::from(vec![number as u8; 16]);
    Record {
        time_us: 1_700_000_000_000_000 + number,
        id: format!("request-{number}"),
        model: "first".to_owned(),
        version: number / 10,
        task_count: 1,
        probabilities: vec![0.25, number as f32],
        columns: Arc::default(),
        inputs: vec![
            Tensor::new("ids".to_owned(), Datatype::Int64, &[2], ids, &Limits::default()).unwrap(),
            Tensor::new(
                "text".to_owned(),
                Datatype::Bytes,
                &[1],
                Bytes::from_static(b"\x01\0\0\0a"),
                &Limits::default(),
            )
            .unwrap(),
        ],
    }
}

/// All whole records of a directory, and whether the end of a segment was damaged.
fn read(directory: &Path) -> (Vec<Record>, usize) {
    let (mut records, mut damaged) = (Vec::new(), 0);
    for path in Segments::list(directory).unwrap() {
        let mut reader = SegmentReader::open(&path).unwrap();
        loop {
            match reader.next_record() {
                Ok(Some(record)) => records.push(record),
                Ok(None) => break,
                Err(_) => {
                    damaged += 1;
                    break;
                }
            }
        }
    }
    (records, damaged)
}

#[test]
fn what_was_noted_reads_back_in_order_over_several_segments() {
    let directory = tempfile::tempdir().unwrap();
    let sink = Segments::new(directory.path(), 500, u64::MAX).unwrap();
    let mut log = FeatureLog::start(Box::new(sink), 1.0).unwrap();
    for number in 0..100 {
        assert!(log.wants(&record(number).id));
        log.offer(record(number));
        // One at a time, so that segments fill up.
        while log.counts().written <= number {
            std::thread::yield_now();
        }
    }
    log.finish();
    assert_eq!(log.counts(), LogCounts { written: 100, dropped: 0 });
    assert!(Segments::list(directory.path()).unwrap().len() > 5);
    let (records, damaged) = read(directory.path());
    assert_eq!((records, damaged), ((0..100).map(record).collect(), 0));
}

#[test]
fn a_share_is_chosen_by_id_alone() {
    let directory = tempfile::tempdir().unwrap();
    let open = |share| {
        FeatureLog::start(Box::new(Segments::new(directory.path(), 1 << 20, u64::MAX).unwrap()), share)
            .unwrap()
    };
    let (none, some, same, all) = (open(0.0), open(0.1), open(0.1), open(1.0));
    let ids: Vec<String> = (0..10_000).map(|number| format!("id-{number}")).collect();
    let count = |log: &FeatureLog| ids.iter().filter(|id| log.wants(id)).count();
    assert_eq!((count(&none), count(&all)), (0, 10_000));
    assert!((800..1200).contains(&count(&some)), "{}", count(&some));
    assert!(ids.iter().all(|id| some.wants(id) == same.wants(id)));
    assert!(!FeatureLog::off().wants("id"));
}

/// A sink that fails as often as told.
struct Failing {
    inner: Segments,
    failures: usize,
}

impl Sink for Failing {
    fn append(&mut self, record: &Record) -> io::Result<()> {
        self.inner.append(record)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.failures > 0 {
            self.failures -= 1;
            return Err(io::Error::other("no space left"));
        }
        self.inner.flush()
    }
}

#[test]
fn what_is_lost_is_counted_and_the_log_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let inner = Segments::new(directory.path(), 1 << 20, u64::MAX).unwrap();
    let mut log = FeatureLog::start(Box::new(Failing { inner, failures: 3 }), 1.0).unwrap();
    for number in 0..10 {
        log.offer(record(number));
        while log.counts().written + log.counts().dropped <= number {
            std::thread::yield_now();
        }
    }
    log.finish();
    let counts = log.counts();
    assert_eq!(counts.written + counts.dropped, 10);
    assert!(counts.dropped >= 3, "{counts:?}");
    assert_eq!(log.problem(), None, "it works again");
}

#[test]
fn a_cut_or_changed_segment_gives_what_is_whole_and_says_where_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = Segments::new(directory.path(), 1 << 20, u64::MAX).unwrap();
    (0..3).for_each(|number| sink.append(&record(number)).unwrap());
    sink.flush().unwrap();
    let path = Segments::list(directory.path()).unwrap().remove(0);
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let Ok(mut reader) = SegmentReader::open(&path) else {
            assert!(length < 8);
            continue;
        };
        let mut records = 0;
        let end = loop {
            match reader.next_record() {
                Ok(Some(_)) => records += 1,
                other => break other,
            }
        };
        assert!(records < 3);
        assert!(end.is_ok() || end.unwrap_err().to_string().contains("what is before it is whole"));
    }
    for place in 8..whole.len() {
        let mut changed = whole.clone();
        changed[place] ^= 0x40;
        fs::write(&path, &changed).unwrap();
        assert_ne!(read(directory.path()), ((0..3).map(record).collect(), 0), "byte {place}");
    }
}

proptest! {
    /// No bytes make the reader of records panic.
    #[test]
    fn any_bytes_are_a_record_or_not(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200), place in 0usize..200, byte in any::<u8>(),
    ) {
        let _ = Record::decode(Bytes::copy_from_slice(&bytes));
        bytes.clear();
        record(7).encode(&mut bytes);
        prop_assert_eq!(Record::decode(Bytes::copy_from_slice(&bytes)), Ok(record(7)));
        let place = place % bytes.len();
        bytes[place] = byte;
        let _ = Record::decode(Bytes::from(bytes));
    }
}

/// A sink that panics over its first record.
struct Panics(u64);

impl Sink for Panics {
    fn append(&mut self, _: &Record) -> io::Result<()> {
        self.0 += 1;
        assert!(self.0 > 1, "the first");
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_panic_over_one_record_loses_that_record_alone() {
    let mut log = FeatureLog::start(Box::new(Panics(0)), 1.0).unwrap();
    (0..3).for_each(|number| log.offer(record(number)));
    log.finish();
    assert_eq!(log.counts(), LogCounts { written: 2, dropped: 1 });
}

#[test]
fn a_log_has_a_maximum_and_goes_on_when_somebody_makes_room() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("log");
    let mut sink = Segments::new(&directory, 500, 2000).unwrap();
    let note = |sink: &mut Segments, number| sink.append(&record(number)).and_then(|()| sink.flush());
    let kept = (0..1000).take_while(|number| note(&mut sink, *number).is_ok()).count();
    let bytes = || {
        Segments::list(&directory).unwrap().iter().map(|path| fs::metadata(path).unwrap().len()).sum::<u64>()
    };
    assert!(kept > 5 && bytes() <= 2000, "{kept} records, {} bytes", bytes());
    let error = note(&mut sink, 2000).unwrap_err().to_string();
    assert!(error.contains("--log-max-mb"), "{error}");
    fs::remove_file(&Segments::list(&directory).unwrap()[0]).unwrap();
    note(&mut sink, 2001).unwrap();
    drop(sink);
    assert_eq!(read(&directory).1, 0, "every record is whole");
}

#[cfg(unix)]
#[test]
fn only_the_owner_may_read_what_clients_sent() {
    use std::os::unix::fs::PermissionsExt;
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("below/log");
    let mut sink = Segments::new(&directory, 500, 2000).unwrap();
    sink.append(&record(1)).and_then(|()| sink.flush()).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    assert_eq!(mode(&Segments::list(&directory).unwrap()[0]), 0o600);
}
