//! The metrics of all tasks of a run or an evaluation. Complete on rank 0, which sees all samples.

use std::path::Path;

use campanile_spec::config::Run;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    TrainError,
    metrics::{MetricValues, Scored, TaskMetrics},
    predictions::Predictions,
};

/// Above this mean loss over the last steps a model has diverged: one that knows nothing has 0.69, and this one gives the
/// labels that came less than one part in a hundred.
const LOGLOSS_MAX: f64 = 5.0;

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
    /// Names of the segments by their number; none where they have numbers alone.
    segments: Vec<String>,
    tasks: Vec<TaskMetrics>,
    /// Of the later part of a run, when the model has settled: its own, and those of its teacher.
    late: Option<Late>,
    newest_time: Option<i64>,
}

/// Metrics of the samples since some moment, each judged before it was trained on.
#[derive(Debug, Serialize, Deserialize)]
struct Late {
    own: Vec<TaskMetrics>,
    teacher: Vec<TaskMetrics>,
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
        let tasks = names.iter().map(|_| metrics()).collect();
        Scores { names, segments: Vec::new(), tasks, late: None, newest_time: None }
    }

    /// The same, with names for the segments, by their number.
    #[must_use]
    pub fn with_segments(self, names: &[String]) -> Scores {
        Scores { segments: names.to_vec(), ..self }
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
        self.newest_time = self.newest_time.max(all.newest_time);
        let scored = |logits, task| Scored {
            logits,
            labels: all.of_task(&all.labels, task),
            weights: &all.weights,
            groups: &all.groups,
            segments: &all.segments,
            true_probabilities: all.of_task(&all.true_probabilities, task),
        };
        for (task, metrics) in self.tasks.iter_mut().enumerate() {
            metrics.add(&scored(all.of_task(&all.logits, task), task));
        }
        let Some(late) = &mut self.late else { return };
        for (task, metrics) in late.own.iter_mut().enumerate() {
            metrics.add(&scored(all.of_task(&all.logits, task), task));
        }
        let said = if all.teacher_logits.is_empty() { 0 } else { late.teacher.len() };
        for (task, metrics) in late.teacher[..said].iter_mut().enumerate() {
            // Where the teacher said nothing, it is not judged.
            let logits = all.of_task(&all.teacher_logits, task);
            let judged = logits.iter().zip(all.of_task(&all.labels, task));
            let labels: Vec<f32> =
                judged.map(|(z, label)| if z.is_nan() { f32::NAN } else { *label }).collect();
            metrics.add(&Scored { labels: &labels, ..scored(logits, task) });
        }
    }

    /// The newest time among all samples, in the unit of the data, if they have times.
    pub fn newest_time(&self) -> Option<i64> {
        self.newest_time
    }

    /// At step `late`, begins to keep metrics of the samples that follow, beside those since the start.
    pub fn begin_late_at(&mut self, step: u64, late: u64) {
        if step != late {
            return;
        }
        let fresh = || self.names.iter().map(|_| TaskMetrics::for_training(1)).collect();
        self.late = Some(Late { own: fresh(), teacher: fresh() });
    }

    /// Since [`Scores::begin_late_at`]; none before.
    pub fn late(&self) -> Vec<TaskScores> {
        self.late.as_ref().map_or_else(Vec::new, |late| self.named(&late.own, TaskMetrics::snapshot))
    }

    /// What the teacher of the samples since [`Scores::begin_late_at`] would have scored; none without a teacher.
    pub fn teacher(&self) -> Option<Vec<TaskScores>> {
        let late = self.late.as_ref()?;
        let scores = self.named(&late.teacher, TaskMetrics::snapshot);
        scores.iter().any(|task| task.values.count > 0).then_some(scores)
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

    /// Fails when what the model says is finite and has lost all meaning.
    ///
    /// # Errors
    /// Names the task, the step and its loss.
    pub fn check_sane(&self, step: u64) -> Result<(), TrainError> {
        let absurd = |task: &TaskScores| task.values.logloss.filter(|&loss| loss > LOGLOSS_MAX);
        match self.window().iter().find_map(|task| Some((task.task.clone(), absurd(task)?))) {
            Some((task, logloss)) => Err(TrainError::Absurd { task, step, logloss }),
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
        self.named(&self.tasks, of)
    }

    fn named(&self, tasks: &[TaskMetrics], of: impl Fn(&TaskMetrics) -> MetricValues) -> Vec<TaskScores> {
        let one = |(task, metrics): (&String, &TaskMetrics)| {
            let mut values = of(metrics);
            for segment in &mut values.segments {
                segment.name = self.segments.get(segment.segment as usize).cloned();
            }
            TaskScores { task: task.clone(), values }
        };
        self.names.iter().zip(tasks).map(one).collect()
    }

    /// All that [`Scores::restore`] needs.
    pub fn state(&self) -> Value {
        serde_json::json!({ "tasks": self.tasks, "late": self.late, "newest_time": self.newest_time })
    }

    /// Goes on from a checkpoint's state.
    ///
    /// # Errors
    /// When the state is not one, or has another number of tasks.
    pub fn restore(&mut self, state: &Value, path: &Path) -> Result<(), TrainError> {
        let failed = |reason: String| TrainError::Scores { path: path.to_owned(), reason };
        // Checkpoints from before there was a later part hold the tasks alone.
        let (tasks, late) =
            if state.is_array() { (state, &Value::Null) } else { (&state["tasks"], &state["late"]) };
        let tasks: Vec<TaskMetrics> =
            serde_json::from_value(tasks.clone()).map_err(|error| failed(error.to_string()))?;
        if tasks.len() != self.tasks.len() {
            return Err(failed(format!("{} tasks instead of {}", tasks.len(), self.tasks.len())));
        }
        self.late = serde_json::from_value(late.clone()).map_err(|error| failed(error.to_string()))?;
        self.newest_time = state["newest_time"].as_i64();
        self.tasks = tasks;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_have_their_names() {
        let text = "[run.data]\nkind = \"synthetic\"\n[run.data.world]\nsparse_count = 4\nhidden_groups = 2\n\
                    across_pairs = 1\n[run.model]\nkind = \"dlrm\"\nbottom = [8]\ntop = [8]\n[run.tables]\n\
                    dim = 8\n[run.sparse]\nlearning_rate = 0.1\n[run.dense]\nlearning_rate = 0.1\n";
        let job = campanile_spec::config::Job::parse(text).unwrap();
        let names = ["phone".to_owned(), "tablet".to_owned()];
        let mut scores = Scores::for_evaluation(&job.run).with_segments(&names);
        let tasks = job.run.model.tasks.len();
        scores.add(&[Predictions {
            sample_count: 3,
            logits: vec![0.0; 3 * tasks],
            labels: vec![1.0; 3 * tasks],
            segments: vec![1, 0, 7],
            ..Predictions::default()
        }]);
        let segments = &scores.running()[0].values.segments;
        let named: Vec<_> = segments.iter().map(|s| (s.segment, s.name.as_deref())).collect();
        // A number beyond the names keeps its number alone.
        assert_eq!(named, [(0, Some("phone")), (1, Some("tablet")), (7, None)]);
    }
}
