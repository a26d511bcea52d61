//! The job: what `job.toml` says, read, checked and filled in.
//!
//! ```text
//!   text ──toml──► spanned values ──`keys`──► `raw` (what the user typed) ──`check`──► Job (nothing left open)
//!    ▲                                                                                  │
//!    └──────────────────────────── `effective` (every key filled in) ◄──────────────────┘
//! ```
//!
//! `run` changes results: it is the same on every rank, hashed, and stored in checkpoints. `process` changes
//! none. Every key is declared once, in the type that holds it, with its default and meaning; the reader, the
//! saved job and the reference page all come from that one place. Nothing here touches the disk: paths are
//! kept as the user wrote them, and are relative to the directory the program is started in.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use toml::de::DeTable;

use crate::{
    Grains,
    data::DataSpec,
    distil::Distil,
    follow::Follow,
    model::ModelSpec,
    optimizer::{DenseOptimizer, LearningRate, SparseOptimizer},
};

mod changes;
mod check;
pub(crate) mod effective;
pub(crate) mod error;
pub(crate) mod keys;
mod layers;
mod nearest;
mod preset;
mod raw;
mod recheck;
mod reference;
pub(crate) mod value;

pub use error::{At, JobError};
use keys::{defaults, section, words};
pub use layers::lay_over;
pub use reference::reference_page;

/// What `job.toml` says, checked and filled in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Changes results: equal on every rank, hashed, stored in checkpoints.
    pub run: Run,
    /// Changes none.
    pub process: Process,
}

/// Everything that changes results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Seeds initial weights, rounding, shuffling and the synthetic world.
    pub seed: u64,
    /// Samples of a global batch.
    pub batch_size: usize,
    /// Grains of a batch, a power of two; the number of ranks must divide it.
    pub grain_count: usize,
    /// Passes over the training data.
    pub epochs: u64,
    /// Stop after this many steps; 0 means at the end of the data.
    pub steps_max: u64,
    /// The input.
    pub data: DataSpec,
    /// The model.
    pub model: ModelSpec,
    /// How rows move.
    pub sparse: SparseTraining,
    /// How dense weights move.
    pub dense: DenseTraining,
    /// How it learns from a teacher.
    #[serde(default, skip_serializing_if = "Distil::is_default")]
    pub distil: Distil,
    /// Its tables that follow the teacher.
    #[serde(default, skip_serializing_if = "Follow::is_none")]
    pub follow: Follow,
    /// How vectors travel between ranks.
    pub exchange: ExchangeFormat,
    /// Evaluation while training.
    pub evaluate: Evaluate,
    /// What labels that come after their example teach.
    #[serde(default = "Corrections::before", skip_serializing_if = "Corrections::is_as_before")]
    pub corrections: Corrections,
    /// Which examples of a stream are trained on; without it, all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<Only>,
}

section! {
    /// Examples of a stream that are trained on: those of one domain, say. Others are passed over, and the batches are made of
    /// what is left, in the log's order.
    #[serde(deny_unknown_fields)]
    pub struct Only {
        /// A column of the log, not necessarily one that the model reads.
        pub column: String,
        /// The values that are trained on, as they would be written in a text file.
        pub values: Vec<String>,
    }
}

words! {
    /// What a label that came after its example was written teaches, on a stream.
    pub enum Corrections {
        /// Nothing: the example stays what it was.
        Ignore,
        /// The example is trained on once more, with that label alone. It needs a log whose joiner repeats late examples
        /// (`campanile join --repeat-late`; `campanile live` does so by itself).
        Train,
    }
}

impl Corrections {
    /// What a run from before the choice did.
    fn before() -> Corrections {
        Corrections::Ignore
    }

    fn is_as_before(&self) -> bool {
        *self == Corrections::before()
    }
}

/// How rows move.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SparseTraining {
    /// The formula.
    pub optimizer: SparseOptimizer,
    /// The rate.
    pub learning_rate: LearningRate,
    /// L2 on touched rows.
    pub l2: f32,
    /// A merged row gradient is scaled down to this norm; 0 means no limit.
    pub row_norm_max: f32,
}

/// How dense weights move.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DenseTraining {
    /// The formula.
    pub optimizer: DenseOptimizer,
    /// The rate.
    pub learning_rate: LearningRate,
    /// L2 on all dense weights.
    pub l2: f32,
    /// The whole dense gradient is scaled down to this norm; 0 means no limit.
    pub norm_max: f32,
}

section! {
    /// How vectors travel between ranks. A codec rounds every vector, also those that stay on their rank, so the
    /// result does not depend on the number of ranks or on where tables live.
    #[derive(Copy)]
    pub struct ExchangeFormat {
        /// Pooled vectors, from the rows to the samples.
        pub forward: WireFormat = WireFormat::F32,
        /// Their gradients, on the way back.
        pub backward: WireFormat = WireFormat::F32,
    }
}

defaults!(ExchangeFormat);

words! {
    /// The form of a vector on its way.
    pub enum WireFormat {
        /// As it is: 4 bytes an element.
        F32,
        /// IEEE half precision, rounded to nearest: 2 bytes an element; 65504 is the largest.
        F16,
        /// bfloat16, rounded to nearest: 2 bytes an element, with the range of `f32`.
        Bf16,
        /// A byte an element, and a scale and an offset for every 32 elements.
        Int8,
    }
}

words! {
    /// Whether ranks compute while vectors travel.
    pub enum Pipeline {
        /// On when ranks are processes, off when they are threads, between which nothing travels.
        Auto,
        /// On.
        On,
        /// Off.
        Off,
    }
}

