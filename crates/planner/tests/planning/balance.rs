//! Loads are even once tables may be split, and where they may not, the largest table is the bound.

use campanile_planner::{Splits, explain, plan};

use crate::bench::{Case, Random, table, topology};

/// Log-normal costs: ids per sample and rows vary by orders of magnitude, dims by a factor of eight.
fn many_tables(count: usize, seed: u64) -> Vec<(campanile_spec::TableSpec, f64)> {
    let mut random = Random(seed);
    (0..count)
        .map(|number| {
            let dim = [16, 32, 64, 128][(random.unit() * 4.0) as usize];
            let rows = (100_000.0 * random.log_normal(1.0)) as u64 + 1;
            (table(&format!("t{number:04}"), rows, dim), 10.0 * random.log_normal(1.0))
        })
        .collect()
}

#[test]
fn a_thousand_log_normal_tables_on_128_ranks_are_even() {
    for seed in [1, 2, 3] {
        let case = Case::new(many_tables(1000, seed), topology(16, 8, 16 << 10));
        let planned = plan(&case.request()).unwrap();
        let balance = planned.prediction.load_max() / planned.prediction.load_mean();
        assert!(balance <= 1.05, "seed {seed}: {balance}");
        planned.plan.check(&case.model).unwrap();
    }
}

#[test]
fn what_may_not_be_split_bounds_the_plan_and_the_text_proves_it() {
    let mut case = Case::new(many_tables(100, 4), topology(4, 8, 16 << 10));
    case.splits = Splits::Never;
    let planned = plan(&case.request()).unwrap();
    let (bound, found) = (planned.bound.time(), planned.prediction.load_max());
    let (largest, time) = planned.bound.largest.unwrap();
    assert_eq!(bound, time, "one table must dominate for this test to mean something");
    assert!(found <= bound as f64 * 1e-12 * 1.0001, "{found} above the bound of {bound}");
    let text = explain(&case.request(), &planned);
    let name = &case.model.tables[largest].name;
    assert!(
        text.contains(&format!("table `{name}` takes that long on one rank, as it may not be split")),
        "{text}"
    );
    assert!(text.contains("it is the best there is"), "{text}");

    case.splits = Splits::Allowed;
    let split = plan(&case.request()).unwrap();
    assert!(split.prediction.load_max() < 0.8 * found, "splitting must help");
}
