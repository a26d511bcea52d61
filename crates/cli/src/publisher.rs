//! Publishing while training: a thread of its own takes checkpoints to the registry, one at a time.
//!
//! A run never waits for it and never fails by it: what the gate holds back or the disk refuses is told, and the
//! next checkpoint is another try. A checkpoint that comes while one is on its way waits for the next turn.

use std::{
    path::{Path, PathBuf},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use campanile_data::{Dataset, Prepared};
use campanile_spec::config::{Job, Publish};
use campanile_tables::{Registry, checkpoint, registry::Shape};

use crate::command::{
    gate::{HoldOut, Margins},
    publish::Desk,
};

/// Takes checkpoints to a registry.
pub struct Publisher {
    registry: PathBuf,
    settings: Publish,
    hold_out: Option<Dataset>,
    /// On a stream: where the examples are that come after a checkpoint, and how many the gate looks at.
    #[cfg(feature = "live")]
    recent: Option<(campanile_live::recent::Recent, u64)>,
    /// The step and time of the last one that was begun.
    last: Option<(u64, Instant)>,
    under_way: Option<JoinHandle<String>>,
    /// The newest checkpoint, if it is not published yet.
    waiting: Option<(u64, PathBuf)>,
}

impl Publisher {
    /// The publisher that a job asks for.
    pub fn of(job: &Job, prepared: &Prepared) -> Option<Publisher> {
        let settings = job.process.publish.clone();
        let registry = settings.registry.clone()?;
        let hold_out = prepared.valid.clone().filter(|_| settings.gate_rows > 0);
        Some(Publisher {
            registry,
            settings,
            hold_out,
            #[cfg(feature = "live")]
            recent: None,
            last: None,
            under_way: None,
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
        Some(Publisher { hold_out: None, recent: (rows > 0).then_some((recent, rows)), ..publisher })
    }

    /// A checkpoint stands. Says what became of an earlier one, if that is known by now.
    pub fn checkpoint(&mut self, step: u64, path: &Path) -> Option<String> {
        let said = self.under_way.take_if(|thread| thread.is_finished()).map(told);
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
    pub fn finish(mut self) -> Vec<String> {
        #[cfg(feature = "live")]
        self.recent.iter().for_each(|(recent, _)| recent.wait_no_more());
        let mut said: Vec<String> = self.under_way.take().map(told).into_iter().collect();
        self.begin();
        said.extend(self.under_way.take().map(told));
        said
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
            let gate = hold_out.as_ref().map(|rows| HoldOut::Rows(rows, settings.gate_rows));
            #[cfg(feature = "live")]
            let batches = match recent.map(|(recent, rows)| newest(&recent, held.path(), rows)).transpose() {
                Ok(batches) => batches,
                Err(error) => return format!("not published: {}: {error:#}", path.display()),
            };
            #[cfg(feature = "live")]
            let gate = batches.as_deref().map(HoldOut::Batches).or(gate);
            let desk = Desk {
                registry: Registry::new(&registry),
                model: &settings.model,
                gate: gate.map(|hold_out| (Margins { ne, calibration }, hold_out)),
                keep: settings.keep,
                shape: if settings.deltas { Shape::Smallest } else { Shape::Whole },
            };
            desk.publish_in_words(held.path(), &path)
        }));
    }
}

/// The examples that came after a checkpoint.
#[cfg(feature = "live")]
fn newest(
    recent: &campanile_live::recent::Recent,
    path: &Path,
    rows: u64,
) -> anyhow::Result<Vec<campanile_spec::Batch>> {
    let manifest = checkpoint::Checkpoint::open(path)?.manifest().clone();
    let next = manifest.cursor["next"].as_u64().unwrap_or(0);
    Ok(recent.after(next, rows)?)
}

fn told(thread: JoinHandle<String>) -> String {
    thread.join().unwrap_or_else(|_| "not published: the publisher stopped on an internal error".to_owned())
}
