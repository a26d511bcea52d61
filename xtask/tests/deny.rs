//! What may be built on: `deny.toml` holds for a small workspace, and refuses what it should.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use xtask::workspace_root;

/// Whether cargo-deny is here; `cargo xtask test` brings it before any test.
fn is_here() -> bool {
    let found = Command::new("cargo").args(["deny", "--version"]).output();
    let here = found.is_ok_and(|output| output.status.success());
    if !here {
        assert!(std::env::var_os("CI").is_none(), "cargo-deny is missing, and CI leaves nothing out");
        eprintln!("NOT CHECKED: there is no cargo-deny here; run `cargo xtask test`, which brings it");
    }
    here
}

/// A package that is built on `needed`, under some licence.
fn package(folder: &Path, name: &str, licence: &str, needed: &str) {
    let home = folder.join(name);
    fs::create_dir_all(home.join("src")).unwrap();
    fs::write(home.join("src/lib.rs"), "").unwrap();
    let head = format!("[package]\nname = \"{name}\"\nversion = \"1.0.0\"\nedition = \"2024\"\n");
    let rest = format!("license = \"{licence}\"\npublish = false\n[dependencies]\n{needed}[workspace]\n");
    fs::write(home.join("Cargo.toml"), head + &rest).unwrap();
}

fn deny(package: &Path, check: &str) -> Output {
    let mut command = Command::new("cargo");
    command.args(["deny", "--offline", "--manifest-path"]).arg(package.join("Cargo.toml"));
    command.arg("--config").arg(workspace_root().join("deny.toml")).args(["check", check]);
    command.output().unwrap()
}

#[test]
fn a_copyleft_licence_and_a_version_that_nobody_named_are_refused() {
    if !is_here() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    package(folder.path(), "free", "GPL-3.0-only", "");
    package(folder.path(), "plain", "MIT", "");
    package(folder.path(), "first", "MIT", "plain = { path = \"../plain\" }\n");
    package(folder.path(), "second", "MIT", "free = { path = \"../free\" }\n");
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let good = deny(&folder.path().join("first"), "licenses");
    assert!(good.status.success(), "{}", said(&good));
    let bad = deny(&folder.path().join("second"), "licenses");
    assert!(!bad.status.success() && said(&bad).contains("GPL-3.0-only"), "{}", said(&bad));
}

#[test]
fn everything_that_is_excepted_has_its_reason() {
    let text = fs::read_to_string(workspace_root().join("deny.toml")).unwrap();
    let deny: toml::Table = text.parse().unwrap();
    let skipped = deny["bans"]["skip"].as_array().unwrap();
    assert!(!skipped.is_empty());
    for one in skipped {
        let reason = one.get("reason").and_then(|reason| reason.as_str()).unwrap_or_default();
        assert!(reason.len() > 10, "{one}: say who holds the old version back");
    }
}
