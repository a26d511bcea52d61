//! `campanile live`: the whole loop in one process.
//!
//! ```text
//!   traffic ─► impressions ─┬─► augment ─► words ─┐
//!      │                    └────────────────────►├─► join ─► examples ─► a trainer for each model ─► registry
//!      └─► feedback ──────────────────────────────┘                                  │
//!      ▲  students answer with what the registry has                                 │
//!      └─────────────────────────── held back while the slowest model is too far behind
//! ```
//!
//! Every stage is a thread; the log between them is a directory. The first thread looks around once a second, shows
//! what it sees, and ends the stages in the order of the stream.

mod stages;
mod trainers;

use std::{
    path::Path,
    sync::Arc,
    thread::ScopedJoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use campanile_live::{End, Stop, board::Board, file::LiveFile, on_signal, page};
use campanile_stream::{
    log::{DirectoryLog, Log, TopicOptions},
    records::Schema,
    topics,
};
use serde_json::Value;

use self::stages::Lookout;
use crate::{
    args::live::LiveArguments,
    claim::Claim,
    command::{forward_operations, join, write_report},
};

/// How often the first thread looks around.
const TICK: Duration = Duration::from_secs(1);

/// Looks between two times that the page's lines are saved.
const LOOKS_A_SAVE: u64 = 10;

/// The page's lines, in the loop's directory.
const LINES_FILE: &str = "page.json";

/// What every thread of a loop shares.
struct Loop {
    /// Two loops in one directory would write one log.
    _claim: Claim,
    file: LiveFile,
    log: Arc<dyn Log>,
    board: Arc<Board>,
    /// The tasks of the log.
    tasks: Schema,
    /// Ends traffic.
    stop: Arc<Stop>,
    /// Ends the joiner and the augmentation.
    stop_stages: Arc<Stop>,
    /// Ends the trainers.
    stop_trainers: Arc<Stop>,
    quiet: bool,
}

impl Loop {
    fn open(arguments: &LiveArguments) -> Result<Loop> {
        let file = read(arguments)?;
        let claim =
            Claim::of(&file.settings.directory, "name another `directory` in [live], or with --directory")?;
        let home = file.settings.directory.join("log");
        let log: Arc<dyn Log> = Arc::new(DirectoryLog::open(&home)?);
        topics::create(&*log, TopicOptions::default())?;
        let tasks = Schema::new(file.world.label_names());
        join::name_tasks(&*log, &tasks)?;
        let forward: Vec<u64> =
            file.members.iter().map(|member| forward_operations(&member.job)).collect::<Result<_>>()?;
        let board = Arc::new(Board::new(&file, &forward));
        let lines = file.settings.directory.join(LINES_FILE);
        if let Err(error) = board.restore(&lines) {
            eprintln!("{}: {error}; the page's lines begin anew", lines.display());
        }
        let stop = Arc::new(Stop::default());
        on_signal(&stop).context("cannot listen for interrupts")?;
        let (stop_stages, stop_trainers) = (Arc::default(), Arc::default());
        Ok(Loop {
            _claim: claim,
            file,
            log,
            board,
            tasks,
            stop,
            stop_stages,
            stop_trainers,
            quiet: arguments.quiet,
        })
    }

    /// Saves the page's lines. The loop goes on without them.
    fn save_lines(&self) {
        let path = self.file.settings.directory.join(LINES_FILE);
        if let Err(error) = self.board.save(&path) {
            eprintln!("{}: {error}; the page's lines are not saved", path.display());
        }
    }

    /// Everything ends as soon as it can.
    fn stop_all(&self) {
        [&self.stop, &self.stop_stages, &self.stop_trainers].iter().for_each(|stop| stop.ask(End::Now));
    }
}

/// Runs the command.
pub fn run(arguments: &LiveArguments) -> Result<()> {
    let live = Loop::open(arguments)?;
    let address = page::show(live.file.settings.page, Arc::clone(&live.board))
        .with_context(|| format!("cannot show the page at {}", live.file.settings.page))?;
    if !live.quiet {
        eprintln!(
            "the page is at http://{address}/; everything is in {}",
            live.file.settings.directory.display()
        );
    }
    let ended = conduct(&live, arguments.duration.map(|time| Duration::from_millis(time.ms)));
    live.board.set_state("ended");
    live.save_lines();
    let seen = live.board.to_json();
    if !live.quiet {
        print!("{}", summary(&seen));
    }
    let mut report = seen;
    report["command"] = "live".into();
    write_report(arguments.report.as_deref(), &report)?;
    ended
}

fn read(arguments: &LiveArguments) -> Result<LiveFile> {
    let path = &arguments.file;
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let text = with_flags(&text, arguments, path)?;
    LiveFile::parse(&text).with_context(|| format!("{}", path.display()))
}

/// The text with what the flags change, so that it is checked like the rest.
fn with_flags(text: &str, arguments: &LiveArguments, path: &Path) -> Result<String> {
    let flags = [
        arguments.directory.as_ref().map(|directory| ("directory", directory.display().to_string().into())),
        arguments.page.map(|page| ("page", page.to_string().into())),
        arguments.speed.map(|speed| ("speed", speed.into())),
    ];
    let flags: Vec<(&str, campanile_live::file::Value)> = flags.into_iter().flatten().collect();
    campanile_live::file::with_settings(text, flags).with_context(|| format!("{}", path.display()))
}

/// Starts all threads and ends them in the order of the stream.
fn conduct(live: &Loop, at_most: Option<Duration>) -> Result<()> {
    let mut lookout = Lookout::new(live)?;
    std::thread::scope(|scope| {
        let mut trainers: Vec<ScopedJoinHandle<'_, Result<()>>> = Vec::new();
        for place in 0..live.file.members.len() {
            trainers.push(scope.spawn(move || trainers::train(live, place)));
        }
        let mut stages = vec![scope.spawn(|| stages::join(live)), scope.spawn(|| stages::augment(live))];
        let mut traffic = vec![scope.spawn(|| stages::traffic(live))];
        let (mut outcome, mut looks) = (Ok(()), 0u64);
        let started = Instant::now();
        live.board.set_state("running");
        loop {
            for crew in [&mut traffic, &mut stages, &mut trainers] {
                outcome = outcome.and(reap(crew));
            }
            let is_over = at_most.is_some_and(|time| started.elapsed() >= time);
            if outcome.is_err() || is_over || live.stop.end() == End::Now {
                live.stop_all();
            }
            // The world has ended: what is under way is finished, stage by stage.
            if traffic.is_empty() {
                live.stop_stages.ask(End::AtEnd);
            }
            if traffic.is_empty() && stages.is_empty() {
                live.stop_trainers.ask(End::AtEnd);
            }
            outcome = outcome.and(lookout.look(live));
            looks += 1;
            if looks.is_multiple_of(LOOKS_A_SAVE) {
                live.save_lines();
            }
            if traffic.is_empty() && stages.is_empty() && trainers.is_empty() {
                return outcome;
            }
            if live.stop.end() == End::Now {
                live.board.set_state("ending");
                live.stop_trainers.wait(Duration::ZERO);
                std::thread::sleep(TICK / 20);
            } else {
                live.stop.wait(TICK);
            }
        }
    })
}

/// Takes in the threads that have ended; the first that failed tells why.
fn reap(crew: &mut Vec<ScopedJoinHandle<'_, Result<()>>>) -> Result<()> {
    let mut outcome = Ok(());
    let mut place = 0;
    while place < crew.len() {
        if crew[place].is_finished() {
            let ended = crew.remove(place).join();
            outcome = outcome
                .and(ended.unwrap_or_else(|_| Err(anyhow::anyhow!("a stage stopped on an internal error"))));
        } else {
            place += 1;
        }
    }
    outcome
}

/// The models at the end, as a table.
fn summary(seen: &Value) -> String {
    let mut lines = String::new();
    let value = |value: &Value| value.as_f64().map_or_else(|| "–".to_owned(), |value| format!("{value:.4}"));
    for model in seen["models"].as_array().into_iter().flatten() {
        let (name, examples) = (model["name"].as_str().unwrap_or_default(), &model["examples"]);
        for (task, scores) in seen["tasks"]
            .as_array()
            .into_iter()
            .flatten()
            .zip(model["running"].as_array().into_iter().flatten())
        {
            let task = task.as_str().unwrap_or_default();
            lines.push_str(&format!(
                "{name:<24} {task:<12} NE {}  calibration {}  {examples} examples\n",
                value(&scores["ne"]),
                value(&scores["calibration"])
            ));
        }
    }
    lines
}
