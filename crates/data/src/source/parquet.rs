//! Parquet files: leaf columns read page by page with their levels, no Arrow in between.
//!
//! One page of every needed column is in memory at a time, so the writer's page size, not its row-group size,
//! decides what a file costs.

mod columns;

use std::{fs::File, path::PathBuf};

use campanile_spec::data::Split;
use parquet::{
    column::reader::ColumnReader,
    errors::ParquetError,
    file::reader::{FileReader, SerializedFileReader},
};

use super::{Body, InputFile, PARQUET_CHUNK_ROWS, Taken};
use crate::{
    decode::{Cells, Decoded, Decoder},
    error::{BadReason, DataError, IoContext},
    value::Raw,
};
use columns::{Leaf, find_leaf};

/// An open Parquet file.
pub(super) struct ParquetFile {
    path: PathBuf,
    reader: SerializedFileReader<File>,
    leaves: Vec<Leaf>,
    bytes: u64,
    row_group: usize,
    /// Column readers of the open row group, one per slot; empty before the first.
    columns: Vec<ColumnReader>,
    /// Rows of the open row group that are not read yet.
    rows_left: usize,
    rows_done: u64,
    rows_total: u64,
}

impl ParquetFile {
    /// Opens a file and goes to row `offset`.
    pub fn open(file: &InputFile, decoder: &Decoder, offset: u64) -> Result<ParquetFile, DataError> {
        let path = &file.path;
        let raw = File::open(path).context("open", path)?;
        let reader = SerializedFileReader::new(raw).map_err(|error| damaged(path.clone(), &error))?;
        let schema = reader.metadata().file_metadata().schema_descr_ptr();
        let leaves: Vec<Leaf> =
            decoder.slots().iter().map(|slot| find_leaf(&schema, slot, path)).collect::<Result<_, _>>()?;
        let rows_total = reader.metadata().file_metadata().num_rows().max(0) as u64;
        let mut file = ParquetFile {
            path: path.clone(),
            reader,
            leaves,
            bytes: file.bytes,
            row_group: 0,
            columns: Vec::new(),
            rows_left: 0,
            rows_done: 0,
            rows_total,
        };
        file.skip_to(offset)?;
        Ok(file)
    }

    /// Row groups before the offset are passed over by their counts, rows inside one by reading.
    fn skip_to(&mut self, offset: u64) -> Result<(), DataError> {
        while self.rows_done < offset {
            let rows = self.row_group_rows(self.row_group);
            if self.rows_done + rows as u64 <= offset {
                self.row_group += 1;
                self.rows_done += rows as u64;
                continue;
            }
            self.open_row_group()?;
            let skipped = (offset - self.rows_done) as usize;
            for column in &mut self.columns {
                columns::skip(column, skipped).map_err(|error| damaged(self.path.clone(), &error))?;
            }
            self.rows_left -= skipped;
            self.rows_done = offset;
        }
        Ok(())
    }

    fn row_group_rows(&self, index: usize) -> usize {
        self.reader.metadata().row_group(index).num_rows().max(0) as usize
    }

    fn open_row_group(&mut self) -> Result<(), DataError> {
        let fail = |error: ParquetError| damaged(self.path.clone(), &error);
        let group = self.reader.get_row_group(self.row_group).map_err(fail)?;
        self.columns = self
            .leaves
            .iter()
            .map(|leaf| group.get_column_reader(leaf.index))
            .collect::<Result<_, _>>()
            .map_err(fail)?;
        self.rows_left = self.row_group_rows(self.row_group);
        self.row_group += 1;
        Ok(())
    }

    /// The next chunk; it never spans row groups.
    pub fn next(&mut self) -> Result<Option<Taken>, DataError> {
        while self.rows_left == 0 {
            if self.row_group == self.reader.num_row_groups() {
                return Ok(None);
            }
            self.open_row_group()?;
        }
        let rows = self.rows_left.min(PARQUET_CHUNK_ROWS);
        let mut columns = Vec::with_capacity(self.leaves.len());
        for (reader, leaf) in self.columns.iter_mut().zip(&self.leaves) {
            let column =
                columns::read(reader, leaf, rows).map_err(|error| damaged(self.path.clone(), &error))?;
            if column.row_count != rows {
                let reason = format!("column `{}` ends before its row group does", leaf.name);
                return Err(DataError::Damaged { path: self.path.clone(), format: "Parquet", reason });
            }
            columns.push(column);
        }
        self.rows_left -= rows;
        self.rows_done += rows as u64;
        let share = self.rows_done as f64 / self.rows_total.max(1) as f64;
        Ok(Some(Taken {
            body: Body::Parquet(ParquetRows { row_count: rows, columns }),
            end: self.rows_done,
            bytes_done: (self.bytes as f64 * share) as u64,
            header_lines: 0,
        }))
    }
}

fn damaged(path: PathBuf, error: &ParquetError) -> DataError {
    DataError::Damaged { path, format: "Parquet", reason: error.to_string() }
}

/// Decoded rows of a Parquet file, column by column.
#[derive(Debug)]
pub(crate) struct ParquetRows {
    row_count: usize,
    columns: Vec<columns::Column>,
}

impl ParquetRows {
    /// Decodes every row.
    pub fn decode(&self, decoder: &Decoder, split: Split, out: &mut Decoded) {
        for row in 0..self.row_count {
            decoder.row(&ParquetCells { rows: self, row }, split, row as u64, out);
        }
        out.lines += self.row_count as u64;
    }
}

struct ParquetCells<'a> {
    rows: &'a ParquetRows,
    row: usize,
}

impl Cells for ParquetCells<'_> {
    fn cell(&self, slot: usize) -> Raw<'_> {
        let column = &self.rows.columns[slot];
        column.entries(self.row).next().map_or(Raw::Missing, |entry| column.entry(entry))
    }

    fn items(
        &self,
        slot: usize,
        separator: u8,
        mut visit: impl FnMut(Raw<'_>) -> Result<(), BadReason>,
    ) -> Result<(), BadReason> {
        let column = &self.rows.columns[slot];
        if column.is_list() {
            return column.entries(self.row).try_for_each(|entry| visit(column.entry(entry)));
        }
        // A flat text column may hold lists too, cut at the separator as in CSV.
        match column.entry(self.row) {
            Raw::Missing => Ok(()),
            Raw::Text(text) => {
                text.split(|&byte| byte == separator).try_for_each(|item| visit(Raw::text(item)))
            }
            one => visit(one),
        }
    }
}
