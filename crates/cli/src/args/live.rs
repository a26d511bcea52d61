//! Arguments of the commands around an event log.

use std::{path::PathBuf, str::FromStr};

use clap::Args;

/// Which event log.
#[derive(Debug, Clone, Args)]
pub struct LogArguments {
    /// The event log: dir:PATH, or nats://HOST:PORT/PREFIX (also tls://, and USER@ before the host).
    pub log: String,
    /// How to get into a NATS server.
    #[command(flatten)]
    pub entry: EntryArguments,
}

/// How to get into a NATS server.
#[derive(Debug, Clone, Default, Args)]
pub struct EntryArguments {
    /// A NATS credentials file, as `nsc` makes them.
    #[arg(long, value_name = "FILE")]
    pub nats_credentials: Option<PathBuf>,
    /// The password of the USER@ in the log's address, on the first line of a file. Without it, the environment's
    /// CAMPANILE_NATS_PASSWORD. One that stands in the address is seen by everybody who sees processes.
    #[arg(long, value_name = "FILE")]
    pub nats_password_file: Option<PathBuf>,
    /// Certificates of a NATS server to trust beside the system's. The connection is then refused unless it is TLS.
    #[arg(long, value_name = "FILE")]
    pub nats_ca: Option<PathBuf>,
    /// Copies of every stream in a NATS cluster.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub nats_replicas: usize,
}

/// `campanile join`.
///
/// Reads the topics `impressions`, `feedback` and `words` of an event log in the order of their time and writes one
/// example for each impression to `examples`, when the longest window is over; feedback that comes later goes to
/// `corrections`. Killed at any moment and started again, it goes on as if nothing had happened. See docs/live.md.
///
///   campanile join dir:runs/log --task click=30m --task conversion=24h,given=click
#[derive(Debug, Args)]
pub struct JoinArguments {
    /// The event log.
    #[command(flatten)]
    pub log: LogArguments,
    /// A task and its window, in the order in which feedback numbers them: NAME=WINDOW[,given=OTHER]. With `given`, the
    /// label is absent where the other task's is not 1.
    #[arg(long = "task", value_name = "TASK", required = true)]
    pub tasks: Vec<TaskWindow>,
    /// How much later than others a record may come without being late.
    #[arg(long, value_name = "TIME", default_value = "5s")]
    pub disorder: Time,
    /// How long a closed impression is remembered, to recognise repetitions and late feedback.
    #[arg(long, value_name = "TIME", default_value = "1h")]
    pub remember: Time,
    /// Memory for features of open impressions; what does not fit is read again from the log.
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    pub features_mib: usize,
    /// Impressions that may be open at once, each about 150 bytes of memory; more end the command, and nothing is lost. As many
    /// are remembered when they are closed; of more, the oldest are forgotten, and counted.
    #[arg(long, value_name = "N", default_value_t = 20_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub impressions_max: u64,
    /// How far ahead of all others the time of a record may be. One that is further ahead is set aside and counted, and taken when
    /// time comes near it, or when 32 impressions in a row agree. Without it, 24h, and at least twice the longest window.
    #[arg(long, value_name = "TIME")]
    pub jump: Option<Time>,
    /// Write an example once more when a label of it comes late, with that label alone: for jobs with
    /// run.corrections = "train". Others pass over it.
    #[arg(long)]
    pub repeat_late: bool,
    /// For a new log: how long records are kept, in the time of the stream; without it, for ever. Longer than any model may be
    /// behind, and than the longest window, --disorder and --remember together.
    #[arg(long, value_name = "TIME")]
    pub keep: Option<Time>,
    /// For a new log: how much of each topic is kept; without it, all.
    #[arg(long, value_name = "MIB")]
    pub keep_mib: Option<u64>,
    /// When to end.
    #[command(flatten)]
    pub ending: EndArguments,
    /// Write what was done as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Say only what went wrong.
    #[arg(long, short)]
    pub quiet: bool,
}

