//! Columns that were written are columns that can be read: as a job's Parquet source, with lists and missing values.

use std::collections::BTreeMap;

use campanile_data::{
    Raw,
    columnar::{Column, ColumnType, Kind, TableFile, notes},
};
use campanile_spec::data::{Columns, IdMap, SourceSpec};

use crate::fixture::{Place, data, dense, label, list, read_all, sparse};

fn fixed(name: &str, kind: Kind) -> Column {
    Column::fixed(name.to_owned(), ColumnType::one(kind))
}

fn free(name: &str) -> Column {
    Column::new(name.to_owned(), ColumnType::default())
}

/// Two row groups of three rows.
fn columns(group: i64) -> Vec<Column> {
    let (mut click, mut time) = (fixed("click", Kind::Label), fixed("time", Kind::Time));
    let (mut price, mut user, mut city) = (free("price"), free("user"), free("city"));
    let (mut items, mut never) = (free("items"), free("never"));
    for row in 0..3 {
        click.push(if row == 1 { Raw::Missing } else { Raw::Int(row / 2) }).unwrap();
        time.push(Raw::Int(1000 * group + row)).unwrap();
        price.push(if row == 0 { Raw::Int(2) } else { Raw::Float(0.1 * row as f64) }).unwrap();
        user.push(Raw::Int((1 << 40) + row)).unwrap();
        city.push(if row == 2 { Raw::Missing } else { Raw::Text("Zürich".as_bytes()) }).unwrap();
        never.push(Raw::Missing).unwrap();
    }
    items.push(Raw::Int(9)).unwrap();
    items.push_list([Raw::Int(4), Raw::Missing, Raw::Int(5)].into_iter()).unwrap();
    items.push_list([].into_iter()).unwrap();
    vec![click, time, price, user, city, items, never]
}

#[test]
fn what_is_written_is_read() {
    let place = Place::new();
    let (unfinished, name) = (place.path(".unfinished"), place.path("rows.parquet"));
    let mut file = TableFile::create(&unfinished, &columns(0)).unwrap();
    file.append(&columns(0)).unwrap();
    file.append(&columns(1)).unwrap();
    assert_eq!((file.row_count(), name.exists()), (6, false));
    let said = BTreeMap::from([("campanile.schema".to_owned(), "0badcafe".to_owned())]);
    file.publish(&name, &said).unwrap();
    assert_eq!((notes(&name).unwrap(), unfinished.exists()), (said, false));

    let job = Columns {
        labels: vec![label("click")],
        dense: vec![dense("price", &[]), dense("never", &[])],
        sparse: vec![
            list("items", IdMap::Direct, 10),
            sparse("user", IdMap::Hash { salt: 1 }, 1000),
            sparse("city", IdMap::Hash { salt: 2 }, 1000),
        ],
        time: Some("time".into()),
        ..Columns::default()
    };
    let prepared = place.prepare(&data(SourceSpec::Parquet, job), &[name.display().to_string()]).unwrap();
    let batch = read_all(&prepared.train);
    let labels: Vec<String> = batch.labels.iter().map(f32::to_string).collect();
    assert_eq!(labels.join(" "), "0 NaN 1 0 NaN 1");
    assert_eq!(batch.times, [0, 1, 2, 1000, 1001, 1002]);
    assert_eq!(batch.dense[..6], [2.0, 0.0, 0.1, 0.0, 0.2, 0.0]);
    let items = batch.bags.feature(0);
    let bags: Vec<&[u32]> = (0..3).map(|row| items.bag(row)).collect();
    assert_eq!(bags, [&[9][..], &[4, 5], &[]]);
    let row = |feature, raw| prepared.transforms.row(feature, raw).unwrap().unwrap();
    let cities = [Raw::Text("Zürich".as_bytes()), Raw::Text("Zürich".as_bytes()), Raw::Missing];
    assert_eq!(batch.bags.feature(1).rows[..3], [0, 1, 2].map(|user| row(1, Raw::Int((1 << 40) + user))));
    assert_eq!(batch.bags.feature(2).rows[..3], cities.map(|city| row(2, city)));
}

#[test]
fn a_file_that_cannot_be_written_or_read_is_named() {
    let place = Place::new();
    let error = TableFile::create(&place.path("nowhere/.unfinished"), &columns(0)).err().unwrap().to_string();
    assert!(error.contains("cannot make") && error.contains("nowhere/.unfinished"), "{error}");
    let cut = place.write("cut.parquet", b"PAR1");
    let error = notes(std::path::Path::new(&cut)).unwrap_err().to_string();
    assert!(error.contains("cut.parquet: damaged Parquet data"), "{error}");
}
