//! One request's way through the server, and what is told of it: counters, a line in the log, a trace.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Instant,
};

use crate::{
    budget::Lease,
    clock,
    error::ServeError,
    journal::Journal,
    metrics::{Metrics, OUTCOMES, Outcome, STAGES, Stage, Transport},
    traces::Traces,
};

/// Lines about failed requests in one second; in a storm more would only fill the disk.
const FAILED_LINES_PER_SECOND_MAX: u32 = 100;

/// Characters of a model's name that are told; a client may ask for a name of any length.
const MODEL_CHARS_MAX: usize = 128;

/// One request, from its first byte to its answer.
#[derive(Debug)]
pub struct Passage {
    /// How it came.
    pub transport: Transport,
    /// When reading began.
    pub started: Instant,
    /// The caller's trace, in W3C form, as the client sent it.
    pub traceparent: Option<String>,
    /// The model that was asked for.
    pub model: String,
    /// The request's name: the client's, or ours. Empty until it is known.
    pub id: String,
    /// The version that scored. Empty until it is known.
    pub version: String,
    /// Its samples.
    pub samples: usize,
    /// The memory that it takes, where somebody counts it.
    pub lease: Option<Arc<Lease>>,
    stages_us: [Option<u64>; STAGES.len()],
}

impl Passage {
    /// A request that begins now.
    pub fn begin(transport: Transport, model: &str, traceparent: Option<String>) -> Passage {
        Passage {
            transport,
            started: clock::now(),
            traceparent,
            model: model.chars().take(MODEL_CHARS_MAX).collect(),
            id: String::new(),
            version: String::new(),
            samples: 0,
            lease: None,
            stages_us: [None; STAGES.len()],
        }
    }

    /// Takes more memory.
    ///
    /// # Errors
    /// When all requests together have as much as they may.
    pub fn grow(&self, bytes: u64) -> Result<(), ServeError> {
        self.lease.as_ref().map_or(Ok(()), |lease| lease.grow(bytes)).map_err(|_| ServeError::Crowded)
    }

    /// Gives memory back.
    pub fn shrink(&self, bytes: u64) {
        if let Some(lease) = &self.lease {
            lease.shrink(bytes);
        }
    }

    /// Notes how long a part took.
    pub fn took(&mut self, stage: Stage, us: u64) {
        self.stages_us[stage as usize] = Some(us);
    }

    /// The parts so far, in their order.
    pub fn stages(&self) -> impl Iterator<Item = (Stage, &'static str, u64)> + '_ {
        STAGES.iter().filter_map(|&(stage, name)| Some((stage, name, self.stages_us[stage as usize]?)))
    }
}

/// Which requests get a line in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoggedRequests {
    /// None.
    None,
    /// Those without scores.
    #[default]
    Failed,
    /// All.
    All,
}

/// Who is told of requests, beside the counters.
#[derive(Debug, Default)]
pub struct Listeners {
    /// Which requests get a line.
    pub logged: LoggedRequests,
    /// Where lines go; nowhere without it.
    pub journal: Option<Journal>,
    /// Where traces go, once the server runs.
    pub traces: OnceLock<Traces>,
    /// (second, lines in it, lines left out since the last one).
    storm: Mutex<(u64, u32, u64)>,
}

impl Listeners {
    /// Tells of a request that has ended.
    pub fn tell(&self, metrics: &Metrics, mut passage: Passage, failure: Option<&ServeError>) {
        let outcome = failure.map_or(Outcome::Scored, outcome);
        if failure.is_none() {
            passage.took(Stage::Total, clock::us_between(passage.started, clock::now()));
        }
        for (stage, _, us) in passage.stages() {
            metrics.add_stage(stage, us);
        }
        metrics.add_outcome(passage.transport, outcome);
        self.log(&passage, outcome, failure);
        if let Some(traces) = self.traces.get() {
            traces.record(&passage, name(outcome), failure);
        }
    }

    fn log(&self, passage: &Passage, outcome: Outcome, failure: Option<&ServeError>) {
        let Some(journal) = &self.journal else { return };
        let left_out = match (self.logged, failure) {
            (LoggedRequests::All, _) => 0,
            (LoggedRequests::Failed, Some(_)) => match self.place_in_storm(clock::unix_us() / 1_000_000) {
                Some(left_out) => left_out,
                None => return,
            },
            _ => return,
        };
        let samples = passage.samples.to_string();
        let mut fields = vec![
            ("id", passage.id.as_str()),
            ("model", &passage.model),
            ("version", &passage.version),
            ("transport", passage.transport.name()),
            ("outcome", name(outcome)),
            ("samples", &samples),
        ];
        let stages: Vec<(String, String)> =
            passage.stages().map(|(_, name, us)| (format!("{name}_us"), us.to_string())).collect();
        fields.extend(stages.iter().map(|(name, us)| (name.as_str(), us.as_str())));
        let problem = failure.map(ServeError::told);
        fields.extend(problem.as_deref().map(|problem| ("problem", problem)));
        let left_out = (left_out > 0).then(|| left_out.to_string());
        fields.extend(left_out.as_deref().map(|count| ("lines_left_out", count)));
        fields.retain(|(_, value)| !value.is_empty());
        journal.say("request", &fields);
    }

    /// How many lines were left out before this one; none if this one is left out too.
    fn place_in_storm(&self, second: u64) -> Option<u64> {
        let mut storm = self.storm.lock().unwrap_or_else(PoisonError::into_inner);
        if storm.0 != second {
            (storm.0, storm.1) = (second, 0);
        }
        storm.1 += 1;
        if storm.1 > FAILED_LINES_PER_SECOND_MAX {
            storm.2 += 1;
            return None;
        }
        Some(std::mem::take(&mut storm.2))
    }
}

fn outcome(error: &ServeError) -> Outcome {
    match error {
        ServeError::Busy { .. } | ServeError::Crowded => Outcome::Busy,
        ServeError::Late { .. } => Outcome::Late,
        ServeError::Internal { .. } | ServeError::Source(_) => Outcome::Failed,
        _ => Outcome::Refused,
    }
}

fn name(outcome: Outcome) -> &'static str {
    OUTCOMES.iter().find(|(one, _)| *one == outcome).map_or("", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_of_failures_gets_few_lines_and_the_next_one_says_how_many_were_left_out() {
        let listeners = Listeners::default();
        let lines = (0..1000).filter(|_| listeners.place_in_storm(7).is_some()).count();
        assert_eq!(lines, FAILED_LINES_PER_SECOND_MAX as usize);
        assert_eq!(listeners.place_in_storm(8), Some(900));
        assert_eq!(listeners.place_in_storm(8), Some(0));
    }
}
