//! Rows that a stray quote would swallow.
//!
//! A quote that opens by mistake closes at the next one, perhaps thousands of lines below, and what is between becomes
//! one cell: one row, good or bad, in the place of all of them. Such a record is told from a cell that really has line
//! breaks by its lines: they are rows when they are read by themselves.

use std::ops::Range;

use campanile_spec::data::Split;

use super::{Cell, Record, TextCells, TextLayout, problem_of, scan_record};
use crate::decode::{Decoded, Decoder};

/// Whether the record of several lines in this range of the chunk holds rows of their own below its first line.
///
/// Where the record as a whole cannot be a row, one good row among its lines is enough. Where it can, every line must
/// have the columns of a row besides.
pub(super) fn holds_rows(
    (bytes, range): (&[u8], Range<usize>),
    record: &Record,
    layout: &TextLayout,
    (decoder, split): (&Decoder, Split),
    out: &mut Decoded,
) -> bool {
    let mut cells = vec![Cell::default(); decoder.slots().len()];
    let mut is_whole = problem_of(record, layout).is_none();
    if is_whole {
        layout.place(record, &mut cells);
        is_whole = decoder.accepts(&TextCells { bytes, record, cells: &cells }, split, out);
    }
    let (mut at, mut has_row) = (range.start, false);
    let mut line = Record::default();
    while at < range.end {
        let end = at + memchr::memchr(b'\n', &bytes[at..range.end]).map_or(range.end - at, |place| place + 1);
        read_line(&bytes[..end], at, layout, &mut line);
        let fits = line.cells.len() == layout.slot_of.len();
        if is_whole && !fits && !line.is_blank() {
            return false;
        }
        if fits && !has_row && at > range.start {
            layout.place(&line, &mut cells);
            has_row = decoder.accepts(&TextCells { bytes, record: &line, cells: &cells }, split, out);
        }
        if has_row && !is_whole {
            return true;
        }
        at = end;
    }
    has_row
}

/// Reads one line by itself: with quotes where they are right, otherwise as if they were characters like others.
fn read_line(bytes: &[u8], at: usize, layout: &TextLayout, line: &mut Record) {
    scan_record(bytes, at, layout.delimiter, true, line);
    if line.bad_quotes {
        scan_record(bytes, at, layout.delimiter, false, line);
    }
}
