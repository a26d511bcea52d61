//! The job file as the user writes it: every key, with its default and its meaning.
//!
//! Nothing is checked here beyond types; `check` turns this form into the checked [`Job`](super::Job), in
//! which no default is left open. Sections whose keys stand for themselves (`[process]`, `[run.evaluate]`,
//! the synthetic world) have one form for both.

use super::{
    Corrections, Evaluate, ExchangeFormat, Only, Process,
    keys::{section, words},
    preset::GivenWorld,
};
use crate::{
    data::{BadRows, DenseTransform, IdMap, Keep, SplitSpec},
    distil::Distil,
    follow::Follow,
    model::{Heads, NetworkSpec, Pooling, Precision, RowFormat, RowInit},
    moment::TimeUnit,
    optimizer::{DenseOptimizer, Schedule, SparseOptimizer},
    towers::{TowerModule, TowerVariant},
};

section! {
    pub(crate) struct RawJob {
        pub run: RawRun,
        pub process: Process,
    }
}

section! {
    /// Everything that changes results. It is hashed, and the hash goes into every checkpoint: a run continues
    /// only with the `run` it began with, but for what only says when to stop (`epochs`, `steps_max`) and when to look
    /// (`[run.evaluate]`).
    pub(crate) struct RawRun {
        /// Seeds initial weights, rounding, shuffling and the synthetic world.
        pub seed: u64 = 1,
        /// Samples of a batch, over all threads together; at most 16777216.
        pub batch_size: usize = 2048,
        /// Grains a batch is cut into: a power of two that the number of threads must divide. Absent: one for
        /// every 256 samples, at least 8, or 4 for a batch below 256.
        pub grains: Option<usize> = None,
        /// Passes over the training data. A run in the same directory goes on when this is raised, to the weights that it
        /// would have come to had it been so from the start; so it is with `steps_max`, `[run.evaluate]` and
        /// `on_bad_row`. What the report says of the second half of the training begins where it began before.
        pub epochs: u64 = 1,
        /// Stop after this many steps; 0 means at the end of the last epoch.
        pub steps_max: u64 = 0,
        /// The arithmetic of the dense network.
        pub precision: Precision = Precision::F32,
        pub data: RawData,
        pub tables: RawTables,
        /// Tables that differ from `[run.tables]`, or that several features share.
        pub table: Vec<RawTable> = Vec::new(),
        pub model: RawModel,
        /// Groups of features; absent: none.
        pub towers: Option<RawTowers> = None,
        pub sparse: RawSparse,
        pub dense: RawDense,
        pub distil: Distil,
        /// Tables that follow the teacher; absent: none.
        pub follow: Option<Follow> = None,
        pub exchange: ExchangeFormat,
        pub evaluate: Evaluate,
        /// What a label that came after its example was written teaches, on a stream.
        pub corrections: Corrections = Corrections::Ignore,
        /// Which examples of a stream are trained on; absent: all.
        pub only: Option<Only> = None,
    }
}

words! {
    /// The form of the input.
    pub(crate) enum DataKind {
        /// The seeded world of `[run.data.world]`; needs no files, and brings its own columns and split.
        Synthetic,
        /// Criteo's click logs: tab-separated label, 13 integers, 26 hexadecimal ids, no header; plain, gzip or
        /// zstd. The columns `label`, `I1` to `I13` (log1p) and `C1` to `C26` (hashed) are filled in; a column
        /// listed in the job replaces the one of its name.
        Criteo,
        /// Text with a header line; plain, gzip or zstd.
        Csv,
        /// Parquet files.
        Parquet,
    }
}

