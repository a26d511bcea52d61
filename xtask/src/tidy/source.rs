//! Rules on source files: lengths, names, and what may stand where.

use super::File;

/// The most lines of a source file, without its tests.
const LINES_MAX: usize = 600;

/// The most lines of a function's body, without comments and blank lines.
const BODY_LINES_MAX: usize = 70;

/// Names that say nothing about what is inside.
const BANNED_STEMS: &[&str] = &["util", "utils", "common", "helper", "helpers", "types", "misc", "mod"];

/// Endings and beginnings of type names that say nothing.
const BANNED_ENDINGS: &[&str] = &["Manager", "Impl", "Info", "Helper", "Util", "Utils"];

/// Text that may stand in some places only.
struct Bound {
    texts: &'static [&'static str],
    /// Paths that begin with one of these may have it.
    allowed: &'static [&'static str],
    why: &'static str,
}

const BOUNDS: &[Bound] = &[
    Bound {
        texts: &["allow(unsafe_code)", "expect(unsafe_code"],
        allowed: &[
            "crates/kernels/src/",
            "crates/kernels/benches/",
            "crates/comm/src/mpi/library.rs",
            "crates/tables/src/slab.rs",
            "crates/serve/tests/allocations.rs",
            "crates/data/src/packed/",
            "crates/fuzz/src/allocator.rs",
        ],
        why: "unsafe code lives in kernels' vector modules, in the modules that map memory, where MPI is called, and in \
              the allocators of tests",
    },
    Bound {
        texts: &["Instant::now", "SystemTime::now"],
        allowed: &[
            "crates/cli/",
            "crates/train/src/clock.rs",
            "crates/server/src/clock.rs",
            "crates/kernels/src/peak.rs",
            "crates/fuzz/src/main.rs",
            "xtask/src/stages.rs",
        ],
        why: "time is read by the command line and by the clocks of train and server; take a clock or a time as an argument",
    },
    Bound {
        texts: &["std::env::", "env::var", "env::args"],
        allowed: &["crates/cli/", "crates/fuzz/src/main.rs", "xtask/"],
        why: "only the command line reads flags and the environment; take the value as an argument",
    },
    Bound {
        texts: &["mpsc::channel(", "mpsc::channel::", "unbounded("],
        allowed: &[],
        why: "every queue has a limit with a name; use `sync_channel`",
    },
    Bound { texts: &["todo!(", "unimplemented!("], allowed: &[], why: "finish it, or return an error" },
    Bound {
        texts: &["#[ignore"],
        allowed: &[],
        why: "a test that does not run guards nothing; make it fast or delete it",
    },
    Bound {
        texts: &["thread::sleep"],
        allowed: &["crates/cli/"],
        why: "wait for the thing itself, not for a time",
    },
    Bound {
        texts: &["thread_rng", "rand::rng()", "from_entropy", "RandomState"],
        allowed: &[],
        why: "randomness comes from the job's seed",
    },
    Bound { texts: &["use super::super::super"], allowed: &[], why: "name the path from `crate::`" },
];

/// Where a bound holds in one room only.
const SPEC_BOUND: Bound = Bound {
    texts: &["HashMap", "HashSet", "std::fs", "std::thread", "std::net"],
    allowed: &["crates/spec/tests/"],
    why: "`spec` has no I/O and no threads, and its order is the same on every rank; use BTreeMap or Vec",
};

/// What the system's mathematics library computes: its last bits differ between machines. A square root is exact.
const ELEMENTARY: &[&str] = &[
    "exp", "exp2", "exp_m1", "ln", "ln_1p", "log2", "log10", "powf", "powi", "sin", "cos", "tan", "sin_cos",
    "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "cbrt", "hypot",
];

/// Where no bit of a result hangs on them: the command line, the network, and prices of plans.
const ELEMENTARY_ALLOWED: &[&str] = &["crates/cli/", "crates/server/", "crates/planner/"];

/// The part of the planner that gives models their form.
const ELEMENTARY_BANNED: &str = "crates/planner/src/towers";

