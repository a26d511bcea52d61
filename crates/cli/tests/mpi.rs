//! Ranks as MPI processes: the bits of threads, and no fault that hangs.

#![cfg(feature = "mpi")]

#[path = "suite/small_job.rs"]
mod small_job;
#[path = "suite/tower_job.rs"]
mod tower_job;

use std::{
    collections::BTreeMap,
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use small_job::{job, result};
use tower_job::tower_job;

const CAMPANILE: &str = env!("CARGO_BIN_EXE_campanile");

/// After this time a job counts as hung; all take seconds.
const PATIENCE: Duration = Duration::from_secs(90);

fn piped(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped())
}

fn launch(processes: usize, options: &[&str], job: &Path) -> Child {
    let mut command = Command::new(CAMPANILE);
    command.args(["launch", "-n", &processes.to_string()]).args(options);
    piped(command.arg("train").arg(job).arg("--quiet")).spawn().unwrap()
}

fn threads(count: usize, job: &Path) {
    let mut command = Command::new(CAMPANILE);
    let output =
        piped(command.arg("train").arg(job).args(["--quiet", "--threads", &count.to_string()])).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Waits for the end, and ends the test where it does not come.
fn outcome(mut child: Child) -> Output {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            panic!("hung: {}", String::from_utf8_lossy(&output.stderr));
        }
        std::thread::yield_now();
    }
    child.wait_with_output().unwrap()
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn finish(child: Child) {
    let output = outcome(child);
    assert!(output.status.success(), "{}", words(&output));
}

/// The processes that train this job, without those that only started them.
fn ranks_of(job: &Path) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(process) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut line = line.split(|&byte| byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
        if line.next().is_some_and(|program| program == CAMPANILE)
            && line.next().is_some_and(|command| command == "train")
            && line.next().is_some_and(|path| Path::new(&path) == job)
        {
            found.push(process);
        }
    }
    found.sort_unstable();
    found
}

fn send(signal: &str, process: u32) {
    let status = Command::new("sh").args(["-c", &format!("kill -{signal} {process} 2>/dev/null")]).status();
    status.unwrap();
}

/// Waits until the job runs and `moment` has passed; false when it ended before.
fn runs_for(child: &mut Child, moment: Duration) -> bool {
    let start = Instant::now();
    while start.elapsed() < moment {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

fn wait_for_ranks(child: &mut Child, job: &Path, count: usize) -> Vec<u32> {
    loop {
        let ranks = ranks_of(job);
        if ranks.len() == count {
            return ranks;
        }
        assert!(child.try_wait().unwrap().is_none(), "the job ended before its ranks were seen");
    }
}

/// Waits until a checkpoint stands, so that the ranks are in the middle of training.
fn wait_for_a_checkpoint(child: &mut Child, directory: &Path) {
    let checkpoints = directory.join("output/checkpoints");
    let stands = |entry: std::fs::DirEntry| entry.path().join("manifest.json").exists();
    while !std::fs::read_dir(&checkpoints).is_ok_and(|mut all| all.any(|entry| entry.is_ok_and(stands))) {
        assert!(child.try_wait().unwrap().is_none(), "the job ended before a checkpoint was seen");
    }
}

fn assert_same(found: &BTreeMap<String, Vec<u8>>, want: &BTreeMap<String, Vec<u8>>, what: &str) {
    assert_eq!(found.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>(), "{what}");
    for (name, bytes) in want {
        assert!(&found[name] == bytes, "{name} differs: {what}");
    }
}

/// What a run left alone on two threads gives.
fn undisturbed(rows: usize) -> BTreeMap<String, Vec<u8>> {
    let directory = tempfile::tempdir().unwrap();
    threads(2, &job(directory.path(), rows));
    result(directory.path())
}

#[test]
fn processes_give_the_bits_of_threads() {
    let want = undisturbed(5_000);
    for processes in [1, 2, 4] {
        let directory = tempfile::tempdir().unwrap();
        finish(launch(processes, &[], &job(directory.path(), 5_000)));
        assert_same(&result(directory.path()), &want, &format!("{processes} processes"));
    }
}

/// The ways of towers on processes: `sptt` has the bits of the flat model, and modules those of one process.
#[test]
fn towers_over_processes_have_the_bits_of_one_process() {
    for (variant, alone) in [("sptt", "flat"), ("towers", "towers")] {
        let directory = tempfile::tempdir().unwrap();
        threads(1, &tower_job(directory.path(), (alone, 4), ""));
        let mut want = result(directory.path());
        // It has the job, and so the word for the ways that were taken.
        want.remove("checkpoint/manifest.json").expect("a manifest");
        for (processes, pipeline) in [(1, "auto"), (2, "auto"), (4, "off"), (4, "on")] {
            let directory = tempfile::tempdir().unwrap();
            let process = format!("pipeline = \"{pipeline}\"");
            let path = tower_job(directory.path(), (variant, 4), &process);
            let report = directory.path().join("report.json");
            let child = Command::new(CAMPANILE)
                .args(["launch", "-n", &processes.to_string(), "train"])
                .arg(&path)
                .args(["--quiet", "--report"])
                .arg(&report)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn();
            finish(child.unwrap());
            let mut found = result(directory.path());
            found.remove("checkpoint/manifest.json").expect("a manifest");
            assert_same(&found, &want, &format!("{variant} on {processes} processes, pipeline {pipeline}"));
            let report = std::fs::read_to_string(&report).unwrap();
            let ways = format!("{processes} group(s) of 1 rank(s)");
            assert!(processes == 1 || report.contains(&ways), "the towers had their ways: {report}");
        }
    }
}

#[test]
fn mpirun_alone_does_it_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = job(directory.path(), 5_000);
    finish(mpirun(&[(2, &path)]));
    assert_same(&result(directory.path()), &undisturbed(5_000), "mpirun");
    let mut command = Command::new("mpirun");
    command.args([
        "--allow-run-as-root",
        "--oversubscribe",
        "--bind-to",
        "none",
        "-n",
        "2",
        CAMPANILE,
        "eval",
    ]);
    let output = piped(command.arg(&path)).output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout).matches("rows of the test split").count(), 1);
}

