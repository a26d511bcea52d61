//! A teacher's words on the rows of a split, in a file beside the data.
//!
//! `campanile augment` scores every row of a job's training split once, and any number of students read the file. A
//! word is found by the place of its row in the split, so that shuffling, ranks and resuming do not matter. Logits are
//! IEEE half precision: a step of 0.002 between 1 and 2, of 0.004 up to 8. `docs/format-packed.md` gives every byte.
//!
//! ```text
//!   "CAMTEACH"  header length, checksum, JSON      block 0   block 1   ...     all blocks but the last of one length
//!   block       logits f16 [task][row] | embedding f16 [row][float] | teacher u16 [row] | zeros to a multiple of 8
//!               | checksum u32 | zero u32
//! ```
//!
//! A file whose teacher was not asked for its embedding has none of these floats, and is of version 1.

mod write;

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use campanile_spec::Batch;
use serde::{Deserialize, Serialize};

use crate::error::{DataError, IoContext};
pub use write::TeacherWriter;

const MAGIC: &[u8; 8] = b"CAMTEACH";

/// The version of the format without embeddings, and with them.
const FORMAT_VERSIONS: [u32; 2] = [1, 2];

/// Rows of every block but the last.
const BLOCK_ROWS: u64 = 1 << 16;

/// Stands in the column of teachers where none spoke.
const NOBODY: u16 = u16::MAX;

/// Blocks that a reader keeps: a shuffled batch comes from a window of 64 blocks of rows, or from two.
const BLOCKS_KEPT_MAX: usize = 130;

/// What the file says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TeacherHeader {
    /// The version of the format.
    pub version: u32,
    /// The tasks that it has logits for.
    pub tasks: Vec<String>,
    /// Floats of the teacher's embedding of a row; 0 for none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub embedding: usize,
    /// Rows of the split.
    pub rows: u64,
    /// The fingerprint of the data whose rows these are.
    pub data: String,
    /// Seconds in a unit of the data's times.
    pub seconds_per_time_unit: f64,
    /// The teachers that spoke.
    pub teachers: Vec<TeacherVersion>,
}

fn is_zero(floats: &usize) -> bool {
    *floats == 0
}

/// One version of a teacher.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TeacherVersion {
    /// Its name.
    pub model: String,
    /// Its number in the registry; for a bare checkpoint, the step.
    pub number: u64,
    /// What tells it from any other.
    pub id: String,
    /// The time of the newest sample that it was trained on, if that is known.
    pub data_time: Option<i64>,
}

/// A complete file of a teacher's words.
#[derive(Debug)]
pub(crate) struct TeacherFile {
    path: PathBuf,
    header: TeacherHeader,
    /// For each task of the student, the teacher's.
    tasks: Vec<Option<usize>>,
    /// Floats of the embedding that the student has a use for; all of them or none.
    pub embedding: usize,
    first_block: u64,
    /// Follows from every byte.
    pub fingerprint: String,
}

/// Reads a file of words for one thread.
#[derive(Debug)]
pub(crate) struct TeacherReader {
    file: Arc<TeacherFile>,
    handle: File,
    /// The newest last.
    kept: Vec<(u64, Words)>,
}

/// The words of one block.
#[derive(Debug, Clone, Default)]
struct Words {
    /// `[task][row]`.
    logits: Vec<f32>,
    /// `[row][float]`, as they are stored; empty when nobody asks.
    embeddings: Vec<u16>,
    teachers: Vec<u16>,
}

/// Reads the header of a file of words.
///
/// # Errors
/// When it cannot be read, or is not such a file.
pub fn inspect(path: &Path) -> Result<TeacherHeader, DataError> {
    Ok(read_header(path)?.0)
}

