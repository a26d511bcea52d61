//! Ranks as threads keep the communicator's contract.

#[path = "contract/suite.rs"]
mod suite;

use campanile_comm::threads;

#[test]
fn threads_keep_the_contract() {
    for (name, program) in suite::PROGRAMS {
        for ranks in [1, 2, 3, 8] {
            let outcome = threads::run(ranks, |comm| program(comm));
            assert!(outcome.is_ok(), "{name} on {ranks} ranks: {outcome:?}");
        }
    }
}
