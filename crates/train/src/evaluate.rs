//! Judging the model on rows that it does not train on.

use campanile_comm::Communicator;
use campanile_data::Dataset;
use campanile_spec::config::Run;

use crate::{
    TrainError,
    loader::{Feed, LocalBatch},
    observe::Wish,
    predictions::{Predictions, Wishes},
    rank::RankState,
    scores::{Scores, TaskScores},
};

/// Predicts the rows of `feed` once, in order, and scores them. Every rank takes part; the scores are complete
/// on rank 0; there are none when it is wished to stop.
///
/// # Errors
/// When any rank fails.
pub fn evaluate(
    comm: &dyn Communicator,
    state: &mut RankState,
    run: &Run,
    dataset: &Dataset,
    feed: Feed,
    wish: &dyn Fn() -> Wish,
) -> Result<Option<Vec<TaskScores>>, TrainError> {
    let mut scores = Scores::for_evaluation(run).with_segments(dataset.segments());
    let reader = dataset.reader();
    comm.agree(reader.as_ref().map(drop).map_err(ToString::to_string))?;
    let mut reader = reader?;
    let (mut batch, mut wishes) = (LocalBatch::default(), Wishes::default());
    state.make_whole(comm)?;
    state.network.prepare(&state.parameters);
    for step in 0..feed.steps_per_epoch() {
        let read = feed.read(&mut reader, step, &mut batch);
        if read.is_ok() {
            batch.samples.bags.repeat(&run.model.followers);
        }
        state.predict(comm, &batch, read.map_err(|error| error.to_string()))?;
        (wishes.own, wishes.step) = (wish(), step);
        let said = (state.logits(), state.task_count());
        let (predictions, agreed) = Predictions::collect_and_agree(comm, &batch, said, &mut wishes)?;
        if agreed == Wish::Stop {
            return Ok(None);
        }
        scores.add(&predictions);
    }
    Ok(Some(scores.running()))
}
