//! The files of a topic: their names, what they say of themselves, and where they end.

use std::{
    collections::BTreeMap,
    fs,
    ops::Range,
    path::{Path, PathBuf},
};

use campanile_data::columnar::{self, ColumnType};
use campanile_stream::log::{Limit, Log, Offset, Records};

use super::{ExportError, Topic};

/// Keys of a file's notes; those that readers may rely on are in docs/format-log.md.
const TOPIC: &str = "campanile.topic";
const FIRST_RECORD: &str = "campanile.first_record";
const LAST_RECORD: &str = "campanile.last_record";
const LAST_TIME: &str = "campanile.last_time_ms";
const LAST_CHECKSUM: &str = "campanile.last_crc32c";
const IDENTITY: &str = "campanile.log";
const COLUMN_TYPES: &str = "campanile.column_types";

/// The directory of a topic's files.
pub(super) struct Files {
    directory: PathBuf,
    topic: Topic,
    /// The last file, and the last record in it.
    newest: Option<(PathBuf, Offset)>,
}

impl Files {
    pub fn open(parent: &Path, topic: Topic) -> Result<Files, ExportError> {
        let directory = parent.join(topic.name());
        let failed = |action| {
            let path = directory.clone();
            move |source| ExportError::Directory { action, path, source }
        };
        fs::create_dir_all(&directory).map_err(failed("make"))?;
        let mut newest = None;
        for entry in fs::read_dir(&directory).map_err(failed("list"))? {
            let path = entry.map_err(failed("list"))?.path();
            let last = path.file_name().and_then(|name| name.to_str()).and_then(last_record);
            newest = newest.max(last.map(|last| (last, path)));
        }
        let newest = newest.map(|(last, path)| (path, last));
        Ok(Files { directory, topic, newest })
    }

    /// The last record that is in a file.
    pub fn last(&self) -> Option<Offset> {
        self.newest.as_ref().map(|(_, last)| *last)
    }

    /// Where a file stands until it is whole: under a name that other programs pass over.
    pub fn unfinished(&self) -> PathBuf {
        self.directory.join(".unfinished")
    }

    /// Sorted by name, files are sorted by record.
    pub fn name(&self, first: Offset, last: Offset) -> PathBuf {
        self.directory.join(format!("{first:020}-{last:020}.parquet"))
    }

    /// The types of the last file's columns.
    pub fn known_types(&self) -> Result<BTreeMap<String, ColumnType>, ExportError> {
        let Some((path, _)) = &self.newest else { return Ok(BTreeMap::new()) };
        let notes = columnar::notes(path)?;
        let types: BTreeMap<String, String> =
            notes.get(COLUMN_TYPES).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let known = |(name, text): (String, String)| Some((name, text.parse().ok()?));
        Ok(types.into_iter().filter_map(known).collect())
    }

    /// Refuses a log whose record is another than the last one in the files. One that is no longer kept tells nothing.
    pub fn check_log(&self, log: &dyn Log) -> Result<(), ExportError> {
        let Some((path, last)) = &self.newest else { return Ok(()) };
        let notes = columnar::notes(path)?;
        let (directory, topic, record) = (self.directory.clone(), self.topic.name(), *last);
        let identity = log.identity(topic)?.to_string();
        if notes.get(IDENTITY).is_some_and(|noted| *noted != identity && noted != "0") {
            return Err(ExportError::OtherLog { directory, topic, record });
        }
        let range = log.range(self.topic.name(), 0)?;
        if *last < range.start {
            return Ok(());
        }
        let mut records = Records::default();
        if *last < range.end {
            log.read(self.topic.name(), 0, *last, Limit { records: 1, bytes: 1 }, &mut records)?;
        }
        let found = records
            .iter()
            .next()
            .map(|record| (record.time_ms.to_string(), crc32c::crc32c(record.payload).to_string()));
        let noted = notes.get(LAST_TIME).cloned().zip(notes.get(LAST_CHECKSUM).cloned());
        if found == noted {
            return Ok(());
        }
        Err(ExportError::OtherLog { directory, topic, record })
    }
}

/// Notes which records a file covers, how the log is known again, and the types of its columns.
pub(super) fn note_place(
    notes: &mut BTreeMap<String, String>,
    (topic, identity): (Topic, u64),
    records: Range<Offset>,
    last: Option<(u64, u32)>,
    types: &[(String, ColumnType)],
) {
    let types: BTreeMap<&str, String> =
        types.iter().map(|(name, its_type)| (name.as_str(), its_type.to_string())).collect();
    let mut note = |key: &str, value: String| notes.insert(key.to_owned(), value);
    note(TOPIC, topic.name().to_owned());
    note(IDENTITY, identity.to_string());
    note(FIRST_RECORD, records.start.to_string());
    note(LAST_RECORD, (records.end - 1).to_string());
    note(COLUMN_TYPES, serde_json::json!(types).to_string());
    if let Some((time_ms, checksum)) = last {
        note(LAST_TIME, time_ms.to_string());
        note(LAST_CHECKSUM, checksum.to_string());
    }
}

/// The last record of a file, by its name; nothing for files that are not ours.
fn last_record(name: &str) -> Option<Offset> {
    let (first, last) = name.strip_suffix(".parquet")?.split_once('-')?;
    let number = |digits: &str| (digits.len() == 20).then(|| digits.parse::<Offset>().ok()).flatten();
    let (first, last) = (number(first)?, number(last)?);
    (first <= last).then_some(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_ours_say_where_files_end() {
        let name = format!("{:020}-{:020}.parquet", 7, 12);
        assert_eq!(last_record(&name), Some(12));
        for other in ["7-12.parquet", ".unfinished", "notes.parquet", &name[..name.len() - 1], "a-b.parquet"]
        {
            assert_eq!(last_record(other), None, "{other}");
        }
    }
}
