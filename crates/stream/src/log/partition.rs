//! One partition: segments in a directory, one writer, any number of readers, also in other processes.
//!
//! A reader needs no lock: bytes of a segment never change once written, and a frame at the very end that does not
//! fit yet is simply not there yet. The writer holds a lock file, and cuts off such a rest when it opens the partition
//! after a crash. The lock file also notes how far the last segment is on disk for certain: after a power cut, what
//! does not fit behind that place is cut off too, and what does not fit before it is damage, which nobody cuts off.

use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    io::{self, ErrorKind},
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use super::{
    Limit, LogError, Offset, PAYLOAD_BYTES_MAX, Record, Records, Sync, TopicOptions,
    disk::{Disk, Locked},
    frame,
    segment::{self, HEAD_BYTES, Stop, Walk},
    synced::{Synced, write_note},
};

/// A place in a segment is remembered every so many bytes, so that a read finds its record quickly.
const MARK_BYTES: u64 = 256 << 10;

/// Records, and bytes of them, that are passed at once on the way to another.
const PASS_RECORDS: usize = 4096;
const PASS_BYTES: usize = 1 << 20;

/// The writing end of a partition.
pub(super) struct Writer {
    disk: Disk,
    directory: PathBuf,
    options: TopicOptions,
    file: File,
    path: PathBuf,
    bytes: u64,
    next: Offset,
    unsynced: u64,
    encoded: Vec<u8>,
    /// An append or a sync has failed: what is on disk is not known, and a later sync that succeeds would prove nothing.
    failed: bool,
    /// Held as long as this writer lives; says what is on disk for certain.
    lock: Locked,
}

impl Writer {
    /// Takes the partition, and cuts off a last frame that a crash left unfinished.
    pub fn open(disk: &Disk, directory: &Path, options: TopicOptions) -> Result<Writer, LogError> {
        let lock_path = directory.join("lock");
        let lock = disk.open(&lock_path)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LogError::Busy { path: lock_path }),
            Err(TryLockError::Error(source)) => return Err(io_error(&lock_path, "lock")(source)),
        }
        let lock = Locked(lock);
        let segments = segments(directory)?;
        let path = match segments.last() {
            Some(path) => path.clone(),
            None => directory.join(segment::file_name(0)),
        };
        let synced = Synced::read(directory)?.of(directory, &segments)?;
        let is_new = segments.is_empty();
        let (next, bytes) = if is_new { (0, HEAD_BYTES) } else { end_of(&path, synced.unwrap_or(0))? };
        let file = disk.open(&path)?;
        let length = file.metadata().map_err(io_error(&path, "look at"))?.len();
        if length < HEAD_BYTES {
            disk.write_at(&file, &path, &segment::head(segment::first_of(&path)), 0)?;
        }
        if length > bytes {
            disk.set_len(&file, &path, bytes)?;
        }
        if options.sync != Sync::Never {
            if is_new {
                disk.sync(&file, &path)?;
                write_note(disk, &lock.0, &path, HEAD_BYTES)?;
                disk.sync(&lock.0, &lock_path)?;
            }
            // An earlier process may have died before it made the name of its last segment last.
            disk.sync_dir(directory)?;
        }
        // What a killed writer had not synced is not synced yet; and it must be written again, for after a sync that failed
        // the system may take it for written.
        let unsynced = if is_new { 0 } else { bytes - synced.unwrap_or(0).min(bytes) };
        if unsynced > 0 && options.sync != Sync::Never {
            let mut tail = vec![0; unsynced as usize];
            file.read_exact_at(&mut tail, bytes - unsynced).map_err(io_error(&path, "read"))?;
            disk.write_at(&file, &path, &tail, bytes - unsynced)?;
        }
        let (disk, directory) = (disk.clone(), directory.to_owned());
        let encoded = Vec::new();
        Ok(Writer {
            disk,
            directory,
            options,
            file,
            path,
            bytes,
            next,
            unsynced,
            encoded,
            failed: false,
            lock,
        })
    }

    /// Whether it does nothing more, because an append or a sync has failed.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// The number that the next record will get.
    pub fn next(&self) -> Offset {
        self.next
    }

    /// Appends records with one write. When that fails, whole frames of it stay, for readers may have seen them, and this
    /// writer does nothing more.
    pub fn append(&mut self, records: &[Record<'_>]) -> Result<Offset, LogError> {
        if let Some(long) = records.iter().find(|record| record.payload.len() > PAYLOAD_BYTES_MAX) {
            return Err(LogError::TooLong { bytes: long.payload.len() });
        }
        self.unless_failed(|writer| {
            if writer.bytes >= writer.options.segment_bytes && writer.bytes > HEAD_BYTES {
                writer.roll()?;
            }
            writer.encoded.clear();
            frame::encode(records, &mut writer.encoded);
            writer.disk.write_at(&writer.file, &writer.path, &writer.encoded, writer.bytes)?;
            let first = writer.next;
            writer.next += records.len() as u64;
            writer.bytes += writer.encoded.len() as u64;
            writer.unsynced += writer.encoded.len() as u64;
            match writer.options.sync {
                Sync::EveryAppend => writer.sync_now()?,
                Sync::EveryBytes(bytes) if writer.unsynced >= bytes => writer.sync_now()?,
                _ => {}
            }
            Ok(first)
        })
    }

    /// Puts everything on disk.
    pub fn sync(&mut self) -> Result<(), LogError> {
        self.unless_failed(Writer::sync_now)
    }

    fn unless_failed<T>(
        &mut self,
        work: impl FnOnce(&mut Writer) -> Result<T, LogError>,
    ) -> Result<T, LogError> {
        if self.failed {
            return Err(LogError::WriterFailed { path: self.path.clone() });
        }
        let done = work(self);
        self.failed = done.is_err();
        done
    }

    fn sync_now(&mut self) -> Result<(), LogError> {
        if self.unsynced > 0 {
            self.disk.sync(&self.file, &self.path)?;
            self.unsynced = 0;
            self.note_synced()?;
        }
        Ok(())
    }

    fn note_synced(&self) -> Result<(), LogError> {
        write_note(&self.disk, &self.lock.0, &self.path, self.bytes)
    }

    fn roll(&mut self) -> Result<(), LogError> {
        if self.options.sync != Sync::Never {
            self.sync_now()?;
        }
        let path = self.directory.join(segment::file_name(self.next));
        let file = self.disk.open(&path)?;
        self.disk.set_len(&file, &path, 0)?;
        self.disk.write_at(&file, &path, &segment::head(self.next), 0)?;
        if self.options.sync != Sync::Never {
            self.disk.sync(&file, &path)?;
            self.disk.sync_dir(&self.directory)?;
        }
        (self.file, self.path, self.bytes, self.unsynced) = (file, path, HEAD_BYTES, 0);
        if self.options.sync == Sync::Never { Ok(()) } else { self.note_synced() }
    }
}

