//! The embedded log: a directory, and no other software.
//!
//! ```text
//!   log/topics/<topic>/options            partitions, segment size, retention, sync, as text
//!   log/topics/<topic>/<partition>/       segments, and the lock of the one writer
//!   log/groups/<group>/<topic>.<partition>   how far the group is
//! ```

use std::{
    collections::BTreeMap,
    fs,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    Limit, Log, LogError, Offset, Record, Records, Sync, TopicOptions, check_name, cursors,
    disk::Disk,
    partition::{self, End, Reader, Writer, io_error},
};

/// A log in a directory.
pub struct DirectoryLog {
    disk: Disk,
    home: PathBuf,
    topics: Mutex<BTreeMap<String, Arc<Topic>>>,
}

struct Topic {
    options: TopicOptions,
    partitions: Vec<Partition>,
}

struct Partition {
    directory: PathBuf,
    /// Opened by the first append of this process.
    writer: Mutex<Option<Writer>>,
    reader: Mutex<Reader>,
    end: Mutex<End>,
}

impl DirectoryLog {
    /// Opens a log, or makes an empty one.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn open(home: &Path) -> Result<DirectoryLog, LogError> {
        DirectoryLog::open_on(Disk::default(), home)
    }

    /// The same, on a disk that may be a test's.
    pub(crate) fn open_on(disk: Disk, home: &Path) -> Result<DirectoryLog, LogError> {
        let mut is_new = false;
        for part in ["topics", "groups"] {
            let path = home.join(part);
            if !path.is_dir() {
                disk.create_dir(&path)?;
                is_new = true;
            }
        }
        if is_new {
            disk.sync_dir(home)?;
        }
        Ok(DirectoryLog { disk, home: home.to_owned(), topics: Mutex::new(BTreeMap::new()) })
    }

    fn topic(&self, name: &str) -> Result<Arc<Topic>, LogError> {
        let mut topics = lock(&self.topics);
        if let Some(topic) = topics.get(name) {
            return Ok(Arc::clone(topic));
        }
        check_name(name)?;
        let directory = self.home.join("topics").join(name);
        let Some(options) = read_options(&directory)? else {
            let (path, topic, known) = (self.home.clone(), name.to_owned(), self.known()?);
            return Err(LogError::NoTopic { path, topic, known });
        };
        let partition = |number: u32| Partition {
            directory: directory.join(number.to_string()),
            writer: Mutex::new(None),
            reader: Mutex::new(Reader::default()),
            end: Mutex::new(End::default()),
        };
        let topic = Arc::new(Topic { options, partitions: (0..options.partitions).map(partition).collect() });
        topics.insert(name.to_owned(), Arc::clone(&topic));
        Ok(topic)
    }

    fn known(&self) -> Result<String, LogError> {
        let path = self.home.join("topics");
        let entries = fs::read_dir(&path).map_err(io_error(&path, "list"))?;
        let name = |entry: std::io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
        let mut names: Vec<String> = entries.filter_map(name).map(|name| format!("`{name}`")).collect();
        names.sort();
        Ok(if names.is_empty() { "none".to_owned() } else { names.join(", ") })
    }

    fn cursor(&self, group: &str, topic: &str, partition: u32) -> Result<PathBuf, LogError> {
        check_name(group)?;
        check_name(topic)?;
        Ok(self.home.join("groups").join(group).join(format!("{topic}.{partition}")))
    }
}

impl Topic {
    fn partition(&self, name: &str, partition: u32) -> Result<&Partition, LogError> {
        let count = self.partitions.len() as u32;
        self.partitions.get(partition as usize).ok_or_else(|| LogError::NoPartition {
            topic: name.to_owned(),
            partition,
            count,
        })
    }
}

impl Log for DirectoryLog {
    fn create(&self, topic: &str, options: TopicOptions) -> Result<(), LogError> {
        check_name(topic)?;
        let directory = self.home.join("topics").join(topic);
        if let Some(found) = read_options(&directory)? {
            let (found, wanted) = (found.partitions, options.partitions);
            let topic = topic.to_owned();
            return if found == wanted {
                Ok(())
            } else {
                Err(LogError::OtherPartitions { topic, found, wanted })
            };
        }
        for partition in 0..options.partitions {
            self.disk.create_dir(&directory.join(partition.to_string()))?;
        }
        // The options come last: a topic without them is not there. Their bytes are on disk before their name is.
        let (path, beside) = (directory.join("options"), directory.join("options.new"));
        let file = self.disk.open(&beside)?;
        self.disk.set_len(&file, &beside, 0)?;
        self.disk.write_at(&file, &beside, write_options(&options).as_bytes(), 0)?;
        self.disk.sync(&file, &beside)?;
        self.disk.sync_dir(&directory)?;
        self.disk.sync_dir(&self.home.join("topics"))?;
        self.disk.rename(&beside, &path)?;
        self.disk.sync_dir(&directory)
    }

    fn options(&self, topic: &str) -> Result<TopicOptions, LogError> {
        Ok(self.topic(topic)?.options)
    }

