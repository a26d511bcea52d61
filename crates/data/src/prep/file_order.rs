//! What the order of the rows in the files says: labels that keep together, and times that fall from file to file.
//!
//! Neither is an error. Both are told where the job takes rows in the order of the files, because a model that sees one
//! label, or one user, for a thousand rows forgets the others, and because the last rows are then not the newest.

use campanile_spec::data::{DataSpec, Split, SplitSpec};
use serde::{Deserialize, Serialize};

use crate::{
    dataset::WINDOW_BLOCKS,
    rows::{NO_LABEL, RowBuffer},
    source::InputFile,
};

/// Rows with a label that are looked at together: about a batch's worth of a grain, and a user's worth of impressions.
const RUN_ROWS: u32 = 256;

/// The share of a label's variance that may lie between runs beyond what chance gives: a label rate that swings between
/// 0.02 and 0.06 over a day has 0.01.
const SHARE_MAX: f64 = 0.02;

/// The same between blocks where windows of blocks are mixed: of what lies between blocks, a window keeps a small part.
const BLOCK_SHARE_MAX: f64 = 0.1;

/// Fewer runs say little.
const RUNS_MIN: u64 = 8;

/// What is known of the files' order so far; a part of the journal and of a finished set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct FileOrder {
    /// By task: the labels of the training file in runs of [`RUN_ROWS`].
    runs: Vec<LabelRuns>,
    /// By task: the same in runs as long as blocks.
    blocks: Vec<LabelRuns>,
    /// The first and the last time in each file, where rows have times.
    times: Vec<Option<(i64, i64)>>,
}

/// Positives in runs of equally many rows that have a label.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct LabelRuns {
    runs: u64,
    positives: u64,
    /// Sum of the squared positives of each run.
    squares: u64,
    least: u32,
    most: u32,
    /// The run under way.
    rows_now: u32,
    positives_now: u32,
}

impl LabelRuns {
    fn add(&mut self, label: u8, run_rows: u32) {
        self.rows_now += 1;
        self.positives_now += u32::from(label);
        if self.rows_now < run_rows {
            return;
        }
        let now = self.positives_now;
        self.least = if self.runs == 0 { now } else { self.least.min(now) };
        self.most = self.most.max(now);
        self.runs += 1;
        self.positives += u64::from(now);
        self.squares += u64::from(now) * u64::from(now);
        (self.rows_now, self.positives_now) = (0, 0);
    }

    /// The share of the label's variance that lies between runs, beyond what rows in random order have: 0 where order
    /// says nothing, 1 where every run has one label.
    fn share(&self, run_rows: u32) -> f64 {
        let (runs, rows) = (self.runs as f64, f64::from(run_rows));
        let mean = self.positives as f64 / runs / rows;
        let within = mean * (1.0 - mean);
        if self.runs < RUNS_MIN || within == 0.0 {
            return 0.0;
        }
        let between = (self.squares as f64 / runs / rows / rows - mean * mean) / within;
        between - 1.0 / rows
    }
}

impl FileOrder {
    /// Takes note of the rows of a chunk, by split; chunks come in the order of the files.
    pub fn add(&mut self, file: usize, splits: &[RowBuffer; 3], block_rows: usize) {
        let labels = &splits[Split::Train as usize].labels;
        self.runs.resize(labels.len(), LabelRuns::default());
        self.blocks.resize(labels.len(), LabelRuns::default());
        for ((labels, runs), blocks) in labels.iter().zip(&mut self.runs).zip(&mut self.blocks) {
            for &label in labels.iter().filter(|label| **label != NO_LABEL) {
                runs.add(label, RUN_ROWS);
                blocks.add(label, block_rows as u32);
            }
        }
        self.times.resize(self.times.len().max(file + 1), None);
        for time in splits.iter().flat_map(|rows| &rows.times) {
            let (first, last) = self.times[file].unwrap_or((*time, *time));
            self.times[file] = Some((first.min(*time), last.max(*time)));
        }
    }

