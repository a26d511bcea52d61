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

use parquet::{
    basic::{ConvertedType, LogicalType, Repetition, Type as PhysicalType},
    column::reader::{ColumnReader, ColumnReaderImpl},
    data_type::{ByteArray, DataType},
    errors::ParquetError,
    schema::types::{ColumnDescriptor, SchemaDescriptor},
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
    /// Bits of an unsigned integer, which must not be extended by its sign.
    unsigned_32: bool,
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
}

#[derive(Debug)]
enum Values {
    Int(Vec<i64>),
    Float(Vec<f64>),
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
            Values::Float(values) => Raw::Float(values[place]),
            Values::Text(values) => Raw::text(values[place].data()),
        }
    }
}

/// Finds a slot's column by its name, or by its dotted path inside a struct, and checks that its type will do.
pub(super) fn find_leaf(schema: &SchemaDescriptor, slot: &Slot, path: &Path) -> Result<Leaf, DataError> {
    let named = |column: &ColumnDescriptor| {
        column.path().parts().first() == Some(&slot.name) || column.path().string() == slot.name
    };
    let found: Vec<usize> = (0..schema.num_columns()).filter(|&index| named(&schema.column(index))).collect();
    let [index] = found[..] else {
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
    Ok(Leaf {
        index,
        name: slot.name.clone(),
        max_definition: column.max_def_level(),
        max_repetition: column.max_rep_level(),
        entry_definition: column.max_def_level() - i16::from(optional_item),
        unsigned_32: column.physical_type() == PhysicalType::INT32 && is_unsigned(&column),
    })
}

fn is_unsigned(column: &ColumnDescriptor) -> bool {
    matches!(column.logical_type_ref(), Some(LogicalType::Integer(integer)) if !integer.is_signed)
        || matches!(column.converted_type(), ConvertedType::UINT_32)
}

fn is_time_of_day(column: &ColumnDescriptor) -> bool {
    matches!(column.logical_type_ref(), Some(LogicalType::Time { .. }))
        || matches!(column.converted_type(), ConvertedType::TIME_MILLIS | ConvertedType::TIME_MICROS)
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

fn fits(column: &ColumnDescriptor, role: Role) -> bool {
    let decimal = matches!(column.converted_type(), ConvertedType::DECIMAL);
    let number = !decimal
        && matches!(
            column.physical_type(),
            PhysicalType::BOOLEAN
                | PhysicalType::INT32
                | PhysicalType::INT64
                | PhysicalType::FLOAT
                | PhysicalType::DOUBLE
        );
    let integer = !decimal && matches!(column.physical_type(), PhysicalType::INT32 | PhysicalType::INT64);
    let text = !decimal && column.physical_type() == PhysicalType::BYTE_ARRAY;
    let (list, flat) = (column.max_rep_level() == 1, column.max_rep_level() == 0);
    match role {
        Role::Label | Role::Dense | Role::Bucket | Role::SampleWeight | Role::Teacher => number && flat,
        Role::IdWeights { list: wanted } => number && list == wanted && (list || flat),
        Role::Id | Role::Key => (number || text) && flat,
        Role::IdList => (number || text) && (list || flat),
        // A time of day is no point in time.
        Role::Time => integer && flat && !is_time_of_day(column),
    }
}

fn describe(column: &ColumnDescriptor) -> String {
    let item = match (column.converted_type(), column.physical_type()) {
        (ConvertedType::DECIMAL, _) => "decimal",
        (_, PhysicalType::BOOLEAN) => "boolean",
        (_, PhysicalType::INT32) => "int32",
        (_, PhysicalType::INT64) => "int64",
        (_, PhysicalType::INT96) => "int96",
        (_, PhysicalType::FLOAT) => "float",
        (_, PhysicalType::DOUBLE) => "double",
        (_, PhysicalType::BYTE_ARRAY) => "string",
        (_, PhysicalType::FIXED_LEN_BYTE_ARRAY) => "fixed-length bytes",
    };
    match column.max_rep_level() {
        0 => item.to_string(),
        1 => format!("list of {item}"),
        _ => format!("nested list of {item}"),
    }
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
    match reader {
        ColumnReader::BoolColumnReader(reader) => {
            read_typed(reader, leaf, rows, |values| Values::Int(values.into_iter().map(i64::from).collect()))
        }
        ColumnReader::Int32ColumnReader(reader) if leaf.unsigned_32 => {
            read_typed(reader, leaf, rows, |values| {
                Values::Int(values.into_iter().map(|value| i64::from(value as u32)).collect())
            })
        }
        ColumnReader::Int32ColumnReader(reader) => {
            read_typed(reader, leaf, rows, |values| Values::Int(values.into_iter().map(i64::from).collect()))
        }
        ColumnReader::Int64ColumnReader(reader) => read_typed(reader, leaf, rows, Values::Int),
        ColumnReader::FloatColumnReader(reader) => read_typed(reader, leaf, rows, |values| {
            Values::Float(values.into_iter().map(f64::from).collect())
        }),
        ColumnReader::DoubleColumnReader(reader) => read_typed(reader, leaf, rows, Values::Float),
        ColumnReader::ByteArrayColumnReader(reader) => read_typed(reader, leaf, rows, Values::Text),
        ColumnReader::Int96ColumnReader(_) | ColumnReader::FixedLenByteArrayColumnReader(_) => {
            unreachable!("column `{}` was refused when the file was opened", leaf.name)
        }
    }
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
    Ok(Column { row_count, ends, places, values: convert(values) })
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
