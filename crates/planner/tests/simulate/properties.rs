//! What must hold on any cluster.

use campanile_planner::simulate::{Setting, Variant, step};
use campanile_spec::cluster::Cluster;
use proptest::prelude::*;

use crate::bench::{CLUSTERS, MODELS, cluster, model};

/// Makes one thing of a cluster better.
fn improve(cluster: &mut Cluster, what: usize, by: f64) {
    match what {
        0 => cluster.cross_host.gb_per_second *= by,
        1 => cluster.in_host.gb_per_second *= by,
        2 => cluster.rank.teraflops *= by,
        3 => cluster.tier.iter_mut().for_each(|tier| tier.gb_per_second *= by),
        4 => cluster.cross_host.message_us /= by,
        5 => cluster.cross_host.congestion_per_doubling /= by,
        _ => cluster.cross_host.half_message_kb /= by,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn nothing_that_gets_faster_makes_a_step_slower(
        machines in 0..CLUSTERS.len(),
        name in 0..MODELS.len(),
        hosts in 0u32..8,
        ratio in 0u32..4,
        what in 0usize..7,
        by in 1.0f64..20.0,
    ) {
        let (cluster, workload) = (cluster(CLUSTERS[machines].0), model(MODELS[name].0));
        let mut better = cluster.clone();
        improve(&mut better, what, by);
        let ranks = cluster.ranks_per_host << hosts;
        let ratio = f64::from(1 << ratio);
        let before = Setting::new((&cluster, &workload), ranks, None, ratio).unwrap();
        let after = Setting { cluster: &better, ..before };
        for variant in Variant::ALL {
            let (before, after) = (step(&before, variant).seconds(), step(&after, variant).seconds());
            prop_assert!(after <= before * (1.0 + 1e-12), "{variant:?}: {before} became {after}");
        }
    }

    #[test]
    fn shorter_vectors_never_take_longer(
        machines in 0..CLUSTERS.len(),
        name in 0..MODELS.len(),
        hosts in 0u32..8,
        ratio in 1.0f64..32.0,
        more in 1.0f64..2.0,
    ) {
        let (cluster, workload) = (cluster(CLUSTERS[machines].0), model(MODELS[name].0));
        let ranks = cluster.ranks_per_host << hosts;
        let before = Setting::new((&cluster, &workload), ranks, None, ratio).unwrap();
        let after = Setting { ratio: ratio * more, ..before };
        let [before, after] = [before, after].map(|setting| step(&setting, Variant::Shortened));
        prop_assert!(after.seconds() <= before.seconds() * (1.0 + 1e-12));
        prop_assert!(after.cross_host_bytes <= before.cross_host_bytes);
    }
}
