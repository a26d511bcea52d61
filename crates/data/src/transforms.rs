//! How raw values become model inputs: one implementation for preparing data and for answering requests.
//!
//! A missing id is an id of its own for hashed and vocabulary columns, and gives no row for direct and
//! bucketised ones. Dense values are `f32`, and so is every step; only where a column is standardised are they taken in
//! full precision and rounded at the end, so that times in seconds stay apart.
//!
//! Invariant: [`Transforms::dense`] and [`Transforms::row`] are functions of the stored state alone, so equal
//! [fingerprints](Transforms::fingerprint) mean equal inputs to the model.

mod difference;
mod stored;
mod vocabulary;

use campanile_spec::{
    data::{BagShape, Columns, DataSpec, DenseColumn, DenseTransform, IdMap, Keep, SourceSpec, SparseColumn},
    elementary,
};
use serde::{Deserialize, Serialize};

pub use crate::value::Raw;
use crate::{
    error::{BadReason, DataError},
    value::{mix, scale, shortest},
};
pub(crate) use vocabulary::{VOCABULARY_ID_BYTES, Vocabulary};

/// How the text of an id is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum IdText {
    /// Up to eight hexadecimal digits: Criteo.
    Hex,
    /// A decimal integer, or any other text.
    Plain,
}

/// Mean and deviation of a dense column, measured on the training split where its `standardise` stands.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Standard {
    /// The mean.
    pub mean: f64,
    /// The population's standard deviation; 1 for a constant column.
    pub deviation: f64,
}

/// What was measured on the training split, by column.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// One per dense column; present where the column is standardised.
    pub standards: Vec<Option<Standard>>,
    /// One per sparse column; present where the column has a vocabulary.
    pub vocabularies: Vec<Option<Vocabulary>>,
}

/// The transforms of a job with everything that was measured for them.
#[derive(Debug, Clone)]
pub struct Transforms {
    id_text: IdText,
    /// Text that stands for a missing value.
    missing_values: Vec<String>,
    dense: Vec<DenseMap>,
    sparse: Vec<SparseMap>,
    /// `ln(1 + x)` of small integers, as the function itself gives it: most counts of a click log are small.
    log_of_small: Box<[f32]>,
}

#[derive(Debug, Clone)]
struct DenseMap {
    column: DenseColumn,
    /// Whether values are taken in full precision: those that are standardised.
    is_wide: bool,
    missing: f64,
    steps: Vec<DenseStep>,
    standard: Option<Standard>,
}

#[derive(Debug, Clone, Copy)]
enum DenseStep {
    Log1p,
    Clip { min: f64, max: f64 },
    Standardise(Standard),
}

#[derive(Debug, Clone)]
struct SparseMap {
    column: SparseColumn,
    to_row: ToRow,
}

#[derive(Debug, Clone)]
enum ToRow {
    Direct { row_count: u64 },
    Hash { mixed_salt: u64, row_count: u64 },
    Vocabulary(Vocabulary),
    Bucketise(Vec<f64>),
}

/// Integers below this have their logarithm in a table.
const SMALL_COUNT: usize = 4096;

impl Transforms {
    /// The transforms before anything is measured: dense values stop short of `standardise`, and every id of
    /// a vocabulary column is rare.
    pub(crate) fn unmeasured(columns: &Columns, source: &SourceSpec) -> Result<Transforms, DataError> {
        let id_text = if matches!(source, SourceSpec::CriteoTsv) { IdText::Hex } else { IdText::Plain };
        let transforms =
            Transforms::build(id_text, columns.dense.clone(), columns.sparse.clone(), Measured::default())?;
        Ok(Transforms { missing_values: columns.missing_values.clone(), ..transforms })
    }

    /// The transforms of a job that needs no measuring; `None` where something must be measured.
    ///
    /// # Errors
    /// When the columns' transforms cannot be.
    pub fn unmeasured_of(data: &DataSpec) -> Result<Option<Transforms>, DataError> {
        let transforms = Transforms::unmeasured(&data.columns, &data.source)?;
        let complete = transforms.standardised().is_empty() && transforms.counted().is_empty();
        Ok(complete.then_some(transforms))
    }

    /// The same transforms with what was measured.
    pub(crate) fn with_measured(&self, measured: Measured) -> Result<Transforms, DataError> {
        let dense = self.dense.iter().map(|map| map.column.clone()).collect();
        let sparse = self.sparse.iter().map(|map| map.column.clone()).collect();
        let transforms = Transforms::build(self.id_text, dense, sparse, measured)?;
        Ok(Transforms { missing_values: self.missing_values.clone(), ..transforms })
    }

