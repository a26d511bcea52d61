//! The registry: publishing, rolling back, deltas, and everything that can be broken about them.

use std::{fs, path::Path};

use campanile_spec::RowFormat;
use campanile_tables::{
    Registry, RegistryError, Table,
    checkpoint::{Checkpoint, Load},
    registry::{Delta, Kind, Publication, Release, Shape},
};
use proptest::prelude::*;
use serde_json::Value;
use tempfile::TempDir;

use super::{ROWWISE_ADAGRAD, save, spec, table, train};

/// A trainer, its checkpoints, and a registry beside them.
struct World {
    folder: TempDir,
    registry: Registry,
    tables: Vec<Table>,
    step: u64,
}

impl World {
    fn new() -> World {
        let folder = TempDir::new().unwrap();
        let specs = [spec("user", 3000, 8, RowFormat::F32), spec("item", 500, 4, RowFormat::Bf16)];
        let tables = specs.iter().map(|spec| table(spec, 0..spec.row_count, &ROWWISE_ADAGRAD)).collect();
        let registry = Registry::new(&folder.path().join("registry"));
        World { folder, registry, tables, step: 0 }
    }

    fn train(&mut self, rows: &[u32]) {
        self.step += 1;
        train(&mut self.tables[0], rows, self.step);
    }

    fn publish_keeping(&mut self, shape: Shape, keep: usize) -> Result<Release, RegistryError> {
        self.step += 1;
        let checkpoint = save(&self.folder.path().join("checkpoints"), self.step, &mut self.tables);
        self.publish_from(&checkpoint, shape, keep)
    }

    fn publish_from(&self, checkpoint: &Path, shape: Shape, keep: usize) -> Result<Release, RegistryError> {
        self.registry.publish(&Publication {
            model: "ranker",
            checkpoint,
            transforms: b"how raw values become rows",
            fingerprint: "f00d",
            published_ms: 1000 + self.step,
            judged: Value::Null,
            keep,
            shape,
        })
    }

    fn publish(&mut self, shape: Shape) -> Release {
        self.publish_keeping(shape, 100).unwrap()
    }

    /// The rows of both tables as a server would have them.
    fn served(&self, number: u64) -> Vec<Vec<u8>> {
        let chain = self.registry.chain("ranker", number).unwrap();
        let whole = Checkpoint::open(&chain[0].path).unwrap();
        self.tables
            .iter()
            .map(|own| {
                let mut rows = table(own.spec(), own.rows(), &ROWWISE_ADAGRAD);
                whole.load_table(&mut rows, Load::Rows).unwrap();
                for link in &chain[1..] {
                    apply(&mut rows, &link.path);
                }
                rows.row_bytes(rows.rows()).to_vec()
            })
            .collect()
    }

    fn rows(&self) -> Vec<Vec<u8>> {
        self.tables.iter().map(|table| table.row_bytes(table.rows()).to_vec()).collect()
    }
}

fn apply(rows: &mut Table, delta: &Path) {
    let (name, dim, format) = (rows.spec().name.clone(), rows.spec().dim, rows.spec().format);
    let changed = Delta::open(delta).unwrap().changed_rows(&name, dim, format).unwrap();
    let width = dim * format.element_bytes();
    for (row, bytes) in changed.index.iter().zip(changed.bytes.chunks_exact(width)) {
        let run = u64::from(*row)..u64::from(*row) + 1;
        let state = rows.state(run.clone()).to_vec();
        rows.write_rows(run, bytes, &state);
    }
}

#[test]
fn publishing_makes_current_and_rolling_back_moves_the_pointer_only() {
    let mut world = World::new();
    assert_eq!(world.registry.models().unwrap(), Vec::<String>::new());
    let first = world.publish(Shape::Whole);
    assert_eq!((first.number, world.registry.current("ranker").unwrap()), (1, Some(1)));
    world.train(&[1, 2, 3]);
    world.publish(Shape::Whole);
    assert_eq!(world.registry.models().unwrap(), ["ranker"]);
    assert_eq!(world.registry.current("ranker").unwrap(), Some(2));
    assert_eq!(world.registry.roll_back("ranker", None).unwrap(), 1);
    assert_eq!(world.registry.current("ranker").unwrap(), Some(1));
    let nothing = world.registry.roll_back("ranker", None).unwrap_err();
    assert_eq!(nothing.to_string(), "model `ranker`: there is no version before 1 to roll back to");
    // A number is never given twice, even after going back.
    assert_eq!(world.publish(Shape::Whole).number, 3);
    let unknown = world.registry.roll_back("ranker", Some(9)).unwrap_err();
    assert_eq!(unknown.to_string(), "model `ranker` has no version 9; it has 1, 2, 3");
    assert_eq!(world.registry.current("ranker").unwrap(), Some(3));
}

