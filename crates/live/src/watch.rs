//! How good the teacher is, seen from the examples that carry its word: NE against labels, by age, and coverage.
//!
//! NE of the teacher's words by age is the paper's Fig. 2: a teacher gets worse as the stream moves on without it.

use std::collections::BTreeMap;

use campanile_kernels::half::f32_from_f16;
use campanile_stream::{
    log::{Limit, Log, LogError, Records},
    records::{Example, Schema, Schemas},
    topics::{EXAMPLES, WORDS},
};
use campanile_train::metrics::{MetricValues, Scored, TaskMetrics};

/// Examples of one step of the window.
const STEP: usize = 256;

/// Ages are put together up to these, in seconds of the stream.
pub const AGES_SECONDS: [u64; 6] = [60, 300, 900, 1800, 3600, u64::MAX];

/// Watches the examples of a log.
pub struct TeacherWatch {
    next: u64,
    known: Schemas,
    tasks: Vec<TaskMetrics>,
    /// By age, of the first task, since the start.
    ages: Vec<TaskMetrics>,
    /// Examples and those with a word, of the last steps.
    covered: std::collections::VecDeque<(u64, u64)>,
    covered_steps: usize,
    delays_seconds: Vec<f64>,
    records: Records,
}

/// What was seen.
#[derive(Debug, Clone)]
pub struct Seen {
    /// By task of the log, over the window.
    pub tasks: Vec<MetricValues>,
    /// By upper end of the age, of the first task, since the start.
    pub ages: Vec<(u64, MetricValues)>,
    /// The share of examples with a word, over the window.
    pub coverage: f64,
    /// The median age of the words of the last step, in seconds of the stream.
    pub age_seconds: Option<f64>,
}

impl TeacherWatch {
    /// Watches from the end of the log on, over a window of so many examples.
    ///
    /// # Errors
    /// When the log fails.
    pub fn new(log: &dyn Log, tasks: usize, window: u64) -> Result<TeacherWatch, LogError> {
        let steps = (window / STEP as u64).max(1);
        Ok(TeacherWatch {
            next: log.range(EXAMPLES, 0)?.end,
            known: Schemas::default(),
            tasks: (0..tasks).map(|_| TaskMetrics::for_training(steps)).collect(),
            ages: AGES_SECONDS.iter().map(|_| TaskMetrics::for_training(1)).collect(),
            covered: std::collections::VecDeque::new(),
            covered_steps: steps as usize,
            delays_seconds: Vec::new(),
            records: Records::default(),
        })
    }

    /// Looks at what is new, at most so many steps of it.
    ///
    /// # Errors
    /// When the log fails.
    pub fn look(&mut self, log: &dyn Log, tasks: &Schema, steps_max: usize) -> Result<(), LogError> {
        for _ in 0..steps_max {
            let mut records = std::mem::take(&mut self.records);
            let limit = Limit { records: STEP, bytes: usize::MAX };
            log.read(EXAMPLES, 0, self.next, limit, &mut records)?;
            let whole = records.len() == STEP;
            if whole {
                self.step(log, tasks, &records)?;
                self.next += STEP as u64;
            }
            self.records = records;
            if !whole {
                break;
            }
        }
        Ok(())
    }

    fn step(&mut self, log: &dyn Log, tasks: &Schema, records: &Records) -> Result<(), LogError> {
        let mut logits: Vec<Vec<f32>> = vec![Vec::new(); self.tasks.len()];
        let mut labels = logits.clone();
        let mut by_age: BTreeMap<usize, (Vec<f32>, Vec<f32>)> = BTreeMap::new();
        let mut with_word = 0;
        self.delays_seconds.clear();
        for record in records.iter() {
            let Some(example) = Example::decode(record.payload) else { continue };
            let Some(word) = example.word else { continue };
            with_word += 1;
            let delay = (record.time_ms as i64).saturating_sub(word.data_time_ms).max(0) as f64 / 1000.0;
            self.delays_seconds.push(delay);
            let Some(schema) = self.known.find(log, WORDS, 0, word.schema)? else { continue };
            for (place, half) in word.halves().enumerate() {
                let name = schema.names().get(place);
                let Some(task) = name.and_then(|name| tasks.place(name)) else { continue };
                let Some(label) = example.label(task as u16) else { continue };
                let (logit, label) = (f32_from_f16(half), f32::from(label));
                logits[task].push(logit);
                labels[task].push(label);
                if task == 0 {
                    let age = AGES_SECONDS.iter().position(|upto| delay <= *upto as f64).unwrap_or(0);
                    let of_age = by_age.entry(age).or_default();
                    of_age.0.push(logit);
                    of_age.1.push(label);
                }
            }
        }
        for ((metrics, logits), labels) in self.tasks.iter_mut().zip(&logits).zip(&labels) {
            metrics.add(&Scored { logits, labels, ..Scored::default() });
        }
        for (age, (logits, labels)) in by_age {
            self.ages[age].add(&Scored { logits: &logits, labels: &labels, ..Scored::default() });
        }
        if self.covered.len() == self.covered_steps {
            self.covered.pop_front();
        }
        self.covered.push_back((records.len() as u64, with_word));
        Ok(())
    }

    /// What was seen so far.
    pub fn seen(&mut self) -> Seen {
        let (all, with_word) = self.covered.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        self.delays_seconds.sort_by(f64::total_cmp);
        Seen {
            tasks: self.tasks.iter().map(|task| task.window().unwrap_or_else(|| task.snapshot())).collect(),
            ages: AGES_SECONDS.iter().copied().zip(self.ages.iter().map(TaskMetrics::snapshot)).collect(),
            coverage: with_word as f64 / (all as f64).max(1.0),
            age_seconds: self.delays_seconds.get(self.delays_seconds.len() / 2).copied(),
        }
    }
}
