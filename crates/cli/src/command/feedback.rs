//! `campanile feedback`: what followed an answer, into an event log.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail};
use campanile_stream::{
    log::{Log, Record},
    records::{Feedback, Schema, Schemas, TICK, impression_id},
    topics::{EXAMPLES, FEEDBACK},
};
use serde_json::json;

use crate::{args::live::FeedbackArguments, command::write_report, format, stage};

/// Lines that are handed over together, when they come fast enough.
const LINES_AT_ONCE: usize = 4096;
/// The longest line.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Runs the command.
pub fn run(arguments: &FeedbackArguments) -> Result<()> {
    let log = stage::open_log(&arguments.log.log, &arguments.log.entry)?;
    let tasks = Schemas::newest(&*log, EXAMPLES, 0)?.with_context(|| {
        format!("{} knows no tasks yet: `campanile join` names them when it is started", arguments.log.log)
    })?;
    let input: Box<dyn Read> = match arguments.file.as_deref() {
        Some(path) if path != Path::new("-") => {
            Box::new(std::fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?)
        }
        _ => Box::new(std::io::stdin()),
    };
    let count = append_lines(&*log, &tasks, &mut BufReader::new(input))?;
    if arguments.tick {
        log.append(FEEDBACK, 0, &[Record { time_ms: now_ms()?, payload: TICK }])?;
    }
    log.sync()?;
    if !arguments.quiet {
        println!("{} lines of feedback written", format::count(count));
    }
    write_report(arguments.report.as_deref(), &json!({ "command": "feedback", "lines": count }))
}

/// Appends every line; what came before a line that is wrong stays.
fn append_lines(log: &dyn Log, tasks: &Schema, input: &mut BufReader<Box<dyn Read>>) -> Result<u64> {
    let mut written = 0;
    loop {
        let mut waiting: Vec<(u64, Vec<u8>)> = Vec::new();
        let mut wrong = None;
        loop {
            let mut line = String::new();
            let bytes =
                input.by_ref().take(LINE_BYTES_MAX).read_line(&mut line).context("cannot read a line")?;
            if bytes == 0 {
                break;
            }
            match feedback_of(line.trim_end(), tasks) {
                Ok(None) => {}
                Ok(Some(feedback)) => waiting.push(feedback),
                Err(error) => {
                    wrong = Some(error.context(format!("line {}", written + waiting.len() as u64 + 1)));
                    break;
                }
            }
            // Whoever writes a line and waits sees it arrive; a file goes by in large pieces.
            if waiting.len() == LINES_AT_ONCE || input.buffer().is_empty() {
                break;
            }
        }
        let records: Vec<Record<'_>> =
            waiting.iter().map(|(time_ms, payload)| Record { time_ms: *time_ms, payload }).collect();
        if !records.is_empty() {
            log.append(FEEDBACK, 0, &records)?;
        }
        written += records.len() as u64;
        if let Some(error) = wrong {
            return Err(error);
        }
        if records.is_empty() && input.fill_buf().context("cannot read a line")?.is_empty() {
            return Ok(written);
        }
    }
}

/// A line's time and payload; nothing for an empty line.
fn feedback_of(line: &str, tasks: &Schema) -> Result<Option<(u64, Vec<u8>)>> {
    if line.is_empty() {
        return Ok(None);
    }
    let cells: Vec<&str> = line.split(',').map(str::trim).collect();
    let (request, sample, task, time) = match cells[..] {
        [request, sample, task] => (request, sample, task, None),
        [request, sample, task, time] => (request, sample, task, Some(time)),
        _ => bail!("`{line}` is not REQUEST,SAMPLE,TASK or REQUEST,SAMPLE,TASK,TIME_MS"),
    };
    let sample: u32 = sample
        .parse()
        .with_context(|| format!("`{sample}` is no place of a candidate; the first of a request is 0"))?;
    let place = tasks.place(task).with_context(|| {
        format!("`{task}` is no task of this log; it has `{}`", tasks.names().join("`, `"))
    })?;
    let time_ms = match time {
        Some(time) => {
            time.parse().with_context(|| format!("`{time}` is no time in milliseconds since 1970"))?
        }
        None => now_ms()?,
    };
    let mut payload = Vec::new();
    Feedback { id: impression_id(request, sample), task: place as u16 }.encode(&mut payload);
    Ok(Some((time_ms, payload)))
}

fn now_ms() -> Result<u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock stands before 1970")?;
    Ok(since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_or_refused_with_words() {
        let tasks = Schema::new(["click", "buy"]);
        let (time_ms, payload) = feedback_of("1f-0, 2, buy, 77", &tasks).unwrap().unwrap();
        assert_eq!(time_ms, 77);
        assert_eq!(Feedback::decode(&payload), Some(Feedback { id: impression_id("1f-0", 2), task: 1 }));
        assert_eq!(feedback_of("", &tasks).unwrap(), None);
        let said = |line| format!("{:#}", feedback_of(line, &tasks).unwrap_err());
        assert!(said("1f-0,2").contains("REQUEST,SAMPLE,TASK"));
        assert!(said("1f-0,x,buy").contains("`x` is no place"));
        assert!(said("1f-0,2,bought").contains("`bought` is no task of this log; it has `click`, `buy`"));
        assert!(said("1f-0,2,buy,now").contains("`now` is no time"));
    }
}
