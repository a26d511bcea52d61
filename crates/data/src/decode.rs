//! From the cells of one row to the columns of a [`RowBuffer`], for every kind of file.
//!
//! A source shows its row as [`Cells`]; the [`Decoder`] knows which cell plays which role, applies the
//! transforms and finds the split. The same code runs while measuring and while packing, so both agree on which
//! rows are bad.

mod bags;
mod observed;
mod roles;

use std::{collections::HashMap, sync::Arc};

use campanile_spec::{
    NO_GROUP,
    data::{DataSpec, Split},
};

pub use self::bags::WEIGHT_MAX;
pub(crate) use self::observed::{Counts, RowNotes, count};
pub use self::observed::{LabelCounts, Observed};
use self::roles::{LabelCell, Slots, SparseCell, SplitRule, sparse_cell, split_rule};
pub(crate) use self::roles::{Role, Slot};
use crate::{
    error::{BadReason, DataError},
    rows::{NO_LABEL, RowBuffer, Schema},
    transforms::Transforms,
    value::{MISSING_KEY, Raw, mix},
};

/// One row of a file, cell by cell. A *slot* is the place of a column in [`Decoder::slots`].
pub(crate) trait Cells {
    /// The cell of a column that holds one value.
    fn cell(&self, slot: usize) -> Raw<'_>;

    /// The cell of a time, in the unit of the job.
    fn time(&self, slot: usize) -> Raw<'_> {
        self.cell(slot)
    }

    /// The cell of a column that holds several, where it is one value that may have to be cut; otherwise
    /// [`Cells::several`] has them.
    fn one(&self, slot: usize) -> Option<Raw<'_>> {
        Some(self.cell(slot))
    }

    /// Visits the items of a cell that is a list by itself; missing items are visited too, so that ids and weights
    /// keep in step.
    fn several(
        &self,
        _slot: usize,
        _visit: impl FnMut(Raw<'_>) -> Result<(), BadReason>,
    ) -> Result<(), BadReason> {
        Ok(())
    }
}

/// Why one row of a chunk is bad; where the chunk lies is added later.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BadCell {
    /// The column's name, or empty when the whole row is wrong.
    pub column: String,
    /// The raw value.
    pub value: String,
    pub reason: BadReason,
}

/// What a chunk became.
#[derive(Debug)]
pub(crate) struct Decoded {
    /// Rows of train, valid and test.
    pub splits: [RowBuffer; 3],
    /// Names of the segments, in the order in which this chunk shows them; the rows number them so.
    pub segments: Vec<String>,
    /// Rows read, good or bad.
    pub rows_read: u64,
    /// Lines of the text, or rows of the Parquet file, that the chunk covers.
    pub lines: u64,
    /// Bad rows with their line inside the chunk, from 0.
    pub bad: Vec<(u64, BadCell)>,
    /// What the good rows are like.
    pub counts: Counts,
    pub(crate) notes: RowNotes,
    segment_numbers: HashMap<String, u32>,
}

impl Decoded {
    pub fn new(schema: &Schema) -> Decoded {
        Decoded {
            splits: std::array::from_fn(|_| RowBuffer::new(schema)),
            segments: Vec::new(),
            rows_read: 0,
            lines: 0,
            bad: Vec::new(),
            counts: Counts::default(),
            notes: RowNotes::default(),
            segment_numbers: HashMap::new(),
        }
    }

    /// Empties everything, keeping the memory.
    pub fn clear(&mut self, schema: &Schema) {
        self.splits.iter_mut().for_each(|rows| rows.truncate(0, schema));
        self.segments.clear();
        self.segment_numbers.clear();
        self.bad.clear();
        self.counts.clear();
        (self.rows_read, self.lines) = (0, 0);
    }

    fn segment(&mut self, raw: Raw<'_>) -> u32 {
        let name = raw.name();
        if let Some(&number) = self.segment_numbers.get(&*name) {
            return number;
        }
        let number = self.segments.len() as u32;
        self.segments.push(name.clone().into_owned());
        self.segment_numbers.insert(name.into_owned(), number);
        number
    }
}

