//! `live.toml`: a world, a teacher and students, in one file.
//!
//! ```toml
//!   [live]                       # the loop: how fast time passes, windows, where everything goes
//!   [job.run.data.world]         # what all models have in common, as in a job file
//!   [teacher.run.model]          # what lies over it for the teacher
//!   [[student]]                  # and for each student
//!   name = "ranker"
//! ```
//!
//! Each model's job is `[job]` with the model's own keys over it, table by table, and is checked like any job file.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

use campanile_spec::{
    config::{Job, lay_over},
    data::SourceSpec,
    world::{View, WorldSpec},
};
use serde::Deserialize;
use thiserror::Error;
use toml::Table;
pub use toml::Value;

/// The loop.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Where the log, the registry and the checkpoints go.
    pub directory: PathBuf,
    /// Seconds of the stream that pass in a second; 0 means as fast as the models can take it.
    pub speed: f64,
    /// Where the page is shown.
    pub page: SocketAddr,
    /// By task: how long after an impression its feedback counts.
    pub window_seconds: BTreeMap<String, f64>,
    /// How much later than others a record may come.
    pub disorder_seconds: f64,
    /// How long closed impressions are remembered.
    pub remember_seconds: f64,
    /// Examples that may wait for the slowest model before traffic is held back.
    pub examples_waiting_max: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            directory: PathBuf::from("runs/live"),
            speed: 60.0,
            page: SocketAddr::from(([127, 0, 0, 1], 8088)),
            window_seconds: BTreeMap::new(),
            disorder_seconds: 2.0,
            remember_seconds: 3600.0,
            examples_waiting_max: 50_000,
        }
    }
}

/// The window of a task that the file does not name.
const WINDOW_SECONDS: f64 = 600.0;

/// Part of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Scores impressions for the students, and serves nobody.
    Teacher,
    /// Serves, and may listen to the teacher.
    Student,
    /// A student's twin that hears no teacher, for comparison; it serves nobody.
    Twin,
}

/// A model of the loop.
#[derive(Debug, Clone)]
pub struct Member {
    /// Its name, also in the registry.
    pub name: String,
    /// Its part.
    pub role: Role,
    /// What it trains.
    pub job: Job,
}

/// What the file says.
#[derive(Debug, Clone)]
pub struct LiveFile {
    /// The loop.
    pub settings: Settings,
    /// The teacher first, then each student and its twin.
    pub members: Vec<Member>,
    /// The world that all see.
    pub world: WorldSpec,
    /// Its seed.
    pub seed: u64,
}

/// What is wrong with the file.
#[derive(Debug, Error)]
pub enum LiveFileError {
    /// It is not TOML, or a key of `[live]` is none.
    #[error("{0}")]
    Syntax(String),
    /// A key that is none.
    #[error("`{key}` is no key of a live file; there are [live], [job], [teacher] and [[student]]")]
    Key {
        /// The key.
        key: String,
    },
    /// A model's job is wrong.
    #[error("{who}, with [job] and its own keys: {problem}")]
    Job {
        /// Which model.
        who: String,
        /// What its job says.
        problem: String,
    },
    /// Something that must be there.
    #[error("{0}")]
    Missing(String),
    /// Students that follow embeddings of different lengths.
    #[error(
        "student `{who}` follows an embedding of {floats} floats and another student one of {others}: the teacher gives \
         one, so set run.follow.floats alike"
    )]
    Embeddings {
        /// The student.
        who: String,
        /// Its floats.
        floats: usize,
        /// The other's.
        others: usize,
    },
    /// Models that do not fit together.
    #[error("{who} {problem}; put it into [job], which all models share")]
    Differs {
        /// Which model.
        who: String,
        /// In what.
        problem: &'static str,
    },
    /// A name that is taken, or cannot be one.
    #[error(
        "`{name}` cannot be the name of a student: names differ, and have letters, digits, `-` and `_` only"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// A number out of its range.
    #[error("live.{key} is {value}, it must be {wanted}")]
    Range {
        /// The key.
        key: &'static str,
        /// What it says.
        value: f64,
        /// What it may say.
        wanted: &'static str,
    },
}

