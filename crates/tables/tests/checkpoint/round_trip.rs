//! What is written comes back: every format, optimizer and shape, from any ranks to any ranks.

use std::ops::Range;

use campanile_spec::{RowFormat, SparseOptimizer, TableSpec};
use campanile_tables::{
    Table,
    checkpoint::{self, Checkpoint, CheckpointError, DenseKind, DenseLayout, Limits, Load, Manifest, Sweep},
};
use safetensors::{Dtype, SafeTensors};

use crate::{FORMATS, ROWWISE_ADAGRAD, contents, dense, layout, manifest, save, spec, table, train};

fn optimizers() -> Vec<SparseOptimizer> {
    let (beta1, beta2, epsilon) = (0.9, 0.999, 1e-8);
    vec![
        SparseOptimizer::Sgd,
        SparseOptimizer::Adagrad { epsilon, initial: 0.0 },
        ROWWISE_ADAGRAD,
        SparseOptimizer::Adam { beta1, beta2, epsilon },
        SparseOptimizer::RowwiseAdam { beta1, beta2, epsilon },
        SparseOptimizer::Ftrl { beta: 1.0, l1: 0.01, l2: 0.0 },
    ]
}

fn load(checkpoint: &Checkpoint, spec: &TableSpec, optimizer: &SparseOptimizer) -> Table {
    let mut loaded = Table::zeroed(spec, 0..spec.row_count, 0..spec.dim, optimizer).unwrap();
    checkpoint.load_table(&mut loaded, Load::RowsAndState).unwrap();
    loaded
}

#[test]
fn every_optimizer_format_and_shape_comes_back() {
    for optimizer in optimizers() {
        let home = tempfile::tempdir().unwrap();
        let mut specs = Vec::new();
        for format in FORMATS {
            for (row_count, dim) in [(0, 8), (1, 1), (513, 1), (257, 128), (10, 3)] {
                specs.push(spec(&format!("{format:?} {row_count}x{dim}"), row_count, dim, format));
            }
        }
        let mut tables: Vec<Table> =
            specs.iter().map(|spec| table(spec, 0..spec.row_count, &optimizer)).collect();
        for table in &mut tables {
            let rows: Vec<u32> = (0..table.rows().end as u32).step_by(2).collect();
            train(table, &rows, 0);
        }
        let path = save(home.path(), 12, &mut tables);
        assert_eq!(path, home.path().join("step-000000000012"));
        assert_eq!(checkpoint::latest(home.path()).unwrap(), Some(path.clone()));
        let checkpoint = Checkpoint::open(&path).unwrap();
        checkpoint.verify_all().unwrap();
        for (spec, table) in specs.iter().zip(&tables) {
            assert!(
                contents(&load(&checkpoint, spec, &optimizer)) == contents(table),
                "{optimizer:?} {spec:?}"
            );
        }
    }
}

