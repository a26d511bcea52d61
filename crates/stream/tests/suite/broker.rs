//! A NATS server of our own on a free port, ended when dropped.

use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    process::{Child, Command, Stdio},
};

use campanile_stream::log::{
    Log,
    jetstream::{JetStreamLog, Server},
};

/// A running server.
pub struct Broker {
    child: Child,
    port: u16,
    home: tempfile::TempDir,
}

impl Broker {
    /// `None`, with a visible line, where no server is installed.
    pub fn start() -> Option<Broker> {
        let home = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let Some(child) = spawn(port, home.path()) else {
            let line = "NOT CHECKED: nats-server is not installed, so the log on JetStream was not tried";
            assert!(std::env::var_os("CI").is_none(), "with CI set nothing may be left out. {line}");
            eprintln!("{line}");
            return None;
        };
        Some(Broker { child, port, home })
    }

    /// Kills the server without a warning, and starts it again on what it had written.
    pub fn kill_and_restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = spawn(self.port, self.home.path()).expect("it was there before");
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Opens the log on it, anew each time.
    pub fn open(&self) -> impl Fn() -> Box<dyn Log> + use<> {
        let server = Server { url: self.url(), prefix: "camp".to_owned(), ..Server::default() };
        move || Box::new(JetStreamLog::open(server.clone()).unwrap())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a server and waits until it is ready.
fn spawn(port: u16, home: &std::path::Path) -> Option<Child> {
    let mut child = Command::new("nats-server")
        .args(["-js", "-a", "127.0.0.1", "-p", &port.to_string(), "-sd"])
        .arg(home)
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let mut words = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(words.any(|line| line.contains("Server is ready")), "nats-server ended before it was ready");
    // Somebody must go on reading, or the server ends at its next word.
    std::thread::spawn(move || words.for_each(drop));
    Some(child)
}
