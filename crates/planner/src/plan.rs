//! From a request to a plan: choices, search, placements.

use campanile_spec::Plan;

use crate::{
    choices::{Choice, choices},
    estimate::{Prediction, dense_bytes, predict},
    place::Method,
    remedies::{DoesNotFit, what_does_not_fit},
    request::Request,
    search::{Bound, Shape, search},
};

/// A plan with all that explains it.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// What it costs.
    pub prediction: Prediction,
    /// All choices of every table.
    pub choices: Vec<Vec<Choice>>,
    /// The one taken.
    pub chosen: Vec<usize>,
    /// What no plan can be faster than.
    pub bound: Bound,
    /// How parts were placed.
    pub method: Method,
}

/// The best plan found.
///
/// # Errors
/// When the tables do not fit the memory: which, by how much, and what would help.
///
/// # Panics
/// If there is not one load per table.
pub fn plan(request: &Request<'_>) -> Result<Planned, DoesNotFit> {
    assert_eq!(request.loads.len(), request.model.tables.len(), "one load per table");
    let shape = shape(request);
    let choices: Vec<Vec<Choice>> = (0..request.loads.len()).map(|table| choices(request, table)).collect();
    let found = search(&choices, shape).ok_or_else(|| what_does_not_fit(request, &choices))?;
    let placements = found
        .choices
        .iter()
        .enumerate()
        .map(|(table, &place)| choices[table][place].kind.placement(request, table, &found.ranks[table]));
    let plan = Plan { rank_count: shape.rank_count(), placements: placements.collect() };
    let prediction = predict(request, &plan);
    let bound = Bound::new(&choices, shape.rank_count());
    Ok(Planned { plan, prediction, bound, chosen: found.choices, method: found.method, choices })
}

/// The ranks of a request, with the memory that is left to tables.
pub(crate) fn shape(request: &Request<'_>) -> Shape {
    let topology = request.topology;
    Shape {
        hosts: topology.hosts,
        ranks_per_host: topology.ranks_per_host,
        capacity: topology.memory_bytes_per_rank().saturating_sub(dense_bytes(request)),
        method: request.method,
    }
}
