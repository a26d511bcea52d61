//! A rank shows `campanile launch` that it lives, outside MPI.
//!
//! MPI does not notice a process that was stopped or a host whose link is dead: the others wait for ever. So every
//! rank keeps a connection to the launcher and says once a second where it is; the launcher answers every beat. A beat
//! alone proves only that this thread lives, so it also carries how much the rank has done. Who hears nothing for too
//! long takes the other for dead: the launcher ends the job, and a rank ends itself.
//!
//! A beat is a line of JSON; the answer is a byte, which says whether the rank is to stop. The first line of a connection has the token that the launcher put
//! into the environment, so that strangers are not heard.

use std::{
    io::{Read, Write},
    net::{TcpStream, ToSocketAddrs},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use campanile_comm::{host_name, mpi::Activity};
use campanile_train::ranks::Pulse;
use serde_json::json;

use crate::{
    awake::AwakeClock,
    interrupt::{Interrupts, Signal},
};

/// The variable in which the launcher tells where it is.
pub const VARIABLE: &str = "CAMPANILE_LAUNCHER";

/// Time between two beats.
const BEAT: Duration = Duration::from_secs(1);

/// Where the launcher listens, and how it knows its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Launcher {
    /// Addresses with port; which of them can be reached depends on the host.
    pub addresses: Vec<String>,
    /// A secret of this launch.
    pub token: String,
    /// After this time without a word the other is taken for dead.
    pub silence: Duration,
}

impl Launcher {
    /// The launcher that started this process, if one did.
    pub fn from_environment() -> Result<Option<Launcher>> {
        let Some(words) = std::env::var_os(VARIABLE) else { return Ok(None) };
        let words = words.to_string_lossy().into_owned();
        let launcher =
            Launcher::read(&words).with_context(|| format!("{VARIABLE}=`{words}` cannot be read"))?;
        Ok(Some(launcher))
    }

    /// As a value of the variable.
    pub fn words(&self) -> String {
        format!("{};{};{}", self.addresses.join(","), self.token, self.silence.as_secs())
    }

    fn read(words: &str) -> Option<Launcher> {
        let (addresses, rest) = words.split_once(';')?;
        let (token, seconds) = rest.split_once(';')?;
        Some(Launcher {
            addresses: addresses.split(',').map(str::to_owned).collect(),
            token: token.to_owned(),
            silence: Duration::from_secs(seconds.parse().ok()?),
        })
    }

    /// Connects to the first address that answers; tried again until `silence` has passed.
    fn connect(&self) -> Result<TcpStream> {
        let start = Instant::now();
        loop {
            for address in self.addresses.iter().flat_map(|address| address.to_socket_addrs()).flatten() {
                if let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_secs(2)) {
                    return Ok(stream);
                }
            }
            if start.elapsed() > self.silence {
                bail!("campanile launch cannot be reached at {}", self.addresses.join(" or "));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// The answer to a beat.
pub const GO_ON: u8 = b'.';
/// The answer when the launcher was interrupted.
pub const STOP_INTERRUPTED: u8 = b'i';
/// The answer when the launcher was told to terminate.
pub const STOP_TERMINATED: u8 = b't';

/// What a rank shows of itself, and where it hears that it is to stop.
pub struct Watched {
    /// How far it is.
    pub pulse: Arc<Pulse>,
    /// Whether messages move.
    pub activity: Activity,
    /// Told when the launcher wants the job to stop.
    pub interrupts: Arc<Interrupts>,
}

/// The thread that beats.
pub struct Heartbeat {
    shared: Arc<Shared>,
    thread: std::thread::JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    goodbye: Mutex<Option<String>>,
    kick: Condvar,
    is_over: AtomicBool,
}

impl Heartbeat {
    /// Connects and begins to beat.
    pub fn start(launcher: Launcher, rank: usize, watched: Watched) -> Result<Heartbeat> {
        let stream = launcher.connect()?;
        let shared = Arc::new(Shared::default());
        let mut beater = Beater {
            stream,
            launcher,
            rank,
            watched,
            shared: Arc::clone(&shared),
            clock: AwakeClock::start(),
            answered: Duration::ZERO,
        };
        beater.beat(None).context("the first beat was not taken by campanile launch")?;
        let thread = std::thread::Builder::new().name("heartbeat".to_owned()).spawn(move || beater.run())?;
        Ok(Heartbeat { shared, thread })
    }

    /// Ends the beats; the launcher then does not miss them. `reason` is what this rank itself failed with.
    pub fn say_goodbye(self, is_fine: bool, reason: Option<&str>) {
        let words = json!({ "fine": is_fine, "reason": reason }).to_string();
        *self.shared.goodbye.lock().unwrap_or_else(PoisonError::into_inner) = Some(words);
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.shared.kick.notify_all();
        // A thread that panicked has nothing more to say.
        let _ = self.thread.join();
    }
}

struct Beater {
    stream: TcpStream,
    launcher: Launcher,
    rank: usize,
    watched: Watched,
    shared: Arc<Shared>,
    clock: AwakeClock,
    /// When the launcher was heard last, by the clock.
    answered: Duration,
}

impl Beater {
    fn run(mut self) {
        loop {
            let goodbye = self.shared.goodbye.lock().unwrap_or_else(PoisonError::into_inner);
            let (mut goodbye, _) = self
                .shared
                .kick
                .wait_timeout_while(goodbye, BEAT, |goodbye| goodbye.is_none())
                .unwrap_or_else(PoisonError::into_inner);
            let words = goodbye.take();
            drop(goodbye);
            let is_last = words.is_some();
            let outcome = self.beat(words);
            if is_last {
                return;
            }
            let lost = outcome.is_err() || self.clock.look() - self.answered > self.launcher.silence;
            if lost && !self.shared.is_over.load(Ordering::SeqCst) {
                // Nobody watches any more, and this rank may wait for one that is gone: it must not stay behind.
                eprintln!(
                    "error: rank {} (host {}): campanile launch is gone, so this rank ends",
                    self.rank,
                    host_name()
                );
                std::process::exit(1);
            }
        }
    }

    /// Says where the rank is, and reads the answers to earlier beats.
    fn beat(&mut self, goodbye: Option<String>) -> std::io::Result<()> {
        let goodbye = goodbye.and_then(|words| serde_json::from_str::<serde_json::Value>(&words).ok());
        let Watched { pulse, activity, .. } = &self.watched;
        let line = json!({
            "token": self.launcher.token,
            "rank": self.rank,
            "host": host_name(),
            "pid": std::process::id(),
            "phase": pulse.phase(),
            "step": pulse.step(),
            "moves": pulse.moves() + activity.exchanges(),
            "waiting": activity.is_waiting(),
            "goodbye": goodbye,
        });
        self.stream.set_write_timeout(Some(self.launcher.silence))?;
        self.stream.write_all(format!("{line}\n").as_bytes())?;
        self.stream.set_nonblocking(true)?;
        let mut answers = [0u8; 256];
        let read = self.stream.read(&mut answers);
        self.stream.set_nonblocking(false)?;
        match read {
            Ok(0) => Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.answered = self.clock.look();
                for (answer, signal) in
                    [(STOP_INTERRUPTED, Signal::Interrupt), (STOP_TERMINATED, Signal::Terminate)]
                {
                    if answers[..count].contains(&answer) {
                        self.watched.interrupts.asked_by_launcher(signal);
                    }
                }
                Ok(())
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }
}
