//! Topics of a log as Parquet files, for readers that are not ours.
//!
//! ```text
//!   topic ─► records ─► columns in memory (a row group) ─► file ─► OUT/<topic>/<first record>-<last record>.parquet
//! ```
//!
//! A file's name says which records it covers, and it is there only when it is whole. So the files are the cursor: who comes
//! again goes on behind the last one, and no record is in two files. A file has one schema: another number in the records, or
//! a column whose type grows, begins the next file.

mod content;
mod files;
mod layout;
mod topic;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use campanile_data::{
    DataError,
    columnar::{Column, ColumnType, TableFile, Unfit},
    logged::{self, Cell},
};
use campanile_stream::log::{Limit, Log, LogError, Offset, Records, Stored};
use thiserror::Error;

use content::Content;
use files::Files;
use layout::{Layout, Layouts};
pub use topic::Topic;

/// What one turn reads at most.
const TURN: Limit = Limit { records: 4096, bytes: 4 << 20 };
/// How many of the newest records are asked for the type of a column that had no value yet.
const NEWEST: u64 = 1024;
/// Records of a row group at most.
const GROUP_ROWS: usize = 1 << 16;
/// Bytes of their payloads: decoded they take a few times as much.
const GROUP_BYTES: usize = 16 << 20;

/// How topics are exported.
#[derive(Debug, Clone, Default)]
pub struct ExportOptions {
    /// Where the directories of the topics are.
    pub directory: PathBuf,
    /// The first record that is wanted; without it, the oldest that is there.
    pub from: Option<Offset>,
    /// Rows of a file at most.
    pub file_rows: u64,
    /// Whether examples that come once more, for a label that came late, are left out.
    pub without_late: bool,
    /// Whether a file may have records of several schemas, with the columns of all of them.
    pub union: bool,
    /// Types of columns that were said.
    pub types: BTreeMap<String, ColumnType>,
}

/// Why a topic could not be exported.
#[derive(Debug, Error)]
pub enum ExportError {
    /// The log failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A file cannot be written or read.
    #[error(transparent)]
    File(#[from] DataError),
    /// A record that cannot be read.
    #[error("topic `{topic}`, record {record}: {problem}")]
    Record {
        /// The topic.
        topic: &'static str,
        /// Its number.
        record: Offset,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The directory has files of another log.
    #[error(
        "{} has records of another log: its last one, record {record} of `{topic}`, is not this log's; export into another \
         directory", directory.display()
    )]
    OtherLog {
        /// The topic's directory.
        directory: PathBuf,
        /// The topic.
        topic: &'static str,
        /// The record.
        record: Offset,
    },
    /// The directory cannot be used.
    #[error("cannot {action} {}: {source}", path.display())]
    Directory {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// What was done since an export was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExportCounts {
    /// Records read.
    pub records: u64,
    /// Rows in files that are there.
    pub rows: u64,
    /// Ticks, which are no events, and late examples that were to be left out.
    pub left_out: u64,
}

/// The export of one topic.
pub struct Export {
    log: Arc<dyn Log>,
    topic: Topic,
    options: ExportOptions,
    files: Files,
    layouts: Layouts,
    /// How the rows in `columns` are made; nothing before the first record.
    layout: Option<Layout>,
    columns: Vec<Column>,
    /// Bytes of payloads that stand in `columns`.
    bytes: usize,
    file: Option<OpenFile>,
    /// The first record that is not in `columns` or a file.
    next: Offset,
    /// The first record that the next file covers.
    covered: Offset,
    /// Time and checksum of the last record that was taken, by which the log is known again.
    last: Option<(u64, u32)>,
    counts: ExportCounts,
    published: Vec<PathBuf>,
    records: Records,
    starts: Vec<usize>,
}

struct OpenFile {
    table: TableFile,
    types: Vec<(String, ColumnType)>,
    /// Behind the last record that it covers.
    end: Offset,
    last: Option<(u64, u32)>,
}

impl Export {
    /// Finds where the files end, and goes on from there.
    ///
    /// # Errors
    /// When the topic is not there, or the files are not of this log.
    pub fn open(log: Arc<dyn Log>, topic: Topic, options: ExportOptions) -> Result<Export, ExportError> {
        let start = log.range(topic.name(), 0)?.start;
        let files = Files::open(&options.directory, topic)?;
        let next = match files.last() {
            Some(last) => {
                files.check_log(&*log)?;
                // The same words again go on; words that name a later record pass over some.
                options.from.unwrap_or(0).max(last + 1)
            }
            None => options.from.unwrap_or(start),
        };
        let layouts = Layouts::new(topic, files.known_types()?, options.types.clone());
        Ok(Export {
            log,
            topic,
            options,
            files,
            layouts,
            layout: None,
            columns: Vec::new(),
            bytes: 0,
            file: None,
            next,
            covered: next,
            last: None,
            counts: ExportCounts::default(),
            published: Vec::new(),
            records: Records::default(),
            starts: Vec::new(),
        })
    }

