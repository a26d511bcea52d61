//! What holds for every request: plans are whole and within memory, predictions agree with choices, nothing varies.

use campanile_planner::{Splits, explain, plan, predict};
use campanile_spec::Plan;
use proptest::prelude::*;

use crate::bench::{Case, table, topology};

fn cases() -> impl Strategy<Value = Case> {
    let tables = prop::collection::vec((1u64..2_000_000, 1usize..200, 0.0f64..30.0), 1..16);
    (tables, 1usize..4, 1usize..5, 20u64..600, any::<bool>(), 1usize..4096).prop_map(
        |(tables, hosts, ranks, memory, may_split, batch_size)| {
            let tables = tables.into_iter().enumerate();
            let named = tables.map(|(n, (rows, dim, ids))| (table(&format!("t{n}"), rows, dim), ids));
            let mut case = Case::new(named.collect(), topology(hosts, ranks, memory));
            case.splits = if may_split { Splits::Allowed } else { Splits::Never };
            case.batch_size = batch_size;
            case
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn plans_cover_every_table_within_memory_and_do_not_vary(case in cases()) {
        let request = case.request();
        match plan(&request) {
            Ok(planned) => {
                planned.plan.check(&case.model).unwrap();
                let limit = case.topology.memory_bytes_per_rank();
                for rank in 0..case.topology.rank_count() {
                    prop_assert!(planned.prediction.memory_of(rank) <= limit, "rank {} of {:?}", rank, planned.plan);
                }
                prop_assert_eq!(&planned.prediction, &predict(&request, &planned.plan));
                let bound = planned.bound.time() as f64 * 1e-12;
                prop_assert!(planned.prediction.load_max() >= bound * 0.999, "faster than the bound");
                let again = plan(&request).unwrap();
                prop_assert_eq!(explain(&request, &planned), explain(&request, &again));
                let text = planned.plan.to_toml(&case.model);
                prop_assert_eq!(Plan::parse(&text, &case.model, planned.plan.rank_count).unwrap(), planned.plan);
            }
            Err(problem) => {
                prop_assert!(problem.ways.len() >= 3, "{}", problem);
                prop_assert!(case.model.tables.iter().any(|table| table.name == problem.table));
            }
        }
    }
}

#[test]
fn more_memory_or_ranks_never_make_a_fitting_plan_fail() {
    let tables =
        || (0..12).map(|n| (table(&format!("t{n}"), 100_000 * (n + 1), 64), 3.0)).collect::<Vec<_>>();
    let fits = |ranks, mib| plan(&Case::new(tables(), topology(1, ranks, mib)).request()).is_ok();
    assert!(!fits(2, 200));
    assert!(fits(2, 1200) && fits(2, 4000) && fits(4, 1200) && fits(8, 400));
}
