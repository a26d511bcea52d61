//! Parquet: every type and role, nulls and lists, compression, bad columns.

use std::{fs::File, path::Path, sync::Arc};

use campanile_data::Raw;
use campanile_spec::data::{Columns, DataSpec, DenseTransform, IdMap, LabelColumn, SourceSpec, SplitSpec};
use expect_test::expect;
use parquet::{
    basic::{Compression, ZstdLevel},
    data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, FloatType, Int32Type, Int64Type},
    file::{
        properties::WriterProperties,
        writer::{SerializedFileWriter, SerializedRowGroupWriter},
    },
    schema::parser::parse_message_type,
};

use crate::fixture::{Place, criteo_lines, data, dense, label, list, read_all, sparse};

const SCHEMA: &str = "message rows {
    required int32 click;
    optional boolean bought;
    optional double price;
    required float age;
    optional int64 user;
    optional binary city (STRING);
    optional group items (LIST) { repeated group list { optional int64 element; } }
    required group strengths (LIST) { repeated group list { required float element; } }
    required group tags (LIST) { repeated group list { optional binary element (STRING); } }
    required int64 time;
    required int32 small (INTEGER(32, false));
}";

/// Writes the same five rows once per row group.
fn write_rows(path: &Path, compression: Compression, row_groups: usize) {
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
    let mut writer = SerializedFileWriter::new(File::create(path).unwrap(), schema, properties).unwrap();
    for _ in 0..row_groups {
        let mut group = writer.next_row_group().unwrap();
        write_group(&mut group);
        group.close().unwrap();
    }
    writer.close().unwrap();
}

