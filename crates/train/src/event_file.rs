//! TensorBoard event files: scalars by tag, step and wall time.
//!
//! The format is a sequence of TFRecords, each holding one `Event` message. Both are small enough to be written
//! by hand, which spares a protobuf compiler:
//!
//! ```text
//!   TFRecord   length u64 | masked crc32c of the length u32 | data | masked crc32c of the data u32     little-endian
//!   Event      1: wall_time f64 | 2: step i64 | 3: file_version string | 5: Summary
//!   Summary    1: Value*        Value    1: tag string | 2: simple_value f32
//! ```
//!
//! A run has one file. A resumed run cuts it back to the step it resumes from and goes on, so what a chart shows
//! is one line without repeats, whatever was killed in between. Nothing here reads a clock: the wall time of an
//! event is the caller's.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// TensorBoard looks for `tfevents` in a name.
const FILE_NAME: &str = "events.out.tfevents.0.campanile";
/// What the first record must say.
const FILE_VERSION: &str = "brain.Event:2";
/// A record longer than this is not one of ours.
const RECORD_BYTES_MAX: u64 = 1 << 20;

/// Why an event file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("event file {path}: cannot {action}: {source}")]
pub struct EventFileError {
    path: PathBuf,
    action: &'static str,
    source: io::Error,
}

/// An event file being written.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: BufWriter<File>,
}

impl EventFile {
    /// Opens the event file of a run in `directory`, which is made if need be; a new file begins with its version,
    /// an old one loses the events of steps after `steps_done`, and a torn or unreadable end.
    ///
    /// # Errors
    /// When the directory or the file cannot be made, read or cut.
    pub fn open(directory: &Path, wall_seconds: f64, steps_done: u64) -> Result<EventFile, EventFileError> {
        let path = directory.join(FILE_NAME);
        let failed = |action| {
            let path = path.clone();
            move |source| EventFileError { path, action, source }
        };
        fs::create_dir_all(directory).map_err(failed("make the directory"))?;
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = options.map_err(failed("open"))?;
        let kept = bytes_up_to(&mut BufReader::new(&file), steps_done).map_err(failed("read"))?;
        file.set_len(kept).map_err(failed("cut back"))?;
        file.seek(SeekFrom::Start(kept)).map_err(failed("seek"))?;
        let mut events = EventFile { path: path.clone(), file: BufWriter::new(file) };
        if kept == 0 {
            let mut event = Message::default();
            event.double(1, wall_seconds);
            event.bytes(3, FILE_VERSION.as_bytes());
            events.write_record(&event.0)?;
        }
        Ok(events)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the scalars of one step. TensorBoard keeps them as `f32`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn scalars(
        &mut self,
        step: u64,
        wall_seconds: f64,
        scalars: &[(impl AsRef<str>, f64)],
    ) -> Result<(), EventFileError> {
        let mut summary = Message::default();
        for (tag, scalar) in scalars {
            let mut value = Message::default();
            value.bytes(1, tag.as_ref().as_bytes());
            value.float(2, *scalar as f32);
            summary.bytes(1, &value.0);
        }
        let mut event = Message::default();
        event.double(1, wall_seconds);
        event.varint_field(2, step);
        event.bytes(5, &summary.0);
        self.write_record(&event.0)
    }

    /// Hands everything to the operating system, so that TensorBoard sees it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn flush(&mut self) -> Result<(), EventFileError> {
        self.file.flush().map_err(|source| self.failed(source))
    }