/// Checks one file.
pub fn complaints(file: &File) -> Vec<String> {
    let mut complaints = machine_complaints(file);
    complaints.extend(name_complaints(file));
    complaints.extend(merge_complaints(file));
    // This file names what it bans.
    let is_rule = file.path.starts_with("xtask/");
    if file.path.ends_with(".rs") && !is_rule {
        complaints.extend(length_complaints(file));
        complaints.extend(function_complaints(file));
        complaints.extend(bound_complaints(file));
        complaints.extend(elementary_complaints(file));
        complaints.extend(unchecked_complaints(file));
        complaints.extend(type_complaints(file));
    }
    complaints
}

/// Marks that a merge left behind: a compiler finds them in code, nobody in prose.
fn merge_complaints(file: &File) -> Vec<String> {
    let is_mark = |line: &str| ["<<<<<<< ", ">>>>>>> "].iter().any(|mark| line.starts_with(mark));
    let lines = file.text.lines().enumerate().filter(|(_, line)| is_mark(line));
    lines.map(|(at, _)| format!("{}:{}: a merge is not finished here", file.path, at + 1)).collect()
}

/// What is not a test: a source file up to the tests at its end, and nothing of a file of tests.
fn body(file: &File) -> &str {
    if !file.path.contains("/src/") || file.path.ends_with("/tests.rs") {
        return "";
    }
    file.text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default()
}

/// Long files, and files that do not say what they are.
pub fn length_complaints(file: &File) -> Vec<String> {
    let body = body(file);
    let is_source = !body.is_empty();
    let lines = body.lines().count();
    let mut complaints = Vec::new();
    if is_source && lines > LINES_MAX {
        complaints.push(format!(
            "{}: {lines} lines without tests, the limit is {LINES_MAX}: split it by what it does",
            file.path
        ));
    }
    if is_source && !body.starts_with("//!") {
        complaints.push(format!(
            "{}: it must open with a module doc (`//!`): what it is, why so, its invariant",
            file.path
        ));
    }
    complaints
}

/// Functions that do more than one thing. rustfmt puts a function's last brace under its first letter, so
/// indentation finds the end.
pub fn function_complaints(file: &File) -> Vec<String> {
    let lines: Vec<&str> = body(file).lines().collect();
    let mut complaints = Vec::new();
    for (index, line) in lines.iter().enumerate().filter(|(_, line)| !is_comment(line)) {
        let words = line.trim_start();
        let Some(name) =
            words.split_once("fn ").filter(|(before, _)| is_before_fn(before)).map(|(_, name)| name)
        else {
            continue;
        };
        let end = format!("{}}}", &line[..line.len() - words.len()]);
        let body = lines[index + 1..].iter().take_while(|line| **line != end);
        let count = body.filter(|line| !line.trim().is_empty() && !is_comment(line)).count();
        // A signature without a body ends at the brace of something else: only a brace that opens here counts.
        let opens = lines[index..]
            .iter()
            .find(|line| line.ends_with(['{', ';', '}']))
            .is_some_and(|line| line.ends_with('{'));
        if opens && count > BODY_LINES_MAX {
            let name = name.split(['(', '<']).next().unwrap_or_default();
            complaints.push(format!(
                "{}:{}: `{name}` has {count} lines, the limit is {BODY_LINES_MAX}: split it",
                file.path,
                index + 1
            ));
        }
    }
    complaints
}

/// Whether the words before `fn` are those of a declaration.
fn is_before_fn(words: &str) -> bool {
    words
        .split_whitespace()
        .all(|word| ["const", "async", "unsafe", "extern"].contains(&word) || word.starts_with("pub"))
}

/// Calls and attributes that may stand in some places only.
pub fn bound_complaints(file: &File) -> Vec<String> {
    // Benchmarks, examples and tests are programs of their own: they may read their arguments, and benchmarks a
    // clock and the processor's registers too.
    let programs: &[&str] = match () {
        () if file.path.contains("/benches/") => &["Instant::now", "std::env::", "allow(unsafe_code)"],
        () if file.path.contains("/tests/") || file.path.contains("/examples/") => &["std::env::"],
        () => &[],
    };
    let is_spec = file.path.starts_with("crates/spec/");
    let bounds = BOUNDS.iter().chain(Some(&SPEC_BOUND).filter(|_| is_spec));
    let mut complaints = Vec::new();
    for bound in bounds.filter(|bound| !bound.allowed.iter().any(|path| file.path.starts_with(path))) {
        if programs.contains(&bound.texts[0]) {
            continue;
        }
        for (index, line) in file.text.lines().enumerate().filter(|(_, line)| !is_comment(line)) {
            if let Some(text) = bound.texts.iter().find(|text| line.contains(**text)) {
                complaints.push(format!(
                    "{}:{}: `{text}` may not stand here: {}",
                    file.path,
                    index + 1,
                    bound.why
                ));
            }
        }
    }
    complaints
}

