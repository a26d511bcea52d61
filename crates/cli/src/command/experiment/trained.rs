//! Experiments with teachers that are really trained: snapshots of a larger model that sees more, on the same stream.

use anyhow::{Context, Result};
use campanile_spec::{
    DistilMethod, NetworkSpec, RowInit,
    config::Job,
    data::SourceSpec,
    world::{Drift, View},
};

use super::{
    delay::{self, Aged},
    lab::{Lab, Measured, listening},
    table::{Row, Table},
};
use crate::command::{
    augment::{Coverage, Manner, Versions, augment},
    forward_operations as flops,
};

/// Snapshots that a teacher publishes over the stream.
const SNAPSHOTS: u64 = 32;

/// The world: a fifth of the inputs only the teacher sees, and items drift a little.
fn world(job: &mut Job, view: View) {
    if let SourceSpec::Synthetic(world) = &mut job.run.data.source {
        world.teacher_only = vec!["sparse_3".to_owned()];
        world.dense_teacher_only = 1;
        world.drift = Drift { item: 0.3, ..Drift::default() };
        world.view = view;
        let columns = world.columns(view);
        let seen: Vec<String> = columns.sparse.iter().map(|column| column.name.clone()).collect();
        let model = &mut job.run.model;
        model.features.retain(|feature| seen.contains(&feature.name));
        let kept: Vec<_> =
            model.features.iter().map(|feature| model.tables[feature.table.0 as usize].clone()).collect();
        for (place, feature) in model.features.iter_mut().enumerate() {
            feature.table.0 = place as u32;
        }
        model.tables = kept;
        model.dense_count = columns.dense.len();
        job.run.data.columns = columns;
    }
}

/// Makes a job's model larger: wider rows, wider and more layers.
fn enlarge(job: &mut Job, dim: usize, hidden: &[usize]) {
    for table in &mut job.run.model.tables {
        table.dim = dim;
        table.init = RowInit::Normal { deviation: 0.05 };
    }
    job.run.model.network = NetworkSpec::Mlp { hidden: hidden.to_vec() };
}

/// Trains a teacher over the stream and has its snapshots score the rows that came after them.
fn teach(
    lab: &Lab,
    seed: u64,
    dim: usize,
    hidden: &[usize],
    words: &std::path::Path,
) -> Result<(Measured, u64, Coverage)> {
    let mut job = lab.job(seed, |job| world(job, View::Teacher))?;
    enlarge(&mut job, dim, hidden);
    snapshots(lab, &mut job);
    let place = lab.place("teacher");
    let measured = lab.train_at(&job, &place)?;
    let student = lab.job(seed, |job| world(job, View::Student))?;
    let manner = Manner { follow: true, delay_seconds: 0.0, time_unit: 0.001 };
    let coverage = augment((&student, 0), &Versions::of_checkpoints(&place)?, manner, words, true)?;
    std::fs::remove_dir_all(&place).with_context(|| format!("cannot remove {}", place.display()))?;
    Ok((measured, flops(&job)?, coverage))
}

/// Words of one teacher by the age of its snapshots, in a world whose items drift.
pub fn delay(lab: &Lab) -> Result<Vec<Aged>> {
    let drifting = |job: &mut Job, view: View| {
        world(job, view);
        if let SourceSpec::Synthetic(world) = &mut job.run.data.source {
            world.drift = Drift { item: 1.5, ..Drift::default() };
        }
    };
    let shares = [0.0, 1.0 / 32.0, 1.0 / 16.0, 1.0 / 8.0, 1.0 / 4.0, 3.0 / 8.0];
    let stream = lab.stream_seconds();
    let mut aged: Vec<Aged> =
        shares.map(|share| Aged { delay_seconds: share * stream, judged: Vec::new() }).into();
    for &seed in &lab.seeds {
        let mut job = lab.job(seed, |job| drifting(job, View::Teacher))?;
        enlarge(&mut job, 16, &[64]);
        snapshots(lab, &mut job);
        let place = lab.place("teacher");
        lab.train_at(&job, &place)?;
        let student = lab.job(seed, |job| drifting(job, View::Student))?;
        let manner = Manner { follow: true, delay_seconds: 0.0, time_unit: 0.001 };
        delay::judge(lab, &student, &Versions::of_checkpoints(&place)?, manner, &mut aged)?;
        std::fs::remove_dir_all(&place).with_context(|| format!("cannot remove {}", place.display()))?;
    }
    delay::print(&format!("item drift 1.5, a stream of {stream} s"), &aged);
    Ok(aged)
}

/// Publishes so many snapshots over a stream.
fn snapshots(lab: &Lab, job: &mut Job) {
    let steps = lab.samples.div_ceil(job.run.batch_size as u64);
    job.process.checkpoint_every_steps = (steps / SNAPSHOTS).max(1);
    job.process.checkpoints_kept = SNAPSHOTS as usize + 1;
}

