//! Where the ranks of a run come from: threads of this process, or processes of which this is one.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use campanile_comm::{Buffer, Communicator, threads};
use campanile_spec::{
    Plan,
    config::{Job, Run},
};

use crate::{TrainError, memory, plan_of::plan_of, same};

/// The ranks of a run.
#[derive(Clone, Copy)]
pub enum Ranks<'a> {
    /// So many threads of this process.
    Threads(usize),
    /// This process is one rank of many.
    One {
        /// Its way to the others.
        comm: &'a dyn Communicator,
        /// Where it shows how far it is.
        pulse: &'a Pulse,
    },
}

impl Ranks<'_> {
    /// Threads for a job: as asked, or as many as there are cores.
    ///
    /// # Errors
    /// When the number asked for does not divide the grains.
    pub fn threads_for(job: &Job) -> Result<Ranks<'static>, TrainError> {
        let grains = job.run.grain_count;
        if job.process.threads == 0 {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            return Ok(Ranks::Threads(1 << cores.min(grains).ilog2()));
        }
        check_count(&job.run, job.process.threads)?;
        Ok(Ranks::Threads(job.process.threads))
    }

    /// How many ranks there are in all.
    pub fn count(&self) -> usize {
        match self {
            Ranks::Threads(count) => *count,
            Ranks::One { comm, .. } => comm.rank_count(),
        }
    }

    /// Checks that this many ranks can train the job here, and that all ranks have the same `facts`; all ranks fail
    /// together.
    ///
    /// # Errors
    /// When the count does not divide the grains, the tables do not fit, or ranks differ.
    pub fn check(&self, job: &Job, plan: &Plan, facts: &[same::Fact]) -> Result<(), TrainError> {
        match self {
            Ranks::Threads(count) => {
                check_count(&job.run, *count)?;
                plan.check(&job.run.model)?;
                let needed = (0..plan.rank_count).map(|rank| memory::of_rank(job, plan, rank)).sum();
                memory::check(job, needed).map_err(TrainError::Memory)
            }
            Ranks::One { comm, .. } => {
                // First of all, for only ranks with the same job come to the same answers.
                same::compare(*comm, facts)?;
                self.together(check_count(&job.run, comm.rank_count()))?;
                self.together(plan.check(&job.run.model).map_err(Into::into))?;
                let own = memory::of_rank(job, plan, comm.rank());
                let here = comm.split_by_host()?.all_gather(Buffer::of(&[own]))?;
                let needed = here.iter().map(|rank| rank.values::<u64>()[0]).sum();
                self.together(memory::check(job, needed).map_err(TrainError::Memory))
            }
        }
    }

    /// Whether the job's tables fit in memory here, by its plan; of ranks as processes each looks for itself, and none
    /// speaks to another.
    ///
    /// # Errors
    /// When they do not, or the plan cannot be made.
    pub fn check_memory(&self, job: &Job) -> Result<(), TrainError> {
        let plan = plan_of(job, self.count())?;
        let ranks = match self {
            Ranks::Threads(count) => 0..*count,
            Ranks::One { comm, .. } => comm.rank()..comm.rank() + 1,
        };
        let needed = ranks.map(|rank| memory::of_rank(job, &plan, rank)).sum();
        memory::check(job, needed).map_err(TrainError::Memory)
    }

    /// Where ranks are processes and one has failed, all fail.
    ///
    /// # Errors
    /// The process's own error, or that of the first rank that failed.
    pub fn together<T>(&self, outcome: Result<T, TrainError>) -> Result<T, TrainError> {
        match self {
            Ranks::Threads(_) => outcome,
            Ranks::One { comm, .. } => together(*comm, outcome),
        }
    }

    /// Runs `body` on every rank of this process, and returns the answer of the first.
    ///
    /// # Errors
    /// The error of the rank that failed first.
    pub fn run<T, F>(&self, body: F) -> Result<T, TrainError>
    where
        T: Send + Default,
        F: Fn(&dyn Communicator, &Pulse) -> Result<T, TrainError> + Sync,
    {
        match self {
            Ranks::Threads(count) => {
                let pulse = Pulse::default();
                let answers = threads::run(*count, |comm| body(comm, &pulse))?;
                Ok(answers.into_iter().next().unwrap_or_default())
            }
            Ranks::One { comm, pulse } => body(*comm, pulse),
        }
    }
}

fn check_count(run: &Run, ranks: usize) -> Result<(), TrainError> {
    let grains = run.grain_count;
    if ranks.is_power_of_two() && grains.is_multiple_of(ranks) {
        return Ok(());
    }
    let options: Vec<String> = (0..=grains.ilog2()).map(|power| (1usize << power).to_string()).collect();
    Err(TrainError::RankCount { ranks, grains, options: options.join(", ") })
}

/// Lets all ranks fail together where one has failed.
///
/// # Errors
/// The rank's own error, or that of the first rank that failed.
pub fn together<T>(
    comm: &dyn Communicator,
    outcome: Result<T, impl Into<TrainError>>,
) -> Result<T, TrainError> {
    let outcome = outcome.map_err(Into::into);
    if comm.rank_count() == 1 {
        return outcome;
    }
    comm.agree(outcome.as_ref().map(drop).map_err(ToString::to_string))?;
    outcome
}

/// How far a rank is, for somebody who watches from another thread and wants to know whether it still moves.
#[derive(Debug, Default)]
pub struct Pulse {
    moves: AtomicU64,
    step: AtomicU64,
    phase: Mutex<&'static str>,
}

impl Pulse {
    /// Something was done.
    pub fn beat(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    /// So many steps are trained.
    pub fn at_step(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
        self.beat();
    }

    /// A new stretch of work begins, such as `train` or `valid`.
    pub fn enter(&self, phase: &'static str) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
        self.beat();
    }

    /// How many things were done; it stands still when the rank does.
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }

    /// Steps trained.
    pub fn step(&self) -> u64 {
        self.step.load(Ordering::Relaxed)
    }

    /// The stretch of work under way.
    pub fn phase(&self) -> &'static str {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
