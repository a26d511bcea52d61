//! Open files: every connection takes one, and the system counts them.
//!
//! Where none is left, nothing can be accepted, and so nobody can be sent away for somebody else: the limit on
//! connections must be reached before the system's.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files that are kept for snapshots, logs and libraries.
const KEPT: u64 = 128;

/// Takes as many files as the system lets this process have, and says how many those are.
pub fn raise() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    // Where it is refused, what there is must do.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// How many connections each of some addresses may have, of those that were asked for.
pub fn connections_max(asked: u32, addresses: u32, files: u64) -> u32 {
    let each = files.saturating_sub(KEPT) / u64::from(addresses.max(1));
    asked.min(u32::try_from(each).unwrap_or(u32::MAX)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_everything_else() {
        assert_eq!(connections_max(1024, 2, 1024), 448);
        assert_eq!(connections_max(1024, 2, 1 << 20), 1024);
        assert_eq!(connections_max(1024, 2, u64::MAX), 1024);
        assert_eq!(connections_max(1024, 2, 100), 1);
    }

    #[test]
    fn this_process_may_have_all_that_it_is_allowed() {
        let files = raise();
        assert_eq!(getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX), files);
    }
}
