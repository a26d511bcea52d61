//! A student of a small domain, and trained teachers of rising size on the traffic of all domains.
//!
//! What a teacher can give a student is what it has seen and the student has not. On the student's own rows it has nothing:
//! its words are then labels that went through another model. On the union of all domains it has seen each id twenty times
//! as often. The world of each seed is written as rows, all of them and the domain's, and the rest is as with real logs.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use campanile_spec::{
    Batch,
    data::{Columns, SourceSpec},
    world::{Domain, View, WorldSpec},
};

use super::{file::ExperimentFile, lab::Lab, real, table::Table};
use crate::command::prep;

/// The student's domain, the last of the world, and what share of the traffic it has.
const DOMAIN: &str = "video";
const SHARES: [(&str, f64); 3] = [("feed", 12.0), ("search", 7.0), (DOMAIN, 1.0)];

/// Rows that are written at a time.
const ROWS_AT_ONCE: u64 = 4096;

/// Teachers by name: floats of a row, hidden widths.
const SIZES: [(&str, usize, &[usize]); 4] =
    [("1x", 8, &[32]), ("4x", 16, &[64]), ("16x", 32, &[128, 64]), ("64x", 48, &[384, 128])];

/// How tables follow.
const FOLLOWED: &str = "follow_floats = 16\nfollow_rates = [0.1, 0.3, 1.0]";

/// Teachers of rising size for the student of the small domain.
pub fn union(lab: &Lab) -> Result<Vec<Table>> {
    let mut tables = Vec::new();
    for (name, dim, hidden) in SIZES {
        let rows = [lab.place("union.csv"), lab.place("domain.csv")];
        let file = experiment(lab, (name, dim, hidden), "weights = [1.0, 5.0, 20.0]", &rows)?;
        let (told, _) = real::run_with(lab, &file, &mut |seed| write_world(lab, seed, &rows))?;
        tables.extend(told);
    }
    Ok(tables)
}

/// One of the teachers, and students with tables that follow its embedding, with and without a head that learns from its
/// words; by every feature, and at several rates.
pub fn follow(lab: &Lab) -> Result<Vec<Table>> {
    let rows = [lab.place("union.csv"), lab.place("domain.csv")];
    let SourceSpec::Synthetic(world) = world(lab, 1)?.run.data.source else { return Ok(Vec::new()) };
    let features: Vec<String> =
        world.columns(View::Student).sparse.into_iter().map(|column| column.name).collect();
    let settings = format!("weights = [5.0]\nfollow = {features:?}\n{FOLLOWED}");
    let file = experiment(lab, SIZES[1], &settings, &rows)?;
    Ok(real::run_with(lab, &file, &mut |seed| write_world(lab, seed, &rows))?.0)
}

/// The world that everybody sees something of.
fn world(lab: &Lab, seed: u64) -> Result<campanile_spec::config::Job> {
    lab.job(seed, |job| {
        if let SourceSpec::Synthetic(world) = &mut job.run.data.source {
            world.teacher_only = vec!["sparse_3".to_owned()];
            world.dense_teacher_only = 1;
            world.view = View::Teacher;
            world.domains = SHARES
                .map(|(name, share)| Domain { name: name.to_owned(), share, ..Domain::default() })
                .into();
            let columns = world.columns(View::Teacher);
            job.run.model.dense_count = columns.dense.len();
            job.run.data.columns = columns;
        }
    })
}

/// The experiment as a file would describe it.
fn experiment(
    lab: &Lab,
    (name, dim, hidden): (&str, usize, &[usize]),
    settings: &str,
    [union, domain]: &[PathBuf; 2],
) -> Result<ExperimentFile> {
    let job = world(lab, 1)?;
    let SourceSpec::Synthetic(world) = &job.run.data.source else {
        anyhow::bail!("the lab's job is a world")
    };
    let (all, own) = (world.columns(View::Teacher), world.columns(View::Student));
    let text = format!(
        r#"
[experiment]
name = "a teacher {name} of all domains"
snapshots = 48
seconds_per_time_unit = 0.001
{settings}
[job.run]
batch_size = 256
[job.run.data]
kind = "csv"
shuffle = false
time = "time"
label = [{{ name = "click" }}]
{}
[job.run.tables]
dim = 8
init = {{ kind = "normal", deviation = 0.05 }}
[job.run.model]
kind = "mlp"
hidden = [32]
[job.run.sparse]
optimizer = "adagrad"
learning_rate = 0.04
[job.run.dense]
optimizer = "adagrad"
learning_rate = 0.04
[job.process]
threads = 1
[teacher.run.data]
{}
[teacher.run.tables]
dim = {dim}
[teacher.run.model]
hidden = {hidden:?}
[teacher.process.data]
train = [{union:?}]
[[student]]
name = "{DOMAIN}"
process.data.train = [{domain:?}]
"#,
        columns(&own, &[]),
        columns(&all, &["{ name = \"domain\", rows = 64 }"]),
    );
    ExperimentFile::parse(&text).context("the experiment's own file")
}

