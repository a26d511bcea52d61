//! What the page shows: the models' metrics over time, the teacher, and how far behind every stage is.

mod gain;
mod history;

use std::{
    io,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use campanile_train::scores::TaskScores;
use serde_json::{Value, json};

use self::{
    gain::{Verdict, headline},
    history::{History, Point},
};
use crate::{
    file::{LiveFile, Role},
    ledger::{Work, ledger},
    watch::Seen,
};

/// What is known of a loop, for the page and the report.
pub struct Board {
    inner: Mutex<Inner>,
}

struct Inner {
    tasks: Vec<String>,
    models: Vec<Model>,
    stages: Vec<StageLine>,
    teacher: Option<Seen>,
    /// Words that the teacher has said.
    words: u64,
    stream_ms: u64,
    speed_wanted: f64,
    speed: f64,
    held_back: bool,
    state: &'static str,
    history: History,
}

struct Model {
    name: String,
    role: Role,
    /// Operations of a forward pass, for one sample.
    forward: u64,
    step: u64,
    examples: u64,
    /// The first example of the log that it has not read.
    position: Arc<AtomicU64>,
    window: Vec<TaskScores>,
    running: Vec<TaskScores>,
    published: Option<Published>,
    /// Examples of the window of its metrics.
    window_examples: u64,
}

impl Model {
    fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }
}

/// A published version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// Its number.
    pub version: u64,
    /// The time of the newest example that it was trained on.
    pub data_time_ms: Option<i64>,
}

/// How far a stage is.
#[derive(Debug, Clone, PartialEq)]
pub struct StageLine {
    /// Its name.
    pub name: String,
    /// Records that wait for it.
    pub waiting: u64,
    /// The most that waited for it at any look since the loop was started.
    pub waiting_most: u64,
    /// How far behind the newest record of the stream it is, in milliseconds of the stream; unknown for some.
    pub behind_ms: Option<u64>,
    /// Records a second.
    pub rate: f64,
}

impl Board {
    /// A loop that has done nothing; `forward` has the operations of a forward pass, by member of the file.
    pub fn new(file: &LiveFile, forward: &[u64]) -> Board {
        let model = |(member, forward): (&crate::file::Member, &u64)| Model {
            name: member.name.clone(),
            role: member.role,
            forward: *forward,
            step: 0,
            examples: 0,
            position: Arc::default(),
            window: Vec::new(),
            running: Vec::new(),
            published: None,
            window_examples: {
                let run = &member.job.run;
                run.evaluate.window_steps.saturating_mul(run.batch_size as u64)
            },
        };
        let tasks: Vec<String> = file.world.label_names().iter().map(|&task| task.to_owned()).collect();
        let inner = Inner {
            history: History::new(&tasks),
            tasks,
            models: file.members.iter().zip(forward).map(model).collect(),
            stages: Vec::new(),
            teacher: None,
            words: 0,
            stream_ms: 0,
            speed_wanted: file.settings.speed,
            speed: 0.0,
            held_back: false,
            state: "starting",
        };
        Board { inner: Mutex::new(inner) }
    }

    /// Goes on with the lines that an earlier run of the loop has saved.
    ///
    /// # Errors
    /// When there is a file, and it cannot be read; the lines begin anew then.
    pub fn restore(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.lock();
        if let Some(history) = History::load(path, &inner.tasks)? {
            inner.history = history;
        }
        Ok(())
    }

    /// Saves the lines.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        // Nobody waits for the disk.
        let history = self.lock().history.clone();
        history.save(path)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A model has trained so far.
    pub fn trained(
        &self,
        model: usize,
        step: u64,
        examples: u64,
        scores: impl FnOnce() -> (Vec<TaskScores>, Vec<TaskScores>),
    ) {
        let scores = scores();
        let model = &mut self.lock().models[model];
        (model.step, model.examples) = (step, examples);
        (model.window, model.running) = scores;
    }

    /// A model has trained so far, and nothing else is to be said.
    pub fn moved(&self, model: usize, step: u64, examples: u64) {
        let model = &mut self.lock().models[model];
        (model.step, model.examples) = (step, examples);
    }

    /// How far a model has read the examples of the log is to be seen here from now on.
    pub fn follow(&self, model: usize, position: Arc<AtomicU64>) {
        self.lock().models[model].position = position;
    }

