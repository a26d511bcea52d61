//! The scorer without a network around it, on the same requests.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use campanile_serve::{Options, Scorer, Scores, Snapshot};
use campanile_server::histogram::Counts;

use super::traffic::{MODEL, Traffic, request};

/// How long to measure.
const TIME: Duration = Duration::from_secs(1);

/// What was measured, on one thread.
pub struct Bare {
    pub counts: Counts,
    pub candidates_per_second: f64,
}

impl Bare {
    /// Scores the requests one after the other.
    pub fn measure(checkpoint: &Path, traffic: &Traffic, batch: usize) -> Result<Bare> {
        let snapshot = Snapshot::open(checkpoint, MODEL, &Options::default())?;
        let requests: Vec<_> =
            traffic.batches.iter().map(|batch| request(batch, &snapshot)).collect::<Result<_>>()?;
        let (mut scorer, mut scores) = (Scorer::new(), Scores::default());
        for request in &requests {
            scorer.score(&snapshot, &[request], &mut scores)?;
        }
        let mut counts = Counts::default();
        let start = Instant::now();
        while start.elapsed() < TIME {
            for request in &requests {
                let before = Instant::now();
                scorer.score(&snapshot, &[request], &mut scores)?;
                counts.add(before.elapsed().as_micros() as u64);
            }
        }
        let candidates = counts.count() as f64 * batch as f64;
        Ok(Bare { counts, candidates_per_second: candidates / start.elapsed().as_secs_f64() })
    }
}
