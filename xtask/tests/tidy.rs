//! The house is tidy, and each house rule can fail.

use std::collections::BTreeMap;

use expect_test::{Expect, expect};
use xtask::{
    tidy::{self, File, dependencies, layers, pages, source},
    workspace_root,
};

#[test]
fn the_house_is_tidy() {
    let complaints = tidy::complaints(&workspace_root());
    assert!(complaints.is_empty(), "{} house rules are broken:\n{}", complaints.len(), complaints.join("\n"));
}

#[test]
fn rules_on_source_fire() {
    let check = |path: &str, text: &str, expect: Expect| {
        let file = File { path: path.to_owned(), text: text.to_owned() };
        expect.assert_eq(&source::complaints(&file).join("\n"));
    };
    let doc = "//! A module.\n";
    check("crates/train/src/step.rs", doc, expect![""]);
    check(
        "crates/train/src/step.rs",
        "fn f() {}\n",
        expect![
            "crates/train/src/step.rs: it must open with a module doc (`//!`): what it is, why so, its invariant"
        ],
    );
    check(
        "crates/train/src/step.rs",
        &format!("{doc}{}", "// line\n".repeat(600)),
        expect![
            "crates/train/src/step.rs: 601 lines without tests, the limit is 600: split it by what it does"
        ],
    );
    check(
        "crates/train/src/step.rs",
        &format!(
            "{doc}{}\n#[cfg(test)]\nmod tests {{\n{}}}\n",
            "// line\n".repeat(500),
            "// test\n".repeat(500)
        ),
        expect![""],
    );
    check(
        "docs/live.md",
        "one\n<<<<<<< HEAD\ntwo\n=======\nthree\n>>>>>>> theirs\n",
        expect![[r#"
            docs/live.md:2: a merge is not finished here
            docs/live.md:6: a merge is not finished here"#]],
    );
    check(
        "crates/train/src/utils.rs",
        doc,
        expect!["crates/train/src/utils.rs: `utils` says nothing; name the file after what it holds"],
    );
    check(
        "crates/train/src/step.rs",
        &format!("{doc}pub struct TableManager {{\n"),
        expect!["crates/train/src/step.rs:2: `TableManager` says nothing; name it after what it does"],
    );
    check(
        "crates/train/src/step.rs",
        &format!("{doc}let start = Instant::now();\n"),
        expect![[
            r#"crates/train/src/step.rs:2: `Instant::now` may not stand here: time is read by the command line and by the clocks of train and server; take a clock or a time as an argument"#
        ]],
    );
    check(
        "crates/train/src/step.rs",
        &format!("{doc}pub fn long(\n    a: u32,\n) {{\n{}}}\n", "    step();\n".repeat(70)),
        expect!["crates/train/src/step.rs:2: `long` has 72 lines, the limit is 70: split it"],
    );
    check(
        "crates/train/src/step.rs",
        &format!("{doc}pub fn short() {{\n{}}}\n", "    // why\n    step();\n".repeat(70)),
        expect![""],
    );
    check("crates/train/src/clock.rs", &format!("{doc}let start = Instant::now();\n"), expect![""]);
    check(
        "crates/model/src/loss.rs",
        &format!(
            "{doc}let (a, b) = (x.exp(), xs.map(f64::ln_1p));\nlet c = exp(x).sqrt() + self.expect(1);\n"
        ),
        expect![[
            r#"crates/model/src/loss.rs:2: `exp` of the system may not stand here: its last bits differ between machines; `campanile_spec::elementary` has it from basic operations"#
        ]],
    );
    check(
        "crates/live/tests/page.rs",
        "fn test() {\n    println!(\"NOT CHECKED: no browser\");\n}\n",
        expect!["crates/live/tests/page.rs:2: a test that leaves something out must fail where `CI` is set"],
    );
    check(
        "crates/live/tests/page.rs",
        "fn test() {\n    assert!(std::env::var_os(\"CI\").is_none());\n    println!(\"NOT CHECKED\");\n}\n",
        expect![""],
    );
    check("crates/cli/src/pricing.rs", &format!("{doc}let a = x.log2();\n"), expect![""]);
    check(
        "crates/model/src/loss.rs",
        &format!("{doc}\n#[cfg(test)]\nmod tests {{\n    x.exp();\n}}\n"),
        expect![""],
    );
    check(
        "crates/sharded/src/route.rs",
        &format!("{doc}#![allow(unsafe_code)]\nlet (a, b) = mpsc::channel();\n"),
        expect![[r#"
            crates/sharded/src/route.rs:2: `allow(unsafe_code)` may not stand here: unsafe code lives in kernels' vector modules, in the modules that map memory, where MPI is called, and in the allocators of tests
            crates/sharded/src/route.rs:3: `mpsc::channel(` may not stand here: every queue has a limit with a name; use `sync_channel`"#]],
    );
    check(
        "crates/spec/src/data.rs",
        &format!("{doc}use std::collections::HashMap;\n"),
        expect![[
            r#"crates/spec/src/data.rs:2: `HashMap` may not stand here: `spec` has no I/O and no threads, and its order is the same on every rank; use BTreeMap or Vec"#
        ]],
    );
    check(
        "docs/guide.md",
        "see /home/me/notes\nTODO later\n",
        expect![[r#"
            docs/guide.md:1: `/home/` is a path of one machine
            docs/guide.md:2: a TODO names its issue: `TODO (#12)`"#]],
    );
}

#[test]
fn rules_on_pages_fire() {
    let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
    let exists = |path: &str| path == "docs/job.md";
    let page = file(
        "docs/guide.md",
        "`docs/job.md`, [job](job.md#run), `docs/gone.md`, a new `docs/plan.md`\n[lost](../lost.md), `crates/*/src`\n",
    );
    expect![[r#"
        docs/guide.md:1: there is no docs/gone.md; correct the path or add the file
        docs/guide.md:2: there is no lost.md; correct the path or add the file"#]]
    .assert_eq(&pages::path_complaints(&page, &exists).join("\n"));
    expect!["examples/a.toml: its first line must be \"# Run with `campanile train examples/a.toml`\""]
        .assert_eq(&pages::example_complaints(&file("examples/a.toml", "[run]\n")).join("\n"));
}

#[test]
fn a_change_of_the_drawing_is_told_in_full() {
    let page = "\
## The rooms
| room | owns | not there | uses |
|---|---|---|---|
| `spec` | words | I/O | nobody |
| `train` | the loop | maths | `spec`, `model` |
| `moon` | cheese | air | nobody |

## Planned rooms
| `serve` | answers | | `spec` |
";
    let manifests = BTreeMap::from([
        ("spec".to_owned(), "[dependencies]\nserde.workspace = true\n".to_owned()),
        (
            "train".to_owned(),
            "[dependencies]\ncampanile-spec.workspace = true\ncampanile-data.workspace = true\n".to_owned(),
        ),
        ("data".to_owned(), "[dev-dependencies]\ncampanile-oracle.workspace = true\n".to_owned()),
    ]);
    expect![[r#"
        ARCHITECTURE.md: add a row for `data` to the table under `## The rooms`
        crates/train/Cargo.toml uses `data`, which the row of `train` in ARCHITECTURE.md does not allow: add `data` to its last column if the drawing should change, or drop the dependency
        ARCHITECTURE.md says that `train` uses `model`, but its manifest does not: take it out of the row of `train`
        ARCHITECTURE.md: there is no room `moon`; take its row out, or list it as planned"#]]
    .assert_eq(&layers::compare(&layers::drawn(page), &layers::built(&manifests)).join("\n"));
}

#[test]
fn rules_on_dependencies_fire() {
    expect!["crates/a/Cargo.toml: `b` has a version of its own; put it into [workspace.dependencies] and write `b.workspace = true`"]
        .assert_eq(&dependencies::manifest_complaints("crates/a/Cargo.toml", "[dependencies]\nb = \"1\"\n").join("\n"));
}
