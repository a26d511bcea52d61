//! What the rows are like: absent labels, missing values, lists that were cut, the span of times.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Decoder;
use crate::rows::{NO_LABEL, RowBuffer};

/// What was seen in the rows that are kept, of all splits together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// Rows.
    pub rows: u64,
    /// By label column.
    pub labels: BTreeMap<String, LabelCounts>,
    /// By column: values that are missing; columns without any are left out.
    pub missing: BTreeMap<String, u64>,
    /// By column: lists of more ids than are kept.
    pub cut_lists: BTreeMap<String, u64>,
    /// The earliest and the latest time.
    pub times: Option<(i64, i64)>,
}

/// How often a label is what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelCounts {
    /// 1.
    pub positive: u64,
    /// 0.
    pub negative: u64,
    /// Neither: the task does not learn from the row.
    pub absent: u64,
}

impl Observed {
    /// Adds what was seen elsewhere.
    pub(crate) fn add(&mut self, other: &Observed) {
        self.rows += other.rows;
        for (name, counts) in &other.labels {
            let own = self.labels.entry(name.clone()).or_default();
            own.positive += counts.positive;
            own.negative += counts.negative;
            own.absent += counts.absent;
        }
        for (own, others) in [(&mut self.missing, &other.missing), (&mut self.cut_lists, &other.cut_lists)] {
            for (name, count) in others {
                *own.entry(name.clone()).or_default() += count;
            }
        }
        self.times = match (self.times, other.times) {
            (Some(own), Some(others)) => Some((own.0.min(others.0), own.1.max(others.1))),
            (own, others) => own.or(others),
        };
    }
}

/// Counts by place, while rows are decoded.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// By slot.
    pub missing: Vec<u64>,
    /// By sparse column.
    pub cut_lists: Vec<u64>,
}

/// What one row has, until it is known to be good.
#[derive(Debug, Default)]
pub(crate) struct RowNotes {
    /// Slots without a value.
    pub missing: Vec<usize>,
    /// Sparse columns whose list was cut.
    pub cut_lists: Vec<usize>,
}

impl RowNotes {
    pub fn clear(&mut self) {
        self.missing.clear();
        self.cut_lists.clear();
    }
}

impl Counts {
    pub fn clear(&mut self) {
        self.missing.clear();
        self.cut_lists.clear();
    }

    /// Takes in what a good row has.
    pub fn add(&mut self, notes: &RowNotes) {
        for (counts, places) in [(&mut self.missing, &notes.missing), (&mut self.cut_lists, &notes.cut_lists)]
        {
            for &place in places {
                count(counts, place, 1);
            }
        }
    }
}

/// Adds to the count of a place.
pub(crate) fn count(counts: &mut Vec<u64>, place: usize, more: u64) {
    if counts.len() <= place {
        counts.resize(place + 1, 0);
    }
    counts[place] += more;
}

impl Decoder {
    /// What a chunk's rows are like, by name.
    pub fn observed(&self, counts: &Counts, splits: &[RowBuffer]) -> Observed {
        let named = |counts: &[u64], name: &dyn Fn(usize) -> String| {
            let there = counts.iter().enumerate().filter(|(_, count)| **count > 0);
            there.map(|(place, count)| (name(place), *count)).collect()
        };
        let mut seen = Observed {
            rows: splits.iter().map(|rows| rows.row_count as u64).sum(),
            missing: named(&counts.missing, &|slot| self.slots[slot].name.clone()),
            cut_lists: named(&counts.cut_lists, &|column| self.schema.features[column].name.clone()),
            ..Observed::default()
        };
        for (task, name) in self.schema.tasks.iter().enumerate() {
            let own = seen.labels.entry(name.clone()).or_default();
            for label in splits.iter().flat_map(|rows| &rows.labels[task]) {
                match *label {
                    0 => own.negative += 1,
                    NO_LABEL => own.absent += 1,
                    _ => own.positive += 1,
                }
            }
        }
        let times = || splits.iter().flat_map(|rows| rows.times.iter().copied());
        seen.times = times().min().zip(times().max());
        seen
    }
}
