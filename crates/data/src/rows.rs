//! Decoded rows on their way into blocks: columns that grow, in the layout that a batch wants.
//!
//! Dense values lie row by row, features column by column, as in [`campanile_spec::Batch`], so that reading a
//! block is copying. A row that turns out bad halfway is taken back with [`RowBuffer::truncate`].

use campanile_spec::{
    Bags, Batch,
    data::{BagShape, Columns},
};
use serde::{Deserialize, Serialize};

use crate::transforms::Transforms;

/// Stands in a one-id column where a sample has no row.
pub(crate) const NO_ROW: u32 = u32::MAX;

/// Stands in a label column where the label is absent.
pub(crate) const NO_LABEL: u8 = u8::MAX;

/// What a packed row holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Schema {
    /// Names of the label columns.
    pub tasks: Vec<String>,
    /// Names of the dense columns.
    pub dense: Vec<String>,
    /// The sparse features.
    pub features: Vec<Feature>,
    /// Whether samples have weights.
    pub sample_weight: bool,
    /// Whether samples have times.
    pub time: bool,
    /// Whether samples have groups.
    pub group: bool,
    /// Whether samples have segments.
    pub segment: bool,
    /// Whether each task has a teacher's logits; empty, and not written, when none has: files from before there were
    /// teachers keep their bytes and their fingerprints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub teacher: Vec<bool>,
    /// Whether samples have the age of the teacher's word.
    #[serde(default, skip_serializing_if = "is_false")]
    pub teacher_delay: bool,
}

fn is_false(value: &bool) -> bool {
    !*value
}

/// A sparse feature of a packed row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Feature {
    /// Its name.
    pub name: String,
    /// Rows of its table.
    pub row_count: u64,
    /// How its bags are stored.
    pub bags: BagStore,
    /// Whether each row comes with a weight.
    pub weighted: bool,
}

/// How bags are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BagStore {
    /// One row in every bag.
    One,
    /// One row or none, [`NO_ROW`].
    OneOrNone,
    /// Any number.
    List,
}

/// Blocks are cut so that a row count is a power of two and a block has about this many bytes: large enough
/// for one sequential read, small enough for the second-level cache's neighbourhood.
const BLOCK_BYTES: usize = 2 << 20;

impl Schema {
    /// What the job's columns become.
    pub fn new(columns: &Columns, transforms: &Transforms) -> Schema {
        let feature = |(index, column): (usize, &campanile_spec::data::SparseColumn)| Feature {
            name: column.name.clone(),
            row_count: column.row_count,
            bags: match column.shape {
                BagShape::List { .. } => BagStore::List,
                BagShape::One if transforms.always_has_row(index) => BagStore::One,
                BagShape::One => BagStore::OneOrNone,
            },
            weighted: column.weights.is_some(),
        };
        Schema {
            tasks: columns.labels.iter().map(|label| label.name.clone()).collect(),
            dense: columns.dense.iter().map(|dense| dense.name.clone()).collect(),
            features: columns.sparse.iter().enumerate().map(feature).collect(),
            sample_weight: columns.sample_weight.is_some(),
            time: columns.time.is_some(),
            group: columns.group.is_some(),
            segment: columns.segment.is_some(),
            teacher: match columns.labels.iter().any(|label| label.teacher.is_some()) {
                true => columns.labels.iter().map(|label| label.teacher.is_some()).collect(),
                false => Vec::new(),
            },
            teacher_delay: columns.teacher_delay.is_some(),
        }
    }

    /// Whether a task has a teacher's logits.
    pub fn has_teacher(&self, task: usize) -> bool {
        self.teacher.get(task).is_some_and(|has| *has)
    }

    /// Rows of a full block. It follows from the schema alone, because shuffling goes by blocks.
    pub fn block_rows(&self) -> usize {
        let bag = |feature: &Feature| match feature.bags {
            BagStore::List => 4 + 8 * 4 * if feature.weighted { 2 } else { 1 },
            BagStore::One | BagStore::OneOrNone => 4 * if feature.weighted { 2 } else { 1 },
        };
        let fixed = [
            (self.sample_weight, 4),
            (self.time, 8),
            (self.group, 8),
            (self.segment, 4),
            (self.teacher_delay, 4),
        ];
        let row_bytes = self.tasks.len()
            + self.teacher.iter().filter(|has| **has).count() * 4
            + self.dense.len() * 4
            + self.features.iter().map(bag).sum::<usize>()
            + fixed.iter().filter(|(there, _)| *there).map(|(_, bytes)| bytes).sum::<usize>();
        let rows = BLOCK_BYTES / row_bytes.max(1);
        (1 << rows.max(1).ilog2()).clamp(256, 65536)
    }
}

/// Bags of one feature.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct BagColumn {
    /// Where each bag ends in `rows`; empty for one-id features.
    pub ends: Vec<u32>,
    /// Rows of tables.
    pub rows: Vec<u32>,
    /// One per row when the feature is weighted.
    pub weights: Vec<f32>,
    /// Keys of the ids, one per row, while ids are counted.
    pub keys: Vec<u64>,
}

/// Rows, column by column.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RowBuffer {
    pub row_count: usize,
    /// `[row][dense]`.
    pub dense: Vec<f32>,
    /// One column per task.
    pub labels: Vec<Vec<u8>>,
    pub weights: Vec<f32>,
    pub times: Vec<i64>,
    pub groups: Vec<u64>,
    pub segments: Vec<u32>,
    /// One column per task, empty where the task has no teacher; NaN where the teacher said nothing.
    pub teacher: Vec<Vec<f32>>,
    pub teacher_delays: Vec<f32>,
    /// One column per dense column that is being measured, in full precision; none otherwise.
    pub measured: Vec<Vec<f64>>,
    pub bags: Vec<BagColumn>,
}

