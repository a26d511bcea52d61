//! Why rows could not come in.
//!
//! A bad row is described by [`BadRow`] (where, which column, what value, why) and is either an error or a
//! count, as the job says; everything else that the outside world can do to us is a [`DataError`].

use std::{fmt, io, path::PathBuf};

use serde::{Deserialize, Serialize};

/// Why rows could not come in.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A named file is not there.
    #[error("data file {path} does not exist")]
    FileNotFound {
        /// The file.
        path: PathBuf,
    },
    /// A pattern names no file.
    #[error("no file matches the pattern `{pattern}`")]
    NoMatch {
        /// The pattern.
        pattern: String,
    },
    /// A pattern cannot be read as one.
    #[error("`{pattern}` is not a file pattern: {reason}")]
    BadPattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A teacher's words are for other rows.
    #[error(
        "{path} has a teacher's words on {found} rows of other data, and this job trains on {rows} rows: run `campanile \
         augment` for this job"
    )]
    OtherTeacherData {
        /// The file.
        path: PathBuf,
        /// Its rows.
        found: u64,
        /// The job's.
        rows: u64,
    },
    /// A teacher's words have another embedding than the job follows.
    #[error(
        "{path} has {}, and the job's tables follow one of {wanted} floats (run.follow.floats): run `campanile augment` \
         with this job again",
        embedding(*.found)
    )]
    OtherEmbedding {
        /// The file.
        path: PathBuf,
        /// Floats that it has.
        found: usize,
        /// Floats that the job asks for.
        wanted: usize,
    },
    /// A teacher's words are about other tasks.
    #[error(
        "{path} has a teacher's words on `{known}`, and this job predicts `{wanted}`: no task is in both"
    )]
    NoTeacherTask {
        /// The file.
        path: PathBuf,
        /// Its tasks.
        known: String,
        /// The job's.
        wanted: String,
    },
    /// No files were given for a source that reads files.
    #[error("no training files: name at least one under `process.data.train`")]
    NoFiles,
    /// A stream has no files to measure.
    #[error(
        "`standardise` and vocabularies are measured on files before a stream is trained on: name some under \
         `process.data.train`, or use `clip` and `hash`"
    )]
    NothingToMeasure,
    /// Validation or test files were given, but the split takes all rows from the training files.
    #[error("{split} files are named, but the split is {kind}: only a split by file reads them")]
    FilesNotSplit {
        /// `valid` or `test`.
        split: &'static str,
        /// The split's name.
        kind: &'static str,
    },
    /// A file is named twice: its rows would count twice, or be trained on and tested on.
    #[error(
        "data file {path} is named twice, by `{first}` under `{first_split}` and by `{pattern}` under `{split}`: its \
         rows would be read twice; name every file once"
    )]
    FileTwice {
        /// The file.
        path: PathBuf,
        /// What named it first.
        first: String,
        /// And for which split.
        first_split: &'static str,
        /// What named it again.
        pattern: String,
        /// And for which split.
        split: &'static str,
    },
    /// A file has no bytes.
    #[error("data file {path} is empty")]
    EmptyFile {
        /// The file.
        path: PathBuf,
    },
    /// A split that must have rows has none.
    #[error("no rows are left for training: {read} rows were read, {skipped} of them bad{why}")]
    NoRows {
        /// Rows read, good or bad.
        read: u64,
        /// Bad ones.
        skipped: u64,
        /// What else is known.
        why: String,
    },
    /// A row that cannot be used, where the job says that this ends the run.
    #[error("{0}")]
    BadRow(Box<BadRow>),
    /// More bad rows than the job allows.
    #[error("more than {limit} bad rows: {counts}; the last one: {last}")]
    TooManyBadRows {
        /// The job's limit.
        limit: u64,
        /// Counts by reason.
        counts: String,
        /// The row that broke the limit.
        last: Box<BadRow>,
    },
    /// A column that the job names is not in a file.
    #[error("{path}: there is no column `{column}`; the file has {found}")]
    MissingColumn {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// What is there, and what that may mean.
        found: String,
    },
    /// A file that is not text.
    #[error("{path} is not text: {reason}")]
    NotText {
        /// The file.
        path: PathBuf,
        /// Why, and what it may be.
        reason: String,
    },
    /// Two files that count time differently.
    #[error(
        "column `{column}` is {first_unit} in {first} and {unit} in {path}: give all files one unit{advice}"
    )]
    TimeUnits {
        /// The column.
        column: String,
        /// A file.
        first: PathBuf,
        /// What its column counts.
        first_unit: &'static str,
        /// Another.
        path: PathBuf,
        /// What its column counts.
        unit: &'static str,
        /// What else would do.
        advice: &'static str,
    },
    /// A split by time that holds nothing out.
    #[error("the split by time holds no row out: {times} Without held-out rows, say split = \"by_file\"")]
    NothingHeldOut {
        /// What the times are, and where the split cuts them.
        times: String,
    },
    /// A label that is always the same in training.
    #[error(
        "the label `{task}` is {class} in all of the {rows} rows to train on{but}: a model would learn to say nothing \
         else; look at the column, at `at_least` and at the split"
    )]
    OneClass {
        /// The label.
        task: String,
        /// What it is.
        class: &'static str,
        /// Rows to train on.
        rows: u64,
        /// Which of the rows.
        but: &'static str,
    },
    /// A header names a needed column more than once.
    #[error("{path}: the header has column `{column}` {count} times; rename or drop all but one")]
    DuplicateColumn {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// How often it is there.
        count: usize,
    },
    /// A quoted cell that the file ends in: every line from there on would be lost in it.
    #[error(
        "{path}: the quote that opens in line {line} is never closed; close it, double a quote that is part of a \
         quoted cell, or say `quotes = false` where quotes are characters like others"
    )]
    UnclosedQuote {
        /// The file.
        path: PathBuf,
        /// The line of the opening quote, from 1.
        line: u64,
    },
    /// A column's type cannot play its role.
    #[error("{path}: column `{column}` is {found}, which cannot be used as {role}; {wanted}")]
    ColumnType {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// Its type.
        found: String,
        /// Its role in the job.
        role: &'static str,
        /// What would do.
        wanted: &'static str,
    },
    /// The job asks for something that this source or these transforms cannot do.
    #[error("column `{column}`: {reason}")]
    Unsupported {
        /// The column.
        column: String,
        /// Why not.
        reason: String,
    },
    /// A record is so long that something must be wrong with it.
    #[error(
        "{path}: the record that starts in line {line} is longer than {limit} bytes; is a quote left open?"
    )]
    LongRecord {
        /// The file.
        path: PathBuf,
        /// Its first line, from 1.
        line: u64,
        /// The longest record.
        limit: usize,
    },
    /// A compressed or Parquet file is damaged.
    #[error("{path}: damaged {format} data: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// `gzip`, `zstd` or `Parquet`.
        format: &'static str,
        /// What the decoder says.
        reason: String,
    },
    /// A teacher's words are damaged.
    #[error(
        "{path}: block {block} of the teacher's words does not match its checksum; run `campanile augment` again"
    )]
    CorruptWords {
        /// The file.
        path: PathBuf,
        /// The block.
        block: u64,
    },
    /// A packed file of ours is damaged.
    #[error("packed file {path}: block {block} does not match its checksum; delete {} and prepare again", path.parent().unwrap_or(path).display())]
    CorruptBlock {
        /// The file.
        path: PathBuf,
        /// The block.
        block: u64,
    },
    /// A file of ours is damaged outside its blocks.
    #[error("file {path} is damaged: {reason}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// More segments than a run can keep apart.
    #[error(
        "column `{column}` has more than {limit} different segments, the last one `{value}`; choose a coarser one"
    )]
    TooManySegments {
        /// The segment column.
        column: String,
        /// The limit.
        limit: usize,
        /// The value too many.
        value: String,
    },
    /// A vocabulary that does not fit in the memory that `prep` may use.
    #[error(
        "column `{column}`: its vocabulary of {ids} ids needs {needed_mib} MiB, prep may use {limit_mib} MiB; \
         raise `min_count` or `prep_memory_mib`, or hash the column"
    )]
    VocabularyTooLarge {
        /// The column.
        column: String,
        /// Ids kept.
        ids: u64,
        /// Memory for them.
        needed_mib: u64,
        /// The limit.
        limit_mib: u64,
    },
    /// The limit is below what one chunk needs.
    #[error("prep cannot work in {given_mib} MiB of memory; give it at least {least_mib} MiB")]
    MemoryTooSmall {
        /// The limit given.
        given_mib: u64,
        /// The least that works.
        least_mib: u64,
    },
    /// This binary was built without Parquet.
    #[error("{path}: this binary was built without Parquet; build it with `--features parquet`")]
    NoParquet {
        /// The first file.
        path: PathBuf,
    },
    /// A file of columns cannot be written.
    #[error("cannot write {path}: {reason}")]
    Unwritten {
        /// The file.
        path: PathBuf,
        /// What the encoder says.
        reason: String,
    },
    /// The synthetic world cannot be built.
    #[error("the synthetic world cannot be built: {0}")]
    World(String),
    /// Rows were asked for that are not there.
    #[error("rows {start}..{end} were asked for, the split has {rows}")]
    OutOfRange {
        /// First position.
        start: u64,
        /// One past the last.
        end: u64,
        /// Rows there are.
        rows: u64,
    },
    /// The system said no.
    #[error("cannot {action} {path}: {reason}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's answer; not a `source`, or a chain of errors would say it twice.
        reason: io::Error,
    },
}

