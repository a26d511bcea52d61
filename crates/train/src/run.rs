//! A whole run: set up ranks, go on from the newest checkpoint, train, evaluate, leave everything on disk.

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use campanile_comm::Communicator;
use campanile_data::{Dataset, Prepared};
use campanile_kernels::Isa;
use campanile_spec::{
    ModelSpec, PIPELINE_CHUNKS, Plan, Seating,
    config::{Job, Pipeline},
};
use campanile_tables::{
    checkpoint::{Checkpoint, Load},
    memory_needed,
};
use serde::Serialize;

use crate::{
    TrainError,
    clock::{Part, Stopwatch},
    evaluate::evaluate,
    journal::Journal,
    loader::{Feed, Loader, LocalBatch, Mark, Source},
    observe::{Event, Observer, PartSeconds, Started, StepEvent, Wish},
    plan_of::plan_of,
    predictions::{Predictions, Wishes},
    rank::{RankState, Seat},
    ranks::{self, Pulse, Ranks},
    resume::{self, Checkpoints},
    same,
    scores::{Scores, TaskScores},
    step::{Carry, Turn, step},
    warnings,
};

/// What to do when ranks see different checkpoints.
const SHARE_THE_OUTPUT: &str = "the output directory must be on a file system that all hosts share";

/// How a run ended.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Summary {
    /// What it began with.
    pub started: Started,
    /// Steps trained over all, earlier processes included.
    pub steps: u64,
    /// Samples trained by this process.
    pub samples: u64,
    /// Seconds from the first step to the last, of this process.
    pub seconds: f64,
    /// Where the time of rank 0 went.
    pub parts: PartSeconds,
    /// Over the whole run, each sample judged before it was trained on.
    pub training: Vec<TaskScores>,
    /// The same over the second half of the steps, when the model has settled.
    pub second_half: Vec<TaskScores>,
    /// What the teacher's own logits would have scored there, where it spoke.
    pub teacher: Option<Vec<TaskScores>>,
    /// On the validation split, after the last step.
    pub valid: Option<Vec<TaskScores>>,
    /// On the test split, after the last step.
    pub test: Option<Vec<TaskScores>>,
    /// The last checkpoint.
    pub checkpoint: PathBuf,
    /// Whether it ended early because that was wished ([`Wish::Stop`]); the same job goes on from the checkpoint.
    pub interrupted: bool,
}

/// Trains a job on its prepared data, going on from its newest checkpoint if there is one. Tables live where the job's
/// plan says, or whole and balanced by what they cost.
///
/// # Errors
/// When anything in the world is not as it must be; what was published before stays whole.
pub fn train(
    job: &Job,
    prepared: &Prepared,
    ranks: Ranks<'_>,
    observer: &mut dyn Observer,
) -> Result<Summary, TrainError> {
    let plan = ranks.together(plan_of(job, ranks.count()))?;
    train_by(&plan, job, prepared, ranks, observer)
}

/// Tables whole and balanced: inside the groups of their towers where the job's towers have their own ways, else over all
/// ranks.
pub fn plan_for(model: &ModelSpec, rank_count: usize) -> Plan {
    match Seating::of(model, rank_count) {
        Ok(Some(seating)) => seating.plan(model),
        // Towers that share a table cannot live apart: the flat exchange gives the same results.
        Ok(None) | Err(_) => Plan::balanced(model, rank_count),
    }
}

/// The seating of the job's towers, if they are to have their own ways and the plan keeps them apart.
pub(crate) fn seating_for(model: &ModelSpec, plan: &Plan) -> Option<Seating> {
    let seating = Seating::of(model, plan.rank_count).ok().flatten();
    seating.filter(|seating| seating.fits(model, plan))
}

/// Trains a job with its tables placed by a plan, which changes no result.
///
/// # Errors
/// As [`train`]; or when the plan is not one for this model and number of ranks.
pub fn train_by(
    plan: &Plan,
    job: &Job,
    prepared: &Prepared,
    ranks: Ranks<'_>,
    observer: &mut dyn Observer,
) -> Result<Summary, TrainError> {
    ranks.check(job, plan, &same::facts(job, prepared, plan))?;
    ranks.together(if prepared.train.row_count() == 0 { Err(TrainError::NoRows) } else { Ok(()) })?;
    ranks.together(check_followed(job, prepared))?;
    ranks.together(match &job.run.only {
        Some(only) => Err(TrainError::OnlyOnStreams { column: only.column.clone() }),
        None => Ok(()),
    })?;
    let observer = Mutex::new(observer);
    let tell = |event: &Event<'_>| observer.lock().unwrap_or_else(PoisonError::into_inner).observe(event);
    let wish = || observer.lock().unwrap_or_else(PoisonError::into_inner).wish();
    ranks.run(|comm, pulse| {
        Trainer { comm, pulse, job, prepared, plan, stream: None, tell: &tell, wish: &wish }.run()
    })
}

