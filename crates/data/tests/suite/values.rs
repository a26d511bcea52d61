//! What cells mean, whatever file they are in; and what is said of the rows as a whole.

use std::{fs::File, sync::Arc};

use campanile_data::{LabelCounts, Prepared, Raw};
use campanile_spec::{
    config::DataFiles,
    data::{BadRows, Columns, DataSpec, DenseTransform, IdMap, Keep, LabelColumn, SourceSpec, SplitSpec},
    moment::TimeUnit,
};
use parquet::{
    data_type::{
        BoolType, ByteArray, ByteArrayType, DoubleType, FixedLenByteArray, FixedLenByteArrayType, FloatType,
        Int32Type, Int64Type, Int96, Int96Type,
    },
    file::writer::{SerializedFileWriter, SerializedRowGroupWriter},
    schema::parser::parse_message_type,
};

use crate::fixture::{Place, csv, data, dense, label, list, read_all, sparse, train_files};

fn clicks() -> Columns {
    Columns { labels: vec![label("click")], ..Columns::default() }
}

/// Writes one row group of a schema.
fn write(
    place: &Place,
    name: &str,
    schema: &str,
    fill: impl FnOnce(&mut SerializedRowGroupWriter<'_, File>),
) -> String {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let file = File::create(place.path(name)).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    fill(&mut group);
    group.close().unwrap();
    writer.close().unwrap();
    place.path(name).display().to_string()
}

macro_rules! column {
    ($group:expr, $type:ty, $values:expr) => {{
        let mut column = $group.next_column().unwrap().unwrap();
        column.typed::<$type>().write_batch($values, None, None).unwrap();
        column.close().unwrap();
    }};
}

/// Everything that a batch has, bit by bit.
fn content(prepared: &Prepared) -> (Vec<u32>, Vec<u32>, Vec<u32>, Vec<i64>) {
    let batch = read_all(&prepared.train);
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
    (bits(&batch.labels), bits(&batch.dense), batch.bags.rows().to_vec(), batch.times)
}

fn fixed(values: &[&[u8]]) -> Vec<FixedLenByteArray> {
    values.iter().map(|value| FixedLenByteArray::from(value.to_vec())).collect()
}

#[test]
fn types_of_parquet_mean_what_their_text_means() {
    let place = Place::new();
    let schema = "message rows {
        required boolean click;
        required int64 cents (DECIMAL(18, 2));
        required fixed_len_byte_array(3) wide (DECIMAL(6, 1));
        required fixed_len_byte_array(2) half (FLOAT16);
        required fixed_len_byte_array(16) session (UUID);
        required fixed_len_byte_array(4) digest;
        required int64 account (INTEGER(64, false));
        required int96 at;
        required float ratio;
        required binary tags (STRING);
    }";
    let uuid: Vec<u8> = (0..16).collect();
    let parquet = write(&place, "rows.parquet", schema, |group| {
        column!(group, BoolType, &[true, false, true]);
        column!(group, Int64Type, &[4250, -5, 700]);
        column!(group, FixedLenByteArrayType, &fixed(&[&[0, 0, 15], &[0xff, 0xff, 0xf6], &[0, 0, 0]]));
        // 0.7, -2 and 0.1 in 16 bits.
        column!(group, FixedLenByteArrayType, &fixed(&[&[0x9a, 0x39], &[0, 0xc0], &[0x66, 0x2e]]));
        column!(group, FixedLenByteArrayType, &fixed(&[&uuid, &[255; 16], &uuid]));
        column!(group, FixedLenByteArrayType, &fixed(&[&[0xde, 0xad, 0, 1], &[0; 4], &[1, 2, 3, 4]]));
        column!(group, Int64Type, &[-1, 7, i64::MIN]);
        let times = [0, 1, 2].map(|day| {
            let mut time = Int96::new();
            time.set_data(5, 0, 2_440_588 + day);
            time
        });
        column!(group, Int96Type, &times);
        column!(group, FloatType, &[0.7, 1e-7, 16_777_216.0]);
        column!(group, ByteArrayType, &["a | b", "NA", "c||7.0"].map(ByteArray::from));
    });
    let text = "click,cents,wide,half,session,digest,account,at,ratio,tags\n\
        true,42.50,1.5,0.7,00010203-0405-0607-0809-0a0b0c0d0e0f,dead0001,18446744073709551615,5,0.7,a|b\n\
        0,-0.05,-1.0,-2.0,ffffffff-ffff-ffff-ffff-ffffffffffff,00000000,7.0,86400000000005,1e-07,\n\
        True,7.00,0,0.1,00010203-0405-0607-0809-0a0b0c0d0e0f,01020304,9223372036854775808,172800000000005,16777216.0,c|7\n";
    let text = place.write("rows.csv", text);
    let standardised = &[DenseTransform::Standardise];
    let id = |name: &str| sparse(name, IdMap::Hash { salt: 7 }, 1 << 30);
    let columns = Columns {
        dense: ["cents", "wide", "half", "ratio", "account"].map(|name| dense(name, standardised)).to_vec(),
        sparse: vec![
            id("cents"),
            id("half"),
            id("session"),
            id("digest"),
            id("account"),
            id("ratio"),
            list("tags", IdMap::Hash { salt: 1 }, 1 << 30),
            sparse("half", IdMap::Bucketise { boundaries: vec![0.1, 0.7] }, 3),
        ],
        time: Some("at".into()),
        missing_values: vec!["NA".into()],
        ..clicks()
    };
    let of_parquet = place.prepare(&data(SourceSpec::Parquet, columns.clone()), &[parquet]).unwrap();
    let of_text = place.prepare(&csv(columns), &[text]).unwrap();
    assert_eq!(content(&of_parquet), content(&of_text));
    assert_eq!(of_parquet.transforms.fingerprint(), of_text.transforms.fingerprint());
    // And what a request asks for is the same row.
    let account = of_text.transforms.row(4, Raw::unsigned(u64::MAX));
    assert_eq!(Ok(Some(content(&of_text).2[4 * 3])), account);
}

