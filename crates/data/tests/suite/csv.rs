//! CSV with every role: several labels, lists with weights, times, groups, segments.

use campanile_data::Raw;
use campanile_spec::data::{
    BadRows, BagShape, Columns, DataSpec, DenseTransform, IdMap, LabelColumn, SourceSpec,
};

use crate::fixture::{Place, csv, dense, label, list, read_all, sparse};

const ROWS: &str = "\
user,click,rating,price,items,strengths,weight,time,site,age
anna,1,4.5,10,a|b||c,1|2|9|3,0.5,100,\"home, sweet\",33
bob,0,2,,\"x\",0.25,2,101,shop,
\"anna\",1,,-2.5,,,1,102,\"home, sweet\",70
";

fn columns() -> Columns {
    Columns {
        labels: vec![
            label("click"),
            LabelColumn { name: "rating".into(), at_least: Some(4.0), teacher: None },
        ],
        dense: vec![dense("price", &[DenseTransform::Clip { min: -1.0, max: 8.0 }]), dense("time", &[])],
        sparse: vec![
            list("items", IdMap::Hash { salt: 1 }, 50),
            sparse("user", IdMap::Vocabulary { min_count: 2 }, 10),
            sparse("age", IdMap::Bucketise { boundaries: vec![18.0, 40.0, 65.0] }, 4),
        ],
        sample_weight: Some("weight".into()),
        time: Some("time".into()),
        group: Some("user".into()),
        segment: Some("site".into()),
        ..Columns::default()
    }
}

#[test]
fn every_role_arrives() {
    let place = Place::new();
    let mut data = csv(columns());
    data.columns.sparse[0].weights = Some("strengths".into());
    let prepared = place.prepare(&data, &[place.write("rows.csv", ROWS)]).unwrap();
    let batch = read_all(&prepared.train);
    assert_eq!(batch.sample_count, 3);
    assert_eq!(batch.labels[..5], [1.0, 0.0, 1.0, 1.0, 0.0]);
    assert!(batch.labels[5].is_nan(), "an empty label is absent");
    assert_eq!(batch.dense, [8.0, 100.0, 0.0, 101.0, -1.0, 102.0]);
    assert_eq!(batch.weights, [0.5, 2.0, 1.0]);
    assert_eq!(batch.times, [100, 101, 102]);
    assert_eq!((batch.groups[0], batch.groups[0] == batch.groups[1]), (batch.groups[2], false));
    assert_eq!(batch.segments, [0, 1, 0]);
    assert_eq!(prepared.train.segments(), ["home, sweet", "shop"]);
    let id = |text: &str| prepared.transforms.row(0, Raw::Text(text.as_bytes())).unwrap().unwrap();
    let items = batch.bags.feature(0);
    assert_eq!(items.bag(0), [id("a"), id("b"), id("c")], "an empty item is left out");
    assert_eq!(items.weights[items.range(0)], [1.0, 2.0, 3.0], "and its weight with it");
    assert_eq!((items.bag(1), items.bag(2)), (&[id("x")][..], &[][..]));
    assert_eq!(items.weights[items.range(1)], [0.25]);
    let users = batch.bags.feature(1);
    assert_eq!([users.bag(0), users.bag(1), users.bag(2)], [[1], [0], [1]], "anna is frequent, bob is rare");
    assert_eq!(users.weights, [1.0; 3], "features without weights weigh one");
    let ages = batch.bags.feature(2);
    assert_eq!((ages.bag(0), ages.bag(1), ages.bag(2)), (&[1][..], &[][..], &[3][..]));
}

#[test]
fn only_the_first_ids_of_a_long_bag_are_kept() {
    let place = Place::new();
    let mut data = csv(columns());
    data.columns.sparse[0].bag_max = 2;
    data.columns.sparse[0].weights = Some("strengths".into());
    let prepared = place.prepare(&data, &[place.write("rows.csv", ROWS)]).unwrap();
    let batch = read_all(&prepared.train);
    let items = batch.bags.feature(0);
    assert_eq!((items.bag(0).len(), items.bag(1).len()), (2, 1));
    assert_eq!(items.weights[items.range(0)], [1.0, 2.0]);
}

#[test]
fn quoting_line_ends_delimiters_and_column_order_do_not_matter() {
    let columns = || Columns {
        labels: vec![label("click")],
        sparse: vec![sparse("item", IdMap::Hash { salt: 0 }, 1 << 20)],
        ..Columns::default()
    };
    let place = Place::new();
    let plain = place.write("plain.csv", "click,item\n1,say \"hi\"\n0,b\n");
    let quoted =
        place.write("quoted.csv", "\u{feff}\"click\",\"item\"\r\n\"1\",\"say \"\"hi\"\"\"\r\n\r\n0,\"b\"");
    let swapped = place.write("swapped.csv", "item;other;click\nsay \"hi\";;1\nb;9;0\n");
    let semicolons = DataSpec { source: SourceSpec::Csv { delimiter: ';', quotes: true }, ..csv(columns()) };
    let want = read_all(&place.prepare(&csv(columns()), &[plain]).unwrap().train);
    assert_eq!(want.sample_count, 2);
    assert_eq!(read_all(&place.prepare(&csv(columns()), &[quoted]).unwrap().train), want);
    assert_eq!(read_all(&place.prepare(&semicolons, &[swapped]).unwrap().train), want);
}

