//! One partition: segments in a directory, one writer, any number of readers, also in other processes.
//!
//! A reader needs no lock: bytes of a segment never change once written, and a frame at the very end that does not
//! fit yet is simply not there yet. The writer holds a lock file, and cuts off such a rest when it opens the partition
//! after a crash. The lock file also notes how far the last segment is on disk for certain: after a power cut, what
//! does not fit behind that place is cut off too, and what does not fit before it is damage, which nobody cuts off.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use super::{
    Limit, LogError, Offset, PAYLOAD_BYTES_MAX, Record, Records, Sync, TopicOptions, frame,
    segment::{self, HEAD_BYTES, Stop, Walk},
};

/// A place in a segment is remembered every so many bytes, so that a read finds its record quickly.
const MARK_BYTES: u64 = 256 << 10;

/// Records, and bytes of them, that are passed at once on the way to another.
const PASS_RECORDS: usize = 4096;
const PASS_BYTES: usize = 1 << 20;

/// The writing end of a partition.
pub(super) struct Writer {
    directory: PathBuf,
    options: TopicOptions,
    file: File,
    path: PathBuf,
    bytes: u64,
    next: Offset,
    unsynced: u64,
    encoded: Vec<u8>,
    /// Held as long as this writer lives; says what is on disk for certain.
    lock: File,
}