/// Tests that pass although they left something out: in CI they must fail.
pub fn unchecked_complaints(file: &File) -> Vec<String> {
    let asks = ["var_os(\"CI\")", "option_env!(\"CI\")"].iter().any(|text| file.text.contains(text));
    let line = file.text.lines().position(|line| line.contains("NOT CHECKED") && !is_comment(line));
    let complaint = |at: usize| {
        format!("{}:{}: a test that leaves something out must fail where `CI` is set", file.path, at + 1)
    };
    line.filter(|_| !asks).map(complaint).into_iter().collect()
}

/// Calls of the system's mathematics library where results are made; tests may compare with it.
pub fn elementary_complaints(file: &File) -> Vec<String> {
    let allowed = ELEMENTARY_ALLOWED.iter().any(|path| file.path.starts_with(path));
    if allowed && !file.path.starts_with(ELEMENTARY_BANNED) {
        return Vec::new();
    }
    let is_call = |line: &str, name: &str| {
        let method = line.contains(&format!(".{name}("));
        let path = ["f32", "f64"].iter().any(|float| {
            let path = format!("{float}::{name}");
            let mut rests = line.match_indices(&path).map(|(at, _)| &line[at + path.len()..]);
            rests.any(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        });
        method || path
    };
    let mut complaints = Vec::new();
    for (index, line) in body(file).lines().enumerate().filter(|(_, line)| !is_comment(line)) {
        if let Some(name) = ELEMENTARY.iter().find(|name| is_call(line, name)) {
            complaints.push(format!(
                "{}:{}: `{name}` of the system may not stand here: its last bits differ between machines; \
                 `campanile_spec::elementary` has it from basic operations",
                file.path,
                index + 1
            ));
        }
    }
    complaints
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

/// File names that say nothing.
pub fn name_complaints(file: &File) -> Vec<String> {
    let name = file.path.rsplit('/').next().unwrap_or_default();
    let stem = name.split('.').next().unwrap_or_default();
    if (name.ends_with(".rs") || name.ends_with(".py")) && BANNED_STEMS.contains(&stem) {
        return vec![format!("{}: `{stem}` says nothing; name the file after what it holds", file.path)];
    }
    Vec::new()
}

/// Type names that say nothing.
pub fn type_complaints(file: &File) -> Vec<String> {
    let mut complaints = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let declared = words.windows(2).find(|pair| ["struct", "enum", "trait", "type"].contains(&pair[0]));
        let Some(name) =
            declared.map(|pair| pair[1].split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default())
        else {
            continue;
        };
        let is_base = name.strip_prefix("Base").is_some_and(|rest| rest.starts_with(char::is_uppercase));
        if !is_comment(line) && (is_base || BANNED_ENDINGS.iter().any(|ending| name.ends_with(ending))) {
            complaints.push(format!(
                "{}:{}: `{name}` says nothing; name it after what it does",
                file.path,
                index + 1
            ));
        }
    }
    complaints
}

/// Paths of one machine, and notes to oneself without an issue.
pub fn machine_complaints(file: &File) -> Vec<String> {
    if file.path.starts_with("xtask/") {
        return Vec::new();
    }
    let machine = ["/home/", "/root/", "/Users/", "/tmp/", "/work/", "../shared"];
    let mut complaints = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let begins_path = |at: usize| {
            at == 0 || !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '.' || c == '}')
        };
        if let Some(path) =
            machine.iter().find(|path| line.match_indices(**path).any(|(at, _)| begins_path(at)))
        {
            complaints.push(format!("{}:{}: `{path}` is a path of one machine", file.path, index + 1));
        }
        if let Some((_, rest)) = line.split_once("TODO")
            && !rest.trim_start().starts_with("(#")
        {
            complaints.push(format!("{}:{}: a TODO names its issue: `TODO (#12)`", file.path, index + 1));
        }
    }
    complaints
}
