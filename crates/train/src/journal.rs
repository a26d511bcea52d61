//! What a run leaves on disk beside its checkpoints: a line of JSON and TensorBoard scalars per window.
//!
//! A run that goes on from a checkpoint first drops the lines that came after it, so that in the end the file
//! reads as if nothing had happened.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use campanile_spec::config::Job;
use serde_json::{Value, json};

use crate::{
    TrainError,
    clock::unix_seconds,
    event_file::EventFile,
    scores::{Scores, TaskScores},
};

/// The open files of a run.
pub struct Journal {
    path: PathBuf,
    lines: File,
    events: EventFile,
}

impl Journal {
    /// Opens the files of a job that goes on at `first_step` and ends at `last_step`.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub fn open(job: &Job, first_step: u64, last_step: u64) -> Result<Journal, TrainError> {
        let directory = &job.process.output_dir;
        let path = directory.join("metrics.jsonl");
        let lines = reopen(&path, first_step, last_step).map_err(|source| output(&path, source))?;
        let events = EventFile::open(&directory.join("events"), unix_seconds(), first_step)?;
        Ok(Journal { path, lines, events })
    }

    /// Notes the window that ends at `step`.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn trained(&mut self, step: u64, samples_per_second: f64, scores: &Scores) -> Result<(), TrainError> {
        let window = scores.window();
        let line = json!({
            "step": step, "split": "train", "samples_per_second": samples_per_second,
            "window": window, "running": scores.running(),
        });
        self.line(&line)?;
        self.scalars("train", step, &window, Some(samples_per_second))
    }

    /// Notes an evaluation.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn evaluated(
        &mut self,
        step: u64,
        split: &str,
        scores: Option<&[TaskScores]>,
    ) -> Result<(), TrainError> {
        let Some(scores) = scores else { return Ok(()) };
        self.line(&json!({ "step": step, "split": split, "tasks": scores }))?;
        self.scalars(split, step, scores, None)
    }

    fn line(&mut self, line: &Value) -> Result<(), TrainError> {
        writeln!(self.lines, "{line}").map_err(|source| output(&self.path, source))
    }

    fn scalars(
        &mut self,
        split: &str,
        step: u64,
        scores: &[TaskScores],
        samples_per_second: Option<f64>,
    ) -> Result<(), TrainError> {
        let mut scalars: Vec<(String, f64)> =
            samples_per_second.map(|speed| ("samples_per_second".to_owned(), speed)).into_iter().collect();
        for TaskScores { task, values } in scores {
            let named = [
                ("ne", values.ne),
                ("logloss", values.logloss),
                ("auc", values.auc),
                ("gauc", values.gauc),
                ("calibration", values.calibration),
                ("best_ne", values.best_ne),
            ];
            let known = named.into_iter().filter_map(|(name, value)| Some((name, value?)));
            scalars.extend(known.map(|(name, value)| (format!("{split}/{task}/{name}"), value)));
        }
        self.events.scalars(step, unix_seconds(), &scalars)?;
        Ok(self.events.flush()?)
    }
}

fn output(path: &Path, source: io::Error) -> TrainError {
    TrainError::Output { path: path.to_owned(), source }
}

/// Opens the file to append, without the lines of steps after `first_step` and without the final evaluations,
/// which are made again. A last line that was cut short by a crash belongs to these.
fn reopen(path: &Path, first_step: u64, last_step: u64) -> io::Result<File> {
    if let Ok(text) = std::fs::read_to_string(path) {
        let keeps = |line: &&str| {
            let Ok(line) = serde_json::from_str::<Value>(line) else { return false };
            let final_evaluation = line["split"] != "train" && line["step"].as_u64() == Some(last_step);
            line["step"].as_u64().is_some_and(|step| step <= first_step) && !final_evaluation
        };
        let kept: String = text.lines().filter(keeps).flat_map(|line| [line, "\n"]).collect();
        let beside = path.with_extension("jsonl.new");
        std::fs::write(&beside, kept)?;
        std::fs::rename(&beside, path)?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_after_the_checkpoint_are_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let line = |step: u64, split: &str| format!("{{\"split\":\"{split}\",\"step\":{step}}}\n");
        let before = [line(10, "train"), line(20, "valid"), line(30, "train"), "{\"st".to_owned()].concat();
        std::fs::write(&path, before).unwrap();
        let mut file = reopen(&path, 20, 40).unwrap();
        file.write_all(line(25, "train").as_bytes()).unwrap();
        let want = [line(10, "train"), line(20, "valid"), line(25, "train")].concat();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), want);
    }

    #[test]
    fn final_evaluations_are_made_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        std::fs::write(&path, "{\"split\":\"train\",\"step\":40}\n{\"split\":\"valid\",\"step\":40}\n")
            .unwrap();
        reopen(&path, 40, 40).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"split\":\"train\",\"step\":40}\n");
    }
}
