//! A small model that was really trained and published, and the log and the rows that it came from.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use campanile_data::{PrepOptions, prepare};
use campanile_spec::config::Job;
use campanile_tables::{
    Registry,
    registry::{Publication, Shape},
};
use campanile_train::{
    observe::{Event, Observer},
    ranks::Ranks,
    run::train,
};
use serde_json::{Value, json};

use crate::readers::sealed;

/// The job of everything here: vocabularies, lists, weights, several tasks, rows in three formats.
pub const JOB: &str = include_str!("job.toml");

/// Rows of the file.
const ROWS: u64 = 400;

/// Files by their path in a folder.
pub type Files = BTreeMap<PathBuf, Vec<u8>>;

/// All that was made.
#[derive(Debug)]
pub struct Model {
    /// The raw rows.
    pub csv: String,
    /// A checkpoint's files.
    pub checkpoint: Files,
    /// A registry with a whole version and a delta of the model `m`.
    pub registry: Files,
    /// A finished set of packed rows.
    pub cache: Files,
    /// The transforms.
    pub transforms: Vec<u8>,
}

struct Silent;

impl Observer for Silent {
    fn observe(&mut self, _: &Event<'_>) {}
}

/// Made once a process; the same bytes every time.
pub fn model() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| make(tempfile::tempdir().expect("a temporary folder").path()))
}

/// Writes files to a folder.
pub fn write(files: &Files, folder: &Path) {
    for (path, bytes) in files {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap_or(folder)).expect("a folder can be made");
        fs::write(path, bytes).expect("a file can be written");
    }
}

/// All files of a folder and the folders in it.
pub fn read(folder: &Path) -> Files {
    let mut files = Files::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).expect("a folder can be read") {
            let path = entry.expect("a folder can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let own = path.strip_prefix(folder).expect("a path in it").to_owned();
                files.insert(own, fs::read(&path).expect("a file can be read"));
            }
        }
    }
    files
}

/// The rows: few users click much, some cells are empty, lists have up to four items.
fn rows() -> String {
    let mut text = "click,buy,price,hour,slot,age,user,item,tags,scores,country,time\n".to_owned();
    for row in 0..ROWS {
        let mix = |salt: u64| (row * 7 + salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        let click = u64::from(mix(1) % 3 == 0);
        let tags: Vec<String> = (0..mix(2) % 5).map(|place| format!("t{}", mix(place) % 30)).collect();
        let scores: Vec<String> = tags.iter().map(|tag| format!("0.{}", tag.len())).collect();
        let price = if mix(3) % 9 == 0 { String::new() } else { format!("{}.5", mix(4) % 100) };
        let country = ["de", "at", "ch", ""][(mix(5) % 4) as usize];
        let buy = click * (mix(6) % 2);
        let (hour, user, item) = (row % 24, mix(7) % 40, mix(8) % 90);
        let (tags, scores) = (tags.join("|"), scores.join("|"));
        let _ = writeln!(
            text,
            "{click},{buy},{price},{hour},{hour},{},{user},item-{item},{tags},{scores},{country},{}",
            mix(9) % 80,
            1_000_000 + row
        );
    }
    text
}

fn make(folder: &Path) -> Model {
    let csv = rows();
    let file = folder.join("rows.csv");
    fs::write(&file, &csv).expect("a file can be written");
    let mut job = Job::parse(JOB).expect("a good job");
    job.process.data.train = vec![file.display().to_string()];
    job.process.output_dir = folder.join("out");
    job.process.cache_dir = folder.join("cache");
    fs::create_dir_all(&job.process.output_dir).expect("a folder can be made");
    let options = PrepOptions::new(&job.process.cache_dir, job.run.seed);
    let prepared = prepare(&job.run.data, &job.process.data, &options, &mut |_| ()).expect("good rows");
    let registry = Registry::new(&folder.join("registry"));
    let fingerprint = prepared.transforms.fingerprint();
    let transforms = prepared.transforms.to_bytes();
    let mut checkpoint = Files::new();
    for (steps, shape) in [(3, Shape::Whole), (4, Shape::Smallest)] {
        job.run.steps_max = steps;
        let trained = train(&job, &prepared, Ranks::Threads(1), &mut Silent).expect("it trains");
        move_to_nowhere(&trained.checkpoint.join("manifest.json"));
        let publication = Publication {
            model: "m",
            checkpoint: &trained.checkpoint,
            transforms: &transforms,
            fingerprint: &fingerprint,
            published_ms: 0,
            judged: Value::Null,
            keep: 10,
            shape,
        };
        registry.publish(&publication).expect("it is published");
        checkpoint = read(&trained.checkpoint);
    }
    checkpoint.insert("transforms.bin".into(), transforms.clone());
    let sets = read(&folder.join("cache")).into_iter();
    let cache = sets.filter(|(path, _)| path.extension().is_none_or(|kind| kind != "lock")).collect();
    let mut registry = read(registry.root());
    registry.remove(Path::new("m/lock"));
    registry.retain(|path, _| !path.starts_with("m/whole"));
    Model { csv, checkpoint, registry, cache, transforms }
}

/// Takes the names of temporary folders out of a manifest: they are others every time.
fn move_to_nowhere(path: &Path) {
    let bytes = fs::read(path).expect("a manifest");
    let mut manifest: Value = serde_json::from_slice(&bytes).expect("a manifest");
    let process = &mut manifest["job"]["process"];
    process["output_dir"] = json!("out");
    process["cache_dir"] = json!("cache");
    process["data"]["train"] = json!(["rows.csv"]);
    let mut bytes = serde_json::to_vec_pretty(&manifest).expect("a manifest");
    sealed(&mut bytes);
    fs::write(path, bytes).expect("a manifest can be written");
}
