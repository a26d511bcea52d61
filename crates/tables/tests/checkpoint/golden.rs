//! A checkpoint of every version of the format is kept here and must be read for ever; that of the present
//! version is also what is written, byte for byte.

use std::path::Path;

use campanile_spec::{RowFormat, SparseOptimizer, TableSpec};
use campanile_tables::{
    Table,
    checkpoint::{self, Checkpoint, Limits, Load, Sweep},
};

use crate::{dense, manifest, spec};

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
fn a_checkpoint_of_version_1_is_read() {
    let checkpoint = Checkpoint::open(Path::new(V1)).unwrap();
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
    assert_eq!(names(&path), names(Path::new(V1)));
    for name in names(&path) {
        let (ours, kept) =
            (std::fs::read(path.join(&name)).unwrap(), std::fs::read(Path::new(V1).join(&name)).unwrap());
        assert!(
            ours == kept,
            "{name:?} has changed: a new format needs a new version and a new kept checkpoint"
        );
    }
}
