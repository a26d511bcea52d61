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
    io::ErrorKind,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    Limit, Log, LogError, Offset, Record, Records, Sync, TopicOptions, check_name, cursors,
    disk::Disk,
    options,
    partition::{self, End, Reader, Writer, io_error},
    synced::Tail,
};

/// A log in a directory.
pub struct DirectoryLog {
    disk: Disk,
    home: PathBuf,
    topics: Mutex<BTreeMap<String, Arc<Topic>>>,
}

struct Topic {
    options: TopicOptions,
    identity: u64,
    partitions: Vec<Partition>,
}

struct Partition {
    directory: PathBuf,
    /// Opened by the first append of this process.
    writer: Mutex<Option<Writer>>,
    /// What this process has put on disk of what others wrote.
    tail: Mutex<Tail>,
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
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn open_on(disk: Disk, home: &Path) -> Result<DirectoryLog, LogError> {
        for part in ["topics", "groups"] {
            disk.create_dir(&home.join(part))?;
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
        let Some((options, identity)) = options::read(&directory)? else {
            let (path, topic, known) = (self.home.clone(), name.to_owned(), self.known()?);
            return Err(LogError::NoTopic { path, topic, known });
        };
        let partition = |number: u32| Partition {
            directory: directory.join(number.to_string()),
            writer: Mutex::new(None),
            tail: Mutex::default(),
            reader: Mutex::new(Reader::default()),
            end: Mutex::new(End::default()),
        };
        let partitions = (0..options.partitions).map(partition).collect();
        let topic = Arc::new(Topic { options, identity, partitions });
        topics.insert(name.to_owned(), Arc::clone(&topic));
        Ok(topic)
    }

    /// The writer of a partition, opened if need be, and anew where an append or a sync has failed: then it writes again what was
    /// not synced, for the system may take that for written.
    fn healthy<'w>(
        &self,
        writer: &'w mut Option<Writer>,
        partition: &Partition,
        options: TopicOptions,
    ) -> Result<&'w mut Writer, LogError> {
        // Only one writer at a time holds the lock.
        drop(writer.take_if(|writer| writer.has_failed()));
        match writer {
            Some(writer) => Ok(writer),
            none => Ok(none.insert(Writer::open(&self.disk, &partition.directory, options)?)),
        }
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
        if options::read(&directory)?.is_none() {
            for partition in 0..options.partitions {
                self.disk.create_dir(&directory.join(partition.to_string()))?;
            }
            options::write(&self.disk, &directory, &options)?;
        }
        let found = self.topic(topic)?.options.partitions;
        if found != options.partitions {
            let (topic, wanted) = (topic.to_owned(), options.partitions);
            return Err(LogError::OtherPartitions { topic, found, wanted });
        }
        Ok(())
    }

    fn options(&self, topic: &str) -> Result<TopicOptions, LogError> {
        Ok(self.topic(topic)?.options)
    }

    fn identity(&self, topic: &str) -> Result<u64, LogError> {
        Ok(self.topic(topic)?.identity)
    }

    fn append(&self, topic: &str, partition: u32, records: &[Record<'_>]) -> Result<Offset, LogError> {
        let found = self.topic(topic)?;
        let partition = found.partition(topic, partition)?;
        let mut writer = lock(&partition.writer);
        let writer = self.healthy(&mut writer, partition, found.options)?;
        if records.is_empty() { Ok(writer.next()) } else { writer.append(records) }
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
        unless_removed(|| lock(&place.reader).read(&place.directory, from, limit, out))?;
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
        let range = unless_removed(|| lock(&place.end).range(&place.directory))?;
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
        for topic in &topics {
            for partition in &topic.partitions {
                let mut writer = lock(&partition.writer);
                if writer.is_some() {
                    self.healthy(&mut writer, partition, topic.options)?.sync()?;
                }
            }
        }
        Ok(())
    }

    fn sync_topic(&self, topic: &str, partition: u32) -> Result<(), LogError> {
        let found = self.topic(topic)?;
        let place = found.partition(topic, partition)?;
        let mut writer = lock(&place.writer);
        if writer.is_some() {
            return self.healthy(&mut writer, place, found.options)?.sync();
        }
        if found.options.sync == Sync::Never {
            return Ok(());
        }
        lock(&place.tail).sync(&self.disk, &place.directory)
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

/// Looks once more where another process has removed a segment between a look at the names and one into the file.
fn unless_removed<T>(mut look: impl FnMut() -> Result<T, LogError>) -> Result<T, LogError> {
    match look() {
        Err(LogError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => look(),
        found => found,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves files as they are, and these are what counts.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