/// Knows which cell plays which role.
#[derive(Debug, Clone)]
pub(crate) struct Decoder {
    pub schema: Schema,
    pub transforms: Arc<Transforms>,
    slots: Vec<Slot>,
    /// What a row without a value to split by goes by: slots, each with the character where its text is cut.
    contents: Vec<(usize, Option<u8>)>,
    labels: Vec<LabelCell>,
    dense: Vec<usize>,
    sparse: Vec<SparseCell>,
    sample_weight: Option<usize>,
    time: Option<usize>,
    #[cfg(feature = "parquet")]
    time_unit: Option<campanile_spec::moment::TimeUnit>,
    group: Option<usize>,
    segment: Option<usize>,
    /// One per task when any has a teacher.
    teacher: Vec<Option<usize>>,
    teacher_delay: Option<usize>,
    split: SplitRule,
    /// Whether keys of vocabulary columns are kept, to be counted.
    keep_keys: bool,
    /// Dense columns whose values are kept in full precision, to be measured.
    measured: Vec<usize>,
    /// Sparse columns from here on leave out an id that their table has no row for, as a server does.
    served_from: usize,
    /// Whether an empty label is a bad row; otherwise the label is absent.
    label_needed: bool,
}

impl Decoder {
    /// The decoder of a job; `keep_keys` while ids are counted.
    pub fn new(data: &DataSpec, transforms: Arc<Transforms>, keep_keys: bool) -> Result<Decoder, DataError> {
        let columns = &data.columns;
        let mut slots = Slots::default();
        let labels = columns
            .labels
            .iter()
            .map(|label| LabelCell { slot: slots.of(&label.name, Role::Label), at_least: label.at_least });
        let labels = labels.collect();
        let dense = columns.dense.iter().map(|dense| slots.of(&dense.name, Role::Dense)).collect();
        let sparse = columns.sparse.iter().map(|column| sparse_cell(column, keep_keys, &mut slots));
        let sparse = sparse.collect::<Result<Vec<SparseCell>, _>>()?;
        let mut optional = |name: &Option<String>, role| name.as_ref().map(|name| slots.of(name, role));
        let sample_weight = optional(&columns.sample_weight, Role::SampleWeight);
        let time = optional(&columns.time, Role::Time);
        let group = optional(&columns.group, Role::Key);
        let segment = optional(&columns.segment, Role::Key);
        let teacher: Vec<Option<usize>> =
            columns.labels.iter().map(|label| optional(&label.teacher, Role::Teacher)).collect();
        let teacher_delay = optional(&columns.teacher_delay, Role::Teacher);
        let schema = Schema::new(columns, &transforms);
        let split = split_rule(&data.split, columns, time, &mut slots)?;
        slots.mark_optional(&columns.optional);
        let mut separators = vec![None; slots.0.len()];
        for cell in &sparse {
            separators[cell.slot] = cell.separator;
            if let Some(weights) = cell.weights {
                separators[weights] = cell.separator;
            }
        }
        Ok(Decoder {
            teacher: if schema.teacher.is_empty() { Vec::new() } else { teacher },
            teacher_delay,
            schema,
            slots: slots.0,
            contents: separators.into_iter().enumerate().collect(),
            labels,
            dense,
            sparse,
            sample_weight,
            time,
            #[cfg(feature = "parquet")]
            time_unit: columns.time_unit,
            group,
            segment,
            split,
            keep_keys,
            measured: if keep_keys { transforms.standardised() } else { Vec::new() },
            transforms,
            served_from: usize::MAX,
            label_needed: matches!(data.source, campanile_spec::data::SourceSpec::CriteoTsv),
        })
    }

    /// The same, where sparse columns from `column` on are read as a server reads them.
    pub fn served_from(self, column: usize) -> Decoder {
        Decoder { served_from: column, ..self }
    }

    /// The columns that are needed.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// What times are counted in, if the job says so.
    #[cfg(feature = "parquet")]
    pub fn time_unit(&self) -> Option<campanile_spec::moment::TimeUnit> {
        self.time_unit
    }

    /// Whether the split of a row follows from its file.
    pub fn splits_by_file(&self) -> bool {
        matches!(self.split, SplitRule::File)
    }

    /// Whether there is one label, and it is 0 or 1 as it stands.
    pub fn has_plain_label(&self) -> bool {
        matches!(self.labels[..], [LabelCell { at_least: None, .. }])
    }

    /// Whether ids are being counted.
    pub fn keeps_keys(&self) -> bool {
        self.keep_keys
    }

    /// The dense columns that are being measured.
    pub fn measured(&self) -> &[usize] {
        &self.measured
    }

