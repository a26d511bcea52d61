//! What is allowed and yet worth a word: said once, when the server starts.

use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use super::Access;

/// What a server exposes.
#[derive(Debug, Default)]
pub struct Exposed<'a> {
    /// Where it listens.
    pub addresses: &'a [SocketAddr],
    /// Whether they speak TLS.
    pub has_tls: bool,
    /// Files that nobody else may read: tokens and keys.
    pub secrets: &'a [PathBuf],
    /// Logs, whose records are what clients sent.
    pub logs: &'a [PathBuf],
    /// Where models come from: who may write there decides what is served.
    pub models: &'a [PathBuf],
}

/// Who beside the owner may do what with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Others {
    /// Anybody at all may read it.
    Read,
    /// The group or anybody may write it.
    Write,
}

/// What the operator ought to know.
pub fn warnings(access: &Access, exposed: &Exposed<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    let has_tokens = matches!(access, Access::Tokens(_));
    for address in exposed.addresses.iter().filter(|address| !address.ip().is_loopback()) {
        if has_tokens && !exposed.has_tls {
            warnings.push(format!(
                "tokens travel to {address} readable by everybody on the way: give --tls-cert and --tls-key"
            ));
        }
    }
    let mut warn = |path: &PathBuf, others, words: &dyn fmt::Display| {
        if others_may(path, others) {
            warnings.push(format!("{}: {words}", path.display()));
        }
    };
    for path in exposed.secrets {
        warn(path, Others::Read, &"everybody on this machine may read it: `chmod 600` it");
    }
    for path in exposed.logs {
        warn(path, Others::Read, &"everybody on this machine may read what clients sent: `chmod 700` it");
    }
    for path in exposed.models {
        warn(path, Others::Write, &"others may write here and so decide what is served: `chmod go-w` it");
    }
    warnings
}

#[cfg(unix)]
fn others_may(path: &Path, what: Others) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let bits = match what {
        Others::Read => 0o004,
        Others::Write => 0o022,
    };
    std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & bits != 0)
}

/// Elsewhere rights are not told by a mode.
#[cfg(not(unix))]
fn others_may(_: &Path, _: Others) -> bool {
    false
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_open_to_others_is_told_and_what_is_not_is_not() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str, mode| {
            let path = home.path().join(name);
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let (here, open) = ("127.0.0.1:1".parse().unwrap(), "0.0.0.0:1".parse().unwrap());
        let tokens = Access::tokens(vec!["0123456789abcdef".to_owned()]);
        let (wide, narrow) = ([path("wide", 0o666)], [path("narrow", 0o600)]);
        let said = |addresses: &[SocketAddr], has_tls, paths: &[PathBuf]| {
            let exposed = Exposed { addresses, has_tls, secrets: paths, logs: paths, models: paths };
            warnings(&tokens, &exposed)
        };
        assert_eq!(said(&[here], false, &narrow), Vec::<String>::new());
        assert_eq!(said(&[open], true, &narrow), Vec::<String>::new());
        let told = said(&[here, open], false, &wide);
        for (line, words) in told.iter().zip(["--tls-cert", "chmod 600", "chmod 700", "chmod go-w"]) {
            assert!(line.contains(words), "{told:?}");
        }
        assert_eq!(told.len(), 4);
        // A registry that others may read is no secret of this machine.
        let exposed = Exposed { models: &[path("read", 0o644)], ..Exposed::default() };
        assert_eq!(warnings(&tokens, &exposed), Vec::<String>::new());
    }
}