/// A job whose tables follow a teacher must have a teacher's embeddings in its data.
fn check_followed(job: &Job, prepared: &Prepared) -> Result<(), TrainError> {
    let (wanted, found) = (job.run.follow.floats_wanted(), prepared.train.embedding_floats());
    if wanted == 0 || wanted == found {
        return Ok(());
    }
    Err(TrainError::NothingToFollow { wanted, words: job.process.data.teacher.clone() })
}

/// A stream of examples that a run trains on, in order, once.
pub trait Stream: Sync {
    /// The source of one rank from `mark` on. All ranks are threads of this process, and their sources must end at the
    /// same step.
    ///
    /// # Errors
    /// When the stream cannot be read.
    fn source(&self, feed: Feed, first_step: u64, mark: Mark) -> Result<Box<dyn Source>, TrainError>;

    /// Puts what was read on disk: a checkpoint that says it was trained on must not be ahead of it after a power cut.
    ///
    /// # Errors
    /// When the disk fails.
    fn keep_read(&self) -> Result<(), TrainError>;
}

/// Trains a job on a stream, going on where its newest checkpoint ends, until the stream ends or `run.steps_max` steps
/// are trained. Of `prepared` only the transforms, the fingerprint and the validation split are used.
///
/// # Errors
/// As [`train`]; or when ranks are processes.
pub fn train_on_stream(
    job: &Job,
    prepared: &Prepared,
    stream: &dyn Stream,
    ranks: Ranks<'_>,
    observer: &mut dyn Observer,
) -> Result<Summary, TrainError> {
    if matches!(ranks, Ranks::One { .. }) && ranks.count() > 1 {
        return Err(TrainError::StreamRanks { ranks: ranks.count() });
    }
    let plan = &Plan::balanced(&job.run.model, ranks.count());
    ranks.check(job, plan, &same::facts(job, prepared, plan))?;
    let observer = Mutex::new(observer);
    let tell = |event: &Event<'_>| observer.lock().unwrap_or_else(PoisonError::into_inner).observe(event);
    let wish = || observer.lock().unwrap_or_else(PoisonError::into_inner).wish();
    ranks.run(|comm, pulse| {
        Trainer { comm, pulse, job, prepared, plan, stream: Some(stream), tell: &tell, wish: &wish }.run()
    })
}

/// One rank of a run.
struct Trainer<'a> {
    comm: &'a dyn Communicator,
    pulse: &'a Pulse,
    job: &'a Job,
    prepared: &'a Prepared,
    plan: &'a Plan,
    /// Trained on in place of the prepared data.
    stream: Option<&'a dyn Stream>,
    tell: &'a (dyn Fn(&Event<'_>) + Sync),
    /// What is wished of the run, as far as this process knows.
    wish: &'a (dyn Fn() -> Wish + Sync),
}