#[test]
fn times_of_all_files_count_the_same() {
    let place = Place::new();
    let schema = |at: &str| format!("message rows {{ required int32 click; required {at}; }}");
    let file = |name: &str, at: &str, times: &[i64]| {
        write(&place, name, &schema(at), |group| {
            column!(group, Int32Type, &[1, 0]);
            column!(group, Int64Type, times);
        })
    };
    let seconds = file("a", "int64 at", &[1, 3]);
    let millis = file("b", "int64 at (TIMESTAMP(MILLIS, true))", &[1_999, 4_000]);
    let nanos = file("c", "int64 at (TIMESTAMP(NANOS, true))", &[2_000_000_001, 5_000_000_000]);
    let columns = Columns { dense: vec![], sparse: vec![], time: Some("at".into()), ..clicks() };
    let error = place.error(&data(SourceSpec::Parquet, columns.clone()), &[millis.clone(), nanos.clone()]);
    assert_eq!(
        error,
        "column `at` is milliseconds in b and nanoseconds in c: give all files one unit, or say run.data.time_unit, to \
         which all are converted"
    );
    let with_unit = Columns { time_unit: Some(TimeUnit::Seconds), ..columns };
    let job = DataSpec {
        split: SplitSpec::ByTime { valid_from: 4.into(), test_from: 5.into() },
        ..data(SourceSpec::Parquet, with_unit)
    };
    let prepared = place.prepare(&job, &[seconds, millis, nanos]).unwrap();
    assert_eq!(read_all(&prepared.train).times, [1, 3, 1, 2]);
    assert_eq!(read_all(&prepared.valid.unwrap()).times, [4]);
    // As a number it would be another one in every file.
    let columns = Columns { dense: vec![dense("at", &[])], ..job.columns };
    let files = ["a", "b"].map(|name| place.path(name).display().to_string());
    let error = place.error(&data(SourceSpec::Parquet, columns), &files);
    assert!(error.ends_with("in a and milliseconds in b: give all files one unit"), "{error}");
}

#[test]
fn a_column_that_older_files_do_not_have() {
    let place = Place::new();
    let old = place.write("old.csv", "click,age\n1,30\n");
    let new = place.write("new.csv", "click,device,age\n0,phone,31\n");
    let columns = Columns {
        dense: vec![dense("age", &[])],
        sparse: vec![sparse("device", IdMap::Hash { salt: 0 }, 1 << 30)],
        ..clicks()
    };
    let error = place.error(&csv(columns.clone()), &[old.clone(), new.clone()]);
    assert_eq!(error, "old.csv: there is no column `device`; the file has `click`, `age`");
    let columns = Columns { optional: vec!["device".into()], ..columns };
    let prepared = place.prepare(&csv(columns.clone()), &[old, new]).unwrap();
    let row = |raw| prepared.transforms.row(0, raw).unwrap().unwrap();
    assert_eq!(read_all(&prepared.train).bags.rows(), [row(Raw::Missing), row(Raw::Text(b"phone"))]);
    assert_eq!(
        prepared.observed.missing.iter().map(|(name, count)| (&**name, *count)).collect::<Vec<_>>(),
        [("device", 1)]
    );
    let parquet = write(
        &place,
        "old.parquet",
        "message rows { required int32 click; required double age; }",
        |group| {
            column!(group, Int32Type, &[1]);
            column!(group, DoubleType, &[30.0]);
        },
    );
    let prepared = place.prepare(&data(SourceSpec::Parquet, columns), &[parquet]).unwrap();
    assert_eq!(read_all(&prepared.train).bags.rows(), [row(Raw::Missing)]);
}

