//! The text that a user reads. A change of it is seen here; run with UPDATE_EXPECT=1 to take it.

use campanile_planner::simulate::{Point, Setting, csv, points, sweep::Asked, text};
use expect_test::expect_file;

use crate::bench::{cluster, model};

#[test]
fn dcn_on_64_gpus() {
    let (cluster, workload) = (cluster("h100"), model("dcn_criteo"));
    let point = Point::new(Setting::new((&cluster, &workload), 64, None, 2.0).unwrap());
    expect_file!["../golden/simulate_dcn_64_h100.txt"].assert_eq(&text::table(&point));
}

#[test]
fn twelve_trillion_weights() {
    let (cluster, workload) = (cluster("a100"), model("neo_f"));
    let point = Point::new(Setting::new((&cluster, &workload), 128, None, 2.0).unwrap());
    expect_file!["../golden/simulate_neo_f.txt"].assert_eq(&text::table(&point));
}

#[test]
fn tables_that_do_not_fit() {
    let (mut cluster, workload) = (cluster("a100"), model("neo_f"));
    cluster.tier.truncate(2);
    let point = Point::new(Setting::new((&cluster, &workload), 64, None, 2.0).unwrap());
    expect_file!["../golden/simulate_does_not_fit.txt"].assert_eq(&text::table(&point));
}

#[test]
fn a_sweep() {
    let (cluster, workload) = (cluster("cpu_10gbe"), model("dlrm_criteo"));
    let asked = Asked { ranks: vec![16, 64, 256, 4096], towers: vec![], ratios: vec![4.0] };
    let points = points(&cluster, &workload, &asked).unwrap();
    expect_file!["../golden/simulate_sweep.txt"].assert_eq(&text::lines(&points));
    let csv = csv(&points);
    assert_eq!(csv.lines().count(), 1 + 4 * 4);
    let columns = |line: &str| line.split(',').count();
    assert!(csv.lines().all(|line| columns(line) == columns(csv.lines().next().unwrap_or_default())));
}
