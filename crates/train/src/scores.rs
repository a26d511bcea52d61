//! The metrics of all tasks of a run or an evaluation. Complete on rank 0, which sees all samples.

use std::path::Path;

use campanile_spec::config::Run;
use serde::Serialize;
use serde_json::Value;

use crate::{
    TrainError,
    metrics::{MetricValues, Scored, TaskMetrics},
    predictions::Predictions,
};

/// The metrics of one task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskScores {
    /// The task.
    pub task: String,
    /// Its metrics.
    #[serde(flatten)]
    pub values: MetricValues,
}

/// The metrics of all tasks, growing.
#[derive(Debug)]
pub struct Scores {
    names: Vec<String>,
    tasks: Vec<TaskMetrics>,
}

impl Scores {
    /// For training: constant memory, with a window.
    pub fn for_training(run: &Run) -> Scores {
        Scores::of(run, || TaskMetrics::for_training(run.evaluate.window_steps))
    }

    /// For an evaluation: exact AUC and GAUC.
    pub fn for_evaluation(run: &Run) -> Scores {
        Scores::of(run, TaskMetrics::for_evaluation)
    }

    fn of(run: &Run, metrics: impl Fn() -> TaskMetrics) -> Scores {
        let names: Vec<String> = run.model.tasks.iter().map(|task| task.name.clone()).collect();
        Scores { tasks: names.iter().map(|_| metrics()).collect(), names }
    }

    /// Adds the predictions of a step, one part per rank, in rank order; no parts on ranks other than 0.
    pub fn add(&mut self, parts: &[Predictions]) {
        match parts {
            [] => {}
            [one] => self.add_whole(one),
            several => self.add_whole(&Predictions::concatenated(several, self.names.len())),
        }
    }

    fn add_whole(&mut self, all: &Predictions) {
        for (task, metrics) in self.tasks.iter_mut().enumerate() {
            metrics.add(&Scored {
                logits: all.of_task(&all.logits, task),
                labels: all.of_task(&all.labels, task),
                weights: &all.weights,
                groups: &all.groups,
                segments: &all.segments,
                true_probabilities: all.of_task(&all.true_probabilities, task),
            });
        }
    }

    /// Fails when a logit was not a number: the model has diverged, and nothing that follows has a meaning.
    ///
    /// # Errors
    /// Names the task and the step.
    pub fn check_finite(&self, step: u64) -> Result<(), TrainError> {
        match self.tasks.iter().position(|task| task.non_finite() > 0) {
            Some(task) => Err(TrainError::Diverged { task: self.names[task].clone(), step }),
            None => Ok(()),
        }
    }

    /// Since the start.
    pub fn running(&self) -> Vec<TaskScores> {
        self.values(TaskMetrics::snapshot)
    }

    /// Over the last steps; since the start where there is no window.
    pub fn window(&self) -> Vec<TaskScores> {
        self.values(|metrics| metrics.window().unwrap_or_else(|| metrics.snapshot()))
    }

    fn values(&self, of: impl Fn(&TaskMetrics) -> MetricValues) -> Vec<TaskScores> {
        let one =
            |(task, metrics): (&String, &TaskMetrics)| TaskScores { task: task.clone(), values: of(metrics) };
        self.names.iter().zip(&self.tasks).map(one).collect()
    }

    /// All that [`Scores::restore`] needs.
    pub fn state(&self) -> Value {
        serde_json::json!(self.tasks)
    }

    /// Goes on from a checkpoint's state.
    ///
    /// # Errors
    /// When the state is not one, or has another number of tasks.
    pub fn restore(&mut self, state: &Value, path: &Path) -> Result<(), TrainError> {
        let failed = |reason: String| TrainError::Scores { path: path.to_owned(), reason };
        let tasks: Vec<TaskMetrics> =
            serde_json::from_value(state.clone()).map_err(|error| failed(error.to_string()))?;
        if tasks.len() != self.tasks.len() {
            return Err(failed(format!("{} tasks instead of {}", tasks.len(), self.tasks.len())));
        }
        self.tasks = tasks;
        Ok(())
    }
}
