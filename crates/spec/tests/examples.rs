//! Every example job is read, checked, and written back as the same job.

use std::{fs, path::PathBuf};

use campanile_spec::config::Job;

#[test]
fn every_example_parses_and_its_effective_job_is_the_same_job() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut count = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        // `live.toml` has several jobs in it, and a test of its own in `live`.
        if path.extension().is_none_or(|extension| extension != "toml") || path.ends_with("live.toml") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let job = Job::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let effective = job.effective_toml();
        let again = Job::parse(&effective)
            .unwrap_or_else(|error| panic!("effective job of {}: {error}\n{effective}", path.display()));
        assert_eq!(job, again, "{}", path.display());
        assert_eq!(job.run.hash(), again.run.hash());
        assert_eq!(effective, again.effective_toml());
        count += 1;
    }
    assert!(count >= 9, "only {count} examples in {}", folder.display());
}
