//! Quotes that are astray: what they would swallow is kept or counted, never lost in silence.

use campanile_spec::data::{BadRows, Columns, DataSpec, IdMap, SourceSpec};

use crate::fixture::{Place, csv, dense, label, read_all, sparse};

fn job(bad_rows: BadRows) -> DataSpec {
    let columns = Columns {
        labels: vec![label("click")],
        dense: vec![dense("price", &[])],
        sparse: vec![sparse("name", IdMap::Hash { salt: 0 }, 1 << 30)],
        ..Columns::default()
    };
    DataSpec { bad_rows, ..csv(columns) }
}

/// Rows of which those at the given places have another name.
fn rows(count: usize, odd: &[(usize, &str)]) -> String {
    let mut text = String::from("click,name,note,price\n");
    for row in 0..count {
        let name = odd.iter().find(|(place, _)| *place == row).map_or("pipe", |(_, name)| name);
        text += &format!("{},{name},x,{row}\n", row % 2);
    }
    text
}

#[test]
fn a_stray_quote_costs_its_own_row_and_no_other() {
    let place = Place::new();
    // It closes thousands of rows below, at a quote that another cell begins with, or ends with.
    for (name, closing) in [("begins", "\"5 inch\""), ("ends", "5\"")] {
        let file = place.write(name, rows(5000, &[(10, "\"5"), (3000, closing)]));
        let error = place.error(&job(BadRows::Fail), std::slice::from_ref(&file));
        assert!(
            error.starts_with(&format!("{name} line 12: a quote that opens here closes 2990 lines")),
            "{error}"
        );
        let prepared = place.prepare(&job(BadRows::Skip { rows_max: 9 }), &[file]).unwrap();
        assert_eq!((prepared.train.row_count(), prepared.skipped.total), (4999, 1));
        assert_eq!(
            prepared.skipped.by_reason.clone().into_iter().collect::<Vec<_>>(),
            [("quotes".to_owned(), 1)]
        );
        let batch = read_all(&prepared.train);
        assert_eq!((batch.dense[9], batch.dense[10], batch.dense[4998]), (9.0, 11.0, 4999.0));
    }
}

#[test]
fn cells_with_line_breaks_are_still_one_cell() {
    let place = Place::new();
    let text = "click,name,note,price\n1,\"a\nb\nc\",\"long, and\nbroken\",1\n0,d,\"e\n\",2\n";
    let file = place.write("rows.csv", text);
    let batch = read_all(&place.prepare(&job(BadRows::Fail), &[file]).unwrap().train);
    assert_eq!((batch.labels, batch.dense), (vec![1.0, 0.0], vec![1.0, 2.0]));
}

#[test]
fn a_broken_record_loses_its_first_line_only() {
    let place = Place::new();
    // Text after the closing quote, two lines below: every line is counted, and the rows after them are kept.
    let file = place.write("rows.csv", "click,name,note,price\n1,\"a\nb\"c,x,1\n0,d,x,2\n");
    let prepared = place.prepare(&job(BadRows::Skip { rows_max: 9 }), &[file]).unwrap();
    assert_eq!((prepared.train.row_count(), prepared.skipped.total), (1, 2));
    let lines: Vec<u64> = prepared.skipped.examples.iter().map(|row| row.line).collect();
    assert_eq!(lines, [2, 3]);
}

#[test]
fn without_quotes_a_quote_is_a_character() {
    let place = Place::new();
    let file = place.write("rows.csv", rows(100, &[(10, "\"5"), (20, "5\"")]));
    let mut data = job(BadRows::Fail);
    data.source = SourceSpec::Csv { delimiter: ',', quotes: false };
    let prepared = place.prepare(&data, &[file]).unwrap();
    let batch = read_all(&prepared.train);
    assert_eq!(batch.sample_count, 100);
    let name = |raw: &[u8]| prepared.transforms.row(0, campanile_data::Raw::Text(raw)).unwrap().unwrap();
    assert_eq!((batch.bags.rows()[10], batch.bags.rows()[20]), (name(b"\"5"), name(b"5\"")));
}
