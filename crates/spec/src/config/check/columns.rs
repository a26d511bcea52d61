//! Columns by role: what the job lists, on top of what the kind of data brings.

use super::{super::nearest::suggest, Problem, at_least, between, task};
use crate::{
    config::raw::{DataKind, RawData, RawDenseColumn, RawLabel, RawSparseColumn},
    data::{
        BadRows, BagShape, Columns, DenseColumn, DenseTransform, IdMap, Keep, LabelColumn, SEPARATOR,
        SourceSpec, SparseColumn, SplitSpec,
    },
    model::{Pooling, TaskSpec},
    moment::Moment,
    world::WorldError,
};

/// Ids kept of a list cell when the job does not say.
const BAG_MAX_OF_LISTS: usize = 256;

/// The most ids of a cell.
const BAG_MAX_LIMIT: usize = 1 << 16;

/// The columns of a job, and what the model takes from them.
pub(super) struct CheckedColumns {
    pub(super) source: SourceSpec,
    pub(super) columns: Columns,
    pub(super) tasks: Vec<TaskSpec>,
    /// One per sparse column.
    pub(super) poolings: Vec<Pooling>,
    /// Per sparse column, its place in the job's list, if it is listed.
    pub(super) listed: Vec<Option<usize>>,
}

pub(super) fn columns(data: &RawData) -> Result<CheckedColumns, Problem> {
    let source = source(data)?;
    let brought = match &source {
        SourceSpec::Synthetic(world) => world.columns(world.view),
        SourceSpec::CriteoTsv => Columns::criteo(),
        SourceSpec::Csv { .. } | SourceSpec::Parquet => Columns::default(),
    };
    check_names("label", data.label.iter().map(|label| &label.name))?;
    check_names("dense", data.dense.iter().map(|column| &column.name))?;
    check_names("sparse", data.sparse.iter().map(|column| &column.name))?;
    check_leaks(data)?;
    let is_own = matches!(data.kind, DataKind::Csv | DataKind::Parquet);
    let (labels, tasks) = labels(data, &brought)?;
    let dense = dense(data, &brought, is_own)?;
    let (sparse, poolings, listed) = sparse(data, &brought, is_own)?;
    if dense.is_empty() && sparse.is_empty() {
        let meaning =
            "it says what the model sees; list at least one [[run.data.sparse]] or [[run.data.dense]]";
        return Err(Problem::missing("run.data.sparse", meaning));
    }
    let role = |key: &str, column: &Option<String>, brought: &Option<String>| match (column, data.kind) {
        (None, _) => Ok(brought.clone()),
        (Some(name), DataKind::Synthetic) => Err(Problem::value(
            &format!("run.data.{key}"),
            format!("{name:?}"),
            "the world has its own; leave it out",
        )),
        (Some(name), DataKind::Criteo) => {
            known_column(&format!("run.data.{key}"), name).map(|()| Some(name.clone()))
        }
        (Some(name), _) => Ok(Some(name.clone())),
    };
    let columns = Columns {
        labels,
        dense,
        sparse,
        sample_weight: role("sample_weight", &data.sample_weight, &brought.sample_weight)?,
        time: role("time", &data.time, &brought.time)?,
        group: role("group", &data.group, &brought.group)?,
        segment: role("segment", &data.segment, &brought.segment)?,
        teacher_delay: role("teacher_delay", &data.teacher_delay, &brought.teacher_delay)?,
        time_unit: data.time_unit,
        missing_values: data.missing_values.clone().unwrap_or_default(),
        optional: data.optional.clone().unwrap_or_default(),
    };
    check_text(data, is_own)?;
    check_optional(data, &columns, is_own)?;
    check_split(data, &columns)?;
    if let BadRows::Skip { rows_max } = data.on_bad_row {
        at_least("run.data.on_bad_row.rows_max", rows_max, 1)?;
    }
    Ok(CheckedColumns { source, columns, tasks, poolings, listed })
}