/// Attaches what was tried, and on which file, to an I/O error.
pub(crate) trait IoContext<T> {
    fn context(self, action: &'static str, path: &std::path::Path) -> Result<T, DataError>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn context(self, action: &'static str, path: &std::path::Path) -> Result<T, DataError> {
        self.map_err(|reason| DataError::Io { action, path: path.to_path_buf(), reason })
    }
}

/// A row that cannot be used: where it is, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadRow {
    /// The file, as the job names it.
    pub file: String,
    /// Line of a text file, or row of a Parquet file, from 1.
    pub line: u64,
    /// Which of the two.
    pub unit: RowUnit,
    /// The column, or empty when the row as a whole is wrong.
    pub column: String,
    /// The raw value, shortened.
    pub value: String,
    /// Why it is bad.
    pub reason: BadReason,
}

/// What rows of a file are counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowUnit {
    /// Lines of text; a record may cover several.
    Line,
    /// Rows of a Parquet file.
    Row,
}

impl RowUnit {
    fn word(self) -> &'static str {
        match self {
            RowUnit::Line => "line",
            RowUnit::Row => "row",
        }
    }
}

impl fmt::Display for BadRow {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {} {}", self.file, self.unit.word(), self.line)?;
        if !self.column.is_empty() {
            write!(out, ", column `{}`, value `{}`", self.column, self.value)?;
        }
        write!(out, ": {}", self.reason)
    }
}

