//! The lines of the page, and how they come back after a restart.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use serde::{Deserialize, Serialize};

use super::gain::Gains;

/// Points of a line; when they are full, every second one goes, so that the whole run stays in sight.
const POINTS_MAX: usize = 600;

/// The longest file that is believed: a hundred models with all their points have less.
const BYTES_MAX: u64 = 64 << 20;

/// NE and calibration over the window, by task, at a time of the stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The time.
    pub stream_ms: u64,
    /// By task.
    pub tasks: Vec<(Option<f64>, Option<f64>)>,
}

/// One model's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// In order of time.
    pub points: VecDeque<Point>,
    /// For a student: what it gains.
    pub gains: Gains,
}

/// All lines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// The tasks that points are of.
    tasks: Vec<String>,
    /// One look in so many adds a point.
    every: u64,
    looks: u64,
    lines: BTreeMap<String, Line>,
}

impl History {
    /// Nothing yet.
    pub fn new(tasks: &[String]) -> History {
        History { tasks: tasks.to_vec(), every: 1, looks: 0, lines: BTreeMap::new() }
    }

    /// The line of a model.
    pub fn line(&mut self, model: &str) -> &mut Line {
        self.lines.entry(model.to_owned()).or_default()
    }

    /// The line of a model, if it has any.
    pub fn of(&self, model: &str) -> Option<&Line> {
        self.lines.get(model)
    }

    /// Notes a look, and says whether it adds points.
    pub fn adds(&mut self) -> bool {
        self.looks += 1;
        self.looks.is_multiple_of(self.every.max(1))
    }

    /// Adds a point. What was seen at a later time was of a run that is gone.
    pub fn push(&mut self, model: &str, point: Point) {
        let points = &mut self.line(model).points;
        while points.back().is_some_and(|last| last.stream_ms > point.stream_ms) {
            points.pop_back();
        }
        points.push_back(point);
    }

    /// Lets every second point go, if there are too many.
    pub fn thin(&mut self) {
        if self.lines.values().all(|line| line.points.len() < POINTS_MAX) {
            return;
        }
        self.every = self.every.saturating_mul(2);
        for line in self.lines.values_mut() {
            let mut place = 0;
            line.points.retain(|_| {
                place += 1;
                place % 2 == 0
            });
        }
    }

    /// Writes it to a file, which is there as a whole or not at all.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let unfinished = path.with_extension("unfinished");
        let mut file = File::create(&unfinished)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(&unfinished, path)
    }

    /// Reads what was saved for the same tasks; nothing where there is no file, or one of other tasks.
    ///
    /// # Errors
    /// When there is a file, and it cannot be read or is none of these.
    pub fn load(path: &Path, tasks: &[String]) -> io::Result<Option<History>> {
        let length = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            metadata => metadata?.len(),
        };
        if length > BYTES_MAX {
            return Err(io::Error::other(format!("it has {length} bytes, more than {BYTES_MAX}")));
        }
        let mut history: History = serde_json::from_slice(&fs::read(path)?)?;
        let is_whole = |point: &Point| point.tasks.len() == tasks.len();
        for line in history.lines.values_mut() {
            line.points.retain(is_whole);
        }
        history.thin();
        Ok((history.tasks == tasks).then_some(history))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks() -> Vec<String> {
        vec!["click".to_owned()]
    }

    fn point(stream_ms: u64) -> Point {
        Point { stream_ms, tasks: vec![(Some(0.9), None)] }
    }

    #[test]
    fn lines_come_back_from_a_file_and_a_damaged_one_is_told() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("page.json");
        assert_eq!(History::load(&path, &tasks()).unwrap(), None);
        let mut history = History::new(&tasks());
        for time in 0..50 {
            history.push("a", point(time));
            history.line("a").gains.look(100 * time, 100, vec![Some(0.01)]);
        }
        history.save(&path).unwrap();
        assert_eq!(History::load(&path, &tasks()).unwrap(), Some(history));
        assert_eq!(History::load(&path, &["buy".to_owned()]).unwrap(), None);
        fs::write(&path, b"{\"tasks\": 7}").unwrap();
        assert!(History::load(&path, &tasks()).is_err());
    }

    #[test]
    fn points_stay_in_order_and_few() {
        let mut history = History::new(&tasks());
        for time in 0..5000 {
            if history.adds() {
                history.push("a", point(time));
            }
            history.thin();
        }
        let points = &history.of("a").unwrap().points;
        assert!(points.len() < POINTS_MAX && points.len() >= POINTS_MAX / 2 - 1, "{}", points.len());
        assert!(points.iter().is_sorted_by(|a, b| a.stream_ms < b.stream_ms));
        // The stream went back to where its last checkpoint was.
        history.push("a", point(1000));
        let points = &history.of("a").unwrap().points;
        assert!(points.iter().all(|point| point.stream_ms <= 1000) && points.len() > 10);
    }
}
