//! Rows of raw values in an event log: how they are written, and how they become batches.
//!
//! A row has a cell for each column of its schema, one after the other. A cell is a byte for its kind, then the value:
//!
//! ```text
//!   0  missing                3  f32 (4 bytes)            5  text: length u16, bytes
//!   1  u32 (4 bytes)          4  f64 (8 bytes)            6  list: count u16, then so many cells, none of them a list
//!   2  i64 (8 bytes)                                      7  u64 above the largest i64 (8 bytes)
//! ```
//!
//! Values are raw, as a request or a file has them: every job that reads the log applies its own transforms, by the code
//! that prepares files and answers requests, and takes the columns that it names.

use std::sync::Arc;

use campanile_spec::{
    Batch,
    data::{DataSpec, SplitSpec},
};
use thiserror::Error;

use crate::{
    decode::{Cells, Decoder, Role, RowNotes, Slot},
    error::{BadReason, DataError},
    rows::RowBuffer,
    transforms::Transforms,
    value::Raw,
};

/// The longest text of a cell, and the longest list.
const LENGTH_MAX: usize = u16::MAX as usize;

/// Segments are numbered below this.
const SEGMENTS_MAX: u32 = 4096;

/// Appends a cell; text beyond 65535 bytes is cut off.
pub fn put(out: &mut Vec<u8>, raw: Raw<'_>) {
    match raw {
        Raw::Missing => out.push(0),
        Raw::Int(value) => match u32::try_from(value) {
            Ok(value) => {
                out.push(1);
                out.extend_from_slice(&value.to_le_bytes());
            }
            Err(_) => {
                out.push(2);
                out.extend_from_slice(&value.to_le_bytes());
            }
        },
        Raw::Unsigned(value) => {
            out.push(7);
            out.extend_from_slice(&value.to_le_bytes());
        }
        Raw::Float(value) if f64::from(value as f32).to_bits() == value.to_bits() => {
            out.push(3);
            out.extend_from_slice(&(value as f32).to_le_bytes());
        }
        Raw::Float(value) => {
            out.push(4);
            out.extend_from_slice(&value.to_le_bytes());
        }
        Raw::Text(text) => {
            let text = &text[..text.len().min(LENGTH_MAX)];
            out.push(5);
            out.extend_from_slice(&(text.len() as u16).to_le_bytes());
            out.extend_from_slice(text);
        }
    }
}

/// Appends a cell of several values, at most 65535.
pub fn put_list<'a>(out: &mut Vec<u8>, items: impl IntoIterator<Item = Raw<'a>>) {
    let place = out.len();
    out.extend_from_slice(&[6, 0, 0]);
    let mut count = 0u16;
    for item in items.into_iter().take(LENGTH_MAX) {
        put(out, item);
        count += 1;
    }
    out[place + 1..place + 3].copy_from_slice(&count.to_le_bytes());
}

/// The value of one cell of a row, the `place`th of its columns; nothing where the row has none there, or a list.
pub fn cell(row: &[u8], place: usize) -> Option<Raw<'_>> {
    let mut rest = row;
    for _ in 0..place {
        rest = rest.get(length(rest)?..)?;
    }
    length(rest)?;
    value(rest)
}

/// A cell of a row, whole.
#[derive(Debug, Clone, Copy)]
pub enum Cell<'a> {
    /// One value, which may be missing.
    One(Raw<'a>),
    /// Several.
    List(Items<'a>),
}

/// The values of a list, in order.
#[derive(Debug, Clone, Copy)]
pub struct Items<'a> {
    rest: &'a [u8],
    count: u16,
}

impl<'a> Iterator for Items<'a> {
    type Item = Raw<'a>;

    fn next(&mut self) -> Option<Raw<'a>> {
        self.count = self.count.checked_sub(1)?;
        let item = value(self.rest).unwrap_or(Raw::Missing);
        self.rest = self.rest.get(length(self.rest)?..)?;
        Some(item)
    }
}

impl<'a> Cell<'a> {
    /// The cell that begins here, one of those that [`find_cells`] has found.
    pub fn at(bytes: &'a [u8]) -> Cell<'a> {
        match bytes {
            [6, low, high, rest @ ..] => Cell::List(Items { rest, count: u16::from_le_bytes([*low, *high]) }),
            _ => Cell::One(value(bytes).unwrap_or(Raw::Missing)),
        }
    }
}

/// Why a logged row cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LoggedError {
    /// It is not made as rows are.
    #[error("the row has no {place}th cell of {count}; it is cut short, or its schema is another")]
    Cut {
        /// The first cell that is not there.
        place: usize,
        /// How many there should be.
        count: usize,
    },
    /// A value that the job cannot take.
    #[error("column `{column}`, value `{value}`: {reason}")]
    Value {
        /// The column.
        column: String,
        /// The value.
        value: String,
        /// Why.
        reason: BadReason,
    },
    /// The log has none of the job's columns.
    #[error(
        "the job reads `{column}` and other columns, of which the log's rows have none; they have {known}"
    )]
    NoColumn {
        /// What the job names.
        column: String,
        /// What there is.
        known: String,
    },
}

