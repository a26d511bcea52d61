//! `campanile simulate` as a user runs it: tables, CSV, pictures, and errors that say what to do.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn example(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/simulate").join(path)
}

fn simulate(words: &[&str], files: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.arg("simulate").args(files).args(words).output().unwrap()
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn complaint(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_point_is_shown_in_full_and_a_sweep_in_lines() {
    let (model, cluster) = (example("models/dcn_criteo.toml"), example("clusters/h100.toml"));
    let topology = cluster.display().to_string();
    let one = printed(&simulate(&["--topology", &topology], &[&model]));
    assert!(one.contains("64 GPUs, 8 hosts of 8") && one.contains("speed-up over flat"), "{one}");
    let folder = tempfile::tempdir().unwrap();
    let [csv, plots, report] = ["sweep.csv", "plots", "report.json"].map(|name| folder.path().join(name));
    let [csv_path, plots_path, report_path] = [&csv, &plots, &report].map(|path| path.display().to_string());
    let v100 = example("clusters/v100.toml").display().to_string();
    let words = [
        "--topology",
        &topology,
        "--topology",
        &v100,
        "--ranks",
        "16,64,512",
        "--ratio",
        "4",
        "--csv",
        &csv_path,
        "--plots",
        &plots_path,
        "--report",
        &report_path,
    ];
    let many = printed(&simulate(&words, &[&model]));
    assert!(many.contains("on H100 cluster") && many.contains("on V100 cluster"), "{many}");
    // Two clusters, three numbers of ranks, four variants, and the names.
    assert_eq!(std::fs::read_to_string(&csv).unwrap().lines().count(), 2 * 3 * 4 + 1);
    for (name, says) in [
        ("step-h100.svg", "exchange between hosts"),
        ("step-v100.svg", "on V100 cluster"),
        ("speed-up.svg", "Speed-up over the flat exchange: DCN"),
    ] {
        let picture = std::fs::read_to_string(plots.join(name)).unwrap();
        assert!(picture.contains("<svg") && picture.contains(says), "{name}");
    }
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
    assert_eq!(report["points"].as_array().unwrap().len(), 6);
    assert_eq!(report["points"][0]["variants"][0]["speed_up"], 1.0);
}

#[test]
fn what_cannot_be_simulated_is_told() {
    let (model, cluster) = (example("models/dcn_criteo.toml"), example("clusters/h100.toml"));
    let topology = cluster.display().to_string();
    let told = |words: &[&str]| {
        let all: Vec<&str> = ["--topology", &topology].into_iter().chain(words.iter().copied()).collect();
        complaint(&simulate(&all, &[&model]))
    };
    assert!(told(&["--ranks", "60"]).contains("60 ranks on hosts of 8: ask for whole hosts"));
    assert!(told(&["--towers", "3"]).contains("3 towers cannot be seated on 8 hosts of 8"));
    assert!(told(&["--ratio", "0.5"]).contains("it can be from 1 to 128"));
    let two_lists = ["--ranks", "16,64", "--ratio", "2,4", "--plots", "nowhere"];
    assert!(told(&two_lists).contains("--plots shows one list"));
    // Files of another kind, and files with a mistake.
    let job = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/towers.toml");
    assert!(
        complaint(&simulate(&["--topology", &topology], &[&job]))
            .contains("describes a cluster, and a job is priced")
    );
    let folder = tempfile::tempdir().unwrap();
    let spoilt = folder.path().join("spoilt.toml");
    let text = std::fs::read_to_string(&cluster).unwrap();
    std::fs::write(&spoilt, text.replace("teraflops", "terraflops")).unwrap();
    let spoilt = spoilt.display().to_string();
    let told = complaint(&simulate(&["--topology", &spoilt], &[&model]));
    assert!(told.contains("spoilt.toml") && told.contains("did you mean `teraflops`?"), "{told}");
    let told = complaint(&simulate(&["--topology", "/nowhere.toml"], &[&model]));
    assert!(told.contains("cannot read the cluster /nowhere.toml"), "{told}");
}
