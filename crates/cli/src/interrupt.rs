//! Interrupts: the first asks a run to stop after its step, a second one ends the process as it stands.
//!
//! Until a command listens, a signal does what it does to any program. A rank may also be asked by its launcher, which
//! hears the terminal in place of all ranks ([`crate::heartbeat`]).

use std::{
    error, fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

/// What asks a process to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// What `kill`, `systemd` and container engines send.
    Terminate,
}

impl Signal {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Signal::Interrupt => "SIGINT",
            Signal::Terminate => "SIGTERM",
        }
    }

    /// What a shell tells of a program that the signal has ended.
    pub fn exit_code(self) -> u8 {
        match self {
            Signal::Interrupt => 128 + 2,
            Signal::Terminate => 128 + 15,
        }
    }
}

/// A command that was asked to stop, and has left everything in order: no success, and no failure.
#[derive(Debug)]
pub struct Interrupted {
    /// What asked.
    pub signal: Signal,
    /// Where it stopped, and how it goes on.
    pub words: String,
}

impl fmt::Display for Interrupted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "stopped by {}: {}", self.signal.name(), self.words)
    }
}

impl error::Error for Interrupted {}

/// What is done at a signal, with how many there were.
type Then = Box<dyn Fn(Signal, u32) + Send + Sync>;

/// The signals that this process has heard.
#[derive(Default)]
pub struct Interrupts {
    count: AtomicU32,
    first: Mutex<Option<Signal>>,
    then: OnceLock<Then>,
}

impl Interrupts {
    /// The first signal, if there was one.
    pub fn first(&self) -> Option<Signal> {
        *self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there were.
    #[cfg(feature = "mpi")]
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    /// Listens from now on: at every signal `then` is called. Only the first call counts.
    pub fn listen(self: &Arc<Self>, then: impl Fn(Signal, u32) + Send + Sync + 'static) -> Result<()> {
        if self.then.set(Box::new(then)).is_err() {
            return Ok(());
        }
        let listen = || -> std::io::Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
            let (mut interrupts, mut terminations) = {
                let _inside = runtime.enter();
                (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
            };
            let own = Arc::clone(self);
            let listen = async move {
                loop {
                    tokio::select! {
                        _ = interrupts.recv() => own.hear(Signal::Interrupt),
                        _ = terminations.recv() => own.hear(Signal::Terminate),
                    }
                }
            };
            let thread = std::thread::Builder::new().name("signals".to_owned());
            thread.spawn(move || runtime.block_on(listen)).map(drop)
        };
        listen().context("cannot listen for interrupts")
    }

    /// As [`Interrupts::listen`], for a run that looks at [`Interrupts::first`] after every step: says so at the first
    /// signal, and calls `stop`; at the second the process ends.
    pub fn listen_for_a_run(self: &Arc<Self>, stop: impl Fn() + Send + Sync + 'static) -> Result<()> {
        self.listen(move |signal, count| {
            if count > 1 {
                std::process::exit(i32::from(signal.exit_code()));
            }
            eprintln!(
                "{}: stopping after this step, with a checkpoint; a second one ends the run at once, and all since its last \
                 checkpoint is lost",
                signal.name()
            );
            stop();
        })
    }

    /// The launcher of this rank asks it to stop, and may ask more than once, or after the system has. A rank that does
    /// not listen, for it is not training, ends as any program would.
    #[cfg(feature = "mpi")]
    pub fn asked_by_launcher(&self, signal: Signal) {
        if self.then.get().is_none() {
            std::process::exit(i32::from(signal.exit_code()));
        }
        if self.count() == 0 {
            self.hear(signal);
        }
    }

    fn hear(&self, signal: Signal) {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(signal);
        let count = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        if let Some(then) = self.then.get() {
            then(signal, count);
        }
    }
}
