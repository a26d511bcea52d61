//! One record of text, cut into cells.

/// A cell: bytes of the chunk, or of the record's scratch where quotes had to be taken out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    start: u32,
    end: u32,
    in_scratch: bool,
}

/// The cells of a record; reused from record to record.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub cells: Vec<Cell>,
    /// Lines that the record covers: more than one where a quoted cell holds line breaks.
    pub lines: u64,
    /// Text after a closing quote, or a quote that never closes.
    pub bad_quotes: bool,
    scratch: Vec<u8>,
    quoted: bool,
}

impl Record {
    /// The bytes of a cell.
    #[inline]
    pub fn bytes<'a>(&'a self, chunk: &'a [u8], cell: &Cell) -> &'a [u8] {
        let range = cell.start as usize..cell.end as usize;
        if cell.in_scratch { &self.scratch[range] } else { &chunk[range] }
    }

    /// A line with nothing in it.
    pub fn is_blank(&self) -> bool {
        matches!(self.cells[..], [cell] if cell.start == cell.end) && !self.quoted
    }
}

/// Cuts the record that starts at `at` into cells, and returns where the next one starts.
pub(crate) fn scan_record(
    bytes: &[u8],
    at: usize,
    delimiter: u8,
    quotes: bool,
    record: &mut Record,
) -> usize {
    record.cells.clear();
    record.scratch.clear();
    record.lines = 1;
    (record.bad_quotes, record.quoted) = (false, false);
    let mut at = at;
    loop {
        let (cell, end) = if quotes && bytes.get(at) == Some(&b'"') {
            quoted_cell(bytes, at, delimiter, record)
        } else {
            let end = find_either(bytes, at, delimiter, b'\n');
            (Cell { start: at as u32, end: end as u32, in_scratch: false }, end)
        };
        record.cells.push(cell);
        if bytes.get(end) == Some(&delimiter) {
            at = end + 1;
            continue;
        }
        if let Some(last) = record.cells.last_mut()
            && !last.in_scratch
            && last.end as usize == end
            && last.end > last.start
            && bytes[last.end as usize - 1] == b'\r'
        {
            last.end -= 1;
        }
        return (end + 1).min(bytes.len());
    }
}

/// A cell that starts with a quote, and where its delimiter or line end is.
fn quoted_cell(bytes: &[u8], open: usize, delimiter: u8, record: &mut Record) -> (Cell, usize) {
    record.quoted = true;
    let after = after_quoted(bytes, open);
    if after > bytes.len() {
        record.bad_quotes = true;
        record.lines += count_lines(&bytes[open..]);
        return (Cell::default(), bytes.len());
    }
    let inside = &bytes[open + 1..after - 1];
    record.lines += count_lines(inside);
    let end = find_either(bytes, after, delimiter, b'\n');
    if !matches!(bytes[after..end], [] | [b'\r']) {
        record.bad_quotes = true;
    }
    if memchr::memchr(b'"', inside).is_none() {
        return (Cell { start: open as u32 + 1, end: after as u32 - 1, in_scratch: false }, end);
    }
    let start = record.scratch.len() as u32;
    let mut rest = inside;
    // Each quote inside is one of a pair; the first of the pair is kept.
    while let Some(quote) = memchr::memchr(b'"', rest) {
        record.scratch.extend_from_slice(&rest[..=quote]);
        rest = &rest[(quote + 2).min(rest.len())..];
    }
    record.scratch.extend_from_slice(rest);
    (Cell { start, end: record.scratch.len() as u32, in_scratch: true }, end)
}

fn count_lines(bytes: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', bytes).count() as u64
}

/// The place after the quote that closes the one at `open`; beyond the end when none does.
pub(crate) fn after_quoted(bytes: &[u8], open: usize) -> usize {
    let mut at = open + 1;
    while let Some(found) = memchr::memchr(b'"', bytes.get(at..).unwrap_or_default()) {
        let quote = at + found;
        if bytes.get(quote + 1) != Some(&b'"') {
            return quote + 1;
        }
        at = quote + 2;
    }
    bytes.len() + 1
}

/// The first place at or after `at` with one of two bytes, or the end: eight bytes at a time, because cells are
/// short and a call to a general search costs more than the search.
#[inline]
pub(crate) fn find_either(bytes: &[u8], at: usize, first: u8, second: u8) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const TOPS: u64 = 0x8080_8080_8080_8080;
    let (first_everywhere, second_everywhere) = (ONES * u64::from(first), ONES * u64::from(second));
    // The lowest set bit marks the first zero byte; higher marks may be false, and are not looked at.
    let zero_bytes = |word: u64| word.wrapping_sub(ONES) & !word & TOPS;
    let mut at = at;
    while let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*word);
        let found = zero_bytes(word ^ first_everywhere) | zero_bytes(word ^ second_everywhere);
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let rest = bytes.get(at..).unwrap_or_default();
    at.min(bytes.len()) + rest.iter().position(|&byte| byte == first || byte == second).unwrap_or(rest.len())
}
