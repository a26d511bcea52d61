//! The page of a loop: one file with no asset from elsewhere, and the data it asks for every second.

use std::{io, net::SocketAddr, sync::Arc};

use axum::{
    Router,
    http::{HeaderValue, header},
    response::{Html, IntoResponse, Response},
    routing::get,
};
use tokio::net::TcpListener;

use crate::board::Board;

const PAGE: &str = include_str!("page/page.html");

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
    std::thread::Builder::new().name("page".to_owned()).spawn(move || {
        // The page is there to look at; the loop goes on without it.
        let _ = runtime.block_on(async { axum::serve(listener, app).await });
    })?;
    Ok(address)
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
    use std::{io::Write, process::Command};

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
        for tick in 0..3 {
            for (place, member) in file.members.iter().enumerate() {
                let worse = if member.name.starts_with("early") { -0.01 } else { 0.01 };
                let ne = match member.role {
                    Role::Teacher => 0.85,
                    Role::Student => 0.9 - worse,
                    Role::Twin => 0.9,
                };
                let scores = || vec![TaskScores { task: "click".to_owned(), values: values(ne) }];
                board.trained(place, 100, 25_600, || (scores(), scores()));
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
            "The teacher helps retrieval, late, and harms early.",
            "1.11 % better",
            "1.11 % worse",
            "the teacher itself is 6.7 % better; 17 % of that arrives",
            "<polyline",
            "scored in time",
            // 3 * 50,000 * 25,600 to train and 50,000 * 26,000 to speak, a third for each of three.
            "the teacher has cost 5.1 G operations: 1.7 G for each of 3 students",
        ] {
            assert!(
                page.contains(wanted),
                "no {wanted} in {page}\n{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}
