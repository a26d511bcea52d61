//! `campanile feedback`: what followed an answer, into an event log.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail};
use campanile_stream::{
    log::{Log, Record, address},
    records::{Feedback, Schema, Schemas, TICK, impression_id},
    topics::{EXAMPLES, FEEDBACK},
};
use serde_json::json;

use crate::{args::live::FeedbackArguments, command::write_report, format, stage};

/// Lines that are handed over together, when they come fast enough.
const LINES_AT_ONCE: usize = 4096;
/// The longest line.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// A record's time in milliseconds, and its payload.
type Timed = (u64, Vec<u8>);

/// Runs the command.
pub fn run(arguments: &FeedbackArguments) -> Result<()> {
    let log = stage::open_log(&arguments.log.log, &arguments.log.entry)?;
    let tasks = Schemas::newest(&*log, EXAMPLES, 0)?.with_context(|| {
        let log = address::shown(&arguments.log.log);
        format!("{log} knows no tasks yet: `campanile join` names them when it is started")
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
        let count = format::count(count);
        println!("{count} lines of feedback written; `campanile join` counts those that name no impression");
    }
    write_report(arguments.report.as_deref(), &json!({ "command": "feedback", "lines": count }))
}

/// Appends every line; what came before a line that is wrong stays.
fn append_lines(log: &dyn Log, tasks: &Schema, input: &mut BufReader<Box<dyn Read>>) -> Result<u64> {
    let (mut read, mut written) = (0, 0);
    loop {
        let mut waiting: Vec<Timed> = Vec::new();
        // Whoever writes a line and waits sees it arrive; a file goes by in large pieces.
        let ended = loop {
            match next_line(input, tasks, &mut read) {
                Ok(None) => break Some(Ok(())),
                Ok(Some(line)) => waiting.extend(line),
                Err(error) => break Some(Err(error)),
            }
            if waiting.len() == LINES_AT_ONCE || input.buffer().is_empty() {
                break None;
            }
        };
        let records: Vec<Record<'_>> =
            waiting.iter().map(|(time_ms, payload)| Record { time_ms: *time_ms, payload }).collect();
        if !records.is_empty() {
            log.append(FEEDBACK, 0, &records)?;
        }
        written += records.len() as u64;
        if let Some(ended) = ended {
            return ended.map(|()| written);
        }
    }
}

/// The next line, counted in `read`: nothing at the end of the input, and `Some(None)` for an empty line.
fn next_line(input: &mut impl BufRead, tasks: &Schema, read: &mut u64) -> Result<Option<Option<Timed>>> {
    *read += 1;
    let mut line = String::new();
    let number = || format!("line {read}");
    let bytes = input.by_ref().take(LINE_BYTES_MAX).read_line(&mut line).with_context(number)?;
    if bytes as u64 == LINE_BYTES_MAX && !line.ends_with('\n') {
        bail!("line {read} has more than {LINE_BYTES_MAX} bytes; is this a file of feedback?");
    }
    if bytes == 0 {
        return Ok(None);
    }
    feedback_of(line.trim_end(), tasks).map(Some).with_context(number)
}

/// A line's time and payload; nothing for an empty line.
fn feedback_of(line: &str, tasks: &Schema) -> Result<Option<Timed>> {
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
    fn a_wrong_line_is_told_by_its_number_in_the_file() {
        let tasks = Schema::new(["click"]);
        let read_all = |text: &str| {
            let (mut input, mut read) = (text.as_bytes(), 0);
            let mut found = 0;
            while let Some(line) = next_line(&mut input, &tasks, &mut read)? {
                found += line.iter().count();
            }
            anyhow::Ok(found)
        };
        assert_eq!(read_all("a,0,click\n\na,1,click\n\na,2,click").unwrap(), 3);
        let said = |text: &str| format!("{:#}", read_all(text).unwrap_err());
        assert!(said("a,0,click\n\na,1,buy\n").starts_with("line 3: `buy` is no task"));
        let long = format!("a,0,click\n{}", "x".repeat(1 << 17));
        assert!(said(&long).starts_with("line 2 has more than 65536 bytes"));
    }

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
