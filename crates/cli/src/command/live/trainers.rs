//! A trainer for each model of the loop.

use std::sync::Arc;

use anyhow::{Context, Result};
use campanile_live::{board::Board, examples::Examples, file::Member, recent::Recent};
use campanile_train::{
    observe::{Event, Observer},
    ranks::Ranks,
    run::train_on_stream,
};

use super::Loop;
use crate::{
    command::{prep, train::make_output},
    publisher::Publisher,
};

/// Steps between two looks at the metrics.
const LOOK_EVERY: u64 = 10;

/// Trains a model on the examples until it is told to end.
pub fn train(live: &Loop, place: usize) -> Result<()> {
    let Member { name, job, .. } = &live.file.members[place];
    let trained = || -> Result<()> {
        make_output(job, false)?;
        let prepared = prep::prepared(job, true)?;
        let stop = Arc::clone(&live.stop_trainers);
        let recent = Recent::new(Arc::clone(&live.log), &job.run, &prepared.transforms, Arc::clone(&stop));
        let examples = Examples::new(Arc::clone(&live.log), &job.run, &prepared.transforms, stop);
        live.board.follow(place, examples.position());
        let mut watcher = Watcher {
            board: &live.board,
            place,
            name,
            batch_size: job.run.batch_size as u64,
            publisher: Publisher::on_stream(job, &prepared, recent),
            quiet: live.quiet,
        };
        let trained = train_on_stream(job, &prepared, &examples, Ranks::threads_for(job)?, &mut watcher);
        if let (count, Some(first)) = examples.skipped().told() {
            watcher.say(&format!(
                "{count} examples were passed over, which the job cannot take; the first: {first}"
            ));
        }
        trained?;
        let publisher = watcher.publisher.take();
        publisher.map_or(Ok(()), |publisher| publisher.finish(|line| watcher.say(line)))
    };
    trained().with_context(|| format!("`{name}`"))
}

struct Watcher<'a> {
    board: &'a Board,
    place: usize,
    name: &'a str,
    batch_size: u64,
    publisher: Option<Publisher>,
    quiet: bool,
}

impl Watcher<'_> {
    fn say(&self, line: &str) {
        if !self.quiet || line.starts_with("not published") {
            eprintln!("{}: {line}", self.name);
        }
    }
}

impl Observer for Watcher<'_> {
    fn observe(&mut self, event: &Event<'_>) {
        match event {
            Event::Started(started) => {
                self.board.moved(self.place, started.first_step, started.first_step * self.batch_size);
            }
            Event::Step(step) => {
                let examples = step.step * self.batch_size;
                if step.step.is_multiple_of(LOOK_EVERY) {
                    self.board
                        .trained(self.place, step.step, examples, || ((step.window)(), (step.running)()));
                } else {
                    self.board.moved(self.place, step.step, examples);
                }
            }
            Event::Checkpoint { step, path } => {
                let said = self.publisher.as_mut().and_then(|publisher| publisher.checkpoint(*step, path));
                said.iter().for_each(|line| self.say(line));
            }
            Event::Evaluated { .. } => {}
        }
    }
}