impl Writer {
    /// Takes the partition, and cuts off a last frame that a crash left unfinished.
    pub fn open(directory: &Path, options: TopicOptions) -> Result<Writer, LogError> {
        let lock_path = directory.join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&lock_path);
        let lock = lock.map_err(io_error(&lock_path, "open"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LogError::Busy { path: lock_path }),
            Err(TryLockError::Error(source)) => return Err(io_error(&lock_path, "lock")(source)),
        }
        let segments = segments(directory)?;
        let path = segments.last().cloned().unwrap_or_else(|| directory.join(segment::file_name(0)));
        let (next, bytes) =
            if path.exists() { end_of(&path, synced(&lock, &path)?)? } else { (0, HEAD_BYTES) };
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let mut file = file.map_err(io_error(&path, "open"))?;
        file.set_len(bytes.max(HEAD_BYTES)).map_err(io_error(&path, "cut"))?;
        io::Seek::seek(&mut file, io::SeekFrom::Start(0)).map_err(io_error(&path, "seek in"))?;
        file.write_all(&segment::head(segment::first_of(&path))).map_err(io_error(&path, "write"))?;
        io::Seek::seek(&mut file, io::SeekFrom::Start(bytes)).map_err(io_error(&path, "seek in"))?;
        let directory = directory.to_owned();
        Ok(Writer { directory, options, file, path, bytes, next, unsynced: 0, encoded: Vec::new(), lock })
    }

    /// The number that the next record will get.
    pub fn next(&self) -> Offset {
        self.next
    }

    /// Appends records with one write.
    pub fn append(&mut self, records: &[Record<'_>]) -> Result<Offset, LogError> {
        if let Some(long) = records.iter().find(|record| record.payload.len() > PAYLOAD_BYTES_MAX) {
            return Err(LogError::TooLong { bytes: long.payload.len() });
        }
        if self.bytes >= self.options.segment_bytes && self.bytes > HEAD_BYTES {
            self.roll()?;
        }
        self.encoded.clear();
        frame::encode(records, &mut self.encoded);
        if let Err(source) = self.file.write_all(&self.encoded) {
            // What was written of it must not stand before the next record.
            let _ = self.file.set_len(self.bytes);
            let _ = io::Seek::seek(&mut self.file, io::SeekFrom::Start(self.bytes));
            return Err(io_error(&self.path, "append to")(source));
        }
        let first = self.next;
        self.next += records.len() as u64;
        self.bytes += self.encoded.len() as u64;
        self.unsynced += self.encoded.len() as u64;
        match self.options.sync {
            Sync::EveryAppend => self.sync()?,
            Sync::EveryBytes(bytes) if self.unsynced >= bytes => self.sync()?,
            _ => {}
        }
        Ok(first)
    }

    /// Puts everything on disk.
    pub fn sync(&mut self) -> Result<(), LogError> {
        if self.unsynced > 0 {
            self.file.sync_data().map_err(io_error(&self.path, "sync"))?;
            self.unsynced = 0;
            self.note_synced()?;
        }
        Ok(())
    }

    fn note_synced(&self) -> Result<(), LogError> {
        let mut note = [0; 16];
        note[..8].copy_from_slice(&segment::first_of(&self.path).to_le_bytes());
        note[8..].copy_from_slice(&self.bytes.to_le_bytes());
        self.lock.write_all_at(&note, 0).map_err(io_error(&self.directory.join("lock"), "write"))
    }

    fn roll(&mut self) -> Result<(), LogError> {
        if self.options.sync != Sync::Never {
            self.sync()?;
        }
        let path = self.directory.join(segment::file_name(self.next));
        let file = OpenOptions::new().create(true).truncate(true).write(true).open(&path);
        let mut file = file.map_err(io_error(&path, "make"))?;
        file.write_all(&segment::head(self.next)).map_err(io_error(&path, "write"))?;
        if self.options.sync != Sync::Never {
            file.sync_data().map_err(io_error(&path, "sync"))?;
            sync_directory(&self.directory)?;
        }
        (self.file, self.path, self.bytes, self.unsynced) = (file, path, HEAD_BYTES, 0);
        Ok(())
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
            match stop {
                Stop::Limit => return Ok(()),
                Stop::Damaged(problem) => return Err(damaged(path, walk, problem)),
                Stop::End => {}
            }
        }
        let from = out.last().map_or(from, |record| record.offset + 1);
        let segments = segments(directory)?;
        let place = segments.partition_point(|path| segment::first_of(path) <= from);
        let Some(mut place) = place.checked_sub(1) else { return Ok(()) };
        self.seek(&segments[place], from)?;
        while let Some((path, walk)) = &mut self.walk {
            let stop = walk.take(limit, out)?;
            mark(&mut self.marks, path, walk);
            match stop {
                Stop::Limit => break,
                Stop::Damaged(problem) => return Err(damaged(path, walk, problem)),
                Stop::End if place + 1 == segments.len() => break,
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
        let segments = segments(directory)?;
        let (Some(first), Some(last)) = (segments.first(), segments.last()) else { return Ok(0..0) };
        if self.walk.as_ref().is_none_or(|(path, _)| path != last) {
            self.walk = Some((last.clone(), Walk::open(last)?));
        }
        let Some((_, walk)) = &mut self.walk else { return Ok(0..0) };
        loop {
            self.passed.clear();
            let stop = walk.take(Limit { records: PASS_RECORDS, bytes: PASS_BYTES }, &mut self.passed)?;
            if !matches!(stop, Stop::Limit) {
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
    directory: &Path,
    options: &TopicOptions,
    now_ms: u64,
) -> Result<(u64, Vec<PathBuf>), LogError> {
    let segments = segments(directory)?;
    let mut sizes = Vec::new();
    for path in &segments {
        sizes.push(fs::metadata(path).map_err(io_error(path, "look at"))?.len());
    }
    let mut total: u64 = sizes.iter().sum();
    let (mut records, mut gone) = (0, Vec::new());
    for (pair, size) in segments.windows(2).zip(&sizes) {
        let too_much = options.keep_bytes > 0 && total > options.keep_bytes;
        let too_old =
            options.keep_ms > 0 && newest_ms(&pair[0])?.is_none_or(|ms| ms + options.keep_ms < now_ms);
        if !too_much && !too_old {
            break;
        }
        fs::remove_file(&pair[0]).map_err(io_error(&pair[0], "remove"))?;
        total -= size;
        records += segment::first_of(&pair[1]) - segment::first_of(&pair[0]);
        gone.push(pair[0].clone());
    }
    Ok((records, gone))
}

/// Removes the segments all of whose records are before `before`, and says which. The last segment always stays.
pub(super) fn trim(directory: &Path, before: Offset) -> Result<Vec<PathBuf>, LogError> {
    let segments = segments(directory)?;
    let mut gone = Vec::new();
    for pair in segments.windows(2).take_while(|pair| segment::first_of(&pair[1]) <= before) {
        fs::remove_file(&pair[0]).map_err(io_error(&pair[0], "remove"))?;
        gone.push(pair[0].clone());
    }
    Ok(gone)
}

fn newest_ms(path: &Path) -> Result<Option<u64>, LogError> {
    let mut newest = None;
    pass_all(path, &mut |records| newest = newest.max(records.iter().map(|record| record.time_ms).max()))?;
    Ok(newest)
}

/// The number after a segment's last whole record, and the byte behind it. What does not fit before byte `synced` is
/// damage.
fn end_of(path: &Path, synced: u64) -> Result<(Offset, u64), LogError> {
    let walk = pass_all(path, &mut |_| {})?;
    let (next, byte) = walk.place();
    if byte < synced {
        return Err(damaged(
            path,
            &walk,
            &format!("it was on disk up to byte {synced}, and does not fit now"),
        ));
    }
    Ok((next, byte))
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

impl Drop for Writer {
    fn drop(&mut self) {
        // Closing would do, were it not for a process that this one has just forked: it holds a copy of the file
        // until it starts its program, and with it the lock.
        let _ = self.lock.unlock();
    }
}

/// How far a segment is on disk for certain, as the lock file notes it; 0 when it does not say.
fn synced(lock: &File, path: &Path) -> Result<u64, LogError> {
    let mut note = [0; 16];
    match lock.read_exact_at(&mut note, 0) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
        Err(error) => return Err(io_error(path, "look at the lock of")(error)),
    }
    let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|place| note[at + place]));
    Ok(if half(0) == segment::first_of(path) { half(8) } else { 0 })
}

/// The segments of a partition, oldest first.
fn segments(directory: &Path) -> Result<Vec<PathBuf>, LogError> {
    let entries = fs::read_dir(directory).map_err(io_error(directory, "list"))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(io_error(directory, "list"))?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

pub(super) fn sync_directory(directory: &Path) -> Result<(), LogError> {
    File::open(directory).and_then(|file| file.sync_all()).map_err(io_error(directory, "sync"))
}

pub(super) fn io_error<'a>(path: &'a Path, action: &'static str) -> impl Fn(io::Error) -> LogError + 'a {
    move |source| LogError::Io { path: path.to_owned(), action, source }
}