/// How the impressions of an event log are scored.
#[derive(Debug, Args)]
#[command(next_help_heading = "For an event log")]
pub struct AugmentStreamArguments {
    /// Impressions older than the newest by more than this are passed over: the longest window of `join`. Without it, 24h.
    #[arg(long, value_name = "TIME")]
    pub window: Option<Time>,
    /// How long ids are remembered, to recognise impressions that come again. Without it, 1h.
    #[arg(long, value_name = "TIME")]
    pub remember: Option<Time>,
    /// Finish a turn that was interrupted with the current version of the teacher, where the registry no longer has the one that it
    /// was begun with.
    #[arg(long)]
    pub other_version: bool,
    /// When to end.
    #[command(flatten)]
    pub ending: EndArguments,
    /// How to get into a NATS server.
    #[command(flatten)]
    pub entry: EntryArguments,
}

/// `campanile feedback`.
///
/// Writes clicks, conversions and the like to the topic `feedback` of an event log, from where `join` takes them. A line is
/// REQUEST,SAMPLE,TASK or REQUEST,SAMPLE,TASK,TIME_MS: the id of the request that was answered (the answer carries it), which
/// of its candidates, counted from 0, and one of the tasks of `campanile join`; without a time it happened now.
///
///   echo 1f-0,2,click | campanile feedback dir:runs/log
#[derive(Debug, Args)]
pub struct FeedbackArguments {
    /// The event log.
    #[command(flatten)]
    pub log: LogArguments,
    /// A file of lines; without it, or with `-`, they are read from standard input as they come.
    pub file: Option<PathBuf>,
    /// At the end, note that time has passed until now: it closes windows when there is no traffic.
    #[arg(long)]
    pub tick: bool,
    /// Write what was done as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Say only what went wrong.
    #[arg(long, short)]
    pub quiet: bool,
}

/// `campanile export-log`.
#[cfg(feature = "parquet")]
#[derive(Debug, Args)]
pub struct ExportLogArguments {
    /// The event log.
    #[command(flatten)]
    pub log: LogArguments,
    /// Where the files go; each topic has a directory of its own in it.
    pub out: PathBuf,
    /// A topic: impressions, feedback, words, examples or corrections. Without it, all five.
    #[arg(long = "topic", value_name = "TOPIC")]
    pub topics: Vec<campanile_live::export::Topic>,
    /// The first record to take; without it, the oldest that is kept. What is in files already is not taken again.
    #[arg(long, value_name = "RECORD")]
    pub from: Option<u64>,
    /// Rows of a file at most. A shorter one is written when the command ends, and where columns or their types change.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub file_rows: u64,
    /// Say the type of a column instead of taking it from the values: COLUMN=integer, float, text or bytes, or one of them
    /// with -list behind (COLUMN=integer-list).
    #[arg(long = "type", value_name = "COLUMN=TYPE")]
    pub types: Vec<NamedType>,
    /// Leave out examples that come once more because a label came late: what jobs with run.corrections = "ignore" train on.
    #[arg(long)]
    pub without_late: bool,
    /// Give a file the columns of all records, instead of beginning another file when they change: for logs where several
    /// models or clients take turns. What a record does not have is missing.
    #[arg(long)]
    pub union: bool,
    /// When to end.
    #[command(flatten)]
    pub ending: EndArguments,
    /// Write what was done as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Say only what went wrong.
    #[arg(long, short)]
    pub quiet: bool,
}

/// A column and its type.
#[cfg(feature = "parquet")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedType {
    /// The column.
    pub column: String,
    /// Its type.
    pub its_type: campanile_data::columnar::ColumnType,
}

#[cfg(feature = "parquet")]
impl FromStr for NamedType {
    type Err = String;

    fn from_str(text: &str) -> Result<NamedType, String> {
        // Names of columns may have an `=`, types have none.
        let (column, its_type) =
            text.rsplit_once('=').ok_or_else(|| format!("`{text}` is not COLUMN=TYPE"))?;
        Ok(NamedType { column: column.to_owned(), its_type: its_type.parse()? })
    }
}

