//! The page of a loop: one file with no asset from elsewhere, and the data it asks for every second.
//!
//! Anybody who can connect may look; there is no token. So a foreign web page must not make a browser look for it: on a
//! loopback address only this machine's names are answered, and no page of another address is. Connections are few and
//! short: nobody can keep others from looking for long.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, HeaderValue, Request, StatusCode, header},
    response::{Html, IntoResponse, Response},
    routing::get,
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tower_service::Service;

use crate::board::Board;

const PAGE: &str = include_str!("page/page.html");

/// Connections that may be open.
const CONNECTIONS_MAX: usize = 64;
/// How long a connection stays open; a browser opens another.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a client may take for the headers of a request.
const HEADERS_TIME_MAX: Duration = Duration::from_secs(5);
/// Bytes of a request's headers.
const HEADER_BYTES_MAX: usize = 16 << 10;

/// Shows a board at an address, on a thread of its own, for as long as the process lives; says where, for port 0 is any.
///
/// # Errors
/// When the address cannot be had.
pub fn show(address: SocketAddr, board: Arc<Board>) -> io::Result<SocketAddr> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = runtime.block_on(TcpListener::bind(address))?;
    let address = listener.local_addr()?;
    let data = move || {
        let board = Arc::clone(&board);
        async move { ([(header::CONTENT_TYPE, "application/json")], board.to_json().to_string()) }
    };
    let app = Router::new().route("/", get(page)).route("/live.json", get(data));
    let local = address.ip().is_loopback();
    std::thread::Builder::new().name("page".to_owned()).spawn(move || {
        // The page is there to look at; the loop goes on without it.
        runtime.block_on(serve(listener, app, local));
    })?;
    Ok(address)
}

/// Answers for ever.
async fn serve(listener: TcpListener, app: Router, local: bool) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
                    tokio::spawn(converse(stream, app.clone(), local, place));
                }
            }
            // It passes when file handles are free again.
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