    fn write_record(&mut self, data: &[u8]) -> Result<(), EventFileError> {
        let mut record = (data.len() as u64).to_le_bytes().to_vec();
        record.extend(masked_crc(&record).to_le_bytes());
        record.extend(data);
        record.extend(masked_crc(data).to_le_bytes());
        self.file.write_all(&record).map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> EventFileError {
        EventFileError { path: self.path.clone(), action: "write", source }
    }
}

/// The checksum of TFRecords: crc32c, turned and shifted so that a checksum of checksums stays strong.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// How many bytes of a file are whole records of events that are no later than `steps_done`.
fn bytes_up_to(file: &mut impl Read, steps_done: u64) -> io::Result<u64> {
    let mut kept = 0;
    while let Some(data) = read_record(file)? {
        if step_of(&data) > steps_done {
            break;
        }
        kept += data.len() as u64 + 16;
    }
    Ok(kept)
}

/// The next record; `None` at the end, torn or spoilt records included.
fn read_record(file: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut head = [0; 12];
    if !filled(file, &mut head)? {
        return Ok(None);
    }
    let length = u64::from_le_bytes([head[0], head[1], head[2], head[3], head[4], head[5], head[6], head[7]]);
    let crc = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
    if masked_crc(&head[..8]) != crc || length > RECORD_BYTES_MAX {
        return Ok(None);
    }
    let (mut data, mut crc) = (vec![0; length as usize], [0; 4]);
    let whole = filled(file, &mut data)? && filled(file, &mut crc)?;
    Ok((whole && masked_crc(&data) == u32::from_le_bytes(crc)).then_some(data))
}

fn filled(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// The step of an event written by [`EventFile::scalars`]: a varint behind nine bytes of wall time; 0 without one.
fn step_of(event: &[u8]) -> u64 {
    let Some((0x10, varint)) =
        event.get(9..).and_then(|rest| rest.split_first()).map(|(&key, rest)| (key, rest))
    else {
        return 0;
    };
    let mut step = 0;
    for (place, byte) in varint.iter().take(10).enumerate() {
        step |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            break;
        }
    }
    step
}

/// A protobuf message under construction.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn varint_field(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    fn double(&mut self, field: u64, value: f64) {
        self.varint(field << 3 | 1);
        self.0.extend(value.to_le_bytes());
    }

    fn float(&mut self, field: u64, value: f32) {
        self.varint(field << 3 | 5);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, value: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs from `steps.start` steps done to `steps.end`.
    fn write(directory: &Path, steps: std::ops::Range<u64>) {
        let mut events = EventFile::open(directory, 1.5, steps.start).unwrap();
        for step in steps.start + 1..=steps.end {
            events.scalars(step, step as f64, &[("train/ne", 0.5), ("a", step as f64)]).unwrap();
        }
        events.flush().unwrap();
    }

    fn bytes(directory: &Path) -> Vec<u8> {
        fs::read(directory.join(FILE_NAME)).unwrap()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// These bytes were read by TensorBoard's own `EventAccumulator`.
    #[test]
    fn the_bytes_are_those_tensorboard_reads() {
        let directory = tempfile::tempdir().unwrap();
        let mut events = EventFile::open(directory.path(), 1.5, 0).unwrap();
        events.scalars(300, 2.5, &[("ne", 0.75)]).unwrap();
        events.flush().unwrap();
        let bytes = bytes(directory.path());
        let (version, scalar) = bytes.split_at(40);
        assert_eq!(
            hex(version),
            "1800000000000000a37f4b22\
             09000000000000f83f1a0d627261696e2e4576656e743a32\
             2a28646c"
        );
        assert_eq!(
            hex(scalar),
            "19000000000000008bf10828\
             090000000000000440\
             10ac02\
             2a0b0a090a026e65150000403f\
             f63ad06e"
        );
    }

    #[test]
    fn a_resumed_file_is_that_of_an_uninterrupted_run() {
        let (straight, broken) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(straight.path(), 0..300);
        write(broken.path(), 0..200);
        write(broken.path(), 150..300);
        assert_eq!(bytes(straight.path()), bytes(broken.path()));
        write(broken.path(), 0..300);
        assert_eq!(bytes(straight.path()), bytes(broken.path()));
    }

    #[test]
    fn a_torn_or_spoilt_end_is_cut_off() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), 0..4);
        let whole = bytes(directory.path());
        for cut in (0..whole.len()).step_by(5) {
            fs::write(directory.path().join(FILE_NAME), &whole[..cut]).unwrap();
            write(directory.path(), 0..4);
            assert_eq!(bytes(directory.path()), whole, "cut at {cut}");
            let mut spoilt = whole.clone();
            spoilt[cut] ^= 4;
            fs::write(directory.path().join(FILE_NAME), &spoilt).unwrap();
            let events = EventFile::open(directory.path(), 1.5, 100).unwrap();
            drop(events);
            let left = bytes(directory.path());
            assert!(left.len() <= whole.len() && whole.starts_with(&left), "spoilt at {cut}");
        }
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let error = EventFile::open(&file.join("events"), 0.0, 0).unwrap_err().to_string();
        assert!(error.contains("file/events") && error.contains("cannot make the directory"), "{error}");
    }
}
