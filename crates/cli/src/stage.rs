//! Running a stage of an event log: until it is told to stop, through brokers that go away and come back.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use campanile_live::{End, Stop, on_signal};
use campanile_stream::{
    log::{Limit, Log, LogError, Records, TopicOptions, address},
    stage::{Place, Runner, Stage, StageError, Wiring},
    topics,
};

use crate::args::live::{EndArguments, EntryArguments, LogArguments};

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

/// Opens a log and makes the topics of the loop in it.
pub fn open_log(address: &str, entry: &EntryArguments) -> Result<Arc<dyn Log>> {
    open_log_with(address, entry, TopicOptions::default())
}

/// The same, where topics that are not there yet are to be kept in a certain way.
fn open_log_with(address: &str, entry: &EntryArguments, options: TopicOptions) -> Result<Arc<dyn Log>> {
    let log = address::open(address, &way_in(entry))?;
    topics::create(&*log, options)?;
    Ok(log)
}

/// Opens a log that must be there, and makes nothing in it.
#[cfg(feature = "parquet")]
pub fn open_log_to_read(address: &str, entry: &EntryArguments) -> Result<Arc<dyn Log>> {
    if let Some(path) = address.strip_prefix("dir:").filter(|path| !path.is_empty()) {
        let path = std::path::Path::new(path);
        anyhow::ensure!(path.join("topics").is_dir(), "there is no event log in {}", path.display());
    }
    Ok(address::open(address, &way_in(entry))?)
}

fn way_in(entry: &EntryArguments) -> address::Entry {
    address::Entry {
        credentials: entry.nats_credentials.clone(),
        root_certificates: entry.nats_ca.clone(),
        replicas: entry.nats_replicas,
    }
}

/// A wish to stop, which an interrupt makes.
pub fn stop(ending: &EndArguments) -> Result<Arc<Stop>> {
    let stop = Arc::new(Stop::new(if ending.stop_at_end { End::AtEnd } else { End::Never }));
    on_signal(&stop).context("cannot listen for interrupts")?;
    Ok(stop)
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
    pub keep: Option<TopicOptions>,
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

/// Runs a stage, made anew whenever the log went away, until it is to end; `ready` says what it waits for before a
/// turn, and `line` how it is doing. Returns the stage as it is then.
pub fn run<S: Stage>(
    stretch: &Stretch<'_>,
    make: impl Fn(Arc<dyn Log>) -> Result<S>,
    ready: impl Fn(&S) -> Result<(), String>,
    line: impl Fn(&S) -> String,
) -> Result<S> {
    // A log that was never there is a mistake; one that was there comes back.
    let open = || open_log_with(&stretch.log.log, &stretch.log.entry, stretch.keep.unwrap_or_default());
    let mut log = Some(open()?);
    loop {
        let opened = match log.take() {
            Some(log) => Ok(log),
            None => open(),
        };
        match opened.and_then(|log| run_once(stretch, log, &make, &ready, &line)) {
            Err(error) if is_brokers(&error) && stretch.stop.end() < End::Now => {
                if !stretch.quiet {
                    eprintln!("{error:#}; trying again");
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
    ready: &impl Fn(&S) -> Result<(), String>,
    line: &impl Fn(&S) -> String,
) -> Result<S> {
    let stage = make(Arc::clone(&log))?;
    let mut runner = Runner::open(Arc::clone(&log), stretch.wiring.clone(), stage)?;
    let mut last: Option<Instant> = None;
    let mut kept: Option<Instant> = None;
    let mut told: Option<String> = None;
    loop {
        let waits_for = ready(runner.stage()).err();
        if waits_for != told && !stretch.quiet {
            waits_for.iter().for_each(|words| eprintln!("waiting: {words}"));
            told.clone_from(&waits_for);
        }
        let moved = waits_for.is_none() && stretch.stop.end() < End::Now && runner.turn()?;
        if !stretch.quiet && last.is_none_or(|last| last.elapsed() >= LINE_PAUSE) && moved {
            eprintln!("{}", line(runner.stage()));
            last = Some(Instant::now());
        }
        if stretch.keep.is_some() && moved && kept.is_none_or(|kept| kept.elapsed() >= KEEP_PAUSE) {
            retain(&*log, &stretch.wiring.inputs[0])?;
            kept = Some(Instant::now());
        }
        let end = if moved { stretch.stop.end() } else { stretch.stop.wait(PAUSE) };
        if end == End::Now || end == End::AtEnd && !moved {
            runner.save()?;
            if stretch.keep.is_some() {
                retain(&*log, &stretch.wiring.inputs[0])?;
            }
            return Ok(runner.into_stage());
        }
    }
}

/// Removes what is no longer kept, as of the newest record of a place.
fn retain(log: &dyn Log, place: &Place) -> Result<()> {
    let mut newest = Records::default();
    log.last(&place.topic, place.partition, &mut newest)?;
    if let Some(newest) = newest.last() {
        log.retain(newest.time_ms)?;
    }
    Ok(())
}
