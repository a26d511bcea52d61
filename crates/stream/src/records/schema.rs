//! Names that records refer to by number: columns of features, tasks.
//!
//! A schema is a list of names, its number the CRC-32C of them, so two writers with the same names agree without asking.
//! The topic `<topic>.schema` has a record for each schema that the topic's records use: the number, then the names, one a
//! line. It is written before the first record that uses it.

use std::collections::BTreeMap;

use crate::log::{Limit, Log, LogError, Record, Records, TopicOptions};

/// Names in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema {
    names: Vec<String>,
    number: u32,
}

/// The most schemas of a topic, and bytes of one.
const SCHEMAS_MAX: usize = 10_000;
const SCHEMA_BYTES_MAX: usize = 1 << 20;

impl Schema {
    /// The schema of these names; a line end in a name becomes a space.
    pub fn new(names: impl IntoIterator<Item = impl Into<String>>) -> Schema {
        let names: Vec<String> = names.into_iter().map(|name| name.into().replace('\n', " ")).collect();
        let number = crc32c::crc32c(names.join("\n").as_bytes());
        Schema { names, number }
    }

    /// The names.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// What records call it.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Where a name stands.
    pub fn place(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|own| own == name)
    }

    fn encode(&self) -> Vec<u8> {
        [&self.number.to_le_bytes()[..], self.names.join("\n").as_bytes()].concat()
    }

    fn decode(payload: &[u8]) -> Option<Schema> {
        let (number, text) = payload.split_first_chunk()?;
        let schema = Schema::new(std::str::from_utf8(text).ok()?.split('\n'));
        (schema.number == u32::from_le_bytes(*number)).then_some(schema)
    }
}

/// Writes a schema beside a topic's partition, unless it is there.
///
/// # Errors
/// When the log fails.
pub fn declare(log: &dyn Log, topic: &str, partition: u32, schema: &Schema) -> Result<(), LogError> {
    let beside = format!("{topic}.schema");
    let mut known = Schemas::default();
    known.read(log, &beside, partition)?;
    if !known.by_number.contains_key(&schema.number) {
        log.append(&beside, partition, &[Record { time_ms: 0, payload: &schema.encode() }])?;
    }
    // Whoever wrote it may have been killed before it was on disk, and records that use it must not outlive it.
    log.sync_topic(&beside, partition)
}

/// The schemas of a topic, as far as they were read.
#[derive(Debug, Clone, Default)]
pub struct Schemas {
    by_number: BTreeMap<u32, Schema>,
    /// By partition, how many were read.
    read: BTreeMap<u32, u64>,
}

impl Schemas {
    /// Makes the topic of schemas beside a topic that has so many partitions.
    ///
    /// # Errors
    /// When the log fails.
    pub fn create(log: &dyn Log, topic: &str, partitions: u32) -> Result<(), LogError> {
        log.create(&format!("{topic}.schema"), TopicOptions { partitions, ..TopicOptions::default() })
    }

    /// The schema of a number, looked for in the log if it is new; `None` where there is none.
    ///
    /// # Errors
    /// When the log fails.
    pub fn find(
        &mut self,
        log: &dyn Log,
        topic: &str,
        partition: u32,
        number: u32,
    ) -> Result<Option<&Schema>, LogError> {
        if !self.by_number.contains_key(&number) {
            self.read(log, &format!("{topic}.schema"), partition)?;
        }
        Ok(self.by_number.get(&number))
    }

    /// The last one of a topic, if it has any.
    ///
    /// # Errors
    /// When the log fails.
    pub fn newest(log: &dyn Log, topic: &str, partition: u32) -> Result<Option<Schema>, LogError> {
        let (mut last, beside) = (Records::default(), format!("{topic}.schema"));
        log.last(&beside, partition, &mut last)?;
        let Some(record) = last.last() else {
            // What was written and cannot be read is not the same as what was never written.
            return match log.range(&beside, partition)?.is_empty() {
                true => Ok(None),
                false => Err(damaged(&beside, "its last record cannot be read")),
            };
        };
        Schema::decode(record.payload)
            .map(Some)
            .ok_or_else(|| damaged(&beside, "its last record is no schema"))
    }

    fn read(&mut self, log: &dyn Log, beside: &str, partition: u32) -> Result<(), LogError> {
        let from = self.read.get(&partition).copied().unwrap_or(0);
        let (mut records, limit) =
            (Records::default(), Limit { records: SCHEMAS_MAX, bytes: SCHEMA_BYTES_MAX });
        log.read(beside, partition, from, limit, &mut records)?;
        self.read.insert(partition, from + records.len() as u64);
        let found = records.iter().filter_map(|record| Schema::decode(record.payload));
        self.by_number.extend(found.map(|schema| (schema.number, schema)));
        Ok(())
    }
}

fn damaged(topic: &str, problem: &str) -> LogError {
    LogError::Damaged { path: topic.into(), byte: 0, problem: problem.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::DirectoryLog;

    #[test]
    fn a_damaged_schema_is_not_a_missing_one() {
        let home = tempfile::tempdir().unwrap();
        let names = Schema::new(["click", "conversion"]);
        {
            let log = DirectoryLog::open(home.path()).unwrap();
            log.create("examples", TopicOptions::default()).unwrap();
            Schemas::create(&log, "examples", 1).unwrap();
            assert!(matches!(Schemas::newest(&log, "examples", 0), Ok(None)));
            declare(&log, "examples", 0, &names).unwrap();
        }
        let folder = home.path().join("topics/examples.schema/0");
        let segments = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let segment = segments.filter(|path| path.is_file() && std::fs::metadata(path).unwrap().len() > 0);
        let segment = segment.max_by_key(|path| std::fs::metadata(path).unwrap().len()).unwrap();
        let whole = std::fs::read(&segment).unwrap();
        let place = whole.windows(5).position(|bytes| bytes == b"click").unwrap();
        let mut flipped = whole.clone();
        flipped[place] ^= 1;
        std::fs::write(&segment, &flipped).unwrap();
        let found = DirectoryLog::open(home.path()).and_then(|log| Schemas::newest(&log, "examples", 0));
        assert!(found.is_err(), "{found:?}");
    }

    #[test]
    fn a_schema_is_its_names_in_order() {
        let schema = Schema::new(["user", "item"]);
        assert_eq!(Schema::decode(&schema.encode()), Some(schema.clone()));
        assert_ne!(Schema::new(["item", "user"]).number(), schema.number());
        assert_eq!(schema.place("item"), Some(1));
        let mut damaged = schema.encode();
        damaged[5] ^= 1;
        assert_eq!(Schema::decode(&damaged), None);
    }
}
