//! Bags cut by rows, and each row named once.
//!
//! A bag whose rows lie on several ranks is split: each owner gets the part that lies in its rows, in the order of
//! the bag, and nothing at all of bags that have no row there. For tables whose rows travel, the rows that a rank's
//! samples name are also listed once each, and every id gets the place of its row in that list.

use campanile_spec::{FeatureBags, Pooling};

use crate::route::range_of;

/// The parts of a feature's bags that lie in one range of rows. Memory is kept from batch to batch.
#[derive(Debug, Default)]
pub(crate) struct Part {
    /// Where each part bag starts in `rows`, and one past the last.
    pub offsets: Vec<u32>,
    pub rows: Vec<u32>,
    /// Of every row, where the data has weights and the pooling uses them.
    pub weights: Vec<f32>,
    /// One over the number of rows in the whole bag, for means.
    pub inverse: Vec<f32>,
    /// The sample of every part bag, rising.
    pub samples: Vec<u32>,
}

/// Splits a feature's bags at `cuts` into `parts`, one per range.
///
/// # Errors
/// A row that is not below the last cut.
pub(crate) fn split(
    bags: &FeatureBags<'_>,
    pooling: Pooling,
    cuts: &[u64],
    parts: &mut Vec<Part>,
) -> Result<(), u32> {
    parts.resize_with(cuts.len() - 1, Part::default);
    for part in parts.iter_mut() {
        part.offsets.clear();
        part.offsets.push(0);
        part.rows.clear();
        part.weights.clear();
        part.inverse.clear();
        part.samples.clear();
    }
    let row_count = cuts[cuts.len() - 1];
    let weighted = pooling == Pooling::Weighted && !bags.weights.is_empty();
    let base = bags.offsets[0];
    for (sample, bag) in bags.offsets.windows(2).enumerate() {
        let ids = (bag[0] - base) as usize..(bag[1] - base) as usize;
        for (id, &row) in ids.clone().zip(&bags.rows[ids.clone()]) {
            if u64::from(row) >= row_count {
                return Err(row);
            }
            let part = &mut parts[range_of(cuts, u64::from(row))];
            part.rows.push(row);
            if weighted {
                part.weights.push(bags.weights[id]);
            }
        }
        for part in parts.iter_mut() {
            if part.rows.len() > part.offsets[part.samples.len()] as usize {
                part.offsets.push(part.rows.len() as u32);
                part.samples.push(sample as u32);
                if pooling == Pooling::Mean {
                    part.inverse.push(1.0 / ids.len() as f32);
                }
            }
        }
    }
    Ok(())
}

/// A set of rows that gives each a place, in the order of their coming: open addressing, emptied by a new stamp.
#[derive(Debug, Default)]
pub(crate) struct Places {
    slots: Vec<Slot>,
    stamp: u32,
    count: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    stamp: u32,
    row: u32,
    place: u32,
}

impl Places {
    /// Empties the set and makes room for `rows` different rows.
    pub fn begin(&mut self, rows: usize) {
        let wanted = (2 * rows).next_power_of_two().max(16);
        if self.slots.len() < wanted || self.stamp == u32::MAX {
            self.slots.clear();
            self.slots.resize(wanted, Slot::default());
            self.stamp = 0;
        }
        self.stamp += 1;
        self.count = 0;
    }

