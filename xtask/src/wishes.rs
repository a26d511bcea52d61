//! Programs of others that some tests use when they are there: a Python client, curl, a browser.
//!
//! A test says `NOT CHECKED` when its program is missing, and fails where `CI` is set. Here they are brought where that can be done without
//! asking, so that in CI nothing is left out; where it cannot, one line says what to install.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Something that tests would like to have.
struct Wish {
    what: &'static str,
    /// A shell line that succeeds when it is there; `$TARGET` is the build folder.
    probe: &'static str,
    /// A shell line that brings it.
    install: &'static str,
}

const WISHES: &[Wish] = &[
    Wish {
        what: "NVIDIA's tritonclient, to ask the server as its users do",
        probe: "\"$TARGET/clients/bin/python\" -c 'import tritonclient.http, tritonclient.grpc'",
        install: "python3 -m venv \"$TARGET/clients\" && \"$TARGET/clients/bin/pip\" install --quiet \
                  'tritonclient[http,grpc]==2.73.0'",
    },
    Wish {
        what: "curl, to run the commands of docs/serving-api.md",
        probe: "curl --version",
        install: "apt-get install -y --no-install-recommends curl",
    },
    Wish {
        what: "Chromium, to look at the server's page",
        probe: "chromium --version || chromium-browser --version || google-chrome --version",
        install: "apt-get update -q && apt-get install -y -q --no-install-recommends chromium",
    },
];

/// Brings what is missing, or says how to.
pub fn provide_all(root: &Path) {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let succeeds = |line: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).env("TARGET", &target).current_dir(root);
        shell.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    for wish in WISHES.iter().filter(|wish| !succeeds(wish.probe)) {
        println!("==> missing: {}", wish.what);
        if !succeeds(wish.install) || !succeeds(wish.probe) {
            println!(
                "    it could not be brought; some tests will say NOT CHECKED. Install it: {}",
                wish.install
            );
        }
    }
}
