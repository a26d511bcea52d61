//! One leaf column of a Parquet file: finding it, checking its type, reading it with its levels.
//!
//! Levels say what is there. For a list of optional items below an optional list:
//!
//! ```text
//!   definition  0 null list   1 empty list   2 null item   3 item        repetition  0 starts a row
//! ```
//!
//! An entry exists from the level of the repeated node on (2 here); its value is there at the highest level.

use std::path::Path;

use campanile_spec::moment::TimeUnit;
use parquet::{
    basic::Repetition,
    column::reader::{ColumnReader, ColumnReaderImpl},
    data_type::{ByteArray, DataType},
    errors::ParquetError,
    schema::types::{ColumnDescriptor, SchemaDescriptor},
};

use super::kinds::{
    Counted, Kind, TimeScale, big_endian, decimal_text, describe, fits, hexadecimal, nanoseconds,
};
use crate::{
    decode::{Role, Slot},
    error::DataError,
    value::Raw,
};

/// A leaf column that fills a slot.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    pub index: usize,
    pub name: String,
    max_definition: i16,
    max_repetition: i16,
    /// From this definition level on, a list has an entry.
    entry_definition: i16,
    kind: Kind,
    /// What it counts, where it is one of times.
    pub counted: Counted,
    scale: TimeScale,
}

/// Values of a column with the rows that they belong to.
#[derive(Debug)]
pub(super) struct Column {
    pub row_count: usize,
    /// Where the entries of each row end; absent for columns without lists.
    ends: Option<Vec<u32>>,
    /// The value of each entry, [`NO_VALUE`] for a null; absent when every entry has one.
    places: Option<Vec<u32>>,
    values: Values,
    scale: TimeScale,
}

#[derive(Debug)]
enum Values {
    Int(Vec<i64>),
    Unsigned(Vec<u64>),
    Float(Vec<f64>),
    Half(Vec<u16>),
    Text(Vec<ByteArray>),
}

const NO_VALUE: u32 = u32::MAX;

impl Column {
    pub fn is_list(&self) -> bool {
        self.ends.is_some()
    }

    /// The entries of a row.
    pub fn entries(&self, row: usize) -> std::ops::Range<usize> {
        match &self.ends {
            None => row..row + 1,
            Some(ends) => (if row == 0 { 0 } else { ends[row - 1] as usize })..ends[row] as usize,
        }
    }

    /// One entry.
    pub fn entry(&self, entry: usize) -> Raw<'_> {
        let place = match &self.places {
            None => entry,
            Some(places) if places[entry] == NO_VALUE => return Raw::Missing,
            Some(places) => places[entry] as usize,
        };
        match &self.values {
            Values::Int(values) => Raw::Int(values[place]),
            Values::Unsigned(values) => Raw::unsigned(values[place]),
            Values::Half(values) => Raw::from_f16(values[place]),
            Values::Float(values) => Raw::Float(values[place]),
            Values::Text(values) => Raw::text(values[place].data()),
        }
    }

    /// One entry of a column of times, in the unit of the job.
    pub fn time(&self, entry: usize) -> Raw<'_> {
        match self.entry(entry) {
            Raw::Int(value) => Raw::Int(self.scale.apply(value)),
            other => other,
        }
    }
}

