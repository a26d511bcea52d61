//! Figures that can be found with pencil and paper, and limits.

use campanile_planner::simulate::{
    Point, Setting, SettingError, Variant,
    exchange::{Circle, all_reduce, all_to_all},
    fit, load, step,
};
use campanile_spec::cluster::Cluster;

use crate::bench::{CLUSTERS, MODELS, cluster, model};

/// Round figures: 10 GB/s inside a host, 1 GB/s between, a message takes 1 ms, no congestion.
fn round() -> Cluster {
    let mut cluster = cluster("h100");
    for (link, gb) in [(&mut cluster.in_host, 10.0), (&mut cluster.cross_host, 1.0)] {
        (link.gb_per_second, link.efficiency, link.message_us) = (gb, 1.0, 1000.0);
        (link.half_message_kb, link.congestion_per_doubling) = (0.0, 0.0);
    }
    cluster.overlap.links_at_once = false;
    cluster.reduce.efficiency = 1.0;
    cluster
}

fn near(found: f64, wanted: f64) {
    assert!((found - wanted).abs() <= 1e-9 * wanted.abs(), "{found} is not {wanted}");
}

#[test]
fn an_exchange_is_its_messages_and_its_bytes() {
    let mut cluster = round();
    // 8 ranks on 2 hosts; of 8 GB half crosses and 3/8 go to the three others of the host.
    let circle = Circle { hosts: 2, per_host: 4 };
    let exchange = all_to_all(&cluster, circle, 8e9);
    near(exchange.cross_host, 4.0 + 0.004);
    near(exchange.in_host, 0.3 + 0.003);
    near(exchange.cross_host_bytes, 4e9);
    // Messages of 1 GB with a half size of 1 GB reach half of the link.
    cluster.cross_host.half_message_kb = 1e6;
    near(all_to_all(&cluster, circle, 8e9).cross_host, 8.0 + 0.004);
    // A tenth is lost at the first doubling.
    (cluster.cross_host.half_message_kb, cluster.cross_host.congestion_per_doubling) = (0.0, 0.1);
    near(all_to_all(&cluster, circle, 9e9).cross_host, 5.0 + 0.004);
    cluster.overlap.links_at_once = true;
    near(all_to_all(&cluster, circle, 9e9).in_host, 0.0);
}

#[test]
fn a_sum_over_hosts_is_sent_out_and_back() {
    let mut cluster = round();
    cluster.reduce.buckets = 1;
    let circle = Circle { hosts: 2, per_host: 4 };
    // Of 8 GB each rank carries a quarter of 7/8, twice; 2 · log2(8) messages.
    near(all_reduce(&cluster, circle, 8e9).cross_host, 2.0 * 7.0 / 4.0 + 0.006);
    cluster.reduce.in_host_first = false;
    near(all_reduce(&cluster, circle, 8e9).cross_host, 2.0 * 4.0 + 0.006);
}

#[test]
fn multiplications_are_those_of_the_published_models() {
    near(load::network(&model("dlrm_criteo"), 1.0).multiplications, 2_458_496.0);
    near(load::network(&model("dcn_criteo"), 1.0).multiplications, 16_030_464.0);
    near(model("dcn_criteo").table_weights(), 177_944_275.0 * 128.0);
    // Vectors half as long: 26 · 64 + 128 inputs of the cross net.
    let width = 1792.0;
    let bottom = 13.0 * 512.0 + 512.0 * 256.0 + 256.0 * 128.0;
    let deep = width * 1024.0 + 1024.0 * 1024.0 + 1024.0 * 512.0 + 512.0 * 256.0 + 256.0;
    near(load::network(&model("dcn_criteo"), 2.0).multiplications, bottom + 3.0 * 2.0 * 512.0 * width + deep);
    // Eight towers of 416 floats: a cross layer of rank 64, and a projection to half.
    let modules = load::modules(&model("dcn_criteo"), 8, 2.0);
    near(modules.multiplications, 8.0 * (2.0 * 64.0 * 416.0 + 416.0 * 208.0));
}

#[test]
fn one_host_has_no_traffic_between_hosts() {
    for (name, _) in CLUSTERS {
        let (cluster, workload) = (cluster(name), model("dcn_criteo"));
        let setting = Setting::new((&cluster, &workload), cluster.ranks_per_host, None, 4.0).unwrap();
        for variant in Variant::ALL {
            let step = step(&setting, variant);
            assert_eq!((step.cross_host, step.cross_host_bytes), (0.0, 0.0), "{name} {variant:?}");
        }
        assert_eq!(step(&setting, Variant::Sptt), step(&setting, Variant::Flat));
    }
}

#[test]
fn bytes_between_hosts_fall_as_the_ratio_says() {
    let (cluster, workload) = (cluster("a100"), model("dlrm_criteo"));
    let bytes = |ratio: f64, variant: Variant| {
        let setting = Setting::new((&cluster, &workload), 64, None, ratio).unwrap();
        step(&setting, variant).cross_host_bytes
    };
    for ratio in [2.0, 4.0, 8.0, 16.0] {
        near(bytes(1.0, Variant::Towers) / bytes(ratio, Variant::Towers), ratio);
    }
    // 16,384 samples of 26 · 128 halves, both ways, 7/8 of them to other hosts; by the ways of towers as many.
    near(bytes(2.0, Variant::Flat), 2.0 * 16_384.0 * 3_328.0 * 2.0 * 7.0 / 8.0);
    near(bytes(2.0, Variant::Sptt), bytes(2.0, Variant::Flat));
}