/// Turns logged rows into batches of one job.
#[derive(Debug)]
pub struct LoggedRows {
    decoder: Decoder,
    rows: RowBuffer,
    /// By slot of the decoder: where its value is.
    places: Vec<Place>,
    notes: RowNotes,
    column_count: usize,
    /// Where the cells of the present row begin.
    starts: Vec<usize>,
}

/// Where the value of a slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Cell(usize),
    /// The record's own time.
    Time,
    /// Nowhere: the rows have no such column, and all its values are missing.
    Nowhere,
}

impl LoggedRows {
    /// For a job's data, with its transforms.
    ///
    /// # Errors
    /// When the job's columns cannot be read at all.
    pub fn new(data: &DataSpec, transforms: Transforms) -> Result<LoggedRows, DataError> {
        // All that comes is trained on; the split is one of files.
        let mut data = DataSpec { split: SplitSpec::ByFile, ..data.clone() };
        // A teacher's words on a stream do not stand in its rows.
        data.columns.labels.iter_mut().for_each(|label| label.teacher = None);
        data.columns.teacher_delay = None;
        let decoder = Decoder::new(&data, Arc::new(transforms), false)?;
        let rows = RowBuffer::new(&decoder.schema);
        let (places, notes, starts) = (Vec::new(), RowNotes::default(), Vec::new());
        Ok(LoggedRows { decoder, rows, places, notes, column_count: 0, starts })
    }

    /// The names of the columns of the rows that follow. One that the rows do not have is missing in all of them: a
    /// client that leaves it out must not end the work of those who read its requests.
    ///
    /// # Errors
    /// When there is none of the columns that the job reads: then it is another job's log.
    pub fn set_columns(&mut self, names: &[String]) -> Result<(), LoggedError> {
        let place = |slot: &Slot| match names.iter().position(|name| *name == slot.name) {
            Some(place) => Place::Cell(place),
            None if slot.roles.contains(&Role::Time) => Place::Time,
            None => Place::Nowhere,
        };
        let is_input = |slot: &&Slot| slot.roles.iter().any(|role| !matches!(role, Role::Label | Role::Time));
        let mut inputs = self.decoder.slots().iter().filter(is_input);
        if let Some(first) = inputs.clone().next()
            && inputs.all(|slot| place(slot) == Place::Nowhere)
        {
            let known = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            return Err(LoggedError::NoColumn { column: first.name.clone(), known });
        }
        self.column_count = names.len();
        self.places = self.decoder.slots().iter().map(place).collect();
        Ok(())
    }

    /// Looks whether [`LoggedRows::push`] would take the row, and adds nothing.
    ///
    /// # Errors
    /// As [`LoggedRows::push`].
    pub fn check(&mut self, row: &[u8], labels: &[Option<bool>], time_ms: i64) -> Result<(), LoggedError> {
        let before = self.rows.row_count;
        self.push(row, labels, time_ms)?;
        self.rows.truncate(before, &self.decoder.schema);
        Ok(())
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.rows.truncate(0, &self.decoder.schema);
    }

    /// Adds a row, its labels by task of the job, and its time.
    ///
    /// # Errors
    /// When the row is damaged or has a value that the job cannot take; nothing is added then.
    pub fn push(&mut self, row: &[u8], labels: &[Option<bool>], time_ms: i64) -> Result<(), LoggedError> {
        find_cells(row, self.column_count, &mut self.starts)?;
        let logged = Logged { row, starts: &self.starts, places: &self.places, time_ms };
        let before = self.rows.row_count;
        let labels = labels.iter().map(|label| label.map(u8::from));
        if let Err((slot, reason)) = self.decoder.labelled(&logged, labels, &mut self.rows, &mut self.notes) {
            self.rows.truncate(before, &self.decoder.schema);
            let (column, value) = (self.decoder.slots()[slot].name.clone(), logged.cell(slot).shown());
            return Err(LoggedError::Value { column, value, reason });
        }
        if let Some(slot) = self.decoder.segment_slot() {
            self.rows.segments.push(segment(logged.cell(slot)));
        }
        self.rows.row_count += 1;
        Ok(())
    }

