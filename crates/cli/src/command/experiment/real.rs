//! Students of real logs, and one teacher that is trained on all of them.
//!
//! The teacher goes over its stream once and leaves snapshots on its way. A student's rows are scored by the newest
//! snapshot whose training ended before the row's time, so that no word comes from somebody who knew the answer. Then
//! every way of listening is trained on the same rows, each predicted before it is trained on.

use std::path::Path;

use anyhow::{Context, Result, bail};
use campanile_spec::{Distil, DistilMethod, Follow, SparseOptimizer, config::Job};

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

/// An optimizer whose steps do not become small.
const ADAM: SparseOptimizer = SparseOptimizer::RowwiseAdam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };

/// One student: how it was taught, and what came of it.
struct Taught<'a> {
    student: &'a Student,
    ways: Vec<Way>,
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
    let beside = ways_beside(&file.settings);
    let mut taught = Vec::new();
    for student in &file.students {
        let ways = ways(&file.settings, &student.job)?;
        let row = |way: &Way| Row { name: way.name.clone(), measured: Vec::new() };
        let rows = ways.iter().chain(&beside).map(row).collect();
        let table = Table { title: student.name.clone(), rows };
        let (coverage, flops) = (Coverage::default(), flops(&student.job)?);
        taught.push(Taught { student, ways, table, coverage, flops });
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
            let floats = if file.settings.follow.is_empty() { 0 } else { file.settings.follow_floats };
            taught.coverage = augment((&job, floats), &versions, manner(&file.settings), &words, true)?;
            let (rows, rows_beside) = taught.table.rows.split_at_mut(taught.ways.len());
            listen(lab, &job, &words, rows, &taught.ways)?;
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

/// The twin without a teacher first, then every method with every weight; then tables that follow, alone and beside a
/// head, and a twin whose tables are as much wider and learn from labels.
fn ways(settings: &Settings, student: &Job) -> Result<Vec<Way>> {
    let mut ways = vec![Way::listening("none".to_owned(), Distil::default())];
    let methods = [
        ("one head", DistilMethod::OneHead),
        ("auxiliary", DistilMethod::Auxiliary),
        ("adapter", DistilMethod::Adapter),
    ];
    for (name, method) in methods {
        let way = |w: &f32| Way::listening(format!("{name}, w {w}"), listening(method, [*w, 1.0, 1.0]));
        ways.extend(settings.weights.iter().map(way));
    }
    let features: Vec<String> =
        student.run.model.features.iter().map(|feature| feature.name.clone()).collect();
    let own: Vec<String> = settings.follow.iter().filter(|name| features.contains(name)).cloned().collect();
    if own.is_empty() {
        if let Some(name) = settings.follow.first() {
            bail!("experiment.follow names `{name}`, and the student has only `{}`", features.join("`, `"));
        }
        return Ok(ways);
    }
    let follow = |rate: f32| Follow {
        features: own.clone(),
        floats: settings.follow_floats,
        learning_rate: rate,
        ..Follow::default()
    };
    let wider = Way {
        wider: true,
        follow: follow(1.0),
        ..Way::listening("wider tables".to_owned(), Distil::default())
    };
    ways.push(wider);
    for &rate in &settings.follow_rates {
        let name = format!("following, rate {rate}");
        ways.push(Way { follow: follow(rate), ..Way::listening(name, Distil::default()) });
        // Adam forgets at a constant rate, and a tenth of AdaGrad's rate is as fast at first.
        let forgetting = Follow { optimizer: ADAM, ..follow(0.1 * rate) };
        let name = format!("following by Adam, rate {:.2}", forgetting.learning_rate);
        ways.push(Way { follow: forgetting, ..Way::listening(name, Distil::default()) });
        for &w in &settings.weights {
            let name = format!("auxiliary, w {w}, and following, rate {rate}");
            let distil = listening(DistilMethod::Auxiliary, [w, 1.0, 1.0]);
            ways.push(Way { follow: follow(rate), ..Way::listening(name, distil) });
        }
    }
    Ok(ways)
}

/// With a teacher that is trained beside the student.
fn ways_beside(settings: &Settings) -> Vec<Way> {
    let weights = if settings.co_training { &settings.weights[..] } else { &[] };
    let way = |w: &f32| {
        let distil = listening(DistilMethod::Auxiliary, [*w, 1.0, 1.0]);
        Way::listening(format!("co-training, auxiliary, w {w}"), distil)
    };
    weights.iter().map(way).collect()
}

/// A way of learning from the teacher.
struct Way {
    name: String,
    distil: Distil,
    follow: Follow,
    /// Whether tables that learn from labels have the floats of those that would follow.
    wider: bool,
}

impl Way {
    fn listening(name: String, distil: Distil) -> Way {
        Way { name, distil, follow: Follow::default(), wider: false }
    }

    /// The student's job, taught this way.
    fn job(&self, student: &Job, words: &Path) -> Job {
        let mut job = student.clone();
        job.run.distil = self.distil;
        job.process.data.teacher = Some(words.to_owned());
        let places = (0..job.run.model.features.len())
            .filter(|place| self.follow.features.contains(&job.run.model.features[*place].name));
        for place in places.collect::<Vec<_>>() {
            if self.wider {
                let table = job.run.model.features[place].table.0 as usize;
                job.run.model.tables[table].dim += self.follow.floats;
            } else {
                job.run.model.add_follower(place, &self.follow);
            }
        }
        if !self.wider {
            job.run.follow = self.follow.clone();
        }
        job
    }
}

/// Trains a student in several ways on the same words.
fn listen(lab: &Lab, job: &Job, words: &Path, rows: &mut [Row], ways: &[Way]) -> Result<()> {
    for (row, way) in rows.iter_mut().zip(ways) {
        row.measured.push(lab.train(&way.job(job, words))?);
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
