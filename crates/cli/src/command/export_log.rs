//! `campanile export-log`: topics of an event log as Parquet, for other programs.

use std::{sync::Arc, time::Instant};

use anyhow::Result;
use campanile_live::{
    End, Stop,
    export::{Export, ExportError, ExportOptions, Topic},
};
use campanile_stream::log::LogError;
use serde_json::json;

use crate::{args::live::ExportLogArguments, claim::Claim, command::write_report, format, stage};

/// Runs the command.
pub fn run(arguments: &ExportLogArguments) -> Result<()> {
    let log = stage::open_log_to_read(&arguments.log.log, &arguments.log.entry)?;
    let stop = stage::stop(&arguments.ending)?;
    let _claim = Claim::of(&arguments.out, "export into another directory")?;
    let open = |topic| Export::open(Arc::clone(&log), topic, options(arguments));
    let mut exports = topics(arguments).into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
    follow(&mut exports, &stop, arguments.quiet)?;
    for export in &mut exports {
        export.finish()?;
        if !arguments.quiet {
            println!("{}", line(export));
        }
    }
    tell_unused_types(arguments, &exports);
    let report = json!({
        "command": "export-log",
        "directory": arguments.out,
        "topics": exports.iter().map(told).collect::<Vec<_>>(),
    });
    write_report(arguments.report.as_deref(), &report)
}

fn options(arguments: &ExportLogArguments) -> ExportOptions {
    ExportOptions {
        directory: arguments.out.clone(),
        from: arguments.from,
        file_rows: arguments.file_rows,
        without_late: arguments.without_late,
        union: arguments.union,
        types: arguments.types.iter().map(|said| (said.column.clone(), said.its_type)).collect(),
    }
}

/// Each once, whatever was typed.
fn topics(arguments: &ExportLogArguments) -> Vec<Topic> {
    let is_wanted = |topic: &Topic| arguments.topics.is_empty() || arguments.topics.contains(topic);
    Topic::ALL.into_iter().filter(is_wanted).collect()
}

/// Takes records of all topics in turn until it is to end.
fn follow(exports: &mut [Export], stop: &Stop, quiet: bool) -> Result<()> {
    let mut last: Option<Instant> = None;
    loop {
        let mut moved = false;
        for export in exports.iter_mut() {
            match export.turn() {
                Ok(took) => moved |= took,
                // A broker that was there comes back; nothing is lost meanwhile, and it is not the end of the log.
                Err(error @ ExportError::Log(LogError::Remote { .. })) if stop.end() < End::Now => {
                    if !quiet {
                        eprintln!("{error}; trying again");
                    }
                    stop.wait(stage::BROKER_PAUSE);
                    moved = true;
                }
                Err(error) => return Err(error.into()),
            }
        }
        if !quiet && moved && last.is_none_or(|last| last.elapsed() >= stage::LINE_PAUSE) {
            exports.iter().for_each(|export| eprintln!("{}", line(export)));
            last = Some(Instant::now());
        }
        let end = if moved { stop.end() } else { stop.wait(stage::PAUSE) };
        if end == End::Now || end == End::AtEnd && !moved {
            return Ok(());
        }
    }
}

/// A type for a column that did not come is a name that was mistyped, or a column that will come later.
fn tell_unused_types(arguments: &ExportLogArguments, exports: &[Export]) {
    let is_unused = |column: &String| exports.iter().all(|export| export.unused_types().contains(column));
    for said in arguments.types.iter().filter(|said| is_unused(&said.column)) {
        eprintln!("--type {0}={1}: no record that was read has a column `{0}`", said.column, said.its_type);
    }
}

fn line(export: &Export) -> String {
    let counts = export.counts();
    let files = match export.published().len() {
        1 => "1 file".to_owned(),
        count => format!("{} files", format::count(count as u64)),
    };
    format!(
        "{}: {} records read, {} rows in {files}; next is record {}",
        export.topic().name(),
        format::count(counts.records),
        format::count(counts.rows),
        export.next()
    )
}

fn told(export: &Export) -> serde_json::Value {
    let counts = export.counts();
    json!({
        "topic": export.topic().name(),
        "records": counts.records,
        "rows": counts.rows,
        "left_out": counts.left_out,
        "next": export.next(),
        "files": export.published(),
    })
}
