//! The ids of a row, one or several, with their weights.

use campanile_spec::data::Keep;

use super::{Cells, Decoder, RowNotes, roles::SparseCell};
use crate::{
    error::BadReason,
    rows::{BagColumn, NO_ROW, RowBuffer},
    value::Raw,
};

/// The largest weight of an id or of a sample, in size: a larger one is a mistake that would end as divergence.
pub const WEIGHT_MAX: f32 = 1e9;

impl Decoder {
    pub(super) fn bag(
        &self,
        cells: &impl Cells,
        column: usize,
        sparse: &SparseCell,
        rows: &mut RowBuffer,
        notes: &mut RowNotes,
    ) -> Result<(), (usize, BadReason)> {
        let bags = &mut rows.bags[column];
        match sparse.separator {
            Some(separator) => self.several(cells, column, sparse, separator, bags, notes),
            None => self.one(cells, column, sparse, bags, notes),
        }
    }

    fn one(
        &self,
        cells: &impl Cells,
        column: usize,
        sparse: &SparseCell,
        bags: &mut BagColumn,
        notes: &mut RowNotes,
    ) -> Result<(), (usize, BadReason)> {
        let raw = self.noted(cells, sparse.slot, notes);
        let row = self.row_of(raw, column, sparse, &mut bags.keys);
        bags.rows.push(row.map_err(|reason| (sparse.slot, reason))?.unwrap_or(NO_ROW));
        if let Some(slot) = sparse.weights {
            let weight = id_weight(self.noted(cells, slot, notes)).map_err(|reason| (slot, reason))?;
            bags.weights.push(weight);
        }
        Ok(())
    }

    fn several(
        &self,
        cells: &impl Cells,
        column: usize,
        sparse: &SparseCell,
        separator: u8,
        bags: &mut BagColumn,
        notes: &mut RowNotes,
    ) -> Result<(), (usize, BadReason)> {
        let wrong = |reason| (sparse.slot, reason);
        // Of the ids that are there, the first ones to pass over.
        let mut passed_over = 0;
        if sparse.keep == Keep::Last {
            let mut there = 0_usize;
            let count = |raw: Raw<'_>| {
                there += usize::from(raw.as_id() != Raw::Missing);
                Ok(())
            };
            self.items(cells, sparse.slot, separator, count).map_err(wrong)?;
            passed_over = there.saturating_sub(sparse.bag_max);
        }
        // Items without a row, in rising order: their weights are left out with them.
        let mut left_out: Vec<usize> = Vec::new();
        let (mut items, mut there) = (0, 0);
        let push_id = |raw: Raw<'_>| {
            items += 1;
            let raw = raw.as_id();
            there += usize::from(raw != Raw::Missing);
            let is_kept = there > passed_over && there <= passed_over + sparse.bag_max;
            let row = match raw {
                Raw::Missing => None,
                raw if is_kept => self.row_of(raw, column, sparse, &mut bags.keys)?,
                _ => None,
            };
            match row {
                None => left_out.push(items - 1),
                Some(row) => bags.rows.push(row),
            }
            Ok(())
        };
        self.items(cells, sparse.slot, separator, push_id).map_err(wrong)?;
        if items == 0 {
            notes.missing.push(sparse.slot);
        }
        if there > sparse.bag_max {
            notes.cut_lists.push(column);
        }
        if let Some(slot) = sparse.weights {
            let mut weights = 0;
            let push_weight = |raw: Raw<'_>| {
                let weight = id_weight(raw)?;
                if left_out.binary_search(&weights).is_err() {
                    bags.weights.push(weight);
                }
                weights += 1;
                Ok(())
            };
            self.items(cells, slot, separator, push_weight).map_err(|reason| (slot, reason))?;
            if weights != items {
                return Err((slot, BadReason::WeightCount { ids: items as u64, weights: weights as u64 }));
            }
        }
        bags.ends.push(bags.rows.len() as u32);
        Ok(())
    }

    /// Visits the items of a column that holds several; text that stands for a missing value is one, alone in its cell
    /// or among others.
    pub(super) fn items(
        &self,
        cells: &impl Cells,
        slot: usize,
        separator: u8,
        mut visit: impl FnMut(Raw<'_>) -> Result<(), BadReason>,
    ) -> Result<(), BadReason> {
        match cells.one(slot) {
            Some(raw) => self
                .transforms
                .value(raw)
                .items(separator)
                .try_for_each(|item| visit(self.transforms.value(item))),
            None => cells.several(slot, |item| visit(self.transforms.value(item))),
        }
    }

    /// The row of an id; while ids are counted, its key is kept, and the row does not matter.
    #[inline]
    fn row_of(
        &self,
        raw: Raw<'_>,
        column: usize,
        sparse: &SparseCell,
        keys: &mut Vec<u64>,
    ) -> Result<Option<u32>, BadReason> {
        if sparse.keep_keys {
            keys.push(self.transforms.key(raw)?);
            return Ok(Some(0));
        }
        match self.transforms.row(column, raw) {
            Err(BadReason::BeyondTable { .. }) if column >= self.served_from => Ok(None),
            row => row,
        }
    }
}

/// The weight of an id; one that is missing weighs 1.
fn id_weight(raw: Raw<'_>) -> Result<f32, BadReason> {
    let weight = raw.number()?.unwrap_or(1.0);
    if weight.abs() > WEIGHT_MAX { Err(BadReason::LargeWeight) } else { Ok(weight) }
}
