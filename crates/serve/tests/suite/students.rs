//! What a teacher leaves behind: a student's heads and adapters are in its checkpoints, and in nothing that is served.

use campanile_serve::{Options, Snapshot, export::write_safetensors};
use campanile_tables::{Registry, registry::Shape};

use crate::{
    offline::offline,
    trained::{Trained, bits, logits},
};

const TEACHER: &str = "
[run.data.world.teacher]
bias = 0.5
delay_seconds = 0.5
refresh_seconds = 1.0
coverage = 0.9
[run.distil]
gradient_scale = 4.0
weight = 2.0
label_scale = 1.5
fade_seconds = 5.0
method = \"METHOD\"
[run.distil.adapter]
hidden = 4
segments = 1
freshness = true
";

fn student(example: &str, method: &str) -> Trained {
    Trained::changed_example(example, |text| format!("{text}\n{}", TEACHER.replace("METHOD", method)))
}

fn open(trained: &Trained) -> Snapshot {
    Snapshot::open(&trained.checkpoint, "student", &Options::default()).unwrap()
}

fn names(snapshot: &Snapshot) -> Vec<(String, Vec<usize>)> {
    snapshot.dense_weights().map(|(p, _)| (p.name.clone(), p.shape.clone())).collect()
}

fn weights(snapshot: &Snapshot) -> Vec<u32> {
    snapshot.dense_weights().flat_map(|(_, values)| bits(values)).collect()
}

#[test]
fn a_student_is_served_as_if_it_had_had_no_teacher() {
    for example in ["first", "multi_task", "dcn"] {
        let twin = Trained::changed_example(example, |text| text);
        let plain = open(&twin);
        for method in ["one_head", "auxiliary", "adapter"] {
            let trained = student(example, method);
            let served = open(&trained);
            assert_eq!(names(&served), names(&plain), "{example}, {method}");
            assert_eq!(served.forward_flops_per_sample(), plain.forward_flops_per_sample());
            assert_eq!(served.bytes(), plain.bytes());
            assert_ne!(weights(&served), weights(&plain), "{example}, {method}: the teacher taught nothing");
            let batch = trained.samples(200);
            let before = offline(&trained, &batch);
            assert_eq!(bits(&logits(&served, &batch)), bits(&before), "{example}, {method}: heads and all");
            let (own, others) = (trained.folder.path().join("own"), twin.folder.path().join("own"));
            write_safetensors(&served, &own).unwrap();
            write_safetensors(&plain, &others).unwrap();
            let length = |path| std::fs::metadata(path).unwrap().len();
            assert_eq!(length(own), length(others), "{example}, {method}: exported");
        }
    }
}

#[test]
fn a_student_without_a_word_is_its_twin() {
    let twin = open(&Trained::changed_example("first", |text| text));
    for method in ["one_head", "auxiliary", "adapter"] {
        let change = |text| format!("{text}\n{}", TEACHER.replace("METHOD", method).replace("0.9", "0.0"));
        let silent = Trained::changed_example("first", change);
        assert_eq!(weights(&open(&silent)), weights(&twin), "{method}");
    }
}

#[test]
fn a_student_goes_on_with_its_heads_and_adapters() {
    let whole = student("multi_task", "adapter");
    let mut parts = student("multi_task", "adapter");
    std::fs::remove_dir_all(parts.job.process.output_dir.join("checkpoints")).unwrap();
    parts.train_until(5);
    parts.train_until(12);
    for file in ["dense.safetensors", "dense_state.safetensors"] {
        let read = |trained: &Trained| std::fs::read(trained.checkpoint.join(file)).unwrap();
        assert!(read(&whole) == read(&parts), "{file} differs after going on");
    }
    let state = std::fs::read(whole.checkpoint.join("dense_state.safetensors")).unwrap();
    let header = String::from_utf8_lossy(&state[8..4096]).into_owned();
    for name in ["auxiliary.head.click.weight", "adapted.head.click.weight", "adapter.click.top.0.weight"] {
        assert!(header.contains(&format!("\"{name}\"")), "{name} is not in {header}");
    }
    let served = std::fs::read(whole.checkpoint.join("dense.safetensors")).unwrap();
    let header = String::from_utf8_lossy(&served[8..2048]).into_owned();
    assert!(!header.contains("auxiliary") && !header.contains("adapt"), "{header}");
}

#[test]
fn students_are_published_and_followed_by_deltas() {
    let mut trained = student("first", "adapter");
    let registry = Registry::new(&trained.folder.path().join("registry"));
    trained.publish(&registry, Shape::Whole);
    trained.train_until(14);
    let release = trained.publish(&registry, Shape::Smallest);
    let found =
        Snapshot::of_registry(&registry, "ranker", release.number, None, &Options::default()).unwrap();
    let batch = trained.samples(100);
    assert_eq!(bits(&logits(&found, &batch)), bits(&offline(&trained, &batch)));
}
