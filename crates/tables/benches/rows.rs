//! Lookups and updates beside the machine's own rate for random rows, measured in the same run.
//!
//! 26 tables of 100 thousand to a million rows, batches of 2048 samples, row-wise AdaGrad. The limits go over
//! the same ids of rows of the same size and do nothing but read (or read and write) them, with the best of
//! several prefetch distances. All figures are CPU time of one thread; every call counts with the best of its
//! rounds, so that other work on the machine shows as little as it can, and the limits are measured between
//! ours.
//!
//! Run with `cargo bench -p campanile-tables --bench rows [-- dim=16 format=f32 ids=1 quick]`.
//!
//! ```text
//!   pool     ns per id: read one row and add it to its bag's vector        limit: read the row
//!   update   ns per unique row: merge, sum gradients, move row and state   limits: read and write the row;
//!                                                                          the row and its float of state
//! ```

#![allow(unsafe_code)]

use std::collections::HashSet;

use campanile_kernels::{
    Isa,
    pool::probe,
    random::{mix, row_key},
};
use campanile_spec::{Bags, Pooling, RowFormat, RowInit, SparseOptimizer, TableSpec};
use campanile_tables::{GradientBlock, Table, UpdateScratch, UpdateStep, slab::Slab};

const TABLES: usize = 26;
const SAMPLES: usize = 2048;
const ROUNDS: usize = 10;
const AHEAD: [usize; 5] = [8, 16, 32, 64, 128];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let selected = |key: &str, value: &str| {
        let mut given = wanted.iter().filter_map(|word| word.strip_prefix(key)?.strip_prefix('=')).peekable();
        given.peek().is_none() || given.any(|word| word == value)
    };
    let divisor = if wanted.iter().any(|word| word == "quick") { 20 } else { 1 };
    println!("{TABLES} tables, batches of {SAMPLES} samples, {:?}, ns of CPU time", Isa::detect());
    println!(
        "{:>4} {:>6} {:>8} {:>4} | {:>7} {:>7} {:>4} | {:>7} {:>7} {:>4} {:>7} {:>4} | {:>7} {:>6}",
        "dim",
        "format",
        "ids",
        "/bag",
        "pool",
        "limit",
        "%",
        "update",
        "row",
        "%",
        "+state",
        "%",
        "per id",
        "unique"
    );
    for dim in [16, 128] {
        for (name, format) in [("f32", RowFormat::F32), ("f16", RowFormat::F16), ("bf16", RowFormat::Bf16)] {
            if !selected("dim", &dim.to_string()) || !selected("format", name) {
                continue;
            }
            let mut world = World::new(dim, format, divisor);
            for draw in [Draw::Uniform, Draw::Zipf] {
                for ids_per_bag in [1, 20] {
                    if selected("ids", &ids_per_bag.to_string()) {
                        world.measure(name, draw, ids_per_bag);
                    }
                }
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Draw {
    Uniform,
    Zipf,
}

struct World {
    dim: usize,
    tables: Vec<Table>,
    /// Rows for the limits, as large as those of the tables.
    bare: Vec<Bare>,
}

/// State and rows as a table has them, to be touched only.
struct Bare {
    slab: Slab,
    rows_start: usize,
}

/// Floats that begin on a cache line, as the messages between ranks do.
struct Message {
    floats: Vec<f32>,
    start: usize,
    len: usize,
}

impl Message {
    fn new(len: usize) -> Message {
        let floats = vec![0.0; len + 16];
        let start = floats.as_ptr().align_offset(64);
        Message { floats, start, len }
    }

    fn values_mut(&mut self) -> &mut [f32] {
        &mut self.floats[self.start..][..self.len]
    }
}

impl World {
    fn new(dim: usize, format: RowFormat, divisor: u64) -> World {
        let optimizer = SparseOptimizer::RowwiseAdagrad { epsilon: 1e-8, initial: 0.0 };
        let mut tables = Vec::new();
        let mut bare = Vec::new();
        for table in 0..TABLES as u64 {
            let row_count = (100_000 + 900_000 * table / (TABLES as u64 - 1)) / divisor;
            let init = RowInit::Uniform { bound: 0.1 };
            let spec = TableSpec { name: format!("table {table}"), row_count, dim, format, init };
            tables.push(Table::new(&spec, 0..row_count, &optimizer, 1).expect("memory for the tables"));
            let rows_start = (row_count as usize).next_multiple_of(1024);
            let bytes = rows_start * 4 + row_count as usize * dim * format.element_bytes();
            let mut slab = Slab::zeroed(bytes).expect("memory for the limits");
            slab.touch().expect("memory for the limits");
            bare.push(Bare { slab, rows_start });
        }
        World { dim, tables, bare }
    }

    fn measure(&mut self, format: &str, draw: Draw, ids_per_bag: usize) {
        let rows: Vec<u64> = self.tables.iter().map(|table| table.rows().end).collect();
        // Enough batches that no cache holds what the one before the last brought.
        let batches: Vec<Bags> = (0..if ids_per_bag == 1 { 40 } else { 4 })
            .map(|b| draw_batch(&rows, draw, ids_per_bag, b))
            .collect();
        let unique: Vec<Vec<Vec<u32>>> = batches.iter().map(unique_rows).collect();
        let ids = (batches.len() * TABLES * SAMPLES * ids_per_bag) as f64;
        let unique_count = unique.iter().flatten().map(Vec::len).sum::<usize>() as f64;

        let calls = batches.len() * TABLES;
        let mut best: [Vec<f64>; 5] = std::array::from_fn(|_| vec![f64::INFINITY; calls]);
        let floats = SAMPLES * TABLES * self.dim;
        let (mut pooled, mut gradient) = (Message::new(floats), Message::new(floats));
        let mut scratch = UpdateScratch::default();
        for (i, value) in gradient.values_mut().iter_mut().enumerate() {
            *value = (i % 7) as f32 * 1e-3 - 3e-3;
        }
        for round in 0..ROUNDS {
            for (what, best) in best.iter_mut().enumerate() {
                // The limits go over all calls once with each distance.
                let distances = if matches!(what, 0 | 2) { &AHEAD[..1] } else { &AHEAD[..] };
                for turn in 0..distances.len() * calls {
                    let (ahead, call) = (distances[turn / calls], turn % calls);
                    let (bags, feature) = (&batches[call / TABLES], call % TABLES);
                    let unique = &unique[call / TABLES][feature];
                    let start = thread_ns();
                    match what {
                        0 => self.pool(bags, feature, pooled.values_mut()),
                        1 => self.limit_read(bags.feature(feature).rows, feature, ahead),
                        2 => self.update(bags, feature, gradient.values_mut(), round as u64, &mut scratch),
                        3 => self.limit_write(unique, feature, ahead, 0),
                        _ => self.limit_write(unique, feature, ahead, 1),
                    }
                    best[call] = best[call].min(thread_ns() - start);
                }
            }
        }
        let [pool, read, update, write, write_state] = best.map(|calls| calls.iter().sum::<f64>());
        println!(
            "{:>4} {:>6} {:>8} {:>4} | {:>7.2} {:>7.2} {:>4.0} | {:>7.2} {:>7.2} {:>4.0} {:>7.2} {:>4.0} | {:>7.2} {:>6.3}",
            self.dim,
            format,
            format!("{draw:?}").to_lowercase(),
            ids_per_bag,
            pool / ids,
            read / ids,
            100.0 * read / pool,
            update / unique_count,
            write / unique_count,
            100.0 * write / update,
            write_state / unique_count,
            100.0 * write_state / update,
            update / ids,
            unique_count / ids,
        );
    }

    fn pool(&self, bags: &Bags, feature: usize, out: &mut [f32]) {
        let (bags, stride) = (bags.feature(feature), TABLES * self.dim);
        let pooled = self.tables[feature].pool(Pooling::Sum, &bags, out, stride, feature * self.dim);
        pooled.expect("rows of the table");
    }

    fn update(
        &mut self,
        bags: &Bags,
        feature: usize,
        gradient: &[f32],
        step: u64,
        scratch: &mut UpdateScratch,
    ) {
        let (stride, offset) = (TABLES * self.dim, feature * self.dim);
        let (bags, pooling) = (bags.feature(feature), Pooling::Sum);
        let block = GradientBlock { bags, pooling, gradient, stride, offset };
        let step = UpdateStep { learning_rate: 0.01, step, l2: 0.0, row_norm_max: 0.0, seed: 1 };
        self.tables[feature].update(&[block], &step, scratch).expect("rows of the table");
    }

    /// Floats that a row of the limits has: a 16-bit row is as long as a row of half as many.
    fn bare_dim(&self) -> usize {
        self.dim * self.tables[0].spec().format.element_bytes() / 4
    }

    fn limit_read(&self, ids: &[u32], feature: usize, ahead: usize) {
        let bare = &self.bare[feature];
        let rows = &bare.slab.values::<f32>()[bare.rows_start..];
        std::hint::black_box(probe::read_rows(Isa::detect(), rows, self.bare_dim(), ids, ahead));
    }

    fn limit_write(&mut self, ids: &[u32], feature: usize, ahead: usize, state_floats: usize) {
        let dim = self.bare_dim();
        let bare = &mut self.bare[feature];
        let (state, rows) = bare.slab.values_mut::<f32>().split_at_mut(bare.rows_start);
        let state = &mut state[..rows.len() / dim * state_floats];
        probe::read_and_write_rows(Isa::detect(), (rows, state, dim), ids, ahead);
    }
}

/// One batch: `ids_per_bag` ids in every bag of every feature.
fn draw_batch(rows: &[u64], draw: Draw, ids_per_bag: usize, batch: u64) -> Bags {
    let mut ids = Vec::with_capacity(rows.len() * SAMPLES * ids_per_bag);
    for (table, &row_count) in rows.iter().enumerate() {
        for position in 0..SAMPLES * ids_per_bag {
            let bits = row_key(row_key(batch, table as u64), position as u64);
            let share = (bits >> 11) as f64 / (1_u64 << 53) as f64;
            let rank = match draw {
                Draw::Uniform => share * row_count as f64,
                // The inverse of the distribution function of a density that falls as x^-1.05 on [1, rows + 1).
                Draw::Zipf => {
                    let power = 1.0 - 1.05;
                    (1.0 + share * ((row_count as f64 + 1.0).powf(power) - 1.0)).powf(1.0 / power) - 1.0
                }
            };
            // Popular ids do not live side by side: their rows are a hash.
            ids.push((mix(rank as u64 + 1) % row_count) as u32);
        }
    }
    let offsets = (0..=(rows.len() * SAMPLES) as u32).map(|bag| bag * ids_per_bag as u32).collect();
    Bags::new(rows.len(), SAMPLES, offsets, ids, Vec::new()).expect("bags of equal size")
}

/// The different rows of each feature, in the order of their first occurrence.
fn unique_rows(bags: &Bags) -> Vec<Vec<u32>> {
    let of_feature = |feature| {
        let mut seen = HashSet::new();
        bags.feature(feature).rows.iter().copied().filter(|row| seen.insert(*row)).collect()
    };
    (0..bags.feature_count()).map(of_feature).collect()
}

/// Nanoseconds of CPU time that this thread has used.
fn thread_ns() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the time to the place it is given.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "the thread's clock");
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
