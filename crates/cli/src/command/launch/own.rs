//! Which processes of this host belong to a launch: those that were started with its secret in their environment.
//!
//! A rank tells its own process number, and the launcher ends processes by such numbers: a wrong one would end somebody
//! else's process.

use std::fs;

use crate::heartbeat::VARIABLE;

/// Whether a process runs that was started with this token. One whose environment this user may not read was not.
pub fn is_of_launch(process: u32, token: &str) -> bool {
    let Ok(environment) = fs::read(format!("/proc/{process}/environ")) else { return false };
    let prefix = format!("{VARIABLE}=");
    environment.split(|byte| *byte == 0).any(|variable| {
        let variable = String::from_utf8_lossy(variable);
        variable.strip_prefix(&prefix).is_some_and(|value| value.split(';').nth(1) == Some(token))
    })
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        process::{Command, Stdio},
    };

    use super::*;

    #[test]
    fn only_processes_with_the_token_are_of_the_launch() {
        let start = |value: &str| {
            let mut cat = Command::new("cat");
            cat.env(VARIABLE, value).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = cat.spawn().unwrap();
            // Its environment can be read once it is itself.
            child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
            std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
            child
        };
        let (mut own, mut other) = (start("127.0.0.1:7;secret;15"), start("127.0.0.1:7;another;15"));
        let found = [own.id(), other.id(), std::process::id(), 1, 0].map(|id| is_of_launch(id, "secret"));
        for child in [&mut own, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(found, [true, false, false, false, false]);
    }
}
