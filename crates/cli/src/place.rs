//! This process's place: alone, or one rank of many that `mpirun` started.
//!
//! The same command works both ways. Where there are many, rank 0 alone writes and prints what all have in common,
//! and ranks fail together: whoever has the reason prints it, once, and all exit with 1.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Result, anyhow, bail};
use campanile_comm::Communicator;
use campanile_spec::config::Job;
use campanile_train::ranks::{Pulse, Ranks};

use crate::complaint;
#[cfg(feature = "mpi")]
use crate::heartbeat::{Heartbeat, Launcher, Watched};
use crate::interrupt::{Interrupted, Interrupts};

/// Alone, or one of many.
pub struct Place {
    many: Option<Many>,
    pulse: Arc<Pulse>,
    interrupts: Arc<Interrupts>,
}

/// One rank of many.
#[cfg(feature = "mpi")]
struct Many {
    world: campanile_comm::mpi::World,
    comm: campanile_comm::mpi::MpiRank,
    heartbeat: Option<Heartbeat>,
}

/// Without the feature there is no such place.
#[cfg(not(feature = "mpi"))]
enum Many {}

impl Place {
    /// Finds out from the environment, and joins the others if there are any.
    pub fn find() -> Result<Place> {
        match processes_started() {
            None => Ok(Place::alone()),
            Some(count) => Place::among_many(count),
        }
    }

    fn alone() -> Place {
        Place { many: None, pulse: Arc::default(), interrupts: Arc::default() }
    }

    #[cfg(feature = "mpi")]
    fn among_many(_count: usize) -> Result<Place> {
        let (pulse, interrupts) = (Arc::<Pulse>::default(), Arc::<Interrupts>::default());
        let launcher = Launcher::from_environment()?;
        let world = campanile_comm::mpi::World::join(campanile_comm::mpi::Settings::default())?;
        let comm = world.all_ranks();
        let heartbeat = launcher
            .map(|launcher| {
                let watched = Watched {
                    pulse: Arc::clone(&pulse),
                    activity: world.activity(),
                    interrupts: Arc::clone(&interrupts),
                };
                Heartbeat::start(launcher, comm.rank(), watched)
            })
            .transpose();
        match heartbeat {
            Ok(heartbeat) => Ok(Place { many: Some(Many { world, comm, heartbeat }), pulse, interrupts }),
            Err(error) => {
                let message = complaint::words(&error);
                // It is this error that is told; what the others say of it is their affair.
                let _ = world.leave(Err(message));
                Err(error)
            }
        }
    }

    #[cfg(not(feature = "mpi"))]
    fn among_many(count: usize) -> Result<Place> {
        // A single process trains as well alone.
        if count == 1 {
            return Ok(Place::alone());
        }
        bail!(
            "mpirun started {count} processes, but this program was built without MPI and each would train by itself; \
             build it with `cargo build --release --features mpi`, or start it alone with --threads {count}"
        )
    }

    fn comm(&self) -> Option<&dyn Communicator> {
        #[cfg(feature = "mpi")]
        return self.many.as_ref().map(|many| &many.comm as &dyn Communicator);
        #[cfg(not(feature = "mpi"))]
        None
    }