section! {
    /// What the data is. The files themselves are named in `[process.data]`.
    pub(crate) struct RawData {
        /// The form of the input.
        pub kind: DataKind,
        /// The field separator; for `csv` only. Absent: a comma.
        pub delimiter: Option<char> = None,
        /// Whether a cell may stand in double quotes; for `csv` only. Absent: `true`. With `false` a quote is a
        /// character like others, and a cell holds neither line breaks nor the delimiter.
        pub quotes: Option<bool> = None,
        /// Text that stands for a missing value in any column, such as `["NA", "null", "\\N"]`; for `csv` and
        /// `parquet`, and for requests and streams of such a job. Absent: none but an empty cell.
        pub missing_values: Option<Vec<String>> = None,
        /// Columns that a file may be without, such as one that older files do not have: all their values are
        /// missing there. For `csv` and `parquet`. Absent: none.
        pub optional: Option<Vec<String>> = None,
        /// How rows become training, validation and test data.
        pub split: SplitSpec = SplitSpec::ByFile,
        /// What a row that cannot be read does.
        pub on_bad_row: BadRows = BadRows::Fail,
        /// Visit the training data in a seeded order that differs per epoch. Off means the order of the files.
        pub shuffle: bool = true,
        /// Share of the ids of vocabulary columns that are taken for unknown while training, others in every epoch: so the
        /// row that all unknown ids share learns what to say of an id that nobody has seen. 0 leaves it as it was born.
        pub unknown_share: f64 = 0.01,
        /// Column with the event's time, a whole number; needed to split by time.
        pub time: Option<String> = None,
        /// What the time column counts since 1970 in UTC: needed where `split` names dates. Timestamps of Parquet
        /// files are converted to it. Absent: they stay as they are, and all files must have the same unit.
        pub time_unit: Option<TimeUnit> = None,
        /// Column that groups samples for GAUC, such as a user; any value.
        pub group: Option<String> = None,
        /// Column that cuts calibration into segments, such as a country; at most 4096 values.
        pub segment: Option<String> = None,
        /// Column with the weight of a sample in the loss.
        pub sample_weight: Option<String> = None,
        /// Column with the age of the teacher's word, in seconds; see `teacher` of `[[run.data.label]]`.
        pub teacher_delay: Option<String> = None,
        /// The synthetic world, for kind `synthetic` only.
        pub world: Option<GivenWorld> = None,
        /// What is predicted: one task per label.
        pub label: Vec<RawLabel> = Vec::new(),
        /// Number columns.
        pub dense: Vec<RawDenseColumn> = Vec::new(),
        /// Id columns.
        pub sparse: Vec<RawSparseColumn> = Vec::new(),
    }
}

section! {
    /// A label, and the task that predicts it. A synthetic world has `click`, and `conversion` if it says so;
    /// all its labels are trained unless some are listed.
    pub(crate) struct RawLabel {
        /// Column name, and the task's name.
        pub name: String,
        /// The label is 1 where the value is at least this. Absent: the value must be 0 or 1.
        pub at_least: Option<f64> = None,
        /// The task's weight in the loss.
        pub weight: f32 = 1.0,
        /// Column with a teacher's logit for this task, from which a student learns (`[run.distil]`); empty values
        /// are samples without a teacher's word. For `csv` and `parquet`.
        pub teacher: Option<String> = None,
    }
}

section! {
    /// A number column.
    pub(crate) struct RawDenseColumn {
        /// Column name.
        pub name: String,
        /// What an empty value counts as, before the transforms.
        pub missing: f32 = 0.0,
        /// Applied in order.
        pub transforms: Vec<DenseTransform> = Vec::new(),
    }
}

section! {
    /// An id column: one feature of the model. The features of a synthetic world are there already; list one
    /// only to change its `table` or `pooling`.
    pub(crate) struct RawSparseColumn {
        /// Column name, and the feature's name.
        pub name: String,
        /// How an id becomes a row. Absent: `hash`.
        pub map: Option<IdMap> = None,
        /// Rows of the feature's table. Absent: what `[[run.table]]` or `[run.tables]` says.
        pub rows: Option<u64> = None,
        /// The table that holds the rows: one of `[[run.table]]`, or another feature's name to share its table.
        /// Absent: a table of its own, named like the feature.
        pub table: Option<String> = None,
        /// Whether a cell holds several ids: a Parquet list, or text cut at `separator`. Absent: `false`.
        pub list: Option<bool> = None,
        /// What stands between the ids of a text cell; only for `csv` and `parquet` with `list = true`. Absent: `|`.
        pub separator: Option<char> = None,
        /// At most this many ids of a cell are kept. Absent: 1, or 256 with `list = true`.
        pub bag_max: Option<usize> = None,
        /// Which ids are kept of a cell that has more; only with `list = true`. Absent: `first`.
        pub keep: Option<Keep> = None,
        /// How the rows of a cell become one vector.
        pub pooling: Pooling = Pooling::Sum,
        /// A column with a weight for every id, of the same lengths; only with `pooling = "weighted"`.
        pub weights: Option<String> = None,
    }
}

