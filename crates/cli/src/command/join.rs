//! `campanile join`: impressions and what followed them become examples.

use anyhow::{Context, Result, bail};
use campanile_stream::{
    join::{JoinOptions, Joiner},
    log::{Log, TopicOptions},
    records::{Schema, Schemas, declare},
    stage::Wiring,
    topics::{CORRECTIONS, EXAMPLES, FEEDBACK, IMPRESSIONS, WORDS},
};
use serde_json::json;

use crate::{
    args::live::{JoinArguments, TaskWindow},
    command::write_report,
    format,
    stage::{self, Keep, Stretch, Told, place},
};

/// The most tasks: a label is a bit of 32.
const TASKS_MAX: usize = 32;

/// Runs the command.
pub fn run(arguments: &JoinArguments) -> Result<()> {
    let options = join_options(arguments)?;
    let names = Schema::new(arguments.tasks.iter().map(|task| task.name.as_str()));
    let stop = stage::stop(&arguments.ending)?;
    let keep = keep_options(arguments)?;
    let stretch = Stretch {
        log: &arguments.log,
        wiring: wiring(),
        keep: Some(Keep { options: keep, joined_after_ms: needed_ms(arguments) }),
        stop: &stop,
        quiet: arguments.quiet,
    };
    let make = |log: std::sync::Arc<dyn Log>| {
        check_keep(&*log, arguments, &keep)?;
        name_tasks(&*log, &names)?;
        Ok(Joiner::new(options.clone()))
    };
    let joiner = stage::run(&stretch, make, &Told { ready: |_| Ok(()), now_ms: Joiner::now_ms, line })?;
    let counts = joiner.counts();
    if !arguments.quiet {
        println!("{}", line(&joiner));
    }
    let report = json!({
        "command": "join",
        "tasks": names.names(),
        "impressions": counts.impressions,
        "repeated": counts.repeated,
        "feedback": counts.feedback,
        "orphans": counts.orphans,
        "waiting_feedback": joiner.early_count(),
        "examples": counts.examples,
        "with_word": counts.with_word,
        "words_dropped": counts.words_dropped,
        "corrections": counts.corrections,
        "set_aside": counts.set_aside,
        "waiting_ahead": joiner.ahead_count(),
        "lost_ahead": counts.lost_ahead,
        "forgotten": counts.forgotten,
        "open": joiner.open_count(),
        "time_ms": joiner.now_ms(),
    });
    write_report(arguments.report.as_deref(), &report)
}

/// What a joiner reads and writes.
pub fn wiring() -> Wiring {
    Wiring {
        name: "join".to_owned(),
        inputs: vec![place(IMPRESSIONS), place(WORDS), place(FEEDBACK)],
        outputs: vec![place(EXAMPLES), place(CORRECTIONS)],
        limit: stage::TURN,
        save_every: stage::SAVE_EVERY,
    }
}

/// The longest window.
fn longest_ms(arguments: &JoinArguments) -> u64 {
    arguments.tasks.iter().map(|task| task.window.ms).max().unwrap_or(0)
}

/// How long an impression may still be asked for.
fn needed_ms(arguments: &JoinArguments) -> u64 {
    longest_ms(arguments).saturating_add(arguments.disorder.ms).saturating_add(arguments.remember.ms)
}

/// How topics are kept that are made now.
fn keep_options(arguments: &JoinArguments) -> Result<TopicOptions> {
    let needed_ms = needed_ms(arguments);
    if let Some(keep) = arguments.keep.filter(|keep| keep.ms < needed_ms) {
        bail!(
            "--keep {} s is shorter than the longest window, --disorder and --remember together, {} s; impressions would go before they are joined, or come again unnoticed",
            keep.ms / 1000,
            needed_ms / 1000
        );
    }
    Ok(TopicOptions {
        keep_ms: arguments.keep.map_or(0, |keep| keep.ms),
        keep_bytes: arguments.keep_mib.unwrap_or(0) << 20,
        ..TopicOptions::default()
    })
}

