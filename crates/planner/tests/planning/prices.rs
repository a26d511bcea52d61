//! Prices follow what was measured: shared processors, links that take the processors' time, reading.

use campanile_planner::{Prediction, Wire, predict};
use campanile_spec::{
    Placement, Plan, Precision,
    config::WireFormat,
    topology::{CodecRates, ProductRates},
};

use crate::bench::{Case, table, topology};

/// A table on every rank of two hosts.
fn case() -> Case {
    let tables = ["a", "b", "c", "d"].map(|name| (table(name, 100_000, 64), 4.0));
    Case::new(tables.into(), topology(2, 2, 1024))
}

fn price(case: &Case) -> Prediction {
    let whole = |(rank, table)| Placement::whole(table, rank);
    let placements = case.model.tables.iter().enumerate().map(whole).collect();
    predict(&case.request(), &Plan { rank_count: 4, placements })
}

#[test]
fn ranks_that_share_processors_compute_as_much_longer() {
    let mut case = case();
    let alone = price(&case);
    case.topology.compute.processors_per_rank = 0.5;
    let shared = price(&case);
    assert!((shared.compute_seconds() / alone.compute_seconds() - 2.0).abs() < 1e-9);
    assert_eq!(shared.exchange_seconds(), alone.exchange_seconds());
}

#[test]
fn an_exchange_that_is_all_work_hides_behind_nothing() {
    let mut case = case();
    let by_links = price(&case);
    assert!(by_links.overlapped_seconds < by_links.step_seconds);
    case.topology.in_host.hidden_share = 0.0;
    case.topology.cross_host.iter_mut().for_each(|link| link.hidden_share = 0.0);
    let by_processors = price(&case);
    assert_eq!(by_processors.step_seconds, by_links.step_seconds);
    assert_eq!(by_processors.overlapped_seconds, by_processors.step_seconds);
}

#[test]
fn the_first_and_the_last_chunk_have_nothing_to_hide_behind() {
    let mut case = case();
    let mut before = f64::INFINITY;
    for chunks in [1, 2, 8] {
        case.dense.chunks = chunks;
        let now = price(&case);
        assert!(now.overlapped_seconds < before && now.overlapped_seconds <= now.step_seconds);
        before = now.overlapped_seconds;
    }
}

/// Every float that travels is encoded once and decoded once, whoever does it.
#[test]
fn codecs_cost_what_was_measured() {
    let mut case = case();
    let rates = |format, encode_ns, decode_ns| CodecRates { format, encode_ns, decode_ns };
    case.topology.compute.codec = vec![rates(WireFormat::F16, 2.0, 1.0), rates(WireFormat::Bf16, 0.5, 0.25)];
    let price = |wire: Wire| {
        let placements =
            case.model.tables.iter().enumerate().map(|(rank, table)| Placement::whole(table, rank));
        let plan = Plan { rank_count: 4, placements: placements.collect() };
        predict(&campanile_planner::Request { wire, ..case.request() }, &plan)
    };
    let (plain, halves) =
        (price(Wire::F32), price(Wire { forward: WireFormat::F16, backward: WireFormat::Bf16 }));
    let floats = (8192 * 64) as f64;
    // A rank owns one of four tables, and a quarter of the samples has vectors of all four.
    let wanted = floats * (2.0 + 1.0 + 0.5 + 0.25) * 1e-9;
    let coded = halves.compute_seconds() - plain.compute_seconds();
    assert!((coded / wanted - 1.0).abs() < 1e-9, "{coded} {wanted}");
    assert!(halves.exchange_seconds() < plain.exchange_seconds());
    // What was not measured has no price.
    let bytes = price(Wire { forward: WireFormat::Int8, backward: WireFormat::Int8 });
    assert_eq!(bytes.compute_seconds(), plain.compute_seconds());
}

