//! Time as this process has lived through it.
//!
//! Who waits for a sign of life can be stopped itself: by a machine that is paused or asleep, or by Ctrl-Z. When it goes on, much
//! time has passed in which nobody could have been heard, and that says nothing about the others. So time that
//! passes between two looks counts only up to a limit.

use std::time::{Duration, Instant};

/// The most that counts between two looks; they are far less apart.
const GAP_MOST: Duration = Duration::from_secs(3);

/// A clock that has to be looked at often.
#[derive(Debug)]
pub struct AwakeClock {
    looked: Instant,
    awake: Duration,
}

impl AwakeClock {
    /// Stands at zero.
    pub fn start() -> AwakeClock {
        AwakeClock { looked: Instant::now(), awake: Duration::ZERO }
    }

    /// The time since the start, less that in which this process did not run.
    pub fn look(&mut self) -> Duration {
        self.look_at(Instant::now())
    }

    fn look_at(&mut self, now: Instant) -> Duration {
        self.awake += now.saturating_duration_since(self.looked).min(GAP_MOST);
        self.looked = self.looked.max(now);
        self.awake
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_sleep_counts_as_a_short_one() {
        let mut clock = AwakeClock::start();
        let start = clock.looked;
        let second = Duration::from_secs(1);
        assert_eq!(clock.look_at(start + second), second);
        assert_eq!(clock.look_at(start + 1000 * second), second + GAP_MOST);
        assert_eq!(clock.look_at(start + 1001 * second), 2 * second + GAP_MOST);
        assert_eq!(clock.look_at(start), 2 * second + GAP_MOST, "time does not go back");
    }
}