/// The reading end of a partition: remembers where it was, and some places on the way.
#[derive(Default)]
pub(super) struct Reader {
    walk: Option<(PathBuf, Walk)>,
    /// Memory for records that are only passed.
    passed: Records,
    /// By segment: some records' places, by offset.
    marks: BTreeMap<PathBuf, BTreeMap<Offset, u64>>,
}

impl Reader {
    /// Reads records from `from` on.
    pub fn read(
        &mut self,
        directory: &Path,
        from: Offset,
        limit: Limit,
        out: &mut Records,
    ) -> Result<(), LogError> {
        out.clear();
        // Mostly a read goes on where the last one stopped, and there is enough for it.
        if let Some((path, walk)) = self.walk.as_mut().filter(|(_, walk)| walk.offset() == from) {
            let stop = walk.take(limit, out)?;
            mark(&mut self.marks, path, walk);
            if matches!(stop, Stop::Limit) {
                return Ok(());
            }
        }
        let from = out.last().map_or(from, |record| record.offset + 1);
        // Looked at before the files: what it says is in them.
        let noted = Synced::read(directory)?;
        let segments = segments(directory)?;
        let synced = noted.of(directory, &segments)?;
        let place = segments.partition_point(|path| segment::first_of(path) <= from);
        let Some(mut place) = place.checked_sub(1) else { return Ok(()) };
        self.seek(&segments[place], from)?;
        if self.walk.is_none() && place + 1 == segments.len() {
            // There is no such record yet, unless it was there and is gone.
            return end_of(&segments[place], synced.unwrap_or(0)).map(drop);
        }
        while let Some((path, walk)) = &mut self.walk {
            let stop = walk.take(limit, out)?;
            mark(&mut self.marks, path, walk);
            match stop {
                Stop::Limit => break,
                Stop::End if place + 1 == segments.len() => {
                    return check_synced(path, walk, synced.unwrap_or(0));
                }
                // What a power cut left behind the synced place; the next writer cuts it off.
                Stop::Damaged(_)
                    if place + 1 == segments.len() && synced.is_some_and(|at| walk.place().1 >= at) =>
                {
                    break;
                }
                Stop::Damaged(problem) => return Err(damaged(path, walk, problem)),
                Stop::End if walk.offset() < segment::first_of(&segments[place + 1]) => {
                    return Err(damaged(path, walk, "records are missing at its end"));
                }
                Stop::End => {
                    place += 1;
                    let next = segment::first_of(&segments[place]);
                    self.seek(&segments[place], next)?;
                }
            }
        }
        Ok(())
    }

