//! Snapshots from a registry: deltas, narrow rows, and everything that can be broken.

use std::{fs, path::Path};

use campanile_data::Transforms;
use campanile_serve::{Options, RowStorage, Snapshot};
use campanile_tables::{
    Registry,
    registry::{Kind, Shape},
};
use tempfile::TempDir;

use crate::trained::{Trained, bits, logits};

fn open(registry: &Registry, number: u64, present: Option<&Snapshot>, rows: RowStorage) -> Snapshot {
    let options = Options { rows, ..Options::default() };
    Snapshot::of_registry(registry, "ranker", number, present, &options).unwrap()
}

/// A model whose big tables change little from one publication to the next.
fn slow_learner() -> Trained {
    Trained::changed_example("first", |text| text.replace("vocabulary = 100 ", "vocabulary = 5_000 "))
}

#[test]
fn a_snapshot_with_deltas_scores_as_the_whole_one_in_every_storage() {
    let folder = TempDir::new().unwrap();
    let registry = Registry::new(folder.path());
    let mut trained = slow_learner();
    let batch = trained.samples(200);
    trained.publish(&registry, Shape::Whole);
    for steps in [13, 14] {
        trained.train_until(steps);
        let release = trained.publish(&registry, Shape::Smallest);
        assert!(matches!(release.kind, Kind::Delta { .. }), "one step of many rows is a delta");
    }
    for rows in [RowStorage::AsTrained, RowStorage::F32, RowStorage::F16, RowStorage::Int8] {
        let options = Options { rows, ..Options::default() };
        let whole = Snapshot::open(&trained.checkpoint, "ranker", &options).unwrap();
        let wanted = bits(&logits(&whole, &batch));
        let from_scratch = open(&registry, 3, None, rows);
        assert_eq!(bits(&logits(&from_scratch, &batch)), wanted, "{rows:?}");
        let first = open(&registry, 1, None, rows);
        let before = bits(&logits(&first, &batch));
        let second = open(&registry, 2, Some(&first), rows);
        let third = open(&registry, 3, Some(&second), rows);
        assert_eq!(bits(&logits(&third, &batch)), wanted, "{rows:?}, step by step");
        assert_eq!(bits(&logits(&first, &batch)), before, "a snapshot in use never changes");
        assert_ne!(before, wanted);
        let version = third.version();
        assert_eq!((version.number, version.step, version.model.as_str()), (3, 14, "ranker"));
        let again = open(&registry, 3, Some(&third), rows);
        assert_eq!(again.version(), version);
        let back = open(&registry, 1, Some(&third), rows);
        assert_eq!(bits(&logits(&back, &batch)), before, "{rows:?}, rolled back");
    }
}

#[test]
fn narrow_rows_take_less_memory_and_move_scores_a_little() {
    let trained = slow_learner();
    let batch = trained.samples(500);
    let open = |rows| {
        Snapshot::open(&trained.checkpoint, "ranker", &Options { rows, ..Options::default() }).unwrap()
    };
    let exact = open(RowStorage::F32);
    let wanted = logits(&exact, &batch);
    for (rows, share, limit) in [(RowStorage::F16, 0.55, 1e-3), (RowStorage::Int8, 0.42, 2e-2)] {
        let narrow = open(rows);
        assert!((narrow.bytes() as f64) < share * exact.bytes() as f64, "{rows:?}: {}", narrow.bytes());
        let got = logits(&narrow, &batch);
        let worst = got.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst > 0.0 && worst < limit, "{rows:?}: logits move by up to {worst}");
    }
}

/// Every file of a version, damaged in turn.
#[test]
fn a_broken_version_is_an_error_that_names_the_file_and_the_present_one_serves_on() {
    let folder = TempDir::new().unwrap();
    let registry = Registry::new(folder.path());
    let mut trained = Trained::example("tiny");
    trained.publish(&registry, Shape::Whole);
    let batch = trained.samples(50);
    let present = open(&registry, 1, None, RowStorage::AsTrained);
    let before = bits(&logits(&present, &batch));
    trained.train_until(14);
    trained.publish(&registry, Shape::Whole);
    let version = registry.path("ranker", 2);
    let files: Vec<_> = fs::read_dir(&version).unwrap().map(|entry| entry.unwrap().path()).collect();
    for path in &files {
        let name = path.file_name().unwrap().to_str().unwrap();
        let good = fs::read(path).unwrap();
        let mut flipped = good.clone();
        flipped[good.len() / 2] ^= 16;
        let cut = good[..good.len() / 3].to_vec();
        for damage in [Some(flipped), Some(cut), None] {
            fs::remove_file(path).unwrap();
            if let Some(bytes) = &damage {
                fs::write(path, bytes).unwrap();
            }
            let error = Snapshot::of_registry(&registry, "ranker", 2, Some(&present), &Options::default());
            // State of the dense optimizer is not read, but its length is.
            let unseen =
                name == "dense_state.safetensors" && damage.as_ref().is_some_and(|d| d.len() == good.len());
            if !unseen {
                let message = error.unwrap_err().to_string();
                assert!(message.contains(name), "{name}: {message}");
            }
            fs::write(path, &good).unwrap();
        }
        assert_eq!(bits(&logits(&present, &batch)), before);
    }
    fs::remove_dir_all(&version).unwrap();
    let gone = Snapshot::of_registry(&registry, "ranker", 2, Some(&present), &Options::default());
    assert_eq!(gone.unwrap_err().to_string(), "model `ranker` has no version 2; it has 1");
}

#[test]
fn transforms_with_another_fingerprint_are_refused() {
    let trained = Trained::example("tiny");
    let other = Trained::example("dcn");
    let fingerprint = trained.prepared.transforms.fingerprint();
    let file = trained.checkpoint.with_file_name(Transforms::file_name(&fingerprint));
    other.prepared.transforms.save(&file).unwrap();
    let message = refused(&trained.checkpoint);
    let found = other.prepared.transforms.fingerprint();
    assert!(message.contains(&found) && message.contains(&fingerprint), "{message}");
    assert!(message.contains(file.to_str().unwrap()), "{message}");
    // Without the file they follow from the job, for nothing was measured.
    fs::remove_file(&file).unwrap();
    Snapshot::open(&trained.checkpoint, "tiny", &Options::default()).unwrap();
}

fn refused(checkpoint: &Path) -> String {
    Snapshot::open(checkpoint, "tiny", &Options::default()).unwrap_err().to_string()
}
