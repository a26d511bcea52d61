//! Parquet files: leaf columns read page by page with their levels, no Arrow in between.
//!
//! One page of every needed column is in memory at a time, so the writer's page size, not its row-group size,
//! decides what a file costs.

mod columns;
mod kinds;

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use campanile_spec::data::Split;
use parquet::{
    column::reader::ColumnReader,
    errors::ParquetError,
    file::reader::{FileReader, SerializedFileReader},
};

use super::{Body, InputFile, PARQUET_CHUNK_ROWS, Taken};
use crate::{
    decode::{Cells, Decoded, Decoder, Role},
    error::{BadReason, DataError, IoContext},
    value::Raw,
};
use columns::{Leaf, find_leaf};
use kinds::Counted;

/// An open Parquet file.
pub(super) struct ParquetFile {
    path: PathBuf,
    reader: SerializedFileReader<File>,
    /// One per slot; none where the file is without the column.
    leaves: Vec<Option<Leaf>>,
    bytes: u64,
    row_group: usize,
    /// Column readers of the open row group, one per slot; empty before the first.
    columns: Vec<Option<ColumnReader>>,
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
        let leaves = find_leaves(&reader, decoder, path)?;
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
            for column in self.columns.iter_mut().flatten() {
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
            .map(|leaf| leaf.as_ref().map(|leaf| group.get_column_reader(leaf.index)).transpose())
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
            let (Some(reader), Some(leaf)) = (reader, leaf) else {
                columns.push(None);
                continue;
            };
            let column =
                columns::read(reader, leaf, rows).map_err(|error| damaged(self.path.clone(), &error))?;
            if column.row_count != rows {
                let reason = format!("column `{}` ends before its row group does", leaf.name);
                return Err(DataError::Damaged { path: self.path.clone(), format: "Parquet", reason });
            }
            columns.push(Some(column));
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

fn find_leaves(
    reader: &SerializedFileReader<File>,
    decoder: &Decoder,
    path: &Path,
) -> Result<Vec<Option<Leaf>>, DataError> {
    let schema = reader.metadata().file_metadata().schema_descr_ptr();
    decoder.slots().iter().map(|slot| find_leaf(&schema, slot, decoder.time_unit(), path)).collect()
}

/// Refuses files whose columns count time differently, unless the job's unit takes the difference out.
pub(super) fn check_units(files: &[InputFile], decoder: &Decoder) -> Result<(), DataError> {
    let mut first: Vec<Option<(&Path, Counted)>> = vec![None; decoder.slots().len()];
    for file in files {
        let raw = File::open(&file.path).context("open", &file.path)?;
        let reader = SerializedFileReader::new(raw).map_err(|error| damaged(file.path.clone(), &error))?;
        let leaves = find_leaves(&reader, decoder, &file.path)?;
        for ((leaf, slot), first) in leaves.iter().zip(decoder.slots()).zip(&mut first) {
            let Some(leaf) = leaf else { continue };
            let &mut (first, counted) = first.get_or_insert((&file.path, leaf.counted));
            let is_time_only = slot.roles.iter().all(|role| *role == Role::Time);
            if counted == leaf.counted || (is_time_only && decoder.time_unit().is_some()) {
                continue;
            }
            return Err(DataError::TimeUnits {
                column: slot.name.clone(),
                first: first.to_path_buf(),
                first_unit: counted.word(),
                path: file.path.clone(),
                unit: leaf.counted.word(),
                advice: if is_time_only {
                    ", or say run.data.time_unit, to which all are converted"
                } else {
                    ""
                },
            });
        }
    }
    Ok(())
}

fn damaged(path: PathBuf, error: &ParquetError) -> DataError {
    DataError::Damaged { path, format: "Parquet", reason: error.to_string() }
}

/// Decoded rows of a Parquet file, column by column.
#[derive(Debug)]
pub(crate) struct ParquetRows {
    row_count: usize,
    /// By slot; none where the file is without the column.
    columns: Vec<Option<columns::Column>>,
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

impl ParquetCells<'_> {
    fn first<'a>(&'a self, slot: usize, entry: impl Fn(&'a columns::Column, usize) -> Raw<'a>) -> Raw<'a> {
        let Some(column) = &self.rows.columns[slot] else { return Raw::Missing };
        column.entries(self.row).next().map_or(Raw::Missing, |place| entry(column, place))
    }
}

impl Cells for ParquetCells<'_> {
    fn cell(&self, slot: usize) -> Raw<'_> {
        self.first(slot, columns::Column::entry)
    }

    fn time(&self, slot: usize) -> Raw<'_> {
        self.first(slot, columns::Column::time)
    }

    fn one(&self, slot: usize) -> Option<Raw<'_>> {
        // A flat text column may hold lists too, cut at the separator as in CSV.
        let is_list = self.rows.columns[slot].as_ref().is_some_and(columns::Column::is_list);
        (!is_list).then(|| self.cell(slot))
    }

    fn several(
        &self,
        slot: usize,
        mut visit: impl FnMut(Raw<'_>) -> Result<(), BadReason>,
    ) -> Result<(), BadReason> {
        let Some(column) = &self.rows.columns[slot] else { return Ok(()) };
        column.entries(self.row).try_for_each(|entry| visit(column.entry(entry)))
    }
}
