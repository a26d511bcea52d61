//! The server's feature log as the topic `impressions` of an event log.

use std::{collections::BTreeSet, io, sync::Arc};

use campanile_server::feature_log::{Record, Sink};
use campanile_stream::{
    log::{self, Log},
    records::{Impression, Schema, declare, impression_id},
    topics::IMPRESSIONS,
};

/// Sets of columns that one server may write: what clients add with `log.NAME` must not fill the log with schemas.
const SCHEMAS_MAX: usize = 64;

/// Writes scored samples as impressions.
pub struct Impressions {
    log: Arc<dyn Log>,
    declared: BTreeSet<u32>,
    /// Time in milliseconds, and the payload.
    waiting: Vec<(u64, Vec<u8>)>,
}

impl Impressions {
    /// To a log whose topics are there.
    pub fn new(log: Arc<dyn Log>) -> Impressions {
        Impressions { log, declared: BTreeSet::new(), waiting: Vec::new() }
    }

    fn declared(&mut self, columns: &[String]) -> io::Result<u32> {
        let schema = Schema::new(columns);
        if self.declared.contains(&schema.number()) {
            return Ok(schema.number());
        }
        if self.declared.len() == SCHEMAS_MAX {
            let words = format!(
                "more than {SCHEMAS_MAX} different sets of columns; send the same `log.` inputs always"
            );
            return Err(io::Error::other(words));
        }
        declare(&*self.log, IMPRESSIONS, 0, &schema).map_err(io::Error::other)?;
        self.declared.insert(schema.number());
        Ok(schema.number())
    }
}

impl Sink for Impressions {
    fn append(&mut self, record: &Record) -> io::Result<()> {
        let rows = record.rows().map_err(io::Error::other)?;
        let schema = self.declared(&rows.columns)?;
        for (sample, row) in rows.rows.iter().enumerate() {
            let features = [&schema.to_le_bytes()[..], row].concat();
            let mut payload = Vec::with_capacity(features.len() + 9);
            let id = impression_id(&record.id, sample as u32);
            Impression { id, features: &features }.encode(&mut payload);
            self.waiting.push((record.time_us / 1000, payload));
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let records: Vec<log::Record<'_>> = self
            .waiting
            .iter()
            .map(|(time_ms, payload)| log::Record { time_ms: *time_ms, payload })
            .collect();
        let appended = if records.is_empty() { Ok(0) } else { self.log.append(IMPRESSIONS, 0, &records) };
        self.waiting.clear();
        appended.map(drop).map_err(io::Error::other)
    }
}
