//! `campanile launch`: mpirun with somebody who watches.
//!
//! MPI ends a job when a process dies, but it waits for ever for one that was stopped and for a host behind a dead
//! link. So the ranks keep a heartbeat to this process ([`crate::heartbeat`]), and it ends a job that hangs, with a
//! line that says which rank on which host, and starts it again from its last checkpoint when asked.

mod crew;
mod mpirun;
mod own;

use std::{
    net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket},
    process::{Child, ExitStatus},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use campanile_comm::host_name;

use self::crew::{Crew, Limits};
use crate::{
    args::LaunchArguments,
    heartbeat::Launcher,
    interrupt::{Interrupted, Interrupts, Signal},
};

/// How often the launcher looks: often enough to tell which rank went first, and seldom enough to cost nothing.
fn look_every(ranks: usize) -> Duration {
    Duration::from_micros(100 * ranks as u64).clamp(Duration::from_millis(2), Duration::from_millis(50))
}

/// How long mpirun has to end a job by itself after it has lost a rank, or after it was asked to.
const MPIRUN_SECONDS: f64 = 3.0;

/// How an attempt ended.
enum Ending {
    Fine,
    /// Ranks failed with a reason, which they have told.
    Told,
    /// A rank died or hangs: what to tell of it.
    Lost(String),
    /// It was asked to stop, and has.
    Interrupted(Signal),
}

/// Runs the command.
pub fn run(arguments: &LaunchArguments) -> Result<()> {
    if arguments.processes == 0 {
        bail!("-n must be at least 1");
    }
    if arguments.silence == 0 {
        bail!("--silence must be at least 1 second");
    }
    // The launcher alone hears the terminal: ranks stop together, with a checkpoint, and mpirun would end them at once.
    let interrupts = Arc::<Interrupts>::default();
    interrupts.listen(|signal, count| {
        eprintln!(
            "launch: {}: {}",
            signal.name(),
            match count {
                1 => "the ranks are asked to stop; a second one ends them at once",
                _ => "ended",
            }
        );
    })?;
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
        match attempt_once(arguments, &command, &interrupts)? {
            Ending::Fine => return Ok(()),
            Ending::Told => bail!("the job failed; see the message of its rank above"),
            Ending::Lost(words) => {
                eprintln!("launch: {words}");
                // Who was told to stop does not start again.
                if let Some(signal) = interrupts.first() {
                    return Err(interrupted(signal).into());
                }
            }
            Ending::Interrupted(signal) => return Err(interrupted(signal).into()),
        }
    }
    bail!(
        "the job did not end well; the same command goes on from its last checkpoint, on any number of ranks"
    )
}

fn interrupted(signal: Signal) -> Interrupted {
    Interrupted { signal, words: "the same command goes on from the last checkpoint".to_owned() }
}

/// Starts the job and watches it to its end.
fn attempt_once(arguments: &LaunchArguments, command: &[String], interrupts: &Interrupts) -> Result<Ending> {
    let hosts = mpirun::hosts(arguments)?;
    let listeners = listen(&hosts).context("cannot listen for the ranks' heartbeats")?;
    let addresses = listeners.iter().map(|listener| Ok(listener.local_addr()?.to_string()));
    let launcher = Launcher {
        addresses: addresses.collect::<Result<_>>()?,
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
        if let Some(signal) = interrupts.first() {
            crew.ask_to_stop(signal);
            if interrupts.count() > 1 {
                end(&mut child, &crew)?;
                return Ok(Ending::Interrupted(signal));
            }
        }
        let trouble = crew.look(&listeners);
        if let Some(status) = child.try_wait().context("cannot wait for mpirun")? {
            // The ranks' last words may still be under way.
            crew.look(&listeners);
            return Ok(ending(&crew, status, interrupts.first()));
        }
        if let Some(words) = trouble {
            end(&mut child, &crew)?;
            return Ok(Ending::Lost(words));
        }
        if crew.lost().is_some() {
            let since = *lost_since.get_or_insert_with(Instant::now);
            if since.elapsed().as_secs_f64() > MPIRUN_SECONDS {
                end(&mut child, &crew)?;
                return Ok(ending(&crew, ExitStatus::default(), interrupts.first()));
            }
        }
        std::thread::sleep(look_every(arguments.processes));
    }
}

fn ending(crew: &Crew, status: ExitStatus, interrupted: Option<Signal>) -> Ending {
    let told_to_stop = [Signal::Interrupt, Signal::Terminate]
        .into_iter()
        .find(|signal| status.code() == Some(i32::from(signal.exit_code())));
    if let Some(signal) = interrupted.or(told_to_stop)
        && !crew.has_told_a_reason()
        && !status.success()
    {
        return Ending::Interrupted(signal);
    }
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
    // What a rank says of itself is not enough to end a process.
    let mut ranks = crew.processes_on(&host_name());
    ranks.retain(|process| own::is_of_launch(*process, crew.token()));
    signal("TERM", &[child.id()]);
    // A stopped process hears nothing but this.
    signal("KILL", &ranks);
    let start = Instant::now();
    while child.try_wait().context("cannot wait for mpirun")?.is_none() {
        if start.elapsed().as_secs_f64() > MPIRUN_SECONDS {
            child.kill().context("cannot end mpirun")?;
            child.wait().context("cannot wait for mpirun")?;
            break;
        }
        std::thread::sleep(look_every(1));
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

/// Listens where the ranks can reach this process, and nowhere else: on the way to each of their hosts, and on this host
/// itself, which comes last, for the loopback of another host is not this one.
fn listen(hosts: &[mpirun::Host]) -> Result<Vec<TcpListener>> {
    // Nothing is sent: this only asks the system which of its addresses it would use.
    let way_to = |host: &mpirun::Host| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        socket.connect((host.name.as_str(), 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let mut addresses: Vec<IpAddr> =
        hosts.iter().filter_map(way_to).filter(|address| !address.is_loopback()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses.push(Ipv4Addr::LOCALHOST.into());
    let mut listeners = Vec::new();
    for address in addresses {
        let listener = TcpListener::bind((address, 0)).with_context(|| format!("at {address}"))?;
        listener.set_nonblocking(true)?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// A secret that nobody can guess.
fn token() -> Result<String> {
    use std::io::Read;
    let mut bytes = [0u8; 16];
    let mut source = std::fs::File::open("/dev/urandom").context("cannot draw a token")?;
    source.read_exact(&mut bytes).context("cannot draw a token")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_on_this_host_listens_to_this_host_alone() {
        let bound = |hosts: &[mpirun::Host]| {
            let listeners = listen(hosts).unwrap();
            listeners.iter().map(|listener| listener.local_addr().unwrap().ip()).collect::<Vec<_>>()
        };
        assert_eq!(bound(&[]), [Ipv4Addr::LOCALHOST]);
        let here = mpirun::Host { name: "127.0.0.1".to_owned(), slots: 2 };
        assert_eq!(bound(&[here]), [Ipv4Addr::LOCALHOST]);
    }
}
