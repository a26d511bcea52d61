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

/// Ticks of a second in the counters of `/proc`; Linux tells programs this number whatever its own clock does.
const TICKS: f64 = 100.0;

/// Processor seconds of this process, all threads together. `None` where the system does not tell.
pub fn process_cpu_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name may hold spaces; after its bracket, user and system time are the twelfth and thirteenth word.
    let words: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |place: usize| words.get(place)?.parse::<u64>().ok();
    Some((ticks(11)? + ticks(12)?) as f64 / TICKS)
}

/// Processor seconds that all programs of this machine have had, and those that there were. `None` where the system
/// does not tell.
pub fn machine_cpu_seconds() -> Option<(f64, f64)> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let words = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<f64> = words.split_whitespace().map_while(|word| word.parse().ok()).collect();
    // User, nice, system, idle, waiting, interrupts (two), stolen; guests are counted with users.
    Some((ticks.get(..3)?.iter().sum::<f64>() / TICKS, ticks.get(..8)?.iter().sum::<f64>() / TICKS))
}

/// A number that machines do not share, whatever they are called. `None` where the system does not tell.
pub fn machine_number() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    u64::from_str_radix(text.trim().replace('-', "").get(..16)?, 16).ok()
}

/// Seconds since 1970, for the files that ask for a date.
pub fn unix_seconds() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}
