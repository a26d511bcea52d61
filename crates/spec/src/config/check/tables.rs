//! Tables: which features share one, how many rows it has, how wide they are.

use super::{super::nearest::suggest, Problem, between, columns::CheckedColumns};
use crate::{
    config::raw::{RawRun, RawTable},
    data::{IdMap, SourceSpec},
    model::{NetworkSpec, RowFormat, RowInit, TableSpec},
};

/// Floats in a row when the job does not say.
const DIM: usize = 16;

/// The widest row.
const DIM_MAX: usize = 4096;

/// Tables in the order in which features name them.
pub(super) struct CheckedTables {
    pub(super) tables: Vec<TableSpec>,
    /// Per feature, the place of its table.
    pub(super) of_feature: Vec<usize>,
}

pub(super) fn tables(run: &RawRun, columns: &CheckedColumns) -> Result<CheckedTables, Problem> {
    check_declared(&run.table)?;
    let names = table_names(run, columns)?;
    let mut order: Vec<&str> = Vec::new();
    let mut of_feature = Vec::new();
    for name in &names {
        let place = order.iter().position(|other| other == name).unwrap_or_else(|| {
            order.push(name);
            order.len() - 1
        });
        of_feature.push(place);
    }
    if let Some(unused) = run.table.iter().position(|table| !order.contains(&&*table.name)) {
        let name = &run.table[unused].name;
        let advice =
            format!("no feature has its rows in this table; {}", suggest(name, order.iter().copied()));
        return Err(Problem::value(&format!("run.table[{unused}].name"), format!("{name:?}"), advice));
    }
    check_vocabularies(columns, &of_feature)?;
    let table = |(place, &name): (usize, &&str)| table(run, columns, &of_feature, place, name);
    let tables = order.iter().enumerate().map(table).collect::<Result<Vec<_>, _>>()?;
    if let NetworkSpec::FactorizationMachine = run.model.network
        && let Some(other) = tables.iter().find(|table| table.dim != tables[0].dim)
    {
        let advice = format!(
            "the rows of \"factorization_machine\" meet, so all dims must be equal, and `{}` has {}",
            tables[0].name, tables[0].dim
        );
        return Err(Problem::value(&dim_path(run, &other.name), other.dim, advice));
    }
    Ok(CheckedTables { tables, of_feature })
}

fn check_declared(tables: &[RawTable]) -> Result<(), Problem> {
    for (index, table) in tables.iter().enumerate() {
        let path = format!("run.table[{index}].name");
        if table.name.is_empty() {
            return Err(Problem::value(&path, "\"\"", "it must not be empty"));
        }
        if tables[..index].iter().any(|other| other.name == table.name) {
            return Err(Problem::value(
                &path,
                format!("{:?}", table.name),
                "a table of this name stands above",
            ));
        }
    }
    Ok(())
}

/// The table of every feature.
fn table_names(run: &RawRun, columns: &CheckedColumns) -> Result<Vec<String>, Problem> {
    let asked =
        |place: usize| columns.listed[place].and_then(|index| run.data.sparse[index].table.as_deref());
    let features: Vec<&str> = columns.columns.sparse.iter().map(|column| &*column.name).collect();
    // A name can be shared when it is declared, or when the feature of that name keeps its own table.
    let own =
        features.iter().enumerate().filter(|&(place, name)| asked(place).is_none_or(|table| table == *name));
    let declared = run.table.iter().map(|table| &*table.name);
    let known: Vec<&str> = declared.chain(own.map(|(_, &name)| name)).collect();
    let name_of = |(place, &feature): (usize, &&str)| match (asked(place), columns.listed[place]) {
        (Some(table), Some(index)) if !known.contains(&table) => {
            let near = suggest(table, known.iter().copied());
            let advice = format!("there is no such [[run.table]], and no feature of this name; {near}");
            Err(Problem::value(&format!("run.data.sparse[{index}].table"), format!("{table:?}"), advice))
        }
        (asked, _) => Ok(asked.unwrap_or(feature).to_owned()),
    };
    features.iter().enumerate().map(name_of).collect()
}

fn table(
    run: &RawRun,
    columns: &CheckedColumns,
    of_feature: &[usize],
    place: usize,
    name: &str,
) -> Result<TableSpec, Problem> {
    let declared = run.table.iter().find(|table| table.name == name);
    let features: Vec<usize> =
        (0..of_feature.len()).filter(|&feature| of_feature[feature] == place).collect();
    let row_count = row_count(run, columns, &features, name)?;
    let dim = dim(run, declared, name, columns.tasks.len())?;
    let format: RowFormat = declared.and_then(|table| table.format).unwrap_or(run.tables.format);
    let is_linear = run.model.network == NetworkSpec::LogisticRegression;
    let init = declared.and_then(|table| table.init).or(run.tables.init).unwrap_or(if is_linear {
        RowInit::Zeros
    } else {
        RowInit::Uniform { bound: (1.0 / (row_count as f64).sqrt()) as f32 }
    });
    check_init(run, declared, init)?;
    Ok(TableSpec { name: name.to_owned(), row_count, dim, format, init })
}

