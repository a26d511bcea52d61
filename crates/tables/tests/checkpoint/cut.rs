//! Whatever changes while a cut is swept, the pieces show the moment of its beginning.

use campanile_spec::RowFormat;
use campanile_tables::{
    Table,
    checkpoint::{self, Checkpoint, Limits, Load, Progress, Sweep},
    cut::{RowRun, RowStore},
};
use proptest::prelude::*;

use crate::{ROWWISE_ADAGRAD, contents, layout, manifest, spec, table, train};

/// What may happen to a table while a checkpoint is written.
#[derive(Debug, Clone)]
enum Event {
    Train(Vec<u32>),
    Sweep,
    /// The checkpoint is given up and another is begun.
    Begin,
}

/// Rows this wide make pieces of a few rows, so that a small table has many pieces.
const DIM: usize = 1 << 15;

fn events(row_count: u32) -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => prop::collection::vec(0..row_count, 1..4).prop_map(Event::Train),
        3 => Just(Event::Sweep),
        1 => Just(Event::Begin),
    ];
    prop::collection::vec(event, 0..24)
}

/// Used memory, now longer than a piece, now shorter, and full of something else.
fn spare(found: &(Vec<u8>, Vec<f32>)) -> RowRun {
    let bytes = found.0.iter().map(|byte| !byte).collect();
    RowRun { first_row: 77, row_count: 5, bytes, state: vec![f32::NAN; found.1.len() / 2] }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn pieces_show_the_table_as_it_was_when_the_cut_began(
        (row_count, events) in (1u32..30).prop_flat_map(|count| (Just(count), events(count))),
        start in 0u64..3,
        format in prop::sample::select(crate::FORMATS.to_vec()),
    ) {
        let whole = spec("t", start + u64::from(row_count), DIM, format);
        let mut table = table(&whole, start..whole.row_count, &ROWWISE_ADAGRAD);
        table.begin_cut();
        let mut frozen = contents(&table);
        let mut found: (Vec<u8>, Vec<f32>) = Default::default();
        let take = |table: &mut Table, found: &mut (Vec<u8>, Vec<f32>)| {
            let Some(run) = table.sweep(spare(found)) else { return false };
            assert_eq!(found.1.len() as u64, run.first_row - start, "pieces come in order");
            found.0.extend(run.bytes);
            found.1.extend(run.state);
            true
        };
        for (step, event) in events.into_iter().enumerate() {
            match event {
                Event::Train(rows) => {
                    let rows: Vec<u32> = rows.iter().map(|row| row + start as u32).collect();
                    train(&mut table, &rows, step as u64);
                }
                Event::Sweep => {
                    take(&mut table, &mut found);
                }
                Event::Begin => {
                    table.begin_cut();
                    frozen = contents(&table);
                    found = Default::default();
                }
            }
        }
        while take(&mut table, &mut found) {}
        prop_assert!(table.cut.is_none(), "a cut that is swept is gone");
        prop_assert!(found == frozen, "the cut differs from the table at its beginning");
    }
}

#[test]
fn pre_images_are_kept_once_and_freed_by_the_sweep() {
    let spec = spec("t", 16, DIM, RowFormat::F32);
    let mut table = table(&spec, 0..16, &ROWWISE_ADAGRAD);
    table.begin_cut();
    let kept = |table: &Table| table.cut.as_ref().map(|cut| cut.kept_bytes());
    train(&mut table, &[15, 15, 3], 0);
    let two_rows = kept(&table).unwrap();
    assert!((2 * DIM * 4..3 * DIM * 4).contains(&two_rows), "{two_rows}");
    train(&mut table, &[3, 15], 1);
    assert_eq!(kept(&table), Some(two_rows), "a row is kept once");
    while table.cut.as_ref().is_some_and(|cut| cut.wants(3)) || kept(&table) == Some(two_rows) {
        table.sweep(RowRun::default()).unwrap();
    }
    assert_eq!(kept(&table), Some(two_rows / 2), "the sweep has passed row 3");
    train(&mut table, &[3], 2);
    assert_eq!(kept(&table), Some(two_rows / 2), "rows behind the sweep are free to change");
}

/// Trains between the turns of a sweep and expects the state of the beginning on disk.
fn write_while_training(limits: Limits) -> u64 {
    let home = tempfile::tempdir().unwrap();
    let specs = [spec("hot", 50, 16, RowFormat::Bf16), spec("cold", 30_000, 128, RowFormat::F32)];
    let mut tables: Vec<Table> =
        specs.iter().map(|spec| table(spec, 0..spec.row_count, &ROWWISE_ADAGRAD)).collect();
    let frozen: Vec<_> = tables.iter().map(contents).collect();
    checkpoint::prepare(home.path(), 9).unwrap();
    let mut sweep = Sweep::begin(home.path(), 9, &mut tables, limits).unwrap();
    let mut step = 0;
    while sweep.advance(&mut tables).unwrap() == Progress::Sweeping {
        let kept: usize = tables.iter().filter_map(|table| Some(table.cut.as_ref()?.kept_bytes())).sum();
        assert!(kept <= limits.kept_bytes_max, "{kept} bytes are kept between turns");
        let cold: Vec<u32> = (0..200).map(|i| (step * 977 + i * 149) as u32 % 30_000).collect();
        train(&mut tables[0], &[1, 49, step as u32 % 50], step);
        train(&mut tables[1], &cold, step);
        step += 1;
    }
    let written = sweep.finish(&mut tables).unwrap();
    let path = checkpoint::publish(home.path(), manifest(9, &tables), vec![written]).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    for ((spec, changed), frozen) in specs.iter().zip(&tables).zip(&frozen) {
        let mut loaded = Table::zeroed(spec, 0..spec.row_count, 0..spec.dim, &ROWWISE_ADAGRAD).unwrap();
        checkpoint.load_table(&mut loaded, Load::RowsAndState).unwrap();
        assert!(contents(&loaded) == *frozen, "table `{}` is not as it was", spec.name);
        assert_eq!(contents(changed) == *frozen, step == 0);
    }
    step
}

#[test]
fn training_goes_on_while_a_checkpoint_is_written() {
    let steps = write_while_training(Limits { advance_bytes_max: 1, kept_bytes_max: usize::MAX });
    assert!(steps > 10, "{steps} steps were trained meanwhile");
}

#[test]
fn a_limit_on_kept_rows_makes_the_sweep_wait_for_the_disk_and_stay_consistent() {
    write_while_training(Limits { advance_bytes_max: 1, kept_bytes_max: 0 });
    write_while_training(Limits { advance_bytes_max: 1, kept_bytes_max: 1 << 20 });
}

#[test]
fn a_checkpoint_that_is_given_up_leaves_the_tables_free() {
    let home = tempfile::tempdir().unwrap();
    let spec = spec("t", 30, 4, RowFormat::F32);
    let mut tables = [table(&spec, 0..30, &ROWWISE_ADAGRAD)];
    checkpoint::prepare(home.path(), 1).unwrap();
    let sweep = Sweep::begin(home.path(), 1, &mut tables, Limits::default()).unwrap();
    assert!(tables[0].cut.is_some());
    sweep.abandon(&mut tables);
    assert!(tables[0].cut.is_none());
    checkpoint::discard(home.path(), 1).unwrap();
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    assert_eq!(layout(&tables[0]).row_count, 30);
}
