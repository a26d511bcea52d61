//! Which column of a file plays which role, and which rows a split takes.

use campanile_spec::{
    data::{BagShape, Columns, IdMap, Keep, SparseColumn, SplitSpec},
    moment::Moment,
};

use crate::error::DataError;

/// A column of the file that is needed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Slot {
    pub name: String,
    /// The roles it plays, for errors and for checking types.
    pub roles: Vec<Role>,
    /// Whether a file may be without it.
    pub is_optional: bool,
}

/// What a column is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Label,
    Dense,
    Id,
    IdList,
    Bucket,
    IdWeights { list: bool },
    SampleWeight,
    Teacher,
    Time,
    Key,
}

#[derive(Debug, Clone)]
pub(super) struct LabelCell {
    pub slot: usize,
    pub at_least: Option<f64>,
}

#[derive(Debug, Clone)]
pub(super) struct SparseCell {
    pub slot: usize,
    pub weights: Option<usize>,
    /// Present for lists.
    pub separator: Option<u8>,
    pub bag_max: usize,
    pub keep: Keep,
    pub keep_keys: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum SplitRule {
    /// All rows of a chunk are in the split of its file.
    File,
    Time {
        slot: usize,
        valid_from: i64,
        test_from: i64,
    },
    /// Hashes below `test` are test rows, those below `held_out` are held out at all.
    Hash {
        slot: usize,
        test: u64,
        held_out: u64,
    },
}

#[derive(Default)]
pub(super) struct Slots(pub Vec<Slot>);

impl Slots {
    pub fn of(&mut self, name: &str, role: Role) -> usize {
        let index = self.0.iter().position(|slot| slot.name == name).unwrap_or_else(|| {
            self.0.push(Slot { name: name.to_string(), roles: Vec::new(), is_optional: false });
            self.0.len() - 1
        });
        self.0[index].roles.push(role);
        index
    }

    pub fn mark_optional(&mut self, names: &[String]) {
        self.0.iter_mut().for_each(|slot| slot.is_optional = names.contains(&slot.name));
    }
}

pub(super) fn sparse_cell(
    column: &SparseColumn,
    keep_keys: bool,
    slots: &mut Slots,
) -> Result<SparseCell, DataError> {
    let bucketised = matches!(column.map, IdMap::Bucketise { .. });
    let (separator, role) = match column.shape {
        BagShape::One if bucketised => (None, Role::Bucket),
        BagShape::One => (None, Role::Id),
        BagShape::List { separator } => {
            let separator = u8::try_from(separator).ok().filter(u8::is_ascii).ok_or_else(|| {
                let reason = format!("the separator `{separator}` is not one ASCII character");
                DataError::Unsupported { column: column.name.clone(), reason }
            })?;
            (Some(separator), Role::IdList)
        }
    };
    let list = separator.is_some();
    Ok(SparseCell {
        slot: slots.of(&column.name, role),
        weights: column.weights.as_ref().map(|name| slots.of(name, Role::IdWeights { list })),
        separator,
        bag_max: column.bag_max.max(1),
        keep: column.keep,
        keep_keys: keep_keys && matches!(column.map, IdMap::Vocabulary { .. }),
    })
}

pub(super) fn split_rule(
    split: &SplitSpec,
    columns: &Columns,
    time: Option<usize>,
    slots: &mut Slots,
) -> Result<SplitRule, DataError> {
    match split {
        SplitSpec::ByFile | SplitSpec::ByRow { .. } => Ok(SplitRule::File),
        SplitSpec::ByTime { valid_from, test_from } => {
            let unsupported = |reason: &str| {
                let column = columns.time.clone().unwrap_or_else(|| "time".to_owned());
                DataError::Unsupported { column, reason: reason.to_owned() }
            };
            let slot = time.ok_or_else(|| unsupported("a split by time needs a time column"))?;
            let count = |moment: &Moment| {
                let counted = moment.count(columns.time_unit);
                counted.ok_or_else(|| unsupported("a date in the split needs `time_unit`"))
            };
            Ok(SplitRule::Time { slot, valid_from: count(valid_from)?, test_from: count(test_from)? })
        }
        SplitSpec::ByHash { column, valid, test } => {
            let threshold = |share: f64| (share.clamp(0.0, 1.0) * u64::MAX as f64) as u64;
            let slot = slots.of(column, Role::Key);
            Ok(SplitRule::Hash { slot, test: threshold(*test), held_out: threshold(test + valid) })
        }
    }
}