    /// Writes all rows to `out`, whose buffers are used again.
    pub fn write(&self, out: &mut Batch) {
        self.rows.write(&self.decoder.schema, out);
    }
}

/// A number is the segment itself; a text is numbered by its hash, so that the number does not depend on what came
/// before.
fn segment(raw: Raw<'_>) -> u32 {
    match raw {
        Raw::Int(value) if (0..i64::from(SEGMENTS_MAX)).contains(&value) => value as u32,
        other => {
            let name = other.name();
            let number = name.parse().ok().filter(|number| *number < SEGMENTS_MAX);
            number.unwrap_or_else(|| crc32c::crc32c(name.as_bytes()) % SEGMENTS_MAX)
        }
    }
}

/// A row, cell by cell.
struct Logged<'a> {
    row: &'a [u8],
    starts: &'a [usize],
    places: &'a [Place],
    time_ms: i64,
}

impl Cells for Logged<'_> {
    fn cell(&self, slot: usize) -> Raw<'_> {
        match self.places[slot] {
            Place::Nowhere => Raw::Missing,
            Place::Time => Raw::Int(self.time_ms),
            Place::Cell(place) => value(&self.row[self.starts[place]..]).unwrap_or(Raw::Missing),
        }
    }

    fn time(&self, slot: usize) -> Raw<'_> {
        match self.cell(slot) {
            // Every record has a time, whatever its client sends.
            Raw::Missing => Raw::Int(self.time_ms),
            given => given,
        }
    }

    fn one(&self, slot: usize) -> Option<Raw<'_>> {
        match self.at(slot) {
            None => Some(self.cell(slot)),
            // A client may log the cell as a file has it.
            Some(Cell::One(one)) => Some(one),
            Some(Cell::List(_)) => None,
        }
    }

    fn several(
        &self,
        slot: usize,
        visit: impl FnMut(Raw<'_>) -> Result<(), BadReason>,
    ) -> Result<(), BadReason> {
        match self.at(slot) {
            Some(Cell::List(mut items)) => items.try_for_each(visit),
            _ => Ok(()),
        }
    }
}

impl<'a> Logged<'a> {
    fn at(&self, slot: usize) -> Option<Cell<'a>> {
        let Place::Cell(place) = self.places[slot] else { return None };
        Some(Cell::at(&self.row[self.starts[place]..]))
    }
}

/// Where each cell of a row begins; afterwards every cell is known to be whole.
///
/// # Errors
/// When the row has fewer or more than `count` cells, or is no row.
pub fn find_cells(row: &[u8], count: usize, starts: &mut Vec<usize>) -> Result<(), LoggedError> {
    starts.clear();
    let mut at = 0;
    for place in 0..count {
        starts.push(at);
        at += length(&row[at..]).ok_or(LoggedError::Cut { place, count })?;
    }
    if at == row.len() { Ok(()) } else { Err(LoggedError::Cut { place: count, count }) }
}

/// Bytes of the cell at the start, if it is whole.
fn length(bytes: &[u8]) -> Option<usize> {
    let pair = |at: usize| Some(usize::from(u16::from_le_bytes([*bytes.get(at)?, *bytes.get(at + 1)?])));
    let length = match bytes.first()? {
        0 => 1,
        1 | 3 => 5,
        2 | 4 | 7 => 9,
        5 => 3 + pair(1)?,
        6 => {
            let mut at = 3;
            for _ in 0..pair(1)? {
                if bytes.get(at) == Some(&6) {
                    return None;
                }
                at += length(bytes.get(at..)?)?;
            }
            at
        }
        _ => return None,
    };
    (length <= bytes.len()).then_some(length)
}

/// The value of the cell at the start; a list has none.
fn value(bytes: &[u8]) -> Option<Raw<'_>> {
    let (kind, rest) = bytes.split_first()?;
    Some(match kind {
        0 => Raw::Missing,
        1 => Raw::Int(i64::from(u32::from_le_bytes(*rest.first_chunk()?))),
        2 => Raw::Int(i64::from_le_bytes(*rest.first_chunk()?)),
        3 => Raw::Float(f64::from(f32::from_le_bytes(*rest.first_chunk()?))),
        4 => Raw::Float(f64::from_le_bytes(*rest.first_chunk()?)),
        7 => Raw::unsigned(u64::from_le_bytes(*rest.first_chunk()?)),
        5 => Raw::text(rest.get(2..2 + usize::from(u16::from_le_bytes(*rest.first_chunk()?)))?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
