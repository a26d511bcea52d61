//! Do all ranks train the same thing? Asked before the first step, and answered by naming the odd one out.
//!
//! Ranks that are processes can be started with different job files, programs or data directories, and would then
//! wait for each other with messages that do not fit, or train nonsense. So every rank tells every other what it
//! has; all compare in the same way, and all come to the same answer.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
};

use campanile_comm::{Buffer, CommError, Communicator};
use campanile_data::{Dataset, Prepared};
use campanile_kernels::{Isa, Level};
use campanile_spec::{Plan, config::Job};

use crate::TrainError;

/// One thing that must be equal on all ranks: what it is, its value here, and what to do when it is not.
pub type Fact = (&'static str, String, &'static str);

/// What a job and its data must have in common on all ranks.
pub fn facts(job: &Job, prepared: &Prepared, plan: &Plan) -> Vec<Fact> {
    let rows = |split: &Option<Dataset>| split.as_ref().map_or(0, Dataset::row_count);
    let (train, valid, test) = (prepared.train.row_count(), rows(&prepared.valid), rows(&prepared.test));
    let files = "start all ranks on the same files: the cache directory must be on a file system that all hosts share";
    vec![
        ("the program's version", env!("CARGO_PKG_VERSION").to_owned(), "put the same program on all hosts"),
        ("the hash of [run]", job.run.hash(), "start all ranks with the same job file"),
        ("the number of grains", job.run.grain_count.to_string(), "start all ranks with the same job file"),
        // These decide which messages are sent, and when. The hash leaves out towers that have no module, for they change
        // no result; they do change the ways of the vectors.
        ("[run.towers]", short(&job.run.model.towers), "start all ranks with the same job file"),
        ("process.pipeline", format!("{:?}", job.process.pipeline), "start all ranks with the same job file"),
        (
            "process.checkpoint_every_steps",
            job.process.checkpoint_every_steps.to_string(),
            "start all ranks with the same job file",
        ),
        ("the plan", short(plan), "give all ranks the same plan file"),
        ("the fingerprint of the data", prepared.fingerprint.clone(), files),
        ("the rows of train, valid and test", format!("{train}, {valid} and {test}"), files),
    ]
}

