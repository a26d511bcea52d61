//! The snippet in `docs/checkpoints.md` reads a checkpoint with nothing but `safetensors` and numpy.

use std::{io::Write, path::Path, process::Command};

use campanile_spec::{RowFormat, TableSpec};
use campanile_tables::Table;

use crate::{ROWWISE_ADAGRAD, dense, save, spec, table, train};

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/checkpoints.md");

fn snippet() -> String {
    let guide = std::fs::read_to_string(GUIDE).unwrap();
    let (_, rest) = guide.split_once("```python\n").expect("the guide has a Python snippet");
    rest.split_once("```").unwrap().0.to_owned()
}

/// The Python that `cargo xtask test` makes, or the system's.
fn python() -> Command {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python/bin/python");
    if own.exists() { Command::new(own) } else { Command::new("python3") }
}

/// Whether it can import these modules.
fn python_has(modules: &str) -> bool {
    let import = format!("import {modules}");
    python().args(["-c", &import]).output().is_ok_and(|output| output.status.success())
}

fn expected_line(table: &Table, name: &str, dtype: &str, values: &[f32]) -> String {
    let sum: f64 = values.iter().map(|&value| f64::from(value)).sum();
    let spec = table.spec();
    format!("table {name} [{}, {}] {dtype} {sum:?}", spec.row_count, spec.dim)
}

#[test]
fn the_snippet_of_the_guide_reads_a_checkpoint() {
    if !python_has("safetensors, numpy") {
        let line = "NOT CHECKED: run `python3 xtask/python/environment.py` to try the guide's snippet with safetensors";
        assert!(std::env::var_os("CI").is_none(), "with CI set nothing may be left out. {line}");
        // Unlike `eprintln!` this shows even when the test passes.
        writeln!(std::io::stderr(), "{line}").unwrap();
        // What the snippet relies on is checked all the same.
        let code = snippet();
        for word in ["manifest.json", "dense.safetensors", "\"table-\"", "metadata()[\"table\"]", "\"rows\""]
        {
            assert!(code.contains(word), "the snippet uses {word}");
        }
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let formats: &[RowFormat] = if python_has("ml_dtypes") { &crate::FORMATS } else { &crate::FORMATS[..2] };
    let mut specs: Vec<TableSpec> =
        formats.iter().map(|&format| spec(&format!("a/b {format:?}"), 300, 5, format)).collect();
    specs.push(spec("big", 70_000, 128, RowFormat::F32));
    specs.push(spec("none", 0, 4, RowFormat::F32));
    let mut tables: Vec<Table> =
        specs.iter().map(|spec| table(spec, 0..spec.row_count, &ROWWISE_ADAGRAD)).collect();
    train(&mut tables[0], &[0, 5, 299], 0);
    let path = save(home.path(), 42, &mut tables);
    let script = home.path().join("read.py");
    std::fs::write(&script, snippet()).unwrap();
    let output = python().arg(&script).arg(&path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "step 42");
    let weights: f64 = dense().1[..12].iter().map(|&value| f64::from(value)).sum();
    let found = lines.iter().find_map(|line| line.strip_prefix("dense top.0.weight [4, 3] ")).expect(&text);
    assert!((found.parse::<f64>().unwrap() - weights).abs() < 1e-9, "{text}");
    for table in &tables {
        let name = table.spec().name.clone();
        let (dtype, values) = crate::round_trip::numpy_view(table);
        let want = expected_line(table, &name, dtype, &values);
        let (shape, sum) = want.rsplit_once(' ').unwrap();
        let found = lines
            .iter()
            .find_map(|line| line.strip_prefix(shape))
            .unwrap_or_else(|| panic!("no {want}\n{text}"));
        // The two sums are taken in different orders.
        let (found, sum): (f64, f64) = (found.trim().parse().unwrap(), sum.parse().unwrap());
        assert!((found - sum).abs() < 1e-6, "{found} is not {sum}: {want}");
    }
}
