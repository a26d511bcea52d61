//! Publishing while training: a thread of its own takes checkpoints to the registry, one at a time.
//!
//! A run never waits for it: what the gate holds back or the disk refuses is told, and the next checkpoint is another
//! try. A checkpoint that comes while one is on its way waits for the next turn. The last one has no other try: where
//! it failed, so does the command, after the run is complete. What the gate holds back did not fail.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use campanile_data::Prepared;
use campanile_spec::{
    config::{Job, Publish},
    data::Split,
};
use campanile_tables::{Registry, checkpoint, registry::Shape};

use crate::{
    command::{
        gate::{HeldBack, HoldOut, Margins},
        publish::{Desk, sentence},
    },
    complaint,
};

/// Takes checkpoints to a registry.
pub struct Publisher {
    registry: PathBuf,
    settings: Publish,
    /// The job and its data, where the gate looks at validation rows.
    hold_out: Option<Arc<(Job, Prepared)>>,
    /// On a stream: where the examples are that come after a checkpoint, and how many the gate looks at.
    #[cfg(feature = "live")]
    recent: Option<(campanile_live::recent::Recent, u64)>,
    /// The step and time of the last one that was begun.
    last: Option<(u64, Instant)>,
    under_way: Option<JoinHandle<Result<String>>>,
    /// Why the last one that ended failed.
    failure: Option<anyhow::Error>,
    /// The newest checkpoint, if it is not published yet.
    waiting: Option<(u64, PathBuf)>,
}

impl Publisher {
    /// The publisher that a job asks for.
    pub fn of(job: &Job, prepared: &Prepared) -> Option<Publisher> {
        let settings = job.process.publish.clone();
        let registry = settings.registry.clone()?;
        let gated = prepared.valid.is_some() && settings.gate_rows > 0;
        let hold_out = gated.then(|| Arc::new((job.clone(), prepared.clone())));
        Some(Publisher {
            registry,
            settings,
            hold_out,
            #[cfg(feature = "live")]
            recent: None,
            last: None,
            under_way: None,
            failure: None,
            waiting: None,
        })
    }

    /// The same for a run on a stream: its gate looks at the examples that come after a checkpoint. They are as many as
    /// the job says, and no more than come between two checkpoints, so that a checkpoint is still there when they are.
    #[cfg(feature = "live")]
    pub fn on_stream(
        job: &Job,
        prepared: &Prepared,
        recent: campanile_live::recent::Recent,
    ) -> Option<Publisher> {
        let between = job.process.checkpoint_every_steps.saturating_mul(job.run.batch_size as u64);
        let rows = job.process.publish.gate_rows.min(if between > 0 { between } else { u64::MAX });
        let publisher = Publisher::of(job, prepared)?;
        let recent = (rows > 0).then_some((recent, rows));
        Some(Publisher { hold_out: None, recent, ..publisher })
    }

    /// A checkpoint stands. Says what became of an earlier one, if that is known by now.
    pub fn checkpoint(&mut self, step: u64, path: &Path) -> Option<String> {
        let ended = self.under_way.take_if(|thread| thread.is_finished());
        let said = ended.map(|thread| self.end(thread));
        if self.last.is_some_and(|(last_step, _)| last_step == step) {
            return said;
        }
        self.waiting = Some((step, path.to_owned()));
        let due = self.last.is_none_or(|(last_step, time)| {
            step.saturating_sub(last_step) >= self.settings.every_steps
                && time.elapsed() >= Duration::from_secs(60 * self.settings.every_minutes)
        });
        if due && self.under_way.is_none() {
            self.begin();
        }
        said
    }

    /// Waits for the one under way and publishes the last checkpoint; says what became of both.
    ///
    /// # Errors
    /// When the last checkpoint could not be published, for another reason than the gate.
    pub fn finish(self, mut say: impl FnMut(&str)) -> Result<()> {
        self.finish_with(&mut say)
    }

    fn finish_with(mut self, say: &mut dyn FnMut(&str)) -> Result<()> {
        #[cfg(feature = "live")]
        self.recent.iter().for_each(|(recent, _)| recent.wait_no_more());
        let earlier = self.under_way.take();
        earlier.into_iter().for_each(|thread| say(&self.end(thread)));
        self.begin();
        let last = self.under_way.take();
        last.into_iter().for_each(|thread| say(&self.end(thread)));
        match self.failure {
            None => Ok(()),
            Some(error) => Err(error.context(format!(
                "the last checkpoint was not published to {} (the run is complete; `campanile publish` tries again)",
                self.registry.display()
            ))),
        }
    }

