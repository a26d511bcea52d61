//! Processors: how much of the machine a rank has when all ranks take what they can get.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use campanile_comm::{CommError, Communicator};
use campanile_train::clock::thread_cpu_seconds;

/// How long all ranks are busy; many slices of a scheduler.
const BUSY: Duration = Duration::from_millis(300);

/// Turns of a thread between two looks at the clock.
const TURNS: u64 = 10_000;

/// Processors that this rank has while all ranks keep a thread for every processor of the machine busy; 1 where the
/// system does not tell.
pub fn per_rank(comm: &dyn Communicator) -> Result<f64, CommError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    comm.barrier()?;
    let had: f64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(share_of_a_processor)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).sum()
    });
    Ok(if had > 0.0 { had } else { 1.0 })
}

fn share_of_a_processor() -> f64 {
    let (start, before) = (Instant::now(), thread_cpu_seconds());
    let mut state = 1u64;
    while start.elapsed() < BUSY {
        for _ in 0..TURNS {
            state = black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    }
    let had = thread_cpu_seconds().zip(before).map_or(0.0, |(now, before)| now - before);
    had / start.elapsed().as_secs_f64()
}