/// The table that the simulator's formulas were first tried on: SPTT, and vectors half as long, over flat, and the share of
/// exchanges in the flat step. It hides 15 % of an exchange even where there is less computing than that; we do not, and
/// leave such cells out. It has a tower on every host, of 26 features on 64 hosts too.
#[test]
fn the_first_prototype_is_met() {
    type Cell = (f64, f64, f64);
    let table: [(&str, &str, [Cell; 4]); 6] = [
        ("dlrm_criteo", "v100", [(0.94, 1.08, 29.), (1.01, 1.27, 48.), (1.08, 1.39, 54.), (1.50, 1.95, 72.)]),
        ("dlrm_criteo", "a100", [(0.89, 1.17, 56.), (1.02, 1.49, 74.), (1.13, 1.69, 79.), (1.74, 2.56, 89.)]),
        ("dlrm_criteo", "h100", [(0.86, 1.16, 65.), (1.02, 1.55, 81.), (1.17, 1.79, 85.), (1.87, 2.78, 93.)]),
        ("dcn_criteo", "v100", [(0.99, 1.02, 6.), (1.00, 1.06, 13.), (1.02, 1.09, 16.), (1.16, 1.25, 29.)]),
        ("dcn_criteo", "a100", [(0.96, 1.05, 19.), (1.01, 1.18, 35.), (1.07, 1.27, 42.), (1.41, 1.72, 61.)]),
        ("dcn_criteo", "h100", [(0.94, 1.06, 27.), (1.01, 1.25, 46.), (1.10, 1.39, 54.), (1.58, 2.02, 73.)]),
    ];
    let mut compared = 0;
    for (name, machines, cells) in table {
        let (cluster, mut workload) = (cluster(machines), model(name));
        workload.id_bytes = 1e-9; // It knows no ids.
        for (ranks, (sptt, shortened, share)) in [16, 64, 128, 512].into_iter().zip(cells) {
            let hosts = ranks / 8;
            let setting =
                Setting { cluster: &cluster, workload: &workload, hosts, towers: hosts, ratio: 2.0 };
            let point = Point::new(setting);
            let flat = point.step(Variant::Flat);
            if flat.hidden + flat.reduce_hidden >= 0.999 * flat.compute() {
                continue;
            }
            compared += 1;
            let found = 100.0 * (flat.exposed() - flat.reduce + flat.reduce_hidden) / flat.seconds();
            let cell = format!("{name} {machines} {ranks}");
            assert!((found - share).abs() < 1.0, "{cell}: exchanges take {found}, not {share}");
            for (variant, wanted) in [(Variant::Sptt, sptt), (Variant::Shortened, shortened)] {
                let found = point.speed_up(variant);
                assert!((found - wanted).abs() < 0.011, "{cell} {variant:?}: {found}, not {wanted}");
            }
        }
    }
    assert!(compared >= 18, "only {compared} cells were compared");
}

#[test]
fn twelve_trillion_weights_fit_sixteen_hosts_and_not_twelve() {
    let (cluster, workload) = (cluster("a100"), model("neo_f"));
    let mut two_tiers = cluster.clone();
    two_tiers.tier.truncate(2);
    let found = fit(&two_tiers, &workload, 16);
    // 12 T halves, and 4 bytes for each of 46.875 G rows.
    near(found.bytes, 24e12 + 46.875e9 * 4.0);
    assert_eq!(found.missing, 0.0);
    assert_eq!((found.tiers[0].name.as_str(), found.tiers[1].name.as_str()), ("HBM", "DRAM"));
    near(found.tiers[0].bytes, 128.0 * 32e9);
    near(found.tiers[1].bytes, found.bytes - 128.0 * 32e9);
    assert!(found.tiers[0].id_share > 0.5 && found.tiers[0].id_share < 1.0);
    near(found.tiers.iter().map(|tier| tier.id_share).sum(), 1.0);
    let fewer = fit(&two_tiers, &workload, 12);
    assert!(fewer.missing > 0.0 && fewer.hosts_needed > 12 && fewer.hosts_needed <= 16);
    // The third tier takes what is left.
    assert_eq!(fit(&cluster, &workload, 12).missing, 0.0);
}

#[test]
fn what_cannot_be_is_told() {
    let (cluster, workload) = (cluster("h100"), model("dcn_criteo"));
    let refused = |ranks, towers, ratio| {
        Setting::new((&cluster, &workload), ranks, towers, ratio).map(|_| ()).unwrap_err()
    };
    assert_eq!(refused(60, None, 2.0), SettingError::Ranks { ranks: 60, per_host: 8 });
    assert_eq!(refused(64, Some(3), 2.0), SettingError::Towers { towers: 3, hosts: 8, per_host: 8 });
    assert_eq!(refused(256, Some(32), 2.0), SettingError::Features { towers: 32, features: 26 });
    assert_eq!(refused(64, None, 129.0), SettingError::Ratio { ratio: 129.0, dim: 128 });
    // More towers than hosts sit several in one; fewer take several hosts each.
    for towers in [1, 2, 4, 8, 16] {
        assert!(Setting::new((&cluster, &workload), 64, Some(towers), 2.0).is_ok(), "{towers}");
    }
}

#[test]
fn every_example_can_be_simulated_from_16_to_4096() {
    for (machines, _) in CLUSTERS {
        for (name, _) in MODELS {
            let (cluster, workload) = (cluster(machines), model(name));
            for ranks in (4..=12).map(|power| 1 << power) {
                let point = Point::new(Setting::new((&cluster, &workload), ranks, None, 2.0).unwrap());
                for variant in Variant::ALL {
                    let step = point.step(variant);
                    assert!(step.seconds().is_finite() && step.seconds() > 0.0, "{machines} {name} {ranks}");
                    assert!(step.exposed() >= -1e-12, "{machines} {name} {ranks} {variant:?}");
                }
            }
        }
    }
}
