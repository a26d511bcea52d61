//! A job that anybody may have written, in a checkpoint's manifest, is checked as a job file is.

use std::path::Path;

use campanile_spec::{
    config::Job,
    model::{NetworkSpec, TableId},
};

fn examples() -> Vec<Job> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let names = ["first.toml", "criteo.toml", "movielens.toml"];
    let texts = names.iter().filter_map(|name| std::fs::read_to_string(folder.join(name)).ok());
    texts.map(|text| Job::parse(&text).unwrap()).collect()
}

#[test]
fn every_example_passes_as_it_is_kept_in_a_manifest() {
    let examples = examples();
    assert!(!examples.is_empty());
    for job in examples {
        job.recheck().unwrap();
    }
}

#[test]
fn what_no_job_file_can_say_is_refused() {
    type Change = fn(&mut Job);
    let changes: [(Change, &str); 9] = [
        (|job| job.run.model.features[0].table = TableId(4_000_000_000), "reads table 4000000000"),
        (|job| drop(job.run.model.features.pop()), "do not make"),
        (|job| job.run.model.followers.push(1 << 40), "do not make"),
        (|job| job.run.model.tables[0].dim = 1 << 62, "`dim`"),
        (|job| job.run.model.tables[0].row_count = u64::MAX, "rows"),
        (|job| job.run.model.network = NetworkSpec::Mlp { hidden: vec![1 << 50] }, "`hidden[0]`"),
        (|job| job.run.grain_count = 3, "`grains`"),
        (|job| job.run.batch_size = 1 << 62, "`batch_size`"),
        (|job| job.run.model.dense_count += 1, "do not fit"),
    ];
    for (change, wanted) in changes {
        let mut job = examples().swap_remove(0);
        change(&mut job);
        let said = job.recheck().unwrap_err();
        assert!(said.contains(wanted), "{said} instead of {wanted}");
    }
}