    /// The ranks of a run: threads as the job says, or this process among the others.
    pub fn ranks(&self, job: &Job) -> Result<Ranks<'_>> {
        match self.comm() {
            None => Ok(Ranks::threads_for(job)?),
            Some(comm) => Ok(Ranks::One { comm, pulse: &self.pulse }),
        }
    }

    /// The same for a number of threads, which must be left out among many.
    pub fn ranks_or_threads(&self, threads: usize) -> Ranks<'_> {
        match self.comm() {
            None => Ranks::Threads(threads),
            Some(comm) => Ranks::One { comm, pulse: &self.pulse },
        }
    }

    /// How many processes there are, if they are the ranks.
    pub fn processes(&self) -> Option<usize> {
        self.comm().map(|comm| comm.rank_count())
    }

    /// Refuses `--threads` where ranks are processes.
    pub fn refuse_threads(&self) -> Result<()> {
        match self.processes() {
            None => Ok(()),
            Some(count) => bail!(
                "--threads is for ranks as threads, and here each of {count} processes is one; leave it out"
            ),
        }
    }

    /// Whether this process prints and writes what all have in common.
    pub fn is_first(&self) -> bool {
        self.comm().is_none_or(|comm| comm.rank() == 0)
    }

    /// What one rank is here.
    pub fn rank_noun(&self, count: usize) -> &'static str {
        match (self.comm().is_some(), count) {
            (true, 1) => "process",
            (true, _) => "processes",
            (false, 1) => "thread",
            (false, _) => "threads",
        }
    }

    /// Where this process shows how far it is.
    pub fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    /// The signals that this process hears.
    pub fn interrupts(&self) -> &Arc<Interrupts> {
        &self.interrupts
    }

    /// Lets all processes fail where one has failed.
    pub fn together<T>(&self, outcome: Result<T>) -> Result<T> {
        if let Some(comm) = self.comm() {
            comm.agree(outcome.as_ref().map(drop).map_err(complaint::words))?;
        }
        outcome
    }

    /// Does something on the first process, and then on the others, which find what it left behind.
    pub fn first_then_others<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        let Some(comm) = self.comm() else { return work() };
        let first = if comm.rank() == 0 { Some(work()) } else { None };
        let words =
            first.as_ref().map_or(Ok(()), |outcome| outcome.as_ref().map(drop).map_err(complaint::words));
        comm.agree(words)?;
        self.together(first.unwrap_or_else(work))
    }

    /// Does something on the first process only; all wait for it.
    pub fn only_first(&self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        self.together(if self.is_first() { work() } else { Ok(()) })
    }

    /// Runs a command to its end: tells what went wrong, and says what to exit with.
    pub fn run(self, command: impl FnOnce(&Place) -> Result<()>) -> ExitCode {
        let outcome = match &self.many {
            None => command(&self),
            // The others must learn of a panic too.
            Some(_) => catch_unwind(AssertUnwindSafe(|| command(&self))).unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
                Err(anyhow!("internal error: {}", text.unwrap_or_else(|| "panicked".to_owned())))
            }),
        };
        self.end(outcome)
    }

    #[cfg(feature = "mpi")]
    fn end(self, outcome: Result<()>) -> ExitCode {
        let Some(Many { world, comm, heartbeat }) = self.many else { return told(outcome) };
        // All ranks have stopped together: none of them has failed.
        let (outcome, code) = match outcome {
            Err(error) => match error.downcast::<Interrupted>() {
                Ok(interrupted) => {
                    if comm.rank() == 0 {
                        eprintln!("{interrupted}");
                    }
                    (Ok(()), ExitCode::from(interrupted.signal.exit_code()))
                }
                Err(error) => (Err(error), ExitCode::SUCCESS),
            },
            Ok(()) => (Ok(()), ExitCode::SUCCESS),
        };
        let known = world.failure();
        let here = match (&outcome, &known) {
            (Ok(()), _) => None,
            (Err(error), None) => Some(complaint::words(error)),
            (Err(_), Some(failure)) => (failure.rank == comm.rank()).then(|| failure.message.clone()),
        };
        if let Some(message) = &here {
            eprintln!(
                "error: rank {} (host {}): {}",
                comm.rank(),
                comm.host_name(),
                complaint::printable(message)
            );
        }
        if let Some(heartbeat) = heartbeat {
            heartbeat.say_goodbye(outcome.is_ok(), here.as_deref());
        }
        let left = world.leave(outcome.map_err(|error| here.unwrap_or_else(|| complaint::words(&error))));
        if left.is_ok() { code } else { ExitCode::FAILURE }
    }

    #[cfg(not(feature = "mpi"))]
    fn end(self, outcome: Result<()>) -> ExitCode {
        told(outcome)
    }
}

/// Prints what went wrong, if it did.
pub fn told(outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => match error.downcast_ref::<Interrupted>() {
            Some(interrupted) => {
                eprintln!("{interrupted}");
                ExitCode::from(interrupted.signal.exit_code())
            }
            None => {
                eprintln!("error: {}", complaint::printable(&complaint::words(&error)));
                ExitCode::FAILURE
            }
        },
    }
}

/// How many processes `mpirun` (Open MPI, MPICH) or `srun` (through PMIx) started, if one of them started this one.
fn processes_started() -> Option<usize> {
    let number = |name: &str| std::env::var(name).ok()?.trim().parse::<usize>().ok();
    let by_slurm = || std::env::var_os("PMIX_RANK").and_then(|_| number("SLURM_NTASKS"));
    number("OMPI_COMM_WORLD_SIZE").or_else(|| number("PMI_SIZE")).or_else(by_slurm)
}

/// Refuses a command that works alone where `mpirun` started many.
pub fn alone(command: &str) -> Result<()> {
    match processes_started() {
        Some(count) if count > 1 => {
            bail!(
                "`campanile {command}` works alone, and mpirun started {count} of it; start it without mpirun"
            )
        }
        _ => Ok(()),
    }
}
