//! What the data is: where columns play which role, how raw values become model inputs, how rows are split.

use serde::{Deserialize, Serialize};

use crate::{
    config::keys::{choice, words},
    moment::{Moment, TimeUnit},
    world::WorldSpec,
};

/// Everything about the input that changes results. Paths are not here: they stand in `process`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataSpec {
    /// The form of the input.
    pub source: SourceSpec,
    /// Which columns play which role; for Criteo and synthetic data filled in by the checker.
    pub columns: Columns,
    /// How rows become train, valid and test.
    pub split: SplitSpec,
    /// What a row that cannot be read does.
    pub bad_rows: BadRows,
    /// Visit packed blocks, and rows inside a block, in a seeded order that differs per epoch.
    pub shuffle: bool,
    /// Share of the ids of vocabulary columns that are trained as unknown ones, so that the row of unknown ids learns.
    #[serde(default)]
    pub unknown_share: f64,
}

/// The form of the input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
#[expect(clippy::large_enum_variant, reason = "a job has one; a box would only hide the world")]
pub enum SourceSpec {
    /// The seeded world of `data::world`; needs no files.
    Synthetic(WorldSpec),
    /// Tab-separated label, 13 integers, 26 hexadecimal ids; no header. Plain, gzip or zstd.
    CriteoTsv,
    /// Text with a header line. Plain, gzip or zstd.
    Csv {
        /// Field separator, one ASCII character.
        delimiter: char,
        /// Whether a cell may stand in quotes; otherwise a quote is a character like others.
        #[serde(default = "yes", skip_serializing_if = "is_true")]
        quotes: bool,
    },
    /// Parquet.
    Parquet,
}

fn yes() -> bool {
    true
}

fn is_true(value: &bool) -> bool {
    *value
}

/// Columns by role.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Columns {
    /// One per task, in task order.
    pub labels: Vec<LabelColumn>,
    /// Dense inputs, in order.
    pub dense: Vec<DenseColumn>,
    /// Sparse features, in order.
    pub sparse: Vec<SparseColumn>,
    /// Weight of a sample in the loss.
    pub sample_weight: Option<String>,
    /// Event time: an integer.
    pub time: Option<String>,
    /// What the time counts; Parquet timestamps are converted to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_unit: Option<TimeUnit>,
    /// Group for GAUC; any value, hashed.
    pub group: Option<String>,
    /// Segment for calibration by segment; any value, numbered in order of appearance, at most 4096.
    pub segment: Option<String>,
    /// Seconds from the newest sample that the teacher was trained on to this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teacher_delay: Option<String>,
    /// Text that stands for a missing value, in any column.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_values: Vec<String>,
    /// Columns that a file may be without: all their values are missing there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub optional: Vec<String>,
}

impl Columns {
    /// The names of all columns that are read, by role; one may stand there several times.
    pub fn names(&self) -> Vec<&str> {
        let labels = self.labels.iter().flat_map(|label| [Some(&label.name), label.teacher.as_ref()]);
        let sparse = self.sparse.iter().flat_map(|column| [Some(&column.name), column.weights.as_ref()]);
        let others = [&self.sample_weight, &self.time, &self.group, &self.segment, &self.teacher_delay];
        let dense = self.dense.iter().map(|column| Some(&column.name));
        let all = labels.chain(dense).chain(sparse).chain(others.map(Option::as_ref));
        all.flatten().map(String::as_str).collect()
    }

    /// Criteo's columns in the order of the file, with the usual transforms: `label`, `I1` to `I13`, `C1` to `C26`.
    /// The job says how many rows the tables have.
    pub fn criteo() -> Columns {
        let dense = |number| DenseColumn {
            name: format!("I{number}"),
            missing: 0.0,
            transforms: vec![DenseTransform::Log1p],
        };
        let sparse = |number| SparseColumn {
            name: format!("C{number}"),
            shape: BagShape::One,
            bag_max: 1,
            keep: Keep::First,
            map: IdMap::Hash { salt: 0 },
            row_count: 0,
            weights: None,
        };
        Columns {
            labels: vec![LabelColumn { name: "label".to_owned(), at_least: None, teacher: None }],
            dense: (1..=13).map(dense).collect(),
            sparse: (1..=26).map(sparse).collect(),
            ..Columns::default()
        }
    }
}

/// A label column.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LabelColumn {
    /// Column name, and the task's.
    pub name: String,
    /// The label is 1 where the raw value is at least this; without it, the raw value must be 0 or 1.
    pub at_least: Option<f64>,
    /// Column with a teacher's logit for this task; an empty value is one that the teacher did not give.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teacher: Option<String>,
}