fn read_header(path: &Path) -> Result<(TeacherHeader, u64), DataError> {
    let corrupt = |reason: String| DataError::Corrupt { path: path.to_path_buf(), reason };
    let file = File::open(path).context("open", path)?;
    let bytes = file.metadata().context("look at", path)?.len();
    let mut head = [0; 16];
    if bytes < head.len() as u64 {
        return Err(corrupt("it is too short for a file of a teacher's words".to_owned()));
    }
    file.read_exact_at(&mut head, 0).context("read", path)?;
    if head[..8] != *MAGIC {
        return Err(corrupt(
            "it is not a file of a teacher's words: make one with `campanile augment`".to_owned(),
        ));
    }
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let json_bytes = u64::from(word(8));
    if 16 + json_bytes > bytes {
        return Err(corrupt("its header is cut off".to_owned()));
    }
    let mut json = vec![0; json_bytes as usize];
    file.read_exact_at(&mut json, 16).context("read", path)?;
    if crc32c::crc32c(&json) != word(12) {
        return Err(corrupt("its header does not match its checksum".to_owned()));
    }
    let header: TeacherHeader = serde_json::from_slice(&json).map_err(|error| corrupt(error.to_string()))?;
    let wanted = FORMAT_VERSIONS[usize::from(header.embedding > 0)];
    if header.version != wanted {
        let [first, last] = FORMAT_VERSIONS;
        let reason = format!("it is of version {}, this program reads {first} and {last}", header.version);
        return Err(corrupt(reason));
    }
    let first_block = 16 + json_bytes.next_multiple_of(8);
    let wanted = block_start(&header, first_block, header.rows.div_ceil(BLOCK_ROWS));
    if bytes != wanted {
        return Err(corrupt(format!("it has {bytes} bytes instead of {wanted}")));
    }
    Ok((header, first_block))
}

/// Where a block begins; one past the last is the end of the file.
fn block_start(header: &TeacherHeader, first_block: u64, block: u64) -> u64 {
    let whole = (header.rows / BLOCK_ROWS).min(block);
    let rest = if block > whole { block_bytes(header, header.rows % BLOCK_ROWS) } else { 0 };
    first_block + whole * block_bytes(header, BLOCK_ROWS) + rest
}

/// Bytes of a block with its checksum.
fn block_bytes(header: &TeacherHeader, rows: u64) -> u64 {
    ((header.tasks.len() as u64 + header.embedding as u64 + 1) * 2 * rows).next_multiple_of(8) + 8
}

impl TeacherFile {
    /// Opens the words for a student's tasks, and checks that they are for these rows, and have the floats of an
    /// embedding that the student wants, if it wants any.
    pub fn open(
        path: &Path,
        tasks: &[String],
        embedding: usize,
        (data, rows): (&str, u64),
    ) -> Result<TeacherFile, DataError> {
        let (header, first_block) = read_header(path)?;
        if embedding > 0 && header.embedding != embedding {
            let (path, found) = (path.to_path_buf(), header.embedding);
            return Err(DataError::OtherEmbedding { path, found, wanted: embedding });
        }
        if header.data != data || header.rows != rows {
            return Err(DataError::OtherTeacherData { path: path.to_path_buf(), found: header.rows, rows });
        }
        let place = |task: &String| header.tasks.iter().position(|known| known == task);
        let places: Vec<Option<usize>> = tasks.iter().map(place).collect();
        if places.iter().all(Option::is_none) {
            let (path, known) = (path.to_path_buf(), header.tasks.join("`, `"));
            return Err(DataError::NoTeacherTask { path, known, wanted: tasks.join("`, `") });
        }
        // Every block's own checksum makes up the fingerprint, so the whole file need not be read.
        let handle = File::open(path).context("open", path)?;
        let mut facts = serde_json::to_vec(&header).unwrap_or_else(|error| unreachable!("{error}"));
        for block in 1..=rows.div_ceil(BLOCK_ROWS) {
            let mut checksum = [0; 4];
            let at = block_start(&header, first_block, block) - 8;
            handle.read_exact_at(&mut checksum, at).context("read", path)?;
            facts.extend(checksum);
        }
        let fingerprint = crate::value::fingerprint(&facts);
        let (path, tasks) = (path.to_path_buf(), places);
        Ok(TeacherFile { path, header, tasks, embedding, first_block, fingerprint })
    }