#[test]
fn the_files_are_what_the_safetensors_library_reads() {
    let home = tempfile::tempdir().unwrap();
    let optimizer = SparseOptimizer::RowwiseAdam { beta1: 0.9, beta2: 0.99, epsilon: 1e-8 };
    let spec = spec("user id", 20, 5, RowFormat::Bf16);
    let mut tables = [table(&spec, 0..20, &optimizer)];
    train(&mut tables[0], &[3, 7], 0);
    let path = save(home.path(), 1, &mut tables);
    let bytes = std::fs::read(path.join("table-user%20id-00000.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (rows, state) = (file.tensor("rows").unwrap(), file.tensor("state").unwrap());
    assert_eq!((rows.dtype(), rows.shape()), (Dtype::BF16, &[20, 5][..]));
    assert_eq!((state.dtype(), state.shape()), (Dtype::F32, &[20, 6][..]));
    assert_eq!(rows.data(), tables[0].row_bytes(0..20));
    assert_eq!(state.data(), bytemuck::cast_slice::<f32, u8>(tables[0].state(0..20)));
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(metadata.metadata().as_ref().unwrap()["table"], "user id");

    let bytes = std::fs::read(path.join("dense.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let bias = file.tensor("bottom.0.bias").unwrap();
    assert_eq!(bias.shape(), [5]);
    assert_eq!(bias.data(), bytemuck::cast_slice::<f32, u8>(&dense().1[12..17]));
}

#[test]
fn the_manifest_and_the_dense_weights_come_back() {
    let home = tempfile::tempdir().unwrap();
    let mut tables = [table(&spec("t", 3, 2, RowFormat::F32), 0..3, &ROWWISE_ADAGRAD)];
    let path = save(home.path(), 77, &mut tables);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let read = checkpoint.manifest();
    assert_eq!((read.step, read.run_hash.as_str()), (77, "5eed"));
    assert_eq!(read.cursor, serde_json::json!({"epoch": 1, "sample": 4096}));
    assert_eq!(read.tables, [layout(&tables[0])]);
    let (wanted, values) = dense();
    assert_eq!(checkpoint.dense_values(&wanted).unwrap(), values);
    let tensors = checkpoint.dense(DenseKind::Weights).unwrap();
    assert_eq!(tensors[0].name, "top.0.weight");
    assert_eq!(tensors[2].values, values[17..]);
    assert!(checkpoint.dense(DenseKind::State).unwrap().is_empty(), "no state was written");

    let mut other = (*wanted).clone();
    other.tensors[1].shape = vec![6];
    let error = checkpoint.dense_values(&other).unwrap_err().to_string();
    assert!(error.ends_with("`bottom.0.bias` has shape [5], the job's model asks for [6]"), "{error}");
    let fewer = DenseLayout { kind: DenseKind::Weights, tensors: wanted.tensors[..2].to_vec() };
    let error = checkpoint.dense_values(&fewer).unwrap_err().to_string();
    assert!(error.contains("has a tensor `scale` that the job's model has not"), "{error}");
    other.tensors[1].name = "renamed".to_owned();
    let error = checkpoint.dense_values(&other).unwrap_err().to_string();
    assert!(error.contains("no tensor `renamed`"), "{error}");
}

/// The rows of rank `rank` when `row_count` rows are cut at `cuts`.
fn held(cuts: &[u64], row_count: u64, rank: usize) -> Range<u64> {
    let start = if rank == 0 { 0 } else { cuts[rank - 1] };
    start..cuts.get(rank).copied().unwrap_or(row_count)
}

/// Writes a table that is cut by rows over ranks, each of which also holds a slice of the dense state.
fn save_on_ranks(dir: &std::path::Path, spec: &TableSpec, cuts: &[u64]) -> std::path::PathBuf {
    checkpoint::prepare(dir, 5).unwrap();
    let (weights, values) = dense();
    let state = std::sync::Arc::new(DenseLayout { kind: DenseKind::State, tensors: weights.tensors.clone() });
    let ranks = cuts.len() + 1;
    let written = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..ranks)
            .map(|rank| {
                let (values, weights, state) = (&values, &weights, &state);
                scope.spawn(move || {
                    let mut tables = [table(spec, held(cuts, spec.row_count, rank), &ROWWISE_ADAGRAD)];
                    let mut sweep = Sweep::begin(dir, 5, &mut tables, Limits::default()).unwrap();
                    if rank == 0 {
                        sweep.dense(weights, 0, values.clone()).unwrap();
                    }
                    let slice = values.len() * rank / ranks..values.len() * (rank + 1) / ranks;
                    sweep.dense(state, slice.start as u64, values[slice].to_vec()).unwrap();
                    sweep.finish(&mut tables).unwrap()
                })
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    });
    let whole = checkpoint::TableLayout::new(spec, &ROWWISE_ADAGRAD);
    checkpoint::publish(dir, Manifest::new(5, vec![whole]), written).unwrap()
}

#[test]
fn ranks_that_share_files_write_the_same_bytes_as_one_rank_and_any_ranks_read_them() {
    let spec = spec("big", 70_000, 128, RowFormat::F32);
    let homes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let one = save_on_ranks(homes[0].path(), &spec, &[]);
    let three = save_on_ranks(homes[1].path(), &spec, &[0, 65_000]);
    let checkpoint = Checkpoint::open(&three).unwrap();
    assert!(checkpoint.manifest().tables[0].file_count() > 1, "the table has several files");
    assert_eq!(checkpoint.manifest(), Checkpoint::open(&one).unwrap().manifest());
    checkpoint.verify_all().unwrap();
    assert_eq!(checkpoint.dense(DenseKind::State).unwrap()[1].values, dense().1[12..17]);

    let whole = table(&spec, 0..spec.row_count, &ROWWISE_ADAGRAD);
    for part in [0..1, 0..65_536, 65_536..70_000, 65_530..65_540, 69_999..70_000, 12..12] {
        let mut loaded = Table::zeroed(&spec, part.clone(), 0..spec.dim, &ROWWISE_ADAGRAD).unwrap();
        checkpoint.load_table(&mut loaded, Load::RowsAndState).unwrap();
        assert!(loaded.row_bytes(part.clone()) == whole.row_bytes(part.clone()), "rows {part:?}");
        assert!(loaded.state(part.clone()) == whole.state(part.clone()), "state of {part:?}");
    }
}

#[test]
fn ranks_that_hold_columns_write_the_same_bytes_as_one_rank_and_read_them() {
    for optimizer in optimizers() {
        for format in FORMATS {
            let spec = spec("wide", 5_000, 80, format);
            let homes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
            let mut whole = table(&spec, 0..5_000, &optimizer);
            train(&mut whole, &(0..5_000).step_by(7).collect::<Vec<u32>>(), 0);
            let mut tables = [whole];
            let one = save(homes[0].path(), 4, &mut tables);
            let checkpoint = Checkpoint::open(&one).unwrap();

            let step = 4;
            checkpoint::prepare(homes[1].path(), step).unwrap();
            let mut parts = Vec::new();
            for (rows, columns) in
                [(0..3_000, 0..32), (0..3_000, 32..80), (3_000..5_000, 0..32), (3_000..5_000, 32..80)]
            {
                let mut part = [Table::zeroed(&spec, rows, columns, &optimizer).unwrap()];
                checkpoint.load_table(&mut part[0], Load::RowsAndState).unwrap();
                let sweep = Sweep::begin(homes[1].path(), step, &mut part, Limits::default()).unwrap();
                parts.push(sweep.finish(&mut part).unwrap());
            }
            let path = checkpoint::publish(homes[1].path(), manifest(step, &tables), parts).unwrap();
            let again = Checkpoint::open(&path).unwrap();
            again.verify_all().unwrap();
            for file in again.manifest().files.iter().filter(|file| file.name.starts_with("table-")) {
                assert_eq!(checkpoint.manifest().file(&file.name), Some(file), "{optimizer:?} {format:?}");
            }
            assert!(
                contents(&load(&again, &spec, &optimizer)) == contents(&tables[0]),
                "{optimizer:?} {format:?}"
            );
        }
    }
}

#[test]
fn a_rank_reads_only_the_files_it_needs() {
    let home = tempfile::tempdir().unwrap();
    let spec = spec("big", 70_000, 128, RowFormat::F32);
    let path = save_on_ranks(home.path(), &spec, &[]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    std::fs::remove_file(path.join("table-big-00001.safetensors")).unwrap();
    let mut first = Table::zeroed(&spec, 0..100, 0..spec.dim, &ROWWISE_ADAGRAD).unwrap();
    checkpoint.load_table(&mut first, Load::RowsAndState).unwrap();
    let mut last = Table::zeroed(&spec, 69_000..70_000, 0..spec.dim, &ROWWISE_ADAGRAD).unwrap();
    let error = checkpoint.load_table(&mut last, Load::RowsAndState).unwrap_err();
    assert!(error.to_string().contains("table-big-00001.safetensors is missing"), "{error}");
}

#[test]
fn any_precision_loads_any_checkpoint() {
    for from in FORMATS {
        let home = tempfile::tempdir().unwrap();
        let written = spec("t", 100, 16, from);
        let mut tables = [table(&written, 0..100, &ROWWISE_ADAGRAD)];
        train(&mut tables[0], &[1, 2, 3], 0);
        let checkpoint = Checkpoint::open(&save(home.path(), 1, &mut tables)).unwrap();
        for to in FORMATS {
            let loaded = load(&checkpoint, &TableSpec { format: to, ..written.clone() }, &ROWWISE_ADAGRAD);
            assert_eq!(loaded.state(0..100), tables[0].state(0..100), "state stays as it is");
            let (before, after) = (floats(&tables[0]), floats(&loaded));
            let relative = match to {
                _ if from == to => 0.0,
                RowFormat::F32 => 0.0,
                RowFormat::F16 => 2f32.powi(-11),
                RowFormat::Bf16 => 2f32.powi(-8),
            };
            for (before, after) in before.iter().zip(&after) {
                // Below the normal range of f16 half a unit of its smallest number is the bound.
                let bound = (before.abs() * relative).max(if relative > 0.0 { 2f32.powi(-25) } else { 0.0 });
                assert!((before - after).abs() <= bound, "{before} became {after} from {from:?} to {to:?}");
            }
        }
    }
}

/// How numpy calls a table's format, and the values it should see.
pub(crate) fn numpy_view(table: &Table) -> (&'static str, Vec<f32>) {
    let dtype = match table.spec().format {
        RowFormat::F32 => "float32",
        RowFormat::F16 => "float16",
        RowFormat::Bf16 => "bfloat16",
    };
    (dtype, floats(table))
}

fn floats(table: &Table) -> Vec<f32> {
    let bytes = table.row_bytes(table.rows());
    let halves = || bytes.as_chunks::<2>().0.iter().map(|&half| u16::from_le_bytes(half));
    match table.spec().format {
        RowFormat::F32 => bytemuck::pod_collect_to_vec(bytes),
        RowFormat::F16 => halves().map(campanile_kernels::half::f32_from_f16).collect(),
        RowFormat::Bf16 => halves().map(campanile_kernels::half::f32_from_bf16).collect(),
    }
}

#[test]
fn another_shape_or_optimizer_is_refused_and_rows_alone_are_not() {
    let home = tempfile::tempdir().unwrap();
    let written = spec("t", 10, 4, RowFormat::F32);
    let mut tables = [table(&written, 0..10, &ROWWISE_ADAGRAD)];
    let path = save(home.path(), 1, &mut tables);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let message = |spec: TableSpec, optimizer: &SparseOptimizer| {
        let mut other = Table::zeroed(&spec, 0..spec.row_count, 0..spec.dim, optimizer).unwrap();
        let error = checkpoint.load_table(&mut other, Load::RowsAndState).unwrap_err().to_string();
        error.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&error).to_owned()
    };
    let with = |change: fn(&mut TableSpec)| {
        let mut spec = written.clone();
        change(&mut spec);
        spec
    };
    assert_eq!(
        message(with(|spec| spec.dim = 8), &ROWWISE_ADAGRAD),
        "table `t`: the checkpoint has rows of 4 floats, the job asks for 8"
    );
    assert_eq!(
        message(with(|spec| spec.row_count = 11), &ROWWISE_ADAGRAD),
        "table `t`: the checkpoint has 10 rows, the job asks for 11"
    );
    let error = message(with(|spec| spec.name = "u".to_owned()), &ROWWISE_ADAGRAD);
    assert!(error.ends_with("has no table `u`; it has `t`"), "{error}");
    let adam = SparseOptimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
    assert_eq!(
        message(written.clone(), &adam),
        "table `t`: the checkpoint keeps `s` (1 floats) beside its rows, the job's optimizer keeps \
         `m` (4 floats) and `v` (4 floats); go on with the optimizer of the checkpoint, or load rows only"
    );
    let mut rows_only = Table::zeroed(&written, 0..10, 0..written.dim, &adam).unwrap();
    rows_only.write_rows(0..10, &[0; 160], &[3.0; 80]);
    checkpoint.load_table(&mut rows_only, Load::Rows).unwrap();
    assert_eq!(rows_only.row_bytes(0..10), tables[0].row_bytes(0..10));
    assert_eq!(rows_only.state(0..10), [3.0; 80], "the state is left alone");
}

#[test]
fn many_small_tables_make_one_checkpoint() {
    let home = tempfile::tempdir().unwrap();
    let specs: Vec<TableSpec> =
        (0..200).map(|i| spec(&format!("C{i}"), i % 7, 1 + i as usize % 5, RowFormat::F16)).collect();
    let mut tables: Vec<Table> =
        specs.iter().map(|spec| table(spec, 0..spec.row_count, &ROWWISE_ADAGRAD)).collect();
    let checkpoint = Checkpoint::open(&save(home.path(), 1, &mut tables)).unwrap();
    assert_eq!(checkpoint.manifest().files.len(), 201);
    for (spec, table) in specs.iter().zip(&tables) {
        assert!(contents(&load(&checkpoint, spec, &ROWWISE_ADAGRAD)) == contents(table));
    }
}

#[test]
fn only_the_newest_are_kept_and_other_files_are_left_alone() {
    let home = tempfile::tempdir().unwrap();
    assert_eq!(checkpoint::latest(&home.path().join("nothing here")).unwrap(), None);
    std::fs::write(home.path().join("notes.txt"), "mine").unwrap();
    std::fs::create_dir(home.path().join("step-7")).unwrap();
    let mut tables = [table(&spec("t", 3, 2, RowFormat::F32), 0..3, &ROWWISE_ADAGRAD)];
    for step in [9, 10, 100, 11] {
        save(home.path(), step, &mut tables);
    }
    checkpoint::prepare(home.path(), 200).unwrap();
    let gone = checkpoint::prune(home.path(), 2).unwrap();
    assert_eq!(gone, [9, 10].map(|step| home.path().join(format!("step-{step:012}"))));
    let left: Vec<u64> = checkpoint::list(home.path()).unwrap().into_iter().map(|(step, _)| step).collect();
    assert_eq!(left, [11, 100]);
    checkpoint::clean(home.path()).unwrap();
    checkpoint::prune(home.path(), 0).unwrap();
    let mut names: Vec<String> = std::fs::read_dir(home.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["notes.txt", "step-000000000100", "step-7"], "one is kept whatever is asked");
}

#[test]
fn a_step_can_be_published_again() {
    let home = tempfile::tempdir().unwrap();
    let spec = spec("t", 3, 2, RowFormat::F32);
    let mut tables = [table(&spec, 0..3, &ROWWISE_ADAGRAD)];
    save(home.path(), 4, &mut tables);
    train(&mut tables[0], &[0, 1, 2], 0);
    let checkpoint = Checkpoint::open(&save(home.path(), 4, &mut tables)).unwrap();
    assert!(contents(&load(&checkpoint, &spec, &ROWWISE_ADAGRAD)) == contents(&tables[0]));
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1);
}

#[test]
fn a_summary_says_what_is_inside() {
    let home = tempfile::tempdir().unwrap();
    let specs = [spec("user", 2000, 16, RowFormat::Bf16), spec("country", 0, 4, RowFormat::F32)];
    let mut tables: Vec<Table> =
        specs.iter().map(|spec| table(spec, 0..spec.row_count, &ROWWISE_ADAGRAD)).collect();
    let path = save(home.path(), 31, &mut tables);
    let summary = checkpoint::describe(&path).unwrap();
    assert_eq!((summary.step, summary.file_count, summary.dense_elements), (31, 3, 18));
    assert_eq!(summary.bytes, Checkpoint::open(&path).unwrap().manifest().bytes());
    let text = summary.to_string().replace(path.to_str().unwrap(), "DIR");
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    assert_eq!(lines[0], "checkpoint DIR");
    assert_eq!(lines[1], "  step        31");
    assert!(lines.contains(&"  user             2000     16  BF16    70.5 KiB  `s` (1 floats)"), "{text}");
    assert!(matches!(checkpoint::describe(home.path()), Err(CheckpointError::Missing { .. })));
    assert!(manifest(1, &tables).files.is_empty());
}

#[test]
fn a_checkpoint_that_is_held_outlives_pruning_and_is_swept_up_after_a_crash() {
    let home = tempfile::tempdir().unwrap();
    let mut tables = [table(&spec("t", 3, 2, RowFormat::F32), 0..3, &ROWWISE_ADAGRAD)];
    save(home.path(), 9, &mut tables);
    let oldest = checkpoint::latest(home.path()).unwrap().unwrap();
    let held = checkpoint::hold(&oldest);
    save(home.path(), 10, &mut tables);
    checkpoint::prune(home.path(), 1).unwrap();
    assert!(!oldest.exists());
    assert_eq!(checkpoint::Checkpoint::open(held.path()).unwrap().manifest().step, 9);
    assert_eq!(checkpoint::list(home.path()).unwrap().len(), 1, "it does not count as a checkpoint");
    let path = held.path().to_owned();
    drop(held);
    assert!(!path.exists());

    let newest = checkpoint::latest(home.path()).unwrap().unwrap();
    let left = checkpoint::hold(&newest).path().with_extension("held");
    std::fs::create_dir_all(&left).unwrap(); // as a killed reader leaves it
    checkpoint::clean(home.path()).unwrap();
    assert!(!left.exists() && newest.exists());
}
