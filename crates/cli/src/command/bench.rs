//! `campanile bench`: training speed beside this machine's own limits.
//!
//! Ids are generated before the clock starts, and all ranks run the real step on real tables. A round is a
//! number of steps fixed beforehand, so that nothing but training happens inside it.

mod input;
mod limits;
mod planner;
mod random;
mod score;
#[cfg(feature = "serve")]
mod serve;
mod topology;
mod workload;

use std::{sync::Mutex, time::Instant};

use anyhow::{Result, bail};
use campanile_comm::{Buffer, Communicator};
use campanile_kernels::Isa;
use campanile_model::Network;
use campanile_spec::{Batch, NetworkSpec, Plan, config::Run};
use campanile_train::{
    TrainError,
    clock::{PARTS, Part, process_cpu_seconds},
    loader::LocalBatch,
    rank::{RankState, Seat},
    ranks::Ranks,
    step::{Carry, Turn, step},
};
use serde_json::{Value, json};

use crate::{
    args::{BenchArch, BenchArguments, BenchConfig, BenchPrecision, BenchWhat, TrainBenchArguments},
    command::write_report,
    format,
    place::Place,
};

/// Steps before anything is measured: caches, pages and branch predictors settle.
const WARM_UP_STEPS: u64 = 3;

/// What a round did.
#[derive(Debug, Clone, Copy, Default)]
struct Round {
    samples: u64,
    wall_seconds: f64,
    cpu_seconds: f64,
    parts: [f64; PARTS.len()],
    ids: u64,
    unique_rows: u64,
}

/// Runs the command.
pub fn run(arguments: &BenchArguments, place: &Place) -> Result<()> {
    match &arguments.what {
        BenchWhat::Train(arguments) => {
            let threads = place.processes().unwrap_or(arguments.threads);
            run_train(&TrainBenchArguments { threads, ..arguments.clone() }, place)
        }
        #[cfg(feature = "serve")]
        BenchWhat::Serve(arguments) => serve::run(arguments),
        BenchWhat::Score(arguments) => score::run(arguments),
        BenchWhat::Topology(arguments) => topology::run(arguments, place),
        BenchWhat::Planner(arguments) => planner::run(arguments),
    }
}

fn run_train(arguments: &TrainBenchArguments, place: &Place) -> Result<()> {
    if arguments.serve_rounds {
        return serve_rounds(arguments, place);
    }
    let mut reports = Vec::new();
    for one in if arguments.all { standard(arguments) } else { vec![arguments.clone()] } {
        reports.extend(measure(&one, place)?);
    }
    if !place.is_first() {
        return Ok(());
    }
    write_report(arguments.report.as_deref(), &json!({ "command": "bench", "runs": reports }))
}

/// All standard configurations.
fn standard(arguments: &TrainBenchArguments) -> Vec<TrainBenchArguments> {
    let mut all = Vec::new();
    for config in [BenchConfig::Kaggle, BenchConfig::Terabyte] {
        for (arch, ids) in [(BenchArch::Dot, 1), (BenchArch::Dot, 20), (BenchArch::Dcn, 1)] {
            for batch in [128, 2048, 8192] {
                for precision in [BenchPrecision::F32, BenchPrecision::Bf16] {
                    all.push(TrainBenchArguments {
                        config,
                        arch,
                        ids,
                        batch,
                        precision,
                        ..arguments.clone()
                    });
                }
            }
        }
    }
    all
}

/// Measures one configuration; only the first process has the figures.
fn measure(arguments: &TrainBenchArguments, place: &Place) -> Result<Option<Value>> {
    let run = checked_run(arguments)?;
    if place.is_first() {
        println!(
            "{:?} {:?}, {} ids a bag, batch {} in {} grains, {:?}, {} {}, {:?}",
            arguments.config,
            arguments.arch,
            arguments.ids,
            arguments.batch,
            run.grain_count,
            arguments.precision,
            arguments.threads,
            place.rank_noun(arguments.threads),
            Isa::detect().level()
        );
    }
    let ranks = place.ranks_or_threads(arguments.threads);
    let mut rounds = Vec::new();
    let mut left = Some(arguments.seconds);
    let batches = workload::batches(arguments);
    train_rounds(ranks, &run, &batches, &mut || left.take(), &mut |round| rounds.push(round))?;
    if !place.is_first() {
        return Ok(None);
    }
    let input = input::seconds_per_sample(&batches, arguments.ids)?;
    let report = Measured::new(arguments, &run, rounds.first().copied().unwrap_or_default(), input)?;
    report.print();
    Ok(Some(report.json(arguments, &run)))
}