/// Finds a slot's column by its name, or by its dotted path inside a struct, and checks that its type will do; nothing
/// where the file is without an optional one.
pub(super) fn find_leaf(
    schema: &SchemaDescriptor,
    slot: &Slot,
    unit: Option<TimeUnit>,
    path: &Path,
) -> Result<Option<Leaf>, DataError> {
    let named = |column: &ColumnDescriptor| {
        column.path().parts().first() == Some(&slot.name) || column.path().string() == slot.name
    };
    let found: Vec<usize> = (0..schema.num_columns()).filter(|&index| named(&schema.column(index))).collect();
    let [index] = found[..] else {
        if found.is_empty() && slot.is_optional {
            return Ok(None);
        }
        if found.is_empty() {
            let names: Vec<String> =
                schema.root_schema().get_fields().iter().map(|field| field.name().to_string()).collect();
            let found = super::super::list_names(&names);
            return Err(DataError::MissingColumn {
                path: path.to_path_buf(),
                column: slot.name.clone(),
                found,
            });
        }
        return Err(wrong_type(slot, slot.roles[0], "a struct or a map".into(), path));
    };
    let column = schema.column(index);
    for &role in &slot.roles {
        if !fits(&column, role) {
            return Err(wrong_type(slot, role, describe(&column), path));
        }
    }
    let optional_item = column.self_type().get_basic_info().repetition() == Repetition::OPTIONAL;
    let counted = Counted::of(&column);
    Ok(Some(Leaf {
        index,
        name: slot.name.clone(),
        max_definition: column.max_def_level(),
        max_repetition: column.max_rep_level(),
        entry_definition: column.max_def_level() - i16::from(optional_item),
        kind: Kind::of(&column),
        counted,
        scale: TimeScale::new(counted, unit),
    }))
}

fn wrong_type(slot: &Slot, role: Role, found: String, path: &Path) -> DataError {
    let (role, wanted) = match role {
        Role::Label => ("a label", "use an integer, float or boolean column"),
        Role::Dense => ("a dense input", "use an integer, float or boolean column"),
        Role::Id => ("an id", "use an integer or string column, or declare the column a list"),
        Role::IdList => ("a list of ids", "use a list of integers or strings"),
        Role::Bucket => ("a bucketised number", "use an integer or float column"),
        Role::IdWeights { .. } => ("weights of ids", "use floats, in a list if the ids are in one"),
        Role::SampleWeight => ("a sample weight", "use an integer or float column"),
        Role::Teacher => ("a teacher's logit or age", "use an integer or float column"),
        Role::Time => ("a time", "use an integer or timestamp column"),
        Role::Key => ("a group, segment or split column", "use an integer or string column"),
    };
    DataError::ColumnType { path: path.to_path_buf(), column: slot.name.clone(), found, role, wanted }
}

/// Passes over rows.
pub(super) fn skip(reader: &mut ColumnReader, rows: usize) -> Result<(), ParquetError> {
    let skipped = match reader {
        ColumnReader::BoolColumnReader(reader) => reader.skip_records(rows)?,
        ColumnReader::Int32ColumnReader(reader) => reader.skip_records(rows)?,
        ColumnReader::Int64ColumnReader(reader) => reader.skip_records(rows)?,
        ColumnReader::Int96ColumnReader(reader) => reader.skip_records(rows)?,
        ColumnReader::FloatColumnReader(reader) => reader.skip_records(rows)?,
        ColumnReader::DoubleColumnReader(reader) => reader.skip_records(rows)?,
        ColumnReader::ByteArrayColumnReader(reader) => reader.skip_records(rows)?,
        ColumnReader::FixedLenByteArrayColumnReader(reader) => reader.skip_records(rows)?,
    };
    if skipped == rows {
        Ok(())
    } else {
        Err(ParquetError::General(format!(
            "a column ends after {skipped} of {rows} rows that were to be skipped"
        )))
    }
}

