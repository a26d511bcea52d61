//! Examples that a job cannot take, and is to pass over: `on_bad_row` on a stream.

use std::sync::{Arc, Mutex, PoisonError};

use campanile_data::logged::LoggedRows;
use campanile_stream::{
    log::{Log, Stored},
    records::{Example, Schemas},
    topics::EXAMPLES,
};

use crate::examples::{columns_of, find_columns};

/// What was passed over in a run.
#[derive(Debug, Default)]
pub struct Skipped {
    /// How many, and what is wrong with the first.
    seen: Mutex<(u64, Option<String>)>,
}

impl Skipped {
    /// How many examples, and what is wrong with the first of them.
    pub fn told(&self) -> (u64, Option<String>) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, problem: String) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.0 += 1;
        seen.1.get_or_insert(problem);
    }
}

/// Looks at every example before it is taken, on every rank, so that all pass over the same ones.
pub(crate) struct Skipping {
    /// Rows are tried here.
    pub rows: LoggedRows,
    pub columns: Option<u32>,
    pub no_labels: Vec<Option<bool>>,
    /// The most that may be passed over.
    pub rows_max: u64,
    pub count: u64,
    /// Where rank 0 notes them.
    pub skipped: Option<Arc<Skipped>>,
}

impl Skipping {
    /// Whether the job can take an example. An error if it has passed over too many.
    pub fn takes(&mut self, log: &dyn Log, known: &mut Schemas, record: &Stored<'_>) -> Result<bool, String> {
        let example = Example::decode(record.payload).or_else(|| Example::decode_late(record.payload));
        let (number, row) = columns_of(&example.ok_or("it is no example")?)?;
        let mut tried = Ok(());
        if self.columns != Some(number) {
            tried = self.rows.set_columns(find_columns(log, known, number)?.names());
            self.columns = tried.is_ok().then_some(number);
        }
        tried = tried.and_then(|()| self.rows.push(row, &self.no_labels, record.time_ms as i64));
        self.rows.clear();
        let Err(problem) = tried else { return Ok(true) };
        self.count += 1;
        if self.count > self.rows_max {
            return Err(format!(
                "{problem}; more than {} examples cannot be taken (run.data.on_bad_row)",
                self.rows_max
            ));
        }
        if let Some(skipped) = &self.skipped {
            skipped.note(format!("topic `{EXAMPLES}`, record {}: {problem}", record.offset));
        }
        Ok(false)
    }
}
