//! Text rows: Criteo's tab-separated lines and CSV with quotes as in RFC 4180.
//!
//! A chunk starts at a record and ends at one; [`cut`] finds where, [`decode`] walks the same state machine:
//! a quote opens a quoted cell only as the first byte of the cell, two quotes inside it are one, and it may hold
//! line breaks. Blank lines are passed over, `\r\n` counts as a line break.

mod criteo;
mod header;
mod scan;
mod swallowed;

use std::{ops::Range, path::Path};

use campanile_spec::data::Split;

use crate::{
    decode::{BadCell, Cells, Decoded, Decoder, Slot},
    error::{BadReason, DataError},
    value::Raw,
};
use scan::{Cell, Record, scan_record};

/// How the lines of one file are cut into cells, and which cells are needed.
#[derive(Debug, Clone)]
pub(crate) struct TextLayout {
    delimiter: u8,
    quotes: bool,
    /// For each column of the file the slot that it fills.
    slot_of: Vec<Option<usize>>,
    /// Whether lines and roles are just as Criteo published them, so that the one-pass scanner can be used.
    fast: bool,
}

impl TextLayout {
    /// Criteo's: `label`, `I1` to `I13`, `C1` to `C26`.
    pub fn criteo(decoder: &Decoder, path: &Path) -> Result<TextLayout, DataError> {
        let names = std::iter::once("label".to_string())
            .chain((1..=13).map(|number| format!("I{number}")))
            .chain((1..=26).map(|number| format!("C{number}")));
        let slot_of = place_columns(&names.collect::<Vec<_>>(), b'\t', decoder.slots(), path)?;
        Ok(TextLayout { delimiter: b'\t', quotes: false, slot_of, fast: criteo::applies(decoder) })
    }

    /// No columns: until the header is read.
    pub fn none() -> TextLayout {
        TextLayout { delimiter: b',', quotes: true, slot_of: Vec::new(), fast: false }
    }

    /// A CSV file's, from its header line.
    pub fn from_header(
        header: &[u8],
        (delimiter, quotes): (u8, bool),
        decoder: &Decoder,
        path: &Path,
    ) -> Result<TextLayout, DataError> {
        header::check(header, path)?;
        let header = header.strip_prefix(b"\xef\xbb\xbf").unwrap_or(header);
        let mut record = Record::default();
        scan_record(header, 0, delimiter, quotes, &mut record);
        let name = |cell| String::from_utf8_lossy(record.bytes(header, cell).trim_ascii()).into_owned();
        let names: Vec<String> = record.cells.iter().map(name).collect();
        let slot_of = place_columns(&names, delimiter, decoder.slots(), path)?;
        Ok(TextLayout { delimiter, quotes, slot_of, fast: false })
    }
}

/// Which slot each column of the file fills. An optional column that is not there leaves its slot empty.
fn place_columns(
    names: &[String],
    delimiter: u8,
    slots: &[Slot],
    path: &Path,
) -> Result<Vec<Option<usize>>, DataError> {
    let mut slot_of = vec![None; names.len()];
    for (slot, wanted) in slots.iter().enumerate() {
        let Some(column) = names.iter().position(|name| *name == wanted.name) else {
            if wanted.is_optional && names.len() > 1 {
                continue;
            }
            let found = crate::source::list_names(names) + &header::other_delimiter(names, delimiter);
            return Err(DataError::MissingColumn {
                path: path.to_path_buf(),
                column: wanted.name.clone(),
                found,
            });
        };
        let count = names.iter().filter(|name| **name == wanted.name).count();
        if count > 1 {
            let column = wanted.name.clone();
            return Err(DataError::DuplicateColumn { path: path.to_path_buf(), column, count });
        }
        slot_of[column] = Some(slot);
    }
    Ok(slot_of)
}

