//! `campanile launch`: mpirun with somebody who watches.
//!
//! MPI ends a job when a process dies, but it waits for ever for one that was stopped and for a host behind a dead
//! link. So the ranks keep a heartbeat to this process ([`crate::heartbeat`]), and it ends a job that hangs, with a
//! line that says which rank on which host, and starts it again from its last checkpoint when asked.

mod crew;
mod mpirun;

use std::{
    net::{TcpListener, UdpSocket},
    process::{Child, ExitStatus},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use campanile_comm::host_name;

use self::crew::{Crew, Limits};
use crate::{args::LaunchArguments, heartbeat::Launcher};

/// How often the launcher looks.
const LOOK: Duration = Duration::from_millis(50);

/// How long mpirun has to end a job by itself after it has lost a rank, or after it was asked to.
const MPIRUN_SECONDS: f64 = 3.0;

/// How an attempt ended.
enum Ending {
    Fine,
    /// Ranks failed with a reason, which they have told.
    Told,
    /// A rank died or hangs: what to tell of it.
    Lost(String),
}

/// Runs the command.
pub fn run(arguments: &LaunchArguments) -> Result<()> {
    if arguments.processes == 0 {
        bail!("-n must be at least 1");
    }
    if arguments.silence == 0 {
        bail!("--silence must be at least 1 second");
    }
    let mut command = arguments.command.clone();
    for attempt in 0..=arguments.restarts {
        if attempt > 0 {
            eprintln!(
                "launch: starting again from the last checkpoint ({attempt} of {})",
                arguments.restarts
            );
            // What was trained before the fault is not to be thrown away.
            command.retain(|word| word != "--fresh");
        }
        match attempt_once(arguments, &command)? {
            Ending::Fine => return Ok(()),
            Ending::Told => bail!("the job failed; see the message of its rank above"),
            Ending::Lost(words) => eprintln!("launch: {words}"),
        }
    }
    bail!(
        "the job did not end well; the same command goes on from its last checkpoint, on any number of ranks"
    )
}

/// Starts the job and watches it to its end.
fn attempt_once(arguments: &LaunchArguments, command: &[String]) -> Result<Ending> {
    let hosts = mpirun::hosts(arguments)?;
    let listener = TcpListener::bind(("0.0.0.0", 0)).context("cannot listen for the ranks' heartbeats")?;
    listener.set_nonblocking(true)?;
    let launcher = Launcher {
        addresses: addresses(listener.local_addr()?.port(), &hosts),
        token: token()?,
        silence: Duration::from_secs(arguments.silence),
    };
    let (mut child, line) = mpirun::start(arguments, &hosts, command, &launcher)?;
    eprintln!("launch: {line}");
    let limits = Limits {
        silence: launcher.silence,
        stall: Duration::from_secs(arguments.stall),
        start: launcher.silence.max(Duration::from_secs(60)),
    };
    let mut crew = Crew::new(arguments.processes, launcher.token, limits);
    let mut lost_since: Option<Instant> = None;
    loop {
        let trouble = crew.look(&listener);
        if let Some(status) = child.try_wait().context("cannot wait for mpirun")? {
            // The ranks' last words may still be under way.
            crew.look(&listener);
            return Ok(ending(&crew, status));
        }
        if let Some(words) = trouble {
            end(&mut child, &crew)?;
            return Ok(Ending::Lost(words));
        }
        if crew.lost().is_some() {
            let since = *lost_since.get_or_insert_with(Instant::now);
            if since.elapsed().as_secs_f64() > MPIRUN_SECONDS {
                end(&mut child, &crew)?;
                return Ok(ending(&crew, ExitStatus::default()));
            }
        }
        std::thread::sleep(LOOK);
    }
}

fn ending(crew: &Crew, status: ExitStatus) -> Ending {
    if let Some(words) = crew.lost() {
        return Ending::Lost(words);
    }
    if status.success() {
        return Ending::Fine;
    }
    if crew.has_told_a_reason() {
        return Ending::Told;
    }
    Ending::Lost(format!("mpirun ended with {status} before the ranks said anything; its message is above"))
}

/// Ends mpirun and all ranks of this host; those of other hosts end with mpirun's daemon there, or by themselves when
/// they hear nothing of this process any more.
fn end(child: &mut Child, crew: &Crew) -> Result<()> {
    signal("TERM", &[child.id()]);
    // A stopped process hears nothing but this.
    signal("KILL", &crew.processes_on(&host_name()));
    let start = Instant::now();
    while child.try_wait().context("cannot wait for mpirun")?.is_none() {
        if start.elapsed().as_secs_f64() > MPIRUN_SECONDS {
            child.kill().context("cannot end mpirun")?;
            child.wait().context("cannot wait for mpirun")?;
            break;
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

fn signal(name: &str, processes: &[u32]) {
    if processes.is_empty() {
        return;
    }
    let list: Vec<String> = processes.iter().map(u32::to_string).collect();
    // A process that is gone already makes this fail, which is as well.
    let _ = std::process::Command::new("sh")
        .arg("-c")
        .arg(format!("kill -{name} {} 2>/dev/null", list.join(" ")))
        .status();
}

/// Where the ranks can reach this process: on the way to each of their hosts, and on this host itself.
fn addresses(port: u16, hosts: &[mpirun::Host]) -> Vec<String> {
    let mut addresses = Vec::new();
    for host in hosts {
        // Nothing is sent: this only asks the system which of its addresses it would use.
        let local = UdpSocket::bind(("0.0.0.0", 0)).and_then(|socket| {
            socket.connect((host.name.as_str(), port))?;
            socket.local_addr()
        });
        if let Ok(local) = local
            && !local.ip().is_loopback()
        {
            addresses.push(format!("{}:{port}", local.ip()));
        }
    }
    addresses.push(format!("127.0.0.1:{port}"));
    addresses.sort();
    addresses.dedup();
    // The loopback of another host is not this one.
    addresses.sort_by_key(|address| address.starts_with("127."));
    addresses
}

/// A secret that nobody can guess.
fn token() -> Result<String> {
    use std::io::Read;
    let mut bytes = [0u8; 16];
    let mut source = std::fs::File::open("/dev/urandom").context("cannot draw a token")?;
    source.read_exact(&mut bytes).context("cannot draw a token")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
