//! Ranks on several hosts: network namespaces on this machine, with shaped links between them.
//!
//! Making them takes root and iproute2. Where that cannot be had, a line says so, and nothing is tested.

#![cfg(feature = "mpi")]

#[path = "suite/small_job.rs"]
mod small_job;
#[path = "suite/tower_job.rs"]
mod tower_job;

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use small_job::{job, result};
use tower_job::tower_job;

const CAMPANILE: &str = env!("CARGO_BIN_EXE_campanile");

/// After this time a job counts as hung.
const PATIENCE: Duration = Duration::from_secs(90);

/// For tests of bits: what mpirun needs to start on a very busy machine is not their matter.
const ONCE_MORE: &[&str] = &["--restarts", "1"];

/// Some hosts, removed at the end of the test.
struct Bed {
    name: &'static str,
    network: &'static str,
}

impl Bed {
    /// Makes hosts behind links of one gigabit a second; none where that is not allowed.
    fn make(name: &'static str, network: &'static str, hosts: usize) -> Option<Bed> {
        let bed = Bed { name, network };
        bed.command(&["down"]).output().unwrap();
        let output = bed.command(&["up", &hosts.to_string(), "1gbit"]).output().unwrap();
        if output.status.success() {
            return Some(bed);
        }
        let reason = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned();
        // Written past the test's captured output, for it must be seen.
        let line =
            format!("\nNOT TESTED: ranks on {hosts} hosts, for the test bed cannot be made: {reason}\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        None
    }

    fn command(&self, words: &[&str]) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testbed/testbed");
        let mut command = Command::new(script);
        command.args(words).env("TESTBED", self.name).env("TESTBED_NET", self.network).stdin(Stdio::null());
        command
    }

    fn text(&self, words: &[&str]) -> String {
        String::from_utf8(self.command(words).output().unwrap().stdout).unwrap()
    }

    /// Starts a job from the first host.
    fn launch(&self, processes: usize, slots: usize, options: &[&str], job: &Path) -> Child {
        let hostfile: PathBuf = job.with_file_name("hosts");
        std::fs::write(&hostfile, self.text(&["hostfile", &slots.to_string()])).unwrap();
        let mut command = self.command(&["on", "0", CAMPANILE, "launch", "-n", &processes.to_string()]);
        command.arg("--hostfile").arg(&hostfile);
        command.args(["--mpirun-options", self.text(&["mpirun-options"]).trim()]).args(options);
        command.arg("train").arg(job).arg("--quiet").stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.command(&["down"]).output().unwrap();
    }
}

fn outcome(mut child: Child) -> (Output, String) {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("the job hangs");
        }
        std::thread::yield_now();
    }
    let output = child.wait_with_output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, words)
}

#[test]
fn hosts_give_the_bits_of_threads() {
    let alone = tempfile::tempdir().unwrap();
    let threads = job(alone.path(), 5_000);
    let status = Command::new(CAMPANILE).arg("train").arg(&threads).arg("--quiet").status().unwrap();
    assert!(status.success());
    let want = result(alone.path());
    for (name, network, hosts, slots) in [("ctb2", "10.78.2", 2, 2), ("ctb4", "10.78.4", 4, 1)] {
        let Some(bed) = Bed::make(name, network, hosts) else { return };
        let directory = tempfile::tempdir().unwrap();
        let path = job(directory.path(), 5_000);
        let (output, words) = outcome(bed.launch(hosts * slots, slots, ONCE_MORE, &path));
        assert!(output.status.success(), "{hosts} hosts: {words}");
        for (file, bytes) in &want {
            assert!(&result(directory.path())[file] == bytes, "{file} differs on {hosts} hosts");
        }
        let sent = bed.text(&["bytes", "1"]);
        let bytes: u64 = sent.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(bytes > 100_000, "vectors went over the link: {sent}");
    }
}

/// Hosts with so many ranks each.
const TOWER_SHAPES: [(usize, &[usize]); 3] = [(2, &[1, 2, 4, 8]), (4, &[1, 2]), (8, &[1])];

/// Towers on hosts: the ways alone have the bits of the flat model in one process, in every shape, and modules those of
/// their own model in one process.
#[test]
fn towers_on_hosts_have_the_bits_of_one_process() {
    let alone = |variant: &str, towers: usize| {
        let directory = tempfile::tempdir().unwrap();
        let path = tower_job(directory.path(), (variant, towers), "threads = 1");
        let status = Command::new(CAMPANILE).arg("train").arg(&path).arg("--quiet").status().unwrap();
        assert!(status.success());
        result(directory.path())
    };
    for (hosts, all_ranks) in TOWER_SHAPES {
        let Some(bed) = Bed::make("ctt", "10.78.12", hosts) else { return };
        for (variant, want) in [("sptt", alone("flat", hosts)), ("towers", alone("towers", hosts))] {
            for &ranks in all_ranks.iter().filter(|&&ranks| variant == "sptt" || ranks == 2) {
                let directory = tempfile::tempdir().unwrap();
                let path = tower_job(directory.path(), (variant, hosts), "");
                let (output, words) = outcome(bed.launch(ranks * hosts, ranks, ONCE_MORE, &path));
                let what = format!("{variant} on {hosts} hosts x {ranks} ranks");
                assert!(output.status.success(), "{what}: {words}");
                let found = result(directory.path());
                // The manifest has the job, and so the word for the ways that were taken.
                for (file, bytes) in want.iter().filter(|(file, _)| !file.ends_with("manifest.json")) {
                    assert!(&found[file] == bytes, "{file} differs: {what}");
                }
            }
        }
    }
}

#[test]
fn a_host_behind_a_dead_link_is_noticed_and_named() {
    let Some(bed) = Bed::make("ctbd", "10.78.6", 2) else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = job(directory.path(), 200_000);
    let mut child = bed.launch(2, 1, &["--silence", "4"], &path);
    let checkpoints = directory.path().join("output/checkpoints");
    let stands = |entry: std::fs::DirEntry| entry.path().join("manifest.json").exists();
    while !std::fs::read_dir(&checkpoints).is_ok_and(|mut all| all.any(|entry| entry.is_ok_and(stands))) {
        assert!(child.try_wait().unwrap().is_none(), "the job ended before its first checkpoint");
    }
    assert!(bed.command(&["link", "1", "down"]).status().unwrap().success());
    let (output, words) = outcome(child);
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("launch: rank 1 (host ctbd-h1, process "), "{words}");
    assert!(words.contains("has not been heard of for 4 s: ended"), "{words}");
    // The rank behind the link hears nothing of the launcher, and ends by itself.
    let start = Instant::now();
    let ranks = || {
        let processes = Command::new("ip").args(["netns", "pids", "ctbd-h1"]).output().unwrap();
        let processes = String::from_utf8(processes.stdout).unwrap();
        let name =
            |process: &str| std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        processes.split_whitespace().filter(|process| name(process).trim() == "campanile").count()
    };
    while ranks() > 0 {
        assert!(start.elapsed() < PATIENCE, "a rank was left behind");
    }
    // The link is back, and the job goes on.
    assert!(bed.command(&["link", "1", "up"]).status().unwrap().success());
}
