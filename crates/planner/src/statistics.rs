//! What a table's features ask of it, from a sample of the data.
//!
//! Four facts decide what a placement costs: how many ids a sample has, how many of its bags are not empty, how many
//! *different* rows some samples name (few, when a few rows are hot), and how ids spread over the range of rows
//! (evenly after hashing; the first rows are the hottest when a vocabulary is sorted by frequency).

use std::collections::BTreeMap;

use campanile_spec::{
    Batch, ModelSpec, TableSpec,
    elementary::{exp, ln_1p},
};
use serde::{Deserialize, Serialize};

/// Even parts of the range of rows for which the share of ids is kept.
pub const ROW_PARTS: usize = 64;

/// What a step asks of one table, per sample of the global batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableLoad {
    /// Features that read the table.
    pub features: usize,
    /// Ids of a sample, over all those features.
    pub ids_per_sample: f64,
    /// Bags of a sample that are not empty.
    pub bags_per_sample: f64,
    /// Whether ids come with weights.
    pub weighted: bool,
    /// Different rows in some number of samples: (samples, rows), rising.
    pub distinct: Vec<(f64, f64)>,
    /// Share of the ids that fall below each of [`ROW_PARTS`] even cuts of the rows; the last is 1.
    pub below: Vec<f64>,
    /// Share of the ids that name the hottest hundredth of the rows that were seen at all.
    pub hottest: f64,
}

impl TableLoad {
    /// One id per feature and sample, no row more likely than another: what can be said without data.
    pub fn assumed(table: &TableSpec, features: usize) -> TableLoad {
        TableLoad::even(table, features, 1.0)
    }

    /// So many ids per feature and sample, no row more likely than another.
    pub fn even(table: &TableSpec, features: usize, ids_per_bag: f64) -> TableLoad {
        let ids = features as f64 * ids_per_bag;
        // Evenly drawn rows meet again: of m draws from n rows, n (1 - (1 - 1/n)^m) are different.
        let rows = table.row_count as f64;
        let distinct_of = |samples: f64| match samples * ids {
            draws if draws <= 0.0 || rows < 1.0 => 0.0,
            draws => (rows * (1.0 - exp(draws * ln_1p(-1.0 / rows)))).min(draws),
        };
        TableLoad {
            features,
            ids_per_sample: ids,
            bags_per_sample: features as f64 * ids_per_bag.min(1.0),
            weighted: false,
            // So near that a straight line between two lies at most 4 % below the curve.
            distinct: (0..24).map(|power| (1u64 << power) as f64).map(|m| (m, distinct_of(m))).collect(),
            below: (1..=ROW_PARTS).map(|part| part as f64 / ROW_PARTS as f64).collect(),
            hottest: 0.01,
        }
    }

    /// Different rows among the ids of this many samples.
    pub fn distinct_rows(&self, samples: f64) -> f64 {
        let most = samples * self.ids_per_sample;
        let Some(&(last_samples, last_rows)) = self.distinct.last() else { return most };
        if samples >= last_samples {
            // Beyond the sample new rows keep coming, but ever fewer: the rate of the last stretch, halved.
            let before = self.distinct.len().checked_sub(2).map_or((0.0, 0.0), |place| self.distinct[place]);
            let rate = (last_rows - before.1) / (last_samples - before.0).max(1.0);
            return (last_rows + 0.5 * rate * (samples - last_samples)).min(most.max(last_rows));
        }
        let mut low = (0.0, 0.0);
        for &high in &self.distinct {
            if samples <= high.0 {
                let share = (samples - low.0) / (high.0 - low.0).max(1e-9);
                return (low.1 + (high.1 - low.1) * share).min(most);
            }
            low = high;
        }
        last_rows.min(most)
    }

    /// Share of the ids that name rows from `start` to `end`, as parts of all rows between 0 and 1.
    pub fn share_of_rows(&self, start: f64, end: f64) -> f64 {
        self.share_below(end) - self.share_below(start)
    }

    fn share_below(&self, cut: f64) -> f64 {
        let place = cut.clamp(0.0, 1.0) * self.below.len() as f64;
        let part = place as usize;
        let at = |index: usize| if index == 0 { 0.0 } else { self.below[index - 1] };
        if part >= self.below.len() {
            return 1.0;
        }
        at(part) + (at(part + 1) - at(part)) * (place - part as f64)
    }
}

/// Statistics of every table from batches of samples, taken as if they followed each other.
pub fn loads(model: &ModelSpec, batches: &[Batch]) -> Vec<TableLoad> {
    let samples: usize = batches.iter().map(|batch| batch.sample_count).sum();
    (0..model.tables.len())
        .map(|table| {
            let spec = &model.tables[table];
            let features: Vec<usize> =
                (0..model.features.len()).filter(|&f| model.features[f].table.0 as usize == table).collect();
            if samples == 0 || spec.row_count == 0 {
                return TableLoad::assumed(spec, features.len());
            }
            let ids: Vec<usize> = features.iter().map(|&feature| model.ids_of(feature)).collect();
            let mut counts = Counts::new(spec.row_count);
            for batch in batches {
                counts.add(batch, &ids);
            }
            counts.load(features.len(), samples as f64)
        })
        .collect()
}

/// What is counted while samples go by.
struct Counts {
    row_count: u64,
    by_row: BTreeMap<u32, u32>,
    by_part: Vec<u64>,
    samples: usize,
    ids: u64,
    bags: u64,
    weighted: bool,
    next_point: usize,
    distinct: Vec<(f64, f64)>,
}