fn source(data: &RawData) -> Result<SourceSpec, Problem> {
    if let Some(delimiter) = data.delimiter.filter(|_| data.kind != DataKind::Csv) {
        let advice = "it has a meaning for kind = \"csv\" only; leave it out";
        return Err(Problem::value("run.data.delimiter", format!("\"{delimiter}\""), advice));
    }
    if let Some(quotes) = data.quotes.filter(|_| data.kind != DataKind::Csv) {
        let advice = "it has a meaning for kind = \"csv\" only; leave it out";
        return Err(Problem::value("run.data.quotes", quotes, advice));
    }
    if data.world.is_some() && data.kind != DataKind::Synthetic {
        let advice = "it has a meaning for kind = \"synthetic\" only; leave it out";
        return Err(Problem::value("run.data.world", "given", advice));
    }
    Ok(match data.kind {
        DataKind::Synthetic => {
            let world = data.world.as_ref().map(|given| given.0.clone()).unwrap_or_default();
            world.check().map_err(world_problem)?;
            SourceSpec::Synthetic(world)
        }
        DataKind::Criteo => SourceSpec::CriteoTsv,
        DataKind::Csv => {
            SourceSpec::Csv { delimiter: data.delimiter.unwrap_or(','), quotes: data.quotes.unwrap_or(true) }
        }
        DataKind::Parquet => SourceSpec::Parquet,
    })
}

/// The world's own complaint, at its key.
fn world_problem(error: WorldError) -> Problem {
    match error {
        WorldError::Range { key, value, wanted } if !key.contains(' ') => {
            Problem::value(&format!("run.data.world.{key}"), value, format!("it must be {wanted}"))
        }
        error => Problem::value("run.data.world", "not possible", error.to_string()),
    }
}

/// Refuses a column that Criteo's logs do not have.
fn known_column(path: &str, name: &str) -> Result<(), Problem> {
    let columns = Columns::criteo();
    let dense = columns.dense.iter().map(|column| &*column.name);
    let sparse = columns.sparse.iter().map(|column| &*column.name);
    let all: Vec<&str> = std::iter::once("label").chain(dense).chain(sparse).collect();
    if all.contains(&name) {
        return Ok(());
    }
    let advice = "Criteo's columns are `label`, `I1` to `I13` and `C1` to `C26`";
    Err(Problem::value(path, format!("{name:?}"), advice))
}

fn check_names<'a>(list: &str, names: impl Iterator<Item = &'a String>) -> Result<(), Problem> {
    let mut seen: Vec<&String> = Vec::new();
    for (index, name) in names.enumerate() {
        let path = format!("run.data.{list}[{index}].name");
        if name.is_empty() {
            return Err(Problem::value(&path, "\"\"", "it must not be empty"));
        }
        if let Some(first) = seen.iter().position(|&other| other == name) {
            let advice = format!("number {} of the list has this name already; names must differ", first + 1);
            return Err(Problem::value(&path, format!("{name:?}"), advice));
        }
        seen.push(name);
    }
    Ok(())
}

/// Refuses a label that is also an input: the model would read its answer.
fn check_leaks(data: &RawData) -> Result<(), Problem> {
    let dense = data.dense.iter().enumerate().map(|(index, column)| ("dense", index, &column.name));
    let sparse = data.sparse.iter().enumerate().map(|(index, column)| ("sparse", index, &column.name));
    let is_label = |name: &String| data.label.iter().any(|label| label.name == *name);
    let is_teacher = |name: &String| data.label.iter().any(|label| label.teacher.as_ref() == Some(name));
    for (list, index, name) in dense.chain(sparse) {
        let advice = if is_label(name) {
            "this column is a label, and a model that sees it learns nothing else; take it out"
        } else if is_teacher(name) {
            "this column is a teacher's word on a label, which nobody has when the model serves; take it out"
        } else {
            continue;
        };
        return Err(Problem::value(&format!("run.data.{list}[{index}].name"), format!("{name:?}"), advice));
    }
    Ok(())
}

/// Refuses a listed name that the data does not bring.
fn check_brought(list: &str, index: usize, name: &str, brought: &[&str]) -> Result<(), Problem> {
    if brought.contains(&name) {
        return Ok(());
    }
    let advice = format!("the data has no such column; {}", suggest(name, brought.iter().copied()));
    Err(Problem::value(&format!("run.data.{list}[{index}].name"), format!("{name:?}"), advice))
}

