//! From what the user typed to the checked job: every default filled in, every rule held.
//!
//! A rule that fails names the key by its path (`run.data.sparse[2].rows`); the place in the file is looked up
//! from the path afterwards, so checks need no spans.

mod columns;
mod follow;
mod tables;
mod towers;
mod training;

use std::fmt::Display;

use super::{
    Job, Process, Run,
    error::Problem,
    nearest::suggest,
    raw::{DataKind, RawJob, RawModel},
};
use crate::{
    Grains,
    data::{Columns, DataSpec, SplitSpec},
    grain::GRAIN_SAMPLES_MAX,
    model::{CrossRank, FeatureSpec, ModelSpec, NetworkSpec, TableId, TaskSpec},
    towers::Towers,
};

/// The most grains of a batch, and so the most ranks of a run.
const GRAINS_MAX: usize = 1 << 16;

/// The largest batch: that many grains of the usual size.
const BATCH_SIZE_MAX: usize = GRAINS_MAX * GRAIN_SAMPLES_MAX;

/// The widest layer.
const WIDTH_MAX: usize = 1 << 16;

/// Checks a job and fills it in.
pub(super) fn job(raw: RawJob) -> Result<Job, Problem> {
    let (run, process) = (raw.run, raw.process);
    between("run.batch_size", run.batch_size, 1, BATCH_SIZE_MAX)?;
    let grain_count = grain_count(run.grains, run.batch_size)?;
    at_least("run.epochs", run.epochs, 1)?;
    let mut columns = columns::columns(&run.data)?;
    let tables = tables::tables(&run, &columns)?;
    for (column, &table) in columns.columns.sparse.iter_mut().zip(&tables.of_feature) {
        column.row_count = tables.tables[table].row_count;
    }
    let features = columns.columns.sparse.iter().zip(&columns.poolings).zip(&tables.of_feature);
    let feature = |((column, &pooling), &table): ((&crate::data::SparseColumn, _), _)| FeatureSpec {
        name: column.name.clone(),
        table: TableId(table as u32),
        pooling,
    };
    let mut model = ModelSpec {
        dense_count: columns.columns.dense.len(),
        features: features.map(feature).collect(),
        tables: tables.tables,
        tasks: columns.tasks,
        network: network(&run.model, &columns.columns)?,
        heads: run.model.heads,
        precision: run.precision,
        towers: Towers::default(),
        followers: Vec::new(),
    };
    model.towers = towers::towers(run.towers.as_ref(), &model)?;
    if run.follow.is_some() && !model.towers.is_empty() {
        let advice = "tables that follow a teacher cannot live in towers yet; leave out one of the two";
        return Err(Problem::value("run.follow", "given beside [run.towers]", advice));
    }
    let follow = follow::follow(run.follow, &columns.columns, &columns.source, &mut model)?;
    check_process(&process, grain_count, run.data.kind, &run.data.split)?;
    between("run.data.unknown_share", run.data.unknown_share, 0.0, 0.5)?;
    let data = DataSpec {
        source: columns.source,
        columns: columns.columns,
        split: run.data.split,
        bad_rows: run.data.on_bad_row,
        shuffle: run.data.shuffle,
        unknown_share: run.data.unknown_share,
    };
    let sparse = training::sparse(run.sparse)?;
    let dense = training::dense(run.dense)?;
    training::distil(&run.distil, &model)?;
    if let Some(only) = run.only.as_ref().filter(|only| only.values.is_empty()) {
        let advice =
            format!("no example has none of the values of `{}`; name one, or leave it out", only.column);
        return Err(Problem::value("run.only.values", "[]", advice));
    }
    at_least("run.evaluate.window_steps", run.evaluate.window_steps, 1)?;
    let run = Run {
        seed: run.seed,
        batch_size: run.batch_size,
        grain_count,
        epochs: run.epochs,
        steps_max: run.steps_max,
        data,
        model,
        sparse,
        dense,
        distil: run.distil,
        follow,
        exchange: run.exchange,
        evaluate: run.evaluate,
        corrections: run.corrections,
        only: run.only,
    };
    Ok(Job { run, process })
}

fn grain_count(given: Option<usize>, batch_size: usize) -> Result<usize, Problem> {
    let chosen = Grains::for_batch(batch_size).count().min(GRAINS_MAX);
    let Some(count) = given else { return Ok(chosen) };
    if count.is_power_of_two() && count <= GRAINS_MAX {
        return Ok(count);
    }
    let advice = format!("it must be a power of two up to {GRAINS_MAX}; leave it out for {chosen}");
    Err(Problem::value("run.grains", count, advice))
}

