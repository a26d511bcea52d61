//! Where a step's time goes. The only module of this room that reads a clock; no result depends on it.

use std::time::Instant;

/// A part of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Waiting for the next batch.
    Input,
    /// Pooling rows and laying vectors out.
    Lookup,
    /// Packing weights for the step's products.
    Pack,
    /// The dense network, forward and backward.
    Network,
    /// The modules of towers, forward and backward.
    Module,
    /// Merge and row updates.
    Update,
    /// Reduction and update of the dense weights.
    Dense,
    /// Waiting for ids, vectors and gradients of other ranks.
    Exchange,
    /// The same where towers have their own ways, for the ranks of this rank's group.
    Members,
    /// Collecting predictions, metrics, checkpoint pieces.
    Rest,
}

/// Names of the parts, in order.
pub const PARTS: [(Part, &str); 10] = [
    (Part::Input, "input"),
    (Part::Lookup, "lookup"),
    (Part::Pack, "pack"),
    (Part::Network, "network"),
    (Part::Module, "module"),
    (Part::Update, "update"),
    (Part::Dense, "dense"),
    (Part::Exchange, "exchange"),
    (Part::Members, "members"),
    (Part::Rest, "rest"),
];

/// Seconds by part since the last [`Timings::take`].
#[derive(Debug, Default)]
pub struct Timings {
    seconds: [f64; PARTS.len()],
    running: Option<(Part, Instant)>,
}

impl Timings {
    /// Ends the running part and begins another.
    pub fn start(&mut self, part: Part) {
        let now = Instant::now();
        if let Some((running, since)) = self.running.replace((part, now)) {
            self.seconds[running as usize] += (now - since).as_secs_f64();
        }
    }

    /// Ends the running part.
    pub fn stop(&mut self) {
        if let Some((running, since)) = self.running.take() {
            self.seconds[running as usize] += since.elapsed().as_secs_f64();
        }
    }

    /// Seconds by part so far, and starts from zero again.
    pub fn take(&mut self) -> [f64; PARTS.len()] {
        std::mem::take(&mut self.seconds)
    }
}

/// Time since a moment.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

/// Seconds that the calling thread has had a processor; counted in ticks of some milliseconds. `None` where the system
/// does not tell.
pub fn thread_cpu_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(text.split_whitespace().next()?.parse::<u64>().ok()? as f64 * 1e-9)
}

/// Seconds since 1970, for the files that ask for a date.
pub fn unix_seconds() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}