impl LiveFile {
    /// Reads and checks the text of a file.
    ///
    /// # Errors
    /// The first mistake, with the model and key it is in.
    pub fn parse(text: &str) -> Result<LiveFile, LiveFileError> {
        let mut table: Table =
            text.parse().map_err(|error: toml::de::Error| LiveFileError::Syntax(error.to_string()))?;
        let settings = table.remove("live").unwrap_or_else(|| Value::Table(Table::new()));
        let settings: Settings = settings.try_into().map_err(|error: toml::de::Error| {
            LiveFileError::Syntax(format!("[live]: {}", error.message()))
        })?;
        settings.check()?;
        let shared = part(&mut table, "job")?;
        let teacher = part(&mut table, "teacher")?;
        let students = match table.remove("student") {
            Some(Value::Array(students)) => students,
            _ => return Err(LiveFileError::Missing("there is no [[student]]; a loop needs one".to_owned())),
        };
        if let Some(key) = table.keys().next() {
            return Err(LiveFileError::Key { key: key.clone() });
        }
        let mut members = vec![settings.member("teacher".to_owned(), Role::Teacher, &shared, &teacher)?];
        for student in students {
            let Value::Table(mut own) = student else { continue };
            let name = match own.remove("name") {
                Some(Value::String(name)) => name,
                _ => return Err(LiveFileError::Missing("a [[student]] has no `name`".to_owned())),
            };
            let twin = own.remove("twin").and_then(|twin| twin.as_bool()).unwrap_or(true);
            let fits = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
            let taken = members.iter().any(|member| member.name == name);
            if name.is_empty() || name.len() > 60 || taken || !name.chars().all(fits) {
                return Err(LiveFileError::Name { name });
            }
            members.push(settings.member(name.clone(), Role::Student, &shared, &own)?);
            if twin {
                let (shared, own) = (without_teacher(&shared), without_teacher(&own));
                members.push(settings.member(format!("{name}.alone"), Role::Twin, &shared, &own)?);
            }
        }
        let (world, seed) = same_world(&members)?;
        check_embeddings(&members)?;
        Ok(LiveFile { settings, members, world, seed })
    }

    /// Floats of the teacher's embedding that students follow; 0 where none does.
    pub fn embedding_floats(&self) -> usize {
        self.members.iter().map(|member| member.job.run.follow.floats_wanted()).max().unwrap_or(0)
    }

    /// The windows of the world's tasks, in their order.
    pub fn windows_ms(&self) -> Vec<u64> {
        let seconds =
            |task: &&str| self.settings.window_seconds.get(*task).copied().unwrap_or(WINDOW_SECONDS);
        self.world.label_names().iter().map(|task| (seconds(task) * 1000.0) as u64).collect()
    }
}

impl Settings {
    fn check(&self) -> Result<(), LiveFileError> {
        let positive = |value: f64| value >= 0.0 && value.is_finite();
        let times = [
            ("speed", self.speed),
            ("disorder_seconds", self.disorder_seconds),
            ("remember_seconds", self.remember_seconds),
        ];
        let windows = self.window_seconds.values().map(|value| ("window_seconds", *value));
        match times.into_iter().chain(windows).find(|(_, value)| !positive(*value)) {
            Some((key, value)) => Err(LiveFileError::Range { key, value, wanted: "0 or more" }),
            None => Ok(()),
        }
    }

    fn member(&self, name: String, role: Role, shared: &Table, own: &Table) -> Result<Member, LiveFileError> {
        let mut merged = shared.clone();
        lay_over(&mut merged, own);
        let mut job = Job::parse(&merged.to_string())
            .map_err(|error| LiveFileError::Job { who: named(&name, role), problem: error.to_string() })?;
        job.process.output_dir = self.directory.join("models").join(&name);
        job.process.publish.registry = Some(self.directory.join("registry"));
        job.process.publish.model.clone_from(&name);
        Ok(Member { name, role, job })
    }
}

/// The text of a file with some keys of `[live]` set.
///
/// # Errors
/// When the text is not TOML.
pub fn with_settings(text: &str, keys: Vec<(&str, Value)>) -> Result<String, LiveFileError> {
    if keys.is_empty() {
        return Ok(text.to_owned());
    }
    let mut table: Table =
        text.parse().map_err(|error: toml::de::Error| LiveFileError::Syntax(error.to_string()))?;
    let live = table.entry("live").or_insert_with(|| Value::Table(Table::new()));
    if let Value::Table(live) = live {
        live.extend(keys.into_iter().map(|(key, value)| (key.to_owned(), value)));
    }
    Ok(table.to_string())
}

fn named(name: &str, role: Role) -> String {
    match role {
        Role::Teacher => "the teacher".to_owned(),
        Role::Student | Role::Twin => format!("student `{name}`"),
    }
}