    /// Puts the walk before a record of a segment, or nowhere if the segment has no such record yet.
    fn seek(&mut self, path: &Path, offset: Offset) -> Result<(), LogError> {
        let here = self.walk.as_ref().is_some_and(|(at, walk)| at == path && walk.offset() == offset);
        if here {
            return Ok(());
        }
        let mut walk = Walk::open(path)?;
        if let Some((&marked, &byte)) = self.marks.get(path).and_then(|m| m.range(..=offset).next_back()) {
            walk.jump((marked, byte));
        }
        while walk.offset() < offset {
            self.passed.clear();
            let left = usize::try_from(offset - walk.offset()).unwrap_or(usize::MAX);
            let limit = Limit { records: left.min(PASS_RECORDS), bytes: PASS_BYTES };
            match walk.take(limit, &mut self.passed)? {
                Stop::Limit => mark(&mut self.marks, path, &walk),
                Stop::End => break,
                Stop::Damaged(problem) => return Err(damaged(path, &walk, problem)),
            }
        }
        self.walk = (walk.offset() == offset).then(|| (path.to_owned(), walk));
        Ok(())
    }

    /// Forgets segments that are gone.
    pub fn forget(&mut self, path: &Path) {
        self.marks.remove(path);
        self.walk.take_if(|(at, _)| at == path);
    }
}

fn mark(marks: &mut BTreeMap<PathBuf, BTreeMap<Offset, u64>>, path: &Path, walk: &Walk) {
    if !marks.contains_key(path) {
        marks.insert(path.to_owned(), BTreeMap::new());
    }
    let Some(marks) = marks.get_mut(path) else { return };
    let (offset, byte) = walk.place();
    if marks.last_key_value().is_none_or(|(_, last)| byte >= last + MARK_BYTES) {
        marks.insert(offset, byte);
    }
}

/// The end of a partition, as far as it was looked for: whole records never change, so a look goes on where the last one
/// stopped.
#[derive(Default)]
pub(super) struct End {
    walk: Option<(PathBuf, Walk)>,
    passed: Records,
}

impl End {
    /// The records that the partition has now, by looking at its files.
    pub fn range(&mut self, directory: &Path) -> Result<Range<Offset>, LogError> {
        let noted = Synced::read(directory)?;
        let segments = segments(directory)?;
        let synced = noted.of(directory, &segments)?.unwrap_or(0);
        let (Some(first), Some(last)) = (segments.first(), segments.last()) else { return Ok(0..0) };
        if self.walk.as_ref().is_none_or(|(path, _)| path != last) {
            self.walk = Some((last.clone(), Walk::open(last)?));
        }
        let Some((_, walk)) = &mut self.walk else { return Ok(0..0) };
        loop {
            self.passed.clear();
            let stop = walk.take(Limit { records: PASS_RECORDS, bytes: PASS_BYTES }, &mut self.passed)?;
            if !matches!(stop, Stop::Limit) {
                check_synced(last, walk, synced)?;
                return Ok(segment::first_of(first)..walk.offset());
            }
        }
    }
}

/// The oldest record that is kept, by the names of the files.
pub(super) fn start(directory: &Path) -> Result<Offset, LogError> {
    Ok(segments(directory)?.first().map_or(0, |path| segment::first_of(path)))
}