    /// The place of a row, and whether it is new.
    pub fn place(&mut self, row: u32) -> (u32, bool) {
        let mask = self.slots.len() - 1;
        let mut at = (u64::from(row).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
        loop {
            let slot = &mut self.slots[at];
            if slot.stamp != self.stamp {
                *slot = Slot { stamp: self.stamp, row, place: self.count };
                self.count += 1;
                return (slot.place, true);
            }
            if slot.row == row {
                return (slot.place, false);
            }
            at = (at + 1) & mask;
        }
    }
}

/// The rows of a borrowed table that a rank's samples name. Memory is kept from batch to batch.
#[derive(Debug, Default)]
pub(crate) struct Loan {
    /// By range of rows, each row once.
    pub rows: Vec<Vec<u32>>,
    /// By feature of the table: of every id of the batch, the place of its row among all ranges' rows, one range
    /// after the other.
    pub places: Vec<Vec<u32>>,
    seen: Vec<Places>,
}

impl Loan {
    /// Lists the rows of some features' bags. Every row must be below the last cut.
    pub fn list<'a>(&mut self, cuts: &[u64], features: impl Iterator<Item = FeatureBags<'a>> + Clone) {
        let ranges = cuts.len() - 1;
        self.rows.resize_with(ranges, Vec::new);
        self.rows.iter_mut().for_each(Vec::clear);
        self.seen.resize_with(ranges, Places::default);
        let ids = features.clone().map(|bags| bags.rows.len()).sum();
        self.seen.iter_mut().for_each(|seen| seen.begin(ids));
        self.places.resize_with(features.clone().count(), Vec::new);
        for (places, bags) in self.places.iter_mut().zip(features.clone()) {
            places.clear();
            places.extend(bags.rows.iter().map(|&row| {
                let range = range_of(cuts, u64::from(row));
                let (place, new) = self.seen[range].place(row);
                if new {
                    self.rows[range].push(row);
                }
                place
            }));
        }
        if ranges > 1 {
            // Only now is known how many rows come before each range's.
            let mut before = vec![0; ranges];
            for range in 1..ranges {
                before[range] = before[range - 1] + self.rows[range - 1].len() as u32;
            }
            for (places, bags) in self.places.iter_mut().zip(features) {
                for (place, &row) in places.iter_mut().zip(bags.rows) {
                    *place += before[range_of(cuts, u64::from(row))];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bags<'a>(offsets: &'a [u32], rows: &'a [u32]) -> FeatureBags<'a> {
        FeatureBags { offsets, rows, weights: &[] }
    }

    #[test]
    fn parts_keep_the_order_and_leave_empty_bags_out() {
        // Offsets that do not start at zero, as those of a later feature.
        let (offsets, rows) = ([10, 13, 13, 14, 16], [7, 2, 9, 2, 5, 5]);
        let mut parts = Vec::new();
        split(&bags(&offsets, &rows), Pooling::Mean, &[0, 5, 10], &mut parts).unwrap();
        assert_eq!((&parts[0].rows[..], &parts[0].offsets[..]), (&[2, 2][..], &[0, 1, 2][..]));
        assert_eq!((&parts[0].samples[..], &parts[0].inverse[..]), (&[0, 2][..], &[1.0 / 3.0, 1.0][..]));
        assert_eq!((&parts[1].rows[..], &parts[1].offsets[..]), (&[7, 9, 5, 5][..], &[0, 2, 4][..]));
        assert_eq!((&parts[1].samples[..], &parts[1].inverse[..]), (&[0, 3][..], &[1.0 / 3.0, 0.5][..]));
        assert_eq!(split(&bags(&[0, 1], &[10]), Pooling::Sum, &[0, 5, 10], &mut parts), Err(10));
    }

    #[test]
    fn a_row_is_listed_once_and_every_id_finds_it() {
        let features = [[7u32, 2, 9, 2], [9, 4, 7, 0]];
        let offsets = [0, 4];
        let mut loan = Loan::default();
        for _ in 0..3 {
            loan.list(&[0, 5, 10], features.iter().map(|rows| bags(&offsets, rows)));
            assert_eq!(loan.rows, [vec![2, 4, 0], vec![7, 9]]);
            let all: Vec<u32> = loan.rows.concat();
            for (feature, places) in features.iter().zip(&loan.places) {
                let found: Vec<u32> = places.iter().map(|place| all[*place as usize]).collect();
                assert_eq!(found, feature);
            }
        }
    }
}