/// Some processes with one job, some with another.
fn mpirun(parts: &[(usize, &Path)]) -> Child {
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
    for (place, (processes, job)) in parts.iter().enumerate() {
        if place > 0 {
            command.arg(":");
        }
        command.args(["-n", &processes.to_string(), CAMPANILE, "train"]).arg(job).arg("--quiet");
    }
    piped(&mut command).spawn().unwrap()
}

#[test]
fn ranks_with_different_jobs_are_refused_and_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = job(directory.path(), 1_000);
    let text = std::fs::read_to_string(&path).unwrap();
    let other = directory.path().join("other.toml");
    std::fs::write(&other, text.replace("seed = 11", "seed = 12")).unwrap();
    let output = outcome(mpirun(&[(1, &path), (1, &other), (2, &path)]));
    assert_eq!(output.status.code(), Some(1));
    let said = words(&output);
    assert_eq!(said.matches("error: rank 1 (host ").count(), 1, "{said}");
    assert!(said.contains("the hash of [run] differs: rank 1 (host "), "{said}");
    assert!(said.contains("start all ranks with the same job file"), "{said}");
    assert!(!directory.path().join("output/checkpoints").exists(), "nothing was trained");
}

#[test]
fn ranks_with_different_data_are_refused_and_named() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let output = outcome(mpirun(&[(3, &job(here.path(), 1_000)), (1, &job(there.path(), 999))]));
    assert_eq!(output.status.code(), Some(1));
    let said = words(&output);
    assert_eq!(said.matches("error: rank 3 (host ").count(), 1, "{said}");
    assert!(said.contains("the fingerprint of the data differs: rank 3 (host "), "{said}");
}

#[test]
fn a_mistake_is_told_once_by_all_ranks_together() {
    let output = outcome(launch(4, &[], Path::new("no-such-job.toml")));
    assert_eq!(output.status.code(), Some(1));
    let said = words(&output);
    assert_eq!(said.matches("cannot read the job no-such-job.toml").count(), 1, "{said}");
    assert!(said.contains("error: rank 0 (host "), "{said}");
}