/// A log that is there keeps its records as it was told when it was made.
fn check_keep(log: &dyn Log, arguments: &JoinArguments, keep: &TopicOptions) -> Result<()> {
    let found = log.options(IMPRESSIONS)?;
    let needed_ms = needed_ms(arguments);
    if found.keep_ms > 0 && found.keep_ms < needed_ms {
        bail!(
            "this log was made to keep records for {} s, and the longest window, --disorder and --remember together are {} s; shorten them, or begin a new log",
            found.keep_ms / 1000,
            needed_ms / 1000
        );
    }
    let examples_ms = log.options(EXAMPLES)?.keep_ms;
    let waits_ms = longest_ms(arguments).saturating_add(arguments.disorder.ms);
    if found.keep_ms > 0 && examples_ms < found.keep_ms.saturating_add(waits_ms) {
        bail!(
            "this log keeps examples for {} s from their impressions on, and they are written up to {} s later; shorten the windows, or begin a new log",
            examples_ms / 1000,
            waits_ms / 1000
        );
    }
    let other_time = arguments.keep.is_some() && found.keep_ms != keep.keep_ms;
    if other_time || arguments.keep_mib.is_some() && found.keep_bytes != keep.keep_bytes {
        let time = match found.keep_ms {
            0 => "for ever".to_owned(),
            ms => format!("for {} s", ms / 1000),
        };
        let size = match found.keep_bytes {
            0 => "all of them".to_owned(),
            bytes => format!("{} MiB of each topic", bytes >> 20),
        };
        bail!(
            "this log was made to keep records {time}, {size}, and that cannot be changed; leave --keep and --keep-mib out, or begin a new log"
        );
    }
    Ok(())
}

fn join_options(arguments: &JoinArguments) -> Result<JoinOptions> {
    if arguments.tasks.len() > TASKS_MAX {
        bail!("{} tasks are named with --task, and {TASKS_MAX} can be", arguments.tasks.len());
    }
    Ok(JoinOptions {
        windows_ms: arguments.tasks.iter().map(|task| task.window.ms).collect(),
        given: given(&arguments.tasks)?,
        disorder_ms: arguments.disorder.ms,
        remember_ms: arguments.remember.ms,
        features_bytes_max: arguments.features_mib << 20,
        repeat_late: arguments.repeat_late,
        jump_ms: arguments.jump.map_or_else(|| jump_ms(needed_ms(arguments)), |jump| jump.ms),
        impressions_max: usize::try_from(arguments.impressions_max).unwrap_or(usize::MAX),
        impression_inputs: 1,
        word_inputs: 1,
    })
}

/// How far ahead a record may be unless the user says otherwise: a day, and long enough to close what is open.
pub fn jump_ms(needed_ms: u64) -> u64 {
    needed_ms.saturating_mul(2).max(24 * 3_600_000)
}

/// By task, the place of the one that it depends on.
fn given(tasks: &[TaskWindow]) -> Result<Vec<Option<u16>>> {
    let place = |task: &TaskWindow| {
        let Some(given) = &task.given else { return Ok(None) };
        let place = tasks.iter().position(|other| other.name == *given && other.name != task.name);
        let place = place.with_context(|| {
            format!("--task {}: `{given}` is no other task; name it with a --task of its own", task.name)
        })?;
        Ok(Some(place as u16))
    };
    tasks.iter().map(place).collect()
}

/// Notes the names of the tasks beside the examples, or compares them with those that are there.
pub fn name_tasks(log: &dyn Log, names: &Schema) -> Result<()> {
    match Schemas::newest(log, EXAMPLES, 0)? {
        Some(found) if found != *names => bail!(
            "the examples of this log have the tasks `{}`, and --task says `{}`; use another log for other tasks",
            found.names().join("`, `"),
            names.names().join("`, `")
        ),
        _ => Ok(declare(log, EXAMPLES, 0, names)?),
    }
}

fn line(joiner: &Joiner) -> String {
    let counts = joiner.counts();
    let mut line = format!(
        "{} impressions, {} feedback: {} examples, {} with a teacher's word; {} open, {} corrections, {} repeated",
        format::count(counts.impressions),
        format::count(counts.feedback),
        format::count(counts.examples),
        format::count(counts.with_word),
        format::count(joiner.open_count() as u64),
        format::count(counts.corrections),
        format::count(counts.repeated),
    );
    let more = [
        (counts.orphans, "feedback that named no impression (of a request that was not logged?)"),
        (joiner.early_count() as u64, "feedback that waits for its impression"),
        (joiner.ahead_count() as u64, "records set aside, further ahead of the others than --jump"),
        (counts.lost_ahead, "records lost that were further ahead than --jump"),
        (counts.forgotten, "forgotten early, above --impressions-max"),
    ];
    for (count, what) in more.into_iter().filter(|(count, _)| *count > 0) {
        line += &format!("; {} {what}", format::count(count));
    }
    line
}