    /// How far the slowest model has read the examples.
    pub fn position_of_slowest(&self) -> u64 {
        self.lock().models.iter().map(Model::position).min().unwrap_or(0)
    }

    /// How far each model has read the examples.
    pub fn positions(&self) -> Vec<(String, u64)> {
        self.lock().models.iter().map(|model| (model.name.clone(), model.position())).collect()
    }

    /// The state of the loop in a word.
    pub fn set_state(&self, state: &'static str) {
        self.lock().state = state;
    }

    /// The stream is at this time, and passes so many seconds in a second.
    pub fn set_time(&self, stream_ms: u64, speed: f64, held_back: bool) {
        let mut inner = self.lock();
        (inner.stream_ms, inner.speed, inner.held_back) = (stream_ms, speed, held_back);
    }

    /// What is published of each model, how far every stage is, and what the teacher has said; adds a point to every line.
    pub fn tick(
        &self,
        published: Vec<Option<Published>>,
        stages: Vec<StageLine>,
        (teacher, words): (Seen, u64),
    ) {
        let mut inner = self.lock();
        inner.words = words;
        let before = std::mem::replace(&mut inner.stages, stages);
        for (stage, before) in inner.stages.iter_mut().zip(before) {
            stage.waiting_most = stage.waiting_most.max(before.waiting_most);
        }
        inner.teacher = Some(teacher);
        let adds = inner.history.adds();
        let Inner { models, history, tasks, stream_ms, .. } = &mut *inner;
        for (model, published) in models.iter_mut().zip(published) {
            model.published = published;
            if adds && !model.window.is_empty() {
                let values = |task: &String| {
                    let scores = model.window.iter().find(|scores| scores.task == *task);
                    (scores.and_then(|s| s.values.ne), scores.and_then(|s| s.values.calibration))
                };
                let tasks = tasks.iter().map(values).collect();
                history.push(&model.name, Point { stream_ms: *stream_ms, tasks });
            }
        }
        history.thin();
        for (student, twin) in pairs(models) {
            let examples = student.examples.min(twin.examples);
            let window = student.window_examples.max(twin.window_examples);
            let gains = tasks.iter().map(|task| gain_now(student, twin, task)).collect();
            history.line(&student.name).gains.look(examples, window, gains);
        }
    }

    /// Everything, for the page and the report.
    pub fn to_json(&self) -> Value {
        let inner = self.lock();
        let role = |role| match role {
            Role::Teacher => "teacher",
            Role::Student => "student",
            Role::Twin => "twin",
        };
        let models: Vec<Value> = inner
            .models
            .iter()
            .map(|model| {
                json!({
                    "name": model.name,
                    "role": role(model.role),
                    "step": model.step,
                    "examples": model.examples,
                    "window": by_task(&inner.tasks, &model.window),
                    "running": by_task(&inner.tasks, &model.running),
                    "version": model.published.map(|published| published.version),
                    "fresh_seconds": model.published.and_then(|published| published.data_time_ms)
                        .map(|ms| (inner.stream_ms as i64).saturating_sub(ms) as f64 / 1000.0),
                    "points": inner.history.of(&model.name).into_iter().flat_map(|line| &line.points).map(|point| json!([
                        point.stream_ms as f64 / 1000.0,
                        point.tasks.iter().map(|(ne, _)| *ne).collect::<Vec<_>>(),
                        point.tasks.iter().map(|(_, calibration)| *calibration).collect::<Vec<_>>(),
                    ])).collect::<Vec<_>>(),
                })
            })
            .collect();
        let stages = inner.stages.iter().map(|stage| {
            let StageLine { name, waiting, waiting_most, behind_ms, rate } = stage;
            let behind = behind_ms.map(|ms| ms as f64 / 1000.0);
            json!({ "name": name, "waiting": waiting, "waiting_most": waiting_most, "behind_seconds": behind,
                    "rate": rate })
        });
        let teacher = inner.teacher.as_ref().map(|seen| {
            let ages = seen.ages.iter().filter(|(_, values)| values.count > 0).map(|(upto, values)| {
                let upto = (*upto < u64::MAX).then_some(*upto);
                json!({ "upto_seconds": upto, "count": values.count, "ne": values.ne, "calibration": values.calibration })
            });
            let tasks = inner.tasks.iter().zip(&seen.tasks);
            let tasks = tasks.map(|(task, values)| {
                json!({ "task": task, "ne": values.ne, "calibration": values.calibration, "count": values.count })
            });
            json!({ "coverage": seen.coverage, "age_seconds": seen.age_seconds,
                    "tasks": tasks.collect::<Vec<_>>(), "ages": ages.collect::<Vec<_>>() })
        });
        json!({
            "state": inner.state,
            "tasks": inner.tasks,
            "stream_seconds": inner.stream_ms as f64 / 1000.0,
            "speed": inner.speed,
            "speed_wanted": inner.speed_wanted,
            "held_back": inner.held_back,
            "models": models,
            "stages": stages.collect::<Vec<_>>(),
            "teacher": teacher,
            "headline": headline(&verdicts(&inner)),
            "transfer": transfer(&inner),
            "ledger": costs(&inner),
        })
    }
}

