//! The server under measurement: a process of its own, started from this very program.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use campanile_tables::checkpoint::Checkpoint;
use serde_json::Value;

use super::{traffic::MODEL, wait_until};
use crate::args::ServeBenchArguments;

/// A running server with a directory of checkpoints that only it reads.
pub struct Target {
    child: Child,
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    served: PathBuf,
    versions: Vec<PathBuf>,
    first_memory: Option<u64>,
    /// What was published, the oldest first.
    pub published: Mutex<Vec<Publication>>,
}

/// A version that was published.
#[derive(Debug, Clone)]
pub struct Publication {
    /// Its name in answers.
    pub version: String,
    /// From when on the server could see it.
    pub at: Instant,
}

impl Target {
    /// Starts it with the first of the versions.
    pub fn start(directory: &Path, versions: &[PathBuf], arguments: &ServeBenchArguments) -> Result<Target> {
        let served = std::env::temp_dir().join(format!("campanile-bench-serve-{}", std::process::id()));
        std::fs::create_dir_all(&served)?;
        // Transforms that were measured on the data lie beside the checkpoints.
        for entry in std::fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_file() {
                std::fs::copy(&path, served.join(path.file_name().context("a file has a name")?))?;
            }
        }
        publish(&versions[0], &served)?;
        let mut child = Command::new(std::env::current_exe()?)
            .arg("serve")
            .arg("--model")
            .arg(format!("{MODEL}={}", served.display()))
            .args(["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--poll-ms", "200"])
            .args(["--threads", &arguments.threads.to_string()])
            .args(["--max-batch", &arguments.max_batch.to_string()])
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the server")?;
        let mut lines = BufReader::new(child.stderr.take().context("the server has no stderr")?).lines();
        let listening = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let event: Value = serde_json::from_str(&line).ok()?;
            (event["event"] == "listening").then_some(event)
        });
        let Some(event) = listening else { bail!("the server did not start") };
        // What it says later must be read, or it would block.
        std::thread::spawn(move || lines.for_each(drop));
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let http = text("http").trim_start_matches("http://").trim_end_matches('/').parse()?;
        let (grpc, versions) = (text("grpc").parse()?, versions.to_vec());
        let published = Mutex::default();
        Ok(Target { child, http, grpc, served, versions, first_memory: None, published }.remembering())
    }

    fn remembering(mut self) -> Target {
        self.first_memory = self.memory();
        self
    }

    /// Runs something, and publishes a version every so often meanwhile; not at all when the time is zero.
    pub fn publish_while<T>(&self, every: Duration, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if every.is_zero() {
            return work();
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut next = Instant::now() + every;
                let mut left = self.versions.iter().skip(1);
                while !done.load(Ordering::Relaxed) {
                    wait_until((Instant::now() + Duration::from_millis(20)).min(next));
                    if Instant::now() < next {
                        continue;
                    }
                    next += every;
                    let Some(version) = left.next() else { break };
                    if let Ok(publication) = publish(version, &self.served) {
                        self.published.lock().unwrap_or_else(PoisonError::into_inner).push(publication);
                    }
                }
            });
            let result = work();
            done.store(true, Ordering::Relaxed);
            result
        })
    }

    /// What was published so far, the oldest first.
    pub fn publications(&self) -> Vec<Publication> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Bytes of memory that the server has in use, at its start and now.
    pub fn memory_growth(&self) -> Option<(u64, u64)> {
        Some((self.first_memory?, self.memory()?))
    }

    fn memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
    }

    /// Ends the server.
    pub fn stop(mut self) -> Result<()> {
        self.child.kill().context("cannot end the server")?;
        self.child.wait()?;
        Ok(())
    }
}

/// Copies a checkpoint beside, then gives it its name.
fn publish(checkpoint: &Path, into: &Path) -> Result<Publication> {
    let name = checkpoint.file_name().context("a checkpoint has a name")?;
    let version = Checkpoint::open(checkpoint)?.manifest().step.to_string();
    let beside = into.join("beside.writing");
    std::fs::create_dir_all(&beside)?;
    for entry in std::fs::read_dir(checkpoint)? {
        let path = entry?.path();
        std::fs::copy(&path, beside.join(path.file_name().context("a file has a name")?))?;
    }
    std::fs::rename(&beside, into.join(name)).context("cannot publish the checkpoint")?;
    Ok(Publication { version, at: Instant::now() })
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.served);
    }
}
