//! One training step: everything that happens to a batch, in order.

use campanile_comm::Communicator;
use campanile_tables::UpdateStep;

use crate::{TrainError, clock::Part, loader::LocalBatch, rank::RankState};

/// What a step did on this rank.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepReport {
    /// Ids looked up in this rank's tables.
    pub ids: u64,
    /// Different rows updated in this rank's tables.
    pub unique_rows: u64,
}

/// One training step. `state.predictions()` then has this rank's logits as they were before the update.
///
/// Every call on the exchange and the reduction agrees with the other ranks before it returns, so each `?`
/// leaves on all ranks at once.
///
/// # Errors
/// When any rank fails.
pub fn step(
    comm: &dyn Communicator,
    state: &mut RankState,
    batch: &LocalBatch,
    step: u64,
) -> Result<StepReport, TrainError> {
    state.timings.start(Part::Lookup);
    state.exchange.lookup(comm, &state.tables, &batch.samples.bags)?; // out to the owners and back
    state.timings.start(Part::Pack);
    state.network.prepare(&state.parameters);
    state.timings.start(Part::Network);
    state.forward_and_backward(batch); // grain by grain; leaves logits, this rank's node of the tree, row gradients
    state.timings.start(Part::Update);
    let update = UpdateStep {
        learning_rate: state.sparse.learning_rate.at(step),
        step,
        l2: state.sparse.l2,
        row_norm_max: state.sparse.row_norm_max,
        seed: state.seed,
    };
    let touched = state.exchange.push(comm, &mut state.tables, &update)?;
    state.timings.start(Part::Dense);
    state.reduction.sum_slice(comm, state.gradient.sum_mut())?;
    let clip = state.clip_factor(comm)?;
    state.update_dense(step, clip);
    state.reduction.gather_slices(comm, &mut state.parameters)?;
    state.timings.stop();
    Ok(StepReport { ids: touched.ids_seen, unique_rows: touched.rows_touched })
}
