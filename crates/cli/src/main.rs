//! One binary from raw log to serving: flags, terminal, progress, reports.
//!
//! This room is the only reader of flags and environment. Each command is a file; `main` only chooses, prints
//! what went wrong, and turns it into the exit code: 0 fine, 1 failed, 2 misused.

mod args;
mod command;
mod format;
mod job_file;
mod progress;
mod scores_table;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Arguments, Command};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.command {
        Command::Train(arguments) => command::train::run(&arguments),
        Command::Eval(arguments) => command::eval::run(&arguments),
        Command::Prep(arguments) => command::prep::run(&arguments),
        #[cfg(feature = "serve")]
        Command::Serve(arguments) => command::serve::run(&arguments),
        Command::Verify(arguments) => command::verify::run(&arguments),
        Command::Publish(arguments) => command::publish::run(&arguments),
        Command::Rollback(arguments) => command::rollback::run(&arguments),
        Command::Export(arguments) => command::export::run(&arguments),
        Command::Inspect(arguments) => command::inspect::run(&arguments),
        Command::Bench(arguments) => command::bench::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