/// `campanile live`.
///
/// Runs the whole loop in one process and with no other software: a synthetic world's traffic arrives, students answer
/// it, features are logged, clicks and late conversions come back, examples are joined, a teacher scores each impression
/// once, teacher and students train on what comes and are published, and students take up what was published. A page
/// shows whether the teacher helps. Interrupt it to end; started again, it goes on. See docs/live.md.
#[derive(Debug, Args)]
pub struct LiveArguments {
    /// The file with the loop, the teacher and the students; examples/live.toml is one.
    pub file: PathBuf,
    /// Where everything goes, instead of live.directory.
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Where the page is shown, instead of live.page; port 0 takes any that is free.
    #[arg(long, value_name = "ADDRESS")]
    pub page: Option<std::net::SocketAddr>,
    /// Seconds of the stream in a second, instead of live.speed; 0 means as fast as the models can take it.
    #[arg(long, value_name = "X")]
    pub speed: Option<f64>,
    /// End after this time, as if interrupted.
    #[arg(long = "for", value_name = "TIME")]
    pub duration: Option<Time>,
    /// Write what the page shows at the end as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Say only what went wrong.
    #[arg(long, short)]
    pub quiet: bool,
}

/// When a stage ends.
#[derive(Debug, Clone, Default, Args)]
pub struct EndArguments {
    /// End when everything that is there is done, instead of waiting for more.
    #[arg(long)]
    pub stop_at_end: bool,
}

/// Training on a stream.
#[derive(Debug, Clone, Default, Args)]
pub struct StreamArguments {
    /// Train on the examples of this event log (dir:PATH or nats://HOST:PORT/PREFIX), in order, once, for as long as
    /// they come; interrupt it to end. The cursor is in the checkpoints.
    #[arg(long, value_name = "LOG")]
    pub stream: Option<String>,
    /// With --stream: end when no whole batch is left, instead of waiting for more.
    #[arg(long, requires = "stream")]
    pub stop_at_end: bool,
    /// How to get into a NATS server.
    #[command(flatten)]
    pub entry: EntryArguments,
}

/// A time with its unit, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time {
    /// Milliseconds.
    pub ms: u64,
}

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Time, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let ms = match unit {
            "ms" => 1.0,
            "s" => 1e3,
            "m" => 60e3,
            "h" => 3600e3,
            "d" => 86400e3,
            _ => return Err(format!("`{text}` has no unit that is known; write 500ms, 30s, 5m, 24h or 7d")),
        };
        let number: f64 = number.parse().map_err(|_| format!("`{text}` does not begin with a number"))?;
        Ok(Time { ms: (number * ms) as u64 })
    }
}

/// A task and its window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskWindow {
    /// The task.
    pub name: String,
    /// How long its feedback counts.
    pub window: Time,
    /// The task without which its label has no meaning.
    pub given: Option<String>,
}

impl FromStr for TaskWindow {
    type Err = String;

    fn from_str(text: &str) -> Result<TaskWindow, String> {
        let shape = || format!("`{text}` is not NAME=WINDOW or NAME=WINDOW,given=OTHER");
        let (name, rest) = text.split_once('=').ok_or_else(shape)?;
        let (window, given) = match rest.split_once(',') {
            None => (rest, None),
            Some((window, given)) => {
                (window, Some(given.strip_prefix("given=").ok_or_else(shape)?.to_owned()))
            }
        };
        Ok(TaskWindow { name: name.to_owned(), window: window.parse()?, given })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_tasks_are_read_or_refused_with_words() {
        assert_eq!("1.5m".parse(), Ok(Time { ms: 90_000 }));
        assert!("5".parse::<Time>().unwrap_err().contains("unit"));
        assert!("fives".parse::<Time>().is_err());
        let task: TaskWindow = "buy=1d,given=click".parse().unwrap();
        assert_eq!((task.window.ms, task.given.as_deref()), (86_400_000, Some("click")));
        assert!("buy:1d".parse::<TaskWindow>().unwrap_err().contains("NAME=WINDOW"));
    }
}