/// A dense column and its transforms, applied in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DenseColumn {
    /// Column name.
    pub name: String,
    /// What an empty value counts as, before the transforms.
    pub missing: f32,
    /// Applied in order.
    pub transforms: Vec<DenseTransform>,
}

choice! {
    /// One dense transform.
    #[derive(Copy)]
    pub enum DenseTransform {
        /// `ln(1 + max(x, 0))`.
        Log1p,
        /// Into `[min, max]`.
        Clip {
            /// Lower end.
            min: f32,
            /// Upper end.
            max: f32,
        },
        /// `(x - mean) / deviation`, both measured on the training split by `prep` and kept with the transforms.
        Standardise,
    }
}

/// A sparse column: which feature it feeds and how a raw id becomes a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SparseColumn {
    /// Column name, and the feature's.
    pub name: String,
    /// One id or several.
    pub shape: BagShape,
    /// At most this many ids of a bag are kept.
    pub bag_max: usize,
    /// Which ones.
    #[serde(default = "Keep::usual", skip_serializing_if = "Keep::is_first")]
    pub keep: Keep,
    /// How an id becomes a row.
    pub map: IdMap,
    /// Rows of the feature's table, for maps that need it.
    pub row_count: u64,
    /// A column of per-id weights with the same lengths, for weighted pooling.
    pub weights: Option<String>,
}

/// What stands between the ids of a text cell when the job does not say.
pub const SEPARATOR: char = '|';

/// How many ids a cell holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum BagShape {
    /// One id; an empty cell is an empty bag unless the map gives it a row.
    One,
    /// Several: a Parquet list, or text cut at the separator.
    List {
        /// One ASCII character; for cells of text, not for lists of Parquet files.
        separator: char,
    },
}

words! {
    /// Which ids of a list are kept where it has more than `bag_max`.
    pub enum Keep {
        /// The first ones.
        First,
        /// The last ones: the newest of a history that grows at its end.
        Last,
    }
}

impl Keep {
    fn usual() -> Keep {
        Keep::First
    }

    /// Whether they are the first ones.
    pub fn is_first(&self) -> bool {
        *self == Keep::First
    }
}

choice! {
    /// How a raw id becomes a row.
    pub enum IdMap {
        /// The id is the row; one beyond the table is a bad row, a missing one an empty bag.
        Direct,
        /// A salted hash of the id, scaled to the table's rows; a missing id is an id of its own.
        Hash {
            /// Tells features apart that share a table; part of the fingerprint.
            salt: u64 = 0,
        },
        /// Ids seen at least `min_count` times in the training split get rows 1, 2, ... by falling count then by
        /// id; all others share row 0.
        Vocabulary {
            /// Below this, the shared row.
            min_count: u64 = 1,
        },
        /// A number becomes the index of its bucket: how many boundaries are at or below it; a missing one an
        /// empty bag.
        Bucketise {
            /// Rising.
            boundaries: Vec<f64>,
        },
    }
}

/// One of the three parts of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// What is trained on.
    Train,
    /// What is looked at while training.
    Valid,
    /// What is judged at the end.
    Test,
}

choice! {
    /// How rows become train, valid and test.
    pub enum SplitSpec {
        /// All rows of `process.data.train` train; `valid` and `test` come from their own files, if any.
        ByFile,
        /// The last shares of the rows, in file order.
        ByRow {
            /// Share of rows for validation, taken before the test rows.
            valid: f64 = 0.0,
            /// Share of rows for the test, at the end.
            test: f64 = 0.0,
        },
        /// Rows at or after a time: a number as in the time column, or a date with its zone, for which
        /// `time_unit` says what the column counts.
        ByTime {
            /// First time of validation.
            valid_from: Moment,
            /// First time of the test.
            test_from: Moment,
        },
        /// By hash of a column, so that a user is in one split only.
        ByHash {
            /// The column.
            column: String,
            /// Share for validation.
            valid: f64 = 0.0,
            /// Share for the test.
            test: f64 = 0.0,
        },
    }
}

choice! {
    /// What a row that cannot be read does.
    #[derive(Copy)]
    pub enum BadRows {
        /// Ends the run, naming file, line, column and value.
        Fail,
        /// Is counted and left out; more than `rows_max` of them end the run.
        Skip {
            /// The limit.
            rows_max: u64 = 1000,
        },
    }
}