    /// Whether the cells make a row that would be kept.
    pub fn accepts(&self, cells: &impl Cells, file_split: Split, out: &mut Decoded) -> bool {
        let Ok(split) = self.split_of(cells, file_split) else { return false };
        let rows = &mut out.splits[split as usize];
        let before = rows.row_count;
        let is_good = self.fill(cells, rows, &mut out.notes).is_ok();
        rows.truncate(before, &self.schema);
        is_good
    }

    /// Adds a row to its split, or notes why it is bad.
    pub fn row(&self, cells: &impl Cells, file_split: Split, line: u64, out: &mut Decoded) {
        out.rows_read += 1;
        let split = match self.split_of(cells, file_split) {
            Ok(split) => split as usize,
            Err((slot, reason)) => return self.note_bad(cells, slot, reason, line, out),
        };
        let segment = self.segment.map(|slot| out.segment(self.cell(cells, slot)));
        let rows = &mut out.splits[split];
        let before = rows.row_count;
        if let Err((slot, reason)) = self.fill(cells, rows, &mut out.notes) {
            rows.truncate(before, &self.schema);
            return self.note_bad(cells, slot, reason, line, out);
        }
        rows.segments.extend(segment);
        rows.row_count += 1;
        out.counts.add(&out.notes);
    }