#[test]
fn the_last_ids_of_a_list_can_be_kept() {
    let place = Place::new();
    let file = place.write("rows.csv", "click,items,w\n1,1|2||4|5,.1|.2|.3|.4|.5\n0,6,1\n1,,\n");
    let rows = |keep| {
        let mut items = list("items", IdMap::Direct, 10);
        (items.bag_max, items.keep, items.weights) = (2, keep, Some("w".into()));
        let prepared =
            place.prepare(&csv(Columns { sparse: vec![items], ..clicks() }), std::slice::from_ref(&file));
        let prepared = prepared.unwrap();
        let batch = read_all(&prepared.train);
        assert_eq!(prepared.observed.cut_lists["items"], 1);
        assert_eq!(prepared.observed.missing["items"], 1);
        let feature = batch.bags.feature(0);
        (feature.rows.to_vec(), feature.weights.to_vec())
    };
    assert_eq!(rows(Keep::First), (vec![1, 2, 6], vec![0.1, 0.2, 1.0]));
    assert_eq!(rows(Keep::Last), (vec![4, 5, 6], vec![0.4, 0.5, 1.0]));
}

#[test]
fn absent_labels_and_missing_values_are_counted() {
    let place = Place::new();
    let file = place.write("rows.csv", "click,age,city,at\n1,NA,Rome,5\n,30,NA,9\n0,,NA,7\nx,1,Rome,1\n");
    let columns = Columns {
        dense: vec![dense("age", &[])],
        sparse: vec![sparse("city", IdMap::Hash { salt: 0 }, 9)],
        time: Some("at".into()),
        missing_values: vec!["NA".into()],
        ..clicks()
    };
    let job = DataSpec { bad_rows: BadRows::Skip { rows_max: 1 }, ..csv(columns) };
    let seen = place.prepare(&job, &[file]).unwrap().observed;
    assert_eq!((seen.rows, seen.times), (3, Some((5, 9))));
    assert_eq!(seen.labels["click"], LabelCounts { positive: 1, negative: 1, absent: 1 });
    assert_eq!((seen.missing["age"], seen.missing["city"]), (2, 2));
}