/// Twenty times a rank is killed at a time drawn from a seed; the job ends and says who it was, and whatever number
/// of ranks goes on, the result has the bits of a run that was left alone.
#[test]
fn a_killed_rank_ends_the_job_and_changes_no_bit() {
    const KILLS: usize = 20;
    let want = undisturbed(20_000);
    let mut state = 0x5851_f42d_4c95_7f2du64;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut kills = 0;
    while kills < KILLS {
        let directory = tempfile::tempdir().unwrap();
        let path = job(directory.path(), 20_000);
        for _ in 0..5 {
            let processes = [2, 4][draw(2)];
            let mut child = launch(processes, &[], &path);
            let ranks = wait_for_ranks(&mut child, &path, processes);
            let (victim, moment) = (ranks[draw(processes)], Duration::from_millis(draw(2_000) as u64));
            if !runs_for(&mut child, moment) {
                finish(child);
                continue;
            }
            send("KILL", victim);
            let output = outcome(child);
            // The kill may have come after the job's last word.
            if !output.status.success() {
                assert_eq!(output.status.code(), Some(1), "{}", words(&output));
                assert!(words(&output).contains("launch: "), "{}", words(&output));
                kills += 1;
            }
            assert_eq!(ranks_of(&path), [0; 0], "a rank was left behind");
        }
        finish(launch([1, 2, 4][draw(3)], &[], &path));
        assert_same(&result(directory.path()), &want, &format!("after {kills} kills"));
    }
}

/// The rank that a process of Open MPI or MPICH is.
fn rank_of(process: u32) -> usize {
    let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap();
    let mut variables = environment.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let rank = variables.find_map(|variable| {
        ["OMPI_COMM_WORLD_RANK=", "PMI_RANK="]
            .iter()
            .find_map(|name| variable.strip_prefix(name)?.parse().ok())
    });
    rank.expect("mpirun tells every process its rank")
}

/// mpirun ends the others at once, and these are not to blame.
#[test]
fn the_rank_that_was_killed_is_the_one_that_is_named() {
    for processes in [1, 2, 4] {
        for victim in 0..processes {
            let directory = tempfile::tempdir().unwrap();
            let path = job(directory.path(), 200_000);
            let mut child = launch(processes, &[], &path);
            let ranks = wait_for_ranks(&mut child, &path, processes);
            wait_for_a_checkpoint(&mut child, directory.path());
            let process =
                ranks.into_iter().find(|process| rank_of(*process) == victim).expect("the rank runs");
            send("KILL", process);
            let said = words(&outcome(child));
            let named = said.lines().find(|line| line.contains("died without a word")).unwrap_or_default();
            assert!(
                named.starts_with(&format!("launch: rank {victim} (host ")),
                "{victim} of {processes}: {said}"
            );
            assert!(named.contains(&format!(", process {process}, at `")), "{victim} of {processes}: {said}");
            assert!(!named.contains(" or rank"), "{victim} of {processes}: {said}");
            assert_eq!(ranks_of(&path), [0; 0], "a rank was left behind");
        }
    }
}

#[test]
fn a_stopped_rank_is_noticed_named_and_ended_and_the_job_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = job(directory.path(), 20_000);
    let mut child = launch(2, &["--silence", "2", "--restarts", "1"], &path);
    let ranks = wait_for_ranks(&mut child, &path, 2);
    wait_for_a_checkpoint(&mut child, directory.path());
    send("STOP", ranks[1]);
    let output = outcome(child);
    let said = words(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("launch: rank ") && said.contains("has not been heard of for 2 s: ended"),
        "{said}"
    );
    assert!(said.contains(&format!("process {}", ranks[1])), "{said}");
    assert!(said.contains("starting again from the last checkpoint (1 of 1)"), "{said}");
    assert_same(&result(directory.path()), &undisturbed(20_000), "stopped and started again");
    assert_eq!(ranks_of(&path), [0; 0], "a rank was left behind");
}

#[test]
fn ranks_that_lose_their_launcher_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = job(directory.path(), 200_000);
    let mut child = launch(2, &["--silence", "2"], &path);
    wait_for_ranks(&mut child, &path, 2);
    wait_for_a_checkpoint(&mut child, directory.path());
    child.kill().unwrap();
    child.wait().unwrap();
    let start = Instant::now();
    while !ranks_of(&path).is_empty() {
        assert!(start.elapsed() < PATIENCE, "ranks were left behind");
    }
}

#[test]
fn a_command_that_works_alone_says_so() {
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "-n", "2", CAMPANILE, "inspect", "nothing"]);
    let output = piped(&mut command).output().unwrap();
    assert!(words(&output).contains("`campanile inspect` works alone"), "{}", words(&output));
}