#[test]
fn line_breaks_inside_quotes_are_counted_and_never_cut() {
    let place = Place::new();
    let mut text = String::from("click,note,item\n");
    // Long quoted cells make chunk borders fall inside them.
    for row in 0..2000 {
        text += &format!("{},\"{}\n\n,\"\"{row}\"\"\n\",{row}\n", row % 2, "long ".repeat(100));
    }
    let columns = Columns {
        labels: vec![label("click")],
        sparse: vec![sparse("note", IdMap::Hash { salt: 3 }, 1 << 20), sparse("item", IdMap::Direct, 2000)],
        ..Columns::default()
    };
    let prepared = place.prepare(&csv(columns.clone()), &[place.write("notes.csv", &text)]).unwrap();
    let batch = read_all(&prepared.train);
    assert_eq!(batch.bags.feature(1).rows, (0..2000).collect::<Vec<u32>>());
    text += "2,x,0\n";
    let file = place.write("bad.csv", &text);
    assert!(place.error(&csv(columns), &[file]).starts_with("bad.csv line 8002, column `click`, value `2`"));
}

#[test]
fn standardised_columns_have_mean_0_and_deviation_1_on_the_training_split() {
    let place = Place::new();
    let rows: String = (0..5000).map(|row| format!("{},{},7\n", row % 2, (row * row) % 997)).collect();
    let columns = Columns {
        labels: vec![label("click")],
        dense: vec![
            dense("x", &[DenseTransform::Log1p, DenseTransform::Standardise]),
            dense("same", &[DenseTransform::Standardise]),
        ],
        ..Columns::default()
    };
    let prepared =
        place.prepare(&csv(columns), &[place.write("rows.csv", format!("click,x,same\n{rows}"))]).unwrap();
    let batch = read_all(&prepared.train);
    let values: Vec<f64> = batch.dense.iter().step_by(2).map(|&value| f64::from(value)).collect();
    let mean = values.iter().sum::<f64>() / 5000.0;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 5000.0;
    assert!(mean.abs() < 1e-5 && (variance - 1.0).abs() < 1e-4, "mean {mean}, variance {variance}");
    assert!(batch.dense.iter().skip(1).step_by(2).all(|&value| value == 0.0), "a constant column becomes 0");
    // The same value, asked for alone as a server would.
    assert_eq!(prepared.transforms.dense(0, Raw::Int(1)).unwrap(), batch.dense[2]);
}

#[test]
fn vocabularies_rank_by_count_then_id_and_stop_when_the_table_is_full() {
    let place = Place::new();
    let ids = [5, 5, 5, 9, 9, 3, 3, 8, 1, 1, 1, 1];
    let rows: String = ids.iter().map(|id| format!("0,{id}\n")).collect();
    let file = place.write("rows.csv", format!("click,item\n{rows}"));
    let rows_of = |min_count, row_count| {
        let columns = Columns {
            labels: vec![label("click")],
            sparse: vec![sparse("item", IdMap::Vocabulary { min_count }, row_count)],
            ..Columns::default()
        };
        let prepared = place.prepare(&csv(columns), std::slice::from_ref(&file)).unwrap();
        [1, 5, 3, 9, 8, 77].map(|id| prepared.transforms.row(0, Raw::Int(id)).unwrap().unwrap())
    };
    assert_eq!(rows_of(1, 100), [1, 2, 3, 4, 5, 0]);
    assert_eq!(rows_of(2, 100), [1, 2, 3, 4, 0, 0]);
    assert_eq!(rows_of(1, 3), [1, 2, 0, 0, 0, 0]);
}

#[test]
fn the_separator_of_a_list_can_be_chosen() {
    let place = Place::new();
    let mut items = list("items", IdMap::Direct, 10);
    items.shape = BagShape::List { separator: ' ' };
    let columns = Columns { labels: vec![label("click")], sparse: vec![items], ..Columns::default() };
    let file = place.write("rows.csv", "click,items\n1,3 1 2\n");
    let batch = read_all(&place.prepare(&csv(columns), &[file]).unwrap().train);
    assert_eq!(batch.bags.rows(), [3, 1, 2]);
}

#[test]
fn a_column_named_twice_and_a_quote_that_never_closes_end_the_run() {
    let place = Place::new();
    let columns = || Columns {
        labels: vec![label("click")],
        sparse: vec![sparse("item", IdMap::Direct, 100)],
        ..Columns::default()
    };
    let twice = place.write("twice.csv", "click,item,item\n1,2,3\n");
    let error = place.error(&csv(columns()), &[twice]);
    assert_eq!(error, "twice.csv: the header has column `item` 2 times; rename or drop all but one");
    let open = place.write("open.csv", "click,item\n1,27.0\n0,\"5\n1,6\n0,7\n");
    for bad_rows in [BadRows::Fail, BadRows::Skip { rows_max: 9 }] {
        let data = DataSpec { bad_rows, ..csv(columns()) };
        let error = place.error(&data, std::slice::from_ref(&open));
        assert!(error.starts_with("open.csv: the quote that opens in line 3 is never closed"), "{error}");
    }
    let whole = place.write("whole.csv", "click,item\n1,27.0\n0, 5\n");
    let batch = read_all(&place.prepare(&csv(columns()), &[whole]).unwrap().train);
    assert_eq!(batch.bags.rows(), [27, 5]);
}
