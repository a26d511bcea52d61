//! The baseline of co-training: a teacher that is trained beside its student, on the student's own rows, and says what it
//! thinks of every batch just before it is trained on.
//!
//! Its word is as fresh as can be, but it has seen one domain only, and nobody shares its cost.

use std::path::Path;

use anyhow::{Context, Result, bail};
use campanile_data::teacher::{TeacherHeader, TeacherVersion, TeacherWriter};
use campanile_spec::config::Job;
use campanile_train::observe::{Event, Observer};

use super::lab::{Lab, Measured};
use crate::command::prep;

/// Trains the teacher on the student's rows, and writes its words on them.
pub fn teach(lab: &Lab, student: &Job, teacher: &Job, words: &Path) -> Result<Measured> {
    let mut job = teacher.clone();
    job.process.data.clone_from(&student.process.data);
    job.process.checkpoint_every_steps = 0;
    let prepared = prep::prepared(student, true)?;
    let tasks: Vec<String> = job.run.model.tasks.iter().map(|task| task.name.clone()).collect();
    let header = TeacherHeader {
        version: 0,
        tasks: tasks.clone(),
        embedding: 0,
        rows: prepared.train.row_count(),
        data: prepared.fingerprint.clone(),
        seconds_per_time_unit: 1.0,
        // Its age is nothing at all; without a time nothing fades.
        teachers: vec![TeacherVersion {
            model: "in training".to_owned(),
            number: 0,
            id: "in training".to_owned(),
            data_time: None,
        }],
    };
    let rows = header.rows;
    let writer = TeacherWriter::create(words, header)?;
    let mut speaker = Speaker { writer, task_count: tasks.len(), rows: 0, failed: None };
    let place = lab.place("cotrained");
    let measured = lab.train_watched(&job, &place, &mut speaker)?;
    std::fs::remove_dir_all(&place).with_context(|| format!("cannot remove {}", place.display()))?;
    if let Some(error) = speaker.failed {
        return Err(error.into());
    }
    if speaker.rows > rows {
        bail!("through the teacher's columns there are {} rows, and the student has {rows}", speaker.rows);
    }
    // What does not fill a last batch is never trained on.
    let silent = (rows - speaker.rows) as usize;
    speaker.writer.add(&vec![f32::NAN; silent * tasks.len()], None)?;
    speaker.writer.finish()?;
    Ok(measured)
}

/// Writes down what is said of every batch.
struct Speaker {
    writer: TeacherWriter,
    task_count: usize,
    rows: u64,
    failed: Option<campanile_data::DataError>,
}

impl Observer for Speaker {
    fn observe(&mut self, event: &Event<'_>) {
        let Event::Step(step) = event else { return };
        for part in step.predictions {
            let count = part.sample_count;
            let by_sample = (0..count)
                .flat_map(|sample| (0..self.task_count).map(move |task| task * count + sample))
                .map(|place| part.logits[place]);
            let logits: Vec<f32> = by_sample.collect();
            self.rows += count as u64;
            if self.failed.is_none() {
                self.failed = self.writer.add(&logits, Some(0)).err();
            }
        }
    }
}
