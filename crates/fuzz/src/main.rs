//! Fuzzes readers for as long as one likes.
//!
//! ```text
//!   cargo run --release --package campanile-fuzz -- manifest --seconds 3600
//! ```

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant, SystemTime},
};

use campanile_fuzz::{Campaign, readers};

const USAGE: &str = "\
Usage: campanile-fuzz <READER|all> [--seconds N] [--seed S] [--case N [--keep FILE]]

  --seconds N   how long for each reader (60)
  --seed S      what the cases follow from; without it another one every time, which is printed
  --case N      that one case and no other
  --keep FILE   writes the input of the case to a file
";

/// Cases between two looks at the clock.
const AT_ONCE: u64 = 64;

struct Arguments {
    reader: String,
    seconds: u64,
    seed: u64,
    case: Option<u64>,
    keep: Option<PathBuf>,
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        let names: Vec<&str> = readers::ALL.iter().map(|(name, _)| *name).collect();
        eprint!("{USAGE}\nReaders: {}\n", names.join(", "));
        return ExitCode::from(2);
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> Option<Arguments> {
    let mut words = std::env::args().skip(1);
    let reader = words.next()?;
    let since = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
    let mut arguments = Arguments { reader, seconds: 60, seed: since >> 10, case: None, keep: None };
    while let Some(word) = words.next() {
        let value = words.next()?;
        match word.as_str() {
            "--seconds" => arguments.seconds = value.parse().ok()?,
            "--seed" => arguments.seed = value.parse().ok()?,
            "--case" => arguments.case = Some(value.parse().ok()?),
            "--keep" => arguments.keep = Some(value.into()),
            _ => return None,
        }
    }
    let known = |name: &str| readers::ALL.iter().any(|(own, _)| *own == name);
    (arguments.reader == "all" || known(&arguments.reader)).then_some(arguments)
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let wanted = |name: &str| arguments.reader == "all" || arguments.reader == name;
    for (name, open) in readers::ALL.iter().filter(|(name, _)| wanted(name)) {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut reader = open(folder.path());
        println!("{name} --seed {}", arguments.seed);
        let words = |finding: campanile_fuzz::Finding| finding.to_string();
        let mut campaign = Campaign::begin(&mut *reader, arguments.seed).map_err(words)?;
        if let Some(case) = arguments.case {
            if let Some(path) = &arguments.keep {
                std::fs::write(path, campaign.input(case).1).map_err(|error| error.to_string())?;
            }
            campaign.run(case..case + 1).map_err(words)?;
            println!("  case {case} breaks nothing");
            continue;
        }
        let (start, mut next) = (Instant::now(), 1);
        while start.elapsed() < Duration::from_secs(arguments.seconds) {
            campaign.run(next..next + AT_ONCE).map_err(words)?;
            next += AT_ONCE;
        }
        let tally = campaign.tally();
        println!("  {} cases, {} taken, at most {} bytes of memory", tally.cases, tally.taken, tally.memory);
    }
    Ok(())
}
