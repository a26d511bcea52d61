//! Ways whose ranks are processes: this program, started again by `campanile launch`.

use std::{path::Path, process::Command};

use anyhow::Result;
use campanile_spec::{Plan, config::Job};
use campanile_train::TrainError;

/// Whether processes can be started here; says so when they cannot.
pub fn can_start() -> Result<bool> {
    if !cfg!(feature = "mpi") {
        println!("ranks as threads only: this program was built without --features mpi");
        return Ok(false);
    }
    let found = Command::new("mpirun").arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        println!("ranks as threads only: mpirun is not installed");
    }
    Ok(found)
}

/// Trains a job by a plan, on as many processes as the plan has ranks.
pub fn start(job: &Job, plan: &Plan, directory: &Path) -> Result<(), TrainError> {
    let failed = |source| TrainError::Output { path: directory.to_owned(), source };
    let (job_path, plan_path) = (directory.join("way.toml"), directory.join("plan.toml"));
    std::fs::write(&plan_path, plan.to_toml(&job.run.model)).map_err(failed)?;
    let mut job = job.clone();
    job.process.plan = Some(plan_path);
    std::fs::write(&job_path, job.effective_toml()).map_err(failed)?;
    let output = Command::new(std::env::current_exe().map_err(failed)?)
        .args(["launch", "-n", &plan.rank_count.to_string(), "--", "train"])
        .arg(&job_path)
        .arg("--quiet")
        .output()
        .map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(TrainError::Output { path: job_path, source: std::io::Error::other(words) })
}