    /// The cell of a column; text that stands for a missing value is one.
    #[inline]
    fn cell<'a>(&self, cells: &'a impl Cells, slot: usize) -> Raw<'a> {
        self.transforms.value(cells.cell(slot))
    }

    /// The same, noted where it is missing.
    #[inline]
    fn noted<'a>(&self, cells: &'a impl Cells, slot: usize, notes: &mut RowNotes) -> Raw<'a> {
        let raw = self.cell(cells, slot);
        if raw == Raw::Missing {
            notes.missing.push(slot);
        }
        raw
    }

    /// A time, which every row must have.
    fn time(&self, cells: &impl Cells, slot: usize) -> Result<i64, (usize, BadReason)> {
        let time = self.transforms.value(cells.time(slot)).integer();
        time.and_then(|time| time.ok_or(BadReason::Missing)).map_err(|reason| (slot, reason))
    }

    fn note_bad(&self, cells: &impl Cells, slot: usize, reason: BadReason, line: u64, out: &mut Decoded) {
        let column = self.slots[slot].name.clone();
        out.bad.push((line, BadCell { column, value: cells.cell(slot).shown(), reason }));
    }

    fn split_of(&self, cells: &impl Cells, file_split: Split) -> Result<Split, (usize, BadReason)> {
        match self.split {
            SplitRule::File => Ok(file_split),
            SplitRule::Time { slot, valid_from, test_from } => {
                let time = self.time(cells, slot)?;
                Ok(if time >= test_from {
                    Split::Test
                } else if time >= valid_from {
                    Split::Valid
                } else {
                    Split::Train
                })
            }
            SplitRule::Hash { slot, test, held_out } => {
                let key = match self.transforms.key(cells.cell(slot)).map_err(|reason| (slot, reason))? {
                    // Rows without a user, say, are not all one user's.
                    MISSING_KEY => self.contents(cells),
                    key => key,
                };
                let hash = mix(key ^ 0x3c79_ac49_2ba7_b653);
                Ok(if hash < test {
                    Split::Test
                } else if hash < held_out {
                    Split::Valid
                } else {
                    Split::Train
                })
            }
        }
    }

    /// The same decoder, which splits rows as `own` does, though it reads columns that `own` does not.
    pub fn splitting_as(self, own: &Decoder) -> Decoder {
        let place = |slot: &Slot| self.slots.iter().position(|known| known.name == slot.name);
        let contents =
            own.contents.iter().filter_map(|&(slot, separator)| Some((place(&own.slots[slot])?, separator)));
        Decoder { contents: contents.collect(), ..self }
    }

    /// A hash of all cells of a row that the job reads, in the order of the job: the same from any kind of file.
    fn contents(&self, cells: &impl Cells) -> u64 {
        let mut hash = MISSING_KEY;
        for &(slot, separator) in &self.contents {
            let mut add = |raw: Raw<'_>| {
                // What is wrong with a cell is told where it is used.
                hash = mix(hash.rotate_left(23) ^ raw.key().unwrap_or(MISSING_KEY));
                Ok(())
            };
            match separator {
                None => add(self.cell(cells, slot)),
                Some(separator) => self.items(cells, slot, separator, add),
            }
            .unwrap_or_default();
        }
        hash
    }

    fn fill(
        &self,
        cells: &impl Cells,
        rows: &mut RowBuffer,
        notes: &mut RowNotes,
    ) -> Result<(), (usize, BadReason)> {
        notes.clear();
        for (label, column) in self.labels.iter().zip(&mut rows.labels) {
            let value = self.label(self.cell(cells, label.slot), label.at_least);
            column.push(value.map_err(|reason| (label.slot, reason))?);
        }
        self.fill_inputs(cells, rows, notes)
    }

    /// The column that tells the segment, if there is one.
    pub fn segment_slot(&self) -> Option<usize> {
        self.segment
    }

    /// Fills a row whose labels are known already, by task.
    pub fn labelled(
        &self,
        cells: &impl Cells,
        labels: impl Iterator<Item = Option<u8>>,
        rows: &mut RowBuffer,
        notes: &mut RowNotes,
    ) -> Result<(), (usize, BadReason)> {
        notes.clear();
        for (label, column) in labels.zip(&mut rows.labels) {
            column.push(label.unwrap_or(NO_LABEL));
        }
        self.fill_inputs(cells, rows, notes)
    }

    fn fill_inputs(
        &self,
        cells: &impl Cells,
        rows: &mut RowBuffer,
        notes: &mut RowNotes,
    ) -> Result<(), (usize, BadReason)> {
        for (column, &slot) in self.dense.iter().enumerate() {
            let value = self.transforms.dense(column, self.noted(cells, slot, notes));
            rows.dense.push(value.map_err(|reason| (slot, reason))?);
        }
        rows.measured.resize_with(self.measured.len(), Vec::new);
        for (values, &column) in rows.measured.iter_mut().zip(&self.measured) {
            let slot = self.dense[column];
            let value = self.transforms.dense_wide(column, cells.cell(slot));
            values.push(value.map_err(|reason| (slot, reason))?);
        }
        for (column, sparse) in self.sparse.iter().enumerate() {
            self.bag(cells, column, sparse, rows, notes)?;
        }
        if let Some(slot) = self.sample_weight {
            rows.weights.push(sample_weight(self.cell(cells, slot)).map_err(|reason| (slot, reason))?);
        }
        for (slot, column) in self.teacher.iter().zip(&mut rows.teacher) {
            if let Some(slot) = *slot {
                column.push(teacher_word(self.cell(cells, slot)).map_err(|reason| (slot, reason))?);
            }
        }
        if let Some(slot) = self.teacher_delay {
            rows.teacher_delays.push(teacher_word(self.cell(cells, slot)).map_err(|reason| (slot, reason))?);
        }
        if let Some(slot) = self.time {
            rows.times.push(self.time(cells, slot)?);
        }
        if let Some(slot) = self.group {
            let key = self.transforms.key(self.noted(cells, slot, notes)).map_err(|reason| (slot, reason))?;
            rows.groups.push(if key == MISSING_KEY { NO_GROUP } else { mix(key) });
        }
        Ok(())
    }

    fn label(&self, raw: Raw<'_>, at_least: Option<f64>) -> Result<u8, BadReason> {
        if let Raw::Text(b"0") | Raw::Int(0) = raw
            && at_least.is_none()
        {
            return Ok(0);
        }
        match (raw.wide_number()?, at_least) {
            (None, _) if self.label_needed => Err(BadReason::Missing),
            (None, _) => Ok(NO_LABEL),
            (Some(value), Some(limit)) => Ok(u8::from(value >= limit)),
            (Some(0.0), None) => Ok(0),
            (Some(1.0), None) => Ok(1),
            (Some(_), None) => Err(BadReason::Label),
        }
    }
}

fn sample_weight(raw: Raw<'_>) -> Result<f32, BadReason> {
    match raw.number()? {
        None => Err(BadReason::Missing),
        Some(weight) if weight < 0.0 => Err(BadReason::NegativeWeight),
        Some(weight) if weight > bags::WEIGHT_MAX => Err(BadReason::LargeWeight),
        Some(weight) => Ok(weight),
    }
}

/// A number of the teacher's; NaN where it gave none.
fn teacher_word(raw: Raw<'_>) -> Result<f32, BadReason> {
    match raw.wide_number()? {
        None => Ok(f32::NAN),
        Some(value) if (value as f32).is_infinite() => Err(BadReason::NotFinite),
        Some(value) => Ok(value as f32),
    }
}