#[test]
fn old_versions_go_but_never_the_current_one_nor_what_a_delta_stands_on() {
    let mut world = World::new();
    world.publish_keeping(Shape::Whole, 2).unwrap();
    for row in 0..3 {
        world.train(&[row]);
        world.publish_keeping(Shape::Smallest, 2).unwrap();
    }
    assert_eq!(world.registry.versions("ranker").unwrap(), [1, 2, 3, 4], "4 stands on 3, 2 and 1");
    world.publish_keeping(Shape::Whole, 2).unwrap();
    world.publish_keeping(Shape::Whole, 2).unwrap();
    assert_eq!(world.registry.versions("ranker").unwrap(), [5, 6]);
    world.registry.roll_back("ranker", Some(5)).unwrap();
    world.publish_keeping(Shape::Whole, 1).unwrap();
    assert_eq!(world.registry.versions("ranker").unwrap(), [7]);
}

#[test]
fn a_delta_holds_the_changed_rows_only() {
    let mut world = World::new();
    world.publish(Shape::Smallest);
    world.train(&[5, 2999, 5]);
    let release = world.publish(Shape::Smallest);
    assert!(matches!(release.kind, Kind::Delta { base: 1, .. }));
    assert_eq!(release.tables.len(), 1, "no row of `item` changed");
    assert_eq!((release.tables[0].name.as_str(), release.tables[0].changed), ("user", 2));
    assert_eq!(world.served(2), world.rows());
    assert!(release.files.iter().map(|file| file.bytes).sum::<u64>() < 1000);
    let delta = Delta::open(&world.registry.path("ranker", 2)).unwrap();
    assert_eq!(delta.dense_values().unwrap().len(), 18);
    // Nearly everything changed: a delta would be no saving.
    world.train(&(0..2900).collect::<Vec<_>>());
    assert_eq!(world.publish(Shape::Smallest).kind, Kind::Whole);
    assert_eq!(world.served(3), world.rows());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Whatever is trained between publications, every version gives back exactly the rows of its moment.
    #[test]
    fn every_version_is_its_moment(
        rounds in prop::collection::vec((prop::collection::vec(0..3000u32, 0..40), any::<bool>()), 1..6),
    ) {
        let mut world = World::new();
        let mut moments = Vec::new();
        for (rows, whole) in rounds {
            if !rows.is_empty() {
                world.train(&rows);
            }
            let release = world.publish(if whole { Shape::Whole } else { Shape::Smallest });
            moments.push((release.number, world.rows()));
        }
        for (number, rows) in &moments {
            prop_assert_eq!(&world.served(*number), rows, "version {}", number);
            world.registry.verify("ranker", *number).unwrap();
        }
    }
}

#[test]
fn a_damaged_checkpoint_never_becomes_current() {
    let mut world = World::new();
    world.publish(Shape::Whole);
    world.step += 1;
    let checkpoint = save(&world.folder.path().join("checkpoints"), world.step, &mut world.tables);
    for file in ["table-user-00000.safetensors", "dense.safetensors", "manifest.json"] {
        let path = checkpoint.join(file);
        let good = fs::read(&path).unwrap();
        let mut bad = good.clone();
        bad[good.len() / 2] ^= 1;
        for damage in [bad, good[..good.len() - 1].to_vec()] {
            // A new file, so that the links of others keep their bytes.
            fs::remove_file(&path).unwrap();
            fs::write(&path, damage).unwrap();
            for shape in [Shape::Whole, Shape::Smallest] {
                let error = world.registry.publish(&Publication {
                    model: "ranker",
                    checkpoint: &checkpoint,
                    transforms: b"how raw values become rows",
                    fingerprint: "f00d",
                    published_ms: 0,
                    judged: Value::Null,
                    keep: 9,
                    shape,
                });
                let message = error.unwrap_err().to_string();
                assert!(message.contains(file), "{message}");
                assert_eq!(world.registry.current("ranker").unwrap(), Some(1));
                assert_eq!(world.registry.versions("ranker").unwrap(), [1]);
            }
        }
        fs::write(&path, good).unwrap();
    }
    assert_eq!(world.publish(Shape::Whole).number, 2, "what failed left nothing in the way");
}