/// Why a row is bad. Rows that are skipped are counted by [`BadReason::name`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadReason {
    /// Too few or too many columns.
    ColumnCount {
        /// In this row.
        found: u64,
        /// In the header, or 40 for Criteo.
        wanted: u64,
    },
    /// Bytes that are not text.
    InvalidUtf8,
    /// Not a hexadecimal id of eight digits.
    NotHex,
    /// Not a number.
    NotANumber,
    /// Not an integer.
    NotAnInteger,
    /// An integer beyond 64 bits with a sign.
    LargeInteger,
    /// A NaN or an infinity.
    NotFinite,
    /// A label that is not 0 or 1.
    Label,
    /// An empty cell where a value is needed.
    Missing,
    /// An id that is not a row of its table, and is not hashed.
    BeyondTable {
        /// Rows of the table.
        row_count: u64,
    },
    /// Ids and their weights differ in number.
    WeightCount {
        /// Ids in the row.
        ids: u64,
        /// Weights in the row.
        weights: u64,
    },
    /// A sample weight below zero.
    NegativeWeight,
    /// A weight so large that nothing could be learned beside it.
    LargeWeight,
    /// Text after a closing quote, or a quote that never closes.
    Quotes,
    /// A quote that opens in a line and closes in a later one, with lines between that are rows by themselves.
    OpenQuote {
        /// Lines from the one to the other.
        lines: u64,
    },
}

impl BadReason {
    /// A word for the report's counts.
    pub fn name(&self) -> &'static str {
        match self {
            BadReason::ColumnCount { .. } => "column_count",
            BadReason::InvalidUtf8 => "invalid_utf8",
            BadReason::NotHex => "not_hex",
            BadReason::NotANumber => "not_a_number",
            BadReason::NotAnInteger | BadReason::LargeInteger => "not_an_integer",
            BadReason::NotFinite => "not_finite",
            BadReason::Label => "label",
            BadReason::Missing => "missing",
            BadReason::BeyondTable { .. } => "beyond_table",
            BadReason::WeightCount { .. } => "weight_count",
            BadReason::NegativeWeight => "negative_weight",
            BadReason::LargeWeight => "large_weight",
            BadReason::Quotes | BadReason::OpenQuote { .. } => "quotes",
        }
    }
}

impl fmt::Display for BadReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadReason::ColumnCount { found, wanted } if found < wanted => {
                write!(out, "{found} columns where {wanted} are needed; the line may be cut off")
            }
            BadReason::ColumnCount { found, wanted } => {
                write!(out, "{found} columns where {wanted} are needed")
            }
            BadReason::InvalidUtf8 => write!(out, "not valid UTF-8"),
            BadReason::NotHex => write!(out, "not a hexadecimal id of 1 to 8 digits"),
            BadReason::NotANumber => write!(out, "not a number"),
            BadReason::LargeInteger => write!(out, "larger than 2^63 - 1"),
            BadReason::NotAnInteger => write!(out, "not an integer"),
            BadReason::NotFinite => {
                write!(out, "not a finite number; leave the cell empty if the value is missing")
            }
            BadReason::Label => write!(out, "a label must be 0 or 1, or the job must say `at_least`"),
            BadReason::Missing => write!(out, "the value is missing"),
            BadReason::BeyondTable { row_count } => {
                write!(
                    out,
                    "the table has rows 0 to {}; enlarge it or hash the column",
                    row_count.saturating_sub(1)
                )
            }
            BadReason::WeightCount { ids, weights } => write!(out, "{ids} ids come with {weights} weights"),
            BadReason::NegativeWeight => write!(out, "a sample weight must not be negative"),
            BadReason::LargeWeight => write!(out, "a weight must be from -1000000000 to 1000000000"),
            BadReason::OpenQuote { lines } => write!(
                out,
                "a quote that opens here closes {lines} lines further down, and the lines between are rows of their \
                 own; double it, or say `quotes = false`"
            ),
            BadReason::Quotes => write!(out, "text follows a closing quote, or the quote never closes"),
        }
    }
}

/// The embedding that a file of words has.
fn embedding(floats: usize) -> String {
    match floats {
        0 => "no embedding of the teacher".to_owned(),
        floats => format!("an embedding of {floats} floats"),
    }
}
