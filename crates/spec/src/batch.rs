//! A batch of samples: dense values, jagged rows per feature, labels.
//!
//! Jagged data is checked once, when [`Bags`] is built; every room takes `Bags` and trusts it.
//!
//! ```text
//!   two features, three samples            offsets  0 2 2 3 | 3 4 5 7      (feature-major, one array)
//!   color  [4 9] [] [1]                    rows     4 9 1   | 7 7 2 2
//!   size   [7] [7] [2 2]                   feature 1 = offsets[3..=6], rows[3..7]
//! ```

use std::ops::Range;

use thiserror::Error;

/// Why three arrays do not form [`Bags`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BagsError {
    /// The offsets array has the wrong length.
    #[error("{features} features of {samples} samples need {wanted} offsets, got {found}")]
    OffsetCount {
        /// Features asked for.
        features: usize,
        /// Samples asked for.
        samples: usize,
        /// `features * samples + 1`.
        wanted: usize,
        /// What came.
        found: usize,
    },
    /// Offsets must start at zero, never fall, and end at the number of rows.
    #[error("offset {index} is {value}, which is below the one before it, or the ends do not meet the rows")]
    Offsets {
        /// Where.
        index: usize,
        /// The offending offset.
        value: u32,
    },
    /// Weights must be absent or one per row.
    #[error("{rows} rows come with {weights} weights")]
    WeightCount {
        /// Rows in the bags.
        rows: usize,
        /// Weights given.
        weights: usize,
    },
}

/// The rows named by every feature of every sample: feature-major, checked on construction.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Bags {
    feature_count: usize,
    sample_count: usize,
    offsets: Vec<u32>,
    rows: Vec<u32>,
    weights: Vec<f32>,
}

/// One feature's part of [`Bags`].
#[derive(Debug, Clone, Copy)]
pub struct FeatureBags<'a> {
    /// `sample_count + 1` offsets into the batch's whole `rows` array; subtract `offsets[0]` for this slice.
    pub offsets: &'a [u32],
    /// The rows of this feature only.
    pub rows: &'a [u32],
    /// One weight per row, or empty when the batch has none.
    pub weights: &'a [f32],
}

impl Bags {
    /// Checks and takes the arrays: `offsets` has `feature_count * sample_count + 1` entries, feature-major;
    /// `weights` is empty or one per row.
    ///
    /// # Errors
    /// When the arrays do not fit together.
    pub fn new(
        feature_count: usize,
        sample_count: usize,
        offsets: Vec<u32>,
        rows: Vec<u32>,
        weights: Vec<f32>,
    ) -> Result<Bags, BagsError> {
        let wanted = feature_count * sample_count + 1;
        if offsets.len() != wanted {
            let found = offsets.len();
            return Err(BagsError::OffsetCount {
                features: feature_count,
                samples: sample_count,
                wanted,
                found,
            });
        }
        if offsets[0] != 0 {
            return Err(BagsError::Offsets { index: 0, value: offsets[0] });
        }
        if let Some(index) = (1..wanted).find(|&i| offsets[i] < offsets[i - 1]) {
            return Err(BagsError::Offsets { index, value: offsets[index] });
        }
        if offsets[wanted - 1] as usize != rows.len() {
            return Err(BagsError::Offsets { index: wanted - 1, value: offsets[wanted - 1] });
        }
        if !weights.is_empty() && weights.len() != rows.len() {
            return Err(BagsError::WeightCount { rows: rows.len(), weights: weights.len() });
        }
        Ok(Bags { feature_count, sample_count, offsets, rows, weights })
    }

    /// Bags with exactly one row each, feature-major.
    ///
    /// # Panics
    /// If `rows.len()` is not `feature_count * sample_count`.
    pub fn one_row_each(feature_count: usize, sample_count: usize, rows: Vec<u32>) -> Bags {
        assert_eq!(rows.len(), feature_count * sample_count);
        let offsets = (0..=rows.len() as u32).collect();
        Bags { feature_count, sample_count, offsets, rows, weights: Vec::new() }
    }

