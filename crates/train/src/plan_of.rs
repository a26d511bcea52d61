//! Where the tables of a job live: as its plan file says, or whole and balanced.

use campanile_spec::{Plan, config::Job};

use crate::{TrainError, run::plan_for};

/// The plan of a job on so many ranks: `process.plan`'s, or whole tables balanced by what they cost,
/// inside the groups of their towers if these have their own ways.
///
/// # Errors
/// When the file cannot be read, or is no plan for this model and number of ranks.
pub fn plan_of(job: &Job, rank_count: usize) -> Result<Plan, TrainError> {
    let Some(path) = &job.process.plan else { return Ok(plan_for(&job.run.model, rank_count)) };
    let text = std::fs::read_to_string(path)
        .map_err(|source| TrainError::PlanUnread { path: path.clone(), source })?;
    Plan::parse(&text, &job.run.model, rank_count)
        .map_err(|source| TrainError::PlanFile { path: path.clone(), source })
}
