//! The text that a user reads. A change of it is seen here; run with UPDATE_EXPECT=1 to take it.

use campanile_planner::{Splits, explain, plan};
use expect_test::expect_file;

use crate::bench::{Case, table, topology};

fn shop() -> Vec<(campanile_spec::TableSpec, f64)> {
    vec![
        (table("user", 40_000_000, 64), 1.0),
        (table("item", 8_000_000, 64), 1.0),
        (table("history", 8_000_000, 128), 40.0),
        (table("query", 2_000_000, 32), 6.0),
        (table("category", 3_000, 32), 2.0),
        (table("country", 200, 16), 1.0),
        (table("hour", 24, 16), 1.0),
    ]
}

#[test]
fn a_plan_for_two_hosts() {
    let case = Case::new(shop(), topology(2, 4, 4096));
    let planned = plan(&case.request()).unwrap();
    expect_file!["../golden/two_hosts.txt"].assert_eq(&explain(&case.request(), &planned));
    expect_file!["../golden/two_hosts.toml"].assert_eq(&planned.plan.to_toml(&case.model));
}

#[test]
fn a_plan_for_one_rank() {
    let case = Case::new(shop(), topology(1, 1, 32 << 10));
    let planned = plan(&case.request()).unwrap();
    expect_file!["../golden/one_rank.txt"].assert_eq(&explain(&case.request(), &planned));
}

#[test]
fn tables_that_may_not_be_split() {
    let mut case = Case::new(shop(), topology(1, 4, 16 << 10));
    case.splits = Splits::Never;
    let planned = plan(&case.request()).unwrap();
    expect_file!["../golden/not_split.txt"].assert_eq(&explain(&case.request(), &planned));
}

#[test]
fn tables_that_do_not_fit() {
    let case = Case::new(shop(), topology(1, 2, 4096));
    let problem = plan(&case.request()).unwrap_err();
    expect_file!["../golden/does_not_fit.txt"].assert_eq(&format!("{problem}\n"));
}

#[test]
fn a_table_that_may_not_be_split_and_does_not_fit() {
    let mut case = Case::new(shop(), topology(1, 8, 4096));
    case.splits = Splits::Never;
    let problem = plan(&case.request()).unwrap_err();
    expect_file!["../golden/one_table_does_not_fit.txt"].assert_eq(&format!("{problem}\n"));
}