impl RowBuffer {
    /// No rows.
    pub fn new(schema: &Schema) -> RowBuffer {
        RowBuffer {
            labels: vec![Vec::new(); schema.tasks.len()],
            teacher: vec![Vec::new(); schema.teacher.len()],
            bags: vec![BagColumn::default(); schema.features.len()],
            ..RowBuffer::default()
        }
    }

    /// Forgets everything past the first `rows` rows, complete or not.
    pub fn truncate(&mut self, rows: usize, schema: &Schema) {
        self.row_count = rows;
        self.dense.truncate(rows * schema.dense.len());
        self.labels.iter_mut().for_each(|column| column.truncate(rows));
        self.weights.truncate(rows);
        self.times.truncate(rows);
        self.groups.truncate(rows);
        self.segments.truncate(rows);
        self.teacher.iter_mut().for_each(|column| column.truncate(rows));
        self.teacher_delays.truncate(rows);
        self.measured.iter_mut().for_each(|column| column.truncate(rows));
        for (bags, feature) in self.bags.iter_mut().zip(&schema.features) {
            let ids = match feature.bags {
                BagStore::List => {
                    bags.ends.truncate(rows);
                    bags.ends.last().map_or(0, |&end| end as usize)
                }
                BagStore::One | BagStore::OneOrNone => rows,
            };
            bags.rows.truncate(ids);
            bags.weights.truncate(ids);
            bags.keys.truncate(ids);
        }
    }

    /// Writes all rows to a batch, whose buffers are used again.
    pub fn write(&self, schema: &Schema, out: &mut Batch) {
        out.sample_count = self.row_count;
        out.dense.clear();
        out.dense.extend_from_slice(&self.dense);
        out.labels.clear();
        let label = |label: &u8| if *label == NO_LABEL { f32::NAN } else { f32::from(*label) };
        out.labels.extend(self.labels.iter().flatten().map(label));
        out.weights.clone_from(&self.weights);
        out.times.clone_from(&self.times);
        out.groups.clone_from(&self.groups);
        out.segments.clone_from(&self.segments);
        out.true_probabilities.clear();
        out.teacher_logits.clear();
        out.teacher_delays.clear();
        out.teacher_embeddings.clear();
        let weighted = schema.features.iter().any(|feature| feature.weighted);
        let (mut offsets, mut rows, mut weights) = std::mem::take(&mut out.bags).into_parts();
        offsets.clear();
        rows.clear();
        weights.clear();
        offsets.push(0);
        for (bags, feature) in self.bags.iter().zip(&schema.features) {
            let base = rows.len() as u32;
            match feature.bags {
                BagStore::List => {
                    rows.extend_from_slice(&bags.rows);
                    weights.extend_from_slice(&bags.weights);
                    offsets.extend(bags.ends.iter().map(|end| end + base));
                }
                BagStore::One | BagStore::OneOrNone => {
                    for (place, &row) in bags.rows.iter().enumerate() {
                        if row != NO_ROW {
                            rows.push(row);
                            weights.extend(bags.weights.get(place));
                        }
                        offsets.push(rows.len() as u32);
                    }
                }
            }
            if weighted && !feature.weighted {
                weights.resize(rows.len(), 1.0);
            }
        }
        out.bags = Bags::new(schema.features.len(), out.sample_count, offsets, rows, weights)
            .unwrap_or_else(|error| unreachable!("every row was filled whole: {error}"));
    }

    /// Adds rows `range` of another buffer with the same schema.
    pub fn append(&mut self, other: &RowBuffer, range: std::ops::Range<usize>, schema: &Schema) {
        let width = schema.dense.len();
        self.row_count += range.len();
        self.dense.extend_from_slice(&other.dense[range.start * width..range.end * width]);
        for (own, others) in self.labels.iter_mut().zip(&other.labels) {
            own.extend_from_slice(&others[range.clone()]);
        }
        append_if_any(&mut self.weights, &other.weights, &range);
        append_if_any(&mut self.times, &other.times, &range);
        append_if_any(&mut self.groups, &other.groups, &range);
        append_if_any(&mut self.segments, &other.segments, &range);
        for (own, others) in self.teacher.iter_mut().zip(&other.teacher) {
            append_if_any(own, others, &range);
        }
        append_if_any(&mut self.teacher_delays, &other.teacher_delays, &range);
        for ((own, others), feature) in self.bags.iter_mut().zip(&other.bags).zip(&schema.features) {
            let ids = match feature.bags {
                BagStore::List => {
                    let start = if range.start == 0 { 0 } else { others.ends[range.start - 1] };
                    let base = own.rows.len() as u32;
                    own.ends.extend(others.ends[range.clone()].iter().map(|end| end - start + base));
                    let end = if range.is_empty() { start } else { others.ends[range.end - 1] };
                    start as usize..end as usize
                }
                BagStore::One | BagStore::OneOrNone => range.clone(),
            };
            own.rows.extend_from_slice(&others.rows[ids.clone()]);
            if feature.weighted {
                own.weights.extend_from_slice(&others.weights[ids]);
            }
        }
    }
}

fn append_if_any<T: Copy>(own: &mut Vec<T>, others: &[T], range: &std::ops::Range<usize>) {
    if !others.is_empty() {
        own.extend_from_slice(&others[range.clone()]);
    }
}
