//! A running server: listeners, scoring threads, and the thread that follows the source.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use rustls::ServerConfig;
use thiserror::Error;
use tokio::{
    net::TcpListener,
    runtime::Runtime,
    sync::{Semaphore, watch},
    task::JoinHandle as Task,
};

use crate::{
    background,
    engine::{Engine, ScoringThreads},
    grpc,
    journal::Journal,
    listener::{Door, Speaker},
    models::Followed,
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
    draining: watch::Sender<bool>,
    scoring: ScoringThreads,
    follower: Follower,
    drain_max: Duration,
    /// Where REST answers; the port is the real one when 0 was asked for.
    pub http: SocketAddr,
    /// Where gRPC answers.
    pub grpc: Option<SocketAddr>,
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
        let (draining, drains) = watch::channel(false);
        let door = Door {
            engine: Arc::clone(&engine),
            access: Arc::new(options.access.clone()),
            tls: options.tls.clone(),
            connections: Arc::new(Semaphore::new(options.connections_max as usize)),
            connections_max: options.connections_max,
            draining: drains,
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
            let connections = Arc::new(Semaphore::new(options.connections_max as usize));
            let door = Door { connections, local: address.ip().is_loopback(), ..door.clone() };
            doors.push(runtime.spawn(door.serve(listener, speaker)));
            address
        });
        runtime.spawn(crate::dashboard::watch(Arc::clone(&engine)));
        let scoring = ScoringThreads::start(&engine, options.scoring_threads)?;
        let follower = Follower::start(&engine, options.poll, journal)?;
        let drain_max = options.drain_max;
        Ok(Server { engine, runtime, doors, draining, scoring, follower, drain_max, http, grpc })
    }

    /// What it serves.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Waits until the process is told to end (Ctrl-C or SIGTERM).
    ///
    /// # Errors
    /// When signals cannot be heard.
    pub fn wait_for_signal(&self) -> io::Result<()> {
        self.runtime.block_on(async {
            let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
            tokio::select! {
                done = tokio::signal::ctrl_c() => done,
                _ = terminate.recv() => Ok(()),
            }
        })
    }

    /// Ends in order: no new requests, those under way are answered, then threads end. True when every connection
    /// ended by itself within the time.
    pub fn stop(self) -> bool {
        self.engine.drain();
        let _ = self.draining.send(true);
        let all = async {
            for door in self.doors {
                let _ = door.await;
            }
        };
        let in_time =
            self.runtime.block_on(async { tokio::time::timeout(self.drain_max, all).await.is_ok() });
        self.follower.finish();
        self.scoring.finish();
        if let Some(traces) = self.engine.listeners.traces.get() {
            traces.finish();
        }
        self.runtime.shutdown_timeout(Duration::from_secs(1));
        in_time
    }
}

/// The thread that asks the source for newer versions, loads them and frees older ones. It gives way to requests.
#[derive(Debug)]
struct Follower {
    stop: SyncSender<()>,
    thread: JoinHandle<()>,
}

impl Follower {
    fn start(engine: &Arc<Engine>, poll: Duration, journal: Journal) -> io::Result<Follower> {
        let (stop, stopped) = sync_channel(1);
        let engine = Arc::clone(engine);
        let thread = background::spawn("follow", move || {
            loop {
                follow_once(&engine, &journal);
                if stopped.recv_timeout(poll) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(Follower { stop, thread })
    }

    fn finish(self) {
        let _ = self.stop.try_send(());
        let _ = self.thread.join();
    }
}

/// Brings the models up to what the source has, and says what changed.
pub fn follow_once(engine: &Engine, journal: &Journal) {
    let followed = match engine.models.follow() {
        Ok(followed) => followed,
        Err(error) => {
            journal.say("source", &[("problem", &error.to_string())]);
            return;
        }
    };
    for change in followed {
        match change {
            Followed::Swapped(loaded) => {
                engine.metrics.swaps.fetch_add(1, Ordering::Relaxed);
                let model = &loaded.snapshot.version().model;
                journal.say("serving", &[("model", model), ("version", &loaded.version)]);
            }
            Followed::Failed { model, problem } => {
                engine.metrics.load_failures.fetch_add(1, Ordering::Relaxed);
                journal.say("load failed", &[("model", &model), ("problem", &problem)]);
            }
        }
    }
}
