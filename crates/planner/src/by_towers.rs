//! What a step costs by the ways of towers (docs/towers.md), in the same coin as the flat exchange.
//!
//! A group of ranks is a small cluster of its own: its tables, its members, and all samples of the batch. So every group is
//! planned and priced like a job, and what goes to the peers comes on top:
//!
//! ```text
//!   ids        from the peers, then among members          B/m · (n·4 + f·4) bytes of the group's features
//!   vectors    among members, then to the peers            B/m · handed on · wire, a (T-1)/T of it to others
//!   modules    on the peers' samples, in the group         B/m samples; forward twice, backward once
//!   weights    of modules among members, of the rest among all
//! ```
//!
//! with `m` members in each of `T` groups, a batch of `B` samples.

use campanile_spec::{Placement, Plan, Seating, TowerModule, TowerSpec, topology::Topology};
use thiserror::Error;

use crate::{
    estimate::{
        CODECS, Cost, EXCHANGES, GRADIENTS, IDS, PlacementCost, Prediction, VECTORS, dense_bytes,
        placement_cost, predict, travel,
    },
    plan::plan,
    remedies::DoesNotFit,
    request::{DenseWork, Request, Wire, dense_seconds},
};

/// Exchanges among members: ids, vectors, gradients. Among peers there are as many, and what is dense goes among all, so
/// that as many exchanges as flat leave the host.
const CIRCLE_EXCHANGES: f64 = 3.0;

/// Operations per multiplication, forward and backward; in a group the forward pass of a module is computed a second time
/// on the way back.
const NETWORK_FLOPS: f64 = 6.0;
const MODULE_FLOPS: f64 = 8.0;

/// A plan that keeps towers inside their groups, and what it costs.
#[derive(Debug, Clone, PartialEq)]
pub struct ByTowers {
    /// Which ranks have which towers.
    pub seating: Seating,
    /// Where tables go.
    pub plan: Plan,
    /// What it costs, peers and modules included.
    pub prediction: Prediction,
}

/// Why the ways of towers have no price.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum NoTowers {
    /// They are not used, or cannot be seated.
    #[error("{0}")]
    NotSeated(String),
    /// A group's tables do not fit its ranks.
    #[error("the tables of group {group} do not fit its ranks: {problem}")]
    DoesNotFit {
        /// Which group.
        group: usize,
        /// Which tables, by how much, and what would help.
        problem: Box<DoesNotFit>,
    },
}

/// Plans every group and prices the whole. `request.model` has its towers in the variant that is asked for, and
/// `request.dense` is the network above them.
///
/// # Errors
/// When the towers cannot be seated on the topology's ranks, or tables do not fit.
pub fn plan_by_towers(request: &Request<'_>) -> Result<ByTowers, NoTowers> {
    let seating = seated(request)?;
    let mut placements: Vec<Placement> =
        request.model.tables.iter().map(|table| Placement::whole(table, 0)).collect();
    for group in 0..seating.groups {
        let inside = Group::new(request, &seating, group);
        let planned = plan(&inside.request(request))
            .map_err(|problem| NoTowers::DoesNotFit { group, problem: Box::new(problem) })?;
        for (&table, mut placement) in inside.tables.iter().zip(planned.plan.placements) {
            placement.shards.iter_mut().for_each(|shard| shard.rank += group * seating.members);
            placements[table] = placement;
        }
    }
    let plan = Plan { rank_count: seating.groups * seating.members, placements };
    let prediction = predict_by_towers(request, &seating, &plan);
    Ok(ByTowers { seating, plan, prediction })
}

/// What a plan costs, by whichever way it makes the vectors take: that of towers where it keeps them inside their groups,
/// as training does, and else the flat one.
///
/// # Panics
/// If the plan is not for the request's model and topology.
pub fn predict_ways(request: &Request<'_>, plan: &Plan) -> Prediction {
    match seated(request) {
        Ok(seating) if seating.fits(request.model, plan) => predict_by_towers(request, &seating, plan),
        _ => predict(request, plan),
    }
}

/// What each table costs over all ranks, in picoseconds and bytes, by whichever way the plan makes its vectors take.
pub(crate) fn table_costs(request: &Request<'_>, plan: &Plan) -> Vec<(u64, u64)> {
    let seating = seated(request).ok().filter(|seating| seating.fits(request.model, plan));
    let Some(seating) = seating else {
        let cost = |(table, placement)| sum(&placement_cost(request, table, placement), plan.rank_count);
        return plan.placements.iter().enumerate().map(cost).collect();
    };
    let mut costs = vec![(0, 0); plan.placements.len()];
    for group in 0..seating.groups {
        let inside = Group::new(request, &seating, group);
        let Some(plan) = seating.plan_of(request.model, plan, group) else { continue };
        for (place, &table) in inside.tables.iter().enumerate() {
            let cost = placement_cost(&inside.request(request), place, &plan.placements[place]);
            costs[table] = sum(&cost, seating.members);
        }
    }
    costs
}