    fn build(
        id_text: IdText,
        dense: Vec<DenseColumn>,
        sparse: Vec<SparseColumn>,
        mut measured: Measured,
    ) -> Result<Transforms, DataError> {
        measured.standards.resize(dense.len(), None);
        measured.vocabularies.resize_with(sparse.len(), || None);
        let dense =
            dense.into_iter().zip(measured.standards).map(|(column, standard)| dense_map(column, standard));
        let sparse =
            sparse.into_iter().zip(measured.vocabularies).map(|(column, ids)| sparse_map(column, ids));
        Ok(Transforms {
            id_text,
            missing_values: Vec::new(),
            dense: dense.collect::<Result<_, _>>()?,
            sparse: sparse.collect::<Result<_, _>>()?,
            log_of_small: (0..SMALL_COUNT).map(|count| ln_1p(count as f32)).collect(),
        })
    }

    /// The columns of several transforms beside each other, in their order; none where they read the text of ids in
    /// different ways.
    pub(crate) fn beside(all: &[&Transforms]) -> Option<Transforms> {
        let (first, others) = all.split_first()?;
        let mut joined = Transforms::clone(first);
        for other in others {
            if other.id_text != joined.id_text || other.missing_values != joined.missing_values {
                return None;
            }
            joined.dense.extend(other.dense.iter().cloned());
            joined.sparse.extend(other.sparse.iter().cloned());
        }
        Some(joined)
    }

    /// How many dense columns.
    pub fn dense_count(&self) -> usize {
        self.dense.len()
    }

    /// How many sparse columns.
    pub fn sparse_count(&self) -> usize {
        self.sparse.len()
    }

    /// The name of a dense column.
    pub fn dense_name(&self, column: usize) -> &str {
        &self.dense[column].column.name
    }

    /// The name of a sparse column.
    pub fn sparse_name(&self, column: usize) -> &str {
        &self.sparse[column].column.name
    }

    /// The name of the column with the weights of a sparse column's ids, if it has one.
    pub fn weights_name(&self, column: usize) -> Option<&str> {
        self.sparse[column].column.weights.as_deref()
    }

    /// Rows of a sparse column's table: every row that it gives is below this.
    pub fn row_count(&self, column: usize) -> u64 {
        self.sparse[column].column.row_count
    }

    /// Whether a cell of a sparse column holds several ids. Missing ones among them are left out.
    pub fn is_list(&self, column: usize) -> bool {
        matches!(self.sparse[column].column.shape, BagShape::List { .. })
    }

    /// Where text that holds the ids of one cell of a list column is cut; `None` for a column with one id a sample.
    pub fn separator(&self, column: usize) -> Option<u8> {
        match self.sparse[column].column.shape {
            BagShape::One => None,
            // What is no byte was refused when the data was read.
            BagShape::List { separator } => u8::try_from(separator).ok(),
        }
    }

    /// At most this many ids of a bag are kept.
    pub fn bag_max(&self, column: usize) -> usize {
        self.sparse[column].column.bag_max.max(1)
    }

    /// Which ids of a bag are kept.
    pub fn keep(&self, column: usize) -> Keep {
        self.sparse[column].column.keep
    }

    /// The measured mean and deviation of a dense column, if it is standardised.
    pub fn standard(&self, column: usize) -> Option<Standard> {
        self.dense[column].standard
    }

    /// How many ids of a sparse column have a row of their own, if it has a vocabulary.
    pub fn vocabulary_size(&self, column: usize) -> Option<usize> {
        match &self.sparse[column].to_row {
            ToRow::Vocabulary(vocabulary) => Some(vocabulary.keys().len()),
            _ => None,
        }
    }