/// Reads the next `rows` rows.
pub(super) fn read(reader: &mut ColumnReader, leaf: &Leaf, rows: usize) -> Result<Column, ParquetError> {
    let integers = |values: Vec<i64>| match leaf.kind {
        Kind::Decimal { scale } => {
            texts(values.into_iter().map(|value| decimal_text(i128::from(value), scale)))
        }
        _ => Values::Int(values),
    };
    let bytes = |bytes: &[u8]| match leaf.kind {
        Kind::Decimal { scale } => decimal_text(big_endian(bytes), scale),
        kind => hexadecimal(bytes, kind == Kind::Uuid),
    };
    match reader {
        ColumnReader::BoolColumnReader(reader) => {
            read_typed(reader, leaf, rows, |values| Values::Int(values.into_iter().map(i64::from).collect()))
        }
        ColumnReader::Int32ColumnReader(reader) if leaf.kind == Kind::Unsigned => {
            read_typed(reader, leaf, rows, |values| {
                Values::Int(values.into_iter().map(|value| i64::from(value as u32)).collect())
            })
        }
        ColumnReader::Int32ColumnReader(reader) => {
            read_typed(reader, leaf, rows, |values| integers(values.into_iter().map(i64::from).collect()))
        }
        ColumnReader::Int64ColumnReader(reader) if leaf.kind == Kind::Unsigned => {
            read_typed(reader, leaf, rows, |values| {
                Values::Unsigned(values.into_iter().map(|value| value as u64).collect())
            })
        }
        ColumnReader::Int64ColumnReader(reader) => read_typed(reader, leaf, rows, integers),
        ColumnReader::Int96ColumnReader(reader) => {
            read_typed(reader, leaf, rows, |values| Values::Int(values.iter().map(nanoseconds).collect()))
        }
        ColumnReader::FloatColumnReader(reader) => read_typed(reader, leaf, rows, |values| {
            Values::Float(values.into_iter().map(f64::from).collect())
        }),
        ColumnReader::DoubleColumnReader(reader) => read_typed(reader, leaf, rows, Values::Float),
        ColumnReader::ByteArrayColumnReader(reader) => {
            read_typed(reader, leaf, rows, |values| match leaf.kind {
                Kind::Plain => Values::Text(values),
                _ => texts(values.iter().map(|value| bytes(value.data()))),
            })
        }
        ColumnReader::FixedLenByteArrayColumnReader(reader) => {
            read_typed(reader, leaf, rows, |values| match leaf.kind {
                Kind::Half => Values::Half(values.iter().map(|value| half_bits(value.data())).collect()),
                _ => texts(values.iter().map(|value| bytes(value.data()))),
            })
        }
    }
}

fn texts(values: impl Iterator<Item = ByteArray>) -> Values {
    Values::Text(values.collect())
}

fn half_bits(bytes: &[u8]) -> u16 {
    bytes.first_chunk().map_or(0, |bytes| u16::from_le_bytes(*bytes))
}

fn read_typed<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    leaf: &Leaf,
    rows: usize,
    convert: impl Fn(Vec<T::T>) -> Values,
) -> Result<Column, ParquetError> {
    let (mut definitions, mut repetitions) = (Vec::new(), Vec::new());
    let mut values = Vec::with_capacity(rows);
    let mut row_count = 0;
    while row_count < rows {
        let (records, _, _) = reader.read_records(
            rows - row_count,
            (leaf.max_definition > 0).then_some(&mut definitions),
            (leaf.max_repetition > 0).then_some(&mut repetitions),
            &mut values,
        )?;
        if records == 0 {
            break;
        }
        row_count += records;
    }
    let ends = (leaf.max_repetition > 0).then(|| entry_ends(leaf, &definitions, &repetitions));
    let is_entry = |level: i16| leaf.max_repetition == 0 || level >= leaf.entry_definition;
    let places = definitions.iter().any(|&level| level < leaf.max_definition && is_entry(level)).then(|| {
        let mut next = 0;
        let place = |&level: &i16| {
            if level < leaf.max_definition {
                return NO_VALUE;
            }
            next += 1;
            next - 1
        };
        definitions.iter().filter(|level| is_entry(**level)).map(place).collect()
    });
    Ok(Column { row_count, ends, places, values: convert(values), scale: leaf.scale })
}

/// Where each row's entries end.
fn entry_ends(leaf: &Leaf, definitions: &[i16], repetitions: &[i16]) -> Vec<u32> {
    let mut ends = Vec::new();
    let mut entries = 0;
    for (index, &repetition) in repetitions.iter().enumerate() {
        if repetition == 0 && index > 0 {
            ends.push(entries);
        }
        // A required list of required items has no definition levels below the highest.
        let there = definitions.get(index).is_none_or(|&level| level >= leaf.entry_definition);
        entries += u32::from(there);
    }
    if !repetitions.is_empty() {
        ends.push(entries);
    }
    ends
}