fn part(table: &mut Table, key: &str) -> Result<Table, LiveFileError> {
    match table.remove(key) {
        Some(Value::Table(part)) => Ok(part),
        _ => Err(LiveFileError::Missing(format!("there is no [{key}]"))),
    }
}

/// The same keys for somebody who hears no teacher.
fn without_teacher(keys: &Table) -> Table {
    let mut keys = keys.clone();
    if let Some(Value::Table(run)) = keys.get_mut("run") {
        run.remove("distil");
        run.remove("follow");
    }
    keys
}

/// One teacher gives one embedding: all who follow it must want as many floats.
fn check_embeddings(members: &[Member]) -> Result<(), LiveFileError> {
    let wanted = |member: &Member| member.job.run.follow.floats_wanted();
    let Some(others) = members.iter().map(wanted).find(|floats| *floats > 0) else { return Ok(()) };
    match members.iter().find(|member| ![0, others].contains(&wanted(member))) {
        Some(member) => {
            let (who, floats) = (member.name.clone(), wanted(member));
            Err(LiveFileError::Embeddings { who, floats, others })
        }
        None => Ok(()),
    }
}

/// The world and the seed that all models must have in common; who looks at it may differ.
fn same_world(members: &[Member]) -> Result<(WorldSpec, u64), LiveFileError> {
    let world = |member: &Member| match &member.job.run.data.source {
        SourceSpec::Synthetic(world) => Some(WorldSpec { view: View::Student, ..world.clone() }),
        _ => None,
    };
    let missing = || LiveFileError::Missing("[job.run.data] must be a synthetic world".to_owned());
    let first = world(&members[0]).ok_or_else(missing)?;
    for member in members {
        let who = named(&member.name, member.role);
        if world(member).as_ref() != Some(&first) {
            return Err(LiveFileError::Differs { who, problem: "sees another world" });
        }
        if member.job.run.seed != members[0].job.run.seed {
            return Err(LiveFileError::Differs { who, problem: "has another run.seed" });
        }
    }
    Ok((first, members[0].job.run.seed))
}

#[cfg(test)]
mod tests {
    use campanile_spec::{ModelSpec, NetworkSpec};

    use super::*;

    const FILE: &str = include_str!("../../../examples/live.toml");

    #[test]
    fn the_example_is_a_teacher_students_and_their_twins() {
        let file = LiveFile::parse(FILE).unwrap();
        let roles: Vec<Role> = file.members.iter().map(|member| member.role).collect();
        assert_eq!(roles[..3], [Role::Teacher, Role::Student, Role::Twin]);
        // One student for each stage, each with the network and the tasks of its stage.
        let students: Vec<&Member> = file.members.iter().filter(|m| m.role == Role::Student).collect();
        let names: Vec<&str> = students.iter().map(|student| &*student.name).collect();
        assert_eq!(names, ["retrieval", "early", "late"]);
        let models: Vec<&ModelSpec> = students.iter().map(|student| &student.job.run.model).collect();
        assert!(matches!(models[0].network, NetworkSpec::TwoTower { .. }));
        assert!(matches!(models[1].network, NetworkSpec::Mlp { .. }));
        assert!(matches!(models[2].network, NetworkSpec::Dlrm { .. }));
        let tasks: Vec<usize> = models.iter().map(|model| model.tasks.len()).collect();
        assert_eq!(tasks, [1, 1, 2]);
        assert_eq!(file.windows_ms().len(), file.world.label_names().len());
        assert!(
            file.members[0].job.run.data.columns.sparse.len()
                > file.members[1].job.run.data.columns.sparse.len()
        );
    }

    #[test]
    fn mistakes_name_the_model_and_the_key() {
        let said = |from: &str, to: &str| {
            assert!(FILE.contains(from), "{from}");
            LiveFile::parse(&FILE.replacen(from, to, 1)).unwrap_err().to_string()
        };
        assert!(said("speed = ", "sped = ").contains("sped"));
        assert!(said("[teacher.run", "[teachr.run").contains("`teachr` is no key of a live file"));
        let other = said("[teacher.run.data.world]", "[teacher.run.data.world]\nclick_rate = 0.5");
        assert!(other.contains("sees another world"), "{other}");
        let bad = said("name = \"", "name = \"../");
        assert!(bad.contains("cannot be the name"), "{bad}");
        let job = said("[teacher.run.model]", "[teacher.run.model]\nbotom = [1]");
        assert!(job.contains("the teacher") && job.contains("botom"), "{job}");
    }
}
