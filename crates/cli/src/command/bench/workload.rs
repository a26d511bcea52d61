//! The standard configurations, and ids to train them on.
//!
//! 13 dense inputs and 26 tables of 100 k to 1 M rows; ids follow Zipf's law with exponent 1.05, the hot ones
//! scattered over the table. Batches are generated once, before any measurement.

use campanile_spec::{
    Bags, Batch, CrossRank, DcnStructure, DenseOptimizer, FeatureSpec, Grains, Heads, LearningRate,
    ModelSpec, NetworkSpec, Pooling, Precision, RowFormat, RowInit, Schedule, SparseOptimizer, TableId,
    TableSpec, TaskSpec,
    config::{Corrections, DenseTraining, Evaluate, ExchangeFormat, Run, SparseTraining},
    data::{BadRows, Columns, DataSpec, SourceSpec, SplitSpec},
};

use super::random::Random;
use crate::args::{BenchArch, BenchConfig, BenchPrecision, TrainBenchArguments};

/// Dense inputs of every configuration.
pub const DENSE: usize = 13;
/// Tables, and features, of every configuration.
pub const TABLES: usize = 26;
const ROWS_MIN: f64 = 100_000.0;
const ROWS_MAX: f64 = 1_000_000.0;
const ZIPF: f64 = 1.05;

/// Rows of each table: a geometric series.
pub fn rows() -> Vec<u64> {
    let step = (ROWS_MAX / ROWS_MIN).ln() / (TABLES - 1) as f64;
    (0..TABLES).map(|table| (ROWS_MIN * (step * table as f64).exp()) as u64).collect()
}

/// The run that a configuration stands for.
pub fn run(arguments: &TrainBenchArguments) -> Run {
    let grains =
        if arguments.grains == 0 { Grains::for_batch(arguments.batch).count() } else { arguments.grains };
    let rate = LearningRate { base: 0.01, schedule: Schedule::Constant };
    Run {
        seed: 1,
        batch_size: arguments.batch,
        grain_count: grains,
        epochs: 1,
        steps_max: 0,
        data: DataSpec {
            source: SourceSpec::CriteoTsv,
            columns: Columns::default(),
            split: SplitSpec::ByFile,
            bad_rows: BadRows::Fail,
            shuffle: false,
            unknown_share: 0.0,
        },
        model: model(arguments),
        sparse: SparseTraining {
            optimizer: SparseOptimizer::RowwiseAdagrad { epsilon: 1e-8, initial: 0.0 },
            learning_rate: rate,
            l2: 0.0,
            row_norm_max: 0.0,
        },
        dense: DenseTraining {
            optimizer: DenseOptimizer::Adagrad { epsilon: 1e-10, initial: 0.0 },
            learning_rate: rate,
            l2: 0.0,
            norm_max: 0.0,
        },
        distil: Default::default(),
        follow: Default::default(),
        exchange: ExchangeFormat::default(),
        evaluate: Evaluate { every_steps: 0, samples_max: 0, window_steps: 1 },
        corrections: Corrections::Ignore,
        only: None,
    }
}

fn model(arguments: &TrainBenchArguments) -> ModelSpec {
    let (dim, bottom, top) = match arguments.config {
        BenchConfig::Kaggle => (16, vec![512, 256, 64, 16], vec![512, 256]),
        BenchConfig::Terabyte => (128, vec![512, 256, 128], vec![1024, 1024, 512, 256]),
    };
    let network = match arguments.arch {
        BenchArch::Dot => NetworkSpec::Dlrm { bottom, top },
        BenchArch::Dcn => NetworkSpec::Dcn {
            bottom,
            cross_layers: 3,
            cross_rank: CrossRank::Low(64),
            structure: DcnStructure::Stacked,
            deep: top,
        },
    };
    let name = |table: usize| format!("t{table:02}");
    ModelSpec {
        dense_count: DENSE,
        features: (0..TABLES)
            .map(|f| FeatureSpec { name: name(f), table: TableId(f as u32), pooling: Pooling::Sum })
            .collect(),
        tables: rows()
            .into_iter()
            .enumerate()
            .map(|(table, row_count)| TableSpec {
                name: name(table),
                row_count,
                dim,
                format: RowFormat::F32,
                init: RowInit::Uniform { bound: 0.01 },
            })
            .collect(),
        tasks: vec![TaskSpec { name: "click".into(), weight: 1.0 }],
        network,
        heads: Heads::Shared,
        towers: campanile_spec::Towers::default(),
        followers: Vec::new(),
        precision: match arguments.precision {
            BenchPrecision::F32 => Precision::F32,
            BenchPrecision::Bf16 => Precision::Bf16,
        },
    }
}

