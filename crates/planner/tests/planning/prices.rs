//! Prices follow what was measured: shared processors, links that take the processors' time, reading.

use campanile_planner::{Prediction, predict};
use campanile_spec::{Placement, Plan};

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