#[test]
fn a_pipeline_pays_for_its_messages() {
    let mut case = case();
    case.topology.in_host.hidden_share = 0.0;
    case.topology.cross_host.iter_mut().for_each(|link| link.hidden_share = 0.0);
    let free = price(&case);
    case.topology.in_host.message_seconds = 1e-5;
    case.topology.cross_host.iter_mut().for_each(|link| link.message_seconds = 1e-4);
    let paid = price(&case);
    assert_eq!(paid.step_seconds, free.step_seconds, "one after the other there is one message each way");
    // Seven more each way, to one rank of the own host and two of the other.
    let wanted = 14.0 * (1e-5 + 2.0 * 1e-4);
    assert!((paid.overlapped_seconds - free.overlapped_seconds - wanted).abs() < 1e-12);
    // Where links work by themselves, they do so while messages keep the processors busy.
    case.topology.cross_host.iter_mut().for_each(|link| {
        (link.hidden_share, link.bytes_per_second) = (1.0, link.bytes_per_second / 100.0);
    });
    let slow = price(&case);
    case.topology.in_host.message_seconds = 0.0;
    case.topology.cross_host.iter_mut().for_each(|link| link.message_seconds = 0.0);
    assert!((slow.overlapped_seconds - price(&case).overlapped_seconds).abs() < 1e-12);
}

#[test]
fn layers_that_are_narrow_on_one_side_are_priced_by_that_side() {
    let mut compute = topology(1, 1, 1).compute;
    let rates = |width, f32_flops_per_second, narrow_flops_per_second| ProductRates {
        width,
        f32_flops_per_second,
        bf16_flops_per_second: 2.0 * f32_flops_per_second,
        dots_flops_per_second: 1.0,
        narrow_flops_per_second,
    };
    compute.product = vec![rates(4, 1e9, 8e9), rates(16, 2e10, 3e10), rates(256, 6e10, 6e10)];
    assert_eq!(compute.layer_flops_per_second(64, 4, Precision::F32), 8e9);
    assert_eq!(compute.layer_flops_per_second(4, 1000, Precision::Bf16), 1.6e10);
    assert_eq!(compute.layer_flops_per_second(16, 16, Precision::F32), 2e10, "both sides are narrow");
    assert_eq!(compute.layer_flops_per_second(256, 256, Precision::F32), 6e10);
    compute.product.iter_mut().for_each(|product| product.narrow_flops_per_second = 0.0);
    assert_eq!(
        compute.layer_flops_per_second(64, 4, Precision::F32),
        2e10,
        "by both sides, where it is not known"
    );
}

#[test]
fn reading_counts_where_no_processor_is_left_for_it() {
    let mut case = case();
    case.topology.in_host.hidden_share = 0.0;
    case.topology.cross_host.iter_mut().for_each(|link| link.hidden_share = 0.0);
    let unread = price(&case);
    case.topology.compute.read_column_ns = 10.0;
    case.topology.compute.read_id_ns = 20.0;
    let read = price(&case);
    let samples = case.batch_size as f64 / 4.0;
    let wanted = samples * (40.0 * 10.0 + 16.0 * 20.0) * 1e-9;
    assert!((read.read_seconds / wanted - 1.0).abs() < 1e-9, "{} and {wanted}", read.read_seconds);
    assert!((read.step_seconds - unread.step_seconds - wanted).abs() < 1e-12);
    case.topology.compute.processors_per_rank = 4.0;
    assert_eq!(price(&case).read_seconds, 0.0, "there are processors for it");
}

#[test]
fn the_keeper_of_copied_rows_has_them_beside_the_copies() {
    let case = case();
    let of = |placement: Placement| {
        let cost = campanile_planner::estimate::placement_cost(&case.request(), 0, &placement);
        cost.shards.iter().map(|shard| shard.memory_bytes).sum::<u64>() + 4 * cost.everywhere.memory_bytes
    };
    let rows = 100_000 * 64 * 4;
    let copied = Placement::replicated(&case.model.tables[0], 4);
    assert!(of(copied) >= 5 * rows, "four copies and the rows that are kept up");
}
