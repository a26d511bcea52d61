//! Some steps of a job by a plan, timed, that leave nothing behind: what a prediction is held to.
//!
//! It is the loop of a run without its files: batches come from the reader, ranks step, predictions are collected and
//! judged. Between rounds of steps the caller may do something else with the same ranks, such as measuring how fast
//! the machine is at that moment.

use campanile_comm::{Buffer, Communicator};
use campanile_data::Prepared;
use campanile_spec::{PIPELINE_CHUNKS, Plan, config::Job};

use crate::{
    TrainError,
    clock::{
        PARTS, Part, Stopwatch, machine_cpu_seconds, machine_number, process_cpu_seconds, thread_cpu_seconds,
    },
    loader::{Feed, Loader},
    predictions::Predictions,
    rank::{RankState, Seat},
    ranks::{self, Ranks},
    run::{is_pipelined, seating_for},
    same,
    scores::Scores,
    step::{Carry, Turn, step},
};

/// Steps before anything is timed: pages are touched and buffers find their size.
const WARM_UP_STEPS: u64 = 3;

/// What to try.
#[derive(Clone, Copy)]
pub struct Trial<'a> {
    /// The job.
    pub job: &'a Job,
    /// Its data.
    pub prepared: &'a Prepared,
    /// Where its tables live.
    pub plan: &'a Plan,
    /// Rounds of steps.
    pub rounds: usize,
    /// Steps of each.
    pub steps: u64,
}

/// What was measured.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct Measured {
    /// By round: seconds of a step.
    pub step_seconds: Vec<f64>,
    /// By rank: seconds of a step by part, in the order of [`PARTS`], over all rounds.
    pub parts: Vec<Vec<f64>>,
    /// By rank: seconds of a step in which it had a processor; empty where the system does not tell.
    pub cpu_seconds: Vec<f64>,
    /// The part of the first rank's machine that other programs used meanwhile; 0 where the system does not tell.
    pub others_share: f64,
    /// By rank: bytes that its process holds more than before; threads of one process all have the same number.
    pub memory_bytes: Vec<u64>,
    /// Whether ranks computed while vectors travelled.
    pub pipelined: bool,
}

/// Trains some steps by a plan. `between` is called on all ranks before every round.
///
/// # Errors
/// As [`crate::run::train_by`]; or when `between` fails.
pub fn trial(
    trial: Trial<'_>,
    ranks: Ranks<'_>,
    between: &(dyn Fn(&dyn Communicator) -> Result<(), TrainError> + Sync),
) -> Result<Measured, TrainError> {
    let Trial { job, prepared, plan, .. } = trial;
    ranks.check(job, plan, &same::facts(job, prepared, plan))?;
    ranks.together(if prepared.train.row_count() == 0 { Err(TrainError::NoRows) } else { Ok(()) })?;
    ranks.run(|comm, _| one_rank(trial, comm, between))
}

fn one_rank(
    trial: Trial<'_>,
    comm: &dyn Communicator,
    between: &(dyn Fn(&dyn Communicator) -> Result<(), TrainError> + Sync),
) -> Result<Measured, TrainError> {
    let Trial { job, prepared, plan, rounds, steps } = trial;
    let (run, pipelined) = (&job.run, is_pipelined(job, comm));
    comm.barrier()?;
    let memory_before = resident_bytes();
    comm.barrier()?;
    let chunks = if pipelined { PIPELINE_CHUNKS } else { 1 };
    let seat = Seat { plan, rank: comm.rank(), chunks, isa: same::level(comm)? };
    let mut state = ranks::together(comm, RankState::new(run, seat))?;
    if let Some(seating) = seating_for(&run.model, plan) {
        state.sit_by_towers(comm, &seating)?;
    }
    let feed = Feed {
        row_count: prepared.train.row_count(),
        batch_size: run.batch_size,
        grains: run.grains(),
        rank: comm.rank(),
        rank_count: comm.rank_count(),
    };
    let all = 0..WARM_UP_STEPS + steps * rounds as u64;
    let loader = Loader::start(run, &prepared.train, feed, all, job.process.batches_ahead);
    let mut stretch = Stretch {
        comm,
        loader: ranks::together(comm, loader)?,
        scores: Scores::for_training(run),
        pipelined,
        number: 0,
    };
    stretch.run(&mut state, WARM_UP_STEPS)?;
    let mut measured = Measured { pipelined, ..Measured::default() };
    let (mut parts, mut cpu, mut used) = ([0.0; PARTS.len()], Some(0.0), Used::default());
    for _ in 0..rounds {
        between(comm)?;
        comm.barrier()?;
        state.timings.take();
        let before = Used::so_far();
        let (watch, cpu_start) = (Stopwatch::start(), thread_cpu_seconds());
        stretch.run(&mut state, steps)?;
        used.add_since(before);
        let taken = thread_cpu_seconds().zip(cpu_start).map(|(now, start)| now - start);
        cpu = cpu.zip(taken).map(|(sum, taken)| sum + taken);
        measured.step_seconds.push(watch.seconds() / steps as f64);
        parts.iter_mut().zip(state.timings.take()).for_each(|(sum, seconds)| *sum += seconds);
    }
    let steps_timed = (steps * rounds as u64) as f64;
    parts.iter_mut().for_each(|sum| *sum /= steps_timed);
    let all = comm.all_gather(cpu.map_or_else(Buffer::new, |cpu| Buffer::of(&[cpu / steps_timed])))?;
    measured.cpu_seconds = all.iter().filter_map(|rank| rank.values::<f64>().first().copied()).collect();
    measured.others_share = used.by_others(comm)?;
    let all = comm.all_gather(Buffer::of(&parts))?;
    measured.parts = all.iter().map(|rank| rank.values::<f64>().to_vec()).collect();
    let grown = resident_bytes().saturating_sub(memory_before);
    let all = comm.all_gather(Buffer::of(&[grown]))?;
    measured.memory_bytes = all.iter().map(|rank| rank.values::<u64>()[0]).collect();
    Ok(measured)
}