/// Something large in a few characters; equal ones give equal ones on ranks that run the same program.
fn short(value: &impl Debug) -> String {
    let mut hasher = DefaultHasher::new();
    format!("{value:?}").hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Compares facts over all ranks.
///
/// # Errors
/// [`TrainError::Different`] on all ranks, naming those that differ from most.
pub fn compare(comm: &dyn Communicator, facts: &[Fact]) -> Result<(), TrainError> {
    if comm.rank_count() == 1 {
        return Ok(());
    }
    let told: Vec<String> = std::iter::once(comm.host_name())
        .chain(facts.iter().flat_map(|(name, value, _)| [(*name).to_owned(), value.clone()]))
        .collect();
    let told = comm.all_gather(Buffer::of(told.join("\n").as_bytes()))?;
    let ranks: Vec<Told> = told.iter().map(Told::read).collect();
    let odd = facts.iter().find_map(|(name, _, cure)| Some((odd_ones(name, &ranks)?, cure)));
    let Some((Odd { ranks, words }, cure)) = odd else { return Ok(()) };
    let different = TrainError::Different { odd: words, cure };
    // It is the odd ones that fail, so that the message comes from there.
    let mine = if ranks.contains(&comm.rank()) { Err(different.to_string()) } else { Ok(()) };
    comm.agree(mine).map_err(|error| match error {
        CommError::RankFailed { .. } => different,
        error => error.into(),
    })
}

/// The fastest level that all ranks have: two processors that differ still give one result.
///
/// # Errors
/// When a rank has left.
pub fn level(comm: &dyn Communicator) -> Result<Isa, TrainError> {
    let mine = Isa::detect();
    let all = comm.all_gather(Buffer::of(&[mine.level() as u8]))?;
    let lowest = all.iter().filter_map(|level| level.bytes().first()).min();
    let ceiling = lowest.and_then(|&level| Level::ALL.get(level as usize)).copied();
    Ok(mine.at_most(ceiling.unwrap_or(Level::Scalar)))
}

/// What a rank said.
struct Told {
    host: String,
    facts: BTreeMap<String, String>,
}

impl Told {
    fn read(words: &Buffer) -> Told {
        let text = String::from_utf8_lossy(words.bytes()).into_owned();
        let mut lines = text.lines().map(str::to_owned);
        let host = lines.next().unwrap_or_default();
        let mut facts = BTreeMap::new();
        while let (Some(name), Some(value)) = (lines.next(), lines.next()) {
            facts.insert(name, value);
        }
        Told { host, facts }
    }
}

/// Who differs from most.
struct Odd {
    ranks: Vec<usize>,
    words: String,
}

/// Who differs from most in one fact; where two values are equally frequent, the lowest rank's is right.
fn odd_ones(name: &str, ranks: &[Told]) -> Option<Odd> {
    let value = |told: &Told| told.facts.get(name).cloned().unwrap_or_else(|| "nothing".to_owned());
    let values: Vec<String> = ranks.iter().map(value).collect();
    let count = |value: &String| values.iter().filter(|other| *other == value).count();
    let most = values.iter().map(count).max()?;
    let usual = values.iter().find(|value| count(value) == most)?;
    let odd: Vec<usize> = (0..ranks.len()).filter(|&rank| values[rank] != *usual).collect();
    let one = |&rank: &usize| format!("rank {rank} (host {}) has {}", ranks[rank].host, values[rank]);
    let words: Vec<String> = odd.iter().map(one).collect();
    let others = if ranks.len() - odd.len() == 1 { "the other has" } else { "the others have" };
    let words = format!("{name} differs: {}, {others} {usual}", words.join(", "));
    (!odd.is_empty()).then_some(Odd { ranks: odd, words })
}

#[cfg(test)]
mod tests {
    use campanile_comm::threads;

    use super::*;

    fn outcome(values: &'static [&'static str]) -> String {
        let ended = threads::run(values.len(), |comm| {
            compare(comm, &[("colour", values[comm.rank()].to_owned(), "paint it")])
        });
        ended.map_or_else(|error| error.to_string(), |_| "same".to_owned())
    }

    #[test]
    fn the_odd_rank_is_named() {
        assert_eq!(outcome(&["red"]), "same");
        assert_eq!(outcome(&["red", "red", "red"]), "same");
        let host = campanile_comm::host_name();
        assert_eq!(
            outcome(&["blue", "red", "red"]),
            format!("colour differs: rank 0 (host {host}) has blue, the others have red; paint it")
        );
        assert_eq!(
            outcome(&["red", "blue"]),
            format!("colour differs: rank 1 (host {host}) has blue, the other has red; paint it")
        );
        assert_eq!(
            outcome(&["red", "blue", "red", "green"]),
            format!(
                "colour differs: rank 1 (host {host}) has blue, rank 3 (host {host}) has green, the others have \
                 red; paint it"
            )
        );
    }

    /// What decides which messages are sent is compared; what each rank may have for itself is not.
    #[test]
    fn keys_that_shape_the_messages_are_facts() {
        let text = |towers: &str, process: &str| {
            format!(
                "[run.data]\nkind = \"synthetic\"\n[run.data.world]\npreset = \"linear\"\n[run.tables]\ndim = 4\n\
                 [run.model]\nkind = \"dlrm\"\nbottom = [4]\ntop = [4]\n[run.sparse]\nlearning_rate = 0.1\n[run.dense]\nlearning_rate = 0.1\n{towers}[process]\n{process}"
            )
        };
        let features = Job::parse(&text("", "")).unwrap().run.model.features;
        let features: Vec<String> = features.into_iter().map(|feature| feature.name).collect();
        let towers = |variant: &str| {
            let (a, b) = features.split_at(features.len() / 2);
            let tower = |name: &str, own: &[String]| {
                format!("[[run.towers.tower]]\nname = \"{name}\"\nfeatures = {own:?}\n")
            };
            format!("[run.towers]\nvariant = \"{variant}\"\n{}{}", tower("a", a), tower("b", b))
        };
        let told = |variant: &str, process: &str| {
            let job = Job::parse(&text(&towers(variant), process)).unwrap();
            let prepared = Prepared::without_rows(&job.run.data).unwrap();
            facts(&job, &prepared, &crate::run::plan_for(&job.run.model, 1))
        };
        let here = told("flat", "");
        let differ = |variant: &str, process: &str| -> Vec<&str> {
            let there = told(variant, process);
            here.iter().zip(&there).filter(|(here, there)| here != there).map(|(here, _)| here.0).collect()
        };
        assert_eq!(differ("flat", "pipeline = \"off\""), ["process.pipeline"]);
        assert_eq!(differ("flat", "checkpoint_every_steps = 7"), ["process.checkpoint_every_steps"]);
        assert_eq!(differ("sptt", ""), ["[run.towers]"]);
        assert!(differ("flat", "batches_ahead = 9\ncheckpoint_every_minutes = 3").is_empty());
    }

    #[test]
    fn the_level_is_one_that_all_have() {
        let levels = threads::run(4, |comm| level(comm)).unwrap();
        assert_eq!(levels, vec![Isa::detect(); 4]);
    }
}
