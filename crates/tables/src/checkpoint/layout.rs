//! Where every row of a table lies: which file, at which byte, under which header.
//!
//! All of it follows from the table's own description, so any rank can work out any file's place without
//! asking another, and two ranks that hold neighbouring rows can write into the same file.

use std::ops::Range;

use campanile_spec::{RowFormat, SparseOptimizer, TableSpec};
use serde::{Deserialize, Serialize};

use super::header::Header;

/// The most bytes of a piece, rows and state together (a single wider row still makes a piece).
pub const PIECE_BYTES_MAX: usize = 1 << 20;

/// Pieces in a file, which so holds at most 64 MiB.
pub const FILE_PIECES: u64 = 64;

/// The most floats of a row and its state that are believed of a foreign checkpoint.
const ROW_FLOATS_MAX: usize = 1 << 24;

/// The longest table name that a file name carries in full; 255 bytes are the limit of most file systems.
const FILE_STEM_BYTES_MAX: usize = 160;

/// A table as a checkpoint sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableLayout {
    /// Its name.
    pub name: String,
    /// Rows of the whole table.
    pub row_count: u64,
    /// Floats in a row.
    pub dim: usize,
    /// How a row is stored.
    pub format: RowFormat,
    /// What the columns of the state tensor are, from left to right; empty when there is no state.
    pub state: Vec<StateColumn>,
    /// Rows of each file but the last.
    pub rows_per_file: u64,
}

/// Some neighbouring floats of a row's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateColumn {
    /// Their name in the optimizer's formula.
    pub name: String,
    /// How many.
    pub floats: usize,
}

impl TableLayout {
    /// The layout of a table trained with `optimizer`.
    pub fn new(spec: &TableSpec, optimizer: &SparseOptimizer) -> TableLayout {
        let state = state_columns(optimizer, spec.dim);
        let floats: usize = state.iter().map(|column| column.floats).sum();
        assert_eq!(floats, optimizer.state_floats(spec.dim), "columns of {optimizer:?}");
        let mut layout = TableLayout {
            name: spec.name.clone(),
            row_count: spec.row_count,
            dim: spec.dim,
            format: spec.format,
            state,
            rows_per_file: 0,
        };
        layout.rows_per_file = layout.piece_rows() * FILE_PIECES;
        layout
    }

    /// What of a foreign layout cannot be true of a checkpoint of so many files and bytes.
    pub(super) fn impossible(&self, files: u64, bytes: u64) -> Option<String> {
        let TableLayout { name, row_count, dim, rows_per_file, .. } = self;
        let floats = self.state.iter().try_fold(*dim, |sum, column| sum.checked_add(column.floats));
        if *dim == 0 || floats.is_none_or(|floats| floats > ROW_FLOATS_MAX) {
            return Some(format!(
                "table `{name}` has rows of {dim} floats, with state; 1 to {ROW_FLOATS_MAX} are possible"
            ));
        }
        if *rows_per_file == 0 || row_count.div_ceil(*rows_per_file) > files {
            return Some(format!(
                "table `{name}`: {row_count} rows, {rows_per_file} a file, are not in {files} files"
            ));
        }
        // The end of the last file is worked out before it is cut to the rows that there are.
        let end = row_count.checked_add(*rows_per_file);
        let needed = row_count.checked_mul(self.row_bytes() as u64);
        (end.is_none() || needed.is_none_or(|needed| needed > bytes))
            .then(|| format!("table `{name}`: {row_count} rows of {dim} floats are larger than the files"))
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.dim * self.format.element_bytes()
    }

    /// Floats of a row's state.
    pub fn state_floats(&self) -> usize {
        self.state.iter().map(|column| column.floats).sum()
    }

    /// Floats of the state of a row's part.
    pub fn state_floats_of(&self, columns: &Range<usize>) -> usize {
        self.state_runs(columns).map(|run| run.floats).sum()
    }