    /// Adds, behind the present features, the bags of these once more, in this order: the same ids for other tables.
    ///
    /// # Panics
    /// If there is no such feature.
    pub fn repeat(&mut self, features: &[usize]) {
        for &feature in features {
            assert!(feature < self.feature_count, "feature {feature} of {}", self.feature_count);
            let (first, end) = (feature * self.sample_count, (feature + 1) * self.sample_count);
            let rows = self.offsets[first] as usize..self.offsets[end] as usize;
            let shift = self.rows.len() as u32 - self.offsets[first];
            for place in first + 1..=end {
                self.offsets.push(self.offsets[place] + shift);
            }
            if !self.weights.is_empty() {
                self.weights.extend_from_within(rows.clone());
            }
            self.rows.extend_from_within(rows);
            self.feature_count += 1;
        }
    }

    /// Puts, for every id of a feature, the row that `change` makes of (sample, place in the bag, row).
    ///
    /// # Panics
    /// If there is no such feature.
    pub fn change_rows(&mut self, feature: usize, change: impl Fn(usize, usize, u32) -> u32) {
        assert!(feature < self.feature_count, "feature {feature} of {}", self.feature_count);
        let offsets = &self.offsets[feature * self.sample_count..=(feature + 1) * self.sample_count];
        for (sample, ends) in offsets.windows(2).enumerate() {
            for (place, row) in self.rows[ends[0] as usize..ends[1] as usize].iter_mut().enumerate() {
                *row = change(sample, place, *row);
            }
        }
    }

    /// Gives the arrays back (offsets, rows, weights), so that a reader can fill them anew without allocating.
    pub fn into_parts(self) -> (Vec<u32>, Vec<u32>, Vec<f32>) {
        (self.offsets, self.rows, self.weights)
    }

    /// How many features.
    pub fn feature_count(&self) -> usize {
        self.feature_count
    }

    /// How many samples.
    pub fn sample_count(&self) -> usize {
        self.sample_count
    }

    /// All offsets, `feature_count * sample_count + 1` of them.
    pub fn offsets(&self) -> &[u32] {
        &self.offsets
    }

    /// All rows, feature after feature.
    pub fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// One weight per row, or empty.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// The bags of one feature.
    ///
    /// # Panics
    /// If `feature` is not below `feature_count`.
    pub fn feature(&self, feature: usize) -> FeatureBags<'_> {
        assert!(feature < self.feature_count, "feature {feature} of {}", self.feature_count);
        let offsets = &self.offsets[feature * self.sample_count..=(feature + 1) * self.sample_count];
        let range = offsets[0] as usize..offsets[self.sample_count] as usize;
        let weights = if self.weights.is_empty() { &[][..] } else { &self.weights[range.clone()] };
        FeatureBags { offsets, rows: &self.rows[range], weights }
    }

    /// The bags of a run of samples, all features.
    ///
    /// # Panics
    /// If `samples` is not inside the batch.
    pub fn slice(&self, samples: Range<usize>) -> Bags {
        assert!(samples.end <= self.sample_count && samples.start <= samples.end);
        let mut offsets = Vec::with_capacity(self.feature_count * samples.len() + 1);
        let (mut rows, mut weights) = (Vec::new(), Vec::new());
        offsets.push(0);
        for feature in 0..self.feature_count {
            let bags = self.feature(feature);
            let base = bags.offsets[0];
            let (first, last) = (bags.offsets[samples.start] - base, bags.offsets[samples.end] - base);
            let start = rows.len() as u32;
            rows.extend_from_slice(&bags.rows[first as usize..last as usize]);
            if !bags.weights.is_empty() {
                weights.extend_from_slice(&bags.weights[first as usize..last as usize]);
            }
            offsets.extend(
                bags.offsets[samples.start + 1..=samples.end].iter().map(|o| o - base - first + start),
            );
        }
        Bags { feature_count: self.feature_count, sample_count: samples.len(), offsets, rows, weights }
    }
}

