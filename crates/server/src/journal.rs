//! What the server says: one line of JSON an event, so that machines can read it too.
//!
//! Lines are written by a thread of their own, each with one call: whoever says something never waits for a terminal or a
//! pipe. At most `LINES_MAX` wait; what comes on top of them is lost and counted.

use std::{
    io::Write,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::Duration,
};

use serde_json::{Map, Value};

use crate::clock;

/// Lines that may wait to be written.
const LINES_MAX: usize = 1024;
/// Bytes of a value; what a client or a file chose may be of any length.
const VALUE_BYTES_MAX: usize = 4 << 10;
/// How long the end waits for what waits to be written: nobody may be reading any more.
const END_TIME_MAX: Duration = Duration::from_secs(5);

/// Where events go. Copies write to the same place; the last one to go waits until all is written.
#[derive(Debug, Clone)]
pub struct Journal(Arc<Lines>);

#[derive(Debug)]
struct Lines {
    sender: Option<SyncSender<Vec<u8>>>,
    /// Hangs up when all lines are written.
    ended: Mutex<Receiver<()>>,
    lost: AtomicU64,
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.sender = None;
        let _ = self.ended.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(END_TIME_MAX);
    }
}

impl Journal {
    /// Writes to `out`; without a thread for it, nothing is said.
    pub fn new(mut out: impl Write + Send + 'static) -> Journal {
        let (sender, lines) = sync_channel::<Vec<u8>>(LINES_MAX);
        let (ending, ended) = sync_channel::<()>(1);
        let write = move || {
            let _ending = ending;
            for line in lines {
                let _ = out.write_all(&line).and_then(|()| out.flush());
            }
        };
        let started = std::thread::Builder::new().name("journal".to_owned()).spawn(write).is_ok();
        let sender = started.then_some(sender);
        Journal(Arc::new(Lines { sender, ended: Mutex::new(ended), lost: AtomicU64::new(0) }))
    }

    /// Says that something happened. What cannot be written is lost: saying must not stop serving.
    pub fn say(&self, event: &str, fields: &[(&str, &str)]) {
        let mut line = Map::new();
        line.insert("time_us".to_owned(), clock::unix_us().into());
        line.insert("event".to_owned(), event.into());
        let fields = fields.iter().map(|(key, value)| ((*key).to_owned(), Value::from(cut(value))));
        line.extend(fields);
        let lost = self.0.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            line.insert("lines_lost".to_owned(), lost.into());
        }
        let line = format!("{}\n", Value::Object(line)).into_bytes();
        let sent = self.0.sender.as_ref().is_some_and(|sender| sender.try_send(line).is_ok());
        if !sent {
            self.0.lost.fetch_add(lost + 1, Ordering::Relaxed);
        }
    }
}

/// The beginning of a value that is too long.
fn cut(value: &str) -> &str {
    &value[..value.floor_char_boundary(VALUE_BYTES_MAX)]
}
