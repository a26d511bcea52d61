//! Running a stage of an event log: until it is told to stop, through brokers that go away and come back.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use campanile_live::{End, Stop, on_signal};
use campanile_stream::{
    log::{Limit, Log, LogError, TopicOptions, address},
    stage::{Place, Runner, Stage, StageError, Wiring},
    topics,
};

use crate::{
    args::live::{EndArguments, EntryArguments, LogArguments},
    complaint,
};

/// How long a stage waits when there is nothing to do.
pub const PAUSE: Duration = Duration::from_millis(20);
/// How long it waits for a broker before it tries again.
pub const BROKER_PAUSE: Duration = Duration::from_secs(1);
/// Between two lines of progress.
pub const LINE_PAUSE: Duration = Duration::from_secs(10);
/// Between two looks at what is no longer kept.
const KEEP_PAUSE: Duration = Duration::from_secs(60);
/// What one turn reads of each input at most.
pub const TURN: Limit = Limit { records: 4096, bytes: 4 << 20 };
/// Turns between two saved states.
pub const SAVE_EVERY: u64 = 50;

/// Where the password of a NATS server may stand, beside a file.
const PASSWORD_VARIABLE: &str = "CAMPANILE_NATS_PASSWORD";

/// How topics that are made now are kept.
#[derive(Debug, Clone, Copy)]
pub struct Keep {
    /// How records are.
    pub options: TopicOptions,
    /// How much later than their time examples are written at most.
    pub joined_after_ms: u64,
}

/// Opens a log and makes the topics of the loop in it.
pub fn open_log(address: &str, entry: &EntryArguments) -> Result<Arc<dyn Log>> {
    open_log_with(address, entry, Keep { options: TopicOptions::default(), joined_after_ms: 0 })
}

/// The same, where topics that are not there yet are to be kept in a certain way.
fn open_log_with(address: &str, entry: &EntryArguments, keep: Keep) -> Result<Arc<dyn Log>> {
    let log = address::open(address, &way_in(address, entry)?)?;
    topics::create_kept(&*log, keep.options, keep.joined_after_ms)?;
    Ok(log)
}

/// Opens a log that must be there, and makes nothing in it.
#[cfg(feature = "parquet")]
pub fn open_log_to_read(address: &str, entry: &EntryArguments) -> Result<Arc<dyn Log>> {
    if let Some(path) = address.strip_prefix("dir:").filter(|path| !path.is_empty()) {
        let path = std::path::Path::new(path);
        anyhow::ensure!(path.join("topics").is_dir(), "there is no event log in {}", path.display());
    }
    Ok(address::open(address, &way_in(address, entry)?)?)
}

fn way_in(address: &str, entry: &EntryArguments) -> Result<address::Entry> {
    if address::shown(address) != address {
        eprintln!(
            "the password in the log's address is seen by everybody who sees this machine's processes; leave it out, and say --nats-password-file or {PASSWORD_VARIABLE}"
        );
    }
    let password = match &entry.nats_password_file {
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the password in {}", path.display()))?;
            let line = text.lines().next().unwrap_or_default().to_owned();
            anyhow::ensure!(!line.is_empty(), "the first line of {} is to be the password", path.display());
            Some(line)
        }
        None => std::env::var(PASSWORD_VARIABLE).ok().filter(|password| !password.is_empty()),
    };
    Ok(address::Entry {
        credentials: entry.nats_credentials.clone(),
        password,
        root_certificates: entry.nats_ca.clone(),
        replicas: entry.nats_replicas,
    })
}

/// A wish to stop, which an interrupt makes.
pub fn stop(ending: &EndArguments) -> Result<Arc<Stop>> {
    let stop = stop_without_signals(ending);
    on_signal(&stop).context("cannot listen for interrupts")?;
    Ok(stop)
}

/// The same, which somebody else makes known.
pub fn stop_without_signals(ending: &EndArguments) -> Arc<Stop> {
    Arc::new(Stop::new(if ending.stop_at_end { End::AtEnd } else { End::Never }))
}