impl Counts {
    fn new(row_count: u64) -> Counts {
        Counts {
            row_count,
            by_row: BTreeMap::new(),
            by_part: vec![0; ROW_PARTS],
            samples: 0,
            ids: 0,
            bags: 0,
            weighted: false,
            next_point: 1,
            distinct: Vec::new(),
        }
    }

    fn add(&mut self, batch: &Batch, features: &[usize]) {
        for sample in 0..batch.sample_count {
            for &feature in features {
                let bags = batch.bags.feature(feature);
                let base = bags.offsets[0];
                let range =
                    (bags.offsets[sample] - base) as usize..(bags.offsets[sample + 1] - base) as usize;
                self.bags += u64::from(!range.is_empty());
                self.ids += range.len() as u64;
                self.weighted |= !bags.weights.is_empty();
                for &row in &bags.rows[range] {
                    *self.by_row.entry(row).or_default() += 1;
                    let part = u64::from(row) * ROW_PARTS as u64 / self.row_count;
                    self.by_part[(part as usize).min(ROW_PARTS - 1)] += 1;
                }
            }
            self.samples += 1;
            if self.samples == self.next_point {
                self.distinct.push((self.samples as f64, self.by_row.len() as f64));
                self.next_point *= 2;
            }
        }
    }

    fn load(mut self, features: usize, samples: f64) -> TableLoad {
        if self.distinct.last().is_none_or(|(at, _)| *at < samples) {
            self.distinct.push((samples, self.by_row.len() as f64));
        }
        let ids = self.ids.max(1) as f64;
        let mut sum = 0;
        let below = self.by_part.iter().enumerate().map(|(part, count)| {
            sum += count;
            if part + 1 == ROW_PARTS { 1.0 } else { sum as f64 / ids }
        });
        let below = below.collect();
        let mut counts: Vec<u32> = self.by_row.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let hot: u64 = counts.iter().take(counts.len().div_ceil(100)).map(|&count| u64::from(count)).sum();
        TableLoad {
            features,
            ids_per_sample: self.ids as f64 / samples,
            bags_per_sample: self.bags as f64 / samples,
            weighted: self.weighted,
            distinct: self.distinct,
            below,
            hottest: hot as f64 / ids,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use campanile_spec::{
        Bags, FeatureSpec, Heads, NetworkSpec, Pooling, Precision, RowFormat, RowInit, TableId,
    };

    fn model(rows: u64, features: usize) -> ModelSpec {
        let feature = |f| FeatureSpec { name: format!("f{f}"), table: TableId(0), pooling: Pooling::Sum };
        let table = TableSpec {
            name: "t".into(),
            row_count: rows,
            dim: 4,
            format: RowFormat::F32,
            init: RowInit::Zeros,
        };
        ModelSpec {
            dense_count: 0,
            features: (0..features).map(feature).collect(),
            tables: vec![table],
            tasks: Vec::new(),
            network: NetworkSpec::LogisticRegression,
            heads: Heads::Shared,
            precision: Precision::F32,
            towers: campanile_spec::Towers::default(),
            followers: Vec::new(),
        }
    }

    #[test]
    fn ids_bags_and_distinct_rows_are_counted() {
        // Two features on one table; samples: [1 1] [2] | [] [1] | [64] [] | [1] [127].
        let offsets = vec![0, 2, 2, 3, 4, 5, 6, 6, 7];
        let bags = Bags::new(2, 4, offsets, vec![1, 1, 64, 1, 2, 1, 127], Vec::new()).unwrap();
        let batch = Batch { sample_count: 4, bags, ..Batch::default() };
        let load = &loads(&model(128, 2), &[batch])[0];
        assert_eq!((load.features, load.ids_per_sample, load.bags_per_sample), (2, 7.0 / 4.0, 6.0 / 4.0));
        assert_eq!(load.distinct, [(1.0, 2.0), (2.0, 2.0), (4.0, 4.0)]);
        assert_eq!(load.distinct_rows(3.0), 3.0);
        assert!(load.distinct_rows(100.0) > 4.0 && load.distinct_rows(100.0) <= 175.0);
        assert!((load.share_of_rows(0.0, 0.5) - 5.0 / 7.0).abs() < 1e-9);
        assert!((load.share_of_rows(0.5, 1.0) - 2.0 / 7.0).abs() < 1e-9);
        assert_eq!(load.share_of_rows(0.0, 1.0), 1.0);
        assert!((load.hottest - 4.0 / 7.0).abs() < 1e-9);
    }

    #[test]
    fn without_data_a_load_is_assumed() {
        let load = &loads(&model(1000, 3), &[])[0];
        assert_eq!(load.ids_per_sample, 3.0);
        assert!(load.distinct_rows(1e6) <= 1000.0 * 1.01, "{}", load.distinct_rows(1e6));
        assert!(load.distinct_rows(10.0) > 25.0);
    }

    /// What evenly drawn ids name, drawn and counted: within 5 %, between the points too.
    #[test]
    fn assumed_rows_are_those_that_even_draws_name() {
        let rows = 5_000u64;
        let load = TableLoad::even(&model(rows, 1).tables[0], 1, 1.0);
        let (mut state, mut seen) = (7u64, std::collections::BTreeSet::new());
        for samples in 1..=40_000u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seen.insert((state >> 33) % rows);
            if samples % 613 == 0 || samples == 700 {
                let (found, want) = (load.distinct_rows(f64::from(samples)), seen.len() as f64);
                assert!((found / want - 1.0).abs() < 0.05, "{samples} samples: {found} rows, drawn {want}");
            }
        }
    }
}
