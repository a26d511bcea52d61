//! Columns as a Parquet file that is there whole or not at all.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    sync::Arc,
};

use parquet::{
    basic::{Compression, LogicalType, Repetition, TimeUnit, Type as PhysicalType, ZstdLevel},
    data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FloatType, Int32Type, Int64Type},
    errors::ParquetError,
    file::{
        metadata::KeyValue,
        properties::WriterProperties,
        reader::{FileReader, SerializedFileReader},
        writer::{SerializedFileWriter, SerializedRowGroupWriter},
    },
    schema::types::{Type, TypePtr},
};

use super::{
    Column, ColumnType, Kind,
    column::{NO_ENTRIES, Values},
};
use crate::error::{DataError, IoContext};

/// A file that is being written.
pub struct TableFile {
    path: PathBuf,
    writer: SerializedFileWriter<File>,
    row_count: u64,
}

impl TableFile {
    /// Begins a file with columns of these names and types. `path` is where it stands until it is published.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create(path: &Path, columns: &[Column]) -> Result<TableFile, DataError> {
        let unwritten = |error: ParquetError| unwritten(path, &error);
        let fields: Vec<TypePtr> =
            columns.iter().map(field).collect::<Result<_, ParquetError>>().map_err(unwritten)?;
        let root = Type::group_type_builder("record").with_fields(fields).build().map_err(unwritten)?;
        let properties =
            WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default())).build();
        let file = File::create(path).context("make", path)?;
        let writer =
            SerializedFileWriter::new(file, Arc::new(root), Arc::new(properties)).map_err(unwritten)?;
        Ok(TableFile { path: path.to_owned(), writer, row_count: 0 })
    }

    /// Rows written so far.
    pub fn row_count(&self) -> u64 {
        self.row_count
    }

    /// Writes the rows of the columns, with which the file was begun, as one row group.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn append(&mut self, columns: &[Column]) -> Result<(), DataError> {
        let written = (|| {
            let mut group = self.writer.next_row_group()?;
            for column in columns {
                write_column(&mut group, column)?;
            }
            group.close().map(drop)
        })();
        written.map_err(|error| unwritten(&self.path, &error))?;
        self.row_count += columns.first().map_or(0, Column::row_count) as u64;
        Ok(())
    }

    /// Ends the file with some notes for its readers, and gives it its name when all of it is on disk.
    ///
    /// # Errors
    /// When the disk fails; the file is not there under its name then.
    pub fn publish(mut self, name: &Path, notes: &BTreeMap<String, String>) -> Result<(), DataError> {
        for (key, value) in notes {
            self.writer.append_key_value_metadata(KeyValue::new(key.clone(), value.clone()));
        }
        let file = self.writer.into_inner().map_err(|error| unwritten(&self.path, &error))?;
        file.sync_all().context("write", &self.path)?;
        fs::rename(&self.path, name).context("publish", name)?;
        let directory = name.parent().unwrap_or(Path::new("."));
        File::open(directory).and_then(|directory| directory.sync_all()).context("write", directory)
    }
}

/// The notes of a file.
///
/// # Errors
/// When it is no Parquet file.
pub fn notes(path: &Path) -> Result<BTreeMap<String, String>, DataError> {
    let file = File::open(path).context("open", path)?;
    let reader = SerializedFileReader::new(file).map_err(|error| {
        let (path, reason) = (path.to_owned(), error.to_string());
        DataError::Damaged { path, format: "Parquet", reason }
    })?;
    let pairs = reader.metadata().file_metadata().key_value_metadata();
    let pair = |pair: &KeyValue| Some((pair.key.clone(), pair.value.clone()?));
    Ok(pairs.into_iter().flatten().filter_map(pair).collect())
}

fn unwritten(path: &Path, error: &ParquetError) -> DataError {
    DataError::Unwritten { path: path.to_owned(), reason: error.to_string() }
}

