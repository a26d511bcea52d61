//! How long something takes this thread, whoever else uses the machine.
//!
//! Wall time is what counts, as long as this thread runs whenever it wants to. Where others take its core away, the
//! median over many runs still tells, if runs are shorter than a slice of the scheduler; longer ones are stretched by
//! the time of others. So the processor's time is read too, and where the wall says clearly more, that is taken.

use std::time::{Duration, Instant};

use super::median;

/// The least processor time of a measurement: the system counts it in ticks of some milliseconds.
const LEAST: f64 = 0.04;

/// Where the system does not tell the processor's time, and at most.
const WALL_MAX: Duration = Duration::from_secs(3);

/// A wall time that is above the processor's by more than this has somebody else's time in it.
const DISTURBED: f64 = 1.15;

/// Seconds of one run.
pub fn seconds_each(mut run: impl FnMut()) -> f64 {
    // The first one brings pages, caches and branch predictors into the state of the others.
    run();
    let (start, cpu_start) = (Instant::now(), campanile_train::clock::thread_cpu_seconds());
    let mut walls = Vec::new();
    loop {
        let one = Instant::now();
        run();
        walls.push(one.elapsed().as_secs_f64());
        let cpu = campanile_train::clock::thread_cpu_seconds().zip(cpu_start).map(|(now, start)| now - start);
        let enough = match cpu {
            Some(cpu) => cpu >= LEAST || start.elapsed() > WALL_MAX,
            None => start.elapsed().as_secs_f64() >= LEAST,
        };
        if enough {
            let each = cpu.map(|cpu| cpu / walls.len() as f64).filter(|each| *each > 0.0);
            let wall = median(walls);
            return each.filter(|each| wall > DISTURBED * each).unwrap_or(wall);
        }
    }
}
