//! Writing a teacher's words: rows in order, a block at a time, published by one rename.

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};

use super::{BLOCK_ROWS, FORMAT_VERSIONS, MAGIC, NOBODY, TeacherHeader, block_bytes};
use crate::error::{DataError, IoContext};

/// A file of a teacher's words that is being written.
#[derive(Debug)]
pub struct TeacherWriter {
    path: PathBuf,
    unfinished: PathBuf,
    file: File,
    header: TeacherHeader,
    rows: u64,
    /// Logits of the block under way, a column per task.
    logits: Vec<Vec<u16>>,
    /// Its embeddings, row after row.
    embeddings: Vec<u16>,
    teachers: Vec<u16>,
}

impl TeacherWriter {
    /// Starts a file; it appears under its name when [`TeacherWriter::finish`] has written all of its rows. The
    /// header's `version` is filled in.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn create(path: &Path, mut header: TeacherHeader) -> Result<TeacherWriter, DataError> {
        header.version = FORMAT_VERSIONS[usize::from(header.embedding > 0)];
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(".partial");
        let unfinished = PathBuf::from(unfinished);
        let json = serde_json::to_vec(&header).unwrap_or_else(|error| unreachable!("a plain value: {error}"));
        let mut head = MAGIC.to_vec();
        head.extend((json.len() as u32).to_le_bytes());
        head.extend(crc32c::crc32c(&json).to_le_bytes());
        head.extend(json);
        head.resize(head.len().next_multiple_of(8), 0);
        let mut file = File::create(&unfinished).context("create", &unfinished)?;
        file.write_all(&head).context("write", &unfinished)?;
        let logits = vec![Vec::new(); header.tasks.len()];
        Ok(TeacherWriter {
            path: path.to_path_buf(),
            unfinished,
            file,
            header,
            rows: 0,
            logits,
            embeddings: Vec::new(),
            teachers: Vec::new(),
        })
    }

    /// Adds what a teacher said of the next rows: `[sample][task]`, NaN where it said nothing of a task; `teacher` is
    /// its place in the header, or `None` where nobody spoke. Where the header has an embedding, these rows have none.
    ///
    /// # Errors
    /// When the disk fails.
    ///
    /// # Panics
    /// As [`TeacherWriter::add_embedded`].
    pub fn add(&mut self, logits: &[f32], teacher: Option<usize>) -> Result<(), DataError> {
        self.add_embedded(logits, &[], teacher)
    }

    /// As [`TeacherWriter::add`], with embeddings `[sample][float]`, as many floats as the header says; none at all stand
    /// for samples without.
    ///
    /// # Errors
    /// When the disk fails.
    ///
    /// # Panics
    /// If there are more rows or teachers than the header says, or other embeddings.
    pub fn add_embedded(
        &mut self,
        logits: &[f32],
        embeddings: &[f32],
        teacher: Option<usize>,
    ) -> Result<(), DataError> {
        let (tasks, floats) = (self.header.tasks.len(), self.header.embedding);
        let samples = logits.len() / tasks;
        let fits = embeddings.is_empty() || embeddings.len() == samples * floats;
        assert!(fits, "{} floats of {samples} embeddings", embeddings.len());
        assert!(logits.len().is_multiple_of(tasks), "{} logits of {tasks} tasks", logits.len());
        assert!(teacher.is_none_or(|place| place < self.header.teachers.len()), "teacher {teacher:?}");
        for (place, sample) in logits.chunks_exact(tasks).enumerate() {
            for (column, logit) in self.logits.iter_mut().zip(sample) {
                column.push(crate::half::from_f32(*logit));
            }
            match embeddings.get(place * floats..(place + 1) * floats).filter(|_| !embeddings.is_empty()) {
                Some(own) => self.embeddings.extend(own.iter().map(|float| crate::half::from_f32(*float))),
                None => {
                    self.embeddings.resize(self.embeddings.len() + floats, crate::half::from_f32(f32::NAN))
                }
            }
            self.teachers.push(teacher.map_or(NOBODY, |place| place as u16));
            self.rows += 1;
            if self.teachers.len() as u64 == BLOCK_ROWS {
                self.write_block()?;
            }
        }
        assert!(self.rows <= self.header.rows, "{} rows of {}", self.rows, self.header.rows);
        Ok(())
    }

    fn write_block(&mut self) -> Result<(), DataError> {
        let rows = self.teachers.len() as u64;
        let columns = self.logits.iter().chain([&self.embeddings, &self.teachers]);
        let mut block: Vec<u8> = columns.flatten().flat_map(|half| half.to_le_bytes()).collect();
        block.resize(block_bytes(&self.header, rows) as usize - 8, 0);
        let checksum = crc32c::crc32c(&block);
        block.extend(checksum.to_le_bytes());
        block.extend([0; 4]);
        self.file.write_all(&block).context("write", &self.unfinished)?;
        self.logits.iter_mut().for_each(Vec::clear);
        self.embeddings.clear();
        self.teachers.clear();
        Ok(())
    }

    /// Writes what is left and gives the file its name.
    ///
    /// # Errors
    /// When the disk fails.
    ///
    /// # Panics
    /// If rows are missing.
    pub fn finish(mut self) -> Result<(), DataError> {
        assert_eq!(self.rows, self.header.rows, "rows of a teacher's file");
        if !self.teachers.is_empty() {
            self.write_block()?;
        }
        self.file.sync_all().context("sync", &self.unfinished)?;
        std::fs::rename(&self.unfinished, &self.path).context("rename to", &self.path)?;
        if let Some(directory) = self.path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            File::open(directory).context("open", directory)?.sync_all().context("sync", directory)?;
        }
        Ok(())
    }
}
