//! What a run tells while it goes on.

use std::path::PathBuf;

use crate::{clock::PARTS, predictions::Predictions, scores::TaskScores};

/// Somebody who watches a run. Called on rank 0, between steps.
pub trait Observer: Send {
    /// Something happened.
    fn observe(&mut self, event: &Event<'_>);

    /// What is wished of the run, asked after every step; where ranks are processes, of every one. All ranks agree on it, so
    /// that they act after the same step, and no wish changes a result.
    fn wish(&self) -> Wish {
        Wish::Nothing
    }
}

/// What somebody outside can wish of a run. A later one is the stronger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Wish {
    /// To go on.
    #[default]
    Nothing,
    /// To write a checkpoint, and to go on.
    Checkpoint,
    /// To write a checkpoint, and to end.
    Stop,
}

impl Wish {
    /// As a word of a message.
    pub(crate) fn word(self) -> u32 {
        self as u32
    }

    /// From a word of a message.
    pub(crate) fn of(word: u32) -> Wish {
        match word {
            0 => Wish::Nothing,
            1 => Wish::Checkpoint,
            _ => Wish::Stop,
        }
    }
}

/// Something that happened.
pub enum Event<'a> {
    /// Memory is there, and the first step is about to begin.
    Started(&'a Started),
    /// A step was trained.
    Step(&'a StepEvent<'a>),
    /// A split was evaluated.
    Evaluated {
        /// Steps trained before.
        step: u64,
        /// `valid` or `test`.
        split: &'static str,
        /// By task.
        scores: &'a [TaskScores],
    },
    /// A checkpoint stands.
    Checkpoint {
        /// Steps trained before.
        step: u64,
        /// Where it is.
        path: &'a PathBuf,
    },
}

/// What a run begins with.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct Started {
    /// Step that comes first; above 0 when a checkpoint was found.
    pub first_step: u64,
    /// Step after the last.
    pub steps: u64,
    /// Rows of the training split.
    pub train_rows: u64,
    /// Ranks.
    pub rank_count: usize,
    /// Floats of the dense network.
    pub dense_parameters: usize,
    /// Floats of all tables.
    pub table_parameters: u64,
    /// Bytes of all tables and their state.
    pub table_bytes: u64,
    /// The ways of the vectors: `flat`, or how towers sit on the ranks.
    pub route: String,
    /// Floats of all pooled vectors over floats of what the tower modules hand on; 1 without towers.
    pub compression_ratio: f64,
    /// The instruction level of the kernels.
    pub level: String,
    /// What may be meant so, and is worth a word.
    pub warnings: Vec<String>,
}

/// A trained step.
pub struct StepEvent<'a> {
    /// Steps trained, this one included.
    pub step: u64,
    /// Samples trained by this process.
    pub samples: u64,
    /// Seconds since the first step of this process.
    pub seconds: f64,
    /// What the model said of the step's samples before it was trained on them, in parts that follow each other.
    pub predictions: &'a [Predictions],
    /// Over the last window, by task; computed only when asked for.
    pub window: &'a dyn Fn() -> Vec<TaskScores>,
    /// Since the first step of the run, by task.
    pub running: &'a dyn Fn() -> Vec<TaskScores>,
}

/// Seconds by part of the step, on rank 0.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct PartSeconds(pub Vec<(String, f64)>);

impl PartSeconds {
    /// With the names of the parts.
    pub fn new(seconds: [f64; PARTS.len()]) -> PartSeconds {
        PartSeconds(PARTS.iter().map(|(part, name)| ((*name).to_owned(), seconds[*part as usize])).collect())
    }
}