/// Removes the oldest segments that `options` no longer keep; returns how many records went, and their files. The
/// last segment always stays.
pub(super) fn retain(
    disk: &Disk,
    directory: &Path,
    options: &TopicOptions,
    now_ms: u64,
) -> Result<(u64, Vec<PathBuf>), LogError> {
    let segments = segments(directory)?;
    let mut sizes = Vec::new();
    for path in &segments {
        // Another process may be removing it now.
        sizes.push(fs::metadata(path).map_or(0, |meta| meta.len()));
    }
    let mut total: u64 = sizes.iter().sum();
    let (mut records, mut gone) = (0, Vec::new());
    for (pair, size) in segments.windows(2).zip(&sizes) {
        let too_much = options.keep_bytes > 0 && total > options.keep_bytes;
        let is_old = |ms: u64| ms.saturating_add(options.keep_ms) < now_ms;
        // One wrong time must not keep everything behind it: what comes before an old segment is older. The last segment is
        // being written, and is not looked at.
        let next = segments.last().is_none_or(|last| *last != pair[1]).then_some(&pair[1]);
        let next_is_old = || {
            Ok::<_, LogError>(match next {
                Some(next) => newest_ms(next)?.is_some_and(is_old),
                None => false,
            })
        };
        let too_old = options.keep_ms > 0 && (newest_ms(&pair[0])?.is_none_or(is_old) || next_is_old()?);
        if !too_much && !too_old {
            break;
        }
        disk.remove(&pair[0])?;
        total -= size;
        records += segment::first_of(&pair[1]) - segment::first_of(&pair[0]);
        gone.push(pair[0].clone());
    }
    Ok((records, gone))
}

/// Removes the segments all of whose records are before `before`, and says which. The last segment always stays.
pub(super) fn trim(disk: &Disk, directory: &Path, before: Offset) -> Result<Vec<PathBuf>, LogError> {
    let segments = segments(directory)?;
    let mut gone = Vec::new();
    for pair in segments.windows(2).take_while(|pair| segment::first_of(&pair[1]) <= before) {
        disk.remove(&pair[0])?;
        gone.push(pair[0].clone());
    }
    Ok(gone)
}

fn newest_ms(path: &Path) -> Result<Option<u64>, LogError> {
    let mut newest = None;
    let take =
        &mut |records: &Records| newest = newest.max(records.iter().map(|record| record.time_ms).max());
    match pass_all(path, take) {
        // Another process has just removed it.
        Err(LogError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        passed => passed.map(|_| newest),
    }
}

/// The number after a segment's last whole record, and the byte behind it. What does not fit before byte `synced` is
/// damage.
fn end_of(path: &Path, synced: u64) -> Result<(Offset, u64), LogError> {
    let walk = pass_all(path, &mut |_| {})?;
    check_synced(path, &walk, synced)?;
    Ok(walk.place())
}

/// What was synced and is gone is damage.
fn check_synced(path: &Path, walk: &Walk, synced: u64) -> Result<(), LogError> {
    if walk.place().1 >= synced {
        return Ok(());
    }
    let record = walk.offset();
    let problem = format!(
        "it was on disk up to byte {synced}, and does not fit now; records from {record} on are gone"
    );
    Err(damaged(path, walk, &problem))
}

/// Goes through a segment up to what is not there, or does not fit.
fn pass_all(path: &Path, each: &mut dyn FnMut(&Records)) -> Result<Walk, LogError> {
    let mut walk = Walk::open(path)?;
    let mut records = Records::default();
    loop {
        records.clear();
        let stop = walk.take(Limit { records: PASS_RECORDS, bytes: PASS_BYTES }, &mut records)?;
        each(&records);
        if !matches!(stop, Stop::Limit) {
            return Ok(walk);
        }
    }
}

fn damaged(path: &Path, walk: &Walk, problem: &str) -> LogError {
    LogError::Damaged { path: path.to_owned(), byte: walk.place().1, problem: problem.to_owned() }
}

/// The segments of a partition, oldest first.
pub(super) fn segments(directory: &Path) -> Result<Vec<PathBuf>, LogError> {
    let entries = fs::read_dir(directory).map_err(io_error(directory, "list"))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(io_error(directory, "list"))?.path();
        if segment::is_name(&path) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

pub(super) fn io_error<'a>(path: &'a Path, action: &'static str) -> impl Fn(io::Error) -> LogError + 'a {
    move |source| LogError::Io { path: path.to_owned(), action, source }
}
