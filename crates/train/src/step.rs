//! One training step: everything that happens to a batch, in order.

use campanile_comm::{Communicator, Pending};

use crate::{TrainError, clock::Part, loader::LocalBatch, rank::RankState, towers};

/// What a step did on this rank.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepReport {
    /// Ids looked up in this rank's tables.
    pub ids: u64,
    /// Different rows updated in this rank's tables.
    pub unique_rows: u64,
}

/// What a step works on.
pub struct Turn<'a> {
    /// The number of the step, from 0.
    pub number: u64,
    /// This rank's samples.
    pub batch: &'a LocalBatch,
    /// Those of the next step, whose ids travel while this one computes, or why there are none; `None` when they
    /// shall travel in their own step.
    pub next: Option<Result<&'a LocalBatch, String>>,
}

/// What is still on its way after a step; [`RankState::settle`] waits for it.
#[derive(Default)]
pub struct Carry<'c> {
    /// The slices of the dense weights that other ranks have updated.
    pub(crate) weights: Option<Pending<'c>>,
}

/// One training step. `state.logits()` then has this rank's logits as they were before the update.
///
/// With a batch to look ahead to, the new dense weights are left on their way in `carry`: the next step waits for them
/// only when it needs them, and whoever else reads the weights settles first. A failure on any rank travels with the
/// messages, so each `?` leaves on all ranks at once.
///
/// # Errors
/// When any rank fails.
pub fn step<'c>(
    comm: &'c dyn Communicator,
    state: &mut RankState,
    carry: &mut Carry<'c>,
    turn: Turn<'_>,
) -> Result<StepReport, TrainError> {
    if state.towers.is_some() {
        return towers::step(comm, state, carry, turn);
    }
    let looks_ahead = turn.next.is_some();
    state.take_up(comm, turn.batch)?; // unless its ids came during the last step
    let vectors = state.start_vectors(comm)?;
    let ids = state.start_ids(comm, turn.next)?;
    state.adapt(comm, turn.number, turn.batch)?; // the teacher's word, corrected by the batch's labels
    state.settle(comm, carry)?;
    state.timings.start(Part::Pack);
    state.network.prepare(&state.parameters);
    // Grain by grain, each chunk's vectors waited for and its gradients sent; leaves logits and this rank's node
    // of the tree.
    let gradients = state.forward_and_backward(comm, turn.batch, vectors)?;
    state.finish_ids(ids)?;
    let sum = state.reduction.start_sum(comm, state.gradient.sum())?;
    state.finish_gradients(gradients)?;
    state.timings.start(Part::Update);
    let update = state.row_update(turn.number);
    let touched = state.exchange.update(comm, &mut state.tables, &mut state.mirrors, &update)?;
    state.timings.start(Part::Dense);
    state.reduction.finish_sum(comm, sum, state.gradient.sum_mut())?;
    let tree = std::mem::take(&mut state.gradient);
    let clip = state.clip_factor(comm, tree.sum())?;
    state.update_dense(turn.number, clip, tree.sum());
    state.gradient = tree;
    carry.weights = state.reduction.start_gather(comm, &state.parameters)?;
    if !looks_ahead {
        state.settle(comm, carry)?;
    }
    state.timings.stop();
    Ok(StepReport { ids: touched.ids_seen, unique_rows: touched.rows_touched })
}
