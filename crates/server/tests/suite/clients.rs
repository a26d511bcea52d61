//! Clients that others wrote: NVIDIA's `tritonclient` from PyPI over both transports, and curl as in the guide.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use campanile_serve::{Options, Snapshot};
use campanile_server::client::RestClient;

use crate::fixture::{Settings, Trained, binary_request, columns};

/// Unlike `eprintln!` this shows even when the test passes.
fn not_checked(line: &str) {
    assert!(std::env::var_os("CI").is_none(), "with CI set nothing may be left out. {line}");
    std::io::stderr().write_all(format!("NOT CHECKED: {line}\n").as_bytes()).unwrap();
}

/// A Python that has `tritonclient`: the one that `cargo xtask test` makes, or the system's.
fn python() -> Option<PathBuf> {
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../clients/bin/python");
    [made, PathBuf::from("python3")].into_iter().find(|python| {
        let import = "import tritonclient.http, tritonclient.grpc";
        Command::new(python).args(["-c", import]).output().is_ok_and(|output| output.status.success())
    })
}

#[test]
fn tritonclient_does_everything_over_both_transports() {
    let Some(python) = python() else {
        not_checked("no python3 here has tritonclient; `pip install 'tritonclient[http,grpc]'` brings it");
        return;
    };
    let mut settings = Settings::new();
    settings.allow_control = true;
    let server = settings.start();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tritonclient_calls.py");
    let (http, grpc) = (server.http.to_string(), server.grpc.unwrap().to_string());
    let output = Command::new(python).arg(script).args([&http, &grpc, "tiny"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.matches(" ok\n").count(), 22, "{text}");
    assert!(server.stop());
}

/// The guide's commands, one after the other, with what each must print.
fn examples() -> Vec<(String, String)> {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/serving-api.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let blocks = guide.split("```console\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut examples = Vec::new();
    for block in blocks {
        for part in block.split("$ ").skip(1) {
            // A command goes on after a backslash at the end of its line.
            let mut command = String::new();
            let mut lines = part.lines();
            for line in lines.by_ref() {
                command.push_str(line.trim_end_matches('\\'));
                if !line.ends_with('\\') {
                    break;
                }
            }
            examples.push((command, lines.collect::<Vec<_>>().join("\n")));
        }
    }
    examples
}

/// Whether the printed text fits: `…` stands for anything.
fn fits(printed: &str, wanted: &str) -> bool {
    let mut rest = printed.trim();
    for (place, piece) in wanted.trim().split('…').enumerate() {
        match rest.find(piece) {
            Some(at) if at == 0 || place > 0 => rest = &rest[at + piece.len()..],
            _ => return false,
        }
    }
    true
}

#[test]
fn the_guides_curl_commands_print_what_the_guide_says() {
    if !Command::new("curl").arg("--version").output().is_ok_and(|output| output.status.success()) {
        not_checked("there is no curl here, so the guide's commands were not run");
        return;
    }
    let mut settings = Settings::new();
    settings.allow_control = true;
    let server = settings.start();
    let address = server.http.to_string();
    let home = tempfile::tempdir().unwrap();
    let examples = examples();
    assert!(examples.len() >= 10);
    for (command, wanted) in examples.iter().filter(|(command, _)| !command.starts_with("campanile")) {
        let command = command.replace("127.0.0.1:8080", &address);
        let output = Command::new("sh").args(["-c", &command]).current_dir(home.path()).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && fits(&printed, wanted),
            "$ {command}\n{printed}\nwanted:\n{wanted}"
        );
    }
    assert!(server.stop());
}

/// A browser that can be told to print a page after its scripts ran.
fn browser() -> Option<&'static str> {
    ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success()))
}

#[test]
fn the_page_shows_models_and_numbers_in_a_real_browser() {
    let Some(browser) = browser() else {
        not_checked(
            "there is no Chromium here, so the page was not looked at; `apt install chromium` brings it",
        );
        return;
    };
    let server = Settings::new().start();
    let version = server.engine().models.served("tiny", "").unwrap().version.clone();
    let home = tempfile::tempdir().unwrap();
    let profile = format!("--user-data-dir={}", home.path().display());
    let flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--virtual-time-budget=4000",
        "--dump-dom",
    ];
    let url = format!("http://{}/", server.http);
    let look = || {
        let output = Command::new(browser).args(flags).arg(&profile).arg(&url).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    // What stands between tags is on the page; the words alone are in its program, too.
    let nothing = ">no request in the last minute<";
    let idle = look();
    for wanted in [
        "class=\"badge good\">ready<",
        "<td>tiny</td>",
        &format!(">{version}</td>"),
        "requests scored/s",
        // Rates name their window, every line has its key, and where nothing came no time is made up.
        "Rates and times are of the last",
        "refused</span>",
        nothing,
    ] {
        assert!(idle.contains(wanted), "no {wanted} in {idle}");
    }
    assert!(!idle.contains("0 µs") && !idle.contains("<polyline"), "{idle}");
    let snapshot = Snapshot::open(Trained::tiny().newest(), "tiny", &Options::default()).unwrap();
    let columns = columns(&Trained::tiny().samples(20), snapshot.inputs());
    let request = binary_request("/v2/models/tiny/infer", &columns);
    assert_eq!(RestClient::connect(server.http).unwrap().send(&request).unwrap().status, 200);
    // A second is drawn when it is over.
    let busy = (0..20).map(|_| look()).find(|page| page.contains("<polyline")).expect("lines are drawn");
    assert!(!busy.contains(nothing), "{busy}");
    assert!(Trained::tiny().checkpoints.len() > 1 && server.stop());
}