    /// Waits for the one under way, says what became of it, and publishes no other: the run is not at its end.
    ///
    /// # Errors
    /// When it could not be published, for another reason than the gate.
    pub fn leave(mut self, mut say: impl FnMut(&str)) -> Result<()> {
        self.waiting = None;
        self.finish_with(&mut say)
    }

    /// What became of a checkpoint, in words.
    fn end(&mut self, thread: JoinHandle<Result<String>>) -> String {
        let outcome = thread.join().unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Err(anyhow!("the publisher stopped on an internal error: {text}"))
        });
        match outcome {
            Ok(line) => {
                self.failure = None;
                line
            }
            Err(error) => {
                let line = format!("not published: {}", complaint::words(&error));
                self.failure = (!error.is::<HeldBack>()).then_some(error);
                line
            }
        }
    }

    fn begin(&mut self) {
        let Some((step, path)) = self.waiting.take() else { return };
        self.last = Some((step, Instant::now()));
        let (registry, settings) = (self.registry.clone(), self.settings.clone());
        // Training may write, and remove, many more before this one has passed the gate.
        let held = checkpoint::hold(&path);
        let hold_out = self.hold_out.clone();
        #[cfg(feature = "live")]
        let recent = self.recent.clone();
        self.under_way = Some(std::thread::spawn(move || {
            let Publish { ne_margin: ne, calibration_margin: calibration, .. } = settings;
            let named = || path.display().to_string();
            let gate = hold_out
                .as_deref()
                .map(|(job, prepared)| HoldOut::rows(job, prepared, Split::Valid, settings.gate_rows));
            #[cfg(feature = "live")]
            let gate = match &recent {
                Some((recent, rows)) => {
                    let next = next_record(held.path()).with_context(named)?;
                    Some(HoldOut::Stream { recent, next, rows: *rows })
                }
                None => gate,
            };
            let desk = Desk {
                registry: Registry::new(&registry),
                model: &settings.model,
                gate: gate.map(|hold_out| (Margins { ne, calibration }, hold_out)),
                keep: settings.keep,
                shape: if settings.deltas { Shape::Smallest } else { Shape::Whole },
            };
            let outcome = desk.publish(held.path()).with_context(named)?;
            let alone = outcome.judged.alone.map_or_else(String::new, |why| format!("; {why}"));
            Ok(sentence(&outcome.release) + &alone)
        }));
    }
}

/// The first record of the stream that a checkpoint was not trained on.
#[cfg(feature = "live")]
fn next_record(path: &Path) -> Result<u64> {
    let manifest = checkpoint::Checkpoint::open(path)?.manifest().clone();
    Ok(manifest.cursor["next"].as_u64().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publisher(outcome: impl FnOnce() -> Result<String> + Send + 'static) -> Publisher {
        Publisher {
            registry: PathBuf::from("registry"),
            settings: Publish {
                registry: None,
                model: "model".to_owned(),
                every_steps: 0,
                every_minutes: 0,
                keep: 5,
                deltas: true,
                gate_rows: 0,
                ne_margin: 0.0,
                calibration_margin: 0.0,
            },
            hold_out: None,
            #[cfg(feature = "live")]
            recent: None,
            last: Some((7, Instant::now())),
            under_way: Some(std::thread::spawn(outcome)),
            failure: None,
            waiting: None,
        }
    }

    #[test]
    fn a_publisher_that_died_is_a_failure_that_names_why() {
        let mut said = Vec::new();
        let dead = publisher(|| panic!("one feature too many"));
        let error = dead.finish(|line| said.push(line.to_owned())).unwrap_err();
        assert!(format!("{error:#}").contains("internal error: one feature too many"), "{error:#}");
        assert!(said[0].starts_with("not published: the publisher stopped"), "{said:?}");
    }

    #[test]
    fn a_failure_counts_however_early_it_was_told() {
        let mut failed = publisher(|| Err(anyhow!("no space")));
        while !failed.under_way.as_ref().is_none_or(JoinHandle::is_finished) {
            std::thread::yield_now();
        }
        // The end of the run tells of the checkpoint of the same step again.
        assert_eq!(failed.checkpoint(7, Path::new("step-7")).as_deref(), Some("not published: no space"));
        assert!(failed.finish(|_| ()).is_err());
    }
}
