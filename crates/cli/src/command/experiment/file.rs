//! The file of `experiment real`: logs, a teacher and students.
//!
//! ```toml
//!   [experiment]                 # how often the teacher is published, how strongly students listen
//!   [job.run.data]               # what all models have in common, as in a job file
//!   [teacher.run.model]          # what lies over it for the teacher: larger, more columns, all tasks, all domains
//!   [[student]]                  # and for each student: one domain, or one behaviour
//!   name = "mobile"
//! ```

use anyhow::{Context, Result, bail};
use campanile_spec::config::{Job, lay_over};
use serde::Deserialize;
use toml::{Table, Value};

/// `[experiment]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// What the data is called in the tables.
    pub name: String,
    /// Snapshots that the teacher publishes over its stream.
    pub snapshots: u64,
    /// Seconds from a snapshot's newest example until it speaks: the time until labels are known.
    pub delay_seconds: f64,
    /// Seconds in a unit of the data's times.
    pub seconds_per_time_unit: f64,
    /// The weights of the teacher that are tried with every method.
    pub weights: Vec<f32>,
    /// Whether to compare with a teacher that is trained beside each student, on its rows alone.
    pub co_training: bool,
    /// Features whose ids the teacher's embedding is followed by, where the student has them; none leaves those ways out.
    pub follow: Vec<String>,
    /// Floats of the embedding.
    pub follow_floats: usize,
    /// The rates at which rows follow that are tried.
    pub follow_rates: Vec<f32>,
    /// Ages at which the teacher's words are judged as well, on the first student's rows; none leaves that out.
    pub ages_seconds: Vec<f64>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            name: "real data".to_owned(),
            snapshots: 48,
            delay_seconds: 0.0,
            seconds_per_time_unit: 1.0,
            weights: vec![1.0],
            co_training: false,
            follow: Vec::new(),
            follow_floats: 16,
            follow_rates: vec![0.3],
            ages_seconds: Vec::new(),
        }
    }
}

/// A student.
#[derive(Debug, Clone)]
pub struct Student {
    /// What it is called in the tables.
    pub name: String,
    /// What it trains, without a teacher.
    pub job: Job,
}

/// What the file says.
#[derive(Debug, Clone)]
pub struct ExperimentFile {
    /// How the experiment is made.
    pub settings: Settings,
    /// The teacher's job.
    pub teacher: Job,
    /// The students.
    pub students: Vec<Student>,
}

impl ExperimentFile {
    /// Reads and checks the text of a file.
    pub fn parse(text: &str) -> Result<ExperimentFile> {
        let mut table: Table = text.parse().context("this is not TOML")?;
        let settings = table.remove("experiment").unwrap_or_else(|| Value::Table(Table::new()));
        let settings: Settings = settings.try_into().context("[experiment]")?;
        settings.check()?;
        let shared = part(&mut table, "job")?;
        let teacher = job_of("the teacher", &shared, &part(&mut table, "teacher")?)?;
        let Some(Value::Array(own)) = table.remove("student") else {
            bail!("there is no [[student]]; name at least one");
        };
        if let Some(key) = table.keys().next() {
            bail!("`{key}` is no key of this file; there are [experiment], [job], [teacher] and [[student]]");
        }
        let mut students = Vec::new();
        for student in own {
            let Value::Table(mut own) = student else { bail!("`student` must be tables: [[student]]") };
            let Some(Value::String(name)) = own.remove("name") else {
                bail!("[[student]] number {} has no `name`", students.len() + 1);
            };
            let job = job_of(&format!("student `{name}`"), &shared, &own)?;
            if job.run.model.tasks.len() != 1 {
                bail!(
                    "student `{name}` has {} labels, and one is compared: give each behaviour a student of its own",
                    job.run.model.tasks.len()
                );
            }
            let task = &job.run.model.tasks[0].name;
            if !teacher.run.model.tasks.iter().any(|known| known.name == *task) {
                bail!(
                    "student `{name}` learns `{task}`, which the teacher does not: add it to the teacher's labels"
                );
            }
            students.push(Student { name, job });
        }
        Ok(ExperimentFile { settings, teacher, students })
    }
}

