//! The drawn table as files: CSV as other programs write it, Parquet in the types they use, and rows of an event log.

use std::{collections::BTreeMap, path::Path};

use campanile_data::{
    Raw,
    columnar::{self, ColumnType, TableFile},
    logged,
};

use crate::draw::{Cell, Column, Kind, Numbers, Table, Value};

/// How a column is written in one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Int,
    /// Whole numbers as floats, which is what pandas makes of a column with missing values.
    Float,
    Single,
    Truth,
    Text,
    /// A list as one text.
    Joined,
}

/// A form that holds all values of a column. Files of Parquet have numbers for numbers.
fn form(numbers: &mut Numbers, column: &Column, is_parquet: bool) -> Form {
    if is_parquet && column.is_number {
        return match column.kind {
            Kind::Small => numbers.pick(&[Form::Int, Form::Float, Form::Single]),
            Kind::Wide => Form::Int,
            _ => numbers.pick(&[Form::Float, Form::Single]),
        };
    }
    if column.is_list && numbers.once_in(3) {
        return Form::Joined;
    }
    match column.kind {
        Kind::Small => numbers.pick(&[Form::Int, Form::Float, Form::Single, Form::Text]),
        Kind::Wide => numbers.pick(&[Form::Int, Form::Text]),
        Kind::Fractions => numbers.pick(&[Form::Float, Form::Single, Form::Text]),
        Kind::Truths => numbers.pick(&[Form::Truth, Form::Int, Form::Text]),
        Kind::Words | Kind::Codes => Form::Text,
    }
}

/// The text of a value, one of those in which programs write it.
pub fn text(numbers: &mut Numbers, value: &Value) -> String {
    match value {
        Value::Int(value) if numbers.once_in(4) => format!("{value}.0"),
        Value::Int(value) => value.to_string(),
        Value::Fraction(text) => text.clone(),
        Value::Truth(value) => match value {
            true => numbers.pick(&["true", "True", "TRUE", "1"]).to_owned(),
            false => numbers.pick(&["false", "False", "FALSE", "0"]).to_owned(),
        },
        Value::Text(text) => text.clone(),
    }
}

/// All values of a list in one text.
pub fn joined(numbers: &mut Numbers, cell: &Cell) -> String {
    let items: Vec<String> = cell
        .iter()
        .map(|item| {
            let text = item.as_ref().map_or_else(String::new, |value| text(numbers, value));
            if numbers.once_in(4) { format!(" {text} ") } else { text }
        })
        .collect();
    items.join("|")
}

/// Writes the table in both forms, the rows that train in two files.
pub fn write_all(numbers: &mut Numbers, table: &Table, folder: &Path) {
    // The first file is the second by its text.
    let cut = table.train / 2;
    let parts =
        [("train_2", 0..cut), ("train_10", cut..table.train), ("held_out", table.train..table.rows())];
    for (name, rows) in parts {
        write_csv(numbers, table, rows.clone(), &folder.join(format!("{name}.csv")));
        write_parquet(numbers, table, rows, &folder.join(format!("{name}.parquet")));
    }
}

/// Writes rows `rows` as CSV.
fn write_csv(numbers: &mut Numbers, table: &Table, rows: std::ops::Range<usize>, path: &Path) {
    let mut places: Vec<usize> = (0..table.columns.len() + 2).collect();
    numbers.shuffle(&mut places);
    let line_end = numbers.pick(&["\n", "\r\n"]);
    let name = |place: &usize| match place.checked_sub(2) {
        None => ["click", "rating"][*place].to_owned(),
        Some(column) => table.columns[column].name.clone(),
    };
    let mut out = places.iter().map(name).collect::<Vec<_>>().join(",") + line_end;
    for row in rows {
        let cells: Vec<String> = places
            .iter()
            .map(|place| {
                let cell = match place {
                    0 => table.labels[row].to_string(),
                    1 => table.ratings[row].map_or_else(String::new, |rating| rating.to_string()),
                    column => joined(numbers, &table.columns[column - 2].cells[row]),
                };
                quoted(numbers, cell)
            })
            .collect();
        out += &cells.join(",");
        out += line_end;
    }
    std::fs::write(path, out).unwrap();
}