    /// A value as the job takes it: text that stands for a missing value is one.
    #[inline]
    pub fn value<'a>(&self, raw: Raw<'a>) -> Raw<'a> {
        match raw {
            Raw::Text(text) if self.missing_values.iter().any(|word| word.as_bytes() == text) => Raw::Missing,
            other => other,
        }
    }

    /// The same for an id, for which nan is a missing value, too.
    #[inline]
    pub fn id<'a>(&self, raw: Raw<'a>) -> Raw<'a> {
        self.value(raw).as_id()
    }

    /// A dense input from a raw value.
    ///
    /// # Errors
    /// When the value is not a finite number.
    pub fn dense(&self, column: usize, raw: Raw<'_>) -> Result<f32, BadReason> {
        let value = self.dense_wide(column, raw)? as f32;
        if value.is_finite() { Ok(value) } else { Err(BadReason::NotFinite) }
    }

    /// A dense input before it is rounded.
    pub(crate) fn dense_wide(&self, column: usize, raw: Raw<'_>) -> Result<f64, BadReason> {
        let raw = self.value(raw);
        let number =
            if self.dense[column].is_wide { raw.wide_number()? } else { raw.number()?.map(f64::from) };
        Ok(self.dense_number(column, number))
    }

    /// A dense input from a number that may be missing, before it is rounded.
    #[inline]
    pub(crate) fn dense_number(&self, column: usize, number: Option<f64>) -> f64 {
        let map = &self.dense[column];
        let mut value = match number {
            None => map.missing,
            Some(number) if map.is_wide => number,
            Some(number) => f64::from(number as f32),
        };
        for step in &map.steps {
            value = match *step {
                DenseStep::Log1p => f64::from(self.log1p(value as f32)),
                DenseStep::Clip { min, max } => value.clamp(min, max),
                DenseStep::Standardise(Standard { mean, deviation }) => (value - mean) / deviation,
            };
        }
        value
    }

    #[inline]
    fn log1p(&self, value: f32) -> f32 {
        let value = value.max(0.0);
        let whole = value as usize;
        match self.log_of_small.get(whole) {
            Some(&log) if whole as f32 == value => log,
            _ => ln_1p(value),
        }
    }

    /// The row of a raw id, or none where a missing value has no row.
    ///
    /// # Errors
    /// When the value cannot be an id of this column.
    pub fn row(&self, column: usize, raw: Raw<'_>) -> Result<Option<u32>, BadReason> {
        let raw = self.value(raw);
        match &self.sparse[column].to_row {
            ToRow::Direct { row_count } => match self.direct_id(raw)? {
                None => Ok(None),
                Some(id) if id < *row_count => Ok(Some(id as u32)),
                Some(_) => Err(BadReason::BeyondTable { row_count: *row_count }),
            },
            ToRow::Bucketise(boundaries) => {
                let number = raw.wide_number()?;
                Ok(number.map(|number| boundaries.partition_point(|&boundary| boundary <= number) as u32))
            }
            ToRow::Hash { .. } | ToRow::Vocabulary(_) => Ok(Some(self.row_of_key(column, self.key(raw)?))),
        }
    }

    /// The row of a key, for hashed and vocabulary columns.
    #[inline]
    pub(crate) fn row_of_key(&self, column: usize, key: u64) -> u32 {
        match &self.sparse[column].to_row {
            ToRow::Hash { mixed_salt, row_count } => scale(mix(key ^ mixed_salt), *row_count) as u32,
            ToRow::Vocabulary(vocabulary) => vocabulary.row(key),
            ToRow::Direct { .. } | ToRow::Bucketise(_) => {
                unreachable!("column {column} is neither hashed nor has a vocabulary")
            }
        }
    }

    /// Adds the rows of many keys, as [`Transforms::row_of_key`] gives them.
    pub(crate) fn rows_of_keys(&self, column: usize, keys: &[u64], out: &mut Vec<u32>) {
        match &self.sparse[column].to_row {
            ToRow::Hash { mixed_salt, row_count } => {
                out.extend(keys.iter().map(|key| scale(mix(key ^ mixed_salt), *row_count) as u32));
            }
            ToRow::Vocabulary(vocabulary) => out.extend(keys.iter().map(|&key| vocabulary.row(key))),
            ToRow::Direct { .. } | ToRow::Bucketise(_) => {
                unreachable!("column {column} is neither hashed nor has a vocabulary")
            }
        }
    }

    /// The key of a raw id.
    pub(crate) fn key(&self, raw: Raw<'_>) -> Result<u64, BadReason> {
        let raw = self.value(raw);
        match self.id_text {
            IdText::Hex => raw.hex_key(),
            IdText::Plain => raw.key(),
        }
    }

    fn direct_id(&self, raw: Raw<'_>) -> Result<Option<u64>, BadReason> {
        match raw.as_id() {
            Raw::Missing => Ok(None),
            Raw::Unsigned(id) => Ok(Some(id)),
            Raw::Text(_) if self.id_text == IdText::Hex => raw.hex_key().map(Some),
            // A negative id wraps to one beyond any table, which is what it is.
            _ => Ok(raw.integer()?.map(|id| id as u64)),
        }
    }

    /// Whether every cell of a one-id column gives a row, missing or not.
    pub(crate) fn always_has_row(&self, column: usize) -> bool {
        matches!(self.sparse[column].to_row, ToRow::Hash { .. } | ToRow::Vocabulary(_))
    }

    /// The dense columns whose mean and deviation must be measured.
    pub(crate) fn standardised(&self) -> Vec<usize> {
        let wanted = |map: &DenseMap| map.column.transforms.contains(&DenseTransform::Standardise);
        (0..self.dense.len()).filter(|&column| wanted(&self.dense[column])).collect()
    }

    /// The sparse columns whose ids must be counted.
    pub(crate) fn counted(&self) -> Vec<usize> {
        (0..self.sparse.len()).filter(|&column| self.is_counted(column)).collect()
    }

    /// Whether the ids of a sparse column must be counted.
    pub(crate) fn is_counted(&self, column: usize) -> bool {
        matches!(self.sparse[column].column.map, IdMap::Vocabulary { .. })
    }

    /// The dense columns as the job describes them.
    pub(crate) fn dense_column(&self, column: usize) -> &DenseColumn {
        &self.dense[column].column
    }

    /// The sparse columns as the job describes them.
    pub(crate) fn sparse_column(&self, column: usize) -> &SparseColumn {
        &self.sparse[column].column
    }
}