/// What the teacher and the students that serve have cost.
fn costs(inner: &Inner) -> Value {
    let work =
        |model: &Model| Work { name: model.name.clone(), forward: model.forward, trained: model.examples };
    let of = |role| inner.models.iter().filter(move |model| model.role == role).map(work);
    let students: Vec<Work> = of(Role::Student).collect();
    of(Role::Teacher).next().map_or(Value::Null, |teacher| ledger(&teacher, inner.words, &students))
}

fn by_task(tasks: &[String], scores: &[TaskScores]) -> Vec<Value> {
    let of = |task: &String| scores.iter().find(|scores| scores.task == *task);
    let one = |task: &String| match of(task) {
        None => Value::Null,
        Some(scores) => json!({ "ne": scores.values.ne, "calibration": scores.values.calibration,
            "auc": scores.values.auc, "count": scores.values.count, "label_rate": scores.values.label_rate }),
    };
    tasks.iter().map(one).collect()
}

/// Every student with its twin.
fn pairs(models: &[Model]) -> impl Iterator<Item = (&Model, &Model)> {
    let students = models.iter().filter(|model| model.role == Role::Student);
    students.filter_map(move |student| {
        let alone = format!("{}.alone", student.name);
        Some((student, models.iter().find(|model| model.name == alone)?))
    })
}

fn ne_of(model: &Model, task: &str) -> Option<f64> {
    model.window.iter().find(|scores| scores.task == task).and_then(|scores| scores.values.ne)
}

/// By how much a student's NE is below its twin's, over the present window.
fn gain_now(student: &Model, twin: &Model, task: &str) -> Option<f64> {
    let (with, without) = (ne_of(student, task)?, ne_of(twin, task)?);
    (without > 0.0).then(|| (without - with) / without)
}

/// By student and task, what the gain says.
fn verdicts(inner: &Inner) -> Vec<(String, String, Verdict)> {
    let mut verdicts = Vec::new();
    for (student, _) in pairs(&inner.models) {
        for (place, task) in inner.tasks.iter().enumerate() {
            let gain = inner.history.of(&student.name).and_then(|line| line.gains.of(place));
            verdicts.extend(gain.map(|gain| (student.name.clone(), task.clone(), gain.verdict())));
        }
    }
    verdicts
}

/// By student and task: what it gains over its twin, by the last windows; what the teacher has over the twin in the present
/// one, and the share of that which reached the student.
fn transfer(inner: &Inner) -> Vec<Value> {
    let mut lines = Vec::new();
    for (student, twin) in pairs(&inner.models) {
        for (place, task) in inner.tasks.iter().enumerate() {
            let Some(now) = gain_now(student, twin, task) else { continue };
            let gain = inner.history.of(&student.name).and_then(|line| line.gains.of(place));
            let mean = gain.map_or(now, |gain| gain.mean);
            let teacher = inner.teacher.as_ref().and_then(|seen| seen.tasks.get(place)?.ne);
            let without = ne_of(twin, task);
            let room = teacher.zip(without).map(|(teacher, without)| (without - teacher) / without);
            // A teacher that is no better than the twin has nothing to give, and a ratio says nothing.
            let ratio = room.filter(|room| *room > 0.001).map(|room| mean / room);
            lines.push(json!({
                "student": student.name,
                "task": task,
                "gain": mean,
                "error": gain.and_then(|gain| gain.error),
                "windows": gain.map_or(0, |gain| gain.windows),
                "verdict": gain.map_or(Verdict::Early, |gain| gain.verdict()).word(),
                "gain_now": now,
                "teacher_gain": room,
                "ratio": ratio,
            }));
        }
    }
    lines
}