fn labels(data: &RawData, brought: &Columns) -> Result<(Vec<LabelColumn>, Vec<TaskSpec>), Problem> {
    let names: Vec<&str> = brought.labels.iter().map(|label| &*label.name).collect();
    if data.label.is_empty() && names.is_empty() {
        let meaning = "it says what is predicted; list at least one [[run.data.label]]";
        return Err(Problem::missing("run.data.label", meaning));
    }
    for (index, RawLabel { name, at_least, weight, teacher }) in data.label.iter().enumerate() {
        let path = |key: &str| format!("run.data.label[{index}].{key}");
        if !names.is_empty() {
            check_brought("label", index, name, &names)?;
        }
        if let Some(limit) = at_least.filter(|_| !names.is_empty()) {
            return Err(Problem::value(
                &path("at_least"),
                limit,
                "this label is 0 or 1 already; leave it out",
            ));
        }
        if let Some(teacher) = teacher.as_ref().filter(|_| !names.is_empty()) {
            let advice =
                "this kind of data has no such column; name the teacher's file in [process.data] instead";
            return Err(Problem::value(&path("teacher"), format!("{teacher:?}"), advice));
        }
        if *weight <= 0.0 {
            return Err(Problem::value(
                &path("weight"),
                weight,
                "it must be above 0; leave the label out instead",
            ));
        }
    }
    if data.label.is_empty() {
        return Ok((brought.labels.clone(), names.iter().map(|name| task(name, 1.0)).collect()));
    }
    let column = |label: &RawLabel| LabelColumn {
        name: label.name.clone(),
        at_least: label.at_least,
        teacher: label.teacher.clone(),
    };
    let tasks = data.label.iter().map(|label| task(&label.name, label.weight)).collect();
    Ok((data.label.iter().map(column).collect(), tasks))
}

fn dense(data: &RawData, brought: &Columns, is_own: bool) -> Result<Vec<DenseColumn>, Problem> {
    if data.kind == DataKind::Synthetic && !data.dense.is_empty() {
        let advice = "the world has its own dense columns; leave it out";
        return Err(Problem::value("run.data.dense", "given", advice));
    }
    let mut columns = brought.dense.clone();
    let names: Vec<&str> = brought.dense.iter().map(|column| &*column.name).collect();
    for (index, RawDenseColumn { name, missing, transforms }) in data.dense.iter().enumerate() {
        for (place, transform) in transforms.iter().enumerate() {
            if let DenseTransform::Clip { min, max } = transform
                && min > max
            {
                let path = format!("run.data.dense[{index}].transforms[{place}].min");
                return Err(Problem::value(&path, min, format!("it must not be above max, {max}")));
            }
        }
        let column = DenseColumn { name: name.clone(), missing: *missing, transforms: transforms.clone() };
        if is_own {
            columns.push(column);
            continue;
        }
        check_brought("dense", index, name, &names)?;
        columns.iter_mut().filter(|brought| brought.name == *name).for_each(|place| *place = column.clone());
    }
    Ok(columns)
}

type Sparse = (Vec<SparseColumn>, Vec<Pooling>, Vec<Option<usize>>);

fn sparse(data: &RawData, brought: &Columns, is_own: bool) -> Result<Sparse, Problem> {
    let mut columns = brought.sparse.clone();
    let mut poolings = vec![Pooling::Sum; columns.len()];
    let mut listed = vec![None; columns.len()];
    let names: Vec<&str> = brought.sparse.iter().map(|column| &*column.name).collect();
    for (index, raw) in data.sparse.iter().enumerate() {
        if is_own {
            columns.push(sparse_column(data.kind, index, raw)?);
            poolings.push(raw.pooling);
            listed.push(Some(index));
            continue;
        }
        check_brought("sparse", index, &raw.name, &names)?;
        let Some(place) = names.iter().position(|&name| name == raw.name) else { continue };
        poolings[place] = raw.pooling;
        listed[place] = Some(index);
        if data.kind == DataKind::Synthetic {
            check_world_column(index, raw)?;
        } else {
            columns[place] = sparse_column(data.kind, index, raw)?;
        }
    }
    Ok((columns, poolings, listed))
}