    /// Where the state of a row's part lies in the state of the whole row. State that is one number for the row
    /// belongs to the part with its first column; others hold a copy.
    pub(crate) fn state_runs(&self, columns: &Range<usize>) -> impl Iterator<Item = StateRun> {
        let (mut whole, mut part) = (0, 0);
        self.state.iter().map(move |column| {
            let of_elements = column.floats == self.dim;
            let run = StateRun {
                whole: if of_elements { whole + columns.start } else { whole },
                part,
                floats: if of_elements { columns.len() } else { column.floats },
                owned: of_elements || columns.start == 0,
            };
            whole += column.floats;
            part += run.floats;
            run
        })
    }

    /// Rows of a piece: a power of two, as many as fit in [`PIECE_BYTES_MAX`].
    pub fn piece_rows(&self) -> u64 {
        let bytes = (self.row_bytes() + self.state_floats() * size_of::<f32>()).max(1);
        let fitting = (PIECE_BYTES_MAX / bytes).max(1) as u64;
        1 << fitting.ilog2()
    }

    /// Number of files; a table without rows has one, which holds none.
    pub fn file_count(&self) -> u64 {
        self.row_count.div_ceil(self.rows_per_file).max(1)
    }

    /// The rows in a file.
    pub fn rows_of_file(&self, file: u64) -> Range<u64> {
        let start = file * self.rows_per_file;
        start..(start + self.rows_per_file).min(self.row_count)
    }

    /// The name of a file.
    pub fn file_name(&self, file: u64) -> String {
        format!("table-{}-{file:05}.safetensors", file_stem(&self.name))
    }

    /// The bytes before the tensors of a file.
    pub fn header(&self, file: u64) -> Vec<u8> {
        let rows = self.rows_of_file(file);
        let count = rows.end - rows.start;
        let (first_row, row_count) = (rows.start.to_string(), count.to_string());
        let mut header = Header::default().metadata(&[
            ("table", &self.name),
            ("first_row", &first_row),
            ("row_count", &row_count),
        ]);
        if self.state_floats() > 0 {
            header =
                header.tensor("state", "F32", &[count, self.state_floats() as u64], size_of::<f32>() as u64);
        }
        let element_bytes = self.format.element_bytes() as u64;
        header.tensor("rows", dtype_name(self.format), &[count, self.dim as u64], element_bytes).into_bytes()
    }

    /// Where the state and the row of `row` start in its file, whose header has `header_bytes`. State comes
    /// first: it is `f32`, and behind an odd number of 16-bit elements it would not be aligned.
    pub fn place(&self, row: u64, header_bytes: usize) -> RowPlace {
        let file = row / self.rows_per_file;
        let rows = self.rows_of_file(file);
        let state_bytes = (self.state_floats() * size_of::<f32>()) as u64;
        let state_end = header_bytes as u64 + (rows.end - rows.start) * state_bytes;
        let index = row - rows.start;
        RowPlace {
            state_offset: header_bytes as u64 + index * state_bytes,
            row_offset: state_end + index * self.row_bytes() as u64,
        }
    }

    /// Bytes of a file.
    pub fn file_bytes(&self, file: u64) -> u64 {
        let rows = self.rows_of_file(file);
        let each = (self.row_bytes() + self.state_floats() * size_of::<f32>()) as u64;
        self.header(file).len() as u64 + (rows.end - rows.start) * each
    }

    /// The state in words, for messages.
    pub(crate) fn state_words(&self) -> String {
        if self.state.is_empty() {
            return "no state".to_owned();
        }
        let words: Vec<String> =
            self.state.iter().map(|column| format!("`{}` ({} floats)", column.name, column.floats)).collect();
        words.join(" and ")
    }
}

/// Neighbouring floats of a row's state, in the whole row and in a part of its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StateRun {
    /// Where they start in the whole row's state.
    pub whole: usize,
    /// Where they start in the part's state.
    pub part: usize,
    /// How many.
    pub floats: usize,
    /// Whether the part writes them.
    pub owned: bool,
}

/// Byte offsets of a row and its state in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowPlace {
    /// Of its state.
    pub state_offset: u64,
    /// Of its elements.
    pub row_offset: u64,
}