/// A round beside the machine's limits, measured right after it.
struct Measured {
    round: Round,
    dim: usize,
    samples_per_second: f64,
    /// GFLOP/s of one thread inside the network.
    network: f64,
    /// GFLOP/s of one core that does nothing but multiply and add.
    peak: f64,
    /// The share of the network's time that the interaction takes when it is measured alone.
    interaction: f64,
    /// Nanoseconds in which one thread reads a packed sample of this shape, measured alone.
    input: f64,
    /// Nanoseconds of one thread per id looked up and per row updated.
    lookup: f64,
    update: f64,
    /// Nanoseconds to read, and to read and write, a row at a random place.
    row_read: f64,
    row_write: f64,
}

impl Measured {
    fn new(arguments: &TrainBenchArguments, run: &Run, round: Round, input: f64) -> Result<Measured> {
        let threads = arguments.threads as f64;
        let flops = 3 * Network::new(&run.model, Isa::detect())?.forward_flops_per_sample();
        let seconds = |part: Part| round.parts[part as usize];
        let dim = run.model.tables[0].dim;
        let (row_read, row_write) = limits::row_nanoseconds(dim);
        let vectors = run.model.features.len() + 1;
        let interaction = match &run.model.network {
            NetworkSpec::Dcn { cross_layers, .. } => limits::cross_seconds(vectors * dim, *cross_layers),
            _ => limits::dot_seconds(vectors, dim),
        };
        Ok(Measured {
            dim,
            samples_per_second: round.samples as f64 / round.wall_seconds,
            network: flops as f64 * round.samples as f64 / threads / seconds(Part::Network) / 1e9,
            interaction: interaction * round.samples as f64 / threads / seconds(Part::Network),
            peak: limits::multiply_add_peak(arguments.precision),
            input: input * 1e9,
            lookup: seconds(Part::Lookup) * 1e9 * threads / round.ids.max(1) as f64,
            update: seconds(Part::Update) * 1e9 * threads / round.unique_rows.max(1) as f64,
            row_read,
            row_write,
            round,
        })
    }

    fn print(&self) {
        println!("  {} samples/s", format::rate(self.samples_per_second));
        let total: f64 = self.round.parts.iter().sum();
        for (part, name) in PARTS {
            let seconds = self.round.parts[part as usize];
            if seconds > 0.0 {
                println!("  {name:<8} {:5.1} %", 100.0 * seconds / total);
            }
        }
        let (share, interaction) = (100.0 * self.network / self.peak, 100.0 * self.interaction);
        println!(
            "  the network runs at {:.0} GFLOP/s a thread, {share:.0} % of the {:.0} of a loop of multiply-adds; the \
             interaction, measured alone, is {interaction:.0} % of its time, most of the rest is matrix products",
            self.network, self.peak
        );
        println!(
            "  a sample of this shape is read from packed data in {:.0} ns, measured alone: {:.1} % of a core while \
             this trains",
            self.input,
            100.0 * self.input_share()
        );
        println!(
            "  a lookup takes {:.0} ns an id, an update {:.0} ns a row; a random row of {} floats is read in {:.0} ns, \
             read and written in {:.0} ns",
            self.lookup, self.update, self.dim, self.row_read, self.row_write
        );
    }

    /// The share of one core that reading takes at the measured speed.
    fn input_share(&self) -> f64 {
        self.input / 1e9 * self.samples_per_second
    }

    fn json(&self, arguments: &TrainBenchArguments, run: &Run) -> Value {
        let part =
            |(part, name): &(Part, &str)| ((*name).to_owned(), json!(self.round.parts[*part as usize]));
        json!({
            "config": format!("{:?}", arguments.config).to_lowercase(),
            "arch": format!("{:?}", arguments.arch).to_lowercase(),
            "ids": arguments.ids,
            "batch": arguments.batch,
            "grains": run.grain_count,
            "precision": format!("{:?}", arguments.precision).to_lowercase(),
            "threads": arguments.threads,
            "level": format!("{:?}", Isa::detect().level()),
            "samples_per_second": self.samples_per_second,
            "cpu_samples_per_second": self.round.samples as f64 / self.round.cpu_seconds,
            "parts_seconds": PARTS.iter().map(part).collect::<serde_json::Map<_, _>>(),
            "network_gflops_per_thread": self.network,
            "peak_gflops": self.peak,
            "interaction_share_of_network": self.interaction,
            "input_ns_per_sample": self.input,
            "input_share_of_core": self.input_share(),
            "lookup_ns_per_id": self.lookup,
            "update_ns_per_row": self.update,
            "row_read_ns": self.row_read,
            "row_read_write_ns": self.row_write,
        })
    }
}