impl Trainer<'_> {
    fn run(&self) -> Result<Summary, TrainError> {
        let (comm, run) = (self.comm, &self.job.run);
        self.pulse.enter("start");
        let isa = same::level(comm)?;
        let chunks = if self.pipelined() { PIPELINE_CHUNKS } else { 1 };
        let made = RankState::new(run, Seat { plan: self.plan, rank: comm.rank(), chunks, isa });
        let mut state = self.together(made)?;
        let seating = seating_for(&run.model, self.plan);
        if let Some(seating) = &seating {
            state.sit_by_towers(comm, seating)?;
        }
        let mut scores = Scores::for_training(run).with_segments(self.segments());
        let mut checkpoints = Checkpoints::new(self.job, self.prepared);
        let found = checkpoints.restore(comm, &mut state, &mut scores);
        let first_step = self.together(found)?;
        let newest = first_step.to_string();
        same::compare(comm, &[("the step of the newest checkpoint", newest, SHARE_THE_OUTPUT)])?;
        if self.stream.is_none() && checkpoints.mark().is_some() {
            return Err(TrainError::StreamForgotten { path: resume::directory(self.job) });
        }
        let steps = self.last_step();
        let journal =
            if comm.rank() == 0 { Journal::open(self.job, first_step, steps).map(Some) } else { Ok(None) };
        let mut journal = self.together(journal)?;

        let started = self.started(&state, first_step, steps, isa);
        self.say(&Event::Started(&started));
        self.pulse.enter("train");
        let watch = Stopwatch::start();
        let (steps, samples, agreed) =
            self.steps(&mut state, &mut scores, &mut checkpoints, &mut journal, first_step..steps)?;
        let seconds = watch.seconds();
        let parts = PartSeconds::new(state.timings.take());

        self.pulse.enter("checkpoint");
        let checkpoint = checkpoints.finish(comm, &mut state, &scores, steps.max(first_step))?;
        self.say(&Event::Checkpoint { step: steps, path: &checkpoint });
        // A stream is judged as it is trained on, and what comes after it is not here yet.
        let judged = self.stream.is_none() && agreed != Wish::Stop;
        let valid = if judged { self.evaluate(&mut state, "valid", steps, 0)? } else { None };
        let test = if judged { self.evaluate(&mut state, "test", steps, 0)? } else { None };
        if let Some(journal) = &mut journal {
            journal.evaluated(steps, "valid", valid.as_deref())?;
            journal.evaluated(steps, "test", test.as_deref())?;
        }
        // On every rank the same: an evaluation that was cut short was so by agreement.
        let cut = |split: &Option<Dataset>, scores: bool| judged && split.is_some() && !scores;
        let interrupted = agreed == Wish::Stop
            || cut(&self.prepared.valid, valid.is_some())
            || cut(&self.prepared.test, test.is_some());
        self.pulse.enter("end");
        let training = scores.running();
        let (second_half, teacher) = (scores.late(), scores.teacher());
        Ok(Summary {
            started,
            steps,
            samples,
            seconds,
            parts,
            training,
            second_half,
            teacher,
            valid,
            test,
            checkpoint,
            interrupted,
        })
    }

    /// The step after the last that may be trained.
    fn last_step(&self) -> u64 {
        let run = &self.job.run;
        let all = match self.stream {
            Some(_) => u64::MAX,
            None => self.feed(self.prepared.train.row_count()).steps_per_epoch() * run.epochs,
        };
        if run.steps_max == 0 { all } else { all.min(run.steps_max) }
    }

    /// Starts to read what the steps train on.
    fn loader(&self, steps: std::ops::Range<u64>, mark: Option<Mark>) -> Result<Loader, TrainError> {
        let (feed, ahead) = (self.feed(self.prepared.train.row_count()), self.job.process.batches_ahead);
        let followers = &self.job.run.model.followers;
        match self.stream {
            None => Ok(Loader::start(&self.job.run, &self.prepared.train, feed, steps, ahead)?),
            Some(stream) => {
                let source = stream.source(feed, steps.start, mark.unwrap_or_default())?;
                Ok(Loader::of(source, steps, ahead, followers))
            }
        }
    }

    /// Trains; says after which step it ended, how many samples that were, and what was wished of the run then.
    fn steps(
        &self,
        state: &mut RankState,
        scores: &mut Scores,
        checkpoints: &mut Checkpoints,
        journal: &mut Option<Journal>,
        steps: std::ops::Range<u64>,
    ) -> Result<(u64, u64, Wish), TrainError> {
        let (comm, run, last) = (self.comm, &self.job.run, steps.end);
        let mut loader = self.together(self.loader(steps.clone(), checkpoints.mark()))?;
        let mut ended = steps.start;
        let watch = Stopwatch::start();
        let mut samples = 0;
        // What rank 0 met after a step; it goes to all ranks with the next ids.
        let mut trouble = Ok(());
        let (mut ahead, mut carry) = (None, Carry::default());
        let (mut wishes, mut agreed) = (Wishes::default(), Wish::Nothing);
        for number in steps {
            let done = number + 1;
            let looks = run.evaluate.every_steps > 0 && done % run.evaluate.every_steps == 0 && done < last;
            state.timings.start(Part::Input);
            let batch = match ahead.take() {
                Some(batch) => Some(batch),
                None => next_batch(&mut loader, &mut trouble).or_else(|error| state.refuse(comm, error))?,
            };
            let Some(batch) = batch else { break };
            // An evaluation needs the way of the ids for itself.
            let mut next = None;
            if self.pipelined() && done < last && !looks {
                let read = next_batch(&mut loader, &mut trouble);
                next = if comm.rank_count() == 1 { Ok(read?) } else { read }.transpose();
            }
            let words = next.as_ref().map(|next| next.as_ref().map_err(ToString::to_string));
            step(comm, state, &mut carry, Turn { number, batch: &batch, next: words })?;
            ahead = next.and_then(Result::ok);
            state.timings.start(Part::Rest);
            samples += batch.global_count as u64;
            checkpoints.set_mark(batch.mark);
            ended = done;
            (wishes.own, wishes.step) = ((self.wish)().max(checkpoints.wish(comm.rank())), number);
            let said = (state.logits(), state.task_count());
            let predictions;
            (predictions, agreed) = Predictions::collect_and_agree(comm, &batch, said, &mut wishes)?;
            loader.give_back(batch);
            self.pulse.at_step(done);
            scores.begin_late_at(number, last / 2);
            scores.add(&predictions);
            trouble = trouble.and(scores.check_finite(number));
            let due = checkpoints.is_due(done, last, agreed);
            if due || agreed == Wish::Stop {
                state.settle(comm, &mut carry)?;
                trouble = trouble.and(scores.check_sane(number)).and(self.keep_read());
            }
            let published = checkpoints.after_step(comm, state, (scores, &trouble), due, done)?;
            published.iter().for_each(|(step, path)| self.say(&Event::Checkpoint { step: *step, path }));
            if comm.rank() == 0 {
                let so_far = (samples, watch.seconds());
                trouble = trouble.and(self.tell_step((done, last), so_far, (scores, &predictions), journal));
            }
            state.timings.stop();
            if looks {
                trouble = trouble.and(self.look(state, done, journal)?);
            }
            if agreed == Wish::Stop {
                break;
            }
        }
        let trouble = trouble.and(scores.check_sane(ended.saturating_sub(1))).and(self.keep_read());
        self.together(trouble)?;
        Ok((ended, samples, agreed))
    }

    /// Before a checkpoint, on rank 0.
    fn keep_read(&self) -> Result<(), TrainError> {
        match self.stream {
            Some(stream) if self.comm.rank() == 0 => stream.keep_read(),
            _ => Ok(()),
        }
    }

    /// Tells of a step on rank 0, and notes the window that ends with it.
    fn tell_step(
        &self,
        (done, last): (u64, u64),
        (samples, seconds): (u64, f64),
        (scores, predictions): (&Scores, &[Predictions]),
        journal: &mut Option<Journal>,
    ) -> Result<(), TrainError> {
        let event = StepEvent {
            step: done,
            samples,
            seconds,
            predictions,
            window: &|| scores.window(),
            running: &|| scores.running(),
        };
        self.say(&Event::Step(&event));
        match journal {
            Some(journal) if done % self.job.run.evaluate.window_steps == 0 || done == last => {
                journal.trained(done, samples as f64 / seconds, scores)
            }
            _ => Ok(()),
        }
    }

    /// Names of the segments of what is trained on; those of a stream are numbers.
    fn segments(&self) -> &[String] {
        if self.stream.is_some() { &[] } else { self.prepared.train.segments() }
    }

    fn pipelined(&self) -> bool {
        is_pipelined(self.job, self.comm)
    }

    /// Evaluates on the validation rows in the middle of a run; within, what rank 0 met when it noted the result.
    fn look(
        &self,
        state: &mut RankState,
        done: u64,
        journal: &mut Option<Journal>,
    ) -> Result<Result<(), TrainError>, TrainError> {
        let valid = self.evaluate(state, "valid", done, self.job.run.evaluate.samples_max)?;
        Ok(journal.as_mut().map_or(Ok(()), |journal| journal.evaluated(done, "valid", valid.as_deref())))
    }

    fn evaluate(
        &self,
        state: &mut RankState,
        split: &'static str,
        step: u64,
        samples_max: u64,
    ) -> Result<Option<Vec<TaskScores>>, TrainError> {
        let dataset = if split == "valid" { &self.prepared.valid } else { &self.prepared.test };
        let Some(dataset) = dataset else { return Ok(None) };
        self.pulse.enter(split);
        let dataset = dataset.evenly(samples_max);
        // An evaluation between two steps is part of the run's metrics, so it is made even if a stop is wished.
        let wish: &dyn Fn() -> Wish = if step == self.last_step() { self.wish } else { &|| Wish::Nothing };
        let feed = self.feed(dataset.row_count());
        let scores = evaluate(self.comm, state, &self.job.run, &dataset, feed, wish)?;
        self.pulse.enter("train");
        let Some(scores) = scores else { return Ok(None) };
        self.say(&Event::Evaluated { step, split, scores: &scores });
        Ok(Some(scores))
    }

    fn feed(&self, row_count: u64) -> Feed {
        Feed {
            row_count,
            batch_size: self.job.run.batch_size,
            grains: self.job.run.grains(),
            rank: self.comm.rank(),
            rank_count: self.comm.rank_count(),
        }
    }

    fn started(&self, state: &RankState, first_step: u64, steps: u64, isa: Isa) -> Started {
        let run = &self.job.run;
        let tables = run.model.tables.iter().enumerate();
        Started {
            first_step,
            steps,
            train_rows: self.prepared.train.row_count(),
            rank_count: self.comm.rank_count(),
            dense_parameters: state.parameters.len(),
            table_parameters: run.model.tables.iter().map(|t| t.row_count * t.dim as u64).sum(),
            table_bytes: tables.map(|(place, table)| memory_needed(table, run.optimizer_of(place))).sum(),
            route: state.towers.as_ref().map_or_else(|| "flat".to_owned(), |towers| towers.words()),
            compression_ratio: run.model.compression_ratio(),
            level: format!("{:?}", isa.level()),
            warnings: warnings::of(run, steps),
        }
    }

    fn say(&self, event: &Event<'_>) {
        if self.comm.rank() == 0 {
            (self.tell)(event);
        }
    }

    fn together<T>(&self, outcome: Result<T, impl Into<TrainError>>) -> Result<T, TrainError> {
        ranks::together(self.comm, outcome)
    }
}

