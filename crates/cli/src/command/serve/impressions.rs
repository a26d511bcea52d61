//! The server's feature log as the topic `impressions` of an event log.

use std::{collections::BTreeSet, io, sync::Arc};

use campanile_server::feature_log::{Record, Room, Sink};
use campanile_stream::{
    log::{self, Log},
    records::{Impression, Schema, declare, impression_id},
    topics::IMPRESSIONS,
};

/// Sets of columns that are remembered as declared: one a model and version of its inputs.
const SCHEMAS_MAX: usize = 64;

/// Bytes of rows that are gathered before they are handed over.
const WAITING_BYTES_MAX: usize = 1 << 20;

/// Writes scored samples as impressions.
pub struct Impressions {
    log: Arc<dyn Log>,
    /// Columns beside the model's own, which clients send as `log.NAME`.
    columns: Vec<String>,
    /// How much may be written; a broker has limits of its own.
    room: Option<Room>,
    declared: BTreeSet<u32>,
    /// Time in milliseconds, and the payload.
    waiting: Vec<(u64, Vec<u8>)>,
    waiting_bytes: usize,
    /// Why rows of this or of earlier records could not be handed over, until a flush says so for all of them.
    failed: Option<io::Error>,
}

impl Impressions {
    /// To a log whose topics are there.
    pub fn new(log: Arc<dyn Log>, columns: Vec<String>, room: Option<Room>) -> Impressions {
        Impressions {
            log,
            columns,
            room,
            declared: BTreeSet::new(),
            waiting: Vec::new(),
            waiting_bytes: 0,
            failed: None,
        }
    }

    fn declared(&mut self, columns: &[String]) -> io::Result<u32> {
        let schema = Schema::new(columns);
        if self.declared.contains(&schema.number()) {
            return Ok(schema.number());
        }
        if self.declared.len() == SCHEMAS_MAX {
            // To declare one again costs a look at the log and changes nothing.
            self.declared.clear();
        }
        declare(&*self.log, IMPRESSIONS, 0, &schema).map_err(io::Error::other)?;
        self.declared.insert(schema.number());
        Ok(schema.number())
    }

    /// Hands over what waits; whether or not it is kept, nothing waits then.
    fn hand_over(&mut self) -> io::Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        let bytes = std::mem::take(&mut self.waiting_bytes);
        if waiting.is_empty() {
            return Ok(());
        }
        if let Some(room) = &mut self.room {
            room.take(bytes as u64)?;
        }
        let records: Vec<log::Record<'_>> =
            waiting.iter().map(|(time_ms, payload)| log::Record { time_ms: *time_ms, payload }).collect();
        self.log.append(IMPRESSIONS, 0, &records).map(drop).map_err(io::Error::other)
    }
}

impl Sink for Impressions {
    fn append(&mut self, record: &Record) -> io::Result<()> {
        let rows = record.rows(&self.columns).map_err(io::Error::other)?;
        let schema = self.declared(&rows.columns)?;
        let mut features = Vec::new();
        for sample in 0..record.sample_count() {
            features.clear();
            features.extend_from_slice(&schema.to_le_bytes());
            rows.put(sample, &mut features);
            let mut payload = Vec::with_capacity(features.len() + 9);
            let id = impression_id(&record.id, sample as u32);
            Impression { id, features: &features }.encode(&mut payload);
            self.waiting_bytes += payload.len();
            self.waiting.push((record.time_us / 1000, payload));
            if self.waiting_bytes >= WAITING_BYTES_MAX {
                self.hand_over().map_err(|error| {
                    let words = error.to_string();
                    self.failed = Some(error);
                    io::Error::other(words)
                })?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let handed = self.hand_over();
        self.failed.take().map_or(handed, Err)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use campanile_server::{
        feature_log::RawColumns,
        protocol::{Datatype, Limits, Tensor},
    };
    use campanile_stream::{log::DirectoryLog, topics};

    use super::*;

    fn record(request: u64, name: &str, text: &[u8], samples: usize) -> Record {
        let data = [&(text.len() as u32).to_le_bytes()[..], text].concat();
        let limits = Limits::default();
        let tensor = Tensor::new(name.to_owned(), Datatype::Bytes, &[1], Bytes::from(data), &limits).unwrap();
        Record {
            time_us: 1_000_000,
            id: format!("request-{request}"),
            model: "ranker".to_owned(),
            version: 1,
            task_count: 1,
            probabilities: vec![0.5; samples],
            inputs: vec![tensor],
            columns: Arc::new(RawColumns::default()),
        }
    }

    fn open(home: &std::path::Path) -> Arc<dyn Log> {
        let log = DirectoryLog::open(home).unwrap();
        topics::create(&log, log::TopicOptions::default()).unwrap();
        Arc::new(log)
    }

    #[test]
    fn whatever_clients_call_their_columns_impressions_are_written_on() {
        let home = tempfile::tempdir().unwrap();
        let log = open(home.path());
        let mut sink = Impressions::new(Arc::clone(&log), vec!["seen".to_owned()], None);
        for request in 0..200 {
            sink.append(&record(request, &format!("log.column-{request}"), b"x", 2)).unwrap();
        }
        sink.flush().unwrap();
        assert_eq!(log.range(IMPRESSIONS, 0).unwrap().end, 400);
        assert_eq!(log.range(&format!("{IMPRESSIONS}.schema"), 0).unwrap().end, 1, "one set of columns");
    }

    #[test]
    fn a_large_value_for_many_candidates_is_written_row_by_row() {
        let home = tempfile::tempdir().unwrap();
        let log = open(home.path());
        let mut sink = Impressions::new(Arc::clone(&log), vec!["seen".to_owned()], None);
        let large = vec![b'x'; 100_000];
        sink.append(&record(1, "log.seen", &large, 100)).unwrap();
        assert!(sink.waiting_bytes < WAITING_BYTES_MAX && log.range(IMPRESSIONS, 0).unwrap().end > 0);
        assert!(sink.append(&record(2, "log.seen", &large, 8192)).is_err(), "500 MB of one request");
        sink.flush().unwrap();
        assert_eq!(log.range(IMPRESSIONS, 0).unwrap().end, 100);
    }

    #[test]
    fn an_event_log_has_a_maximum() {
        let home = tempfile::tempdir().unwrap();
        let room = Room::new(home.path(), 1 << 20);
        let mut sink = Impressions::new(open(home.path()), vec!["seen".to_owned()], Some(room));
        let text = vec![b'x'; 100_000];
        let mut note =
            |request| sink.append(&record(request, "log.seen", &text, 1)).and_then(|()| sink.flush());
        let kept = (0..100).take_while(|request| note(*request).is_ok()).count();
        assert!((1..=16).contains(&kept), "{kept}");
        assert!(note(200).unwrap_err().to_string().contains("--log-max-mb"));
    }
}