    fn append(&self, topic: &str, partition: u32, records: &[Record<'_>]) -> Result<Offset, LogError> {
        let found = self.topic(topic)?;
        let partition = found.partition(topic, partition)?;
        let mut writer = lock(&partition.writer);
        if writer.is_none() {
            *writer = Some(Writer::open(&self.disk, &partition.directory, found.options)?);
        }
        match &mut *writer {
            Some(writer) if records.is_empty() => Ok(writer.next()),
            Some(writer) => writer.append(records),
            None => unreachable!("the writer was opened above"),
        }
    }

    fn read(
        &self,
        topic: &str,
        partition: u32,
        from: Offset,
        limit: Limit,
        out: &mut Records,
    ) -> Result<(), LogError> {
        let found = self.topic(topic)?;
        let place = found.partition(topic, partition)?;
        lock(&place.reader).read(&place.directory, from, limit, out)?;
        if out.is_empty() {
            let start = partition::start(&place.directory)?;
            if from < start {
                let topic = topic.to_owned();
                return Err(LogError::Gone { topic, partition, offset: from, start });
            }
        }
        Ok(())
    }

    fn range(&self, topic: &str, partition: u32) -> Result<Range<Offset>, LogError> {
        let found = self.topic(topic)?;
        let place = found.partition(topic, partition)?;
        let range = lock(&place.end).range(&place.directory)?;
        // This process may know more than is worth reading again.
        let end = lock(&place.writer).as_ref().map_or(range.end, Writer::next);
        Ok(range.start..end.max(range.end))
    }

    fn commit(&self, group: &str, topic: &str, partition: u32, next: Offset) -> Result<(), LogError> {
        let path = self.cursor(group, topic, partition)?;
        let found = self.topic(topic)?;
        found.partition(topic, partition)?;
        let directory = self.home.join("groups").join(group);
        if !directory.is_dir() {
            self.disk.create_dir(&directory)?;
        }
        cursors::write(&self.disk, &path, next, found.options.sync == Sync::EveryAppend)
    }

    fn committed(&self, group: &str, topic: &str, partition: u32) -> Result<Offset, LogError> {
        cursors::read(&self.cursor(group, topic, partition)?)
    }

    fn sync(&self) -> Result<(), LogError> {
        let topics: Vec<Arc<Topic>> = lock(&self.topics).values().cloned().collect();
        for partition in topics.iter().flat_map(|topic| &topic.partitions) {
            if let Some(writer) = &mut *lock(&partition.writer) {
                writer.sync()?;
            }
        }
        Ok(())
    }

    fn sync_topic(&self, topic: &str, partition: u32) -> Result<(), LogError> {
        let found = self.topic(topic)?;
        match &mut *lock(&found.partition(topic, partition)?.writer) {
            Some(writer) => writer.sync(),
            None => Ok(()),
        }
    }

    fn trim(&self, topic: &str, partition: u32, before: Offset) -> Result<Offset, LogError> {
        let found = self.topic(topic)?;
        let place = found.partition(topic, partition)?;
        let gone = partition::trim(&self.disk, &place.directory, before)?;
        let mut reader = lock(&place.reader);
        gone.iter().for_each(|path| reader.forget(path));
        drop(reader);
        partition::start(&place.directory)
    }

    fn retain(&self, now_ms: u64) -> Result<u64, LogError> {
        let path = self.home.join("topics");
        let entries = fs::read_dir(&path).map_err(io_error(&path, "list"))?;
        let names: Vec<String> =
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        let mut records = 0;
        for name in names {
            // A stray name, or a topic that is being made, is no topic.
            let topic = match self.topic(&name) {
                Err(LogError::NoTopic { .. } | LogError::BadName { .. }) => continue,
                topic => topic?,
            };
            for partition in &topic.partitions {
                let (count, gone) =
                    partition::retain(&self.disk, &partition.directory, &topic.options, now_ms)?;
                records += count;
                let mut reader = lock(&partition.reader);
                gone.iter().for_each(|path| reader.forget(path));
            }
        }
        Ok(records)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves files as they are, and these are what counts.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write_options(options: &TopicOptions) -> String {
    let sync = match options.sync {
        Sync::EveryAppend => "append".to_owned(),
        Sync::EveryBytes(bytes) => bytes.to_string(),
        Sync::Never => "never".to_owned(),
    };
    let TopicOptions { partitions, segment_bytes, keep_ms, keep_bytes, .. } = options;
    format!(
        "partitions {partitions}\nsegment_bytes {segment_bytes}\nkeep_ms {keep_ms}\nkeep_bytes {keep_bytes}\nsync {sync}\n"
    )
}

fn read_options(directory: &Path) -> Result<Option<TopicOptions>, LogError> {
    let path = directory.join("options");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error(&path, "read")(error)),
    };
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        line.ok_or_else(|| damaged(&path, format!("`{key}` is missing")))
    };
    let number = |key: &str| {
        let found = value(key)?;
        found.parse::<u64>().map_err(|_| damaged(&path, format!("`{key} {found}` is no number")))
    };
    Ok(Some(TopicOptions {
        partitions: number("partitions")? as u32,
        segment_bytes: number("segment_bytes")?,
        keep_ms: number("keep_ms")?,
        keep_bytes: number("keep_bytes")?,
        sync: match value("sync")? {
            "append" => Sync::EveryAppend,
            "never" => Sync::Never,
            _ => Sync::EveryBytes(number("sync")?),
        },
    }))
}

fn damaged(path: &Path, problem: String) -> LogError {
    LogError::Damaged { path: path.to_owned(), byte: 0, problem }
}
