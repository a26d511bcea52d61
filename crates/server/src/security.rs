//! Who may ask: bearer tokens, TLS, and the rule that only this machine is served unless someone decided otherwise.

use std::{
    fs::File,
    io::BufReader,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use http::{
    HeaderMap, Method,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, ORIGIN},
};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use thiserror::Error;

use crate::error::ServeError;

/// The shortest token that is taken: 16 characters.
const TOKEN_BYTES_MIN: usize = 16;

/// Bodies that are read: what a form or a plain script of a web page cannot send unasked.
const BODY_TYPES: &[&str] = &["application/json", "application/octet-stream"];

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
}

/// Who may ask.
#[derive(Debug, Clone, Default)]
pub enum Access {
    /// Everybody who can connect.
    #[default]
    Everybody,
    /// Who has one of these tokens.
    Tokens(Vec<String>),
}

impl Access {
    /// Reads tokens, one a line; empty lines and lines that begin with `#` are left out.
    ///
    /// # Errors
    /// When there is none, or one is too short.
    pub fn from_file(path: &Path) -> Result<Access, SecurityError> {
        let text = std::fs::read_to_string(path).map_err(|error| file_error(path, &error))?;
        let mut tokens = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let token = line.trim();
            if token.is_empty() || token.starts_with('#') {
                continue;
            }
            if token.len() < TOKEN_BYTES_MIN || token.contains(char::is_whitespace) {
                return Err(SecurityError::WeakToken { path: path.to_owned(), line: index + 1 });
            }
            tokens.push(token.to_owned());
        }
        if tokens.is_empty() {
            return Err(SecurityError::NoTokens { path: path.to_owned() });
        }
        Ok(Access::Tokens(tokens))
    }

    /// Whether a request with these headers may pass.
    pub fn allows(&self, headers: &HeaderMap) -> bool {
        let Access::Tokens(tokens) = self else { return true };
        let given = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        let Some((scheme, token)) = given.and_then(|value| value.split_at_checked(7)) else { return false };
        // All tokens are compared to the end, so that time tells nothing about them.
        scheme.eq_ignore_ascii_case(b"bearer ")
            && tokens.iter().fold(false, |found, known| found | is_same(known.as_bytes(), token))
    }
}

fn is_same(known: &[u8], given: &[u8]) -> bool {
    let differences =
        known.iter().zip(given.iter().chain(std::iter::repeat(&0))).fold(0, |all, (a, b)| all | (a ^ b));
    differences == 0 && known.len() == given.len()
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

/// Refuses what a foreign web page can make a browser send: a name that is not this machine's (`Host`, when only this
/// machine is served), a page of another address (`Origin`), and a body that a form could have sent.
///
/// # Errors
/// With what the request came with.
pub fn check_page(local: bool, parts: &http::request::Parts) -> Result<(), ServeError> {
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
    match text(CONTENT_TYPE).map(|kind| kind.split(';').next().unwrap_or_default().trim()) {
        Some(kind)
            if parts.method == Method::POST
                && !BODY_TYPES.iter().any(|known| kind.eq_ignore_ascii_case(known)) =>
        {
            Err(ServeError::ContentType { found: shown(kind) })
        }
        _ => Ok(()),
    }
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
    use http::HeaderValue;

    use super::*;

    fn headers(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        headers
    }

    #[test]
    fn only_a_whole_known_token_passes() {
        let access = Access::Tokens(vec!["0123456789abcdef".to_owned(), "fedcba9876543210".to_owned()]);
        assert!(access.allows(&headers("Bearer fedcba9876543210")));
        assert!(access.allows(&headers("bearer 0123456789abcdef")));
        for wrong in
            ["Bearer 0123456789abcde", "Bearer 0123456789abcdef0", "Basic 0123456789abcdef", "Bearer", ""]
        {
            assert!(!access.allows(&headers(wrong)), "{wrong}");
        }
        assert!(!access.allows(&HeaderMap::new()));
        assert!(Access::Everybody.allows(&HeaderMap::new()));
    }

    #[test]
    fn a_foreign_page_and_a_foreign_name_are_refused() {
        let check = |local: bool, headers: &[(&str, &str)]| {
            let mut request = http::Request::post("/v2/models/tiny/infer");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            check_page(local, &request.body(()).unwrap().into_parts().0)
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
    }

    #[test]
    fn an_open_address_needs_a_decision() {
        let (here, open) = ("127.0.0.1:1".parse().unwrap(), "0.0.0.0:1".parse().unwrap());
        let tokens = Access::Tokens(vec!["0123456789abcdef".to_owned()]);
        assert!(check_address(here, &Access::Everybody, false).is_ok());
        assert!(check_address(open, &tokens, false).is_ok());
        assert!(check_address(open, &Access::Everybody, true).is_ok());
        let refused = check_address(open, &Access::Everybody, false).unwrap_err();
        assert!(refused.to_string().contains("--no-auth"), "{refused}");
    }

    #[test]
    fn a_token_file_needs_long_tokens() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# ours\n\n0123456789abcdef\n").unwrap();
        assert!(matches!(Access::from_file(file.path()), Ok(Access::Tokens(tokens)) if tokens.len() == 1));
        std::fs::write(file.path(), "short\n").unwrap();
        assert!(Access::from_file(file.path()).unwrap_err().to_string().contains("line 1"));
        std::fs::write(file.path(), "# none\n").unwrap();
        assert!(Access::from_file(file.path()).unwrap_err().to_string().contains("no token"));
    }
}
