//! The job written back, every key filled in.
//!
//! The checked form is turned into the raw one, in which nothing is left to a default, and that is printed:
//! keys first, then the sections below, in the order in which they are declared.

use super::{
    Job, Run,
    keys::{Node, Value},
    preset::GivenWorld,
    raw::{
        DataKind, RawData, RawDense, RawDenseColumn, RawJob, RawLabel, RawModel, RawRun, RawSparse,
        RawSparseColumn, RawTable, RawTables, RawTower, RawTowers,
    },
    value::inline,
};
use crate::{
    data::{BagShape, DenseColumn, SEPARATOR, SourceSpec, SparseColumn},
    model::{FeatureSpec, ModelSpec, RowFormat, TableSpec},
    towers::{TowerModule, TowerSpec, TowerVariant},
};

/// The whole job as TOML.
pub(super) fn job_text(job: &Job) -> String {
    let raw = RawJob { run: raw_run(&job.run), process: job.process.clone() };
    let mut out = String::new();
    print_table(&mut out, "", &raw.write());
    out.trim_start().to_owned()
}

/// `[run]` alone, for hashing. Towers that have no module change no result and are left out, so that a run may go on
/// with another way of its vectors.
pub(super) fn run_text(run: &Run) -> String {
    let mut out = String::new();
    let mut raw = raw_run(run);
    raw.towers = raw.towers.filter(|towers| towers.variant == TowerVariant::Towers);
    print_table(&mut out, "run", &raw.write());
    out
}

/// A section on its own, as if it were a whole file.
pub(super) fn section_text(section: &impl Value) -> String {
    let mut out = String::new();
    print_table(&mut out, "", &section.write());
    out
}

pub(crate) fn print_table(out: &mut String, path: &str, node: &Node) {
    let Node::Table(keys) = node else { return };
    for (key, node) in keys {
        if let Node::Inline(text) = node {
            out.push_str(&format!("{key} = {text}\n"));
        }
    }
    for (key, node) in keys {
        let below = if path.is_empty() { (*key).to_owned() } else { format!("{path}.{key}") };
        match node {
            Node::Absent | Node::Inline(_) => {}
            Node::Table(_) => {
                out.push_str(&format!("\n[{below}]\n"));
                print_table(out, &below, node);
            }
            Node::Tables(tables) => {
                for table in tables {
                    out.push_str(&format!("\n[[{below}]]\n"));
                    for (key, node) in table {
                        if let Some(text) = inline(node) {
                            out.push_str(&format!("{key} = {text}\n"));
                        }
                    }
                }
            }
        }
    }
}

fn raw_run(run: &Run) -> RawRun {
    RawRun {
        seed: run.seed,
        batch_size: run.batch_size,
        grains: Some(run.grain_count),
        epochs: run.epochs,
        steps_max: run.steps_max,
        precision: run.model.precision,
        data: raw_data(run),
        // Every table is listed below with all it has, so these defaults are used by none.
        tables: RawTables { rows: None, dim: None, format: RowFormat::F32, init: None },
        table: own_tables(&run.model).map(raw_table).collect(),
        model: RawModel { network: run.model.network.clone(), heads: run.model.heads },
        towers: raw_towers(&run.model),
        sparse: RawSparse {
            optimizer: run.sparse.optimizer,
            learning_rate: run.sparse.learning_rate.base,
            schedule: run.sparse.learning_rate.schedule,
            l2: run.sparse.l2,
            row_norm_max: run.sparse.row_norm_max,
        },
        dense: RawDense {
            optimizer: run.dense.optimizer,
            learning_rate: run.dense.learning_rate.base,
            schedule: run.dense.learning_rate.schedule,
            l2: run.dense.l2,
            norm_max: run.dense.norm_max,
        },
        distil: run.distil,
        follow: (!run.follow.is_none()).then(|| run.follow.clone()),
        exchange: run.exchange,
        evaluate: run.evaluate.clone(),
        corrections: run.corrections,
        only: run.only.clone(),
    }
}

/// All tables but those that follow a teacher, which come last and are made from `[run.follow]`.
fn own_tables(model: &ModelSpec) -> impl Iterator<Item = &TableSpec> {
    model.tables.iter().take(model.tables.len() - model.followers.len())
}

