//! What a user is told about bad input: every message names the place, the value and what to do.

use campanile_spec::{
    config::DataFiles,
    data::{BadRows, Columns, DataSpec, IdMap, LabelColumn, SplitSpec},
};
use expect_test::{Expect, expect};

use crate::fixture::{Place, criteo, criteo_lines, csv, dense, label, list, read_all, sparse, train_files};

fn hashed() -> DataSpec {
    criteo(|salt| IdMap::Hash { salt })
}

/// Criteo lines with line 3 replaced.
fn with_third_line(edit: impl Fn(&mut Vec<Vec<u8>>)) -> Vec<u8> {
    let text = criteo_lines(5, 11);
    let lines: Vec<Vec<u8>> = text
        .lines()
        .enumerate()
        .map(|(index, line)| {
            let mut cells: Vec<Vec<u8>> = line.split('\t').map(|cell| cell.as_bytes().to_vec()).collect();
            if index == 2 {
                edit(&mut cells);
            }
            cells.join(&b'\t')
        })
        .collect();
    [lines.join(&b'\n'), b"\n".to_vec()].concat()
}

fn check_line(edit: impl Fn(&mut Vec<Vec<u8>>), want: Expect) {
    let place = Place::new();
    let file = place.write("day.tsv", with_third_line(edit));
    want.assert_eq(&place.error(&hashed(), &[file]));
}

#[test]
fn a_line_that_is_cut_off() {
    check_line(
        |cells| cells.truncate(17),
        expect!["day.tsv line 3: 17 columns where 40 are needed; the line may be cut off"],
    );
}

#[test]
fn a_file_that_is_cut_off() {
    let place = Place::new();
    let text = criteo_lines(5, 11);
    let file = place.write("day.tsv", &text[..text.len() - 100]);
    expect!["day.tsv line 5: 29 columns where 40 are needed; the line may be cut off"]
        .assert_eq(&place.error(&hashed(), &[file]));
}

#[test]
fn too_many_columns() {
    check_line(
        |cells| cells.push(b"more".to_vec()),
        expect!["day.tsv line 3: 41 columns where 40 are needed"],
    );
}

#[test]
fn bytes_that_are_not_text() {
    check_line(
        |cells| cells[16] = b"68fd\xff\xfe64".to_vec(),
        expect![[r"day.tsv line 3, column `C3`, value `68fd\xff\xfe64`: not valid UTF-8"]],
    );
}

#[test]
fn an_id_that_is_not_hexadecimal() {
    check_line(
        |cells| cells[39] = b"68fd1e6g".to_vec(),
        expect!["day.tsv line 3, column `C26`, value `68fd1e6g`: not a hexadecimal id of 1 to 8 digits"],
    );
}

#[test]
fn a_label_that_is_neither_0_nor_1() {
    check_line(
        |cells| cells[0] = b"2".to_vec(),
        expect![
            "day.tsv line 3, column `label`, value `2`: a label must be 0 or 1, or the job must say `at_least`"
        ],
    );
    check_line(
        |cells| cells[0].clear(),
        expect!["day.tsv line 3, column `label`, value ``: the value is missing"],
    );
}

#[test]
fn a_count_that_is_not_a_number() {
    check_line(
        |cells| cells[2] = b"many".to_vec(),
        expect!["day.tsv line 3, column `I2`, value `many`: not a number"],
    );
    check_line(
        |cells| cells[13] = b"NaN".to_vec(),
        expect![
            "day.tsv line 3, column `I13`, value `NaN`: not a finite number; leave the cell empty if the value is missing"
        ],
    );
}

#[test]
fn an_id_beyond_its_table() {
    let place = Place::new();
    let file = place.write("rows.csv", "click,item\n1,4\n0,1000\n");
    let columns = Columns {
        labels: vec![label("click")],
        sparse: vec![sparse("item", IdMap::Direct, 1000)],
        ..Columns::default()
    };
    expect!["rows.csv line 3, column `item`, value `1000`: the table has rows 0 to 999; enlarge it or hash the column"]
        .assert_eq(&place.error(&csv(columns), &[file]));
}

