//! What is left when the power goes or the disk fills up, at every single operation.

use std::{
    collections::BTreeSet,
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
};

use campanile_spec::{RowFormat, RowInit, SparseOptimizer, TableSpec};

use super::{
    directory::{clean_on, prepare_on, prune_on, publish_on},
    disk::Disk,
    *,
};
use crate::cut::{Cut, RowStore};

/// A disk that fails on purpose.
#[derive(Debug)]
pub(super) struct Faults {
    operations_left: AtomicI64,
    bytes_left: AtomicI64,
    unsynced: Mutex<BTreeSet<PathBuf>>,
}

impl Faults {
    fn new(operations: i64, bytes: i64) -> Arc<Faults> {
        Arc::new(Faults {
            operations_left: operations.into(),
            bytes_left: bytes.into(),
            unsynced: Mutex::default(),
        })
    }

    /// Counts an operation; the first too many is the end of the world.
    pub(super) fn count(&self) -> io::Result<()> {
        match self.operations_left.fetch_sub(1, Ordering::SeqCst) {
            ..=0 => Err(io::Error::other("the power went")),
            _ => Ok(()),
        }
    }

    /// How many of `length` bytes still find room; they are lost with the power until they are synced.
    pub(super) fn fitting(&self, path: &Path, length: usize) -> usize {
        self.unsynced.lock().unwrap().insert(path.to_owned());
        let left = self.bytes_left.fetch_sub(length as i64, Ordering::SeqCst);
        length.min(left.max(0) as usize)
    }

    pub(super) fn synced(&self, path: &Path) {
        self.unsynced.lock().unwrap().remove(path);
    }

    pub(super) fn renamed(&self, from: &Path, to: &Path) {
        let mut unsynced = self.unsynced.lock().unwrap();
        *unsynced = unsynced
            .iter()
            .map(|path| path.strip_prefix(from).map_or_else(|_| path.clone(), |rest| to.join(rest)))
            .collect();
    }

    /// Empties every file that nobody synced, as a real power cut may.
    fn lose_unsynced(&self) {
        for path in &*self.unsynced.lock().unwrap() {
            if path.exists() {
                fs::File::create(path).unwrap();
            }
        }
    }
}

/// Two floats a row and one of state, in plain vectors.
struct PlainTable {
    spec: TableSpec,
    rows: Vec<u8>,
    state: Vec<f32>,
    cut: Option<Cut>,
}

const OPTIMIZER: SparseOptimizer = SparseOptimizer::RowwiseAdagrad { epsilon: 1e-8, initial: 0.0 };

impl PlainTable {
    fn filled(name: &str, row_count: u64, value: f32) -> PlainTable {
        let spec = TableSpec {
            name: name.to_owned(),
            row_count,
            dim: 2,
            format: RowFormat::F32,
            init: RowInit::Zeros,
        };
        let rows = bytemuck::cast_slice(&vec![value; 2 * row_count as usize]).to_vec();
        PlainTable { spec, rows, state: vec![value; row_count as usize], cut: None }
    }
}

impl RowStore for PlainTable {
    fn layout(&self) -> TableLayout {
        TableLayout::new(&self.spec, &OPTIMIZER)
    }
    fn held(&self) -> Range<u64> {
        0..self.spec.row_count
    }
    fn columns(&self) -> Range<usize> {
        0..self.spec.dim
    }
    fn copy_rows(&self, rows: Range<u64>, bytes: &mut [u8], state: &mut [f32]) {
        let (from, to) = (rows.start as usize, rows.end as usize);
        bytes.copy_from_slice(&self.rows[from * 8..to * 8]);
        state.copy_from_slice(&self.state[from..to]);
    }
    fn write_rows(&mut self, rows: Range<u64>, bytes: &[u8], state: &[f32]) {
        let (from, to) = (rows.start as usize, rows.end as usize);
        self.rows[from * 8..to * 8].copy_from_slice(bytes);
        self.state[from..to].copy_from_slice(state);
    }
    fn cut(&mut self) -> &mut Option<Cut> {
        &mut self.cut
    }
}

/// Writes a checkpoint of two tables and a dense weight, all filled with `value`.
fn save(disk: &Disk, dir: &Path, step: u64, value: f32) -> Result<()> {
    let mut tables = [PlainTable::filled("a", 40, value), PlainTable::filled("b", 3, value)];
    let dense = Arc::new(DenseLayout {
        kind: DenseKind::Weights,
        tensors: vec![TensorEntry { name: "w".to_owned(), shape: vec![2, 2] }],
    });
    prepare_on(disk, dir, step)?;
    let mut sweep = Sweep::begin_on(disk.clone(), dir, step, &mut tables, Limits::default())?;
    sweep.dense(&dense, 0, vec![value; 4])?;
    let written = sweep.finish(&mut tables)?;
    let layouts = tables.iter().map(RowStore::layout).collect();
    publish_on(disk, dir, Manifest::new(step, layouts), vec![written])?;
    prune_on(disk, dir, 1)?;
    Ok(())
}