    /// The topic.
    pub fn topic(&self) -> Topic {
        self.topic
    }

    /// The first record that was not taken yet.
    pub fn next(&self) -> Offset {
        self.next
    }

    /// What was done.
    pub fn counts(&self) -> ExportCounts {
        self.counts
    }

    /// The files that were finished.
    pub fn published(&self) -> &[PathBuf] {
        &self.published
    }

    /// Columns whose type was said, and that no record had.
    pub fn unused_types(&self) -> &BTreeSet<String> {
        self.layouts.unused()
    }

    /// Takes some more records; false when there are none. After an error of a broker it can be called again.
    ///
    /// # Errors
    /// When the log or the disk fails, or a record cannot be read.
    pub fn turn(&mut self) -> Result<bool, ExportError> {
        let mut records = std::mem::take(&mut self.records);
        let read = self.log.read(self.topic.name(), 0, self.next, TURN, &mut records);
        let taken = read.map_err(ExportError::from).and_then(|()| {
            records.iter().try_for_each(|record| self.take(&record))?;
            Ok(!records.is_empty())
        });
        self.records = records;
        taken
    }

    /// Publishes what was taken so far.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn finish(&mut self) -> Result<(), ExportError> {
        self.flush()?;
        if let Some(file) = &mut self.file {
            // What was left out behind the last row is done, too.
            (file.end, file.last) = (self.next, self.last);
        }
        self.publish()
    }