/// Partition 0 of a topic.
pub fn place(topic: &str) -> Place {
    Place { topic: topic.to_owned(), partition: 0 }
}

/// How a stage is run here.
pub struct Stretch<'a> {
    /// The log.
    pub log: &'a LogArguments,
    /// The stage's name, inputs and outputs.
    pub wiring: Wiring,
    /// How topics are kept, for the stage that sees to it.
    pub keep: Option<Keep>,
    /// When to end.
    pub stop: &'a Stop,
    /// Whether it says how it is doing.
    pub quiet: bool,
}

/// Whether an error is a broker's, and goes away by itself.
fn is_brokers(error: &anyhow::Error) -> bool {
    let of_stage = matches!(error.downcast_ref(), Some(StageError::Log(LogError::Remote { .. })));
    of_stage || matches!(error.downcast_ref(), Some(LogError::Remote { .. }))
}

/// What a command says of its stage.
pub struct Told<S> {
    /// What it waits for before a turn.
    pub ready: fn(&S) -> Result<(), String>,
    /// How far time has come for it, by which records are kept or not.
    pub now_ms: fn(&S) -> u64,
    /// How it is doing.
    pub line: fn(&S) -> String,
}

/// Runs a stage, made anew whenever the log went away, until it is to end. Returns the stage as it is then.
pub fn run<S: Stage>(
    stretch: &Stretch<'_>,
    make: impl Fn(Arc<dyn Log>) -> Result<S>,
    told: &Told<S>,
) -> Result<S> {
    // A log that was never there is a mistake; one that was there comes back.
    let keep = stretch.keep.unwrap_or(Keep { options: TopicOptions::default(), joined_after_ms: 0 });
    let open = || open_log_with(&stretch.log.log, &stretch.log.entry, keep);
    let mut log = Some(open()?);
    loop {
        let opened = match log.take() {
            Some(log) => Ok(log),
            None => open(),
        };
        match opened.and_then(|log| run_once(stretch, log, &make, told)) {
            Err(error) if is_brokers(&error) && stretch.stop.end() < End::Now => {
                if !stretch.quiet {
                    eprintln!("{}; trying again", complaint::words(&error));
                }
                stretch.stop.wait(BROKER_PAUSE);
            }
            ended => return ended,
        }
    }
}

fn run_once<S: Stage>(
    stretch: &Stretch<'_>,
    log: Arc<dyn Log>,
    make: &impl Fn(Arc<dyn Log>) -> Result<S>,
    told: &Told<S>,
) -> Result<S> {
    let stage = make(Arc::clone(&log))?;
    let mut runner = Runner::open(Arc::clone(&log), stretch.wiring.clone(), stage)?;
    let mut last: Option<Instant> = None;
    let mut kept: Option<Instant> = None;
    let mut waited_for: Option<String> = None;
    loop {
        let waits_for = (told.ready)(runner.stage()).err();
        if waits_for != waited_for && !stretch.quiet {
            waits_for.iter().for_each(|words| eprintln!("waiting: {words}"));
            waited_for.clone_from(&waits_for);
        }
        let moved = waits_for.is_none() && stretch.stop.end() < End::Now && runner.turn()?;
        if !stretch.quiet && last.is_none_or(|last| last.elapsed() >= LINE_PAUSE) && moved {
            eprintln!("{}", (told.line)(runner.stage()));
            last = Some(Instant::now());
        }
        // A turn that may run again must find what it read.
        let may_go = stretch.keep.is_some() && moved && runner.is_saved();
        if may_go && kept.is_none_or(|kept| kept.elapsed() >= KEEP_PAUSE) {
            log.retain((told.now_ms)(runner.stage()))?;
            kept = Some(Instant::now());
        }
        let end = if moved { stretch.stop.end() } else { stretch.stop.wait(PAUSE) };
        if end == End::Now || end == End::AtEnd && !moved {
            runner.save()?;
            if stretch.keep.is_some() {
                log.retain((told.now_ms)(runner.stage()))?;
            }
            return Ok(runner.into_stage());
        }
    }
}
