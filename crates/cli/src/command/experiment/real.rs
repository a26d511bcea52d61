//! Students of real logs, and one teacher that is trained on all of them.
//!
//! The teacher goes over its stream once and leaves snapshots on its way. A student's rows are scored by the newest
//! snapshot whose training ended before the row's time, so that no word comes from somebody who knew the answer. Then
//! every way of listening is trained on the same rows, each predicted before it is trained on.

use std::path::Path;

use anyhow::{Context, Result};
use campanile_spec::{Distil, DistilMethod, config::Job};

use super::{
    cotrained,
    delay::{self, Aged},
    file::{ExperimentFile, Settings, Student},
    lab::{Lab, Measured, listening},
    table::{Mean, Row, Table},
};
use crate::command::{
    augment::{Coverage, Manner, Versions, augment},
    forward_operations as flops, prep,
};

/// One student: how it was taught, and what came of it.
struct Taught<'a> {
    student: &'a Student,
    table: Table,
    /// Of the last seed; versions fall at the same rows for every seed.
    coverage: Coverage,
    flops: u64,
}

/// Runs the experiment that a file describes, and prints a table for each student, and one of the teacher by age.
pub fn run(lab: &Lab, file: &ExperimentFile) -> Result<(Vec<Table>, Vec<Aged>)> {
    run_with(lab, file, &mut |_| Ok(()))
}

/// The same, with something to do before each seed.
pub fn run_with(
    lab: &Lab,
    file: &ExperimentFile,
    before: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<(Vec<Table>, Vec<Aged>)> {
    let (ways, beside) = (ways(&file.settings.weights), ways_beside(&file.settings));
    let mut taught = Vec::new();
    for student in &file.students {
        let row = |(name, _): &(String, Distil)| Row { name: name.clone(), measured: Vec::new() };
        let rows = ways.iter().chain(&beside).map(row).collect();
        let table = Table { title: student.name.clone(), rows };
        taught.push(Taught { student, table, coverage: Coverage::default(), flops: flops(&student.job)? });
    }
    let ages = file.settings.ages_seconds.iter();
    let mut aged: Vec<Aged> = ages.map(|age| Aged { delay_seconds: *age, judged: Vec::new() }).collect();
    for &seed in &lab.seeds {
        before(seed)?;
        eprintln!("seed {seed} of {}: the teacher", lab.seeds.len());
        let place = lab.place("teacher");
        train_teacher(lab, &of_seed(lab, &file.teacher, seed), &file.settings, &place)?;
        let versions = Versions::of_checkpoints(&place)?;
        for taught in &mut taught {
            eprintln!("seed {seed} of {}: student `{}`", lab.seeds.len(), taught.student.name);
            let job = of_seed(lab, &taught.student.job, seed);
            let words = lab.place("words");
            taught.coverage = augment(&job, &versions, manner(&file.settings), &words, true)?;
            let (rows, rows_beside) = taught.table.rows.split_at_mut(ways.len());
            listen(lab, &job, &words, rows, &ways)?;
            if !beside.is_empty() {
                cotrained::teach(lab, &job, &of_seed(lab, &file.teacher, seed), &words)?;
                listen(lab, &job, &words, rows_beside, &beside)?;
            }
            std::fs::remove_file(&words).with_context(|| format!("cannot remove {}", words.display()))?;
        }
        let first = of_seed(lab, &file.students[0].job, seed);
        delay::judge(lab, &first, &versions, manner(&file.settings), &mut aged)?;
        std::fs::remove_dir_all(&place).with_context(|| format!("cannot remove {}", place.display()))?;
    }
    let teacher_flops = flops(&file.teacher)?;
    let name = &file.settings.name;
    let tables = taught.into_iter().map(|taught| taught.told(name, teacher_flops)).collect();
    if !aged.is_empty() {
        delay::print(
            &format!("{name}, student `{}`: the teacher's words by age", file.students[0].name),
            &aged,
        );
    }
    Ok((tables, aged))
}

/// The twin without a teacher first, then every method with every weight.
fn ways(weights: &[f32]) -> Vec<(String, Distil)> {
    let mut ways = vec![("none".to_owned(), Distil::default())];
    let methods = [
        ("one head", DistilMethod::OneHead),
        ("auxiliary", DistilMethod::Auxiliary),
        ("adapter", DistilMethod::Adapter),
    ];
    for (name, method) in methods {
        ways.extend(weights.iter().map(|w| (format!("{name}, w {w}"), listening(method, [*w, 1.0, 1.0]))));
    }
    ways
}

/// With a teacher that is trained beside the student.
fn ways_beside(settings: &Settings) -> Vec<(String, Distil)> {
    let weights = if settings.co_training { &settings.weights[..] } else { &[] };
    let way = |w: &f32| {
        let distil = listening(DistilMethod::Auxiliary, [*w, 1.0, 1.0]);
        (format!("co-training, auxiliary, w {w}"), distil)
    };
    weights.iter().map(way).collect()
}

/// Trains a student in several ways on the same words.
fn listen(lab: &Lab, job: &Job, words: &Path, rows: &mut [Row], ways: &[(String, Distil)]) -> Result<()> {
    for (row, (_, distil)) in rows.iter_mut().zip(ways) {
        let mut job = job.clone();
        job.run.distil = *distil;
        job.process.data.teacher = Some(words.to_owned());
        row.measured.push(lab.train(&job)?);
    }
    Ok(())
}

fn of_seed(lab: &Lab, job: &Job, seed: u64) -> Job {
    let mut job = job.clone();
    job.run.seed = seed;
    job.process.cache_dir = lab.place("cache");
    job
}

fn manner(settings: &Settings) -> Manner {
    Manner { follow: true, delay_seconds: settings.delay_seconds, time_unit: settings.seconds_per_time_unit }
}

/// Trains the teacher once over its rows, with so many snapshots on the way.
fn train_teacher(lab: &Lab, job: &Job, settings: &Settings, place: &Path) -> Result<Measured> {
    let mut job = job.clone();
    let steps = prep::prepared(&job, true)?.train.row_count() / job.run.batch_size as u64;
    job.process.checkpoint_every_steps = (steps / settings.snapshots).max(1);
    job.process.checkpoints_kept = settings.snapshots as usize + 2;
    lab.train_at(&job, place).context("the teacher")
}

impl Taught<'_> {
    /// Prints the table and hands it out.
    fn told(mut self, data: &str, teacher_flops: u64) -> Table {
        self.table.title = format!(
            "{data}, student `{}`: {} rows, {:.0} % with a word from {} snapshots of a teacher with {:.1} times the operations",
            self.student.name,
            self.coverage.rows,
            100.0 * self.coverage.scored as f64 / self.coverage.rows as f64,
            self.coverage.versions,
            teacher_flops as f64 / self.flops as f64,
        );
        print(&self.table);
        self.table
    }
}