section! {
    /// Evaluation while training. After the last step the whole validation and test splits are always
    /// evaluated.
    pub struct Evaluate {
        /// Evaluate on the validation split every so many steps; 0 means only at the end.
        pub every_steps: u64 = 0,
        /// At most this many samples each time, evenly spread over the split; 0 means all. The final evaluation always
        /// takes all.
        pub samples_max: u64 = 0,
        /// Steps of the window over which the windowed metrics run.
        pub window_steps: u64 = 100,
    }
}

section! {
    /// What changes no result: threads, memory and paths. Paths are relative to the directory in which the
    /// program is started, not to the job file.
    pub struct Process {
        /// Ranks as threads, a divisor of the grains; 0 means one per core, rounded down to a divisor.
        pub threads: usize = 0,
        /// Input files by split.
        pub data: DataFiles,
        /// Where packed data is kept; jobs with the same data share it.
        pub cache_dir: PathBuf = PathBuf::from("runs/cache"),
        /// Where the run's checkpoints, metrics and events go; two jobs need two.
        pub output_dir: PathBuf = PathBuf::from("runs/job"),
        /// A checkpoint every so many steps; 0 means none by steps. One is always written at the end, and when the run is
        /// interrupted.
        pub checkpoint_every_steps: u64 = 0,
        /// A checkpoint when so many minutes have passed since the last one; 0 means none by time.
        pub checkpoint_every_minutes: u64 = 10,
        /// How many checkpoints are kept, the newest ones.
        pub checkpoints_kept: usize = 2,
        /// Memory that preparing data may use.
        pub prep_memory_mib: u64 = 512,
        /// Memory that tables and their state may use; 0 means what the machine has free.
        pub table_memory_mib: u64 = 0,
        /// Batches prepared ahead of the step.
        pub batches_ahead: usize = 4,
        /// Publishing while training.
        pub publish: Publish,
        /// Whether ranks compute while ids, vectors and gradients travel.
        pub pipeline: Pipeline = Pipeline::Auto,
        /// Where tables live: a file that `campanile plan --out` wrote, for as many ranks as the run has. Without
        /// one, whole tables, balanced by what their features read.
        pub plan: Option<PathBuf> = None,
    }
}

section! {
    /// Publishing while training: checkpoints go to a registry as soon as they stand, if they pass the gate, while
    /// the training goes on. How fresh a published model can be follows from `checkpoint_every_steps`.
    pub struct Publish {
        /// The registry; nothing is published without one.
        pub registry: Option<PathBuf> = None,
        /// The model's name in the registry.
        pub model: String = "model".to_owned(),
        /// At most every so many steps; 0 means every checkpoint. The last checkpoint is always published.
        pub every_steps: u64 = 0,
        /// At most every so many minutes; 0 means every checkpoint.
        pub every_minutes: u64 = 0,
        /// Versions that stay in the registry, the newest ones.
        pub keep: usize = 5,
        /// Publish only rows that changed, where that is less than half of all.
        pub deltas: bool = true,
        /// Validation rows that the gate looks at, evenly spread over the split; 0 means no gate. Without a validation split
        /// there is none. On a stream the gate looks at so many examples that came after the checkpoint, at most those between
        /// two checkpoints.
        pub gate_rows: u64 = 100_000,
        /// NE may be above the current version's by this much.
        pub ne_margin: f64 = 0.002,
        /// Calibration may be further from 1 than the current version's by this much.
        pub calibration_margin: f64 = 0.05,
    }
}

section! {
    /// Input files by split, in order; globs such as `logs/day_*.gz` are allowed and sorted by name. Only
    /// `train` is needed, and only `train` is allowed, unless the split is `by_file`. A synthetic world needs
    /// none.
    #[derive(Default)]
    pub struct DataFiles {
        /// Training files.
        pub train: Vec<String> = Vec::new(),
        /// Validation files.
        pub valid: Vec<String> = Vec::new(),
        /// Test files.
        pub test: Vec<String> = Vec::new(),
        /// A teacher's words on the training rows, as `campanile augment` wrote them.
        pub teacher: Option<PathBuf> = None,
    }
}

impl Job {
    /// Reads and checks a job file's text.
    ///
    /// # Errors
    /// The first mistake, with its line, its key, its value and what to do.
    pub fn parse(text: &str) -> Result<Job, JobError> {
        let document = DeTable::parse(text).map_err(|error| JobError::Syntax {
            at: error.span().map_or_else(At::default, |span| At::of(text, span.start)),
            problem: error.message().to_owned(),
        })?;
        let mut reader = keys::Reader::new(text, Some(document.get_ref()), 0..0, String::new());
        let job = <raw::RawJob as keys::Keys>::take(&mut reader).and_then(check::job);
        job.map_err(|problem| problem.locate(text, &document))
    }

    /// The job with every key filled in, as TOML that [`Job::parse`] reads back as the same job.
    ///
    /// It is printed at the start of a run and saved with it, so a default that changes later cannot change an
    /// old run.
    pub fn effective_toml(&self) -> String {
        effective::job_text(self)
    }
}

impl Run {
    /// The cut of a batch.
    pub fn grains(&self) -> Grains {
        Grains::new(self.grain_count)
    }

    /// How the rows of a table move: those that follow a teacher have a formula of their own.
    pub fn optimizer_of(&self, table: usize) -> &SparseOptimizer {
        if self.model.follows(table) { &self.follow.optimizer } else { &self.sparse.optimizer }
    }

    /// 32 hexadecimal digits that change when any key of `run` does (FNV-1a of the effective text).
    ///
    /// It tells whether two ranks, or a checkpoint and a job, mean the same run. Between releases of the
    /// program compare the parsed jobs instead: a new key changes the text.
    pub fn hash(&self) -> String {
        let fold =
            |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b);
        let text = effective::run_text(self);
        format!("{:032x}", text.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, fold))
    }
}
