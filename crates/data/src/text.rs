//! Text rows: Criteo's tab-separated lines and CSV with quotes as in RFC 4180.
//!
//! A chunk starts at a record and ends at one; [`cut`] finds where, [`decode`] walks the same state machine:
//! a quote opens a quoted cell only as the first byte of the cell, two quotes inside it are one, and it may hold
//! line breaks. Blank lines are passed over, `\r\n` counts as a line break.

mod criteo;
mod scan;

use std::path::Path;

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
        let slot_of = place_columns(&names.collect::<Vec<_>>(), decoder.slots(), path)?;
        Ok(TextLayout { delimiter: b'\t', quotes: false, slot_of, fast: criteo::applies(decoder) })
    }

    /// No columns: until the header is read.
    pub fn none() -> TextLayout {
        TextLayout { delimiter: b',', quotes: true, slot_of: Vec::new(), fast: false }
    }

    /// A CSV file's, from its header line.
    pub fn from_header(
        header: &[u8],
        delimiter: u8,
        decoder: &Decoder,
        path: &Path,
    ) -> Result<TextLayout, DataError> {
        let header = header.strip_prefix(b"\xef\xbb\xbf").unwrap_or(header);
        let mut record = Record::default();
        scan_record(header, 0, delimiter, true, &mut record);
        let names: Vec<String> = record
            .cells
            .iter()
            .map(|cell| String::from_utf8_lossy(record.bytes(header, cell)).into_owned())
            .collect();
        let slot_of = place_columns(&names, decoder.slots(), path)?;
        Ok(TextLayout { delimiter, quotes: true, slot_of, fast: false })
    }
}

fn place_columns(names: &[String], slots: &[Slot], path: &Path) -> Result<Vec<Option<usize>>, DataError> {
    let mut slot_of = vec![None; names.len()];
    for (slot, wanted) in slots.iter().enumerate() {
        let Some(column) = names.iter().position(|name| *name == wanted.name) else {
            let found = crate::source::list_names(names);
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
            let (lines, next) = group.take(bytes, at, decoder, &mut out.splits[split as usize]);
            at = next;
            out.lines += lines as u64;
            out.rows_read += lines as u64;
            if lines > 0 {
                continue;
            }
        }
        let line = out.lines;
        at = scan_record(bytes, at, layout.delimiter, layout.quotes, &mut record);
        out.lines += record.lines;
        if record.is_blank() {
            continue;
        }
        if let Some(problem) = problem_of(&record, layout) {
            out.rows_read += 1;
            out.bad.push((line, problem));
            continue;
        }
        for (cell, slot) in record.cells.iter().zip(&layout.slot_of) {
            if let Some(slot) = *slot {
                cells[slot] = *cell;
            }
        }
        decoder.row(&TextCells { bytes, record: &record, cells: &cells }, split, line, out);
    }
}

fn problem_of(record: &Record, layout: &TextLayout) -> Option<BadCell> {
    let reason = if record.bad_quotes {
        BadReason::Quotes
    } else if record.cells.len() != layout.slot_of.len() {
        BadReason::ColumnCount { found: record.cells.len() as u64, wanted: layout.slot_of.len() as u64 }
    } else {
        return None;
    };
    Some(BadCell { column: String::new(), value: String::new(), reason })
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

    fn items(
        &self,
        slot: usize,
        separator: u8,
        visit: impl FnMut(Raw<'_>) -> Result<(), BadReason>,
    ) -> Result<(), BadReason> {
        self.cell(slot).items(separator).try_for_each(visit)
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
