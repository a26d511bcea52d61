//! A model that is trained anew every day: versions of other vocabularies, columns and orders are compared on the same
//! raw rows, each read as it was trained to read.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;

/// The columns of a job, in its order.
const USER: &str = "[[run.data.sparse]]\nname = \"user\"\nmap = \"vocabulary\"\nrows = 60\n";
const ITEM: &str = "[[run.data.sparse]]\nname = \"item\"\nmap = \"vocabulary\"\nrows = 40\n";
const SHOP: &str = "[[run.data.sparse]]\nname = \"shop\"\nmap = \"direct\"\nrows = 4\n";
const PRICE: &str = "[[run.data.dense]]\nname = \"price\"\ntransforms = [\"standardise\"]\n";
const AGE: &str = "[[run.data.dense]]\nname = \"age\"\n";

struct Desk {
    folder: TempDir,
}

impl Desk {
    /// Three days of clicks; other users and items come up every day, and some shops that `SHOP` has no row for.
    fn new() -> Desk {
        let folder = TempDir::new().unwrap();
        for (day, seed) in [("monday", 1u64), ("tuesday", 2), ("wednesday", 3)] {
            let mut state = seed;
            let mut draw = |below: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % below
            };
            let mut text = "click,price,age,user,item,shop\n".to_owned();
            for row in 0..1500 {
                let (user, item) = (seed * 7 + draw(30), seed * 3 + draw(15));
                let shop = if draw(3) == 0 { String::new() } else { draw(7).to_string() };
                // The second half of every file is another world: whoever looks at the first rows only sees no click.
                let chance = if row < 750 { 0 } else { 30 + (user % 5) * 15 };
                let click = u64::from(draw(100) < chance);
                text += &format!("{click},{}.5,{},u{user},i{item},{shop}\n", draw(50) * seed, draw(9));
            }
            std::fs::write(folder.path().join(format!("{day}.csv")), text).unwrap();
        }
        Desk { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A job that trains on one day and looks at another.
    fn job(&self, name: &str, day: &str, valid: &str, columns: &[&str]) {
        let columns = columns.concat();
        let job = format!(
            r#"
[run]
batch_size = 64
epochs = 2
[run.data]
kind = "csv"
on_bad_row = "skip"
split = "by_file"
[[run.data.label]]
name = "click"
{columns}[run.tables]
dim = 4
[run.model]
kind = "mlp"
hidden = [8]
[run.sparse]
optimizer = "rowwise_adagrad"
learning_rate = 0.05
[run.dense]
optimizer = "adam"
learning_rate = 0.01
[process]
threads = 1
cache_dir = "cache"
output_dir = "{name}"
[process.data]
train = ["{day}.csv"]
valid = ["{valid}.csv"]
"#
        );
        std::fs::write(self.path(&format!("{name}.toml")), job).unwrap();
    }

    fn trained(&self, name: &str, day: &str, valid: &str, columns: &[&str]) {
        self.job(name, day, valid, columns);
        self.fine(&format!("train {name}.toml --quiet"));
    }

    fn run(&self, words: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
        command.args(words.split_whitespace()).current_dir(self.folder.path()).output().unwrap()
    }

    fn fine(&self, words: &str) -> String {
        let output = self.run(words);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "campanile {words}: {errors}");
        errors
    }

    fn refused(&self, words: &str) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(1), "campanile {words}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn report(&self, name: &str) -> Value {
        serde_json::from_slice(&std::fs::read(self.path(name)).unwrap()).unwrap()
    }

    /// What `eval` says of a checkpoint on the validation rows of a job.
    fn scores(&self, job: &str, checkpoint: &str) -> Value {
        self.fine(&format!("eval {job}.toml --split valid --checkpoint {checkpoint} --report eval.json"));
        self.report("eval.json")["evaluation"]["valid"]["tasks"][0].clone()
    }

    /// Publishes, whatever the gate says of the margins, and gives what it measured: of the current version, and of the
    /// candidate.
    fn gate(&self, words: &str) -> (Value, Value) {
        self.fine(&format!(
            "publish --registry registry --model ranker --ne-margin 100 --calibration-margin 100 {words} \
             --report report.json"
        ));
        let judged = &self.report("report.json")["release"]["judged"];
        (judged["current"][0].clone(), judged["candidate"][0].clone())
    }
}

