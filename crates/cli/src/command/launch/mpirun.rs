//! The mpirun command that a launch stands for.

use std::{
    os::unix::{fs::MetadataExt, process::CommandExt},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::{
    args::LaunchArguments,
    heartbeat::{Launcher, VARIABLE},
};

/// A line of a hostfile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Name or address.
    pub name: String,
    /// Processes that it takes.
    pub slots: usize,
}

/// Which MPI the mpirun belongs to: they differ in their options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flavour {
    OpenMpi,
    Mpich,
}

/// The hosts of the job; none means this one.
pub fn hosts(arguments: &LaunchArguments) -> Result<Vec<Host>> {
    let Some(path) = &arguments.hostfile else { return Ok(Vec::new()) };
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the hostfile {}", path.display()))?;
    let hosts = read_hosts(&text);
    if hosts.is_empty() {
        bail!("the hostfile {} names no host; write one a line: `name slots=2`", path.display());
    }
    Ok(hosts)
}

/// Reads `name slots=N` (Open MPI) and `name:N` (MPICH) lines.
fn read_hosts(text: &str) -> Vec<Host> {
    let line = |line: &str| {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let name = words.next()?;
        let (name, after_colon) =
            name.split_once(':').map_or((name, None), |(name, slots)| (name, Some(slots)));
        let slots = words.find_map(|word| word.strip_prefix("slots=")).or(after_colon);
        Some(Host { name: name.to_owned(), slots: slots.and_then(|slots| slots.parse().ok()).unwrap_or(1) })
    };
    text.lines().filter_map(line).collect()
}

/// Starts mpirun, and says with which words.
pub fn start(
    arguments: &LaunchArguments,
    hosts: &[Host],
    command: &[String],
    launcher: &Launcher,
) -> Result<(Child, String)> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let flavour = flavour(&arguments.mpirun)?;
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    let mut words = options(flavour, arguments, hosts, is_root);
    words.push(program.display().to_string());
    words.extend_from_slice(command);
    let mut mpirun = Command::new(&arguments.mpirun);
    mpirun.args(&words).env(VARIABLE, launcher.words());
    // Ctrl-C is for the launcher. In a group of its own mpirun must not read the terminal, which would stop it.
    mpirun.process_group(0).stdin(Stdio::null());
    let child = mpirun.spawn().with_context(|| format!("cannot start `{}`", arguments.mpirun))?;
    Ok((child, format!("{} {}", arguments.mpirun, words.join(" "))))
}

fn flavour(mpirun: &str) -> Result<Flavour> {
    let output = Command::new(mpirun).arg("--version").output();
    let output = output.with_context(|| {
        format!(
            "cannot start `{mpirun}`; install Open MPI (`apt install openmpi-bin`), or name it with --mpirun"
        )
    })?;
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    if words.contains("Open MPI") || words.contains("OpenRTE") {
        return Ok(Flavour::OpenMpi);
    }
    if words.contains("HYDRA") || words.contains("Intel") {
        return Ok(Flavour::Mpich);
    }
    bail!(
        "`{mpirun}` is neither Open MPI's nor MPICH's mpirun: it says `{}`",
        words.lines().next().unwrap_or_default()
    )
}

/// Everything but the program: what the user asked for, and what it takes to run well.
fn options(flavour: Flavour, arguments: &LaunchArguments, hosts: &[Host], is_root: bool) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut add = |new: &[&str]| words.extend(new.iter().map(|word| (*word).to_owned()));
    let hostfile = arguments.hostfile.as_ref().map(|path| path.display().to_string());
    let processes = arguments.processes.to_string();
    add(&["-n", &processes]);
    match flavour {
        Flavour::OpenMpi => {
            if let Some(hostfile) = &hostfile {
                add(&["--hostfile", hostfile]);
            }
            if is_root {
                add(&["--allow-run-as-root"]);
            }
            if hosts.iter().map(|host| host.slots).sum::<usize>() < arguments.processes {
                add(&["--oversubscribe"]);
            }
            // A rank is several threads: bound to one core they would wait for each other. Its messages about a
            // process that ended come after ours and say less.
            add(&["--bind-to", "none", "--quiet", "-x", VARIABLE]);
            // A daemon that has lost its mpirun notices in seconds and not in minutes.
            for (name, value) in [("time", "10"), ("intvl", "5"), ("probes", "2")] {
                add(&["--mca", &format!("oob_tcp_keepalive_{name}"), value]);
            }
        }
        Flavour::Mpich => {
            if let Some(hostfile) = &hostfile {
                add(&["-f", hostfile]);
            }
            add(&["-envlist", VARIABLE, "-bind-to", "none"]);
        }
    }
    words.extend(
        arguments.mpirun_options.iter().flat_map(|given| given.split_whitespace()).map(str::to_owned),
    );
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(processes: usize, hostfile: Option<&str>) -> LaunchArguments {
        LaunchArguments {
            processes,
            hostfile: hostfile.map(Into::into),
            restarts: 0,
            silence: 15,
            stall: 600,
            mpirun: "mpirun".to_owned(),
            mpirun_options: vec!["--mca pml ob1".to_owned()],
            command: vec!["train".to_owned(), "job.toml".to_owned()],
        }
    }

    #[test]
    fn hostfiles_of_both_kinds_are_read() {
        let hosts = read_hosts("# two racks\nred slots=4\n\nblue:2 # small\n10.0.0.7\n");
        let found: Vec<(&str, usize)> = hosts.iter().map(|host| (host.name.as_str(), host.slots)).collect();
        assert_eq!(found, [("red", 4), ("blue", 2), ("10.0.0.7", 1)]);
    }

    #[test]
    fn what_is_needed_is_added() {
        let keepalive = "--mca oob_tcp_keepalive_time 10 --mca oob_tcp_keepalive_intvl 5 --mca oob_tcp_keepalive_probes 2";
        let words = options(Flavour::OpenMpi, &arguments(8, None), &[], true).join(" ");
        assert_eq!(
            words,
            format!(
                "-n 8 --allow-run-as-root --oversubscribe --bind-to none --quiet -x CAMPANILE_LAUNCHER {keepalive} \
                 --mca pml ob1"
            )
        );
        let hosts = read_hosts("a slots=4\nb slots=4");
        let words = options(Flavour::OpenMpi, &arguments(8, Some("hosts")), &hosts, false).join(" ");
        assert_eq!(
            words,
            format!(
                "-n 8 --hostfile hosts --bind-to none --quiet -x CAMPANILE_LAUNCHER {keepalive} --mca pml ob1"
            )
        );
        let words = options(Flavour::Mpich, &arguments(2, Some("hosts")), &hosts, true).join(" ");
        assert_eq!(words, "-n 2 -f hosts -envlist CAMPANILE_LAUNCHER -bind-to none --mca pml ob1");
    }
}
