//! The words of Campanile: the jagged [`Batch`], the model description, optimizers, and the checked job.
//!
//! Everyone but `kernels` speaks them. There is no I/O here, no thread, no clock, no randomness and no
//! `unsafe`: a value of this crate is a plain fact that every rank can hold and compare.

pub mod batch;
pub mod cluster;
pub mod config;
pub mod data;
pub mod description;
pub mod distil;
pub mod elementary;
pub mod follow;
pub mod grain;
pub mod model;
pub mod moment;
pub mod optimizer;
pub mod plan;
pub mod plan_file;
pub mod seating;
pub mod size;
pub mod topology;
pub mod towers;
pub mod workload;
pub mod world;

pub use batch::{Bags, BagsError, Batch, FeatureBags, NO_GROUP};
pub use distil::{AdapterSpec, Distil, DistilMethod};
pub use follow::Follow;
pub use grain::{Grains, PIPELINE_CHUNKS};
pub use model::{
    CrossRank, DcnStructure, FeatureSpec, Heads, ModelSpec, NetworkSpec, Pooling, Precision, RowFormat,
    RowInit, TableId, TableSpec, TaskSpec,
};
pub use optimizer::{DenseOptimizer, LearningRate, Schedule, SparseOptimizer};
pub use plan::{COLUMN_BLOCK, Placement, Plan, PlanError, Returns, Shard};
pub use plan_file::PlanFileError;
pub use seating::Seating;
pub use size::Bytes;
pub use towers::{TowerModule, TowerSpec, TowerVariant, Towers};
