//! Flat against towers as a user asks for it: `plan`, `towers --topology`, and `simulate --measured` on one small job.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use campanile_spec::{Plan, Seating, config::Job};

fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn campanile(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_campanile")).args(words).output().unwrap()
}

fn printed(words: &[&str]) -> String {
    let output = campanile(words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn complaint(words: &[&str]) -> String {
    let output = campanile(words);
    assert_eq!(output.status.code(), Some(1), "{words:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// A home with the tower example, made small, and the example topology with two ranks a host.
struct Home {
    directory: tempfile::TempDir,
}

impl Home {
    fn new() -> Home {
        let home = Home { directory: tempfile::tempdir().unwrap() };
        let job = std::fs::read_to_string(project("examples/towers.toml")).unwrap();
        let job = job
            .replace("train_samples = 500_000", "train_samples = 8_000")
            .replace("_samples = 50_000", "_samples = 100")
            .replace(
                "\"runs/towers\"",
                &format!("\"{0}/out\"\ncache_dir = \"{0}/cache\"", home.directory.path().display()),
            );
        std::fs::write(home.directory.path().join("job.toml"), job).unwrap();
        let topology = std::fs::read_to_string(project("examples/cluster/topology.toml")).unwrap();
        let topology = topology.replace("ranks_per_host = 8", "ranks_per_host = 2");
        std::fs::write(home.directory.path().join("cluster.toml"), topology).unwrap();
        home
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }
}

#[test]
fn a_plan_of_a_tower_job_keeps_towers_together_and_prices_all_variants() {
    let home = Home::new();
    let [job, cluster, plan, report] =
        ["job.toml", "cluster.toml", "plan.toml", "report.json"].map(|name| home.path(name));
    let words = ["plan", &job, "--topology", &cluster, "--out", &plan, "--report", &report];
    let text = printed(&words);
    assert!(text.contains("ranks 0-1: one") && text.contains("ranks 2-3: two"), "{text}");
    let columns = text.lines().find(|line| line.starts_with("of one step")).unwrap();
    assert_eq!(columns.split_whitespace().skip(3).collect::<Vec<_>>(), ["flat", "sptt", "towers"]);
    assert!(text.contains("sent between hosts") && text.contains("speed-up"), "{text}");
    // The example was measured before these had a price, and the plan says so.
    let line =
        "the topology has no compute.codec, compute.product.narrow_flops_per_second, message_seconds: ";
    assert!(text.contains(line), "{text}");
    let model = Job::parse(&std::fs::read_to_string(&job).unwrap()).unwrap().run.model;
    let plan = Plan::parse(&std::fs::read_to_string(&plan).unwrap(), &model, 4).unwrap();
    assert!(Seating::of(&model, 4).unwrap().unwrap().fits(&model, &plan));
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
    let bytes = |variant: usize| report["variants"][variant]["cross_host_bytes"].as_f64().unwrap();
    // What the towers hand on is a quarter; ids are as many.
    let ids = 1024.0 * 8.0 * 8.0 / 2.0;
    assert!(((bytes(1) - ids) / (bytes(2) - ids) - 4.0).abs() < 1e-9, "{} {}", bytes(1), bytes(2));
    // The plan that was written can be priced as it is.
    let priced = printed(&["plan", &job, "--topology", &cluster, "--price", &home.path("plan.toml")]);
    assert!(priced.contains("ranks 2-3: two"), "{priced}");
}

#[test]
fn learned_towers_say_what_they_would_bring() {
    let home = Home::new();
    let [job, cluster] = ["job.toml", "cluster.toml"].map(|name| home.path(name));
    let words =
        ["towers", &job, "--towers", "2", "--probe-steps", "5", "--samples", "500", "--topology", &cluster];
    let text = printed(&words);
    assert!(text.contains("(2 hosts of 2 ranks), batches of 1024"), "{text}");
    assert!(text.contains("towers save") && text.contains("of what crosses hosts in a step"), "{text}");
}

#[test]
fn predictions_stand_beside_measured_runs() {
    let home = Home::new();
    let [job, cluster, runs] = ["job.toml", "cluster.toml", "runs.csv"].map(|name| home.path(name));
    let words = ["simulate", &job, "--topology", &cluster, "--measured", &runs];
    let head = "hosts,ranks_per_host,variant,cr,forward,backward,link_mbit,step_ms,extra\n";
    let write = |lines: &str| std::fs::write(&runs, format!("{head}{lines}")).unwrap();
    write(
        "2,2,flat,1,f32,f32,100,20.0,x\n2,2,sptt,1,f32,f32,100,20.5,x\n2,2,towers,4,f16,bf16,100,9.0,x\n2,4,flat,1,f32,f32,0,5,x\n",
    );
    let text = printed(&words);
    assert!(text.contains("of 4 within 20 %"), "{text}");
    assert!(text.contains("* no topology of this shape was measured"), "{text}");
    let predicted = |variant: &str| -> f64 {
        let line = text.lines().find(|line| line.contains(variant)).unwrap();
        line.split(" ms").nth(1).unwrap().trim().parse().unwrap()
    };
    // Links of 100 Mbit/s: what crosses decides, and towers send less.
    assert!(predicted("towers") < 0.6 * predicted("flat"), "{text}");
    write("2,2,flat,1,f32,f32,100,fast,x\n");
    let told = complaint(&words);
    assert!(
        told.contains("line 2") && told.contains("`step_ms` is fast: a number from 0 on is wanted"),
        "{told}"
    );
    write("2,2,tower,1,f32,f32,100,1,x\n");
    assert!(complaint(&words).contains("`variant` is tower: flat, sptt or towers is wanted"));
    std::fs::write(&runs, "hosts,variant\n").unwrap();
    assert!(complaint(&words).contains("there is no column `ranks_per_host`"));
    // Without runs, what would be: two hosts as measured, and four.
    let text = printed(&["simulate", &job, "--topology", &cluster, "--ranks", "4,8", "--ratio", "2"]);
    assert!(text.contains("2 hosts of 2 ranks, batches of 1024, compression ratio 2"), "{text}");
    assert!(text.contains("4 hosts of 2 ranks") && text.matches("speed-up, hidden").count() == 2, "{text}");
    let told = complaint(&["simulate", &job, "--topology", &cluster, "--ratio", "1.5"]);
    assert!(told.contains("--ratio 1.5: vectors of a job become shorter by a whole number"), "{told}");
}
