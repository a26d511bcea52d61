//! The scorer without a server around it, on the same requests, in three ways.
//!
//! One after the other, it has everything in its caches. Asked at the moments at which the server is asked, it finds them
//! cold and its core asleep, as the server does: that is what the server's latency is compared with. Behind a bare socket,
//! where a thread reads as many bytes as a request has, scores and writes the scores, it shows what waking two threads
//! costs on this machine, whatever the protocol.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use campanile_serve::{Options, Request, Scorer, Scores, Snapshot};

use super::{
    latencies::Latencies,
    traffic::{MODEL, Traffic, request},
    wait_until,
};

/// How long to measure each way.
const TIME: Duration = Duration::from_secs(3);

/// A scorer of its own and the requests.
pub struct Bare {
    snapshot: Snapshot,
    requests: Vec<Request>,
    scorer: Scorer,
    scores: Scores,
}

impl Bare {
    /// Opens the checkpoint and scores everything once.
    pub fn new(checkpoint: &Path, traffic: &Traffic) -> Result<Bare> {
        let snapshot = Snapshot::open(checkpoint, MODEL, &Options::default())?;
        let requests: Vec<_> =
            traffic.batches.iter().map(|batch| request(batch, &snapshot)).collect::<Result<_>>()?;
        let (scorer, scores) = (Scorer::new(), Scores::default());
        let mut bare = Bare { snapshot, requests, scorer, scores };
        for place in 0..bare.requests.len() {
            bare.score(place)?;
        }
        Ok(bare)
    }

    fn score(&mut self, place: usize) -> Result<&Scores> {
        let request = &self.requests[place % self.requests.len()];
        self.scorer.score(&self.snapshot, &[request], &mut self.scores)?;
        Ok(&self.scores)
    }

    /// Scores the requests one after the other.
    pub fn without_pause(&mut self) -> Result<Latencies> {
        self.when_due(f64::INFINITY)
    }

    /// Scores `rate` requests a second, each when it is due.
    pub fn when_due(&mut self, rate: f64) -> Result<Latencies> {
        paced(rate, |place| self.score(place).map(drop))
    }

    /// The same behind a socket: `bytes` come in, the scores go out.
    pub fn behind_a_socket(&mut self, rate: f64, bytes: usize) -> Result<Latencies> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port for the bare socket")?;
        let mut client = TcpStream::connect(listener.local_addr()?)?;
        let (mut served, _) = listener.accept()?;
        client.set_nodelay(true)?;
        served.set_nodelay(true)?;
        std::thread::scope(|scope| {
            let server = scope.spawn(move || -> Result<()> {
                let mut asked = vec![0; bytes];
                for place in 0.. {
                    // The client ends by closing its side.
                    if served.read_exact(&mut asked).is_err() {
                        break;
                    }
                    let scores = self.score(place)?;
                    let answer: Vec<u8> = scores.probabilities.iter().flat_map(|p| p.to_le_bytes()).collect();
                    served.write_all(&(answer.len() as u32).to_le_bytes())?;
                    served.write_all(&answer)?;
                }
                Ok(())
            });
            let (asked, mut answer) = (vec![0; bytes], Vec::new());
            let latencies = paced(rate, |_| {
                client.write_all(&asked)?;
                let mut length = [0; 4];
                client.read_exact(&mut length)?;
                answer.resize(u32::from_le_bytes(length) as usize, 0);
                Ok(client.read_exact(&mut answer)?)
            });
            drop(client);
            server.join().map_err(|_| anyhow::anyhow!("the thread of the bare socket failed"))??;
            latencies
        })
    }
}

/// Calls at `rate` a second, each when it is due, or one after the other when the rate is infinite; latencies count from
/// the moment at which a call is due.
fn paced(rate: f64, mut call: impl FnMut(usize) -> Result<()>) -> Result<Latencies> {
    let mut latencies = Latencies::default();
    let start = Instant::now();
    for place in 0.. {
        let due = match rate.is_finite() {
            true => start + Duration::from_secs_f64(place as f64 / rate),
            false => Instant::now(),
        };
        if due >= start + TIME {
            break;
        }
        wait_until(due);
        call(place)?;
        latencies.add(due.elapsed().as_micros() as u64);
    }
    Ok(latencies)
}
