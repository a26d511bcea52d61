//! The ways of towers, priced: the bytes that must cross hosts, plans that stay in their groups, and the text.

use campanile_planner::{
    Request, by_towers::seated, compare::compare, explain_prices, plan, plan_by_towers, predict, predict_ways,
};
use campanile_spec::{Bytes, Placement, TowerModule, TowerSpec, TowerVariant, Towers};
use expect_test::expect_file;

use crate::bench::{Case, table, topology};

/// Eight features of 64 floats in `count` towers that hand on `width` floats each, or the vectors as they are.
fn case(count: usize, width: Option<usize>, hosts: usize, per_host: usize) -> Case {
    let tables = (0..8).map(|number| (table(&format!("t{number}"), 100_000, 64), 1.0)).collect();
    let mut case = Case::new(tables, topology(hosts, per_host, 1 << 20));
    let module = match width {
        Some(width) => TowerModule::Ensemble { per_feature: 1, mixed: 0, width },
        None => TowerModule::Identity,
    };
    let tower = |number: usize| TowerSpec {
        name: format!("tower{number}"),
        features: (number * 8 / count..(number + 1) * 8 / count).collect(),
        module,
    };
    let variant = if width.is_some() { TowerVariant::Towers } else { TowerVariant::Sptt };
    case.model.towers = Towers { variant, module_rate: 1.0, list: (0..count).map(tower).collect() };
    case
}

fn across(request: &Request<'_>) -> f64 {
    plan_by_towers(request).unwrap().prediction.ranks.iter().map(|rank| rank.cross_host_bytes).sum()
}

#[test]
fn what_crosses_hosts_is_what_towers_hand_on() {
    // 8,192 samples of 8 features: an id and a length each, and 64 floats there and back; of all that half crosses.
    let [ids, vectors] = [8192.0 * 8.0 * 8.0 / 2.0, 8192.0 * 8.0 * 64.0 * 4.0 * 2.0 / 2.0];
    assert_eq!(across(&case(2, None, 2, 4).request()), ids + vectors);
    for ratio in [1, 2, 4, 8, 16] {
        let case = case(2, Some(64 / ratio), 2, 4);
        assert_eq!(across(&case.request()), ids + vectors / ratio as f64, "ratio {ratio}");
    }
    // Two towers in each host: their peers are next door and elsewhere.
    assert_eq!(across(&case(4, None, 2, 4).request()), ids + vectors);
    assert_eq!(across(&case(2, None, 1, 4).request()), 0.0);
}

#[test]
fn a_plan_by_towers_stays_in_its_groups_and_is_priced_as_it_was_made() {
    for (count, hosts, per_host) in [(2, 2, 4), (4, 4, 2), (4, 2, 4), (2, 4, 2), (8, 8, 1)] {
        let case = case(count, Some(16), hosts, per_host);
        let request = case.request();
        let by = plan_by_towers(&request).unwrap();
        assert!(seated(&request).unwrap().fits(&case.model, &by.plan), "{count} {hosts}x{per_host}");
        assert_eq!(predict_ways(&request, &by.plan), by.prediction);
        assert!(by.prediction.overlapped_seconds <= by.prediction.step_seconds);
    }
    // A plan that leaves the groups takes the flat exchange, with all modules on every rank.
    let case = case(2, Some(16), 2, 4);
    let request = case.request();
    let mut flat = plan(&request).unwrap().plan;
    for (place, rank) in [(0, 7), (7, 0)] {
        flat.placements[place] = Placement::whole(&case.model.tables[place], rank);
    }
    let found = predict_ways(&request, &flat);
    assert_eq!(found, predict(&request, &flat));
    let mut without = case.model.clone();
    without.towers.variant = TowerVariant::Flat;
    let plain = predict(&Request { model: &without, ..request.clone() }, &flat);
    assert!(found.network_seconds > plain.network_seconds);
}

#[test]
fn towers_that_cannot_be_seated_say_why() {
    let mut case = case(2, None, 2, 4);
    case.model.features[7].table = campanile_spec::TableId(0);
    let problem = plan_by_towers(&case.request()).unwrap_err().to_string();
    assert!(problem.contains("table `t0` is shared by features of towers that live apart"), "{problem}");
    case.model.towers.variant = TowerVariant::Flat;
    assert!(plan_by_towers(&case.request()).is_err());
}

#[test]
fn faster_links_make_no_step_slower_and_memory_is_told() {
    let slow = case(2, Some(16), 2, 4);
    let mut fast = case(2, Some(16), 2, 4);
    fast.topology.cross_host.as_mut().unwrap().bytes_per_second *= 10.0;
    let [slow, fast] =
        [slow, fast].map(|case| plan_by_towers(&case.request()).unwrap().prediction.step_seconds);
    assert!(fast < slow, "{fast} {slow}");
    let mut small = case(2, None, 2, 4);
    small.topology.memory_mib_per_rank = 24;
    let problem = plan_by_towers(&small.request()).unwrap_err().to_string();
    assert!(problem.contains("the tables of group 0 do not fit its ranks"), "{problem}");
    assert!(problem.contains(&Bytes(24 << 20).to_string()) || problem.contains("missing"), "{problem}");
}

#[test]
fn the_variants_side_by_side() {
    let towers = case(2, Some(16), 2, 4);
    let sptt = case(2, None, 2, 4);
    let flat = plan(&sptt.request()).unwrap().prediction;
    let [by_sptt, by_towers] = [&sptt, &towers].map(|case| plan_by_towers(&case.request()).unwrap());
    let mut text = explain_prices(&towers.request(), &by_towers.plan, &by_towers.prediction);
    text.push('\n');
    text += &compare(&[
        ("flat", Ok(&flat)),
        ("sptt", Ok(&by_sptt.prediction)),
        ("towers", Ok(&by_towers.prediction)),
        ("others", Err("there are none")),
    ]);
    expect_file!["../golden/by_towers.txt"].assert_eq(&text);
}

#[test]
fn a_chunk_is_one_message_to_every_peer_and_one_to_every_member() {
    let mut case = case(4, Some(16), 4, 2);
    case.topology.in_host.hidden_share = 0.0;
    case.topology.cross_host.iter_mut().for_each(|link| link.hidden_share = 0.0);
    let free = plan_by_towers(&case.request()).unwrap();
    case.topology.in_host.message_seconds = 1e-5;
    case.topology.cross_host.iter_mut().for_each(|link| link.message_seconds = 1e-4);
    let paid = predict_ways(&case.request(), &free.plan);
    // Of eight chunks seven come on top, there and back; a rank has one other member and three peers elsewhere.
    let wanted = 14.0 * (1e-5 + 3.0 * 1e-4);
    let more = paid.overlapped_seconds - free.prediction.overlapped_seconds;
    assert!((more - wanted).abs() < 1e-12, "{more} and {wanted}");
}