#[test]
fn damage_in_the_registry_is_named_and_a_broken_version_is_not_rolled_back_to() {
    let mut world = World::new();
    world.publish(Shape::Whole);
    world.train(&[4]);
    world.publish(Shape::Smallest);
    world.train(&[8]);
    world.publish(Shape::Smallest);
    let broken = world.registry.path("ranker", 2);
    for entry in fs::read_dir(&broken).unwrap() {
        let path = entry.unwrap().path();
        let good = fs::read(&path).unwrap();
        let mut bad = good.clone();
        bad[good.len() / 2] ^= 4;
        fs::remove_file(&path).unwrap();
        fs::write(&path, &bad).unwrap();
        let message = world.registry.roll_back("ranker", Some(2)).unwrap_err().to_string();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(message.contains(name), "{message} names {name}");
        assert_eq!(world.registry.current("ranker").unwrap(), Some(3));
        fs::write(&path, good).unwrap();
    }
    world.registry.verify("ranker", 3).unwrap();
    // Another version under the same number is not what the delta stands on.
    let release = broken.join("release.json");
    let mut other = World::new();
    other.publish(Shape::Whole);
    other.train(&[9]);
    other.publish(Shape::Smallest);
    fs::copy(other.registry.path("ranker", 2).join("release.json"), &release).unwrap();
    let message = world.registry.chain("ranker", 3).unwrap_err().to_string();
    assert!(message.contains("the delta stands on version 2 with checksum"), "{message}");
}

#[test]
fn what_a_dead_publisher_left_is_swept_and_a_live_one_holds_off_others() {
    let mut world = World::new();
    world.publish(Shape::Whole);
    let leftover = world.registry.path("ranker", 2).with_extension("writing");
    fs::create_dir_all(leftover.join("deep")).unwrap();
    assert_eq!(world.registry.versions("ranker").unwrap(), [1]);
    world.publish(Shape::Whole);
    assert!(!leftover.exists());
    let lock = fs::File::open(world.registry.root().join("ranker/lock")).unwrap();
    lock.lock().unwrap();
    let busy = world.publish_keeping(Shape::Whole, 9).unwrap_err();
    assert!(busy.to_string().contains("is held by another publisher"), "{busy}");
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let registry = Registry::new(Path::new("registry"));
    for name in ["", "..", ".hidden", "a/b", "a\\b", "a b", "é", &"x".repeat(101)] {
        assert!(matches!(registry.current(name), Err(RegistryError::Name { .. })), "{name}");
        assert!(matches!(registry.versions(name), Err(RegistryError::Name { .. })), "{name}");
    }
}

/// The contents of a directory, by name.
fn contents(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    all.sort();
    all
}

#[test]
fn publishing_again_after_a_death_leaves_the_checkpoint_as_it_was() {
    let mut world = World::new();
    world.publish(Shape::Whole);
    world.train(&[7]);
    world.step += 1;
    let checkpoint = save(&world.folder.path().join("checkpoints"), world.step, &mut world.tables);
    let before = contents(&checkpoint);
    // A publisher died after it had linked all files, before the version got its name.
    for left in ["whole/000000000002", "whole/000000000002.writing", "versions/000000000002.writing"] {
        let left = world.registry.root().join("ranker").join(left);
        fs::create_dir_all(&left).unwrap();
        for (name, _) in &before {
            fs::hard_link(checkpoint.join(name), left.join(name)).unwrap();
        }
    }
    let publication = Publication {
        model: "ranker",
        checkpoint: &checkpoint,
        transforms: b"how raw values become rows",
        fingerprint: "f00d",
        published_ms: 0,
        judged: Value::Null,
        keep: 9,
        shape: Shape::Smallest,
    };
    let release = world.registry.publish(&publication).unwrap();
    assert!(matches!(release.kind, Kind::Delta { base: 1, .. }));
    assert_eq!(contents(&checkpoint), before);
    assert_eq!(world.served(2), world.rows());
    world.registry.verify("ranker", 2).unwrap();
    // And the next delta finds what to compare with.
    world.train(&[8]);
    assert!(matches!(world.publish(Shape::Smallest).kind, Kind::Delta { base: 2, .. }));
    assert_eq!(world.served(3), world.rows());
}