/// The same numbers, to the last bit.
fn assert_same(found: &Value, want: &Value) {
    for key in ["count", "logloss", "ne", "auc", "calibration"] {
        assert!(!want[key].is_null() && found[key] == want[key], "{key}: {found} instead of {want}");
    }
}

#[test]
fn versions_of_other_vocabularies_columns_and_orders_are_compared_on_the_same_rows() {
    let desk = Desk::new();
    let usual = [PRICE, AGE, USER, ITEM];
    desk.trained("monday", "monday", "wednesday", &usual);
    desk.trained("tuesday", "tuesday", "wednesday", &usual);
    // What the rows' own transforms give, which are monday's and tuesday's: the same numbers must come from any job.
    let (monday, tuesday) = (desk.scores("monday", "monday"), desk.scores("tuesday", "tuesday"));
    assert_ne!(monday["ne"], tuesday["ne"]);
    desk.gate("monday.toml");
    let (current, candidate) = desk.gate("tuesday.toml");
    assert_same(&current, &monday);
    assert_same(&candidate, &tuesday);
    assert_same(&desk.scores("tuesday", "monday"), &monday);

    // The same columns in another order.
    desk.trained("turned", "monday", "wednesday", &[AGE, PRICE, ITEM, USER]);
    let turned = desk.scores("turned", "turned");
    let (current, candidate) = desk.gate("turned.toml");
    assert_same(&current, &tuesday);
    assert_same(&candidate, &turned);
    assert_same(&desk.scores("turned", "monday"), &monday);

    // A column more, and one less.
    let shop = SHOP.replace("direct", "hash");
    desk.trained("wide", "tuesday", "wednesday", &[PRICE, AGE, USER, ITEM, &shop]);
    let (current, candidate) = desk.gate("wide.toml");
    assert_same(&current, &turned);
    assert_same(&candidate, &desk.scores("wide", "wide"));
    desk.trained("narrow", "tuesday", "wednesday", &[USER]);
    let (current, _) = desk.gate("narrow.toml");
    assert_same(&current, &desk.scores("wide", "wide"));

    // Shops that a table has no row for are bad rows to its own job; another's rows stay, without them, as when serving.
    desk.trained("shops", "tuesday", "wednesday", &[USER, SHOP]);
    desk.fine("publish --registry registry --model ranker --no-gate shops.toml");
    let (current, candidate) = desk.gate("tuesday.toml");
    assert_eq!((&current["count"], &candidate["count"]), (&1500.into(), &1500.into()));
    assert_same(&candidate, &tuesday);
}

#[test]
fn a_gate_looks_at_rows_from_all_over_the_hold_out() {
    let desk = Desk::new();
    desk.trained("monday", "monday", "wednesday", &[PRICE, USER]);
    desk.trained("tuesday", "tuesday", "wednesday", &[PRICE, USER]);
    let (_, packed) = desk.gate("monday.toml --rows 150");
    assert_eq!(packed["count"], 150, "{packed}");
    // The first half of the rows has no click: of the first 150 there is no NE at all.
    assert!(packed["ne"].as_f64().is_some() && packed["label_rate"].as_f64().unwrap() > 0.15, "{packed}");
    // The same rows, read raw.
    let (current, _) = desk.gate("tuesday.toml --rows 150");
    assert_same(&current, &packed);
}

#[test]
fn what_cannot_be_compared_is_refused_by_name() {
    let desk = Desk::new();
    desk.trained("wide", "monday", "wednesday", &[PRICE, USER, ITEM]);
    desk.gate("wide.toml");
    // The rows of tomorrow have lost a column that the current version reads.
    let text = std::fs::read_to_string(desk.path("wednesday.csv")).unwrap();
    std::fs::write(desk.path("thursday.csv"), text.replace("item", "thing")).unwrap();
    desk.trained("narrow", "tuesday", "thursday", &[PRICE, USER]);
    let said = desk.refused("publish --registry registry --model ranker narrow.toml");
    assert!(said.contains("version 1 of `ranker`") && said.contains("`item`"), "{said}");
    assert!(said.contains("thursday.csv"), "{said}");
    // Another task altogether.
    let job = std::fs::read_to_string(desk.path("narrow.toml")).unwrap();
    let job = job.replace("name = \"click\"", "name = \"bought\"").replace("\"narrow\"", "\"bought\"");
    for day in ["tuesday", "thursday"] {
        let text = std::fs::read_to_string(desk.path(&format!("{day}.csv"))).unwrap();
        std::fs::write(desk.path(&format!("{day}.csv")), text.replacen("click", "bought", 1)).unwrap();
    }
    std::fs::write(desk.path("bought.toml"), job).unwrap();
    desk.fine("train bought.toml --quiet");
    let said = desk.refused("publish --registry registry --model ranker bought.toml");
    assert!(said.contains("has task `click`, and the hold-out has label `bought`"), "{said}");
}