fn sum(cost: &PlacementCost, ranks: usize) -> (u64, u64) {
    let sum =
        |of: fn(&Cost) -> u64| cost.shards.iter().map(of).sum::<u64>() + of(&cost.everywhere) * ranks as u64;
    (sum(Cost::picoseconds), sum(|cost| cost.memory_bytes))
}

/// The seating of the request's towers on its ranks.
///
/// # Errors
/// When there is none, in words.
pub fn seated(request: &Request<'_>) -> Result<Seating, NoTowers> {
    match Seating::of(request.model, request.topology.rank_count()) {
        Ok(Some(seating)) => Ok(seating),
        Ok(None) => {
            Err(NoTowers::NotSeated("there is one rank, or the job does not use its towers".to_owned()))
        }
        Err(words) => Err(NoTowers::NotSeated(words)),
    }
}

/// What a plan costs that keeps every tower inside its group.
///
/// # Panics
/// If it does not.
pub fn predict_by_towers(request: &Request<'_>, seating: &Seating, plan: &Plan) -> Prediction {
    let topology = request.topology;
    let mut ranks = Vec::new();
    let (mut module_seconds, mut module_weights) = (0.0f64, 0.0f64);
    let above = request.local_samples() * handed_on_width(request, &request.model.towers.list) as f64;
    for group in 0..seating.groups {
        let inside = Group::new(request, seating, group);
        let plan = seating.plan_of(request.model, plan, group);
        assert!(plan.is_some(), "a plan that leaves group {group}");
        let Some(plan) = plan else { continue };
        let mut members = predict(&inside.request(request), &plan).ranks;
        let (ids, handed_on) = inside.for_peers(request, seating, group);
        for cost in &mut members {
            to_peers(topology, seating, cost, IDS, ids);
            to_peers(topology, seating, cost, VECTORS, handed_on * Wire::bytes(request.wire.forward));
            to_peers(topology, seating, cost, GRADIENTS, handed_on * Wire::bytes(request.wire.backward));
            cost.seconds[CODECS] +=
                request.sender_seconds(handed_on, handed_on) + request.taker_seconds(above);
            cost.memory_bytes += (ids + handed_on * 4.0 * 2.0) as u64;
        }
        ranks.extend(members);
        let (seconds, weights) = modules(request, seating, group);
        (module_seconds, module_weights) = (module_seconds.max(seconds), module_weights.max(weights));
    }
    let above = dense_seconds(request, 0.0);
    let mut latency_seconds = 0.0;
    if seating.members > 1 {
        latency_seconds += CIRCLE_EXCHANGES * topology.in_host.latency_seconds;
    }
    let far = if topology.hosts > 1 { topology.between_hosts() } else { topology.in_host };
    latency_seconds += EXCHANGES * far.latency_seconds;
    let mut prediction = Prediction {
        ranks,
        network_seconds: above.network + module_seconds,
        weights_seconds: above.weights + module_weights,
        weights_hideable_seconds: above.weights_hideable,
        rest_seconds: request.judge_seconds(),
        read_seconds: 0.0,
        latency_seconds,
        chunk_seconds: chunk_seconds(request, seating),
        dense_bytes: dense_bytes(request),
        step_seconds: 0.0,
        overlapped_seconds: 0.0,
    };
    prediction.add_up(request);
    prediction
}

/// Seconds of a rank for sending in chunks, each of which goes to its peers and to the members of its group.
fn chunk_seconds(request: &Request<'_>, seating: &Seating) -> f64 {
    let topology = request.topology;
    let groups_of_host = (topology.ranks_per_host / seating.members).max(1);
    let near = (groups_of_host - 1) as f64 * topology.in_host.message_seconds;
    let far = (seating.groups - groups_of_host) as f64 * topology.between_hosts().message_seconds;
    let members = (seating.members - 1) as f64 * topology.in_host.message_seconds;
    request.chunk_exchanges() * (near + far + members)
}

/// One group as a cluster of its own.
struct Group {
    model: campanile_spec::ModelSpec,
    tables: Vec<usize>,
    loads: Vec<crate::statistics::TableLoad>,
    topology: Topology,
    nothing: DenseWork,
}

impl Group {
    fn new(request: &Request<'_>, seating: &Seating, group: usize) -> Group {
        let (model, tables) = seating.model_of(request.model, group);
        let loads = tables.iter().map(|&table| request.loads[table].clone()).collect();
        let per_host = request.topology.ranks_per_host.min(seating.members);
        let mut topology = request.topology.clone();
        (topology.hosts, topology.ranks_per_host) = (seating.members / per_host, per_host);
        // The network is priced once, for all groups; here it only takes its memory.
        let spared = dense_bytes(request) >> 20;
        topology.memory_mib_per_rank = topology.memory_mib_per_rank.saturating_sub(spared).max(1);
        Group { model, tables, loads, topology, nothing: DenseWork::default() }
    }