/// Gains in NE and in AUC, each with its standard error, and whether both are beyond two of them.
fn print(table: &Table) {
    println!("\n**{}**\n", table.title);
    println!("| | NE | gain in NE | AUC | gain in AUC | calibration | transfer | beyond two errors |");
    println!("|---|---|---|---|---|---|---|---|");
    for (place, row) in table.rows.iter().enumerate() {
        let mean = |of: fn(&Measured) -> f64| Mean::of(row.measured.iter().map(of)).value;
        let head = format!("| {} | {:.4} |", row.name, mean(|m| m.ne));
        if place == 0 {
            println!("{head} | {:.4} | | {:.3} | | |", mean(|m| m.auc), mean(|m| m.calibration));
            continue;
        }
        let (ne, auc) = (table.gain(row), table.auc_gain(row));
        let clear = |gain: Mean| gain.value.abs() > 2.0 * gain.error;
        let verdict = match (clear(ne) && clear(auc), ne.value > 0.0, auc.value > 0.0) {
            (true, true, true) => "better",
            (true, false, false) => "worse",
            _ => "no",
        };
        println!(
            "{head} {:+.3} ± {:.3} % | {:.4} | {:+.3} ± {:.3} % | {:.3} | {} | {verdict} |",
            ne.value,
            ne.error,
            mean(|m| m.auc),
            auc.value,
            auc.error,
            mean(|m| m.calibration),
            table.transfer_told(row),
        );
    }
    let of_teacher = |of: fn(&Measured) -> f64| Mean::of(table.rows[0].measured.iter().map(of)).value;
    println!(
        "| the teacher's words | {:.4} | | {:.4} | | {:.3} | | |",
        of_teacher(|m| m.teacher_ne),
        of_teacher(|m| m.teacher_auc),
        of_teacher(|m| m.teacher_calibration)
    );
}
