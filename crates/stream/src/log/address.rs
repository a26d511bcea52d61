//! Where a log is, as a user writes it.
//!
//! ```text
//!   dir:runs/log                          a directory
//!   nats://broker:4222/shop               a NATS server, and the prefix of its streams; `campanile` without one
//!   tls://user@broker:4222/shop           the same over TLS, with a user whose password comes by another way
//! ```
//!
//! A password may stand in an address as well (`user:secret@`), where everybody who sees processes sees it. It is shown nowhere.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{DirectoryLog, Log, LogError};

/// How to get in where an address alone does not say it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entry {
    /// A credentials file, as `nsc` makes them.
    pub credentials: Option<PathBuf>,
    /// The password of the address's user, where it has none of its own.
    pub password: Option<String>,
    /// Certificates to trust beside the system's; then nothing but TLS will do.
    pub root_certificates: Option<PathBuf>,
    /// Copies of every stream in a cluster; 0 means 1.
    pub replicas: usize,
}

/// Opens the log at an address; a directory is made if it is not there.
///
/// # Errors
/// When the address is none, or nobody is there.
pub fn open(address: &str, entry: &Entry) -> Result<Arc<dyn Log>, LogError> {
    if let Some(path) = address.strip_prefix("dir:").filter(|path| !path.is_empty()) {
        return Ok(Arc::new(DirectoryLog::open(Path::new(path))?));
    }
    if address.starts_with("nats://") || address.starts_with("tls://") {
        return open_server(address, entry);
    }
    Err(bad(address, "it is neither dir:PATH nor nats://HOST:PORT/PREFIX"))
}

fn bad(address: &str, problem: &str) -> LogError {
    LogError::BadAddress { address: shown(address), problem: problem.to_owned() }
}

/// An address as it may be shown: without a password.
pub fn shown(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else { return address.to_owned() };
    let Some((user, host)) = rest.rsplit_once('@') else { return address.to_owned() };
    match user.split_once(':') {
        Some((user, _)) => format!("{scheme}://{user}:***@{host}"),
        None => address.to_owned(),
    }
}

#[cfg(not(feature = "nats"))]
fn open_server(address: &str, _: &Entry) -> Result<Arc<dyn Log>, LogError> {
    Err(bad(address, "this program was built without NATS; build it with `--features nats`, or use dir:PATH"))
}

#[cfg(feature = "nats")]
fn open_server(address: &str, entry: &Entry) -> Result<Arc<dyn Log>, LogError> {
    use super::jetstream::{JetStreamLog, Server};
    let (scheme, rest) = address.split_once("://").unwrap_or_default();
    // A password may have a `/`, or an `@`.
    let (user, rest) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
    let (host, prefix) = rest.split_once('/').unwrap_or((rest, "campanile"));
    let user = match user.map(|user| user.split_once(':').ok_or(user)) {
        None => None,
        Some(Ok((user, password))) => Some((user.to_owned(), password.to_owned())),
        Some(Err(user)) => match &entry.password {
            Some(password) => Some((user.to_owned(), password.clone())),
            None => return Err(bad(address, "it names a user, and no password is given for it")),
        },
    };
    if host.is_empty() {
        return Err(bad(address, "it names no host"));
    }
    let server = Server {
        url: format!("{scheme}://{host}"),
        prefix: prefix.to_owned(),
        credentials: entry.credentials.clone(),
        user,
        root_certificates: entry.root_certificates.clone(),
        replicas: entry.replicas,
    };
    Ok(Arc::new(JetStreamLog::open(server)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_none_is_told() {
        for address in ["runs/log", "dir:", "http://broker", ""] {
            let Err(error) = open(address, &Entry::default()) else { panic!("{address} is no address") };
            assert!(error.to_string().contains(&format!("`{address}`")), "{error}");
        }
    }

    #[test]
    fn a_password_is_shown_nowhere() {
        for address in [
            "nats://shop:se:cr@e/t@",
            "nats://shop:secret@/prefix",
            "tls://shop:secret@broker.invalid:1/not a name",
        ] {
            let Err(error) = open(address, &Entry::default()) else { panic!("{address} cannot be opened") };
            assert!(!error.to_string().contains("cr"), "{error}");
        }
        assert_eq!(shown("nats://shop:a@b/c@broker/shop"), "nats://shop:***@broker/shop");
        assert_eq!(shown("nats://shop@broker/shop"), "nats://shop@broker/shop");
        assert_eq!(shown("dir:runs/a@b"), "dir:runs/a@b");
        #[cfg(feature = "nats")]
        {
            let Err(error) = open("nats://shop@broker.invalid", &Entry::default()) else {
                panic!("no password")
            };
            assert!(error.to_string().contains("no password is given"), "{error}");
        }
    }
}