    fn request<'a>(&'a self, whole: &Request<'a>) -> Request<'a> {
        Request {
            model: &self.model,
            topology: &self.topology,
            loads: &self.loads,
            dense: &self.nothing,
            // A codec rounds what crosses groups, and nothing else.
            wire: Wire::F32,
            may_copy: false,
            ..whole.clone()
        }
    }

    /// Bytes of ids and floats of vectors that a member exchanges with its peers.
    fn for_peers(&self, request: &Request<'_>, seating: &Seating, group: usize) -> (f64, f64) {
        let samples = request.batch_size as f64 / seating.members as f64;
        let ids = |load: &crate::statistics::TableLoad| {
            load.ids_per_sample * if load.weighted { 8.0 } else { 4.0 } + load.features as f64 * 4.0
        };
        let ids: f64 = self.loads.iter().map(ids).sum();
        let towers = &request.model.towers.list[seating.towers[group].clone()];
        (samples * ids, samples * handed_on_width(request, towers) as f64)
    }
}

/// Floats of a sample that some towers hand on.
fn handed_on_width(request: &Request<'_>, towers: &[TowerSpec]) -> usize {
    let model = request.model;
    match model.has_tower_modules() {
        true => towers.iter().map(|tower| tower.output_width(model)).sum(),
        false => towers.iter().map(|tower| tower.input_width(model)).sum(),
    }
}

/// Adds what a rank exchanges with its peers, in all of which an equal part of the `bytes` goes.
fn to_peers(topology: &Topology, seating: &Seating, cost: &mut Cost, stage: usize, bytes: f64) {
    let groups_of_host = (topology.ranks_per_host / seating.members).max(1) as f64;
    let part = bytes / seating.groups as f64;
    let cross = part * (seating.groups as f64 - groups_of_host);
    // What stays on the rank is copied all the same, at the speed of its host.
    let in_host = bytes - cross;
    travel(cost, stage, (topology.in_host, in_host), (topology.between_hosts(), cross));
    cost.in_host_bytes += in_host - part;
    cost.cross_host_bytes += cross;
}

/// Seconds of a group's modules on its peers' samples, and of summing and updating their weights among members.
fn modules(request: &Request<'_>, seating: &Seating, group: usize) -> (f64, f64) {
    if !request.model.has_tower_modules() {
        return (0.0, 0.0);
    }
    let towers = &request.model.towers.list[seating.towers[group].clone()];
    let samples = request.batch_size as f64 / seating.members as f64;
    let weights: usize = towers.iter().map(|tower| tower.weight_count(request.model)).sum();
    let bytes = weights as f64 * 4.0;
    let mut seconds = request.topology.compute.copy_seconds(4.0 * bytes);
    if seating.members > 1 {
        seconds += 2.0 * bytes / request.topology.in_host.bytes_per_second;
    }
    (samples * seconds_per_sample(request, towers, MODULE_FLOPS), seconds)
}

/// Seconds of all modules on a rank's own samples, where the exchange is flat and every rank computes them.
pub(crate) fn modules_everywhere(request: &Request<'_>) -> f64 {
    if !request.model.has_tower_modules() {
        return 0.0;
    }
    request.local_samples() * seconds_per_sample(request, &request.model.towers.list, NETWORK_FLOPS)
}

fn seconds_per_sample(request: &Request<'_>, towers: &[TowerSpec], flops: f64) -> f64 {
    let (model, compute) = (request.model, &request.topology.compute);
    let of_product = |(times, inputs, outputs): (usize, usize, usize)| {
        let rate = compute.layer_flops_per_second(inputs, outputs, model.precision);
        flops * (times * inputs * outputs) as f64 / rate
    };
    towers.iter().flat_map(|tower| products(model, tower)).map(of_product).sum()
}

/// The matrix products of a module: how often, inputs, outputs.
fn products(model: &campanile_spec::ModelSpec, tower: &TowerSpec) -> Vec<(usize, usize, usize)> {
    let (input, output) = (tower.input_width(model), tower.output_width(model));
    match tower.module {
        TowerModule::Identity => Vec::new(),
        TowerModule::Ensemble { per_feature, mixed, width } => {
            let dim = tower.features.first().map_or(0, |&feature| model.table_of(feature).dim);
            let each = (tower.features.len(), dim, per_feature * width);
            vec![(1, input, mixed * width), each].into_iter().filter(|(_, _, outputs)| *outputs > 0).collect()
        }
        TowerModule::Cross { layers, rank, .. } => {
            let mut all = match rank {
                campanile_spec::CrossRank::Full => vec![(layers, input, input)],
                campanile_spec::CrossRank::Low(rank) => vec![(layers, input, rank), (layers, rank, input)],
            };
            all.push((1, input, output));
            all
        }
    }
}
