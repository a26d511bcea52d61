//! A preparation that is killed at any moment goes on, and ends with the bytes of one that was not.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use campanile_data::{DataError, PrepOptions, PrepProgress, prepare};
use campanile_spec::data::{BadRows, DataSpec, DenseTransform, IdMap, SplitSpec};

use crate::fixture::{Numbers, Place, criteo, criteo_lines, packed_files, train_files};

/// The directory in which a child of [`killed_at_any_moment_it_ends_with_the_same_bytes`] works.
const CHILD_DIR: &str = "CAMPANILE_TEST_RESUME_DIR";

/// A job that needs all three passes, and skips some rows.
fn job() -> DataSpec {
    let mut data =
        criteo(|salt| if salt < 20 { IdMap::Vocabulary { min_count: 2 } } else { IdMap::Hash { salt } });
    for column in &mut data.columns.dense {
        column.transforms.push(DenseTransform::Standardise);
    }
    data.split = SplitSpec::ByRow { valid: 0.1, test: 0.1 };
    data.bad_rows = BadRows::Skip { rows_max: 1000 };
    data
}

fn raw_text() -> String {
    let mut lines: Vec<String> = criteo_lines(12_000, 31).lines().map(String::from).collect();
    lines.iter_mut().skip(50).step_by(997).for_each(|line| line.truncate(30));
    lines.join("\n")
}

/// Prepares the files in `dir`; the cache has a name of its own there.
fn prepare_in(dir: &Path, cache: &str, progress: &mut dyn FnMut(PrepProgress)) -> Result<u64, DataError> {
    let options = PrepOptions {
        threads: 2,
        memory_mib: 8,
        journal_every_mib: 1,
        ..PrepOptions::new(dir.join(cache), 7)
    };
    let files = train_files(&[dir.join("*.tsv*").display().to_string()]);
    prepare(&job(), &files, &options, progress).map(|prepared| prepared.train.row_count())
}

/// Both the child that is killed, and a test of its own: what it prepares is complete.
#[test]
fn the_set_for_resuming_is_prepared() {
    if let Ok(dir) = env::var(CHILD_DIR) {
        prepare_in(Path::new(&dir), "killed", &mut |progress| println!("progress {progress:?}")).unwrap();
        println!("finished");
        return;
    }
    let place = Place::new();
    place.write("day.tsv", raw_text());
    // 12,000 lines, 12 of them cut short; a fifth is held out.
    assert_eq!(prepare_in(place.dir.path(), "cache", &mut |_| ()).unwrap(), 12_000 - 12 - 2 * (11_988 / 10));
}

/// Starts a child and kills it after it said `lines` lines; true when it finished before.
fn run_child(dir: &Path, lines: u64) -> bool {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "resume::the_set_for_resuming_is_prepared", "--nocapture", "--test-threads", "1"])
        .env(CHILD_DIR, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut said = said.filter(|line| line.contains("progress") || line.contains("finished"));
    let finished = said.by_ref().take(lines as usize).any(|line| line.contains("finished"));
    if !finished {
        // The child works on while this signal travels, so it dies anywhere.
        child.kill().unwrap();
    }
    let status = child.wait().unwrap();
    assert!(!finished || status.success());
    finished
}

fn check_kills(write: impl Fn(&Place), seed: u64) {
    let place = Place::new();
    write(&place);
    prepare_in(place.dir.path(), "whole", &mut |_| ()).unwrap();
    let mut numbers = Numbers(seed);
    let mut kills = 0;
    while !run_child(place.dir.path(), 1 + numbers.below(12)) {
        kills += 1;
        assert!(kills < 1000, "it never ends");
    }
    assert!(kills >= 3, "only {kills} kills");
    assert_eq!(packed_files(&place.path("killed")), packed_files(&place.path("whole")));
}

#[test]
fn killed_at_any_moment_it_ends_with_the_same_bytes() {
    check_kills(|place| drop(place.write("day.tsv", raw_text())), 1);
}