fn raw_towers(model: &ModelSpec) -> Option<RawTowers> {
    let raw = |tower: &TowerSpec| RawTower {
        name: tower.name.clone(),
        features: tower.features.iter().map(|&feature| model.features[feature].name.clone()).collect(),
        module: Some(tower.module),
    };
    (!model.towers.is_empty()).then(|| RawTowers {
        variant: model.towers.variant,
        // Every tower says what it has, so this default is used by none.
        module: TowerModule::Identity,
        module_rate: Some(model.towers.module_rate).filter(|rate| *rate != 1.0),
        tower: model.towers.list.iter().map(raw).collect(),
    })
}

fn raw_data(run: &Run) -> RawData {
    let (data, model) = (&run.data, &run.model);
    let kind = match &data.source {
        SourceSpec::Synthetic(_) => DataKind::Synthetic,
        SourceSpec::CriteoTsv => DataKind::Criteo,
        SourceSpec::Csv { .. } => DataKind::Csv,
        SourceSpec::Parquet => DataKind::Parquet,
    };
    let (delimiter, quotes) = match &data.source {
        SourceSpec::Csv { delimiter, quotes } => (Some(*delimiter), Some(*quotes)),
        _ => (None, None),
    };
    let world = match &data.source {
        SourceSpec::Synthetic(world) => Some(GivenWorld(world.clone())),
        _ => None,
    };
    let listed = |names: &Vec<String>| Some(names.clone()).filter(|names| !names.is_empty());
    // A world names these columns itself, and a job may not.
    let named = |column: &Option<String>| column.clone().filter(|_| kind != DataKind::Synthetic);
    let label = |(label, task): (&crate::data::LabelColumn, &crate::model::TaskSpec)| RawLabel {
        name: label.name.clone(),
        at_least: label.at_least,
        weight: task.weight,
        teacher: label.teacher.clone(),
    };
    let sparse = |(column, feature)| raw_sparse(kind, model, column, feature);
    RawData {
        kind,
        delimiter,
        // What is usual is left out, so that runs from before these keys go on.
        quotes: quotes.filter(|quotes| !quotes),
        missing_values: listed(&data.columns.missing_values),
        optional: listed(&data.columns.optional),
        split: data.split.clone(),
        on_bad_row: data.bad_rows,
        shuffle: data.shuffle,
        unknown_share: data.unknown_share,
        time: named(&data.columns.time),
        time_unit: data.columns.time_unit,
        group: named(&data.columns.group),
        segment: named(&data.columns.segment),
        sample_weight: named(&data.columns.sample_weight),
        teacher_delay: named(&data.columns.teacher_delay),
        world,
        label: data.columns.labels.iter().zip(&model.tasks).map(label).collect(),
        dense: if kind == DataKind::Synthetic {
            Vec::new()
        } else {
            data.columns.dense.iter().map(raw_dense).collect()
        },
        sparse: data.columns.sparse.iter().zip(&model.features).map(sparse).collect(),
    }
}

fn raw_dense(column: &DenseColumn) -> RawDenseColumn {
    RawDenseColumn {
        name: column.name.clone(),
        missing: column.missing,
        transforms: column.transforms.clone(),
    }
}

fn raw_sparse(
    kind: DataKind,
    model: &ModelSpec,
    column: &SparseColumn,
    feature: &FeatureSpec,
) -> RawSparseColumn {
    let table = Some(model.tables[feature.table.0 as usize].name.clone());
    if kind == DataKind::Synthetic {
        let (map, list, bag_max) = (None, None, None); // The world says these, and the job may not.
        let (name, pooling) = (column.name.clone(), feature.pooling);
        return RawSparseColumn {
            name,
            map,
            rows: None,
            table,
            list,
            separator: None,
            bag_max,
            keep: None,
            pooling,
            weights: None,
        };
    }
    let (list, separator) = match column.shape {
        BagShape::One => (false, None),
        BagShape::List { separator } => {
            (true, Some(separator).filter(|&char| kind == DataKind::Csv || char != SEPARATOR))
        }
    };
    RawSparseColumn {
        name: column.name.clone(),
        map: Some(column.map.clone()),
        rows: None, // The table has them.
        table,
        list: Some(list),
        separator,
        bag_max: Some(column.bag_max),
        keep: Some(column.keep).filter(|keep| !keep.is_first()),
        pooling: feature.pooling,
        weights: column.weights.clone(),
    }
}

fn raw_table(table: &TableSpec) -> RawTable {
    RawTable {
        name: table.name.clone(),
        rows: Some(table.row_count),
        dim: Some(table.dim),
        format: Some(table.format),
        init: Some(table.init),
    }
}
