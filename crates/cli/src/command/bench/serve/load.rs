//! Open-loop load: requests are due at fixed moments, and latencies count from them.

use std::{
    collections::BTreeMap,
    sync::{
        PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use campanile_server::client::{GrpcClient, GrpcRequest, RestClient, RestRequest, floats};
use serde_json::Value;

use super::{
    latencies::Latencies,
    target::{Publication, Target},
    traffic::Traffic,
    wait_until,
};
use crate::args::{ServeBenchArguments, TransportName};

/// How long after a publication answers count as given during a swap.
const SWAP_TIME: Duration = Duration::from_secs(1);
/// Problems that are told.
const PROBLEMS_MAX: usize = 3;

/// What is asked, how, and of whom.
pub struct Load<'a> {
    target: &'a Target,
    traffic: &'a Traffic,
    transport: TransportName,
    connections: usize,
}

/// What came back.
#[derive(Debug, Default)]
pub struct Measured {
    pub answered: u64,
    pub refused: u64,
    pub failed: u64,
    /// Answers that are not the scores of the version that they name.
    pub mixed: u64,
    pub seconds: f64,
    pub steady: Latencies,
    pub swapping: Latencies,
    /// When each version answered first.
    pub versions: BTreeMap<String, Instant>,
    pub problems: Vec<String>,
}

/// How one request ended.
enum Ended {
    Answered { version: String, values: Vec<f32> },
    Refused,
    Failed(String),
}

/// What a client sends.
enum Question<'a> {
    Rest(&'a RestRequest),
    Grpc(&'a GrpcRequest),
}

enum Client {
    Rest(RestClient),
    Grpc(GrpcClient),
}

impl<'a> Load<'a> {
    pub fn new(
        target: &'a Target,
        traffic: &'a Traffic,
        transport: TransportName,
        arguments: &ServeBenchArguments,
    ) -> Load<'a> {
        Load { target, traffic, transport, connections: arguments.connections }
    }

    /// The same on another number of connections.
    pub fn on_connections(&self, connections: usize) -> Load<'a> {
        Load { connections, ..*self }
    }

    pub fn transport(&self) -> TransportName {
        self.transport
    }

    /// Asks everything once.
    pub fn warm_up(&self) -> Result<()> {
        let mut client = self.connect()?;
        for place in 0..self.traffic.batches.len() {
            let asked = client.question(self.traffic, place);
            if let Ended::Failed(problem) = client.ask(asked) {
                bail!("the server does not answer: {problem}");
            }
        }
        Ok(())
    }

    /// The median of every stage inside the server over its last seconds, as the server itself counts.
    pub fn stages(&self) -> Result<Vec<(String, u64)>> {
        let ask = RestRequest::new("GET", "/dashboard.json", &[], &[]);
        let page: Value = serde_json::from_slice(&RestClient::connect(self.target.http)?.send(&ask)?.body)?;
        let stages = page["stages"].as_array().map_or(&[][..], Vec::as_slice).iter();
        Ok(stages
            .filter(|stage| stage["count"].as_u64() > Some(0))
            .map(|stage| {
                (
                    stage["stage"].as_str().unwrap_or_default().to_owned(),
                    stage["p50_us"].as_u64().unwrap_or(0),
                )
            })
            .collect())
    }

    /// So many requests a second for so long; an infinite rate asks without a pause.
    pub fn run(&self, rate: f64, seconds: f64) -> Result<Measured> {
        let clients: Vec<Client> = (0..self.connections).map(|_| self.connect()).collect::<Result<_>>()?;
        let next = AtomicU64::new(0);
        let start = Instant::now() + Duration::from_millis(5);
        let (next, end) = (&next, start + Duration::from_secs_f64(seconds));
        let parts: Vec<Measured> = std::thread::scope(|scope| {
            let spawn = |client| scope.spawn(move || self.one_connection(client, next, (start, end), rate));
            let threads: Vec<_> = clients.into_iter().map(spawn).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        if parts.len() < self.connections {
            bail!("a client failed");
        }
        let mut all = Measured { seconds: start.elapsed().as_secs_f64(), ..Measured::default() };
        parts.into_iter().for_each(|part| all.merge(part));
        Ok(all)
    }

    fn one_connection(
        &self,
        mut client: Client,
        next: &AtomicU64,
        (start, end): (Instant, Instant),
        rate: f64,
    ) -> Measured {
        let mut measured = Measured::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let place = number as usize % self.traffic.batches.len();
            let asked = client.question(self.traffic, place);
            let due = match rate.is_finite() {
                true => start + Duration::from_secs_f64(number as f64 / rate),
                false => Instant::now(),
            };
            if due >= end {
                return measured;
            }
            wait_until(due);
            let ended = client.ask(asked);
            let now = Instant::now();
            let us = now.saturating_duration_since(due).as_micros() as u64;
            if let Ended::Answered { version, .. } = &ended
                && !measured.versions.contains_key(version)
            {
                measured.versions.insert(version.clone(), now);
            }
            measured.add(ended, self.traffic, place, self.is_swapping(now).then_some(us).ok_or(us));
            if matches!(client, Client::Rest(_)) && measured.failed > 0 {
                // A REST connection is not used again after a failure.
                match self.connect() {
                    Ok(anew) => client = anew,
                    Err(_) => return measured,
                }
            }
        }
    }

    fn is_swapping(&self, now: Instant) -> bool {
        let published = self.target.published.lock().unwrap_or_else(PoisonError::into_inner);
        published.last().is_some_and(|last| now.saturating_duration_since(last.at) < SWAP_TIME)
    }

    fn connect(&self) -> Result<Client> {
        Ok(match self.transport {
            TransportName::Grpc => Client::Grpc(GrpcClient::connect(self.target.grpc)?),
            _ => Client::Rest(RestClient::connect(self.target.http)?),
        })
    }
}

impl Client {
    /// A request that is ready to be sent.
    fn question<'a>(&self, traffic: &'a Traffic, place: usize) -> Question<'a> {
        match self {
            Client::Rest(_) => Question::Rest(&traffic.rest[place]),
            Client::Grpc(_) => Question::Grpc(&traffic.grpc[place]),
        }
    }

    fn ask(&mut self, question: Question<'_>) -> Ended {
        match (self, question) {
            (Client::Rest(client), Question::Rest(request)) => match client.send(request) {
                Ok(answer) if answer.status == 200 => {
                    rest_values(&answer.body, answer.header("inference-header-content-length"))
                }
                Ok(answer) if answer.status == 429 => Ended::Refused,
                Ok(answer) => Ended::Failed(String::from_utf8_lossy(&answer.body).into_owned()),
                Err(error) => Ended::Failed(error.to_string()),
            },
            (Client::Grpc(client), Question::Grpc(request)) => match client.send(request, None) {
                Ok(answer) => Ended::Answered {
                    values: answer.raw_output_contents.first().map(floats).unwrap_or_default(),
                    version: answer.model_version,
                },
                // The code of gRPC's RESOURCE_EXHAUSTED.
                Err((code, _)) if code as i32 == 8 => Ended::Refused,
                Err((_, problem)) => Ended::Failed(problem),
            },
            _ => unreachable!("a question is made for its client"),
        }
    }
}

