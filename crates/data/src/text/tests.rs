use proptest::prelude::*;

use super::{
    cut,
    scan::{Record, scan_record},
};

/// The rules of RFC 4180, one character at a time: records, each with its cells and the lines it covers.
fn naive(bytes: &[u8], delimiter: u8) -> Vec<(Vec<Vec<u8>>, u64)> {
    let mut records = Vec::new();
    let (mut cells, mut cell) = (Vec::new(), Vec::new());
    let (mut quoted, mut at_start, mut lines) = (false, true, 1);
    let mut at = 0;
    while at < bytes.len() {
        let byte = bytes[at];
        if quoted {
            if byte == b'"' && bytes.get(at + 1) == Some(&b'"') {
                cell.push(b'"');
                at += 1;
            } else if byte == b'"' {
                quoted = false;
            } else {
                lines += u64::from(byte == b'\n');
                cell.push(byte);
            }
        } else if byte == b'"' && at_start {
            quoted = true;
            at_start = false;
            at += 1;
            continue;
        } else if byte == delimiter || byte == b'\n' {
            cells.push(std::mem::take(&mut cell));
            at_start = true;
            if byte == b'\n' {
                records.push((std::mem::take(&mut cells), lines));
                lines = 1;
            }
            at += 1;
            continue;
        } else {
            cell.push(byte);
        }
        at_start = false;
        at += 1;
    }
    if !cells.is_empty() || !cell.is_empty() || !at_start {
        cells.push(cell);
        records.push((cells, lines));
    }
    records
}

fn scanned(bytes: &[u8], delimiter: u8) -> Vec<(Vec<Vec<u8>>, u64)> {
    let (mut record, mut records, mut at) = (Record::default(), Vec::new(), 0);
    while at < bytes.len() {
        at = scan_record(bytes, at, delimiter, true, &mut record);
        assert!(!record.bad_quotes);
        let cells = record.cells.iter().map(|cell| record.bytes(bytes, cell).to_vec()).collect();
        records.push((cells, record.lines));
    }
    records
}

/// Cells of any length, quoted where they must be, and sometimes where they need not.
fn table() -> impl Strategy<Value = Vec<Vec<(String, bool)>>> {
    let cell = ("[a-z0-9,\"\n é]{0,20}", any::<bool>());
    prop::collection::vec(prop::collection::vec(cell, 1..6), 0..12)
}

fn written(table: &[Vec<(String, bool)>], last_line_ends: bool) -> String {
    let quoted = |(cell, always): &(String, bool)| {
        if *always || cell.contains([',', '"', '\n']) {
            format!("\"{}\"", cell.replace('"', "\"\""))
        } else {
            cell.clone()
        }
    };
    let lines: Vec<String> =
        table.iter().map(|row| row.iter().map(quoted).collect::<Vec<_>>().join(",")).collect();
    let mut text = lines.join("\n");
    if last_line_ends && !text.is_empty() {
        text.push('\n');
    }
    text
}

proptest! {
    #[test]
    fn the_scanner_reads_what_a_plain_reading_of_the_rules_does(table in table(), last_line_ends: bool) {
        let text = written(&table, last_line_ends);
        prop_assert_eq!(scanned(text.as_bytes(), b','), naive(text.as_bytes(), b','));
    }

    /// Cutting anywhere and going on gives the records of the whole, and never cuts inside a quoted cell.
    #[test]
    fn chunks_are_cut_between_records(table in table(), size in 1_usize..60) {
        let text = written(&table, true);
        let bytes = text.as_bytes();
        let (mut records, mut start, mut wanted) = (Vec::new(), 0, size);
        while start < bytes.len() {
            let chunk = &bytes[start..(start + wanted).min(bytes.len())];
            let end = if start + chunk.len() == bytes.len() { chunk.len() } else { cut(chunk, b',', true) };
            if end == 0 {
                wanted *= 2;
                continue;
            }
            records.extend(scanned(&chunk[..end], b','));
            (start, wanted) = (start + end, size);
        }
        prop_assert_eq!(records, naive(bytes, b','));
    }

    #[test]
    fn tab_separated_lines_are_split_at_every_tab(lines in prop::collection::vec("[a-f0-9\t\"-]{0,60}", 0..10)) {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let (mut record, mut at, mut got) = (Record::default(), 0, Vec::new());
        while at < text.len() {
            at = scan_record(text.as_bytes(), at, b'\t', false, &mut record);
            let cells = record.cells.iter().map(|cell| record.bytes(text.as_bytes(), cell));
            got.push(cells.map(|cell| String::from_utf8_lossy(cell).into_owned()).collect::<Vec<_>>());
        }
        let want: Vec<Vec<String>> =
            lines.iter().map(|line| line.split('\t').map(String::from).collect()).collect();
        prop_assert_eq!(got, want);
    }

    #[test]
    fn the_search_for_two_bytes_matches_a_plain_one(bytes in prop::collection::vec(0_u8..6, 0..70), at in 0_usize..80) {
        let start = at.min(bytes.len());
        let want = start + bytes[start..].iter().position(|&byte| byte == 1 || byte == 4).unwrap_or(bytes.len() - start);
        prop_assert_eq!(super::scan::find_either(&bytes, at, 1, 4), want);
    }
}
