//! What a run tells though nothing fails: rows that are not mixed, times that fall, unknown ids, a rate that comes to 0; and
//! segments by their names.

use std::{path::Path, process::Command};

use serde_json::Value;

/// Two days in the wrong order; the second has the labels and the users of its own, and is held out.
fn write_files(folder: &Path) {
    let day = |users: u64, times: u64| {
        let rows = (0..4000).map(|row| {
            let (click, user) = (u64::from(row >= 3000), users + row % 50);
            let segment = if row % 3 == 0 { "phone" } else { "tablet" };
            format!("{click},{user},{segment},{}\n", times + row)
        });
        format!("click,user,device,time\n{}", rows.collect::<String>())
    };
    std::fs::write(folder.join("a.csv"), day(0, 10_000)).unwrap();
    std::fs::write(folder.join("b.csv"), day(25, 0)).unwrap();
    let job = r#"
[run]
batch_size = 256
[run.data]
kind = "csv"
split = { kind = "by_row", test = 0.5 }
shuffle = false
time = "time"
segment = "device"
[[run.data.label]]
name = "click"
[[run.data.sparse]]
name = "user"
map = "vocabulary"
rows = 200
[run.tables]
dim = 4
[run.model]
kind = "mlp"
hidden = [8]
[run.sparse]
learning_rate = 0.05
[run.dense]
optimizer = "adam"
learning_rate = 0.01
schedule = { kind = "cosine", total_steps = 10 }
[process]
threads = 1
cache_dir = "cache"
output_dir = "out"
[process.data]
train = ["a.csv", "b.csv"]
"#;
    std::fs::write(folder.join("job.toml"), job).unwrap();
}

fn campanile(folder: &Path, words: &str) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    let output = command.args(words.split(' ')).current_dir(folder).output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "campanile {words}: {err}");
    (out, err)
}

fn report(folder: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(folder.join("report.json")).unwrap()).unwrap()
}

#[test]
fn what_may_be_meant_so_is_told_and_does_not_fail() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_files(folder);
    let (out, err) = campanile(folder, "prep job.toml --report report.json");
    // Half of the users of the second day are new.
    assert!(out.contains("ids of test that have no row of their own: `user` 50.00 %"), "{out}");
    assert!(err.contains("warning: label `click` is not mixed") && err.contains("0.000 to 1.000"), "{err}");
    assert!(err.contains("warning: times fall between files: a.csv begins at 10000"), "{err}");
    let said = report(folder);
    assert_eq!(said["warnings"].as_array().unwrap().len(), 2, "{said}");
    assert_eq!(
        (&said["ids"]["test"][0]["ids"], &said["ids"]["test"][0]["unknown"]),
        (&4000.into(), &2000.into())
    );

    let (_, err) = campanile(folder, "train job.toml --report report.json");
    let told = "warning: the learning rate of run.dense.schedule is 0 from step 10 on, and the run has 16";
    assert!(err.contains(told), "{err}");
    assert_eq!(report(folder)["started"]["warnings"].as_array().unwrap().len(), 1);

    let (out, _) = campanile(folder, "eval job.toml --split test --report report.json");
    assert!(out.contains("`user` 50.00 %"), "{out}");
    let said = report(folder);
    let segments = said["evaluation"]["test"]["tasks"][0]["segments"].as_array().unwrap();
    let names: Vec<&str> = segments.iter().map(|segment| segment["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["phone", "tablet"]);
}