/// Processor seconds of this process, of all programs of its machine, and all that there were.
#[derive(Clone, Copy, Default)]
struct Used([f64; 3]);

impl Used {
    fn so_far() -> Used {
        let counted = process_cpu_seconds().zip(machine_cpu_seconds());
        counted.map_or(Used::default(), |(own, (busy, all))| Used([own, busy, all]))
    }

    fn add_since(&mut self, before: Used) {
        let now = Used::so_far();
        self.0.iter_mut().zip(now.0).zip(before.0).for_each(|((sum, now), before)| *sum += now - before);
    }

    /// The part of the first rank's machine that went to programs without a rank.
    fn by_others(self, comm: &dyn Communicator) -> Result<f64, TrainError> {
        let [own, busy, all] = self.0;
        // Ranks may be threads of one process, and hosts may be parts of one machine.
        let whose = [machine_number().unwrap_or(0), u64::from(std::process::id())].map(f64::from_bits);
        let told = comm.all_gather(Buffer::of(&[whose[0], whose[1], own, busy, all]))?;
        let told: Vec<&[f64]> = told.iter().map(|rank| rank.values()).collect();
        let mut ours: Vec<(u64, f64)> = told
            .iter()
            .filter(|rank| rank[0].to_bits() == told[0][0].to_bits())
            .map(|rank| (rank[1].to_bits(), rank[2]))
            .collect();
        ours.sort_by_key(|(process, _)| *process);
        ours.dedup_by_key(|(process, _)| *process);
        let ours: f64 = ours.iter().map(|(_, seconds)| seconds).sum();
        let [busy, all] = [told[0][3], told[0][4]];
        Ok(if all > 0.0 { ((busy - ours) / all).max(0.0) } else { 0.0 })
    }
}

/// Steps one after the other, as a run does them.
struct Stretch<'a> {
    comm: &'a dyn Communicator,
    loader: Loader,
    scores: Scores,
    pipelined: bool,
    number: u64,
}

impl Stretch<'_> {
    fn run(&mut self, state: &mut RankState, steps: u64) -> Result<(), TrainError> {
        let (comm, mut carry, mut ahead) = (self.comm, Carry::default(), None);
        for left in (0..steps).rev() {
            state.timings.start(Part::Input);
            let batch = match ahead.take() {
                Some(batch) => batch,
                None => match self.loader.next_batch().or_else(|error| state.refuse(comm, error))? {
                    Some(batch) => batch,
                    None => break,
                },
            };
            let mut next = None;
            if self.pipelined && left > 0 {
                let read = self.loader.next_batch();
                let read = if comm.rank_count() == 1 { Ok(read?) } else { read };
                next = read.transpose();
            }
            let words = next.as_ref().map(|next| next.as_ref().map_err(ToString::to_string));
            step(comm, state, &mut carry, Turn { number: self.number, batch: &batch, next: words })?;
            ahead = next.and_then(Result::ok);
            self.number += 1;
            state.timings.start(Part::Rest);
            let predictions = Predictions::collect(comm, &batch, state.logits(), state.task_count())?;
            self.loader.give_back(batch);
            self.scores.add(&predictions);
            state.timings.stop();
        }
        state.settle(comm, &mut carry)
    }
}

/// Bytes of memory that this process holds; 0 where the system does not tell.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
