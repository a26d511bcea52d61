//! What somebody outside wishes of a run: all ranks agree on it, and it changes no result.

use std::sync::atomic::{AtomicU64, Ordering};

use campanile_data::{PrepOptions, prepare};
use campanile_spec::config::Job;
use campanile_tables::checkpoint::Checkpoint;
use campanile_train::{
    observe::{Event, Observer, Wish},
    ranks::Ranks,
    run::{Summary, train},
};

/// Wishes something after a step, and notes the checkpoints.
#[derive(Default)]
struct Visitor {
    step: AtomicU64,
    wish: Wish,
    after: u64,
    /// Where it wishes once only: how often it is asked before.
    once_after: Option<AtomicU64>,
    checkpoints: Vec<u64>,
}

impl Observer for Visitor {
    fn observe(&mut self, event: &Event<'_>) {
        match event {
            Event::Step(step) => self.step.store(step.step, Ordering::SeqCst),
            Event::Checkpoint { step, .. } => self.checkpoints.push(*step),
            _ => {}
        }
    }

    fn wish(&self) -> Wish {
        let wishes = match &self.once_after {
            // Below zero it goes on to the largest number, and does not come back.
            Some(left) => left.fetch_sub(1, Ordering::SeqCst) == 0,
            None => self.step.load(Ordering::SeqCst) >= self.after,
        };
        if wishes { self.wish } else { Wish::Nothing }
    }
}

fn run(home: &tempfile::TempDir, ranks: usize, visitor: &mut Visitor) -> Summary {
    let text = format!(
        "[run]\nbatch_size = 64\n[run.data]\nkind = \"synthetic\"\n[run.data.world]\npreset = \"linear\"\n\
         train_samples = 1280\nvalid_samples = 64\ntest_samples = 64\n[run.tables]\ndim = 4\n[run.model]\nkind = \"mlp\"\n\
         hidden = [4]\n[run.sparse]\nlearning_rate = 0.05\n[run.dense]\nlearning_rate = 0.01\n[process]\noutput_dir = \"{}\"\ncheckpoints_kept = 99\n",
        home.path().display()
    );
    let job = Job::parse(&text).unwrap();
    let options = PrepOptions::new(home.path().join("cache"), job.run.seed);
    let prepared = prepare(&job.run.data, &job.process.data, &options, &mut |_| ()).unwrap();
    train(&job, &prepared, Ranks::Threads(ranks), visitor).unwrap()
}

fn weights(summary: &Summary) -> Vec<(String, String)> {
    let manifest = Checkpoint::open(&summary.checkpoint).unwrap().manifest().clone();
    manifest.files.into_iter().map(|file| (file.name, file.crc32c)).collect()
}

#[test]
fn a_run_that_is_asked_to_stop_goes_on_with_the_same_bits() {
    let straight = tempfile::tempdir().unwrap();
    let want = run(&straight, 2, &mut Visitor { after: u64::MAX, ..Visitor::default() });
    assert!(want.steps == 20 && !want.interrupted && want.test.is_some());
    for ranks in [1, 4] {
        let home = tempfile::tempdir().unwrap();
        let mut visitor = Visitor { wish: Wish::Stop, after: 3, ..Visitor::default() };
        let stopped = run(&home, ranks, &mut visitor);
        assert!(stopped.interrupted && stopped.test.is_none(), "{stopped:?}");
        // What another rank wishes is heard a step later at most.
        assert!((3..=5).contains(&stopped.steps), "{}", stopped.steps);
        assert_eq!(visitor.checkpoints, [stopped.steps]);
        let ended = run(&home, ranks, &mut Visitor { after: u64::MAX, ..Visitor::default() });
        assert_eq!((ended.started.first_step, ended.steps), (stopped.steps, 20));
        assert_eq!(weights(&ended), weights(&want));
    }
}

#[test]
fn a_checkpoint_that_is_wished_changes_no_bit() {
    let straight = tempfile::tempdir().unwrap();
    let want = run(&straight, 1, &mut Visitor { after: u64::MAX, ..Visitor::default() });
    let home = tempfile::tempdir().unwrap();
    let mut visitor = Visitor { wish: Wish::Checkpoint, after: 5, ..Visitor::default() };
    let found = run(&home, 2, &mut visitor);
    assert!(visitor.checkpoints.len() > 2 && visitor.checkpoints[0] >= 5, "{:?}", visitor.checkpoints);
    assert_eq!(weights(&found), weights(&want));
}

/// What was wished once is not wished for ever: a checkpoint by time, say, is one.
#[test]
fn a_checkpoint_that_is_wished_once_is_not_written_at_every_step() {
    for ranks in [1, 2, 4] {
        let home = tempfile::tempdir().unwrap();
        // Every rank asks at every step.
        let once_after = Some(AtomicU64::new(5 * ranks as u64));
        let mut visitor = Visitor { wish: Wish::Checkpoint, once_after, ..Visitor::default() };
        let found = run(&home, ranks, &mut visitor);
        // The one at the end, and the one that was wished, unless the end overtook it.
        assert!((1..=2).contains(&visitor.checkpoints.len()), "{ranks} ranks: {:?}", visitor.checkpoints);
        assert_eq!(visitor.checkpoints.last(), Some(&found.steps));
    }
}