/// Teachers of rising size, for the same student.
pub fn teachers(lab: &Lab) -> Result<Vec<Table>> {
    let sizes: [(&str, usize, &[usize]); 4] =
        [("1x", 8, &[32]), ("4x", 16, &[64]), ("16x", 32, &[128, 64]), ("64x", 48, &[384, 128])];
    let student = |lab: &Lab, seed, method, words: Option<&std::path::Path>| -> Result<Job> {
        lab.job(seed, |job| {
            world(job, View::Student);
            job.run.distil = listening(method, [5.0, 1.0, 1.0]);
            job.process.data.teacher = words.map(ToOwned::to_owned);
        })
    };
    let mut tables = Vec::new();
    let mut twins = Vec::new();
    for &seed in &lab.seeds {
        twins.push(lab.train(&student(lab, seed, DistilMethod::None, None)?)?);
    }
    let own = flops(&student(lab, 1, DistilMethod::None, None)?)?;
    for (name, dim, hidden) in sizes {
        let mut rows = vec![Row { name: "none".to_owned(), measured: twins.clone() }];
        for method in [DistilMethod::OneHead, DistilMethod::Auxiliary, DistilMethod::Adapter] {
            rows.push(Row { name: format!("{method:?}").to_lowercase(), measured: Vec::new() });
        }
        let (mut teacher_flops, mut share) = (0, 0.0);
        let mut teachers = Row { name: "the teacher itself".to_owned(), measured: Vec::new() };
        for &seed in &lab.seeds {
            let words = lab.place("words");
            let (measured, flops, coverage) = teach(lab, seed, dim, hidden, &words)?;
            teacher_flops = flops;
            share = coverage.scored as f64 / coverage.rows as f64;
            teachers.measured.push(measured);
            for (row, method) in rows[1..].iter_mut().zip([
                DistilMethod::OneHead,
                DistilMethod::Auxiliary,
                DistilMethod::Adapter,
            ]) {
                row.measured.push(lab.train(&student(lab, seed, method, Some(&words))?)?);
            }
            std::fs::remove_file(&words).with_context(|| format!("cannot remove {}", words.display()))?;
        }
        rows.push(teachers);
        let title = format!(
            "teacher {name}: {:.1} times the student's {own} operations a sample; {:.0} % of rows scored",
            teacher_flops as f64 / own as f64,
            100.0 * share
        );
        let table = Table { title, rows };
        table.print();
        tables.push(table);
    }
    Ok(tables)
}

/// One teacher for several students: what each gains, and what the teacher costs each.
pub fn students(lab: &Lab) -> Result<Vec<Table>> {
    let shapes: [(&str, usize, &[usize]); 8] = [
        ("mlp 16, dim 4", 4, &[16]),
        ("mlp 32, dim 4", 4, &[32]),
        ("mlp 16, dim 8", 8, &[16]),
        ("mlp 32, dim 8", 8, &[32]),
        ("mlp 64, dim 8", 8, &[64]),
        ("mlp 32-16, dim 8", 8, &[32, 16]),
        ("mlp 32, dim 16", 16, &[32]),
        ("mlp 64-32, dim 16", 16, &[64, 32]),
    ];
    let mut pairs: Vec<[Row; 2]> = shapes
        .iter()
        .map(|(name, ..)| {
            let row = |how: &str| Row { name: format!("{name}, {how}"), measured: Vec::new() };
            [row("none"), row("auxiliary")]
        })
        .collect();
    let (mut teacher_flops, mut calls) = (0, 0);
    let mut own = vec![0; shapes.len()];
    for &seed in &lab.seeds {
        let words = lab.place("words");
        let (_, flops_of_teacher, coverage) = teach(lab, seed, 32, &[128, 64], &words)?;
        (teacher_flops, calls) = (flops_of_teacher, coverage.scored);
        for (place, (_, dim, hidden)) in shapes.iter().enumerate() {
            for (how, method) in [DistilMethod::None, DistilMethod::Auxiliary].into_iter().enumerate() {
                let mut job = lab.job(seed, |job| {
                    world(job, View::Student);
                    job.run.distil = listening(method, [5.0, 1.0, 1.0]);
                    job.process.data.teacher = Some(words.clone());
                })?;
                enlarge(&mut job, *dim, hidden);
                own[place] = flops(&job)?;
                pairs[place][how].measured.push(lab.train(&job)?);
            }
        }
        std::fs::remove_file(&words).with_context(|| format!("cannot remove {}", words.display()))?;
    }
    let mut tables = Vec::new();
    for [none, taught] in pairs {
        let table = Table { title: none.name.replace(", none", ""), rows: vec![none, taught] };
        table.print();
        tables.push(table);
    }
    print_ledger(teacher_flops, calls, &own);
    Ok(tables)
}

/// Training costs three forward passes, and the teacher is trained and asked once, for however many students.
fn print_ledger(teacher: u64, calls: u64, students: &[u64]) {
    println!("\n**Operations a sample, training included; {calls} rows scored once for all**\n");
    println!(
        "| students | teacher, training and scoring | per student | the students' own, mean | teacher's share |"
    );
    println!("|---|---|---|---|---|");
    for count in [1, 2, 4, 8] {
        let teacher = 4.0 * teacher as f64;
        let own = students[..count].iter().map(|flops| 3.0 * *flops as f64).sum::<f64>() / count as f64;
        let each = teacher / count as f64;
        println!("| {count} | {teacher:.0} | {each:.0} | {own:.0} | {:.0} % |", 100.0 * each / (each + own));
    }
}
