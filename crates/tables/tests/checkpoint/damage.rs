//! Damage and failure: the error names the file, and nothing damaged is loaded.

use std::{
    fs,
    path::{Path, PathBuf},
};

use campanile_spec::RowFormat;
use campanile_tables::{
    Table,
    checkpoint::{self, Checkpoint, CheckpointError, DenseKind, Limits, Load, Sweep},
};

use crate::{ROWWISE_ADAGRAD, contents, save, spec, table};

fn tables() -> Vec<Table> {
    [("a", 300, 5, RowFormat::F32), ("b", 40, 1, RowFormat::F16), ("none", 0, 2, RowFormat::F32)]
        .map(|(name, rows, dim, format)| table(&spec(name, rows, dim, format), 0..rows, &ROWWISE_ADAGRAD))
        .into()
}

fn files(checkpoint: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(checkpoint).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Opens and reads everything, as a resumed run does.
fn load_everything(path: &Path) -> Result<(), CheckpointError> {
    let checkpoint = Checkpoint::open(path)?;
    checkpoint.dense(DenseKind::Weights)?;
    for mut table in tables() {
        checkpoint.load_table(&mut table, Load::RowsAndState)?;
    }
    Ok(())
}

/// A repeatable sequence of places to damage.
fn places(length: usize, count: usize) -> impl Iterator<Item = usize> {
    (1..=count as u64)
        .map(move |i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize % length)
        .chain([0, length - 1])
}

#[test]
fn a_flipped_byte_in_any_file_is_an_error_that_names_it() {
    let home = tempfile::tempdir().unwrap();
    let path = save(home.path(), 1, &mut tables());
    load_everything(&path).unwrap();
    assert_eq!(files(&path).len(), 5);
    for file in files(&path) {
        let whole = fs::read(&file).unwrap();
        for place in places(whole.len(), 40) {
            let mut damaged = whole.clone();
            damaged[place] ^= 1 << (place % 8);
            fs::write(&file, &damaged).unwrap();
            let error = Checkpoint::open(&path)
                .and_then(|checkpoint| checkpoint.verify_all())
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(file.to_str().unwrap()) && error.contains("damaged"),
                "byte {place}: {error}"
            );
            // The file of a table without rows holds nothing that a load would read.
            if !file.ends_with("table-none-00000.safetensors") {
                let error = load_everything(&path).unwrap_err().to_string();
                assert!(error.contains(file.to_str().unwrap()), "byte {place}: {error}");
            }
        }
        fs::write(&file, &whole).unwrap();
    }
    load_everything(&path).unwrap();
}

#[test]
fn a_file_cut_short_too_long_or_missing_is_an_error_that_names_it() {
    let home = tempfile::tempdir().unwrap();
    let path = save(home.path(), 1, &mut tables());
    for file in files(&path) {
        let whole = fs::read(&file).unwrap();
        let longer = [&whole[..], b"\n"].concat();
        for damaged in [&whole[..0], &whole[..whole.len() / 2], &whole[..whole.len() - 1], &longer] {
            fs::write(&file, damaged).unwrap();
            let error = Checkpoint::open(&path).unwrap_err().to_string();
            assert!(error.contains(file.to_str().unwrap()) && error.contains("damaged"), "{error}");
        }
        fs::remove_file(&file).unwrap();
        let error = Checkpoint::open(&path).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{} is missing", file.display())), "{error}");
        fs::write(&file, &whole).unwrap();
    }
    load_everything(&path).unwrap();
}

#[test]
fn no_row_of_a_damaged_file_reaches_a_table() {
    let home = tempfile::tempdir().unwrap();
    let path = save(home.path(), 1, &mut tables());
    let file = path.join("table-a-00000.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let mut loaded =
        Table::zeroed(&spec("a", 300, 5, RowFormat::F32), 0..300, 0..5, &ROWWISE_ADAGRAD).unwrap();
    Checkpoint::open(&path).unwrap().load_table(&mut loaded, Load::RowsAndState).unwrap_err();
    assert!(contents(&loaded).0.iter().all(|&byte| byte == 0));
}

#[test]
fn a_disk_that_is_really_full_is_a_clear_error_and_the_last_checkpoint_stays() {
    let home = tempfile::tempdir().unwrap();
    let mut tables = tables();
    let last = save(home.path(), 1, &mut tables);
    checkpoint::prepare(home.path(), 2).unwrap();
    // The kernel answers every write to this device with "no space left".
    let full = home.path().join("step-000000000002.writing/table-b-00000.safetensors");
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    let sweep = Sweep::begin(home.path(), 2, &mut tables, Limits::default()).unwrap();
    let error = sweep.finish(&mut tables).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{} could not be written: No space left on device (os error 28); free some space or lower \
             `checkpoints_kept`, then run the same command again: earlier checkpoints are intact",
            full.display()
        )
    );
    assert!(tables.iter().all(|table| table.cut.is_none()), "the tables are free again");
    checkpoint::discard(home.path(), 2).unwrap();
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    assert_eq!(checkpoint::latest(home.path()).unwrap(), Some(last.clone()));
    load_everything(&last).unwrap();
}

#[test]
fn a_failure_shows_at_the_next_turn_of_the_sweep() {
    let home = tempfile::tempdir().unwrap();
    let spec = spec("t", 200_000, 64, RowFormat::F32);
    let mut tables = [table(&spec, 0..spec.row_count, &ROWWISE_ADAGRAD)];
    checkpoint::prepare(home.path(), 2).unwrap();
    let full = home.path().join("step-000000000002.writing/table-t-00000.safetensors");
    std::os::unix::fs::symlink("/dev/full", full).unwrap();
    let mut sweep = Sweep::begin(home.path(), 2, &mut tables, Limits::default()).unwrap();
    let mut turns = 0;
    let error = loop {
        match sweep.advance(&mut tables) {
            Ok(checkpoint::Progress::Sweeping) => turns += 1,
            Ok(progress) => panic!("{progress:?} after {turns} turns on a full disk"),
            Err(error) => break error,
        }
        std::thread::yield_now();
    };
    assert!(error.to_string().contains("table-t-00000.safetensors could not be written"), "{error}");
    sweep.abandon(&mut tables);
    assert!(tables[0].cut.is_none());
}

#[test]
fn a_checkpoint_is_discarded_under_the_hands_of_a_rank_that_still_writes() {
    let home = tempfile::tempdir().unwrap();
    let mut tables: Vec<Table> = (0..300)
        .map(|i| table(&spec(&format!("t{i}"), 10, 4, RowFormat::F32), 0..10, &ROWWISE_ADAGRAD))
        .collect();
    checkpoint::prepare(home.path(), 2).unwrap();
    let mut sweep = Sweep::begin(home.path(), 2, &mut tables, Limits::default()).unwrap();
    sweep.advance(&mut tables).unwrap();
    checkpoint::discard(home.path(), 2).unwrap();
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "nothing is left, and nothing is added");
    let error = sweep.finish(&mut tables).unwrap_err();
    assert!(matches!(error, CheckpointError::Write { .. }), "{error}");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("file");
    fs::write(&file, "").unwrap();
    let error = checkpoint::prepare(&file, 1).unwrap_err().to_string();
    assert!(error.contains("file/step-000000000001.writing could not be written"), "{error}");
    let error = checkpoint::latest(&file).unwrap_err().to_string();
    assert!(error.contains("could not be read"), "{error}");
}
