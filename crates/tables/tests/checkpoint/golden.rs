//! A checkpoint of every version of the format is kept here and must be read for ever; that of the present
//! version is also what is written, byte for byte.

use std::path::Path;

use campanile_spec::{RowFormat, SparseOptimizer, TableSpec};
use campanile_tables::{
    Table,
    checkpoint::{self, Checkpoint, Limits, Load, Manifest, Sweep},
};

use crate::{dense, manifest, spec};

const V2: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/checkpoint/v2/step-000000000123");

const V1: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/checkpoint/v1/step-000000000123");

const ADAM: SparseOptimizer = SparseOptimizer::RowwiseAdam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };

fn specs() -> [TableSpec; 2] {
    [spec("user/city", 3, 3, RowFormat::Bf16), spec("item", 2, 2, RowFormat::F32)]
}

/// The tables of the kept checkpoint.
fn tables() -> Vec<Table> {
    let mut tables: Vec<Table> = specs()
        .iter()
        .map(|spec| Table::zeroed(spec, 0..spec.row_count, 0..spec.dim, &ADAM).unwrap())
        .collect();
    let halves: Vec<u8> = (0..9u16).flat_map(|i| (0x3f80 + i).to_le_bytes()).collect();
    tables[0].write_rows(0..3, &halves, &(0..12).map(|i| i as f32 / 4.0).collect::<Vec<f32>>());
    tables[1].write_rows(0..2, bytemuck::cast_slice(&[1.5f32, -2.0, 0.0, 1e-30]), &[0.5; 6]);
    tables
}

#[test]
fn a_checkpoint_of_every_version_is_read() {
    for (version, path) in [(1, V1), (2, V2)] {
        let checkpoint = Checkpoint::open(Path::new(path)).unwrap();
        assert_eq!(checkpoint.manifest().version, version);
        is_read(&checkpoint);
    }
}

fn is_read(checkpoint: &Checkpoint) {
    checkpoint.verify_all().unwrap();
    assert_eq!(checkpoint.manifest().step, 123);
    assert_eq!(checkpoint.dense_values(&dense().0).unwrap(), dense().1);
    for wanted in tables() {
        let mut loaded = Table::zeroed(wanted.spec(), wanted.rows(), wanted.columns(), &ADAM).unwrap();
        checkpoint.load_table(&mut loaded, Load::RowsAndState).unwrap();
        assert_eq!(loaded.row_bytes(loaded.rows()), wanted.row_bytes(wanted.rows()));
        assert_eq!(loaded.state(loaded.rows()), wanted.state(wanted.rows()));
    }
}

#[test]
fn the_present_version_writes_the_same_bytes() {
    let home = tempfile::tempdir().unwrap();
    let mut tables = tables();
    checkpoint::prepare(home.path(), 123).unwrap();
    let mut sweep = Sweep::begin(home.path(), 123, &mut tables, Limits::default()).unwrap();
    let (layout, values) = dense();
    sweep.dense(&layout, 0, values).unwrap();
    let written = sweep.finish(&mut tables).unwrap();
    let mut manifest = manifest(123, &tables);
    manifest.cursor = serde_json::json!({"sample": 4096});
    let path = checkpoint::publish(home.path(), manifest, vec![written]).unwrap();
    let names = |path: &Path| {
        let entries = std::fs::read_dir(path).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&path), names(Path::new(V2)));
    for name in names(&path) {
        let (ours, kept) =
            (std::fs::read(path.join(&name)).unwrap(), std::fs::read(Path::new(V2).join(&name)).unwrap());
        assert!(
            ours == kept,
            "{name:?} has changed: a new format needs a new version and a new kept checkpoint"
        );
    }
}

/// Of FTRL, what version 1 kept meant something else; rows are rows.
#[test]
fn the_state_of_ftrl_of_version_1_is_refused_by_name() {
    let (home, ftrl) = (tempfile::tempdir().unwrap(), SparseOptimizer::Ftrl { beta: 1.0, l1: 0.0, l2: 0.0 });
    let new = || Table::zeroed(&specs()[1], 0..2, 0..2, &ftrl).unwrap();
    let mut tables = vec![new()];
    checkpoint::prepare(home.path(), 7).unwrap();
    let sweep = Sweep::begin(home.path(), 7, &mut tables, Limits::default()).unwrap();
    let written = sweep.finish(&mut tables).unwrap();
    let manifest = Manifest { version: 1, ..manifest(7, &tables) };
    let path = checkpoint::publish(home.path(), manifest, vec![written]).unwrap();
    let found = Checkpoint::open(&path).unwrap();
    found.load_table(&mut new(), Load::Rows).unwrap();
    let error = found.load_table(&mut new(), Load::RowsAndState).unwrap_err().to_string();
    assert!(error.contains("`item`") && error.contains("FTRL") && error.contains("--fresh"), "{error}");
}
