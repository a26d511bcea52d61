//! Where a log is, as a user writes it.
//!
//! ```text
//!   dir:runs/log                          a directory
//!   nats://broker:4222/shop               a NATS server, and the prefix of its streams; `campanile` without one
//!   tls://user:secret@broker:4222/shop    the same over TLS, with a user
//! ```

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
    /// Certificates to trust beside the system's.
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
    LogError::BadAddress { address: address.to_owned(), problem: problem.to_owned() }
}

#[cfg(not(feature = "nats"))]
fn open_server(address: &str, _: &Entry) -> Result<Arc<dyn Log>, LogError> {
    Err(bad(address, "this program was built without NATS; build it with `--features nats`, or use dir:PATH"))
}

#[cfg(feature = "nats")]
fn open_server(address: &str, entry: &Entry) -> Result<Arc<dyn Log>, LogError> {
    use super::jetstream::{JetStreamLog, Server};
    let (scheme, rest) = address.split_once("://").unwrap_or_default();
    let (host, prefix) = rest.split_once('/').unwrap_or((rest, "campanile"));
    let (user, host) = match host.rsplit_once('@') {
        None => (None, host),
        Some((user, host)) => match user.split_once(':') {
            Some((user, password)) => (Some((user.to_owned(), password.to_owned())), host),
            None => return Err(bad(address, "before `@` must stand USER:PASSWORD")),
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
}