/// A format's name in safetensors.
pub(crate) fn dtype_name(format: RowFormat) -> &'static str {
    match format {
        RowFormat::F32 => "F32",
        RowFormat::F16 => "F16",
        RowFormat::Bf16 => "BF16",
    }
}

/// The columns of a row's state, named as in the formulas of [`SparseOptimizer`].
fn state_columns(optimizer: &SparseOptimizer, dim: usize) -> Vec<StateColumn> {
    let columns: &[(&str, usize)] = match optimizer {
        SparseOptimizer::Sgd => &[],
        SparseOptimizer::Adagrad { .. } => &[("s", dim)],
        SparseOptimizer::RowwiseAdagrad { .. } => &[("s", 1)],
        SparseOptimizer::Adam { .. } => &[("m", dim), ("v", dim)],
        SparseOptimizer::RowwiseAdam { .. } => &[("m", dim), ("v", 1)],
        SparseOptimizer::Ftrl { .. } => &[("z", dim), ("n", dim)],
    };
    columns.iter().map(|&(name, floats)| StateColumn { name: name.to_owned(), floats }).collect()
}

/// A table's name as part of a file name: two names never give the same, and every file system takes it.
/// Letters, digits, `_` and `.` stay; any other byte becomes `%XX`; a long name is cut and gets its hash.
pub(crate) fn file_stem(name: &str) -> String {
    let mut stem = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' => stem.push(char::from(byte)),
            _ => stem.push_str(&format!("%{byte:02X}")),
        }
    }
    if stem.len() > FILE_STEM_BYTES_MAX {
        stem.truncate(FILE_STEM_BYTES_MAX);
        stem.push_str(&format!("~{:08x}", crc32c::crc32c(name.as_bytes())));
    }
    stem
}

#[cfg(test)]
mod tests {
    use campanile_spec::RowInit;

    use super::*;

    fn layout(name: &str, row_count: u64, dim: usize, format: RowFormat) -> TableLayout {
        let spec = TableSpec { name: name.to_owned(), row_count, dim, format, init: RowInit::Zeros };
        TableLayout::new(&spec, &SparseOptimizer::RowwiseAdagrad { epsilon: 1e-8, initial: 0.0 })
    }

    #[test]
    fn files_hold_at_most_64_mib_and_cover_all_rows() {
        for (rows, dim) in [(0, 16), (1, 1), (10_000_000, 64), (3_000_000, 128), (77, 1 << 20)] {
            let layout = layout("t", rows, dim, RowFormat::F32);
            let mut next = 0;
            for file in 0..layout.file_count() {
                let held = layout.rows_of_file(file);
                assert_eq!(held.start, next);
                let row = layout.row_bytes() + 4;
                assert!((held.end - held.start) as usize * row <= (64 << 20).max(row * FILE_PIECES as usize));
                next = held.end;
            }
            assert_eq!(next, rows);
        }
    }

    #[test]
    fn any_name_makes_a_safe_and_distinct_file_name() {
        let long = "é".repeat(200);
        let longer = format!("{long}x");
        let names = ["user", "user-1", "user/1", "../up", "", "a b", "%2F", "/", "user%2F1", &long, &longer];
        let files: std::collections::BTreeSet<String> =
            names.iter().map(|name| layout(name, 1, 1, RowFormat::F32).file_name(0)).collect();
        assert_eq!(files.len(), names.len());
        for file in &files {
            assert!(file.len() < 255 && !file.contains('/') && file.is_ascii(), "{file}");
        }
        assert!(files.contains("table-user%2F1-00000.safetensors"));
    }

    #[test]
    fn the_header_is_aligned_and_its_offsets_meet_the_places() {
        let layout = layout("t", 5, 3, RowFormat::Bf16);
        let header = layout.header(0);
        assert!(header.len().is_multiple_of(8));
        let first = layout.place(0, header.len());
        assert_eq!(first.state_offset, header.len() as u64);
        assert_eq!(first.row_offset, header.len() as u64 + 5 * 4);
        let last = layout.place(4, header.len());
        assert_eq!(last.row_offset + 3 * 2, layout.file_bytes(0));
    }
}