    /// What is worth a word, for a job that reads `files` and trains on so many blocks.
    pub fn warnings(&self, data: &DataSpec, files: &[InputFile], blocks: BlockCount) -> Vec<String> {
        let mut warnings = Vec::new();
        let tasks = data.columns.labels.iter().zip(self.runs.iter().zip(&self.blocks));
        for (label, (runs, of_blocks)) in tasks {
            let in_order = !data.shuffle && runs.share(RUN_ROWS) > SHARE_MAX;
            let in_windows = data.shuffle
                && blocks.count > WINDOW_BLOCKS as u64
                && of_blocks.share(blocks.rows) > BLOCK_SHARE_MAX;
            if in_order {
                warnings.push(told(&label.name, runs, RUN_ROWS, "set `shuffle = true` in [run.data]"));
            } else if in_windows {
                let cure = format!(
                    "`shuffle = true` mixes {WINDOW_BLOCKS} blocks at a time, and there are {}: mix the rows when the files \
                     are written",
                    blocks.count
                );
                warnings.push(told(&label.name, of_blocks, blocks.rows, &cure));
            }
        }
        warnings.extend(self.falling(data, files));
        warnings
    }

    /// Files that lie wholly before the one that is read before them, where their order matters.
    fn falling(&self, data: &DataSpec, files: &[InputFile]) -> Option<String> {
        let by_row = matches!(data.split, SplitSpec::ByRow { .. });
        if !by_row && data.shuffle {
            return None;
        }
        let timed = files.iter().zip(&self.times).filter_map(|(file, times)| Some((file, (*times)?)));
        let timed: Vec<_> = timed.collect();
        let falls = |pair: &&[(&InputFile, (i64, i64))]| {
            pair[0].0.split == pair[1].0.split && pair[1].1.1 < pair[0].1.0
        };
        let pair = timed.windows(2).find(falls)?;
        let ((before, (first, _)), (after, (_, last))) = (pair[0], pair[1]);
        let harm = if by_row {
            "the last rows, which the split holds out, are not the newest"
        } else {
            "the job trains in this order"
        };
        Some(format!(
            "times fall between files: {} begins at {first}, and {}, read after it, ends at {last}; {harm}; name the files in \
             the order of their times",
            before.path.display(),
            after.path.display()
        ))
    }
}

/// The blocks that a job trains on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockCount {
    pub count: u64,
    /// Rows of each.
    pub rows: u32,
}

fn told(label: &str, runs: &LabelRuns, run_rows: u32, cure: &str) -> String {
    let rate = |positives: f64| positives / f64::from(run_rows);
    format!(
        "label `{label}` is not mixed: over {run_rows} rows that follow each other its rate is {:.3} to {:.3}, with a mean of \
         {:.3}; {cure}",
        rate(f64::from(runs.least)),
        rate(f64::from(runs.most)),
        rate(runs.positives as f64 / runs.runs.max(1) as f64),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs_of(labels: impl Iterator<Item = u8>) -> LabelRuns {
        let mut runs = LabelRuns::default();
        labels.for_each(|label| runs.add(label, RUN_ROWS));
        runs
    }

    #[test]
    fn order_that_says_nothing_has_no_share() {
        let random = |row: u64| u8::from(crate::value::mix(row) % 10 < 3);
        assert!(runs_of((0..100_000).map(random)).share(RUN_ROWS).abs() < 0.002);
        assert!(
            (runs_of((0..100_000).map(|row| u8::from(row >= 30_000))).share(RUN_ROWS) - 1.0).abs() < 0.02
        );
        // A rate that swings between 0.02 and 0.06 is what days do.
        let days = |row: u64| {
            let rate = 40.0 + 20.0 * (row as f64 / 5000.0).sin();
            u8::from(((crate::value::mix(row) % 1000) as f64) < rate)
        };
        assert!(runs_of((0..400_000).map(days)).share(RUN_ROWS) < SHARE_MAX);
        // Users with 200 rows and a rate of their own, one after another.
        let users = |row: u64| {
            u8::from(crate::value::mix(row) % 100 < crate::value::mix(row / 200 + (1 << 40)) % 100)
        };
        assert!(runs_of((0..100_000).map(users)).share(RUN_ROWS) > SHARE_MAX);
    }
}