async fn converse(stream: TcpStream, app: Router, local: bool, _place: OwnedSemaphorePermit) {
    let service = service_fn(move |request: Request<Incoming>| {
        let mut app = app.clone();
        async move {
            if let Some(problem) = foreign(local, request.headers()) {
                return Ok::<_, Infallible>((StatusCode::FORBIDDEN, problem).into_response());
            }
            app.call(request.map(Body::new)).await
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADERS_TIME_MAX).max_buf_size(HEADER_BYTES_MAX);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    // What goes wrong on a connection concerns its client.
    let _ = tokio::time::timeout(CONNECTION_TIME_MAX, connection).await;
}

/// Why a request is not one of somebody who looks: a name that is not this machine's, or a page of another address.
fn foreign(local: bool, headers: &HeaderMap) -> Option<&'static str> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(header::HOST).unwrap_or_default();
    if local && !is_this_machine(host) {
        return Some("this host is not this machine; ask for localhost or 127.0.0.1");
    }
    match text(header::ORIGIN).and_then(|origin| origin.split_once("://")) {
        Some((_, from)) if from.eq_ignore_ascii_case(host) => None,
        None if !headers.contains_key(header::ORIGIN) => None,
        _ => Some("this comes from a page of another address"),
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

/// The page. It may load nothing from elsewhere, and nobody may frame it.
async fn page() -> Response {
    let mut response = Html(PAGE).into_response();
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                  img-src data:; frame-ancestors 'none'";
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    response
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpStream,
        process::Command,
    };

    use campanile_train::{
        metrics::{MetricValues, TaskMetrics},
        scores::TaskScores,
    };

    use super::*;
    use crate::{
        board::StageLine,
        file::{LiveFile, Role},
        watch::Seen,
    };

    /// The example's loop, in which the teacher helps all students but one.
    fn board() -> Board {
        let file = LiveFile::parse(include_str!("../../../examples/live.toml")).unwrap();
        let board = Board::new(&file, &vec![50_000; file.members.len()]);
        let values = |ne: f64| MetricValues {
            count: 5_000,
            ne: Some(ne),
            calibration: Some(1.01),
            auc: Some(0.75),
            ..TaskMetrics::for_training(1).snapshot()
        };
        let seen = || Seen {
            tasks: vec![values(0.84), values(0.9)],
            ages: vec![(60, values(0.84))],
            coverage: 0.97,
            age_seconds: Some(40.0),
        };
        board.set_state("running");
        let window =
            file.members[0].job.run.evaluate.window_steps * file.members[0].job.run.batch_size as u64;
        for tick in 0..5 {
            for (place, member) in file.members.iter().enumerate() {
                let worse = if member.name.starts_with("early") { -0.01 } else { 0.01 };
                let ne = match member.role {
                    Role::Teacher => 0.85,
                    Role::Student => 0.9 - worse,
                    Role::Twin => 0.9,
                };
                let task = |name: &str, ne| TaskScores { task: name.to_owned(), values: values(ne) };
                // What nobody knows yet is worse than the mean.
                let scores = || vec![task("click", ne), task("conversion", ne + 0.2)];
                let steps = 100 * (tick + 1);
                board.trained(place, steps, window * (tick + 1), || (scores(), scores()));
            }
            board.set_time(60_000 * tick, 30.0, false);
            let stage = StageLine {
                name: "join".to_owned(),
                waiting: 3,
                waiting_most: 5,
                behind_ms: Some(1500),
                rate: 900.0,
            };
            board.tick(vec![None; file.members.len()], vec![stage], (seen(), 26_000));
        }
        board
    }

    fn ask(address: SocketAddr, headers: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET /live.json HTTP/1.1\r\nConnection: close\r\n{headers}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_foreign_name_and_a_foreign_page_see_nothing() {
        let address = show(SocketAddr::from(([127, 0, 0, 1], 0)), Arc::new(board())).unwrap();
        let own = format!("Host: {address}\r\nOrigin: http://{address}");
        for (headers, wanted) in [
            ("Host: localhost", "200"),
            (&own, "200"),
            ("Host: evil.example", "403"),
            ("Host: localhost\r\nOrigin: http://evil.example", "403"),
            ("Host: localhost\r\nOrigin: null", "403"),
        ] {
            let answer = ask(address, headers);
            assert!(answer.starts_with(&format!("HTTP/1.1 {wanted}")), "{headers}: {answer:.200}");
            assert_eq!(answer.contains("\"models\""), wanted == "200", "{headers}");
        }
    }

    #[test]
    fn connections_beyond_the_limit_are_turned_away_and_places_come_back() {
        let address = show(SocketAddr::from(([127, 0, 0, 1], 0)), Arc::new(board())).unwrap();
        let looking = || {
            let mut stream = TcpStream::connect(address).unwrap();
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
            let mut first = [0; 12];
            stream.read_exact(&mut first).is_ok().then_some(stream)
        };
        let open: Vec<_> = (0..CONNECTIONS_MAX).map(|_| looking().unwrap()).collect();
        assert!(looking().is_none());
        drop(open);
        // It ends: who hangs up gives the place back.
        while looking().is_none() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn lines_and_gains_come_back_after_a_restart_and_headline_and_tiles_say_the_same() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("page.json");
        let before = board();
        before.save(&path).unwrap();
        let file = LiveFile::parse(include_str!("../../../examples/live.toml")).unwrap();
        let after = Board::new(&file, &vec![50_000; file.members.len()]);
        after.restore(&path).unwrap();
        let (before, after) = (before.to_json(), after.to_json());
        for (was, is) in before["models"].as_array().unwrap().iter().zip(after["models"].as_array().unwrap())
        {
            assert_eq!(was["points"].as_array().unwrap().len(), 5);
            assert_eq!(was["points"], is["points"], "{}", was["name"]);
        }
        assert_eq!(before["headline"], after["headline"]);
        for line in before["transfer"].as_array().unwrap() {
            let harmed = line["student"] == "early";
            assert_eq!(line["verdict"], if harmed { "worse" } else { "better" }, "{line}");
            assert!(line["error"].as_f64().is_some_and(|error| error < 1e-9), "{line}");
        }
        std::fs::write(&path, b"[1, 2").unwrap();
        assert!(Board::new(&file, &[]).restore(&path).is_err());
    }

    /// A browser that can be told to print a page after its scripts ran.
    fn browser() -> Option<&'static str> {
        let works = |name: &&str| {
            Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
        };
        ["chromium", "chromium-browser", "google-chrome"].into_iter().find(works)
    }

    #[test]
    fn a_person_sees_in_a_real_browser_whom_the_teacher_helps_and_what_it_costs() {
        let Some(browser) = browser() else {
            let line = "NOT CHECKED: there is no Chromium here, so the live page was not looked at";
            assert!(option_env!("CI").is_none(), "with CI set nothing may be left out. {line}");
            writeln!(std::io::stderr(), "{line}").unwrap();
            return;
        };
        let address = show(SocketAddr::from(([127, 0, 0, 1], 0)), Arc::new(board())).unwrap();
        let home = tempfile::tempdir().unwrap();
        let flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--virtual-time-budget=3000",
            "--dump-dom",
        ];
        let profile = format!("--user-data-dir={}", home.path().display());
        let output =
            Command::new(browser).args(flags).arg(profile).arg(format!("http://{address}/")).output();
        let output = output.unwrap();
        let page = String::from_utf8_lossy(&output.stdout);
        for wanted in [
            "The teacher helps retrieval and late and harms early.",
            "1.11 % better",
            "1.11 % worse",
            // Every window says the same here, so there is no doubt; and the other task has a tile and lines of its own.
            "+1.11 to +1.11 % at 95 %, 5 windows",
            "early: NE of conversion with the teacher",
            "retrieval: NE of conversion, lower is better",
            "<span class=\"bad\">1.0900</span>",
            "the teacher itself is 6.7 % better than without; 17 % of that arrives",
            "<polyline",
            "scored in time",
            // 3 * 50,000 * 256,000 to train and 50,000 * 26,000 to speak, a third for each of three.
            "the teacher has cost 39.7 G operations: 13.2 G for each of 3 students",
        ] {
            assert!(
                page.contains(wanted),
                "no {wanted} in {page}\n{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}