/// Whether ids of the next batch travel, and chunks of samples take turns, while a rank computes.
pub(crate) fn is_pipelined(job: &Job, comm: &dyn Communicator) -> bool {
    match job.process.pipeline {
        Pipeline::Auto => comm.crosses_processes(),
        Pipeline::On => true,
        Pipeline::Off => false,
    }
}

/// The next batch, if there is one, unless there was trouble, which then is told in its place.
fn next_batch(
    loader: &mut Loader,
    trouble: &mut Result<(), TrainError>,
) -> Result<Option<LocalBatch>, TrainError> {
    std::mem::replace(trouble, Ok(()))?;
    loader.next_batch()
}

/// Judges a checkpoint on a data set.
///
/// # Errors
/// When the checkpoint does not fit the job's model or is damaged, or the data cannot be read.
pub fn judge(
    job: &Job,
    prepared: &Prepared,
    dataset: &Dataset,
    ranks: Ranks<'_>,
    path: &Path,
) -> Result<Vec<TaskScores>, TrainError> {
    let plan = &ranks.together(plan_of(job, ranks.count()))?;
    let mut facts = same::facts(job, prepared, plan);
    facts.push(("the rows to judge", dataset.row_count().to_string(), "name the same split on all ranks"));
    facts.push(("the checkpoint", path.display().to_string(), SHARE_THE_OUTPUT));
    ranks.check(job, plan, &facts)?;
    ranks.run(|comm, pulse| -> Result<_, TrainError> {
        pulse.enter("judge");
        let (rank, rank_count, isa) = (comm.rank(), comm.rank_count(), same::level(comm)?);
        let loaded = || -> Result<RankState, TrainError> {
            let mut state = RankState::new(&job.run, Seat { plan, rank, chunks: 1, isa })?;
            resume::load(&Checkpoint::open(path)?, &mut state, rank, Load::Rows)?;
            Ok(state)
        };
        let mut state = ranks::together(comm, loaded())?;
        let feed = Feed {
            row_count: dataset.row_count(),
            batch_size: job.run.batch_size,
            grains: job.run.grains(),
            rank,
            rank_count,
        };
        let scores = evaluate(comm, &mut state, &job.run, dataset, feed, &|| Wish::Nothing)?;
        Ok(scores.unwrap_or_default())
    })
}
