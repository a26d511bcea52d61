//! Everything that must pass, cheapest first.
//!
//! `.ci/run` and a newcomer call the same thing. What a stage needs from the system is checked before the first
//! stage starts, so that nobody waits for a build to learn that a tool is missing.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail};

/// Something that must be on the machine.
struct Need {
    what: &'static str,
    /// A command that succeeds when it is there.
    probe: &'static str,
    /// A command that brings it without asking, if there is one.
    install: Option<&'static str>,
    /// What a person should do otherwise.
    advice: &'static str,
}

/// Add here what a later room needs (a server, say): one line a tool.
const NEEDS: &[Need] = &[
    Need {
        what: "a C linker",
        probe: "cc --version",
        install: None,
        advice: "install a C compiler: `apt install build-essential`, `dnf install gcc` or `xcode-select --install`",
    },
    Need {
        what: "rustfmt",
        probe: "cargo fmt --version",
        install: Some("rustup component add rustfmt"),
        advice: "run `rustup component add rustfmt`",
    },
    Need {
        what: "clippy",
        probe: "cargo clippy --version",
        install: Some("rustup component add clippy"),
        advice: "run `rustup component add clippy`",
    },
    Need {
        what: "cargo-deny, which says on what we may build (some two minutes)",
        probe: "cargo deny --version",
        install: Some(DENY_INSTALL),
        advice: "let cargo reach its registry, then run `cargo install cargo-deny --version 0.20.2 --locked`",
    },
    Need {
        what: "a Python with onnxruntime, pyarrow and safetensors (target/python)",
        probe: "python3 xtask/python/environment.py --check",
        install: Some("python3 xtask/python/environment.py"),
        advice: "install Python 3 with venv (`apt install python3-venv`) and let pip reach its index, then run `python3 xtask/python/environment.py`",
    },
    Need {
        what: "an MPI library with its headers",
        probe: "mpicc --version && mpirun --version",
        install: Some(
            "[ $(id -u) = 0 ] && apt-get update -qq && \
             apt-get install -y --no-install-recommends openmpi-bin libopenmpi-dev",
        ),
        advice: "run `apt install openmpi-bin libopenmpi-dev`",
    },
    Need {
        what: "a NATS server, for the event log on JetStream",
        probe: "nats-server --version",
        install: Some(
            "[ $(id -u) = 0 ] && apt-get update -qq && \
             apt-get install -y --no-install-recommends nats-server",
        ),
        advice: "run `apt install nats-server`",
    },
    Need {
        what: "libclang, which reads MPI's headers",
        // libclang-cpp.so, which other packages bring, is another library.
        probe: "ls /usr/lib/llvm*/lib /usr/lib64 /usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu 2>/dev/null | \
                grep -qE '^libclang(-[0-9.]+)?[.]so'",
        install: Some(
            "[ $(id -u) = 0 ] && apt-get update -qq && \
             apt-get install -y --no-install-recommends libclang-dev clang",
        ),
        advice: "run `apt install libclang-dev clang`",
    },
    Need {
        what: "iproute2, for tests on several hosts",
        // Not everybody may make network namespaces; the test says so where it cannot.
        probe: "ip -V && tc -V || [ $(id -u) != 0 ]",
        install: Some("apt-get update -qq && apt-get install -y --no-install-recommends iproute2"),
        advice: "run `apt install iproute2`",
    },
];

/// What is denied changes with the program, so its version is fixed. Without optimisation it is built in half the time, and
/// takes two seconds all the same.
const DENY_INSTALL: &str = "cargo install --quiet cargo-deny --version 0.20.2 --locked --debug";

const DENY: &str = "cargo deny --all-features check --hide-inclusion-graph licenses bans sources";

/// One check.
struct Stage {
    name: &'static str,
    command: &'static str,
    environment: &'static [(&'static str, &'static str)],
}

/// All features: what a user may switch on must pass too.
const STAGES: &[Stage] = &[
    Stage { name: "format", command: "cargo fmt --all --check", environment: &[] },
    Stage { name: "tidy", command: "cargo test --quiet --package xtask", environment: &[] },
    Stage { name: "dependencies", command: DENY, environment: &[] },
    Stage {
        name: "clippy",
        command: "cargo clippy --quiet --workspace --all-features --all-targets -- -D warnings",
        environment: &[],
    },
    Stage {
        name: "tests",
        command: "cargo test --quiet --workspace --all-features --lib --bins --tests",
        environment: &[],
    },
    Stage {
        name: "drivers",
        command: "target/python/bin/python -m unittest discover -s bench/peers",
        environment: &[],
    },
    Stage {
        name: "doc tests",
        command: "cargo test --quiet --workspace --all-features --doc",
        environment: &[],
    },
    Stage {
        name: "documentation",
        command: "cargo doc --quiet --workspace --all-features --no-deps",
        environment: &[("RUSTDOCFLAGS", "-D warnings")],
    },
];

/// Runs every stage and prints how long each took.
///
/// # Errors
/// At the first stage that fails, or when the machine lacks something.
pub fn run_all(root: &Path) -> Result<()> {
    NEEDS.iter().try_for_each(|need| provide(root, need))?;
    crate::wishes::provide_all(root);
    let mut times = Vec::new();
    for stage in STAGES {
        println!("==> {}: {}", stage.name, stage.command);
        let start = Instant::now();
        let mut command = command(root, stage.command);
        command.envs(stage.environment.iter().copied());
        let status = command.status().with_context(|| format!("cannot start `{}`", stage.command))?;
        times.push((stage.name, start.elapsed().as_secs_f64()));
        if !status.success() {
            print_times(&times);
            let cure = if stage.name == "format" { "put it right with `cargo fmt --all`; " } else { "" };
            bail!("stage `{}` failed; {cure}repeat it with `{}`", stage.name, repeat(stage));
        }
    }
    print_times(&times);
    println!("all stages passed");
    Ok(())
}

/// Checks that something is there, and brings it when that can be done without asking.
fn provide(root: &Path, need: &Need) -> Result<()> {
    let shell = |words: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", words]).current_dir(root);
        command
    };
    let succeeds = |words: &str| {
        let status = shell(words).stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    if succeeds(need.probe) {
        return Ok(());
    }
    if let Some(install) = need.install {
        println!("==> {} is missing: {}", need.what, install);
        if shell(install).status().is_ok_and(|status| status.success()) && succeeds(need.probe) {
            return Ok(());
        }
    }
    bail!("{} is missing: {}", need.what, need.advice)
}

/// A command of words without spaces inside.
fn command(root: &Path, line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).current_dir(root);
    command
}

fn repeat(stage: &Stage) -> String {
    let environment: String =
        stage.environment.iter().map(|(key, value)| format!("{key}=\"{value}\" ")).collect();
    format!("{environment}{}", stage.command)
}

fn print_times(times: &[(&str, f64)]) {
    println!();
    for (name, seconds) in times {
        println!("{name:>14}  {seconds:6.1} s");
    }
}