fn write_group(group: &mut SerializedRowGroupWriter<'_, File>) {
    macro_rules! column {
        ($type:ty, $values:expr, $definitions:expr, $repetitions:expr) => {{
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<$type>().write_batch($values, $definitions, $repetitions).unwrap();
            column.close().unwrap();
        }};
    }
    let text = |words: &[&str]| words.iter().map(|word| ByteArray::from(*word)).collect::<Vec<_>>();
    column!(Int32Type, &[1, 0, 0, 1, 0], None, None);
    column!(BoolType, &[true, false, true, false], Some(&[1, 0, 1, 1, 1]), None);
    column!(DoubleType, &[1.5, -2.0, 1e300], Some(&[1, 1, 0, 0, 0]), None);
    column!(FloatType, &[30.0, 20.0, 50.5, 17.0, 99.0], None, None);
    column!(Int64Type, &[7, 7, -1], Some(&[1, 0, 1, 1, 0]), None);
    column!(ByteArrayType, &text(&["Rome", "42", "Oslo"]), Some(&[1, 1, 0, 1, 0]), None);
    // items: [1, null, 3], null, [], [4], [5, 6]
    column!(Int64Type, &[1, 3, 4, 5, 6], Some(&[3, 2, 3, 0, 1, 3, 3, 3]), Some(&[0, 1, 1, 0, 0, 0, 0, 1]));
    // strengths: [.1, .2, .3], [], [], [.4], [.5, .6]
    column!(
        FloatType,
        &[0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
        Some(&[1, 1, 1, 0, 0, 1, 1, 1]),
        Some(&[0, 1, 1, 0, 0, 0, 0, 1])
    );
    // tags: [a, b], [], [null], [a], []
    column!(ByteArrayType, &text(&["a", "b", "a"]), Some(&[2, 2, 0, 1, 2, 0]), Some(&[0, 1, 0, 0, 0, 0]));
    column!(Int64Type, &[100, 101, 102, 103, 104], None, None);
    column!(Int32Type, &[1, 2, -1, 4, 5], None, None);
}

fn columns() -> Columns {
    let mut items = list("items", IdMap::Hash { salt: 1 }, 1000);
    items.weights = Some("strengths".into());
    Columns {
        labels: vec![
            label("click"),
            label("bought"),
            LabelColumn { name: "age".into(), at_least: Some(30.0), teacher: None },
        ],
        dense: vec![dense("age", &[DenseTransform::Log1p])],
        sparse: vec![
            items,
            list("tags", IdMap::Vocabulary { min_count: 1 }, 10),
            sparse("city", IdMap::Hash { salt: 2 }, 1000),
            sparse("user", IdMap::Vocabulary { min_count: 1 }, 10),
            sparse("small", IdMap::Hash { salt: 3 }, 1 << 30),
        ],
        time: Some("time".into()),
        group: Some("user".into()),
        segment: Some("city".into()),
        ..Columns::default()
    }
}

fn parquet_data(columns: Columns) -> DataSpec {
    data(SourceSpec::Parquet, columns)
}

#[test]
fn every_type_and_role_arrives_under_every_compression() {
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::ZSTD(ZstdLevel::default()),
        Compression::GZIP(Default::default()),
        Compression::LZ4_RAW,
    ];
    for codec in codecs {
        let place = Place::new();
        write_rows(&place.path("rows.parquet"), codec, 1);
        let prepared = place
            .prepare(&parquet_data(columns()), &[place.path("rows.parquet").display().to_string()])
            .unwrap();
        let batch = read_all(&prepared.train);
        let labels: Vec<String> = batch.labels.iter().map(f32::to_string).collect();
        assert_eq!(labels.join(" "), "1 0 0 1 0 1 NaN 0 1 0 1 0 1 0 1");
        assert_eq!(batch.dense, [30.0_f32, 20.0, 50.5, 17.0, 99.0].map(f32::ln_1p));
        let item = |id| prepared.transforms.row(0, Raw::Int(id)).unwrap().unwrap();
        let items = batch.bags.feature(0);
        let bags: Vec<&[u32]> = (0..5).map(|row| items.bag(row)).collect();
        assert_eq!(bags, [&[item(1), item(3)][..], &[], &[], &[item(4)], &[item(5), item(6)]]);
        assert_eq!(items.weights, [0.1, 0.3, 0.4, 0.5, 0.6], "a null id goes with its weight");
        let tags = batch.bags.feature(1);
        let bags: Vec<&[u32]> = (0..5).map(|row| tags.bag(row)).collect();
        assert_eq!(bags, [&[1, 2][..], &[], &[], &[1], &[]]);
        let city = |raw| prepared.transforms.row(2, raw).unwrap().unwrap();
        let cities =
            [Raw::Text(b"Rome"), Raw::Int(42), Raw::Missing, Raw::Text(b"Oslo"), Raw::Missing].map(city);
        assert_eq!(batch.bags.feature(2).rows, cities);
        let small = [1, 2, i64::from(u32::MAX), 4, 5].map(|id| prepared.transforms.row(4, Raw::Int(id)));
        assert_eq!(
            batch.bags.feature(4).rows,
            small.map(|row| row.unwrap().unwrap()),
            "unsigned stays unsigned"
        );
        assert_eq!(batch.times, [100, 101, 102, 103, 104]);
        assert_eq!(batch.groups[0], batch.groups[2]);
        assert_eq!(prepared.train.segments(), ["Rome", "42", "", "Oslo"]);
        assert_eq!(batch.segments, [0, 1, 2, 3, 2]);
    }
}

#[test]
fn many_row_groups_and_splits_by_time() {
    let place = Place::new();
    write_rows(&place.path("rows.parquet"), Compression::SNAPPY, 700);
    let mut data = parquet_data(columns());
    data.split = SplitSpec::ByTime { valid_from: 102.into(), test_from: 104.into() };
    let prepared = place.prepare(&data, &[place.path("*.parquet").display().to_string()]).unwrap();
    let (valid, test) = (prepared.valid.unwrap(), prepared.test.unwrap());
    assert_eq!((prepared.train.row_count(), valid.row_count(), test.row_count()), (1400, 1400, 700));
    assert!(read_all(&test).times.iter().all(|&time| time == 104));
}