#[test]
fn files_that_are_not_there() {
    let place = Place::new();
    let missing = place.path("gone.tsv").display().to_string();
    expect!["data file gone.tsv does not exist"].assert_eq(&place.error(&hashed(), &[missing]));
    let pattern = place.path("day_*.tsv").display().to_string();
    expect!["no file matches the pattern `day_*.tsv`"].assert_eq(&place.error(&hashed(), &[pattern]));
    expect!["no training files: name at least one under `process.data.train`"]
        .assert_eq(&place.error(&hashed(), &[]));
    let empty = place.write("empty.tsv", "");
    expect!["data file empty.tsv is empty"].assert_eq(&place.error(&hashed(), &[empty]));
}

#[test]
fn files_for_splits_that_do_not_read_them() {
    let place = Place::new();
    let file = place.write("day.tsv", criteo_lines(5, 1));
    let files = DataFiles { valid: vec![file.clone()], ..train_files(&[file]) };
    let data = DataSpec { split: SplitSpec::ByRow { valid: 0.1, test: 0.1 }, ..hashed() };
    let error = campanile_data::prepare(&data, &files, &place.options(), &mut |_| ()).unwrap_err();
    expect!["valid files are named, but the split is by row: only a split by file reads them"]
        .assert_eq(&error.to_string());
}

#[test]
fn damaged_gzip_and_zstd() {
    let place = Place::new();
    let text = criteo_lines(2000, 12);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, text.as_bytes()).unwrap();
    let mut gzip = gzip.finish().unwrap();
    let middle = gzip.len() / 2;
    let cut = place.write("cut.gz", &gzip[..middle]);
    expect!["cut.gz: damaged gzip data: incomplete deflate stream"]
        .assert_eq(&place.error(&hashed(), &[cut]));
    let end = gzip.len();
    gzip[end - 6] ^= 1;
    let flipped = place.write("flipped.gz", &gzip);
    expect!["flipped.gz: damaged gzip data: corrupt gzip stream does not have a matching checksum"]
        .assert_eq(&place.error(&hashed(), &[flipped]));
    let zstd = zstd::encode_all(text.as_bytes(), 3).unwrap();
    let cut = place.write("cut.zst", &zstd[..zstd.len() / 2]);
    expect!["cut.zst: damaged zstd data: incomplete frame"].assert_eq(&place.error(&hashed(), &[cut]));
}

#[test]
fn a_csv_column_that_is_not_there() {
    let place = Place::new();
    let file = place.write("rows.csv", "click,price\n1,2\n");
    let columns =
        Columns { labels: vec![label("click")], dense: vec![dense("prise", &[])], ..Columns::default() };
    expect!["rows.csv: there is no column `prise`; the file has `click`, `price`"]
        .assert_eq(&place.error(&csv(columns), &[file]));
}

#[test]
fn a_quote_that_never_closes_and_text_after_one_that_does() {
    let columns = || Columns {
        labels: vec![label("click")],
        sparse: vec![sparse("item", IdMap::Hash { salt: 0 }, 10)],
        ..Columns::default()
    };
    let place = Place::new();
    let after = place.write("after.csv", "click,item\n1,\"a\"b\n");
    expect!["after.csv line 2: text follows a closing quote, or the quote never closes"]
        .assert_eq(&place.error(&csv(columns()), &[after]));
    let open = place.write("open.csv", format!("click,item\n1,x\n0,\"a{}", "\n0,b".repeat(10)));
    expect!["open.csv: the quote that opens in line 3 is never closed; close it, double a quote that is part of a quoted cell, or say `quotes = false` where quotes are characters like others"]
        .assert_eq(&place.error(&csv(columns()), &[open]));
    let long = place.write("long.csv", format!("click,item\n1,x\n0,\"a{}", "\n0,b".repeat(1 << 19)));
    expect!["long.csv: the record that starts in line 3 is longer than 1048576 bytes; is a quote left open?"]
        .assert_eq(&place.error(&csv(columns()), &[long]));
}

#[test]
fn weights_that_do_not_fit_their_ids_or_samples() {
    let place = Place::new();
    let mut items = list("items", IdMap::Hash { salt: 0 }, 10);
    items.weights = Some("strengths".into());
    let columns = Columns {
        labels: vec![label("click")],
        sparse: vec![items],
        sample_weight: Some("weight".into()),
        ..Columns::default()
    };
    let data = csv(columns);
    let file = place.write("a.csv", "click,items,strengths,weight\n1,a|b,0.5,1\n");
    expect!["a.csv line 2, column `strengths`, value `0.5`: 2 ids come with 1 weights"]
        .assert_eq(&place.error(&data, &[file]));
    let file = place.write("b.csv", "click,items,strengths,weight\n1,a|b,0.5|1,-1\n");
    expect!["b.csv line 2, column `weight`, value `-1`: a sample weight must not be negative"]
        .assert_eq(&place.error(&data, &[file]));
    let file = place.write("c.csv", "click,items,strengths,weight\n1,a|b,0.5|x,1\n");
    expect!["c.csv line 2, column `strengths`, value `0.5|x`: not a number"]
        .assert_eq(&place.error(&data, &[file]));
}

