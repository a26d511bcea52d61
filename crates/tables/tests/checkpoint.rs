//! Checkpoints of real tables: written on some ranks while rows change, damaged, and read on others.

#[path = "checkpoint/cut.rs"]
mod cut;
#[path = "checkpoint/damage.rs"]
mod damage;
#[path = "checkpoint/golden.rs"]
mod golden;
#[path = "checkpoint/python.rs"]
mod python;
#[path = "checkpoint/registry.rs"]
mod registry;
#[path = "checkpoint/round_trip.rs"]
mod round_trip;

use std::{
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use campanile_spec::{FeatureBags, Pooling, RowFormat, RowInit, SparseOptimizer, TableSpec};
use campanile_tables::{
    GradientBlock, Table, UpdateScratch, UpdateStep,
    checkpoint::{self, DenseKind, DenseLayout, Limits, Manifest, Progress, Sweep, TableLayout, TensorEntry},
};

const ROWWISE_ADAGRAD: SparseOptimizer = SparseOptimizer::RowwiseAdagrad { epsilon: 1e-8, initial: 0.1 };
const FORMATS: [RowFormat; 3] = [RowFormat::F32, RowFormat::F16, RowFormat::Bf16];

fn spec(name: &str, row_count: u64, dim: usize, format: RowFormat) -> TableSpec {
    TableSpec { name: name.to_owned(), row_count, dim, format, init: RowInit::Uniform { bound: 0.5 } }
}

fn table(spec: &TableSpec, rows: Range<u64>, optimizer: &SparseOptimizer) -> Table {
    Table::new(spec, rows, optimizer, 7).unwrap()
}

/// One update of `rows`, with gradients that differ from row to row and step to step.
fn train(table: &mut Table, rows: &[u32], step: u64) {
    let dim = table.spec().dim;
    let gradient: Vec<f32> =
        (0..rows.len() * dim).map(|i| ((i as u64 * 31 + step * 17) % 13) as f32 - 6.0).collect();
    let offsets: Vec<u32> = (0..=rows.len() as u32).collect();
    let bags = FeatureBags { offsets: &offsets, rows, weights: &[] };
    let block = GradientBlock { bags, pooling: Pooling::Sum, gradient: &gradient, stride: dim, offset: 0 };
    let step = UpdateStep { learning_rate: 0.1, step, l2: 0.0, row_norm_max: 0.0, seed: 7 };
    table.update(&[block], &step, &mut UpdateScratch::default()).unwrap();
}

/// Rows and state, as they are now.
fn contents(table: &Table) -> (Vec<u8>, Vec<f32>) {
    (table.row_bytes(table.rows()).to_vec(), table.state(table.rows()).to_vec())
}

/// Some dense weights with names and shapes, flat.
fn dense() -> (Arc<DenseLayout>, Vec<f32>) {
    let tensor = |name: &str, shape: &[usize]| TensorEntry { name: name.to_owned(), shape: shape.to_vec() };
    let tensors = vec![tensor("top.0.weight", &[4, 3]), tensor("bottom.0.bias", &[5]), tensor("scale", &[])];
    (Arc::new(DenseLayout { kind: DenseKind::Weights, tensors }), (0..18).map(|i| i as f32 / 3.0).collect())
}

fn manifest(step: u64, tables: &[Table]) -> Manifest {
    let mut manifest = Manifest::new(step, tables.iter().map(layout).collect());
    manifest.run_hash = "5eed".to_owned();
    manifest.cursor = serde_json::json!({"epoch": 1, "sample": 4096});
    manifest
}

fn layout(table: &Table) -> TableLayout {
    TableLayout::new(table.spec(), table.optimizer())
}

/// Writes whole tables and the dense weights from one rank, with nothing going on meanwhile.
fn save(dir: &Path, step: u64, tables: &mut [Table]) -> PathBuf {
    checkpoint::prepare(dir, step).unwrap();
    let mut sweep = Sweep::begin(dir, step, tables, Limits::default()).unwrap();
    let (layout, values) = dense();
    sweep.dense(&layout, 0, values).unwrap();
    while sweep.advance(tables).unwrap() != Progress::Written {
        std::thread::yield_now();
    }
    let written = sweep.finish(tables).unwrap();
    checkpoint::publish(dir, manifest(step, tables), vec![written]).unwrap()
}
