//! A teacher's word on every impression of an event log.

use anyhow::{Context, Result, bail};
use campanile_live::augment::{AugmentOptions, Augmenter};
use campanile_stream::{
    stage::Wiring,
    topics::{IMPRESSIONS, WORDS},
};
use campanile_tables::Registry;
use serde_json::json;

use crate::{
    args::{
        learning::AugmentArguments,
        live::{LogArguments, Time},
    },
    command::write_report,
    format,
    stage::{self, Stretch, Told, place},
};

/// The longest window, and how long ids are remembered, unless the user says otherwise.
const WINDOW: Time = Time { ms: 24 * 3_600_000 };
const REMEMBER: Time = Time { ms: 3_600_000 };
/// Ids that are remembered at most, each about 50 bytes of memory.
pub const REMEMBERED_MAX: usize = 20_000_000;

/// Refuses what only makes sense for an event log.
pub fn refuse(arguments: &AugmentArguments) -> Result<()> {
    let stream = &arguments.stream;
    let given = [
        ("--window", stream.window.is_some()),
        ("--remember", stream.remember.is_some()),
        ("--other-version", stream.other_version),
        ("--stop-at-end", stream.ending.stop_at_end),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => bail!("{flag} is for an event log, and {} is a job file", arguments.source),
        None => Ok(()),
    }
}

/// Runs the command on an event log.
pub fn run(arguments: &AugmentArguments) -> Result<()> {
    let log = LogArguments { log: arguments.source.clone(), entry: arguments.stream.entry.clone() };
    let model = arguments.model.clone().with_context(|| {
        format!(
            "on an event log the teacher comes from a registry: say --model NAME, one of {}",
            arguments.teacher.display()
        )
    })?;
    let options = AugmentOptions {
        registry: Registry::new(&arguments.teacher),
        model,
        window_ms: arguments.stream.window.unwrap_or(WINDOW).ms,
        remember_ms: arguments.stream.remember.unwrap_or(REMEMBER).ms,
        remembered_max: REMEMBERED_MAX,
        may_change_version: arguments.stream.other_version,
        embedding_floats: usize::from(arguments.embedding.unwrap_or(0)),
    };
    // A name that cannot be is told at once, not when the first impression comes.
    options.registry.current(&options.model)?;
    let stop = stage::stop(&arguments.stream.ending)?;
    let stretch = Stretch { log: &log, wiring: wiring(), keep: None, stop: &stop, quiet: arguments.quiet };
    let told = Told { ready: Augmenter::ready, now_ms: |_| 0, line };
    let stage = stage::run(&stretch, |log| Ok(Augmenter::new(log, options.clone())), &told)?;
    let counts = stage.counts();
    if !arguments.quiet {
        println!("{}", line(&stage));
    }
    let report = json!({
        "command": "augment",
        "model": options.model,
        "version": stage.version(),
        "versions": counts.versions,
        "words": counts.words,
        "repeated": counts.repeated,
        "too_old": counts.too_old,
        "unreadable": counts.unreadable,
    });
    write_report(arguments.report.as_deref(), &report)
}

/// What the augmentation reads and writes.
pub fn wiring() -> Wiring {
    Wiring {
        name: "augment".to_owned(),
        inputs: vec![place(IMPRESSIONS)],
        outputs: vec![place(WORDS)],
        limit: stage::TURN,
        save_every: stage::SAVE_EVERY,
    }
}

fn line(stage: &Augmenter) -> String {
    let counts = stage.counts();
    let version = stage.version().map_or_else(|| "none".to_owned(), |version| version.to_string());
    let mut line = format!(
        "{} words, version {version}; {} repeated, {} passed over",
        format::count(counts.words),
        format::count(counts.repeated),
        format::count(counts.too_old)
    );
    if counts.unreadable > 0 {
        line += &format!("; {} that the teacher cannot read", format::count(counts.unreadable));
    }
    line
}