    fn take(&mut self, record: &Stored<'_>) -> Result<(), ExportError> {
        let content = Content::read(self.topic, record).map_err(|problem| self.wrong(record, problem))?;
        if content.is_tick() || content.is_late() && self.options.without_late {
            self.counts.left_out += 1;
        } else {
            // Everything that asks the log comes before anything is changed: a broker may be away.
            let wanted = self.layouts.find(&*self.log, &content, self.layout.as_ref())?;
            if let Some(layout) = wanted.map_err(|problem| self.wrong(record, problem))? {
                self.look_ahead(&layout)?;
                self.change_layout(layout)?;
            }
            self.push(record, &content)?;
        }
        (self.next, self.last) = (record.offset + 1, Some((record.time_ms, crc32c::crc32c(record.payload))));
        self.counts.records += 1;
        let rows = self.rows_waiting();
        let is_full = |file: u64| file + rows as u64 >= self.options.file_rows;
        if is_full(self.file.as_ref().map_or(0, |file| file.table.row_count())) {
            self.flush()?;
            self.publish()?;
        } else if rows >= GROUP_ROWS || self.bytes >= GROUP_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn rows_waiting(&self) -> usize {
        self.columns.first().map_or(0, Column::row_count)
    }

    /// Learns the types of columns that are new from the newest records, so that files are alike even where a column, such as
    /// the answer of a model, has no value in the first of them.
    fn look_ahead(&mut self, layout: &Layout) -> Result<(), ExportError> {
        let mut columns = self.layouts.columns(layout).split_off(layout.own_count());
        let is_new = |column: &Column| column.its_type().kind.is_none();
        if !columns.iter().any(is_new) {
            return Ok(());
        }
        let (topic, mut newest) = (self.topic.name(), Records::default());
        let from = self.log.range(topic, 0)?.end.saturating_sub(NEWEST).max(self.next);
        self.log.read(topic, 0, from, TURN, &mut newest)?;
        for record in newest.iter() {
            let content = Content::read(self.topic, &record).ok();
            let Some((schema, row)) = content.and_then(|content| content.features()) else { continue };
            let starts = &mut self.starts;
            if layout.schema() != Some(schema)
                || logged::find_cells(row, layout.cell_count(), starts).is_err()
            {
                continue;
            }
            for (column, place) in columns.iter_mut().zip(layout.places()) {
                if let Some(place) = place.filter(|_| is_new(column)) {
                    // What does not fit is told when it is that record's turn.
                    let _ = column.push_cell(Cell::at(&row[starts[place]..]));
                }
            }
        }
        columns.iter().filter(|column| !is_new(column)).for_each(|column| self.layouts.learn(column));
        Ok(())
    }

    fn change_layout(&mut self, wanted: Layout) -> Result<(), ExportError> {
        let wanted = match &self.layout {
            Some(present) if self.options.union => present.with(&wanted),
            _ => wanted,
        };
        if self.layout.as_ref().is_none_or(|present| present.columns() != wanted.columns())
            || !self.options.union
        {
            self.flush()?;
            self.publish()?;
            self.columns.iter().for_each(|column| self.layouts.learn(column));
            self.columns = self.layouts.columns(&wanted);
        }
        self.layout = Some(wanted);
        Ok(())
    }

    fn push(&mut self, record: &Stored<'_>, content: &Content<'_>) -> Result<(), ExportError> {
        let Some(layout) = &self.layout else { return Ok(()) };
        let (topic, offset) = (self.topic.name(), record.offset);
        let unfit = |unfit: Unfit| ExportError::Record { topic, record: offset, problem: unfit.to_string() };
        let (own, features) = self.columns.split_at_mut(layout.own_count());
        layout.push_own(own, record, content).map_err(unfit)?;
        if let Some((_, row)) = content.features() {
            let found = logged::find_cells(row, layout.cell_count(), &mut self.starts);
            found.map_err(|error| {
                let problem = error.to_string();
                ExportError::Record { topic, record: offset, problem }
            })?;
            for (column, place) in features.iter_mut().zip(layout.places()) {
                let cell = place.map_or(Cell::One(campanile_data::Raw::Missing), |place| {
                    Cell::at(&row[self.starts[place]..])
                });
                column.push_cell(cell).map_err(unfit)?;
            }
        }
        self.bytes += record.payload.len();
        Ok(())
    }

    /// Writes the rows that wait as a row group.
    fn flush(&mut self) -> Result<(), ExportError> {
        if self.rows_waiting() == 0 {
            return Ok(());
        }
        let types: Vec<(String, ColumnType)> =
            self.columns.iter().map(|column| (column.name().to_owned(), column.its_type())).collect();
        if self.file.as_ref().is_some_and(|file| file.types != types) {
            self.publish()?;
        }
        let mut file = match self.file.take() {
            Some(file) => file,
            None => {
                let table = TableFile::create(&self.files.unfinished(), &self.columns)?;
                OpenFile { table, types, end: self.next, last: None }
            }
        };
        file.table.append(&self.columns)?;
        (file.end, file.last) = (self.next, self.last);
        self.file = Some(file);
        self.columns.iter_mut().for_each(Column::clear);
        self.bytes = 0;
        Ok(())
    }

    /// Gives the open file its name.
    fn publish(&mut self) -> Result<(), ExportError> {
        let (Some(file), Some(layout)) = (self.file.take(), &self.layout) else { return Ok(()) };
        let name = self.files.name(self.covered, file.end - 1);
        let rows = file.table.row_count();
        let mut notes = layout.notes();
        let identity = self.log.identity(self.topic.name())?;
        files::note_place(&mut notes, (self.topic, identity), self.covered..file.end, file.last, &file.types);
        file.table.publish(&name, &notes)?;
        self.covered = file.end;
        self.counts.rows += rows;
        self.published.push(name);
        Ok(())
    }

    fn wrong(&self, record: &Stored<'_>, problem: String) -> ExportError {
        ExportError::Record { topic: self.topic.name(), record: record.offset, problem }
    }
}

#[cfg(test)]
mod tests;
