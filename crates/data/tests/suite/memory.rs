//! `memory_mib` is kept on files ten times larger, counting ids included.

use std::{
    env, fs,
    io::{BufWriter, Write},
    path::Path,
    process::Command,
};

use campanile_data::{PrepOptions, prepare};
use campanile_spec::data::{Columns, DenseTransform, IdMap};

use crate::fixture::{Numbers, Place, csv, dense, label, sparse, train_files};

const CHILD_DIR: &str = "CAMPANILE_TEST_MEMORY_DIR";
const LIMIT_MIB: u64 = 8;
const ROWS: u64 = 800_000;

/// Peak and present resident memory of this process, in KiB.
fn resident_kib() -> (u64, u64) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    (field("VmHWM:"), field("VmRSS:"))
}

fn write_rows(path: &Path, rows: u64) {
    let mut file = BufWriter::new(fs::File::create(path).unwrap());
    let mut numbers = Numbers(41);
    let padding = "not needed, ".repeat(7);
    writeln!(file, "click,user,item,price,\"the rest\"").unwrap();
    for row in 0..rows {
        // Every user is new: without spilling, counting them alone takes more than the limit.
        let (item, price) = (numbers.below(50_000), numbers.below(1000));
        writeln!(file, "{},user{row},{item},{price},\"{padding}\"", row % 2).unwrap();
    }
    file.flush().unwrap();
}

/// Prepares the file in `dir` and returns by how much memory grew at its peak, in KiB.
fn prepare_in(dir: &Path) -> u64 {
    let columns = Columns {
        labels: vec![label("click")],
        dense: vec![dense("price", &[DenseTransform::Standardise])],
        sparse: vec![
            sparse("user", IdMap::Vocabulary { min_count: 2 }, 1 << 20),
            sparse("item", IdMap::Vocabulary { min_count: 2 }, 1 << 20),
        ],
        ..Columns::default()
    };
    let options = PrepOptions { threads: 2, memory_mib: LIMIT_MIB, ..PrepOptions::new(dir.join("cache"), 7) };
    let files = train_files(&[dir.join("rows.csv").display().to_string()]);
    let before = resident_kib().1;
    let prepared = prepare(&csv(columns), &files, &options, &mut |_| ()).unwrap();
    assert_eq!(prepared.transforms.vocabulary_size(0), Some(0), "every user is rare");
    resident_kib().0.saturating_sub(before)
}

/// Both the child that is measured, and a test of its own on a small file.
#[test]
fn the_set_for_measuring_is_prepared() {
    if let Ok(dir) = env::var(CHILD_DIR) {
        println!("grew by {} KiB", prepare_in(Path::new(&dir)));
        return;
    }
    let place = Place::new();
    write_rows(&place.path("rows.csv"), 1000);
    prepare_in(place.dir.path());
}

#[test]
fn a_file_ten_times_the_limit_is_prepared_within_it() {
    let place = Place::new();
    write_rows(&place.path("rows.csv"), ROWS);
    let bytes = fs::metadata(place.path("rows.csv")).unwrap().len();
    assert!(bytes > (LIMIT_MIB << 20) * 10, "the file has only {bytes} bytes");
    // A process of its own: the peak of this one belongs to all tests together.
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "memory::the_set_for_measuring_is_prepared", "--nocapture", "--test-threads", "1"])
        .env(CHILD_DIR, place.dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let grew =
        said.lines().find_map(|line| line.split("grew by ").nth(1)).expect("the child says by how much");
    let grew_kib: u64 = grew.split(' ').next().unwrap().parse().unwrap();
    println!("{grew_kib} KiB for {bytes} bytes");
    assert!(grew_kib <= LIMIT_MIB << 10, "memory grew by {grew_kib} KiB, the limit is {LIMIT_MIB} MiB");
}