section! {
    /// What all tables have in common; `[[run.table]]` overrides it for one.
    pub(crate) struct RawTables {
        /// Rows of a table whose feature does not say.
        pub rows: Option<u64> = None,
        /// Floats in a row. Absent: 16, or one for each task for `logistic_regression`.
        pub dim: Option<usize> = None,
        /// How a row is stored.
        pub format: RowFormat = RowFormat::F32,
        /// A row's first value. Absent: uniform within one over the root of the number of rows, or zeros for
        /// `logistic_regression`.
        pub init: Option<RowInit> = None,
    }
}

section! {
    /// One table; what is absent follows `[run.tables]`.
    pub(crate) struct RawTable {
        /// Its name: a feature's, or the one that features give in `table`.
        pub name: String,
        /// Rows.
        pub rows: Option<u64> = None,
        /// Floats in a row.
        pub dim: Option<usize> = None,
        /// How a row is stored.
        pub format: Option<RowFormat> = None,
        /// A row's first value.
        pub init: Option<RowInit> = None,
    }
}

section! {
    /// The dense network on top of the pooled rows.
    pub(crate) struct RawModel flattens network: NetworkSpec {
        /// Whether several tasks share the layers above the interaction.
        pub heads: Heads = Heads::Shared,
    }
}

section! {
    /// Towers: features that belong together, so that one host can hold their tables and hand on fewer floats.
    /// `campanile towers` learns them and writes this section.
    pub(crate) struct RawTowers {
        /// What the towers are used for: one key for the three variants of a job.
        pub variant: TowerVariant = TowerVariant::Towers,
        /// The module of every tower that has none of its own.
        pub module: TowerModule = TowerModule::Identity,
        /// Weights of modules move at this share of the learning rate of `[run.dense]`. Absent: 1, as all others do.
        pub module_rate: Option<f32> = None,
        /// The towers; every feature is in one of them.
        pub tower: Vec<RawTower> = Vec::new(),
    }
}

section! {
    /// One tower.
    pub(crate) struct RawTower {
        /// Its name, which its weights carry.
        pub name: String,
        /// The names of its features.
        pub features: Vec<String>,
        /// What it does with their vectors. Absent: what `[run.towers]` says.
        pub module: Option<TowerModule> = None,
    }
}

section! {
    /// How rows move.
    pub(crate) struct RawSparse {
        /// The formula.
        pub optimizer: SparseOptimizer = SparseOptimizer::RowwiseAdagrad { epsilon: 1e-8, initial: 0.0 },
        /// The peak learning rate.
        pub learning_rate: f32,
        /// How the rate changes over the steps.
        pub schedule: Schedule = Schedule::Constant,
        /// L2 on the rows that a step touches.
        pub l2: f32 = 0.0,
        /// A row's gradient is scaled down to this norm; 0 means no limit.
        pub row_norm_max: f32 = 0.0,
    }
}

section! {
    /// How dense weights move.
    pub(crate) struct RawDense {
        /// The formula.
        pub optimizer: DenseOptimizer = DenseOptimizer::Sgd { momentum: 0.0 },
        /// The peak learning rate.
        pub learning_rate: f32,
        /// How the rate changes over the steps.
        pub schedule: Schedule = Schedule::Constant,
        /// L2 on all dense weights.
        pub l2: f32 = 0.0,
        /// The whole dense gradient is scaled down to this norm; 0 means no limit.
        pub norm_max: f32 = 0.0,
    }
}
