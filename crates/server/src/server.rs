//! A running server: listeners, scoring threads, and the thread that follows the source.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use rustls::ServerConfig;
use thiserror::Error;
use tokio::{
    net::TcpListener,
    runtime::Runtime,
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::JoinHandle as Task,
};

use crate::{
    budget::Budget,
    clock,
    engine::{Engine, ScoringThreads},
    follower::Follower,
    grpc,
    journal::Journal,
    listener::{Door, Speaker},
    places::{Patience, Places},
    rest,
    security::Access,
    traces::Traces,
};

/// How a server runs; what it serves is in the [`Engine`].
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// REST, metrics and the page.
    pub http: SocketAddr,
    /// gRPC, if wanted.
    pub grpc: Option<SocketAddr>,
    /// TLS on both.
    pub tls: Option<Arc<ServerConfig>>,
    /// Who may ask.
    pub access: Access,
    /// Threads that score.
    pub scoring_threads: usize,
    /// Threads that read and write.
    pub network_threads: usize,
    /// Connections that may be open on each address.
    pub connections_max: u32,
    /// Bytes that all requests together may take: their bodies, what they expand to, and their answers.
    pub request_bytes_max: u64,
    /// How long clients may take.
    pub patience: Patience,
    /// How often the source is asked for a newer version.
    pub poll: Duration,
    /// How long requests that are under way may take when the server ends.
    pub drain_max: Duration,
    /// Where traces go, if anywhere.
    pub traces: Option<TraceOptions>,
}

/// Where traces go.
#[derive(Debug, Clone)]
pub struct TraceOptions {
    /// An OTLP collector that speaks gRPC, such as `http://127.0.0.1:4317`.
    pub collector: String,
    /// The share of requests that are traced.
    pub share: f64,
}

/// Why a server does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// An address is taken or not ours.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The collector cannot be spoken to.
    #[error("cannot send traces to {collector}: {problem}; give an address such as http://127.0.0.1:4317")]
    Traces {
        /// Its address.
        collector: String,
        /// Why.
        problem: String,
    },
    /// The system gives no threads.
    #[error("cannot start threads: {0}")]
    Threads(#[from] io::Error),
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    engine: Arc<Engine>,
    runtime: Runtime,
    doors: Vec<Task<()>>,
    closing: watch::Sender<bool>,
    scoring: ScoringThreads,
    follower: Follower,
    drain_max: Duration,
    /// Where REST answers; the port is the real one when 0 was asked for.
    pub http: SocketAddr,
    /// Where gRPC answers.
    pub grpc: Option<SocketAddr>,
}

/// How a process is told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// By somebody at a terminal, who waits.
    Interrupt,
    /// By whatever runs it.
    Terminate,
}

impl TraceOptions {
    fn start(&self) -> Result<Traces, StartError> {
        let collector = self.collector.clone();
        // Collectors are asked by the machine beside them; one far away needs an agent here, which also keeps spans
        // when it cannot be reached.
        if !collector.starts_with("http://") {
            return Err(StartError::Traces { collector, problem: "it is no http:// address".to_owned() });
        }
        Traces::to(&collector, self.share)
            .map_err(|error| StartError::Traces { collector, problem: error.to_string() })
    }
}

impl Server {
    /// Starts everything. Models are loaded in the background, unless that was done before.
    ///
    /// # Errors
    /// When an address or threads cannot be had.
    pub fn start(
        engine: Arc<Engine>,
        options: &ServerOptions,
        journal: Journal,
    ) -> Result<Server, StartError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(options.network_threads.max(1))
            .thread_name("network")
            .enable_all()
            .build()?;
        if let Some(wanted) = &options.traces {
            let _inside = runtime.enter();
            let _ = engine.listeners.traces.set(wanted.start()?);
        }
        let (closing, closes) = watch::channel(false);
        let door = Door {
            engine: Arc::clone(&engine),
            access: options.access.clone(),
            tls: options.tls.clone(),
            places: Places::new(options.connections_max as usize),
            budget: Budget::new(options.request_bytes_max),
            patience: options.patience,
            closing: closes,
            local: options.http.ip().is_loopback(),
        };
        let listen = |address: SocketAddr| {
            let bound = runtime.block_on(TcpListener::bind(address));
            bound
                .and_then(|listener| Ok((listener.local_addr()?, listener)))
                .map_err(|source| StartError::Listen { address, source })
        };
        let (http, http_listener) = listen(options.http)?;
        let grpc = options.grpc.map(listen).transpose()?;
        let rest = Speaker::Rest(rest::router(Arc::clone(&engine)));
        let mut doors = vec![runtime.spawn(door.clone().serve(http_listener, rest))];
        let grpc = grpc.map(|(address, listener)| {
            let speaker = Speaker::Grpc(grpc::service(Arc::clone(&engine)));
            // Places of its own: a crowd here must not keep anybody from asking for health there.
            let places = Places::new(options.connections_max as usize);
            let door = Door { places, local: address.ip().is_loopback(), ..door.clone() };
            doors.push(runtime.spawn(door.serve(listener, speaker)));
            address
        });
        runtime.spawn(crate::dashboard::watch(Arc::clone(&engine)));
        let scoring = ScoringThreads::start(&engine, options.scoring_threads)?;
        let follower = Follower::start(&engine, options.poll, options.access.clone(), journal)?;
        let drain_max = options.drain_max;
        Ok(Server { engine, runtime, doors, closing, scoring, follower, drain_max, http, grpc })
    }

    /// What it serves.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Waits until the process is told to end (Ctrl-C or SIGTERM).
    ///
    /// # Errors
    /// When signals cannot be heard.
    pub fn wait_for_signal(&self) -> io::Result<Told> {
        self.runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate())?;
            tokio::select! {
                done = tokio::signal::ctrl_c() => done.map(|()| Told::Interrupt),
                _ = terminate.recv() => Ok(Told::Terminate),
            }
        })
    }

    /// Says that it will end, and answers on: health is not ready from now on, so that whoever spreads requests over
    /// servers sends them elsewhere. Returns after this time, or as soon as it is told to end once more.
    ///
    /// # Errors
    /// When signals cannot be heard.
    pub fn announce_end(&self, time: Duration) -> io::Result<()> {
        self.engine.announce_end();
        let told = async {
            let mut terminate = signal(SignalKind::terminate())?;
            tokio::select! {
                done = tokio::signal::ctrl_c() => done,
                _ = terminate.recv() => Ok(()),
            }
        };
        self.runtime.block_on(async { tokio::time::timeout(time, told).await.unwrap_or(Ok(())) })
    }

    /// Ends in order: new requests are turned away in words, those under way are answered, then addresses are closed and
    /// threads end. True when every connection ended by itself within the time.
    pub fn stop(self) -> bool {
        self.engine.drain();
        let end = clock::timer_now() + self.drain_max;
        let answered = self.engine.all_answered();
        let _ = self.runtime.block_on(async { tokio::time::timeout_at(end, answered).await });
        let _ = self.closing.send(true);
        let all = async {
            for door in self.doors {
                let _ = door.await;
            }
        };
        let in_time = self.runtime.block_on(async { tokio::time::timeout_at(end, all).await.is_ok() });
        self.follower.finish();
        self.scoring.finish();
        if let Some(traces) = self.engine.listeners.traces.get() {
            traces.finish();
        }
        self.runtime.shutdown_timeout(Duration::from_secs(1));
        in_time
    }
}
