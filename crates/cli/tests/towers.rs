//! `campanile towers`: hidden groups are found, towers of any balance are written, and towers written by hand are scored.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use campanile_spec::config::Job;
use serde_json::Value;

/// A world of twelve features in four hidden groups, whose interactions are strong enough to be seen in a second.
const WORLD: &str = r#"
[run]
seed = 3
batch_size = 256
[run.data]
kind = "synthetic"
[run.data.world]
train_samples = 80_000
valid_samples = 0
test_samples = 1000
sparse_count = 12
dense_count = 2
vocabulary = 20
hidden_groups = 4
across_pairs = 2
[run.data.world.signal]
main = 0.5
inside = 2.0
across = 0.2
[run.tables]
dim = 8
[run.model]
kind = "dlrm"
bottom = [8]
top = [16]
[run.sparse]
learning_rate = 0.1
[run.dense]
learning_rate = 0.02
"#;

fn write(directory: &Path, text: &str) -> PathBuf {
    let path = directory.join("job.toml");
    let at = directory.join("output");
    std::fs::write(&path, format!("{text}\n[process]\noutput_dir = \"{}\"\n", at.display())).unwrap();
    path
}

fn campanile(job: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_campanile")).arg("towers").arg(job).args(words).output().unwrap()
}

/// The report of a call that must succeed.
fn towers(directory: &Path, text: &str, words: &[&str]) -> Value {
    let (job, report) = (write(directory, text), directory.join("report.json"));
    let words: Vec<&str> = [&["--quiet", "--report", report.to_str().unwrap()], words].concat();
    let output = campanile(&job, &words);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap()
}

fn partition<'a>(report: &'a Value, name: &str) -> &'a Value {
    let all = report["partitions"].as_array().unwrap();
    all.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("no `{name}` in {report}"))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// The numbers of a partition's towers.
fn of(partition: &Value) -> Vec<u64> {
    partition["towers"].as_array().unwrap().iter().map(|tower| tower.as_u64().unwrap()).collect()
}

#[test]
fn hidden_groups_are_found_and_the_same_bytes_are_written_again() {
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let reports = [&one, &two].map(|home| towers(home.path(), WORLD, &["--towers", "4"]));
    assert_eq!(number(&partition(&reports[0], "learned")["rand_index_to_truth"]), 1.0, "{}", reports[0]);
    assert!(number(&partition(&reports[0], "round robin")["rand_index_to_truth"]) < 0.9);
    assert_eq!(reports[0]["affinity"], reports[1]["affinity"]);
    for name in ["towers.toml", "affinity.svg", "map.svg"] {
        let [a, b] =
            [&one, &two].map(|home| std::fs::read(home.path().join("output/towers").join(name)).unwrap());
        // The first line of the TOML names the job.
        let rest =
            |bytes: &[u8]| String::from_utf8_lossy(bytes).lines().skip(1).collect::<Vec<_>>().join("\n");
        assert!(rest(&a) == rest(&b) && a.len() > 200, "{name} differs");
    }
}

/// What is written can be added to the job, and is then scored as the job's own; so is what a user writes by hand.
#[test]
fn written_towers_are_taken_by_the_job_and_scored() {
    let home = tempfile::tempdir().unwrap();
    let quick = ["--towers", "4", "--probe-steps", "20", "--width", "4"];
    let learned = towers(home.path(), WORLD, &quick);
    let section = std::fs::read_to_string(home.path().join("output/towers/towers.toml")).unwrap();
    let with = |section: &str| format!("{}\n{section}", WORLD.replace("bottom = [8]", "bottom = [4]"));
    let job = Job::parse(&with(&section)).unwrap();
    assert_eq!(job.run.model.towers.list.len(), 4);
    let again = towers(home.path(), &with(&section), &quick);
    assert_eq!(of(partition(&again, "the job's")), of(partition(&learned, "learned")));
    assert_eq!(partition(&again, "the job's")["score"], partition(&again, "learned")["score"]);

    // By hand: the hidden groups, two by two.
    let groups: Vec<u64> =
        learned["hidden_groups"].as_array().unwrap().iter().map(|g| g.as_u64().unwrap()).collect();
    let hand = |tower: u64| {
        let own = groups.iter().enumerate().filter(|(_, group)| **group / 2 == tower);
        let names: Vec<String> = own.map(|(feature, _)| format!("\"sparse_{}\"", feature + 1)).collect();
        format!("[[run.towers.tower]]\nname = \"t{tower}\"\nfeatures = [{}]\n", names.join(", "))
    };
    let report = towers(home.path(), &format!("{WORLD}\n[run.towers]\n{}{}", hand(0), hand(1)), &quick);
    let scored = partition(&report, "the job's");
    let halves: Vec<u64> = groups.iter().map(|group| group / 2).collect();
    assert_eq!(
        of(scored).iter().map(|t| u64::from(*t != of(scored)[0])).collect::<Vec<_>>(),
        halves.iter().map(|t| u64::from(*t != halves[0])).collect::<Vec<_>>()
    );
    assert_eq!(scored["score"]["sizes"], serde_json::json!([6, 6]));
    let index = number(&scored["rand_index_to_truth"]);
    assert!(index > 0.3 && index < 0.9, "half as many towers, each of whole groups: {index}");
}

/// Long bags and wide rows weigh more: towers are even in what was asked for.
#[test]
fn towers_are_balanced_by_what_is_asked_for() {
    let home = tempfile::tempdir().unwrap();
    let bags = "vocabulary = 20\nbag_max = [9, 1, 1, 9, 1, 1, 1, 1, 9, 1, 1, 9]";
    let long = WORLD.replace("vocabulary = 20", bags);
    let wide: String = (1..=3).map(|f| format!("[[run.table]]\nname = \"sparse_{f}\"\ndim = 32\n")).collect();
    let wide = format!("{WORLD}{wide}");
    let imbalance = |text: &str, balance: &str| {
        let words = ["--towers", "4", "--probe-steps", "5", "--samples", "2000", "--balance", balance];
        let report = towers(home.path(), text, &words);
        let of = |name| number(&partition(&report, name)["score"]["imbalance"]);
        (of("learned"), of("round robin"))
    };
    for (text, balance, most) in [(&long, "lookups", 1.35), (&wide, "width", 1.35), (&long, "features", 1.0)]
    {
        let (learned, dealt) = imbalance(text, balance);
        assert!(learned <= most && learned <= dealt, "{balance}: {learned}, dealt {dealt}");
    }
}

#[test]
fn a_diverse_partition_spreads_what_a_coherent_one_gathers() {
    let home = tempfile::tempdir().unwrap();
    let report = towers(home.path(), WORLD, &["--towers", "4", "--strategy", "diverse"]);
    let inside = |name| number(&partition(&report, name)["score"]["inside"]);
    assert!(inside("learned") < inside("random") && inside("learned") < inside("round robin"), "{report}");
    assert!(number(&partition(&report, "learned")["rand_index_to_truth"]) < 0.1);
}

#[test]
fn mistakes_are_told() {
    let home = tempfile::tempdir().unwrap();
    let job = write(home.path(), WORLD);
    let refused = |words: &[&str], wanted: &[&str]| {
        let output = campanile(&job, words);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{words:?} was taken");
        wanted.iter().for_each(|word| assert!(text.contains(word), "`{word}` is not in: {text}"));
    };
    refused(&["--towers", "13"], &["--towers 13", "12 features", "from 1 to 12"]);
    refused(&["--checkpoint", "nowhere"], &["nowhere"]);
    refused(&["--checkpoint", "nowhere", "--probe", "dlrm"], &["--checkpoint", "--probe"]);
}