#[test]
fn the_first_bad_row_of_a_long_file_is_named_whatever_the_threads() {
    let place = Place::new();
    let mut lines: Vec<String> = criteo_lines(9000, 13).lines().map(String::from).collect();
    lines[6000].replace_range(0..1, "7");
    lines[8000].replace_range(0..1, "8");
    let file = place.write("day.tsv", lines.join("\n"));
    expect![
        "day.tsv line 6001, column `label`, value `7`: a label must be 0 or 1, or the job must say `at_least`"
    ]
    .assert_eq(&place.error(&hashed(), &[file]));
}

#[test]
fn skipped_rows_are_counted_shown_and_limited() {
    let place = Place::new();
    let mut lines: Vec<String> = criteo_lines(3000, 14).lines().map(String::from).collect();
    for (index, line) in lines.iter_mut().enumerate() {
        match index % 300 {
            7 => line.replace_range(0..1, "5"),
            9 => line.truncate(20),
            _ => {}
        }
    }
    let file = place.write("day.tsv", lines.join("\n"));
    let data = DataSpec { bad_rows: BadRows::Skip { rows_max: 20 }, ..hashed() };
    let prepared = place.prepare(&data, std::slice::from_ref(&file)).unwrap();
    assert_eq!(prepared.train.row_count(), 2980);
    assert_eq!(prepared.skipped.total, 20);
    assert_eq!(
        prepared.skipped.by_reason.clone().into_iter().collect::<Vec<_>>(),
        [("column_count".to_string(), 10), ("label".to_string(), 10)]
    );
    let shown: Vec<(u64, &str)> =
        prepared.skipped.examples.iter().map(|row| (row.line, row.reason.name())).collect();
    assert_eq!(
        shown,
        [(8, "label"), (10, "column_count"), (308, "label"), (310, "column_count"), (608, "label")]
    );
    lines.retain(|line| line.starts_with(['0', '1']) && line.len() > 20);
    let good = place.prepare(&hashed(), &[place.write("good.tsv", lines.join("\n"))]).unwrap();
    assert_eq!(read_all(&prepared.train), read_all(&good.train));

    let data = DataSpec { bad_rows: BadRows::Skip { rows_max: 3 }, ..hashed() };
    expect![
        "more than 3 bad rows: column_count 2, label 2; the last one: day.tsv line 310: 10 columns where 40 are needed; the line may be cut off"
    ]
    .assert_eq(&place.error(&data, &[file]));
}

#[test]
fn a_file_without_a_good_row() {
    let place = Place::new();
    let file = place.write("day.tsv", "x\ny\n");
    let data = DataSpec { bad_rows: BadRows::Skip { rows_max: 10 }, ..hashed() };
    expect!["no rows are left for training: 2 rows were read, 2 of them bad"]
        .assert_eq(&place.error(&data, &[file]));
}

#[test]
fn too_little_memory() {
    let place = Place::new();
    let file = place.write("day.tsv", criteo_lines(10, 1));
    let mut options = place.options();
    options.memory_mib = 2;
    let error = campanile_data::prepare(&hashed(), &train_files(&[file]), &options, &mut |_| ()).unwrap_err();
    expect!["prep cannot work in 2 MiB of memory; give it at least 8 MiB"].assert_eq(&error.to_string());
}

#[test]
fn too_many_segments() {
    let place = Place::new();
    let rows: String = (0..4200).map(|row| format!("{},site{row}\n", row % 2)).collect();
    let file = place.write("rows.csv", format!("click,site\n{rows}"));
    let columns = Columns {
        labels: vec![LabelColumn { name: "click".into(), at_least: None, teacher: None }],
        segment: Some("site".into()),
        ..Columns::default()
    };
    expect![
        "column `site` has more than 4096 different segments, the last one `site4096`; choose a coarser one"
    ]
    .assert_eq(&place.error(&csv(columns), &[file]));
}
