//! Who may ask: bearer tokens, TLS, and the rule that only this machine is served unless someone decided otherwise.

mod tokens;
mod warnings;

use std::{
    fs::File,
    io::BufReader,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use http::{
    Method,
    header::{CONTENT_TYPE, HOST, ORIGIN},
};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use thiserror::Error;

use crate::error::ServeError;
use tokens::TOKEN_BYTES_MIN;
pub use tokens::{Access, Tokens};
pub use warnings::{Exposed, warnings};

/// Bodies that are read: what a form or a plain script of a web page cannot send unasked.
const BODY_TYPES: &[&str] = &["application/json", "application/octet-stream"];

/// The type of gRPC's bodies.
const GRPC_TYPE: &str = "application/grpc";

/// Why the server does not start.
#[derive(Debug, Error)]
pub enum SecurityError {
    /// A file cannot be read.
    #[error("cannot read {}: {problem}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// A file without tokens.
    #[error("{} holds no token; write one a line, at least {TOKEN_BYTES_MIN} characters each", path.display())]
    NoTokens {
        /// Which.
        path: PathBuf,
    },
    /// A token that is too easily guessed.
    #[error("{}, line {line}: a token has at least {TOKEN_BYTES_MIN} characters without spaces", path.display())]
    WeakToken {
        /// Which file.
        path: PathBuf,
        /// Which line.
        line: usize,
    },
    /// Certificate and key do not go together.
    #[error("TLS cannot be set up: {problem}")]
    Tls {
        /// Why.
        problem: String,
    },
    /// An address that others can reach, without a decision about who may ask.
    #[error(
        "{address} can be reached from other machines: give --token-file, or say --no-auth if everybody may ask"
    )]
    Open {
        /// The address.
        address: SocketAddr,
    },
    /// Control of the repository for everybody.
    #[error(
        "--allow-repository-control on {address}: whoever reaches it, and any web page that they open, could load and \
         unload models; give --token-file or --client-ca"
    )]
    OpenControl {
        /// The address.
        address: SocketAddr,
    },
}

/// Refuses an address that others can reach when nobody decided who may ask.
///
/// # Errors
/// For an address beyond this machine without tokens, unless `everybody_may_ask`.
pub fn check_address(
    address: SocketAddr,
    access: &Access,
    everybody_may_ask: bool,
) -> Result<(), SecurityError> {
    let decided = everybody_may_ask || matches!(access, Access::Tokens(_));
    if address.ip().is_loopback() || decided { Ok(()) } else { Err(SecurityError::Open { address }) }
}

/// Refuses control of the repository for everybody on an address that others can reach: what a web page makes a browser
/// send there cannot be told from what its user sends.
///
/// # Errors
/// When nothing says who the client is.
pub fn check_control(address: SocketAddr, access: &Access, has_client_ca: bool) -> Result<(), SecurityError> {
    let is_known = has_client_ca || matches!(access, Access::Tokens(_));
    if address.ip().is_loopback() || is_known { Ok(()) } else { Err(SecurityError::OpenControl { address }) }
}

/// What speaks on an address, as far as its requests look different.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speech {
    /// REST, whose bodies are JSON or binary tensors.
    Rest,
    /// gRPC, whose bodies always say that they are.
    Grpc,
}

/// Refuses what a foreign web page can make a browser send: a name that is not this machine's (`Host`, when only this
/// machine is served), a page of another address (`Origin`, and `Sec-Fetch-Site` where there is none), and a body of a
/// type that a page may send unasked.
///
/// A POST without a type passes: a browser sends one without a type only for a page's script, and then with its `Origin`,
/// while clients such as tritonclient send none.
///
/// # Errors
/// With what the request came with.
pub fn check_page(local: bool, speech: Speech, parts: &http::request::Parts) -> Result<(), ServeError> {
    let text = |name| parts.headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let shown = |text: &str| text.chars().take(100).collect::<String>();
    let host = parts.uri.authority().map(|authority| authority.as_str()).or(text(HOST)).unwrap_or_default();
    if local && !is_this_machine(host) {
        let problem = format!("host `{}` is not this machine; ask for localhost or 127.0.0.1", shown(host));
        return Err(ServeError::Foreign { problem });
    }
    if let Some(origin) = text(ORIGIN)
        && origin.split_once("://").is_none_or(|(_, from)| !from.eq_ignore_ascii_case(host))
    {
        return Err(ServeError::Foreign { problem: format!("it comes from a page of `{}`", shown(origin)) });
    }
    let site = parts.headers.get("sec-fetch-site").map(|value| value.as_bytes());
    if parts.method != Method::GET && site.is_some_and(|site| !matches!(site, b"same-origin" | b"none")) {
        return Err(ServeError::Foreign { problem: "it comes from a page of another address".to_owned() });
    }
    let kind = text(CONTENT_TYPE).map(|kind| kind.split(';').next().unwrap_or_default().trim());
    let is_read = match (speech, kind) {
        (Speech::Grpc, kind) => kind.is_some_and(is_grpc),
        (Speech::Rest, Some(kind)) if parts.method == Method::POST => {
            BODY_TYPES.iter().any(|known| kind.eq_ignore_ascii_case(known))
        }
        (Speech::Rest, _) => true,
    };
    if is_read { Ok(()) } else { Err(ServeError::ContentType { found: shown(kind.unwrap_or_default()) }) }
}