#[test]
fn a_failed_publication_leaves_nothing_behind() {
    let mut world = World::new();
    world.publish(Shape::Whole);
    world.step += 1;
    let checkpoint = save(&world.folder.path().join("checkpoints"), world.step, &mut world.tables);
    let path = checkpoint.join("table-user-00000.safetensors");
    let mut bad = fs::read(&path).unwrap();
    *bad.last_mut().unwrap() ^= 1;
    fs::remove_file(&path).unwrap();
    fs::write(&path, bad).unwrap();
    let publication = Publication {
        model: "ranker",
        checkpoint: &checkpoint,
        transforms: b"",
        fingerprint: "f00d",
        published_ms: 0,
        judged: Value::Null,
        keep: 9,
        shape: Shape::Whole,
    };
    world.registry.publish(&publication).unwrap_err();
    let versions = world.registry.root().join("ranker/versions");
    let names: Vec<_> = fs::read_dir(versions).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["000000000001"]);
}

#[test]
fn rolling_back_an_unknown_model_makes_no_directory() {
    let mut world = World::new();
    world.publish(Shape::Whole);
    let error = world.registry.roll_back("rankr", None).unwrap_err().to_string();
    assert!(error.ends_with("has no model `rankr`; it has ranker"), "{error}");
    assert!(!world.registry.root().join("rankr").exists());
    // What an earlier program left so is no model either.
    fs::create_dir_all(world.registry.root().join("rankr/versions")).unwrap();
    assert_eq!(world.registry.models().unwrap(), ["ranker"]);
}

/// Changes keys of a sealed description and seals it again, as anybody can who may write there.
fn forge(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{from} in {text}");
    let text = text.replacen(from, to, 1);
    let body = &text[..text.rfind(",\n  \"crc32c\"").unwrap()];
    let sealed = format!("{body},\n  \"crc32c\": \"{:08x}\"\n}}\n", crc32c::crc32c(body.as_bytes()));
    fs::remove_file(path).unwrap();
    fs::write(path, sealed).unwrap();
}

#[test]
fn a_delta_on_itself_or_under_another_number_is_refused() {
    let mut world = World::new();
    world.publish(Shape::Whole);
    world.train(&[4]);
    world.publish(Shape::Smallest);
    let release = world.registry.path("ranker", 2).join("release.json");
    let good = fs::read(&release).unwrap();
    for base in ["2", "3", "18446744073709551615"] {
        forge(&release, "\"base\": 1", &format!("\"base\": {base}"));
        let error = world.registry.chain("ranker", 2).unwrap_err().to_string();
        assert!(error.contains("which is not older"), "{error}");
        fs::write(&release, &good).unwrap();
    }
    forge(&release, "\"number\": 2", "\"number\": 7");
    let error = world.registry.chain("ranker", 2).unwrap_err().to_string();
    assert!(error.contains("it describes version 7 of `ranker`"), "{error}");
}