    fn load(&self, handle: &File, block: u64) -> Result<Words, DataError> {
        let rows = (self.header.rows - block * BLOCK_ROWS).min(BLOCK_ROWS) as usize;
        let mut bytes = vec![0; block_bytes(&self.header, rows as u64) as usize];
        let start = block_start(&self.header, self.first_block, block);
        handle.read_exact_at(&mut bytes, start).context("read", &self.path)?;
        let (payload, tail) = bytes.split_at(bytes.len() - 8);
        if crc32c::crc32c(payload).to_le_bytes() != tail[..4] {
            return Err(DataError::CorruptWords { path: self.path.clone(), block });
        }
        let mut words = payload.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
        let logits = words.by_ref().take(rows * self.header.tasks.len()).map(crate::half::to_f32).collect();
        let given = words.by_ref().take(rows * self.header.embedding);
        let mut embeddings = Vec::new();
        if self.embedding > 0 {
            embeddings.extend(given);
        } else {
            given.for_each(drop);
        }
        Ok(Words { logits, embeddings, teachers: words.take(rows).collect() })
    }
}

impl TeacherReader {
    pub fn new(file: &Arc<TeacherFile>) -> Result<TeacherReader, DataError> {
        let handle = File::open(&file.path).context("open", &file.path)?;
        Ok(TeacherReader { file: Arc::clone(file), handle, kept: Vec::new() })
    }

    /// Fills in the teacher's columns of a batch, whose samples are these rows of the split, in order.
    pub fn fill(&mut self, rows: impl Iterator<Item = u64>, out: &mut Batch) -> Result<(), DataError> {
        let (file, count) = (Arc::clone(&self.file), out.sample_count);
        out.teacher_logits.clear();
        out.teacher_logits.resize(file.tasks.len() * count, f32::NAN);
        out.teacher_delays.clear();
        out.teacher_delays.resize(count, f32::NAN);
        out.teacher_embeddings.clear();
        out.teacher_embeddings.resize(count * file.embedding, f32::NAN);
        for (sample, row) in rows.enumerate() {
            let (block, place) = (row / BLOCK_ROWS, (row % BLOCK_ROWS) as usize);
            if self.kept.last().is_none_or(|(newest, _)| *newest != block) {
                self.have(block)?;
            }
            let words = &self.kept[self.kept.len() - 1].1;
            let Some(teacher) = file.header.teachers.get(words.teachers[place] as usize) else { continue };
            for (task, theirs) in file.tasks.iter().enumerate() {
                if let Some(theirs) = theirs {
                    out.teacher_logits[task * count + sample] =
                        words.logits[theirs * words.teachers.len() + place];
                }
            }
            let floats = &words.embeddings[place * file.embedding..][..file.embedding];
            let own = &mut out.teacher_embeddings[sample * file.embedding..][..file.embedding];
            own.iter_mut().zip(floats).for_each(|(own, half)| *own = crate::half::to_f32(*half));
            if let (Some(newest), Some(time)) = (teacher.data_time, out.times.get(sample)) {
                let age = (time - newest) as f64 * file.header.seconds_per_time_unit;
                out.teacher_delays[sample] = age.max(0.0) as f32;
            }
        }
        Ok(())
    }

    /// Makes a block the newest that is kept.
    fn have(&mut self, block: u64) -> Result<(), DataError> {
        let found = match self.kept.iter().position(|(kept, _)| *kept == block) {
            Some(place) => self.kept.remove(place),
            None => (block, self.file.load(&self.handle, block)?),
        };
        if self.kept.len() >= BLOCKS_KEPT_MAX {
            self.kept.remove(0);
        }
        self.kept.push(found);
        Ok(())
    }
}