/// A column in the words of Parquet. Everything may be missing; a list has the three levels that all readers know.
fn field(column: &Column) -> Result<TypePtr, ParquetError> {
    let ColumnType { kind, is_list } = column.its_type();
    let (physical, logical) = match kind {
        // A reader sees nothing but nulls.
        None => (PhysicalType::INT32, Some(LogicalType::Unknown)),
        Some(Kind::Integer) => (PhysicalType::INT64, None),
        Some(Kind::Unsigned) => (PhysicalType::INT64, Some(LogicalType::integer(64, false))),
        Some(Kind::Time) => (PhysicalType::INT64, Some(LogicalType::timestamp(true, TimeUnit::MILLIS))),
        Some(Kind::Label) => (PhysicalType::INT32, Some(LogicalType::integer(8, true))),
        Some(Kind::Boolean) => (PhysicalType::BOOLEAN, None),
        Some(Kind::Float) => (PhysicalType::DOUBLE, None),
        Some(Kind::Single) => (PhysicalType::FLOAT, None),
        Some(Kind::Text) => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
        Some(Kind::Bytes) => (PhysicalType::BYTE_ARRAY, None),
    };
    let name = if is_list { "element" } else { column.name() };
    let value = Type::primitive_type_builder(name, physical)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(logical)
        .build()?;
    if !is_list {
        return Ok(Arc::new(value));
    }
    let entries = Type::group_type_builder("list")
        .with_repetition(Repetition::REPEATED)
        .with_fields(vec![Arc::new(value)])
        .build()?;
    let list = Type::group_type_builder(column.name())
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(Some(LogicalType::List))
        .with_fields(vec![Arc::new(entries)])
        .build()?;
    Ok(Arc::new(list))
}

fn write_column(group: &mut SerializedRowGroupWriter<'_, File>, column: &Column) -> Result<(), ParquetError> {
    let levels = Levels::of(column);
    match (&column.values, column.its_type().kind) {
        (Values::Integers(values), None | Some(Kind::Label)) => {
            let values: Vec<i32> = values.iter().map(|value| *value as i32).collect();
            write::<Int32Type>(group, &values, &levels)
        }
        (Values::Integers(values), Some(Kind::Boolean)) => {
            let values: Vec<bool> = values.iter().map(|value| *value != 0).collect();
            write::<BoolType>(group, &values, &levels)
        }
        (Values::Integers(values), _) => write::<Int64Type>(group, values, &levels),
        (Values::Floats(values), Some(Kind::Single)) => {
            let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
            write::<FloatType>(group, &values, &levels)
        }
        (Values::Floats(values), _) => write::<DoubleType>(group, values, &levels),
        (Values::Texts(bytes, ends), _) => {
            let all = ByteArray::from(bytes.clone());
            let starts = std::iter::once(&0).chain(ends);
            let values: Vec<ByteArray> =
                starts.zip(ends).map(|(start, end)| all.slice(*start, end - start)).collect();
            write::<ByteArrayType>(group, &values, &levels)
        }
    }
}

fn write<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    values: &[T::T],
    levels: &Levels,
) -> Result<(), ParquetError> {
    let Some(mut column) = group.next_column()? else {
        return Err(ParquetError::General("there are more columns than the file was begun with".to_owned()));
    };
    column.typed::<T>().write_batch(values, Some(&levels.definitions), levels.repetitions.as_deref())?;
    column.close()
}

/// What says to which row a value belongs, as in `source/parquet/columns.rs`.
struct Levels {
    definitions: Vec<i16>,
    repetitions: Option<Vec<i16>>,
}

impl Levels {
    fn of(column: &Column) -> Levels {
        if !column.its_type().is_list {
            let is_there = |count: &u32| i16::from(*count != NO_ENTRIES);
            return Levels { definitions: column.counts.iter().map(is_there).collect(), repetitions: None };
        }
        let (mut definitions, mut repetitions) = (Vec::new(), Vec::new());
        let mut entries = column.present.iter();
        for count in &column.counts {
            repetitions.push(0);
            match count {
                &NO_ENTRIES => definitions.push(0),
                0 => definitions.push(1),
                _ => {
                    let own = entries.by_ref().take(*count as usize);
                    definitions.extend(own.map(|is_there| 2 + i16::from(*is_there)));
                    repetitions.resize(definitions.len(), 1);
                }
            }
        }
        Levels { definitions, repetitions: Some(repetitions) }
    }
}