/// `ln(1 + x)`, to the nearest `f32` but for ties.
fn ln_1p(x: f32) -> f32 {
    elementary::ln_1p(f64::from(x)) as f32
}

fn dense_map(column: DenseColumn, standard: Option<Standard>) -> Result<DenseMap, DataError> {
    let unsupported =
        |reason: &str| DataError::Unsupported { column: column.name.clone(), reason: reason.into() };
    if column.transforms.iter().filter(|step| **step == DenseTransform::Standardise).count() > 1 {
        return Err(unsupported("`standardise` may stand once in a column's transforms"));
    }
    let is_wide = column.transforms.contains(&DenseTransform::Standardise);
    // A number of the job is the one that its text says, as one of the data is.
    let number = |value: f32| if is_wide { shortest(f64::from(value)) } else { f64::from(value) };
    let mut steps = Vec::new();
    for step in &column.transforms {
        match (*step, standard) {
            (DenseTransform::Log1p, _) => steps.push(DenseStep::Log1p),
            (DenseTransform::Clip { min, max }, _) if min <= max => {
                steps.push(DenseStep::Clip { min: number(min), max: number(max) });
            }
            (DenseTransform::Clip { .. }, _) => {
                return Err(unsupported("`clip` needs `min` at or below `max`"));
            }
            (DenseTransform::Standardise, Some(standard)) => steps.push(DenseStep::Standardise(standard)),
            // Before measuring, the value that reaches this step is what is measured.
            (DenseTransform::Standardise, None) => break,
        }
    }
    let missing = number(column.missing);
    Ok(DenseMap { column, is_wide, missing, steps, standard })
}

fn sparse_map(column: SparseColumn, ids: Option<Vocabulary>) -> Result<SparseMap, DataError> {
    let unsupported = |reason: String| DataError::Unsupported { column: column.name.clone(), reason };
    let row_count = column.row_count;
    if row_count == 0 || row_count > u64::from(u32::MAX) {
        return Err(unsupported(format!("a table of {row_count} rows cannot be; 1 to {} can", u32::MAX)));
    }
    let to_row = match &column.map {
        IdMap::Direct => ToRow::Direct { row_count },
        IdMap::Hash { salt } => ToRow::Hash { mixed_salt: mix(*salt ^ 0x6c62_272e_07bb_0142), row_count },
        IdMap::Vocabulary { .. } => {
            let ids = ids.unwrap_or_default();
            // Row 0 is for all others.
            if ids.keys().len() as u64 >= row_count {
                let count = ids.keys().len();
                return Err(unsupported(format!("{count} ids do not fit in a table of {row_count} rows")));
            }
            ToRow::Vocabulary(ids)
        }
        IdMap::Bucketise { boundaries } => {
            if !boundaries.is_sorted_by(|a, b| a < b) {
                return Err(unsupported("the boundaries of `bucketise` must rise".into()));
            }
            if boundaries.len() as u64 >= row_count {
                let buckets = boundaries.len() + 1;
                return Err(unsupported(format!(
                    "{buckets} buckets do not fit in a table of {row_count} rows"
                )));
            }
            ToRow::Bucketise(boundaries.clone())
        }
    };
    Ok(SparseMap { column, to_row })
}

#[cfg(test)]
mod tests;