/// The protocol of bench/peers: `ready`, then a line of JSON for each `go SECONDS`.
fn serve_rounds(arguments: &TrainBenchArguments, place: &Place) -> Result<()> {
    let run = checked_run(arguments)?;
    let batches = workload::batches(arguments);
    let share = workload::distinct_share(&batches);
    let mut ready = false;
    train_rounds(
        place.ranks_or_threads(arguments.threads),
        &run,
        &batches,
        &mut || {
            if !ready {
                println!(
                    "ready {}",
                    json!({ "distinct_share": share, "isa": format!("{:?}", Isa::detect().level()) })
                );
                ready = true;
            }
            loop {
                let mut line = String::new();
                if std::io::stdin().read_line(&mut line).ok()? == 0 {
                    return None;
                }
                match line.trim().strip_prefix("go ").and_then(|seconds| seconds.trim().parse().ok()) {
                    Some(seconds) => return Some(seconds),
                    None => eprintln!("expected `go SECONDS`, got `{}`", line.trim()),
                }
            }
        },
        &mut |round| {
            let (samples, wall, cpu) = (round.samples, round.wall_seconds, round.cpu_seconds);
            println!("{}", json!({ "samples": samples, "wall_s": wall, "cpu_s": cpu }));
        },
    )
}

fn checked_run(arguments: &TrainBenchArguments) -> Result<Run> {
    let run = workload::run(arguments);
    if arguments.batch == 0 || arguments.ids == 0 || arguments.threads == 0 {
        bail!("--batch, --ids and --threads must be at least 1");
    }
    if !run.grain_count.is_power_of_two() || !run.grain_count.is_multiple_of(arguments.threads) {
        bail!(
            "{} threads do not divide {} grains; both must be powers of two, and threads at most the grains",
            arguments.threads,
            run.grain_count
        );
    }
    Ok(run)
}

/// Trains in rounds: `next` says how many seconds the next one is to take about, or that there is none.
fn train_rounds(
    ranks: Ranks<'_>,
    run: &Run,
    batches: &[Batch],
    next: &mut (dyn FnMut() -> Option<f64> + Send),
    done: &mut (dyn FnMut(Round) + Send),
) -> Result<()> {
    let control = Mutex::new((next, done));
    let are_processes = matches!(ranks, Ranks::One { .. });
    ranks.run(|comm, _| -> Result<(), TrainError> {
        let plan = Plan::balanced(&run.model, comm.rank_count());
        let seat = Seat { plan: &plan, rank: comm.rank(), chunks: 1, isa: Isa::detect() };
        let mut state = RankState::new(run, seat)?;
        let local: Vec<LocalBatch> = batches
            .iter()
            .map(|batch| {
                let samples =
                    run.grains().samples_of_rank(batch.sample_count, comm.rank(), comm.rank_count());
                LocalBatch {
                    first: samples.start,
                    global_count: batch.sample_count,
                    samples: batch.slice(samples),
                    mark: None,
                }
            })
            .collect();
        let mut steps_done = 0;
        let mut step_seconds = timed_steps(comm, &mut state, &local, &mut steps_done, WARM_UP_STEPS)?
            .wall_seconds
            / WARM_UP_STEPS as f64;
        loop {
            let mut asked = Buffer::new();
            if comm.rank() == 0 {
                let mut control = control.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                asked = Buffer::of(&[
                    (control.0)().map_or(0, |seconds| (seconds / step_seconds).ceil().max(1.0) as u64)
                ]);
            }
            let steps = comm.all_gather(asked)?[0].values::<u64>()[0];
            if steps == 0 {
                return Ok(());
            }
            let mut round = timed_steps(comm, &mut state, &local, &mut steps_done, steps)?;
            if are_processes {
                let all = comm.all_gather(Buffer::of(&[round.cpu_seconds]))?;
                round.cpu_seconds = all.iter().map(|rank| rank.values::<f64>()[0]).sum();
            }
            step_seconds = round.wall_seconds / steps as f64;
            if comm.rank() == 0 {
                (control.lock().unwrap_or_else(std::sync::PoisonError::into_inner).1)(round);
            }
        }
    })?;
    Ok(())
}

fn timed_steps(
    comm: &dyn Communicator,
    state: &mut RankState,
    batches: &[LocalBatch],
    steps_done: &mut u64,
    steps: u64,
) -> Result<Round, TrainError> {
    comm.agree(Ok(()))?;
    state.timings.take();
    let (start, cpu) = (Instant::now(), process_cpu_seconds());
    let (mut round, mut carry) = (Round::default(), Carry::default());
    for _ in 0..steps {
        let batch = &batches[*steps_done as usize % batches.len()];
        let report = step(comm, state, &mut carry, Turn { number: *steps_done, batch, next: None })?;
        round.samples += batch.global_count as u64;
        round.ids += report.ids * comm.rank_count() as u64;
        round.unique_rows += report.unique_rows * comm.rank_count() as u64;
        *steps_done += 1;
    }
    comm.agree(Ok(()))?;
    round.wall_seconds = start.elapsed().as_secs_f64();
    // 0 where the system does not tell.
    round.cpu_seconds = process_cpu_seconds().zip(cpu).map_or(0.0, |(now, then)| now - then);
    round.parts = state.timings.take();
    Ok(round)
}