fn quoted(numbers: &mut Numbers, cell: String) -> String {
    // A line that holds one empty cell alone would be a blank line; the table has several columns.
    if cell.contains(['"', ',', '\n', '\r']) || numbers.once_in(5) {
        return format!("\"{}\"", cell.replace('"', "\"\""));
    }
    if numbers.once_in(6) { format!(" {cell} ") } else { cell }
}

/// A raw value in a form.
fn raw<'a>(form: Form, value: Option<&'a Value>, text: &'a str) -> Raw<'a> {
    let Some(value) = value else { return Raw::Missing };
    match (form, value) {
        (Form::Text | Form::Joined, _) => Raw::Text(text.as_bytes()),
        (Form::Float, Value::Int(value)) => Raw::Float(*value as f64),
        (Form::Single, Value::Int(value)) => Raw::Float(f64::from(*value as f32)),
        (_, Value::Int(value)) => Raw::Int(*value),
        (Form::Single, Value::Fraction(text)) => Raw::Float(f64::from(text.parse::<f32>().unwrap())),
        (_, Value::Fraction(text)) => Raw::Float(text.parse().unwrap()),
        (_, Value::Truth(value)) => Raw::Int(i64::from(*value)),
        (_, Value::Text(text)) => Raw::Text(text.as_bytes()),
    }
}

/// Gives the raw values of a cell in a form.
fn with_raws(numbers: &mut Numbers, form: Form, cell: &Cell, then: impl FnOnce(&[Raw<'_>])) {
    if form == Form::Joined {
        let text = joined(numbers, cell);
        return then(&[Raw::text(text.as_bytes())]);
    }
    let texts: Vec<String> = cell
        .iter()
        .map(|value| value.as_ref().map_or_else(String::new, |value| text(numbers, value)))
        .collect();
    let raws: Vec<Raw<'_>> =
        cell.iter().zip(&texts).map(|(value, text)| raw(form, value.as_ref(), text)).collect();
    then(&raws);
}

fn parquet_type(column: &Column, form: Form) -> ColumnType {
    let kind = match form {
        Form::Int => columnar::Kind::Integer,
        Form::Float => columnar::Kind::Float,
        Form::Single => columnar::Kind::Single,
        Form::Truth => columnar::Kind::Boolean,
        Form::Text | Form::Joined => columnar::Kind::Text,
    };
    if column.is_list && form != Form::Joined { ColumnType::list(kind) } else { ColumnType::one(kind) }
}

/// Writes rows `rows` as Parquet.
fn write_parquet(numbers: &mut Numbers, table: &Table, rows: std::ops::Range<usize>, path: &Path) {
    let fixed = |name: &str, its_type| columnar::Column::fixed(name.to_owned(), its_type);
    let (mut click, mut rating) = (
        fixed("click", ColumnType::one(numbers.pick(&[columnar::Kind::Label, columnar::Kind::Boolean]))),
        fixed("rating", ColumnType::one(numbers.pick(&[columnar::Kind::Integer, columnar::Kind::Float]))),
    );
    for row in rows.clone() {
        click.push(Raw::Int(i64::from(table.labels[row]))).unwrap();
        let missing = Raw::Missing;
        rating.push(table.ratings[row].map_or(missing, Raw::Int)).unwrap();
    }
    let mut columns = vec![click, rating];
    for column in &table.columns {
        let form = form(numbers, column, true);
        let its_type = parquet_type(column, form);
        let mut written = fixed(&column.name, its_type);
        for row in rows.clone() {
            with_raws(numbers, form, &column.cells[row], |raws| {
                if its_type.is_list {
                    written.push_list(raws.iter().copied()).unwrap();
                } else {
                    written.push(raws[0]).unwrap();
                }
            });
        }
        columns.push(written);
    }
    numbers.shuffle(&mut columns);
    let unfinished = path.with_extension("unfinished");
    let mut file = TableFile::create(&unfinished, &columns).unwrap();
    file.append(&columns).unwrap();
    file.publish(path, &BTreeMap::new()).unwrap();
}

/// A row as the event log has it, all columns in their order.
pub fn logged_row(numbers: &mut Numbers, table: &Table, row: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for column in &table.columns {
        let form = form(numbers, column, false);
        with_raws(numbers, form, &column.cells[row], |raws| {
            if column.is_list && form != Form::Joined {
                logged::put_list(&mut out, raws.iter().copied());
            } else {
                logged::put(&mut out, raws[0]);
            }
        });
    }
    out
}
