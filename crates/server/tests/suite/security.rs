//! Tokens, TLS and mutual TLS, on both transports.

use std::{io::Write, net::TcpStream, path::PathBuf, sync::Arc};

use campanile_server::{
    client::{GrpcClient, RestClient, RestRequest},
    proto::ModelInferRequest,
    security::{Access, tls},
};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};

use crate::fixture::Settings;

fn certificate(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/certificates").join(name)
}

#[test]
fn without_a_token_only_health_answers() {
    let mut settings = Settings::new();
    settings.options.access = Access::tokens(vec!["0123456789abcdef".to_owned()]);
    let server = settings.start();
    let status = |path: &str, headers: &[&str]| {
        let mut client = RestClient::connect(server.http).unwrap();
        client.send(&RestRequest::new("GET", path, headers, b"")).unwrap().status
    };
    let token = "Authorization: Bearer 0123456789abcdef";
    for path in ["/v2", "/v2/models/tiny", "/metrics", "/dashboard.json"] {
        assert_eq!(status(path, &[]), 401, "{path}");
        assert_eq!(status(path, &["Authorization: Bearer 0123456789abcdeg"]), 401, "{path}");
        assert_eq!(status(path, &[token]), 200, "{path}");
    }
    for path in ["/v2/health/live", "/v2/health/ready", "/"] {
        assert_eq!(status(path, &[]), 200, "{path}");
    }
    let mut grpc = GrpcClient::connect(server.grpc.unwrap()).unwrap();
    assert_eq!(grpc.infer(&ModelInferRequest::default(), None).unwrap_err().0, tonic::Code::Unauthenticated);
    drop(grpc);
    assert!(server.stop());
}

#[test]
fn a_changed_token_file_counts_without_a_restart() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "0123456789abcdef\n").unwrap();
    let mut settings = Settings::new();
    settings.options.access = Access::from_file(file.path()).unwrap();
    let server = settings.start();
    let status = |token: &str| {
        let mut client = RestClient::connect(server.http).unwrap();
        let token = format!("Authorization: Bearer {token}");
        client.send(&RestRequest::new("GET", "/v2", &[&token], b"")).unwrap().status
    };
    assert_eq!((status("0123456789abcdef"), status("fedcba9876543210")), (200, 401));
    std::fs::write(file.path(), "fedcba9876543210\n").unwrap();
    while status("fedcba9876543210") != 200 {}
    assert_eq!(status("0123456789abcdef"), 401);
    assert!(server.stop());
}

#[test]
fn a_foreign_web_page_gets_no_scores_and_changes_nothing() {
    let mut settings = Settings::new();
    settings.allow_control = true;
    let server = settings.start();
    let status = |path: &str, headers: &[&str], body: &str| {
        let mut client = RestClient::connect(server.http).unwrap();
        client.send(&RestRequest::new("POST", path, headers, body.as_bytes())).unwrap().status
    };
    let (infer, unload) = ("/v2/models/tiny/infer", "/v2/repository/models/tiny/unload");
    for path in [infer, unload] {
        assert_eq!(status(path, &["Origin: http://evil.example"], "{}"), 403);
        assert_eq!(status(path, &["Content-Type: text/plain"], "{}"), 415);
        // The name of a site that a page's owner made point to this machine.
        let mut client = RestClient::connect(server.http).unwrap();
        let rebound =
            RestRequest::for_host("evil.example", "POST", path, &["Origin: http://evil.example"], b"{}");
        assert_eq!(client.send(&rebound).unwrap().status, 403);
    }
    // A page of the server itself may ask; a question about the repository is small.
    let index = "/v2/repository/index";
    assert_eq!(status(index, &["Origin: http://localhost", "Content-Type: application/json"], "{}"), 200);
    assert_eq!(status(index, &[], &format!("{{\"x\":\"{}\"}}", "y".repeat(5000))), 413);
    assert_eq!(status("/v2/repository/models/tiny/load", &[], ""), 200);
    assert!(server.stop());
}

#[test]
fn a_name_of_any_length_is_cut_in_answers() {
    let server = Settings::new().start();
    let name = "n".repeat(1 << 20);
    let body =
        format!("{{\"inputs\":[{{\"name\":\"{name}\",\"datatype\":\"FP32\",\"shape\":[-1],\"data\":[1]}}]}}");
    let (status, answer) = crate::fixture::ask(&server, "POST", "/v2/models/tiny/infer", &body);
    assert_eq!(status, 400);
    assert!(answer["error"].as_str().unwrap().len() < 1100);
    assert!(server.stop());
}

fn client(identity: Option<&str>) -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificate("ca.pem")).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match identity {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let chain = vec![CertificateDer::from_pem_file(certificate(&format!("{name}.pem"))).unwrap()];
            let key = PrivateKeyDer::from_pem_file(certificate(&format!("{name}.key"))).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    })
}

/// The first line of the answer to a question about health, or why there is none.
fn ask_with_tls(address: std::net::SocketAddr, config: Arc<ClientConfig>) -> Result<String, std::io::Error> {
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(config, name).map_err(std::io::Error::other)?;
    let mut stream = StreamOwned::new(connection, TcpStream::connect(address)?);
    stream.write_all(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = [0; 15];
    std::io::Read::read_exact(&mut stream, &mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[test]
fn tls_serves_who_trusts_it_and_mutual_tls_only_whom_it_trusts() {
    let mut settings = Settings::new();
    settings.options.tls = Some(tls(&certificate("server.pem"), &certificate("server.key"), None).unwrap());
    let server = settings.start();
    assert_eq!(ask_with_tls(server.http, client(None)).unwrap(), "HTTP/1.1 200 OK");
    // Plain HTTP finds nobody who understands it.
    let plain = RestClient::connect(server.http).unwrap().send(&RestRequest::new("GET", "/v2", &[], b""));
    assert!(plain.is_err());
    assert!(server.stop());

    let mut settings = Settings::new();
    let ca = certificate("ca.pem");
    settings.options.tls =
        Some(tls(&certificate("server.pem"), &certificate("server.key"), Some(&ca)).unwrap());
    let server = settings.start();
    assert!(ask_with_tls(server.http, client(None)).is_err());
    assert_eq!(ask_with_tls(server.http, client(Some("client"))).unwrap(), "HTTP/1.1 200 OK");
    assert!(server.stop());
}

#[test]
fn files_that_are_no_certificates_are_named() {
    let wrong = tls(&certificate("nothing.pem"), &certificate("server.key"), None).unwrap_err().to_string();
    assert!(wrong.contains("nothing.pem"), "{wrong}");
    let wrong = tls(&certificate("server.key"), &certificate("server.key"), None).unwrap_err().to_string();
    assert!(wrong.contains("server.key") && wrong.contains("certificate"), "{wrong}");
    let wrong = tls(&certificate("server.pem"), &certificate("client.key"), None).unwrap_err().to_string();
    assert!(wrong.contains("TLS cannot be set up"), "{wrong}");
}