fn network(model: &RawModel, columns: &Columns) -> Result<NetworkSpec, Problem> {
    let (dense_count, sparse_count) = (columns.dense.len(), columns.sparse.len());
    let widths = |key: &str, widths: &[usize]| {
        widths.iter().enumerate().try_for_each(|(layer, &width)| {
            between(&format!("run.model.{key}[{layer}]"), width, 1, WIDTH_MAX)
        })
    };
    match &model.network {
        NetworkSpec::Dlrm { bottom, top } => {
            if bottom.is_empty() && dense_count > 0 {
                let advice =
                    "the dense columns need at least one width; the last is the one in which vectors meet";
                return Err(Problem::value("run.model.bottom", "[]", advice));
            }
            if usize::from(dense_count > 0) + sparse_count < 2 {
                let advice =
                    "its vectors meet in pairs: it needs two features, or one and dense columns; use \"mlp\"";
                return Err(Problem::value("run.model.kind", "\"dlrm\"", advice));
            }
            widths("bottom", bottom)?;
            widths("top", top)?;
        }
        NetworkSpec::Dcn { bottom, cross_layers, cross_rank, deep, .. } => {
            if !bottom.is_empty() && dense_count == 0 {
                let advice = "there is no [[run.data.dense]] for it; leave it out";
                return Err(Problem::value("run.model.bottom", format!("{bottom:?}"), advice));
            }
            widths("bottom", bottom)?;
            widths("deep", deep)?;
            between("run.model.cross_layers", *cross_layers, 1, 64)?;
            if let CrossRank::Low(rank) = cross_rank {
                between("run.model.cross_rank", *rank, 1, WIDTH_MAX)?;
            }
        }
        NetworkSpec::Mlp { hidden } => widths("hidden", hidden)?,
        NetworkSpec::TwoTower { user, item, width, .. } => {
            widths("user", user)?;
            widths("item", item)?;
            between("run.model.width", *width, 1, WIDTH_MAX)?;
            sides(&model.network, columns)?;
        }
        NetworkSpec::LogisticRegression | NetworkSpec::FactorizationMachine => {}
    }
    Ok(model.network.clone())
}

/// Which inputs are the item's: names and places that exist, each once, and something left for the user.
fn sides(network: &NetworkSpec, columns: &Columns) -> Result<(), Problem> {
    let NetworkSpec::TwoTower { item_features, item_dense, .. } = network else { return Ok(()) };
    for (index, name) in item_features.iter().enumerate() {
        let (path, shown) = (format!("run.model.item_features[{index}]"), format!("{name:?}"));
        let known = columns.sparse.iter().map(|column| &*column.name);
        if !known.clone().any(|known| known == name) {
            let advice = format!("there is no feature of this name; {}", suggest(name, known));
            return Err(Problem::value(&path, shown, advice));
        }
        if item_features[..index].contains(name) {
            return Err(Problem::value(&path, shown, "it stands there already"));
        }
    }
    let dense_count = columns.dense.len();
    for (index, place) in item_dense.iter().enumerate() {
        let path = format!("run.model.item_dense[{index}]");
        if *place >= dense_count {
            let advice = format!("places are counted from 0, and the dense inputs are {dense_count}");
            return Err(Problem::value(&path, place, advice));
        }
        if item_dense[..index].contains(place) {
            return Err(Problem::value(&path, place, "it stands there already"));
        }
    }
    let (of_item, all) = (item_features.len() + item_dense.len(), dense_count + columns.sparse.len());
    if of_item == 0 || of_item == all {
        let who = if of_item == 0 { "the item" } else { "the user" };
        let advice =
            format!("{who} is left without inputs; name here the features of the item and no others");
        return Err(Problem::value("run.model.item_features", format!("{item_features:?}"), advice));
    }
    Ok(())
}

fn check_process(process: &Process, grains: usize, kind: DataKind, split: &SplitSpec) -> Result<(), Problem> {
    if process.threads > 0 && !grains.is_multiple_of(process.threads) {
        let fitting: Vec<String> =
            [1, 2, 4, 8].iter().filter(|&&count| count <= grains).map(ToString::to_string).collect();
        let advice = format!(
            "it must divide the {grains} grains of a batch (run.grains), as {} would",
            fitting.join(", ")
        );
        return Err(Problem::value("process.threads", process.threads, advice));
    }
    at_least("process.checkpoints_kept", process.checkpoints_kept, 1)?;
    at_least("process.prep_memory_mib", process.prep_memory_mib, 16)?;
    between("process.batches_ahead", process.batches_ahead, 1, 1024)?;
    let files = &process.data;
    let given = [("train", &files.train), ("valid", &files.valid), ("test", &files.test)];
    for (key, files) in given {
        if let Some(index) = files.iter().position(String::is_empty) {
            return Err(Problem::value(&format!("process.data.{key}[{index}]"), "\"\"", "name a file"));
        }
        if !files.is_empty() && kind == DataKind::Synthetic {
            let advice = "a synthetic world needs no files; leave it out";
            return Err(Problem::value(&format!("process.data.{key}"), format!("{files:?}"), advice));
        }
        if !files.is_empty() && key != "train" && *split != SplitSpec::ByFile {
            let advice = "the split takes these rows from `train`; leave it out, or set split = \"by_file\"";
            return Err(Problem::value(&format!("process.data.{key}"), format!("{files:?}"), advice));
        }
    }
    if files.train.is_empty() && kind != DataKind::Synthetic {
        return Err(Problem::missing(
            "process.data.train",
            "it says which files to train on, such as [\"logs/*.gz\"]",
        ));
    }
    Ok(())
}

/// Refuses a number below `low`.
fn at_least<T: PartialOrd + Display>(path: &str, value: T, low: T) -> Result<(), Problem> {
    if value >= low { Ok(()) } else { Err(Problem::value(path, value, format!("it must be at least {low}"))) }
}

/// Refuses a number outside `low..=high`.
fn between<T: PartialOrd + Display>(path: &str, value: T, low: T, high: T) -> Result<(), Problem> {
    if value >= low && value <= high {
        return Ok(());
    }
    Err(Problem::value(path, value, format!("it must be from {low} to {high}")))
}

/// The task of a label.
fn task(name: &str, weight: f32) -> TaskSpec {
    TaskSpec { name: name.to_owned(), weight }
}
