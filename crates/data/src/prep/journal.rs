//! What is done so far, so that a run that was killed goes on instead of starting again.
//!
//! The journal is replaced by a rename after everything that it vouches for is on disk. Whatever else lies in
//! the directory was written after it and is cut off or removed when the run goes on.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
};

use campanile_spec::data::BadRows;
use serde::{Deserialize, Serialize};

use super::{PrepPhase, SkippedRows, file_order::FileOrder, id_counts::SplitIds, measure::Moments};
use crate::{
    decode::{Decoded, Decoder, Observed},
    error::{BadRow, DataError, IoContext},
    packed::Suspended,
    source::{Chunk, InputFile, Position},
};

/// Bad rows that are shown as examples.
const EXAMPLES_MAX: usize = 5;

/// Everything that a killed run needs to go on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Journal {
    /// The pass that is under way.
    pub phase: PrepPhase,
    /// How far it is.
    pub pass: Pass,
    /// Good rows, once they are counted.
    pub row_total: u64,
    /// Moments of the standardised columns so far.
    pub moments: Vec<Moments>,
    /// Runs of counted ids.
    pub runs: Vec<String>,
    /// The number of the next run.
    pub next_run: u64,
    /// Train, valid and test files.
    pub packed: Vec<Suspended>,
    /// Tells the tail files of two journals apart.
    pub sequence: u64,
    /// Segments in order of appearance.
    pub segments: Vec<String>,
    /// What the order of the rows says so far.
    pub order: FileOrder,
    /// Ids by split so far.
    pub ids: SplitIds,
}

/// How far a pass over the files is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Pass {
    pub position: Position,
    /// Chunks before the position.
    pub chunks: u64,
    /// Lines of the present file before the position.
    pub lines: u64,
    /// The file that `lines` belongs to.
    pub lines_file: usize,
    /// Rows read, good or bad.
    pub rows_read: u64,
    /// Bytes of files read.
    pub bytes_done: u64,
    pub skipped: SkippedRows,
    /// What the good rows are like.
    pub observed: Observed,
}

impl Pass {
    /// Takes note of a chunk that is done: bad rows, lines, the new position.
    pub fn account(
        &mut self,
        chunk: &Chunk,
        (decoded, decoder): (&Decoded, &Decoder),
        files: &[InputFile],
        policy: BadRows,
    ) -> Result<(), DataError> {
        if self.lines_file != chunk.file {
            (self.lines, self.lines_file) = (0, chunk.file);
        }
        self.lines += chunk.header_lines;
        for (line, bad) in &decoded.bad {
            let row = BadRow {
                file: files[chunk.file].path.display().to_string(),
                line: self.lines + line + 1,
                unit: chunk.unit(),
                column: bad.column.clone(),
                value: bad.value.clone(),
                reason: bad.reason.clone(),
            };
            self.skip(row, policy)?;
        }
        self.lines += decoded.lines;
        self.rows_read += decoded.rows_read;
        self.observed.add(&decoder.observed(&decoded.counts, &decoded.splits));
        self.position = chunk.next;
        self.chunks += 1;
        self.bytes_done = chunk.bytes_done;
        Ok(())
    }

    fn skip(&mut self, row: BadRow, policy: BadRows) -> Result<(), DataError> {
        let BadRows::Skip { rows_max } = policy else { return Err(DataError::BadRow(Box::new(row))) };
        let skipped = &mut self.skipped;
        skipped.total += 1;
        *skipped.by_reason.entry(row.reason.name().to_string()).or_insert(0) += 1;
        if skipped.total > rows_max {
            let counts: Vec<String> =
                skipped.by_reason.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
            return Err(DataError::TooManyBadRows {
                limit: rows_max,
                counts: counts.join(", "),
                last: Box::new(row),
            });
        }
        if skipped.examples.len() < EXAMPLES_MAX {
            skipped.examples.push(row);
        }
        Ok(())
    }
}

impl Journal {
    /// The beginning of a phase.
    pub fn start(phase: PrepPhase) -> Journal {
        Journal {
            phase,
            pass: Pass::default(),
            row_total: 0,
            moments: Vec::new(),
            runs: Vec::new(),
            next_run: 0,
            packed: Vec::new(),
            sequence: 0,
            segments: Vec::new(),
            order: FileOrder::default(),
            ids: SplitIds::default(),
        }
    }

    /// The journal in a directory, if it has one.
    pub fn load(dir: &Path) -> Result<Option<Journal>, DataError> {
        let path = dir.join("journal.json");
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|error| DataError::Corrupt { path, reason: error.to_string() }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(reason) => Err(DataError::Io { action: "read", path, reason }),
        }
    }

    /// Replaces the journal in one step.
    pub fn save(&self, dir: &Path) -> Result<(), DataError> {
        let json = serde_json::to_vec(self).unwrap_or_else(|error| unreachable!("a plain value: {error}"));
        replace_file(&dir.join("journal.json"), &json)
    }
}

/// Writes a file under another name, syncs it and renames it: it is there as a whole or not at all.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    let unfinished = path.with_extension("tmp");
    let mut file = File::create(&unfinished).context("create", &unfinished)?;
    file.write_all(bytes).context("write", &unfinished)?;
    file.sync_all().context("sync", &unfinished)?;
    fs::rename(&unfinished, path).context("rename to", path)
}