impl<'a> FeatureBags<'a> {
    /// Where sample `sample`'s rows lie in [`FeatureBags::rows`].
    pub fn range(&self, sample: usize) -> Range<usize> {
        let base = self.offsets[0];
        (self.offsets[sample] - base) as usize..(self.offsets[sample + 1] - base) as usize
    }

    /// The rows of one sample.
    pub fn bag(&self, sample: usize) -> &'a [u32] {
        &self.rows[self.range(sample)]
    }
}

/// The group of a sample whose group is missing: nobody's, so it has no part in what is measured by group.
pub const NO_GROUP: u64 = u64::MAX;

/// Samples in, after transforms: what a step trains on.
///
/// Optional columns are empty vectors when the data has none.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Batch {
    /// Number of samples.
    pub sample_count: usize,
    /// Dense values `[sample][dense]`, row-major.
    pub dense: Vec<f32>,
    /// Rows per feature.
    pub bags: Bags,
    /// Labels `[task][sample]`, task-major; NaN where the label is absent.
    pub labels: Vec<f32>,
    /// Sample weights; empty means all one.
    pub weights: Vec<f32>,
    /// Event time, in the unit of the data; empty when there is no time column.
    pub times: Vec<i64>,
    /// Group of each sample (a user, a session) for GAUC, [`NO_GROUP`] where the sample has none; empty when there are none.
    pub groups: Vec<u64>,
    /// Segment of each sample (a domain) for calibration by segment; empty when there is none.
    pub segments: Vec<u32>,
    /// What a synthetic world knows: the true probability `[task][sample]`; empty for real data.
    pub true_probabilities: Vec<f32>,
    /// What a teacher said: its logits `[task][sample]`, task-major; NaN where it said nothing. Empty when there is
    /// no teacher.
    pub teacher_logits: Vec<f32>,
    /// How old the teacher was when it spoke: seconds from the newest sample that it was trained on to this one; NaN
    /// where unknown. Empty when no age is known.
    pub teacher_delays: Vec<f32>,
    /// The teacher's embeddings `[sample][float]`, row-major; NaN where it gave none. Empty when nobody asks for them.
    pub teacher_embeddings: Vec<f32>,
}

impl Batch {
    /// A run of samples, cut out of every column.
    ///
    /// # Panics
    /// If `samples` is not inside the batch.
    pub fn slice(&self, samples: Range<usize>) -> Batch {
        let count = self.sample_count;
        assert!(samples.end <= count && samples.start <= samples.end);
        let rows_of = |values: &[f32]| {
            let width = values.len().checked_div(count).unwrap_or(0);
            values[samples.start * width..samples.end * width].to_vec()
        };
        let by_task = |values: &[f32]| {
            if count == 0 {
                return Vec::new();
            }
            values.chunks_exact(count).flat_map(|task| &task[samples.clone()]).copied().collect()
        };
        Batch {
            sample_count: samples.len(),
            dense: rows_of(&self.dense),
            bags: self.bags.slice(samples.clone()),
            labels: by_task(&self.labels),
            weights: optional(&self.weights, &samples),
            times: optional(&self.times, &samples),
            groups: optional(&self.groups, &samples),
            segments: optional(&self.segments, &samples),
            true_probabilities: by_task(&self.true_probabilities),
            teacher_logits: by_task(&self.teacher_logits),
            teacher_delays: optional(&self.teacher_delays, &samples),
            teacher_embeddings: rows_of(&self.teacher_embeddings),
        }
    }
}

fn optional<T: Clone>(values: &[T], samples: &Range<usize>) -> Vec<T> {
    if values.is_empty() { Vec::new() } else { values[samples.clone()].to_vec() }
}
