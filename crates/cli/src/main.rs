//! One binary from raw log to serving: flags, terminal, progress, reports.
//!
//! This room is the only reader of flags and environment. Each command is a file; `main` only chooses, prints
//! what went wrong, and turns it into the exit code: 0 fine, 1 failed, 2 misused.

mod args;
#[cfg(feature = "mpi")]
mod awake;
mod claim;
mod command;
mod complaint;
mod format;
#[cfg(feature = "mpi")]
mod heartbeat;
mod interrupt;
mod job_file;
mod measure;
mod place;
mod pricing;
mod progress;
mod publisher;
mod scores_table;
#[cfg(feature = "live")]
mod stage;

use std::{
    panic,
    process::{self, ExitCode},
};

use clap::Parser;

use crate::{
    args::{Arguments, Command},
    place::{Place, told},
};

/// The exit code of a program that a signal of a closed pipe ends, as shells tell it.
const NOBODY_READS: i32 = 128 + 13;

fn main() -> ExitCode {
    leave_quietly_when_nobody_reads();
    let arguments = Arguments::parse();
    match arguments.command {
        Command::Train(arguments) => among_ranks(|place| command::train::run(&arguments, place)),
        Command::Eval(arguments) => among_ranks(|place| command::eval::run(&arguments, place)),
        Command::Plan(arguments) => among_ranks(|place| command::plan::run(&arguments, place)),
        Command::Bench(arguments) => among_ranks(|place| command::bench::run(&arguments, place)),
        Command::Prep(arguments) => alone("prep", || command::prep::run(&arguments)),
        Command::Augment(arguments) => alone("augment", || command::augment::run(&arguments)),
        Command::Experiment(arguments) => alone("experiment", || command::experiment::run(&arguments)),
        #[cfg(feature = "serve")]
        Command::Serve(arguments) => alone("serve", || command::serve::run(&arguments)),
        Command::Towers(arguments) => alone("towers", || command::towers::run(&arguments)),
        Command::Simulate(arguments) => alone("simulate", || command::simulate::run(&arguments)),
        Command::Verify(arguments) => alone("verify", || command::verify::run(&arguments)),
        Command::Publish(arguments) => alone("publish", || command::publish::run(&arguments)),
        Command::Rollback(arguments) => alone("rollback", || command::rollback::run(&arguments)),
        Command::Export(arguments) => alone("export", || command::export::run(&arguments)),
        #[cfg(feature = "live")]
        Command::Live(arguments) => alone("live", || command::live::run(&arguments)),
        #[cfg(feature = "live")]
        Command::Join(arguments) => alone("join", || command::join::run(&arguments)),
        #[cfg(feature = "live")]
        Command::Feedback(arguments) => alone("feedback", || command::feedback::run(&arguments)),
        #[cfg(all(feature = "live", feature = "parquet"))]
        Command::ExportLog(arguments) => alone("export-log", || command::export_log::run(&arguments)),
        Command::Inspect(arguments) => alone("inspect", || command::inspect::run(&arguments)),
        Command::Launch(arguments) => alone("launch", || command::launch(&arguments)),
    }
}

/// A reader that has seen enough (`campanile inspect ... | head`) is no fault of anybody's. The signal itself stays
/// switched off, because a server and MPI must see a lost connection as an error.
fn leave_quietly_when_nobody_reads() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        let said = panicked.payload_as_str().unwrap_or_default();
        if said.starts_with("failed printing to stdout") && said.contains("Broken pipe") {
            process::exit(NOBODY_READS);
        }
        usual(panicked);
    }));
}

/// A command that one process or many can run.
fn among_ranks(command: impl FnOnce(&Place) -> anyhow::Result<()>) -> ExitCode {
    match Place::find() {
        Ok(place) => place.run(command),
        Err(error) => told(Err(error)),
    }
}

/// A command that is no rank of a job.
fn alone(name: &str, command: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    told(place::alone(name).and_then(|()| command()))
}