fn rest_values(body: &[u8], split: Option<&str>) -> Ended {
    let split = split.and_then(|text| text.parse::<usize>().ok()).filter(|split| *split <= body.len());
    let Some(split) = split else { return Ended::Failed("the answer is not binary".to_owned()) };
    let head: Value = serde_json::from_slice(&body[..split]).unwrap_or_default();
    Ended::Answered {
        version: head["model_version"].as_str().unwrap_or_default().to_owned(),
        values: body[split..].as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
    }
}

impl Measured {
    /// Latencies one request; its time is `Ok` during a swap, `Err` otherwise.
    fn add(&mut self, ended: Ended, traffic: &Traffic, place: usize, us: Result<u64, u64>) {
        match ended {
            Ended::Answered { version, values } => {
                self.answered += 1;
                match us {
                    Ok(us) => self.swapping.add(us),
                    Err(us) => self.steady.add(us),
                }
                let wanted = traffic.expected.get(&version).map(|all| &all[place]);
                if !wanted.is_some_and(|wanted| same_bits(wanted, &values)) {
                    self.mixed += 1;
                    self.tell(format!(
                        "an answer of version {version} is not what that version says offline"
                    ));
                }
            }
            Ended::Refused => self.refused += 1,
            Ended::Failed(problem) => {
                self.failed += 1;
                self.tell(problem);
            }
        }
    }

    fn tell(&mut self, problem: String) {
        if self.problems.len() < PROBLEMS_MAX && !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    fn merge(&mut self, part: Measured) {
        self.answered += part.answered;
        self.refused += part.refused;
        self.failed += part.failed;
        self.mixed += part.mixed;
        self.steady.merge(&part.steady);
        self.swapping.merge(&part.swapping);
        for (version, at) in part.versions {
            let first = self.versions.entry(version).or_insert(at);
            *first = at.min(*first);
        }
        part.problems.into_iter().for_each(|problem| self.tell(problem));
    }

    /// All latencies.
    pub fn all(&self) -> Latencies {
        let mut all = self.steady.clone();
        all.merge(&self.swapping);
        all
    }

    /// How long after their publication versions answered first, in seconds and in rising order.
    pub fn until_served(&self, publications: &[Publication]) -> Vec<f64> {
        let wait = |published: &Publication| {
            let first = self.versions.get(&published.version)?;
            Some(first.saturating_duration_since(published.at).as_secs_f64())
        };
        let mut seconds: Vec<f64> = publications.iter().filter_map(wait).collect();
        seconds.sort_by(f64::total_cmp);
        seconds
    }

    /// The 99th percentile within a second of a new version, over that of the rest of the time.
    pub fn swap_ratio(&self) -> f64 {
        self.swapping.percentile(0.99) as f64 / self.steady.percentile(0.99).max(1) as f64
    }

    pub fn answered_per_second(&self) -> f64 {
        self.answered as f64 / self.seconds.max(1e-9)
    }
}

fn same_bits(wanted: &[f32], found: &[f32]) -> bool {
    wanted.len() == found.len() && wanted.iter().zip(found).all(|(a, b)| a.to_bits() == b.to_bits())
}
