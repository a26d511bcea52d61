//! Tables that follow a teacher are served with the student, and nothing beside it.

use campanile_serve::{Options, Projection, Snapshot};
use campanile_tables::{Registry, registry::Shape};

use crate::{
    offline::offline,
    trained::{Trained, bits, logits},
};

fn open(trained: &Trained) -> Snapshot {
    Snapshot::open(&trained.checkpoint, "student", &Options::default()).unwrap()
}

/// How far a table's rows are from zero, at which they begin, and how many have left it.
fn moved(snapshot: &Snapshot, table: usize) -> (f32, usize) {
    let (floats, dim) = (snapshot.table_floats(table).unwrap(), snapshot.model().tables[table].dim);
    let largest = floats.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    (largest, floats.chunks_exact(dim).filter(|row| row.iter().any(|value| *value != 0.0)).count())
}

#[test]
fn a_request_names_the_ids_once_and_scores_have_the_bits_of_training() {
    let two_towers = "kind = \"two_tower\"\nitem_features = [\"sparse_2\"]\nuser = [8]\nitem = [8]";
    let dlrm = "kind = \"dlrm\"\nbottom = [64, 16]\ntop = [64, 32]";
    for model in [dlrm, two_towers] {
        let trained = Trained::following(|text| text.replace(dlrm, model));
        let snapshot = open(&trained);
        assert_eq!(snapshot.inputs().feature_count(), 8, "the teacher's tables are no inputs of a request");
        for table in [8, 9] {
            let (largest, rows) = moved(&snapshot, table);
            assert!(largest > 0.05 && rows > 50, "table {table}: {largest}, {rows} rows");
        }
        // A batch of the data has the eight features of the data, as a request has.
        let batch = trained.samples(300);
        assert_eq!(batch.bags.feature_count(), 8);
        assert_eq!(bits(&logits(&snapshot, &batch)), bits(&offline(&trained, &batch)));
        let width = snapshot.model().features[8].name.clone();
        assert_eq!(width, "teacher.sparse_2");
    }
}

#[test]
fn what_follows_goes_on_and_is_published_by_deltas() {
    let whole = Trained::following(|text| text);
    let mut parts = Trained::following(|text| text);
    std::fs::remove_dir_all(parts.job.process.output_dir.join("checkpoints")).unwrap();
    parts.train_until(5);
    let registry = Registry::new(&parts.folder.path().join("registry"));
    parts.publish(&registry, Shape::Whole);
    parts.train_until(12);
    for table in [8, 9] {
        assert_eq!(
            bits(open(&whole).table_floats(table).unwrap()),
            bits(open(&parts).table_floats(table).unwrap())
        );
    }
    let release = parts.publish(&registry, Shape::Smallest);
    let found =
        Snapshot::of_registry(&registry, "ranker", release.number, None, &Options::default()).unwrap();
    let batch = parts.samples(100);
    assert_eq!(bits(&logits(&found, &batch)), bits(&offline(&whole, &batch)));
}

#[test]
fn a_job_that_follows_without_embeddings_and_a_teacher_without_layers_are_told() {
    let mut silent = Trained::following(|text| text);
    silent.job.process.data.teacher = None;
    let refused = std::panic::catch_unwind(|| Trained::job(silent.job.clone()));
    let words = refused.err().and_then(|words| words.downcast_ref::<String>().cloned()).unwrap_or_default();
    assert!(words.contains("NothingToFollow"), "{words}");
    let model = "kind = \"dlrm\"\nbottom = [64, 16]\ntop = [64, 32]";
    let plain = |text: String| text.replace(model, "kind = \"factorization_machine\"");
    let machine = open(&Trained::changed_example("first", plain));
    let words = Projection::of(&machine, 6).unwrap_err().to_string();
    assert!(words.contains("no last hidden vector"), "{words}");
}