/// How many different batches go round.
pub fn batch_count(batch: usize, ids: usize) -> usize {
    ((1usize << 18) / (batch * ids)).clamp(4, 16)
}

/// Whole batches with Zipf ids.
pub fn batches(arguments: &TrainBenchArguments) -> Vec<Batch> {
    let count = batch_count(arguments.batch, arguments.ids);
    let (samples, ids) = (arguments.batch, arguments.ids);
    let mut random = Random(0x243f_6a88_85a3_08d3);
    let zipfs: Vec<Zipf> = rows().into_iter().map(Zipf::new).collect();
    (0..count)
        .map(|_| {
            let mut rows = Vec::with_capacity(TABLES * samples * ids);
            zipfs.iter().for_each(|zipf| rows.extend(zipf.draw(samples * ids, &mut random)));
            let offsets = (0..=TABLES * samples).map(|bag| (bag * ids) as u32).collect();
            Batch {
                sample_count: samples,
                dense: (0..samples * DENSE).map(|_| random.unit() as f32).collect(),
                bags: Bags::new(TABLES, samples, offsets, rows, Vec::new()).unwrap_or_default(),
                labels: (0..samples).map(|_| f32::from(u8::from(random.unit() < 0.25))).collect(),
                ..Batch::default()
            }
        })
        .collect()
}

/// Distinct rows per id of a table in a batch, averaged over tables and batches: what caches live on.
pub fn distinct_share(batches: &[Batch]) -> f64 {
    let share = |batch: &Batch, table: usize| {
        let rows = batch.bags.feature(table).rows;
        rows.iter().collect::<std::collections::BTreeSet<_>>().len() as f64 / rows.len() as f64
    };
    let sum: f64 = batches.iter().flat_map(|batch| (0..TABLES).map(move |table| share(batch, table))).sum();
    sum / (batches.len() * TABLES) as f64
}

struct Zipf {
    /// Share of the draws that fall on this rank or a hotter one.
    cumulative: Vec<f64>,
}

impl Zipf {
    fn new(rows: u64) -> Zipf {
        let mut cumulative: Vec<f64> = Vec::with_capacity(rows as usize);
        let mut sum = 0.0;
        for rank in 1..=rows {
            sum += (rank as f64).powf(-ZIPF);
            cumulative.push(sum);
        }
        cumulative.iter_mut().for_each(|share| *share /= sum);
        Zipf { cumulative }
    }

    fn draw<'a>(&'a self, count: usize, random: &'a mut Random) -> impl Iterator<Item = u32> + 'a {
        let rows = self.cumulative.len() as u64;
        // A stride that shares no factor with the number of rows visits every row once, in a scattered order.
        let stride = (0..).map(|i| 2_654_435_761 + 2 * i).find(|s| gcd(*s, rows) == 1).unwrap_or(1);
        (0..count).map(move |_| {
            let point = random.unit();
            let rank = self.cumulative.partition_point(|share| *share < point) as u64;
            (rank.min(rows - 1) * stride % rows) as u32
        })
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_skewed_scattered_and_inside_their_table() {
        let zipf = Zipf::new(1000);
        let mut counts = vec![0; 1000];
        for row in zipf.draw(100_000, &mut Random(1)) {
            counts[row as usize] += 1;
        }
        let mut sorted = counts.clone();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        assert!(sorted[0] > 10_000 && sorted[999] < 50, "{:?}", &sorted[..5]);
        let hottest: Vec<usize> = (0..1000).filter(|&row| counts[row] >= sorted[9]).collect();
        assert!(hottest.iter().any(|&row| row > 500), "hot rows stand together: {hottest:?}");
        assert_eq!(rows()[0], 100_000);
        assert!(rows()[25].abs_diff(1_000_000) <= 1);
    }
}