/// A feature of a world may change its table and its pooling only.
fn check_world_column(index: usize, raw: &RawSparseColumn) -> Result<(), Problem> {
    let set = [
        ("keep", raw.keep.is_some()),
        ("map", raw.map.is_some()),
        ("rows", raw.rows.is_some()),
        ("list", raw.list.is_some()),
        ("separator", raw.separator.is_some()),
        ("bag_max", raw.bag_max.is_some()),
        ("weights", raw.weights.is_some()),
    ];
    if let Some((key, _)) = set.into_iter().find(|&(_, is_set)| is_set) {
        let advice = "the world says it; only `table` and `pooling` may be changed here";
        return Err(Problem::value(&format!("run.data.sparse[{index}].{key}"), "given", advice));
    }
    if raw.pooling == Pooling::Weighted {
        let path = format!("run.data.sparse[{index}].pooling");
        return Err(Problem::value(
            &path,
            "\"weighted\"",
            "a world has no weights of ids; use \"sum\" or \"mean\"",
        ));
    }
    Ok(())
}

fn sparse_column(kind: DataKind, index: usize, raw: &RawSparseColumn) -> Result<SparseColumn, Problem> {
    let path = |key: &str| format!("run.data.sparse[{index}].{key}");
    let is_list = raw.list.unwrap_or(false);
    if is_list && kind == DataKind::Criteo {
        return Err(Problem::value(&path("list"), "true", "a Criteo cell holds one id; leave it out"));
    }
    if let Some(separator) = raw.separator.filter(|_| !is_list) {
        let advice = "it has a meaning with list = true only; leave it out";
        return Err(Problem::value(&path("separator"), format!("\"{separator}\""), advice));
    }
    let bag_max = raw.bag_max.unwrap_or(if is_list { BAG_MAX_OF_LISTS } else { 1 });
    between(&path("bag_max"), bag_max, 1, BAG_MAX_LIMIT)?;
    if bag_max > 1 && !is_list {
        return Err(Problem::value(&path("bag_max"), bag_max, "a cell holds one id unless list = true"));
    }
    if raw.keep.is_some() && !is_list {
        return Err(Problem::value(&path("keep"), "given", "a cell holds one id unless list = true"));
    }
    match (&raw.weights, raw.pooling) {
        (Some(column), Pooling::Sum | Pooling::Mean) => {
            let advice = "weights need pooling = \"weighted\"";
            return Err(Problem::value(&path("weights"), format!("{column:?}"), advice));
        }
        (None, Pooling::Weighted) => {
            return Err(Problem::missing(
                &path("weights"),
                "pooling = \"weighted\" needs the column with the weights",
            ));
        }
        _ => {}
    }
    if raw.weights.is_some() && kind == DataKind::Criteo {
        return Err(Problem::value(
            &path("weights"),
            "given",
            "Criteo's logs have no weights of ids; leave it out",
        ));
    }
    let map = raw.map.clone().unwrap_or(IdMap::Hash { salt: 0 });
    check_map(&path("map"), &map)?;
    Ok(SparseColumn {
        name: raw.name.clone(),
        shape: if is_list {
            BagShape::List { separator: raw.separator.unwrap_or(SEPARATOR) }
        } else {
            BagShape::One
        },
        bag_max,
        keep: raw.keep.unwrap_or(Keep::First),
        map,
        row_count: 0, // `tables` says.
        weights: raw.weights.clone(),
    })
}

fn check_map(path: &str, map: &IdMap) -> Result<(), Problem> {
    match map {
        IdMap::Vocabulary { min_count } => at_least(&format!("{path}.min_count"), *min_count, 1),
        IdMap::Bucketise { boundaries } => {
            let path = format!("{path}.boundaries");
            if boundaries.is_empty() {
                return Err(Problem::value(&path, "[]", "it needs at least one boundary"));
            }
            match boundaries.windows(2).find(|pair| pair[0] >= pair[1]) {
                None => Ok(()),
                Some(pair) => {
                    let value = format!("{boundaries:?}");
                    Err(Problem::value(
                        &path,
                        value,
                        format!("it must rise, but {} follows {}", pair[1], pair[0]),
                    ))
                }
            }
        }
        IdMap::Direct | IdMap::Hash { .. } => Ok(()),
    }
}