impl Settings {
    fn check(&self) -> Result<()> {
        if self.snapshots == 0 {
            bail!("experiment.snapshots is 0, so that the teacher would never speak; set at least 1");
        }
        let times = self.ages_seconds.iter().map(|age| ("ages_seconds", *age));
        let mut times = std::iter::once(("delay_seconds", self.delay_seconds)).chain(times);
        if let Some((key, value)) = times.find(|(_, value)| value.is_nan() || *value < 0.0) {
            bail!("experiment.{key} has {value}; times are 0 or more");
        }
        if !(1..=256).contains(&self.follow_floats) {
            bail!("experiment.follow_floats is {}, it must be from 1 to 256", self.follow_floats);
        }
        if let Some(rate) = self.follow_rates.iter().find(|rate| rate.is_nan() || **rate <= 0.0) {
            bail!("experiment.follow_rates has {rate}; rates are above 0");
        }
        if self.seconds_per_time_unit.is_nan() || self.seconds_per_time_unit <= 0.0 {
            bail!("experiment.seconds_per_time_unit is {}, it must be above 0", self.seconds_per_time_unit);
        }
        match self.weights.iter().find(|weight| weight.is_nan() || **weight <= 0.0) {
            Some(weight) => bail!("experiment.weights has {weight}; weights are above 0"),
            None if self.weights.is_empty() => bail!("experiment.weights is empty; name at least one"),
            None => Ok(()),
        }
    }
}

fn part(table: &mut Table, key: &str) -> Result<Table> {
    match table.remove(key) {
        Some(Value::Table(part)) => Ok(part),
        _ => bail!("there is no [{key}]"),
    }
}

/// A model's job; its rows must come once, in the order of their time, or nothing would be predicted ahead.
fn job_of(who: &str, shared: &Table, own: &Table) -> Result<Job> {
    let mut merged = shared.clone();
    lay_over(&mut merged, own);
    let job =
        Job::parse(&merged.to_string()).with_context(|| format!("{who}, with [job] and its own keys"))?;
    if job.run.data.shuffle || job.run.epochs != 1 {
        bail!(
            "{who} must read its rows once and in their order: set shuffle = false in run.data and run.epochs = 1"
        );
    }
    if job.run.data.columns.time.is_none() {
        bail!("{who} needs run.data.time: without times nobody knows what the teacher had seen");
    }
    if job.process.data.train.is_empty() {
        bail!("{who} has no process.data.train: name its files");
    }
    Ok(job)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [&str; 2] = [
        include_str!("../../../../../examples/real/movielens.toml"),
        include_str!("../../../../../examples/real/globo.toml"),
    ];

    #[test]
    fn examples_have_a_teacher_that_sees_more() {
        for text in FILES {
            let file = ExperimentFile::parse(text).unwrap();
            for student in &file.students {
                let (own, teacher) = (&student.job.run.data.columns, &file.teacher.run.data.columns);
                assert!(own.dense.len() + own.sparse.len() < teacher.dense.len() + teacher.sparse.len());
            }
        }
    }

    #[test]
    fn mistakes_name_the_model_and_the_key() {
        let said = |from: &str, to: &str| {
            assert!(FILES[0].contains(from), "{from}");
            format!("{:#}", ExperimentFile::parse(&FILES[0].replacen(from, to, 1)).unwrap_err())
        };
        let cases = [
            ("snapshots = ", "snapshot = ", "snapshot"),
            ("[teacher.run.model]", "[techer.run.model]", "`techer` is no key"),
            ("shuffle = false", "shuffle = true", "shuffle = false"),
            ("time = \"time\"", "", "run.data.time"),
            ("name = \"love\"\n\n[teacher", "name = \"loved\"\n\n[teacher", "`love`"),
        ];
        for (from, to, wanted) in cases {
            let problem = said(from, to);
            assert!(problem.contains(wanted), "{problem}");
        }
    }
}