/// The step and value of the newest checkpoint, every byte of which is checked.
fn newest(dir: &Path) -> (u64, f32) {
    let path = latest(dir).unwrap().expect("a checkpoint is left");
    let checkpoint = Checkpoint::open(&path).unwrap();
    checkpoint.verify_all().unwrap();
    let dense = checkpoint.dense(DenseKind::Weights).unwrap();
    let value = dense[0].values[0];
    for (name, row_count) in [("a", 40), ("b", 3)] {
        let mut table = PlainTable::filled(name, row_count, -1.0);
        checkpoint.load_table(&mut table, Load::RowsAndState).unwrap();
        assert!(bytemuck::pod_collect_to_vec::<u8, f32>(&table.rows).iter().all(|&found| found == value));
        assert!(table.state.iter().all(|&found| found == value));
    }
    (checkpoint.manifest().step, value)
}

/// Lets the power go after every number of operations while a second checkpoint, of `step`, is written.
fn lose_power_everywhere(step: u64) {
    let (mut old, mut new) = (0, 0);
    for operations in 0.. {
        let home = tempfile::tempdir().unwrap();
        save(&Disk::default(), home.path(), 1, 1.0).unwrap();
        let faults = Faults::new(operations, i64::MAX);
        let outcome = save(&Disk { faults: Some(Arc::clone(&faults)) }, home.path(), step, 2.0);
        faults.lose_unsynced();
        clean_on(&Disk::default(), home.path()).unwrap();
        match newest(home.path()) {
            (1, 1.0) if outcome.is_err() => old += 1,
            (found, 2.0) if found == step => new += 1,
            found => {
                panic!("after {operations} operations {found:?} is left and the writer said {outcome:?}")
            }
        }
        let names: Vec<_> =
            fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(names.iter().all(|name| !name.to_string_lossy().contains('.')), "left behind: {names:?}");
        if outcome.is_ok() {
            assert_eq!(new, operations - old + 1);
            assert!(old > 15 && new > 2, "{old} operations before the rename and {new} after it");
            return;
        }
    }
}

#[test]
fn losing_power_at_any_operation_leaves_a_whole_checkpoint() {
    lose_power_everywhere(2);
}

#[test]
fn losing_power_while_a_step_is_written_again_leaves_a_whole_checkpoint() {
    lose_power_everywhere(1);
}

#[test]
fn a_kill_keeps_what_was_not_synced_and_leaves_a_whole_checkpoint_without_cleaning() {
    for operations in 0..30 {
        let home = tempfile::tempdir().unwrap();
        save(&Disk::default(), home.path(), 1, 1.0).unwrap();
        let disk = Disk { faults: Some(Faults::new(operations, i64::MAX)) };
        let outcome = save(&disk, home.path(), 2, 2.0);
        let (step, value) = newest(home.path());
        assert_eq!(step as f32, value);
        assert!(step == 2 || outcome.is_err());
    }
}

#[test]
fn a_full_disk_names_the_file_and_leaves_the_last_checkpoint() {
    let home = tempfile::tempdir().unwrap();
    save(&Disk::default(), home.path(), 1, 1.0).unwrap();
    let mut named = BTreeSet::new();
    for bytes in (0..).step_by(37) {
        let disk = Disk { faults: Some(Faults::new(i64::MAX, bytes)) };
        let Err(error) = save(&disk, home.path(), 2, 2.0) else {
            break;
        };
        let message = error.to_string();
        assert!(message.contains("free some space or lower `checkpoints_kept`"), "{message}");
        let CheckpointError::Write { path, .. } = error else { panic!("{error:?}") };
        assert!(message.starts_with(path.to_str().unwrap()), "{message}");
        named.insert(path.file_name().unwrap().to_string_lossy().into_owned());
        discard(home.path(), 2).unwrap();
        assert_eq!(newest(home.path()), (1, 1.0));
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1, "nothing but the last checkpoint is left");
    }
    let all =
        ["dense.safetensors", "manifest.json", "table-a-00000.safetensors", "table-b-00000.safetensors"];
    assert_eq!(
        named.iter().map(String::as_str).collect::<Vec<_>>(),
        all,
        "the disk was full in every file once"
    );
    assert_eq!(newest(home.path()), (2, 2.0));
}

#[test]
fn a_rank_that_wrote_nothing_is_noticed() {
    let home = tempfile::tempdir().unwrap();
    prepare(home.path(), 3).unwrap();
    let mut tables = [PlainTable::filled("a", 40, 1.0)];
    let sweep = Sweep::begin(home.path(), 3, &mut tables, Limits::default()).unwrap();
    let written = sweep.finish(&mut tables).unwrap();
    let layouts = vec![tables[0].layout(), PlainTable::filled("b", 3, 1.0).layout()];
    let error = publish(home.path(), Manifest::new(3, layouts), vec![written]).unwrap_err().to_string();
    assert!(error.contains("table-b-00000.safetensors") && error.contains("wrote 0 of its"), "{error}");
    assert_eq!(latest(home.path()).unwrap(), None);
}