/// Decodes every record of a chunk.
pub(crate) fn decode(bytes: &[u8], layout: &TextLayout, decoder: &Decoder, split: Split, out: &mut Decoded) {
    let mut group = layout.fast.then(criteo::Group::new);
    let mut record = Record::default();
    let mut cells = vec![Cell::default(); decoder.slots().len()];
    let mut at = 0;
    while at < bytes.len() {
        if let Some(group) = &mut group {
            let rows = &mut out.splits[split as usize];
            let (lines, next) = group.take(bytes, at, decoder, rows, &mut out.counts);
            at = next;
            out.lines += lines as u64;
            out.rows_read += lines as u64;
            if lines > 0 {
                continue;
            }
        }
        let (line, start) = (out.lines, at);
        at = scan_record(bytes, at, layout.delimiter, layout.quotes, &mut record);
        if record.lines > 1
            && let Some(reason) = broken(bytes, start..at, &record, layout, (decoder, split), out)
        {
            // Only the first line is bad; those below it speak for themselves.
            out.bad.push((line, BadCell { column: String::new(), value: String::new(), reason }));
            out.lines += 1;
            out.rows_read += 1;
            at = start + memchr::memchr(b'\n', &bytes[start..at]).map_or(at - start, |place| place + 1);
            continue;
        }
        out.lines += record.lines;
        if record.is_blank() {
            continue;
        }
        if let Some(reason) = problem_of(&record, layout) {
            out.rows_read += 1;
            out.bad.push((line, BadCell { column: String::new(), value: String::new(), reason }));
            continue;
        }
        layout.place(&record, &mut cells);
        decoder.row(&TextCells { bytes, record: &record, cells: &cells }, split, line, out);
    }
}

/// Why a record of several lines is not one row, if it is not: a quote among them is astray.
fn broken(
    bytes: &[u8],
    range: Range<usize>,
    record: &Record,
    layout: &TextLayout,
    (decoder, split): (&Decoder, Split),
    out: &mut Decoded,
) -> Option<BadReason> {
    match swallowed::holds_rows((bytes, range), record, layout, (decoder, split), out) {
        true => Some(BadReason::OpenQuote { lines: record.lines - 1 }),
        false => problem_of(record, layout),
    }
}

fn problem_of(record: &Record, layout: &TextLayout) -> Option<BadReason> {
    if record.bad_quotes {
        Some(BadReason::Quotes)
    } else if record.cells.len() != layout.slot_of.len() {
        let (found, wanted) = (record.cells.len() as u64, layout.slot_of.len() as u64);
        Some(BadReason::ColumnCount { found, wanted })
    } else {
        None
    }
}

struct TextCells<'a> {
    bytes: &'a [u8],
    record: &'a Record,
    cells: &'a [Cell],
}

impl Cells for TextCells<'_> {
    #[inline]
    fn cell(&self, slot: usize) -> Raw<'_> {
        Raw::text(self.record.bytes(self.bytes, &self.cells[slot]))
    }
}

impl TextLayout {
    /// The cell of every slot; that of a column which the file does not have stays empty.
    #[inline]
    fn place(&self, record: &Record, cells: &mut [Cell]) {
        for (cell, slot) in record.cells.iter().zip(&self.slot_of) {
            if let Some(slot) = *slot {
                cells[slot] = *cell;
            }
        }
    }
}

/// Where the last complete record of `bytes` ends, so that a chunk can be cut there; 0 when none does.
pub(crate) fn cut(bytes: &[u8], delimiter: u8, quotes: bool) -> usize {
    let line_end = |bytes: &[u8]| memchr::memrchr(b'\n', bytes).map(|place| place + 1);
    let mut last = 0;
    let mut at = 0;
    while quotes && let Some(found) = memchr::memchr(b'"', &bytes[at..]) {
        let quote = at + found;
        last = line_end(&bytes[at..quote]).map_or(last, |end| at + end);
        let opens = quote == 0 || bytes[quote - 1] == delimiter || bytes[quote - 1] == b'\n';
        at = if opens { scan::after_quoted(bytes, quote) } else { quote + 1 };
        if at > bytes.len() {
            return last;
        }
    }
    line_end(&bytes[at..]).map_or(last, |end| at + end)
}

/// Where a quote opens that `bytes` never closes.
pub(crate) fn unclosed_quote(bytes: &[u8], delimiter: u8) -> Option<usize> {
    let mut at = 0;
    while let Some(found) = memchr::memchr(b'"', bytes.get(at..)?) {
        let quote = at + found;
        let opens = quote == 0 || bytes[quote - 1] == delimiter || bytes[quote - 1] == b'\n';
        at = if opens { scan::after_quoted(bytes, quote) } else { quote + 1 };
        if at > bytes.len() {
            return Some(quote);
        }
    }
    None
}

#[cfg(test)]
mod tests;