#[test]
fn bad_columns_and_values_are_named() {
    let place = Place::new();
    write_rows(&place.path("rows.parquet"), Compression::SNAPPY, 1);
    let file = place.path("rows.parquet").display().to_string();
    let error = |columns: Columns| place.error(&parquet_data(columns), std::slice::from_ref(&file));
    let clicks = || Columns { labels: vec![label("click")], ..Columns::default() };
    expect![
        "rows.parquet: there is no column `cost`; the file has `click`, `bought`, `price`, `age`, `user`, `city`, `items`, `strengths`, `tags`, `time` and 1 more"
    ]
    .assert_eq(&error(Columns { dense: vec![dense("cost", &[])], ..clicks() }));
    expect!["rows.parquet: column `city` is string, which cannot be used as a dense input; use an integer, float or boolean column"]
        .assert_eq(&error(Columns { dense: vec![dense("city", &[])], ..clicks() }));
    expect!["rows.parquet: column `items` is list of int64, which cannot be used as an id; use an integer or string column, or declare the column a list"]
        .assert_eq(&error(Columns { sparse: vec![sparse("items", IdMap::Direct, 10)], ..clicks() }));
    expect!["rows.parquet: column `age` is float, which cannot be used as a time; use an integer or timestamp column"]
        .assert_eq(&error(Columns { time: Some("age".into()), ..clicks() }));
    expect!["rows.parquet row 2, column `price`, value `-2`: a sample weight must not be negative"]
        .assert_eq(&error(Columns { sample_weight: Some("price".into()), ..clicks() }));
    expect!["rows.parquet row 2, column `user`, value ``: the value is missing"]
        .assert_eq(&error(Columns { time: Some("user".into()), ..clicks() }));
    expect!["rows.parquet row 4, column `user`, value `-1`: the table has rows 0 to 9; enlarge it or hash the column"]
        .assert_eq(&error(Columns { sparse: vec![sparse("user", IdMap::Direct, 10)], ..clicks() }));
}

#[test]
fn numbers_that_are_not_finite_are_bad_rows() {
    let place = Place::new();
    let schema =
        Arc::new(parse_message_type("message rows { required int32 click; required float x; }").unwrap());
    let file = File::create(place.path("rows.parquet")).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int32Type>().write_batch(&[0, 1], None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<FloatType>().write_batch(&[0.5, f32::NAN], None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    let columns =
        Columns { labels: vec![label("click")], dense: vec![dense("x", &[])], ..Columns::default() };
    expect!["rows.parquet row 2, column `x`, value `NaN`: not a finite number; leave the cell empty if the value is missing"]
        .assert_eq(&place.error(&parquet_data(columns), &[place.path("rows.parquet").display().to_string()]));
}

#[test]
fn files_that_are_not_parquet_or_are_cut_off() {
    let place = Place::new();
    let columns = Columns { labels: vec![label("click")], ..Columns::default() };
    let text = place.write("text.parquet", criteo_lines(10, 1));
    let error = place.error(&parquet_data(columns.clone()), &[text]);
    assert!(error.starts_with("text.parquet: damaged Parquet data: "), "{error}");
    write_rows(&place.path("rows.parquet"), Compression::SNAPPY, 1);
    let bytes = std::fs::read(place.path("rows.parquet")).unwrap();
    let cut = place.write("cut.parquet", &bytes[..bytes.len() - 10]);
    let error = place.error(&parquet_data(columns), &[cut]);
    assert!(error.starts_with("cut.parquet: damaged Parquet data: "), "{error}");
}

#[test]
fn a_time_of_day_is_refused_as_a_time() {
    let place = Place::new();
    let schema = "message rows { required int32 click; required int64 at (TIME(MICROS, true)); }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let file = File::create(place.path("rows.parquet")).unwrap();
    SerializedFileWriter::new(file, schema, Arc::default()).unwrap().close().unwrap();
    let columns = Columns { labels: vec![label("click")], time: Some("at".into()), ..Columns::default() };
    let error = place.error(&parquet_data(columns), &[place.path("rows.parquet").display().to_string()]);
    assert!(error.contains("column `at` is time of day, which cannot be used as a time"), "{error}");
}