#[test]
fn a_run_publishes_over_a_version_with_other_columns() {
    let desk = Desk::new();
    desk.trained("monday", "monday", "wednesday", &[USER]);
    desk.gate("monday.toml");
    desk.job("wide", "tuesday", "wednesday", &[PRICE, USER, ITEM]);
    let path = desk.path("wide.toml");
    let job = std::fs::read_to_string(&path).unwrap();
    let own = "[process.publish]\nregistry = \"registry\"\nmodel = \"ranker\"\nne_margin = 100.0\ncalibration_margin = 100.0\n";
    std::fs::write(&path, format!("{job}{own}")).unwrap();
    desk.fine("train wide.toml --quiet");
    desk.fine("inspect registry --report report.json");
    let versions = desk.report("report.json")["models"][0]["versions"].clone();
    assert_eq!(versions.as_array().unwrap().len(), 2, "{versions}");
    let wanted = desk.scores("wide", "monday");
    let release = desk.path("registry/ranker/versions/000000000002/release.json");
    let release: Value = serde_json::from_slice(&std::fs::read(release).unwrap()).unwrap();
    assert_same(&release["judged"]["current"][0], &wanted);
}

#[test]
fn eval_says_that_the_data_has_changed() {
    let desk = Desk::new();
    desk.trained("monday", "monday", "wednesday", &[PRICE, USER]);
    let said = desk.fine("eval monday.toml --split valid --report eval.json");
    assert!(
        !said.contains("other data") && desk.report("eval.json")["trained_on_other_data"] == false,
        "{said}"
    );
    let path = desk.path("wednesday.csv");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text + "1,2.5,3,u9,i9,1\n").unwrap();
    let said = desk.fine("eval monday.toml --split valid --report eval.json");
    assert!(said.contains("was trained on other data"), "{said}");
    assert_eq!(desk.report("eval.json")["trained_on_other_data"], true);
    let said = desk.refused("train monday.toml --quiet");
    assert!(said.contains("was trained on other data"), "{said}");
}

/// A checkpoint of another model on the same data is judged as what it is, not by a tensor's shape.
#[test]
fn eval_judges_another_jobs_model() {
    let desk = Desk::new();
    desk.trained("small", "monday", "wednesday", &[PRICE, USER]);
    let job = std::fs::read_to_string(desk.path("small.toml")).unwrap();
    let job = job
        .replace("hidden = [8]", "hidden = [16, 4]")
        .replace("output_dir = \"small\"", "output_dir = \"large\"");
    std::fs::write(desk.path("large.toml"), job).unwrap();
    desk.fine("train large.toml --quiet");
    let own = desk.scores("large", "large");
    assert_same(&desk.scores("small", "large"), &own);
    assert_ne!(desk.scores("small", "small")["ne"], own["ne"]);
}

/// A version that was damaged where it lies holds off no better one, and the reader is told.
#[test]
fn a_damaged_current_version_is_replaced() {
    let desk = Desk::new();
    desk.trained("monday", "monday", "wednesday", &[USER]);
    desk.gate("monday.toml");
    let version = desk.path("registry/ranker/versions/000000000001");
    damage(&version);
    let said = desk.fine("publish --registry registry --model ranker monday.toml");
    assert!(said.contains("version 1 of `ranker` cannot be compared"), "{said}");
    desk.fine("inspect registry/ranker/versions/000000000002 --verify");
}

/// Breaks a table of a version: a copy, for the checkpoint shares the file.
fn damage(version: &Path) {
    let file = version.join("table-user-00000.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, bytes).unwrap();
}
