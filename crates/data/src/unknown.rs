//! Rows that stand for ids nobody has seen: how the shared row of a vocabulary learns.
//!
//! With every id of the training data in its vocabulary, row 0 would keep the values that it was born with, and every
//! new id would be scored by them. So a small share of ids, drawn by (seed, epoch, position, column, place in the bag),
//! are trained as if they were unknown. A position is the same on every rank and after every interruption, so it is
//! the same ids whoever reads them. What is evaluated, and what is served, keeps all its rows.

use campanile_spec::{
    Bags,
    data::{DataSpec, IdMap},
};

use crate::value::{hash_bytes, mix};

/// The row of ids without a row of their own.
const UNKNOWN_ROW: u32 = 0;

/// Which ids of the training data are taken for unknown.
#[derive(Debug, Clone, Default)]
pub struct UnknownIds {
    /// Features with a vocabulary, and what tells their draws apart.
    features: Vec<(usize, u64)>,
    /// Draws below this are taken.
    below: u64,
}

impl UnknownIds {
    /// As a job says.
    pub fn of(data: &DataSpec, seed: u64) -> UnknownIds {
        let below = (data.unknown_share.clamp(0.0, 1.0) * u64::MAX as f64) as u64;
        let columns = data.columns.sparse.iter().enumerate();
        let counted =
            columns.filter(|(_, column)| matches!(column.map, IdMap::Vocabulary { .. }) && below > 0);
        let key = |name: &str| mix(seed ^ hash_bytes(name.as_bytes()));
        UnknownIds { features: counted.map(|(place, column)| (place, key(&column.name))).collect(), below }
    }

    /// Takes ids of a batch for unknown, whose samples stand at the positions from `first` on in the order of `epoch`.
    pub fn draw(&self, epoch: u64, first: u64, bags: &mut Bags) {
        for &(feature, key) in &self.features {
            let key = mix(key.wrapping_add(epoch));
            bags.change_rows(feature, |sample, place, row| {
                let position = mix(key.wrapping_add(first + sample as u64));
                let taken = mix(position.wrapping_add(place as u64)) < self.below;
                if taken { UNKNOWN_ROW } else { row }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use campanile_spec::data::{BadRows, BagShape, Columns, Keep, SourceSpec, SparseColumn, SplitSpec};

    use super::*;

    fn column(name: &str, map: IdMap) -> SparseColumn {
        let (shape, keep, row_count) = (BagShape::One, Keep::First, 1000);
        SparseColumn { name: name.into(), shape, bag_max: 9, keep, map, row_count, weights: None }
    }

    fn drawn(share: f64, epoch: u64, positions: std::ops::Range<u64>) -> Bags {
        let vocabulary = IdMap::Vocabulary { min_count: 1 };
        let data = DataSpec {
            source: SourceSpec::Parquet,
            columns: Columns {
                sparse: vec![
                    column("hashed", IdMap::Hash { salt: 0 }),
                    column("item", vocabulary.clone()),
                    column("user", vocabulary),
                ],
                ..Columns::default()
            },
            split: SplitSpec::ByFile,
            bad_rows: BadRows::Fail,
            shuffle: false,
            unknown_share: share,
        };
        // Bags of two ids in every feature, all in row 5.
        let count = (positions.end - positions.start) as usize;
        let offsets = (0..=3 * count as u32).map(|bag| 2 * bag).collect();
        let mut bags = Bags::new(3, count, offsets, vec![5; 6 * count], Vec::new()).unwrap();
        UnknownIds::of(&data, 7).draw(epoch, positions.start, &mut bags);
        bags
    }

    #[test]
    fn a_share_of_the_ids_of_vocabularies_is_taken() {
        let bags = drawn(0.05, 0, 0..20_000);
        assert!(bags.feature(0).rows.iter().all(|&row| row == 5), "hashed ids have rows of their own");
        let places = |feature: usize| -> Vec<usize> {
            let rows = bags.feature(feature).rows.iter().enumerate();
            rows.filter(|(_, row)| **row == UNKNOWN_ROW).map(|(place, _)| place).collect()
        };
        for feature in [1, 2] {
            // Six deviations of a binomial count of 40,000 trials.
            assert!((places(feature).len() as f64 - 2000.0).abs() < 270.0, "{}", places(feature).len());
        }
        let both = places(1).iter().filter(|place| places(2).contains(place)).count();
        assert!(both < 200, "{both}: columns are drawn apart");
        assert!(drawn(0.0, 0, 0..1000).rows().iter().all(|&row| row == 5));
    }

    #[test]
    fn the_same_ids_are_taken_however_a_batch_is_cut() {
        let whole = drawn(0.1, 3, 0..500);
        for cut in [1, 250, 499] {
            assert_eq!(drawn(0.1, 3, 0..cut), whole.slice(0..cut as usize));
            assert_eq!(drawn(0.1, 3, cut..500), whole.slice(cut as usize..500));
        }
        assert_ne!(drawn(0.1, 4, 0..500), whole, "another epoch takes others");
    }
}