/// Refuses keys about text where there is none of the user's own.
fn check_text(data: &RawData, is_own: bool) -> Result<(), Problem> {
    if let Some(words) = data.missing_values.as_ref() {
        if !is_own {
            let advice = "it has a meaning for kind = \"csv\" and \"parquet\" only; leave it out";
            return Err(Problem::value("run.data.missing_values", format!("{words:?}"), advice));
        }
        if let Some(index) = words.iter().position(|word| word.trim_ascii() != word || word.is_empty()) {
            let path = format!("run.data.missing_values[{index}]");
            let advice = "write the word without blanks around it; an empty cell is missing anyway";
            return Err(Problem::value(&path, format!("{:?}", words[index]), advice));
        }
    }
    if data.time_unit.is_some() && (data.time.is_none() || !is_own) {
        let advice = "it says what run.data.time counts; leave it out, or name the column";
        return Err(Problem::value("run.data.time_unit", "given", advice));
    }
    Ok(())
}

/// Refuses optional columns that the job does not read, or whose values must be there.
fn check_optional(data: &RawData, columns: &Columns, is_own: bool) -> Result<(), Problem> {
    let Some(names) = data.optional.as_ref() else { return Ok(()) };
    let known = columns.names();
    for (index, name) in names.iter().enumerate() {
        let (path, shown) = (format!("run.data.optional[{index}]"), format!("{name:?}"));
        let needed = [("time", &columns.time), ("sample_weight", &columns.sample_weight)];
        let advice = if !is_own {
            "it has a meaning for kind = \"csv\" and \"parquet\" only; leave it out".to_owned()
        } else if let Some((role, _)) = needed.iter().find(|(_, column)| column.as_ref() == Some(name)) {
            format!("it is run.data.{role}, which every row must have")
        } else if !known.contains(&&**name) {
            format!("the job reads no such column; {}", suggest(name, known.iter().copied()))
        } else {
            continue;
        };
        return Err(Problem::value(&path, shown, advice));
    }
    Ok(())
}

fn check_split(data: &RawData, columns: &Columns) -> Result<(), Problem> {
    if data.kind == DataKind::Synthetic && data.split != SplitSpec::ByFile {
        let advice = "a world has its own split (train_samples, valid_samples, test_samples); leave it out";
        return Err(Problem::value("run.data.split", "given", advice));
    }
    match &data.split {
        SplitSpec::ByFile => Ok(()),
        SplitSpec::ByRow { valid, test } => check_shares(*valid, *test),
        SplitSpec::ByTime { valid_from, test_from } => {
            if columns.time.is_none() {
                let advice = "it needs a time column; set run.data.time";
                return Err(Problem::value("run.data.split.kind", "\"by_time\"", advice));
            }
            let count = |key: &str, moment: Moment| {
                moment.count(columns.time_unit).ok_or_else(|| {
                    let advice = "a date needs run.data.time_unit, which says what the time column counts, such as \
                                  time_unit = \"seconds\"";
                    Problem::value(&format!("run.data.split.{key}"), format!("\"{moment}\""), advice)
                })
            };
            let (valid, test) = (count("valid_from", *valid_from)?, count("test_from", *test_from)?);
            if test < valid {
                let advice = format!("it must not be before valid_from, {valid_from}");
                return Err(Problem::value("run.data.split.test_from", test_from, advice));
            }
            Ok(())
        }
        SplitSpec::ByHash { column, valid, test } => {
            if data.kind == DataKind::Criteo {
                known_column("run.data.split.column", column)?;
            }
            check_shares(*valid, *test)
        }
    }
}

fn check_shares(valid: f64, test: f64) -> Result<(), Problem> {
    for (key, share) in [("valid", valid), ("test", test)] {
        between(&format!("run.data.split.{key}"), share, 0.0, 1.0)?;
    }
    if valid + test >= 1.0 {
        let advice =
            format!("with test = {test} it leaves no rows to train on; both together must be below 1");
        return Err(Problem::value("run.data.split.valid", valid, advice));
    }
    Ok(())
}
