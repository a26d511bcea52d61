//! From training to a registry and back again, as a user types it.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;

/// A folder with two jobs on the same world: `good` trains well, `poor` stops after two steps.
struct Desk {
    folder: TempDir,
}

impl Desk {
    fn new() -> Desk {
        let folder = TempDir::new().unwrap();
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/first.toml");
        let text = std::fs::read_to_string(example).unwrap();
        let text = text.replace("1_000_000", "60_000").replace("50_000", "5_000");
        for (name, steps) in [("good", 0), ("poor", 2)] {
            let job = text
                .replace("runs/first", &format!("{}/{name}", folder.path().display()))
                .replace("epochs = 1", &format!("epochs = 1\nsteps_max = {steps}"));
            std::fs::write(folder.path().join(format!("{name}.toml")), job).unwrap();
        }
        Desk { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, words: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
        command.args(words.split_whitespace()).current_dir(self.folder.path()).output().unwrap()
    }

    fn fine(&self, words: &str) -> String {
        let output = self.run(words);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "campanile {words}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn refused(&self, words: &str) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(1), "campanile {words}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn report(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.path("report.json")).unwrap()).unwrap()
    }
}

#[test]
fn a_model_is_published_gated_rolled_back_and_inspected() {
    let desk = Desk::new();
    for job in ["good", "poor"] {
        desk.fine(&format!("train {job}.toml --quiet --threads 1"));
    }
    let publish = "publish --registry registry --model ranker";
    let said = desk.fine(&format!("{publish} good.toml --report report.json"));
    assert!(said.contains("version 1 of `ranker`, trained 59 steps, is current"), "{said}");
    let judged = &desk.report()["release"]["judged"]["candidate"][0];
    let ne = judged["ne"].as_f64().unwrap();
    assert!(ne < 1.0 && judged["count"] == 5000, "{judged}");

    // The gate measures as the evaluation does.
    desk.fine("eval good.toml --split valid --threads 1 --report eval.json");
    let eval: Value = serde_json::from_slice(&std::fs::read(desk.path("eval.json")).unwrap()).unwrap();
    assert_eq!(eval["evaluation"]["valid"]["tasks"][0]["ne"].as_f64(), Some(ne));

    let held_back = desk.refused(&format!("{publish} poor.toml"));
    assert!(held_back.contains("the gate holds it back: task `click`: NE is"), "{held_back}");
    desk.fine(&format!("{publish} poor.toml --no-gate"));
    let shown = desk.fine("inspect registry --verify");
    assert!(shown.contains("*      2  step         2  whole"), "{shown}");
    let said = desk.fine("rollback registry --model ranker");
    assert_eq!(said, "version 1 of `ranker` is current, version 2 was before\n");
    let nothing = desk.refused("rollback registry --model ranker");
    assert!(nothing.contains("there is no version before 1"), "{nothing}");
    // The same checkpoint again, by its path and without the job: nothing changed, so the delta has no rows.
    let said = desk.fine(&format!("{publish} --checkpoint good --delta --no-gate"));
    assert!(said.contains("version 3 of `ranker`"), "{said}");
    let said = desk.fine(&format!("{publish} --checkpoint good/checkpoints --delta --split test"));
    assert!(said.contains("is current: 0 changed rows on version 3"), "{said}");
    assert_eq!(desk.run("publish --registry registry --model ranker").status.code(), Some(2));
}

#[test]
fn a_damaged_checkpoint_is_not_published() {
    let desk = Desk::new();
    desk.fine("train poor.toml --quiet --threads 1");
    let file = desk.path("poor/checkpoints/step-000000000002/table-sparse_1-00000.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let refused = desk.refused("publish poor.toml --registry registry --model ranker --no-gate");
    assert!(refused.contains("table-sparse_1-00000.safetensors"), "{refused}");
    assert!(!desk.path("registry/ranker/current").exists());
}

#[test]
fn training_publishes_by_itself() {
    let desk = Desk::new();
    let path = desk.path("good.toml");
    let job = std::fs::read_to_string(&path).unwrap();
    let job = job
        .replace("vocabulary = 100 ", "vocabulary = 20_000 ")
        .replace("checkpoint_every_steps = 250", "checkpoint_every_steps = 20");
    let publish = "[process.publish]\nregistry = \"registry\"\nmodel = \"live\"\n";
    std::fs::write(&path, format!("{job}\n{publish}")).unwrap();
    let said = desk.fine("train good.toml --threads 1");
    assert!(said.contains("of `live`, trained 59 steps, is current"), "{said}");
    let shown = desk.fine("inspect registry --verify --report report.json");
    assert!(shown.contains("rows changed since"), "{shown}");
    let versions = desk.report()["models"][0]["versions"].as_array().unwrap().len();
    assert!((2..=3).contains(&versions), "{shown}");
    // Gone on and done: the last step is in the registry already, as the newest version.
    desk.fine("train good.toml --threads 1 --quiet");
    let again = desk.fine("inspect registry");
    assert!(again.contains("step        59"), "{again}");
}

#[test]
fn training_fails_when_its_last_checkpoint_could_not_be_published() {
    let desk = Desk::new();
    let path = desk.path("poor.toml");
    let job = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{job}\n[process.publish]\nregistry = \"registry\"\n")).unwrap();
    // No registry can be made where a file is.
    std::fs::write(desk.path("registry"), "a file").unwrap();
    let refused = desk.refused("train poor.toml --threads 1 --quiet --report report.json");
    assert!(refused.contains("the last checkpoint was not published to"), "{refused}");
    assert!(refused.contains("step-000000000002") && refused.contains("registry"), "{refused}");
    // The training itself is whole: its report stands, and publishing again is all that is left to do.
    assert_eq!(desk.report()["steps"], 2);
    std::fs::remove_file(desk.path("registry")).unwrap();
    desk.fine("publish poor.toml --registry registry --model model");
}

/// A small file system of its own on a directory, for as long as this lives.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: PathBuf) -> Option<SmallDisk> {
        std::fs::create_dir_all(&path).unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(&path).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(SmallDisk(path))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A lazy one, so that nothing is left behind where a test fails.
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

fn files_below(path: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(path).unwrap().flatten() {
        found.push(entry.path().display().to_string());
        if entry.path().is_dir() {
            files_below(&entry.path(), found);
        }
    }
}

#[test]
fn a_full_registry_fails_the_run_and_nothing_half_written_is_left() {
    let desk = Desk::new();
    let Some(disk) = SmallDisk::mount(desk.path("registry")) else {
        println!("NOT CHECKED: this user may not mount a small tmpfs, so a full registry was not tried");
        assert!(std::env::var_os("CI").is_none(), "with CI set this must be tried");
        return;
    };
    let path = desk.path("poor.toml");
    let job = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{job}\n[process.publish]\nregistry = \"registry\"\n")).unwrap();
    let refused = desk.refused("train poor.toml --threads 1 --quiet");
    assert!(refused.contains("the last checkpoint was not published to"), "{refused}");
    assert_eq!(refused.matches("No space left on device").count(), 1, "{refused}");
    let mut left = Vec::new();
    files_below(&disk.0, &mut left);
    assert!(left.iter().all(|name| !name.contains("writing")), "{left:?}");
    drop(disk);
    desk.fine("publish poor.toml --registry registry --model model");
}