#[test]
fn a_label_of_one_class_is_refused() {
    let place = Place::new();
    let check = |name: &str, rows: &str, split: SplitSpec| {
        let file = place.write(name, format!("click,age\n{rows}"));
        let columns = Columns { dense: vec![dense("age", &[])], ..clicks() };
        let job = DataSpec { split, ..csv(columns) };
        let files = train_files(&[file]);
        let prepared = campanile_data::prepare(&job, &files, &place.options(), &mut |_| ()).unwrap();
        prepared.check_labels(&job, &files).map_err(|error| error.to_string())
    };
    assert_eq!(check("both", "1,2\n0,3\n", SplitSpec::ByFile), Ok(()));
    for (name, rows, said) in [
        ("positive", "1,2\n,3\n1,4\n", "`click` is 1 in all of the 3 rows to train on that have one"),
        ("negative", "0,2\n0,3\n", "`click` is 0 in all of the 2 rows to train on:"),
        ("absent", ",2\n,3\n", "`click` is absent in all of the 2 rows to train on:"),
    ] {
        let error = check(name, rows, SplitSpec::ByFile).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
    // The other class is in the rows that are held out.
    let split = SplitSpec::ByRow { valid: 0.0, test: 0.5 };
    assert!(check("halves", "1,2\n1,3\n0,1\n0,2\n", split).is_err());
    // A teacher's words are enough.
    let file = place.write("taught", "click,age,logit\n,2,0.5\n");
    let labels = vec![LabelColumn { name: "click".into(), at_least: None, teacher: Some("logit".into()) }];
    let job = csv(Columns { labels, dense: vec![dense("age", &[])], ..Columns::default() });
    let files = train_files(&[file]);
    let prepared = campanile_data::prepare(&job, &files, &place.options(), &mut |_| ()).unwrap();
    assert!(prepared.check_labels(&job, &files).is_ok());
}

#[test]
fn a_split_that_holds_nothing_out_says_so() {
    let place = Place::new();
    let file = place.write("rows.csv", "click,at\n1,100\n0,200\n");
    let columns = Columns { time: Some("at".into()), ..clicks() };
    let job = |split| DataSpec { split, ..csv(columns.clone()) };
    let by_time =
        |valid: i64, test: i64| job(SplitSpec::ByTime { valid_from: valid.into(), test_from: test.into() });
    let error = place.error(&by_time(100_000, 200_000), std::slice::from_ref(&file));
    assert_eq!(
        error,
        "the split by time holds no row out: the times of `at` are from 100 to 200, valid_from is 100000 and test_from \
         200000; do they count the same unit? Without held-out rows, say split = \"by_file\""
    );
    let error = place.error(&by_time(1, 2), std::slice::from_ref(&file));
    assert!(
        error
            .starts_with("no rows are left for training: 2 rows were read, 0 of them bad; the times of `at`"),
        "{error}"
    );
    let warnings = |job: &DataSpec| place.prepare(job, std::slice::from_ref(&file)).unwrap().warnings;
    assert_eq!(
        warnings(&by_time(200, 300)),
        ["the test split is empty: no row is at or after 300; the times are from 100 to 200"]
    );
    assert_eq!(warnings(&by_time(200, 200)), [""; 0]);
    assert_eq!(
        warnings(&job(SplitSpec::ByRow { valid: 0.1, test: 0.5 })),
        ["the validation split is empty: a share of 0.1 of 2 rows is none"]
    );
    let valid = place.write("valid.csv", "click,at\nx,1\n");
    let files = DataFiles { valid: vec![valid], ..train_files(std::slice::from_ref(&file)) };
    let job = DataSpec { bad_rows: BadRows::Skip { rows_max: 1 }, ..job(SplitSpec::ByFile) };
    let prepared = campanile_data::prepare(&job, &files, &place.options(), &mut |_| ()).unwrap();
    assert_eq!(
        prepared.warnings,
        ["the validation split is empty: the files of process.data.valid have no good row"]
    );
}

#[test]
fn files_that_are_no_text_and_other_delimiters_are_told() {
    let place = Place::new();
    let columns = || Columns { dense: vec![dense("age", &[])], ..clicks() };
    let noise: Vec<u8> = (0..4000_u32).map(|byte| (byte.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let error = place.error(&csv(columns()), &[place.write("noise.csv.gz", noise)]);
    assert_eq!(
        error,
        "noise.csv.gz is not text: its first line is not UTF-8, and it is neither gzip nor zstd; is it damaged, or \
         compressed otherwise?"
    );
    let error = place.error(&csv(columns()), &[place.write("rows.csv", b"PAR1\x15\x04\x15")]);
    assert_eq!(error, "rows.csv is not text: it is a Parquet file; say kind = \"parquet\"");
    let error = place.error(&csv(columns()), &[place.write("semicolons.csv", "click;age;a,b\n1;2;3\n")]);
    assert!(
        error.starts_with("semicolons.csv: there is no column `click`; the file has `click;age;a`"),
        "{error}"
    );
    let error = place.error(&csv(columns()), &[place.write("tabs.csv", "click\tage\n1\t2\n")]);
    assert_eq!(
        error,
        "tabs.csv: there is no column `click`; the file has `click\\tage` as its only column; is the delimiter right? Try \
         delimiter = \"\\t\""
    );
}

#[test]
fn a_weight_beyond_sense_is_a_bad_row() {
    let place = Place::new();
    let mut items = list("items", IdMap::Hash { salt: 0 }, 10);
    items.weights = Some("w".into());
    let columns = Columns { sparse: vec![items], sample_weight: Some("s".into()), ..clicks() };
    for (name, row, column) in [("a.csv", "1,a|b,1|3e38,1", "w"), ("b.csv", "1,a,1,1e30", "s")] {
        let file = place.write(name, format!("click,items,w,s\n{row}\n"));
        let error = place.error(&csv(columns.clone()), &[file]);
        assert!(error.starts_with(&format!("{name} line 2, column `{column}`")), "{error}");
        assert!(error.ends_with("a weight must be from -1000000000 to 1000000000"), "{error}");
    }
}

#[test]
fn nan_in_a_label_or_a_teacher_is_a_bad_row() {
    let place = Place::new();
    let labels =
        vec![LabelColumn { name: "rating".into(), at_least: Some(4.0), teacher: Some("logit".into()) }];
    let columns = Columns {
        labels,
        teacher_delay: Some("age".into()),
        dense: vec![dense("x", &[])],
        ..Columns::default()
    };
    for (row, column) in [("nan,0.5,1,1", "rating"), ("5,NaN,1,1", "logit"), ("5,0.5,inf,1", "age")] {
        let file = place.write(&format!("{column}.csv"), format!("rating,logit,age,x\n{row}\n"));
        let error = place.error(&csv(columns.clone()), &[file]);
        assert!(
            error.contains(&format!("column `{column}`")) && error.contains("not a finite number"),
            "{error}"
        );
    }
}