#[test]
fn compressed_files_go_on_too() {
    let write = |place: &Place| {
        let text = raw_text();
        let cut = text[..text.len() / 3].rfind('\n').unwrap() + 1;
        place.write("a.tsv.zst", zstd::encode_all(&text.as_bytes()[..cut], 1).unwrap());
        place.write("b.tsv", &text[cut..]);
    };
    check_kills(write, 2);
}

/// Stops after many a chunk in turn, in one process, so that no part of the work is left out.
#[test]
fn stopped_after_any_chunk_it_ends_with_the_same_bytes() {
    let place = Place::new();
    place.write("day.tsv", raw_text());
    let mut reports = 0;
    prepare_in(place.dir.path(), "whole", &mut |_| reports += 1).unwrap();
    let want = packed_files(&place.path("whole"));
    for stop in (1..reports).step_by(5) {
        let cache = format!("stopped{stop}");
        let mut left = stop;
        let stopped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            prepare_in(place.dir.path(), &cache, &mut |_| {
                left -= 1;
                // Unwinding without a panic: the hook would print each of them.
                if left == 0 {
                    std::panic::resume_unwind(Box::new("stopped"));
                }
            })
        }));
        assert!(stopped.is_err(), "report {stop} of {reports}");
        prepare_in(place.dir.path(), &cache, &mut |_| ()).unwrap();
        assert_eq!(packed_files(&place.path(&cache)), want, "stopped at report {stop}");
    }
}

#[test]
fn damaged_leftovers_are_thrown_away() {
    let place = Place::new();
    place.write("day.tsv", raw_text());
    prepare_in(place.dir.path(), "whole", &mut |_| ()).unwrap();
    run_child(place.dir.path(), 20);
    let partial = fs::read_dir(place.path("killed")).unwrap().map(|entry| entry.unwrap().path());
    for dir in partial.filter(|path| path.extension().is_some_and(|extension| extension == "partial")) {
        fs::write(dir.join("journal.json"), "{").unwrap();
    }
    prepare_in(place.dir.path(), "killed", &mut |_| ()).unwrap();
    assert_eq!(packed_files(&place.path("killed")), packed_files(&place.path("whole")));
}

/// Names of what lies in the cache, but for locks.
fn cache_entries(place: &Place) -> Vec<String> {
    let entries = std::fs::read_dir(place.options().cache_dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| !name.ends_with(".lock")).collect()
}

#[test]
fn a_set_without_its_manifest_is_made_anew() {
    let place = Place::new();
    let data = criteo(|salt| IdMap::Hash { salt });
    let files = [place.write("day.tsv", criteo_lines(50, 5))];
    let first = place.prepare(&data, &files).unwrap();
    let set = place.options().cache_dir.join(&cache_entries(&place)[0]);
    std::fs::remove_file(set.join("prepared.json")).unwrap();
    let second = place.prepare(&data, &files).unwrap();
    assert_eq!(first.fingerprint, second.fingerprint);
}

/// Dying after the files are complete, with an empty split, and before the set has its name.
#[test]
fn publishing_goes_on_where_a_split_is_empty() {
    let place = Place::new();
    let data = criteo(|salt| IdMap::Hash { salt });
    let files = [place.write("day.tsv", criteo_lines(50, 5))];
    let first = place.prepare(&data, &files).unwrap();
    let name = cache_entries(&place).remove(0);
    let cache = place.options().cache_dir;
    std::fs::rename(cache.join(&name), cache.join(format!("{name}.partial"))).unwrap();
    let second = place.prepare(&data, &files).unwrap();
    assert_eq!(first.fingerprint, second.fingerprint);
    assert_eq!(cache_entries(&place), [name]);
}

#[test]
fn bad_input_leaves_nothing_in_the_cache() {
    let place = Place::new();
    let data = criteo(|salt| IdMap::Hash { salt });
    place.error(&data, &[place.write("day.tsv", "not\ta\trow\n")]);
    assert_eq!(cache_entries(&place), Vec::<String>::new());
}
