//! Whether prepared data makes sense to train on: splits that came out empty, labels that never change.

use campanile_spec::{
    Batch,
    config::DataFiles,
    data::{DataSpec, SourceSpec, SplitSpec},
};

use super::Prepared;
use crate::{decode::Observed, error::DataError};

/// Rows that are looked at together for both classes of a label.
const LOOK_ROWS: u64 = 65536;

/// What to say of splits that the job asks for and that have no rows; `held_out` are the rows of validation and test.
pub(super) fn empty_splits(
    data: &DataSpec,
    files: &DataFiles,
    observed: &Observed,
    held_out: [u64; 2],
) -> Vec<String> {
    let wanted: [Option<String>; 2] = match &data.split {
        SplitSpec::ByFile => [("valid", &files.valid), ("test", &files.test)].map(|(key, files)| {
            (!files.is_empty()).then(|| format!("the files of process.data.{key} have no good row"))
        }),
        SplitSpec::ByRow { valid, test } | SplitSpec::ByHash { valid, test, .. } => {
            [*valid, *test].map(|share| {
                (share > 0.0).then(|| format!("a share of {share} of {} rows is none", observed.rows))
            })
        }
        SplitSpec::ByTime { valid_from, test_from } => {
            let times = match observed.times {
                Some((earliest, latest)) => format!("; the times are from {earliest} to {latest}"),
                None => String::new(),
            };
            let unit = data.columns.time_unit;
            [
                (valid_from.count(unit) != test_from.count(unit))
                    .then(|| format!("no row is at or after {valid_from} and before {test_from}{times}")),
                Some(format!("no row is at or after {test_from}{times}")),
            ]
        }
    };
    let names = ["validation", "test"].into_iter().zip(held_out).zip(wanted);
    let empty = names.filter(|((_, rows), _)| *rows == 0);
    empty.filter_map(|((name, _), why)| Some(format!("the {name} split is empty: {}", why?))).collect()
}

impl Prepared {
    /// Refuses a label of which training sees one class only, or none: a model would learn to say always the same. A
    /// teacher's words on the label are enough.
    ///
    /// # Errors
    /// With the label; or when the rows cannot be read.
    pub fn check_labels(&self, data: &DataSpec, files: &DataFiles) -> Result<(), DataError> {
        let is_taught = |task: usize| files.teacher.is_some() || data.columns.labels[task].teacher.is_some();
        let mut left: Vec<usize> = (0..data.columns.labels.len()).filter(|&task| !is_taught(task)).collect();
        let rows = self.train.row_count();
        if matches!(data.source, SourceSpec::Synthetic(_)) || rows == 0 {
            return Ok(());
        }
        let (mut reader, mut batch) = (self.train.reader()?, Batch::default());
        let mut seen = vec![[false; 3]; data.columns.labels.len()];
        let mut next = 0;
        while next < rows && !left.is_empty() {
            let end = (next + LOOK_ROWS).min(rows);
            reader.read(0, next..end, &mut batch)?;
            for &task in &left {
                for label in &batch.labels[task * batch.sample_count..][..batch.sample_count] {
                    seen[task][if label.is_nan() { 2 } else { usize::from(*label > 0.5) }] = true;
                }
            }
            left.retain(|&task| !(seen[task][0] && seen[task][1]));
            next = end;
        }
        let Some(&task) = left.first() else { return Ok(()) };
        let (class, but) = match seen[task] {
            [true, _, absent] => ("0", absent),
            [_, true, absent] => ("1", absent),
            _ => ("absent", false),
        };
        let but = if but { " that have one" } else { "" };
        Err(DataError::OneClass { task: data.columns.labels[task].name.clone(), class, rows, but })
    }
}