/// The number of rows: what is said must agree, and must hold what the features can name.
fn row_count(run: &RawRun, columns: &CheckedColumns, features: &[usize], name: &str) -> Result<u64, Problem> {
    let declared = run.table.iter().position(|table| table.name == name);
    let declared =
        declared.and_then(|index| Some((format!("run.table[{index}].rows"), run.table[index].rows?)));
    let listed = features.iter().filter_map(|&feature| columns.listed[feature]);
    let on_features = listed
        .filter_map(|index| Some((format!("run.data.sparse[{index}].rows"), run.data.sparse[index].rows?)));
    let said: Vec<(String, u64)> = declared.into_iter().chain(on_features).collect();
    if let Some((path, rows)) = said.iter().find(|(_, rows)| *rows != said[0].1) {
        let advice = format!("table `{name}` has {} rows elsewhere; say it once", said[0].1);
        return Err(Problem::value(path, rows, advice));
    }
    let needed = features.iter().filter_map(|&feature| rows_needed(columns, feature)).max();
    let (path, rows) = match (said.first(), needed, run.tables.rows) {
        (Some((path, rows)), _, _) => (path.clone(), *rows),
        (None, Some(needed), _) => return Ok(needed),
        (None, None, Some(rows)) => ("run.tables.rows".to_owned(), rows),
        (None, None, None) => {
            let listed = features.first().and_then(|&feature| columns.listed[feature]);
            let (path, place) = match listed {
                Some(index) => {
                    (format!("run.data.sparse[{index}].rows"), "here, or for all tables in [run.tables]")
                }
                None => ("run.tables.rows".to_owned(), "here for all tables, such as rows = 100_000"),
            };
            let meaning = format!("table `{name}` needs a number of rows: {place}");
            return Err(Problem::missing(&path, meaning));
        }
    };
    between(&path, rows, 1, u64::from(u32::MAX))?;
    match needed {
        Some(needed) if rows < needed => {
            Err(Problem::value(&path, rows, format!("the features of table `{name}` name {needed} rows")))
        }
        _ => Ok(rows),
    }
}

/// Rows that a feature can name, where that follows from the job alone.
fn rows_needed(columns: &CheckedColumns, feature: usize) -> Option<u64> {
    let column = &columns.columns.sparse[feature];
    match (&columns.source, &column.map) {
        (SourceSpec::Synthetic(_), _) => Some(column.row_count),
        (_, IdMap::Bucketise { boundaries }) => Some(boundaries.len() as u64 + 1),
        _ => None,
    }
}

/// Two vocabularies give the same row to different ids.
fn check_vocabularies(columns: &CheckedColumns, of_feature: &[usize]) -> Result<(), Problem> {
    let mut owners: Vec<(usize, &IdMap, &str)> = Vec::new();
    for (feature, column) in columns.columns.sparse.iter().enumerate() {
        let (table, map) = (of_feature[feature], &column.map);
        let clash = owners.iter().find(|&&(other, other_map, _)| {
            other == table
                && (matches!(other_map, IdMap::Vocabulary { .. }) || matches!(map, IdMap::Vocabulary { .. }))
        });
        if let (Some((_, _, other)), Some(index)) = (clash, columns.listed[feature]) {
            let advice = format!(
                "`{other}` has rows in the same table, and a vocabulary numbers the ids of one column only; use \"hash\" for both"
            );
            return Err(Problem::value(&format!("run.data.sparse[{index}].table"), "shared", advice));
        }
        owners.push((table, map, &column.name));
    }
    Ok(())
}

fn dim_path(run: &RawRun, name: &str) -> String {
    match run.table.iter().position(|table| table.name == name && table.dim.is_some()) {
        Some(index) => format!("run.table[{index}].dim"),
        None => "run.tables.dim".to_owned(),
    }
}

fn dim(run: &RawRun, declared: Option<&RawTable>, name: &str, tasks: usize) -> Result<usize, Problem> {
    let said = declared.and_then(|table| table.dim).or(run.tables.dim);
    let path = dim_path(run, name);
    match run.model.network {
        NetworkSpec::LogisticRegression => match said {
            Some(dim) if dim != tasks => {
                let advice = "\"logistic_regression\" has one weight per row for each task; leave it out";
                Err(Problem::value(&path, dim, advice))
            }
            _ => Ok(tasks),
        },
        NetworkSpec::FactorizationMachine => {
            // One block for each task: a weight and at least one factor.
            let dim = said.unwrap_or(tasks * (DIM / tasks).max(2));
            between(&path, dim, 2, DIM_MAX).map(|()| dim)
        }
        _ => {
            let dim = said.unwrap_or(DIM);
            between(&path, dim, 1, DIM_MAX).map(|()| dim)
        }
    }
}

fn check_init(run: &RawRun, declared: Option<&RawTable>, init: RowInit) -> Result<(), Problem> {
    let index = declared.filter(|table| table.init.is_some());
    let index = index.and_then(|table| run.table.iter().position(|other| other.name == table.name));
    let section = index.map_or_else(|| "run.tables".to_owned(), |index| format!("run.table[{index}]"));
    match init {
        RowInit::Zeros => Ok(()),
        RowInit::Uniform { bound } => between(&format!("{section}.init.bound"), bound, 0.0, 1e3),
        RowInit::Normal { deviation } => between(&format!("{section}.init.deviation"), deviation, 0.0, 1e3),
    }
}