/// The dense and sparse columns of a view as keys of a job.
fn columns(columns: &Columns, more: &[&str]) -> String {
    let dense = columns.dense.iter().map(|column| format!("{{ name = {:?} }}", column.name));
    let sparse = columns.sparse.iter().map(|column| {
        format!("{{ name = {:?}, map = \"direct\", rows = {} }}", column.name, column.row_count)
    });
    let sparse = sparse.chain(more.iter().map(|column| (*column).to_owned()));
    format!(
        "dense = [{}]\nsparse = [{}]",
        dense.collect::<Vec<_>>().join(", "),
        sparse.collect::<Vec<_>>().join(", ")
    )
}

/// Writes the rows of a seed's world, all of them and those of the student's domain.
fn write_world(lab: &Lab, seed: u64, rows: &[PathBuf; 2]) -> Result<()> {
    // What was packed are the rows of the seed before.
    let cache = lab.place("cache");
    if cache.exists() {
        std::fs::remove_dir_all(&cache).with_context(|| format!("cannot remove {}", cache.display()))?;
    }
    let job = world(lab, seed)?;
    let SourceSpec::Synthetic(spec) = &job.run.data.source else { return Ok(()) };
    let dataset = prep::prepared(&job, true)?.train;
    let (mut reader, mut batch) = (dataset.reader()?, Batch::default());
    let mut files = [sheet(&rows[0], spec)?, sheet(&rows[1], spec)?];
    for start in (0..dataset.row_count()).step_by(ROWS_AT_ONCE as usize) {
        reader.read(0, start..dataset.row_count().min(start + ROWS_AT_ONCE), &mut batch)?;
        for sample in 0..batch.sample_count {
            let line = line(&batch, sample);
            let is_own = batch.segments[sample] as usize == SHARES.len() - 1;
            for (file, path) in files.iter_mut().zip(rows).take(1 + usize::from(is_own)) {
                writeln!(file, "{line}").with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
    }
    for (file, path) in files.iter_mut().zip(rows) {
        file.flush().with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// A file of rows, begun with the names of its columns.
fn sheet(path: &Path, world: &WorldSpec) -> Result<BufWriter<File>> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut file = BufWriter::new(file);
    let columns = world.columns(View::Teacher);
    let dense = columns.dense.iter().map(|column| &column.name);
    let names: Vec<&str> =
        dense.chain(columns.sparse.iter().map(|column| &column.name)).map(|n| &**n).collect();
    writeln!(file, "time,domain,click,{}", names.join(","))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(file)
}

/// A row: time, domain, click, dense inputs, ids. Every bag of this world has one id.
fn line(batch: &Batch, sample: usize) -> String {
    let width = batch.dense.len() / batch.sample_count.max(1);
    let mut line = format!("{},{},{}", batch.times[sample], batch.segments[sample], batch.labels[sample]);
    for value in &batch.dense[sample * width..][..width] {
        line.push_str(&format!(",{value}"));
    }
    for feature in 0..batch.bags.feature_count() {
        let id = batch.bags.feature(feature).bag(sample).first().map_or_else(String::new, u32::to_string);
        line.push_str(&format!(",{id}"));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::learning::{ExperimentArguments, ExperimentName};

    #[test]
    fn the_domain_is_a_small_part_of_the_union_and_the_student_sees_less() {
        let home = tempfile::tempdir().unwrap();
        let arguments = ExperimentArguments {
            name: ExperimentName::Union,
            file: None,
            seeds: 1,
            samples: 10_000,
            work: home.path().join("work"),
            report: None,
        };
        let lab = Lab::new(&arguments).unwrap();
        let rows = [lab.place("union.csv"), lab.place("domain.csv")];
        write_world(&lab, 1, &rows).unwrap();
        let [union, domain] = rows.each_ref().map(|path| std::fs::read_to_string(path).unwrap());
        assert_eq!(union.lines().count(), 10_001);
        let share = domain.lines().count() as f64 / union.lines().count() as f64;
        assert!((0.04..0.06).contains(&share), "{share}");
        // Every row of the domain is one of the union, in the same order.
        let mut all = union.lines();
        assert!(domain.lines().all(|line| all.any(|other| other == line)));
        let file = experiment(&lab, SIZES[1], "", &rows).unwrap();
        let (own, teacher) = (&file.students[0].job.run.data.columns, &file.teacher.run.data.columns);
        assert_eq!((own.sparse.len(), teacher.sparse.len()), (5, 7));
        assert_eq!((own.dense.len(), teacher.dense.len()), (3, 4));
    }
}