/// Whether a body's type is gRPC's, with any message format behind it.
fn is_grpc(kind: &str) -> bool {
    let (head, rest) = kind.split_at_checked(GRPC_TYPE.len()).unwrap_or((kind, ""));
    head.eq_ignore_ascii_case(GRPC_TYPE) && (rest.is_empty() || rest.starts_with('+'))
}

/// Whether the name of a server, with or without a port, is one of this machine's own.
fn is_this_machine(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// TLS from PEM files; with `client_ca`, clients must show a certificate that it signed.
///
/// # Errors
/// When a file cannot be read or does not fit.
pub fn tls(
    certificate: &Path,
    key: &Path,
    client_ca: Option<&Path>,
) -> Result<Arc<ServerConfig>, SecurityError> {
    let problem = |error: &dyn std::fmt::Display| SecurityError::Tls { problem: error.to_string() };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| problem(&error))?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| problem(&error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| problem(&error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let key_der = PrivateKeyDer::from_pem_file(key).map_err(|error| file_error(key, &error))?;
    let mut config =
        builder.with_single_cert(certificates(certificate)?, key_der).map_err(|error| problem(&error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, SecurityError> {
    let file = File::open(path).map_err(|error| file_error(path, &error))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_reader_iter(BufReader::new(file)).collect();
    match found {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(file_error(path, &"it holds no certificate in PEM form")),
        Err(error) => Err(file_error(path, &error)),
    }
}

fn file_error(path: &Path, problem: &dyn std::fmt::Display) -> SecurityError {
    SecurityError::File { path: path.to_owned(), problem: problem.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_page_and_a_foreign_name_are_refused() {
        let check = |local: bool, headers: &[(&str, &str)]| {
            let mut request = http::Request::post("/v2/models/tiny/infer");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            check_page(local, Speech::Rest, &request.body(()).unwrap().into_parts().0)
                .map_err(|error| error.status().as_u16())
        };
        for host in ["localhost:8080", "127.0.0.1", "[::1]:8080", "LOCALHOST"] {
            assert_eq!(check(true, &[("host", host)]), Ok(()), "{host}");
        }
        assert_eq!(check(true, &[("host", "evil.example:8080")]), Err(403));
        assert_eq!(check(true, &[]), Err(403));
        assert_eq!(check(false, &[("host", "ranker.example")]), Ok(()));
        let here = ("host", "localhost:8080");
        assert_eq!(check(true, &[here, ("origin", "http://localhost:8080")]), Ok(()));
        for origin in ["http://evil.example", "null", "http://localhost:9090"] {
            assert_eq!(check(true, &[here, ("origin", origin)]), Err(403), "{origin}");
        }
        assert_eq!(check(true, &[here, ("content-type", "application/json; charset=utf-8")]), Ok(()));
        for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"] {
            assert_eq!(check(true, &[here, ("content-type", kind)]), Err(415), "{kind}");
        }
        for (site, wanted) in [("cross-site", Err(403)), ("same-site", Err(403)), ("same-origin", Ok(()))] {
            assert_eq!(check(true, &[here, ("sec-fetch-site", site)]), wanted, "{site}");
        }
    }

    #[test]
    fn a_grpc_call_says_that_it_is_one_and_comes_from_no_page() {
        let check = |headers: &[(&str, &str)]| {
            let uri = "http://localhost:8081/inference.GRPCInferenceService/RepositoryModelUnload";
            let request =
                headers.iter().fold(http::Request::post(uri), |all, (name, value)| all.header(*name, *value));
            let (parts, ()) = request.body(()).unwrap().into_parts();
            check_page(true, Speech::Grpc, &parts).map_err(|error| error.status().as_u16())
        };
        assert_eq!(check(&[("content-type", "application/grpc")]), Ok(()));
        assert_eq!(check(&[("content-type", "application/grpc+proto")]), Ok(()));
        for kind in ["text/plain", "application/grpc-web", "application/json"] {
            assert_eq!(check(&[("content-type", kind)]), Err(415), "{kind}");
        }
        assert_eq!(check(&[]), Err(415));
        let foreign = [("content-type", "application/grpc"), ("origin", "http://evil.example")];
        assert_eq!(check(&foreign), Err(403));
    }

    #[test]
    fn an_open_address_needs_a_decision() {
        let (here, open) = ("127.0.0.1:1".parse().unwrap(), "0.0.0.0:1".parse().unwrap());
        let tokens = Access::tokens(vec!["0123456789abcdef".to_owned()]);
        assert!(check_address(here, &Access::Everybody, false).is_ok());
        assert!(check_address(open, &tokens, false).is_ok());
        assert!(check_address(open, &Access::Everybody, true).is_ok());
        let refused = check_address(open, &Access::Everybody, false).unwrap_err();
        assert!(refused.to_string().contains("--no-auth"), "{refused}");
        assert!(check_control(here, &Access::Everybody, false).is_ok());
        assert!(
            check_control(open, &tokens, false).is_ok()
                && check_control(open, &Access::Everybody, true).is_ok()
        );
        let refused = check_control(open, &Access::Everybody, false).unwrap_err();
        assert!(refused.to_string().contains("--token-file"), "{refused}");
    }
}