#[test]
fn a_manifest_with_impossible_numbers_is_refused() {
    let mut world = World::new();
    world.step += 1;
    let checkpoint = save(&world.folder.path().join("checkpoints"), world.step, &mut world.tables);
    let path = checkpoint.join("manifest.json");
    let good = fs::read(&path).unwrap();
    let manifest = Checkpoint::open(&checkpoint).unwrap().manifest().clone();
    let rows_per_file = format!("\"rows_per_file\": {}", manifest.tables[0].rows_per_file);
    let changes = [
        (rows_per_file.as_str(), "\"rows_per_file\": 0", "rows_per_file"),
        (&rows_per_file, "\"rows_per_file\": 18446744073709551615", "larger than the files"),
        ("\"row_count\": 3000", "\"row_count\": 18446744073709551615", "are not in"),
        ("\"row_count\": 3000", "\"row_count\": 9000000", "files"),
        ("\"dim\": 8", "\"dim\": 4611686018427387904", "are possible"),
        ("\"dim\": 8", "\"dim\": 0", "are possible"),
    ];
    for (from, to, wanted) in changes {
        forge(&path, from, to);
        let error = Checkpoint::open(&checkpoint).unwrap_err().to_string();
        assert!(
            error.contains("table `user`") && (error.contains(wanted) || wanted == "rows_per_file"),
            "{error}"
        );
        fs::write(&path, &good).unwrap();
    }
    Checkpoint::open(&checkpoint).unwrap();
}

#[test]
fn deltas_end_in_a_whole_version_when_there_are_many_or_they_are_much() {
    let mut world = World::new();
    world.publish(Shape::Whole);
    let kinds: Vec<bool> = (0..34u32)
        .map(|row| {
            world.train(&[row]);
            world.publish(Shape::Smallest).kind == Kind::Whole
        })
        .collect();
    assert_eq!(kinds.iter().position(|&whole| whole), Some(32));
    assert!(!kinds[33], "and they begin anew");
    // Each is a fifth of the whole.
    let much: Vec<bool> = (0..4u32)
        .map(|part| {
            world.train(&(part * 700..part * 700 + 700).collect::<Vec<_>>());
            world.publish(Shape::Smallest).kind == Kind::Whole
        })
        .collect();
    assert!(!much[0] && much.contains(&true), "{much:?}");
    assert_eq!(world.served(39), world.rows());
}

#[test]
fn a_damaged_version_holds_off_neither_a_delta_nor_the_removal_of_others() {
    let mut world = World::new();
    world.publish(Shape::Whole);
    world.train(&[1]);
    world.publish(Shape::Smallest);
    fs::write(world.registry.path("ranker", 2).join("release.json"), "{}").unwrap();
    world.train(&[2]);
    let release = world.publish_keeping(Shape::Smallest, 2).unwrap();
    assert_eq!((release.number, release.kind, release.not_removed), (3, Kind::Whole, None));
    assert_eq!(world.registry.current("ranker").unwrap(), Some(3));
    assert_eq!(world.registry.versions("ranker").unwrap(), [1, 2, 3], "2 may stand on 1");
    world.publish_keeping(Shape::Whole, 2).unwrap();
    assert_eq!(world.registry.versions("ranker").unwrap(), [3, 4]);
}

#[test]
fn a_state_that_is_not_finite_is_neither_written_nor_verified_nor_published() {
    let mut world = World::new();
    world.publish(Shape::Whole);
    let checkpoints = world.folder.path().join("checkpoints");
    world.step += 1;
    let checkpoint = save(&checkpoints, world.step, &mut world.tables);
    // Somebody else's program wrote an infinite float of optimizer state, and its checksums with it.
    let path = checkpoint.join("manifest.json");
    let manifest = Checkpoint::open(&checkpoint).unwrap().manifest().clone();
    let entry = manifest.files.iter().find(|file| file.name.starts_with("table-user-")).unwrap();
    let file = checkpoint.join(&entry.name);
    let mut bytes = fs::read(&file).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[header..header + 4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    fs::remove_file(&file).unwrap();
    fs::write(&file, &bytes).unwrap();
    forge(&path, &entry.crc32c, &format!("{:08x}", crc32c::crc32c(&bytes)));
    let error = Checkpoint::open(&checkpoint).unwrap().verify_all().unwrap_err().to_string();
    assert!(error.contains("table `user`, row 0: optimizer state") && error.contains("diverged"), "{error}");
    for shape in [Shape::Whole, Shape::Smallest] {
        let error = world.publish_from(&checkpoint, shape, 100).unwrap_err().to_string();
        assert!(error.contains("is not a finite number"), "{error}");
    }
    assert_eq!(world.registry.current("ranker").unwrap(), Some(1));
}
