//! Rows: what it costs to pool one, to merge a gradient, and to move a row, near in the cache and far in memory.
//!
//! A table's features lie side by side in a message, so vectors and gradients of one feature are a wide stride apart,
//! and one feature comes after the other. Both matter: a stride of a page costs more than packed rows.

use campanile_spec::topology::RowRates;
use campanile_spec::{Pooling, RowFormat, RowInit, SparseOptimizer, TableSpec, batch::FeatureBags};
use campanile_tables::{GradientBlock, Table, TableError, UpdateScratch, UpdateStep};

use super::{Settings, clock::seconds_each};

/// Features side by side in a message. An odd number: a stride that is a power of two would use only a few sets of the
/// cache, which the messages of a model seldom do.
const LANES: usize = 7;

/// Samples of a batch, with one id each.
const SAMPLES: usize = 2048;

/// Bytes of the table whose rows count as near: within any second-level cache.
const NEAR_BYTES: usize = 768 << 10;

/// Of so many rows of the near table only one is named where repeats are measured.
const REPEATED: usize = 32;

/// Table sizes that are tried to find how much stays near.
const CACHE_SIZES: std::ops::RangeInclusive<u32> = 20..=26;

/// Floats of the rows with which the cache is probed.
const CACHE_FLOATS: usize = 64;

/// The least that a cost is said to be: a clock cannot tell less.
const LEAST_NS: f64 = 0.1;

/// All rates for rows of so many floats.
pub fn rates(floats: usize, settings: Settings) -> Result<RowRates, TableError> {
    let mut near = Bench::new(NEAR_BYTES, floats)?;
    let rows = near.rows;
    let (pool_near, all) = (near.pool(rows), near.update(rows));
    let few = near.update((rows / REPEATED).max(1));
    // Both merge as many ids; they differ in how many rows then move.
    let update_near = (all.seconds - few.seconds) / (all.distinct - few.distinct).max(1.0);
    let merge = (few.seconds - few.distinct * update_near.max(0.0)) / (LANES * SAMPLES) as f64;
    drop(near);
    let mut far = Bench::new(settings.far_bytes, floats)?;
    let (pool_far, moved) = (far.pool(far.rows), far.update(far.rows));
    let update_far = (moved.seconds - merge * (LANES * SAMPLES) as f64) / moved.distinct;
    let ns = |seconds: f64| (seconds * 1e9).max(LEAST_NS);
    Ok(RowRates {
        floats,
        pool_near_ns: ns(pool_near),
        pool_far_ns: ns(pool_far).max(ns(pool_near)),
        merge_ns: ns(merge),
        update_near_ns: ns(update_near),
        update_far_ns: ns(update_far).max(ns(update_near)),
    })
}

/// The largest table whose rows are pooled nearer to the cost of near rows than to that of far ones.
pub fn cache_bytes(settings: Settings) -> Result<f64, TableError> {
    let cost = |bytes: usize| {
        let mut bench = Bench::new(bytes, CACHE_FLOATS)?;
        let rows = bench.rows;
        Ok(bench.pool(rows))
    };
    let middle = (cost(NEAR_BYTES)? + cost(settings.far_bytes)?) / 2.0;
    let mut largest = NEAR_BYTES;
    for power in CACHE_SIZES {
        let bytes = 1usize << power;
        if bytes >= settings.far_bytes || cost(bytes)? > middle {
            break;
        }
        largest = bytes;
    }
    Ok(largest as f64)
}

/// A table with ids to look up and gradients to take.
struct Bench {
    table: Table,
    rows: usize,
    offsets: Vec<u32>,
    ids: Vec<u32>,
    vectors: Vec<f32>,
    scratch: UpdateScratch,
    random: u64,
    step: u64,
}

/// What an update took, and how many rows it moved.
struct Moved {
    seconds: f64,
    distinct: f64,
}

impl Bench {
    fn new(bytes: usize, floats: usize) -> Result<Bench, TableError> {
        let rows = (bytes / (floats * size_of::<f32>())).max(REPEATED);
        let spec = TableSpec {
            name: "rows".to_owned(),
            row_count: rows as u64,
            dim: floats,
            format: RowFormat::F32,
            // Written once, so that every row has a page of its own.
            init: RowInit::Uniform { bound: 0.01 },
        };
        let optimizer = SparseOptimizer::RowwiseAdagrad { epsilon: 1e-8, initial: 0.0 };
        Ok(Bench {
            table: Table::new(&spec, 0..rows as u64, &optimizer, 1)?,
            rows,
            offsets: (0..=SAMPLES as u32).collect(),
            ids: vec![0; LANES * SAMPLES],
            vectors: vec![0.01; LANES * SAMPLES * floats],
            scratch: UpdateScratch::default(),
            random: 1,
            step: 0,
        })
    }

    /// Seconds to pool one id.
    fn pool(&mut self, among: usize) -> f64 {
        let floats = self.table.columns().len();
        let stride = LANES * floats;
        let drawing = self.drawing(among);
        let Bench { table, ids, offsets, vectors, random, .. } = self;
        let seconds = seconds_each(|| {
            draw(random, ids, among);
            for (lane, rows) in ids.chunks_exact(SAMPLES).enumerate() {
                let bags = FeatureBags { offsets, rows, weights: &[] };
                let pooled = table.pool(Pooling::Sum, &bags, vectors, stride, lane * floats);
                pooled.expect("ids are drawn from the table's rows");
            }
        });
        (seconds - drawing) / (LANES * SAMPLES) as f64
    }

    /// What it takes to merge a batch's gradients and move its rows.
    fn update(&mut self, among: usize) -> Moved {
        let floats = self.table.columns().len();
        let stride = LANES * floats;
        let drawing = self.drawing(among);
        let Bench { table, ids, offsets, vectors, random, scratch, step, .. } = self;
        let mut distinct = 0;
        let seconds = seconds_each(|| {
            draw(random, ids, among);
            let how = UpdateStep { learning_rate: 1e-6, step: *step, l2: 0.0, row_norm_max: 0.0, seed: 1 };
            (*step, distinct) = (*step + 1, 0);
            for (lane, rows) in ids.chunks_exact(SAMPLES).enumerate() {
                let block = GradientBlock {
                    bags: FeatureBags { offsets, rows, weights: &[] },
                    pooling: Pooling::Sum,
                    gradient: vectors,
                    stride,
                    offset: lane * floats,
                };
                let report = table.update(&[block], &how, scratch);
                distinct += report.expect("ids are drawn from the table's rows").rows_touched;
            }
        });
        Moved { seconds: seconds - drawing, distinct: distinct as f64 }
    }

    /// Seconds that drawing ids takes, to be taken off.
    fn drawing(&mut self, among: usize) -> f64 {
        let Bench { ids, random, .. } = self;
        seconds_each(|| draw(random, std::hint::black_box(ids), among))
    }
}

/// Names other rows than before, of the first `among`: what was read in the last round is no longer near.
fn draw(random: &mut u64, ids: &mut [u32], among: usize) {
    for id in ids {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *id = (((*random >> 32) * among as u64) >> 32) as u32;
    }
}
