//! What the server says: one line of JSON an event, so that machines can read it too.

use std::{
    io::Write,
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::{Map, Value};

use crate::clock;

/// Where events go. Copies write to the same place.
#[derive(Clone)]
pub struct Journal(Arc<Mutex<Box<dyn Write + Send>>>);

impl std::fmt::Debug for Journal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Journal")
    }
}

impl Journal {
    /// Writes to `out`.
    pub fn new(out: impl Write + Send + 'static) -> Journal {
        Journal(Arc::new(Mutex::new(Box::new(out))))
    }

    /// Says that something happened. What cannot be written is lost: saying must not stop serving.
    pub fn say(&self, event: &str, fields: &[(&str, &str)]) {
        let mut line = Map::new();
        line.insert("time_us".to_owned(), clock::unix_us().into());
        line.insert("event".to_owned(), event.into());
        let fields = fields.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value)));
        line.extend(fields);
        let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writeln!(out, "{}", Value::Object(line));
    }
}
