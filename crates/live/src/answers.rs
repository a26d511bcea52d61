//! Students that answer: every impression is scored by the current version of each student before it is logged.

use campanile_data::{Raw, logged, logged::LoggedRows};
use campanile_serve::{Options, Request, Scorer, Scores, Snapshot};
use campanile_spec::Batch;
use campanile_tables::Registry;

use crate::traffic::Answers;

/// Students that follow a registry.
pub struct Students {
    registry: Registry,
    students: Vec<Student>,
    scorer: Scorer,
    scores: Scores,
    request: Request,
    batch: Batch,
}

struct Student {
    name: String,
    serving: Option<(Snapshot, LoggedRows)>,
}

impl Students {
    /// These students of a registry; each answers from when its first version is published.
    pub fn new(registry: Registry, names: impl IntoIterator<Item = String>) -> Students {
        Students {
            registry,
            students: names.into_iter().map(|name| Student { name, serving: None }).collect(),
            scorer: Scorer::new(),
            scores: Scores::default(),
            request: Request::new(),
            batch: Batch::default(),
        }
    }

    /// Takes up newer versions.
    fn follow(&mut self, columns: &[String]) -> Result<(), String> {
        for student in &mut self.students {
            let words = |error: &dyn std::fmt::Display| format!("student `{}`: {error}", student.name);
            let present = student.serving.as_ref().map(|(snapshot, _)| snapshot);
            let current = self.registry.current(&student.name).map_err(|error| words(&error))?;
            let Some(number) = current.filter(|number| present.map(|s| s.version().number) != Some(*number))
            else {
                continue;
            };
            let options = Options::default();
            let snapshot = Snapshot::of_registry(&self.registry, &student.name, number, present, &options);
            let snapshot = snapshot.map_err(|error| words(&error))?;
            let transforms = snapshot.inputs().transforms().clone();
            let rows = LoggedRows::new(&snapshot.job().run.data, transforms);
            let mut rows = rows.map_err(|error| words(&error))?;
            rows.set_columns(columns).map_err(|error| words(&error))?;
            student.serving = Some((snapshot, rows));
        }
        Ok(())
    }
}

impl Answers for Students {
    /// By student: what its first task got, and by which version.
    fn names(&self) -> Vec<String> {
        let names = self.students.iter().map(|student| &student.name);
        names.flat_map(|name| [format!("served.{name}"), format!("served.{name}.version")]).collect()
    }

    fn answer(&mut self, columns: &[String], rows: &mut [Vec<u8>]) -> Result<(), String> {
        self.follow(columns)?;
        let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
        for student in &mut self.students {
            let Some((snapshot, logged_rows)) = &mut student.serving else {
                rows.iter_mut().for_each(|row| (0..2).for_each(|_| logged::put(row, Raw::Missing)));
                continue;
            };
            logged_rows.clear();
            let labels = vec![None; snapshot.model().tasks.len()];
            for (row, length) in rows.iter().zip(&lengths) {
                logged_rows.push(&row[..*length], &labels, 0).map_err(|error| error.to_string())?;
            }
            logged_rows.write(&mut self.batch);
            let scored = self.request.prepared(snapshot.inputs(), &self.batch.dense, &self.batch.bags);
            scored
                .and_then(|()| self.scorer.score(snapshot, &[&self.request], &mut self.scores))
                .map_err(|error| format!("student `{}`: {error}", student.name))?;
            let answers = self.scores.probabilities.chunks_exact(self.scores.task_count);
            for (row, answer) in rows.iter_mut().zip(answers) {
                logged::put(row, Raw::Float(f64::from(answer[0])));
                logged::put(row, Raw::Int(snapshot.version().number as i64));
            }
        }
        Ok(())
    }
}
