//! How long the thread that talks to MPI pauses between two looks for messages.
//!
//! The library moves data only while it is called, so whoever waits for a message must keep asking. A thread with a core of
//! its own asks without a pause. Where ranks share cores, that takes time from the very rank whose message is waited
//! for, and giving way (`sched_yield`) makes it worse: the other thread then runs for a whole slice of the scheduler, some
//! milliseconds, however early the message comes. A thread that naps has its core back when it wakes. So a give-way
//! that took long says that somebody else wants the core, and from then on this thread naps, for a part of what
//! it has waited so far: the wait grows by no more than that part, and asking costs little of it.

use std::time::Duration;

/// How long the library is asked without a pause, where the core is ours.
const EAGER_SECONDS: f64 = 4e-3;

/// A give-way that took longer than this let somebody else run; by itself it takes less than a microsecond.
const OTHERS_RAN_SECONDS: f64 = 30e-6;

/// How long a core counts as shared after that. Trying again costs a slice of the scheduler.
const SHARED_SECONDS: f64 = 1.0;

/// The part of a wait that a nap adds to it at most.
const NAP_PART: f64 = 0.25;

/// Shorter naps cost more in switching threads than they save; longer ones would let messages of others lie.
const NAP_LEAST: Duration = Duration::from_micros(20);
const NAP_MOST: Duration = Duration::from_micros(200);

/// What to do before the next look.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pause {
    /// Give way to whoever else wants the core, and say how long that took ([`Waiting::gave_way`]).
    GiveWay,
    /// Sleep.
    Nap(Duration),
}

/// One thread's waiting; times are in seconds since some moment.
#[derive(Debug, Default)]
pub struct Waiting {
    /// Since when nothing has come.
    since: Option<f64>,
    /// Until when the core counts as shared.
    shared_until: f64,
}

impl Waiting {
    /// Something has come, or nobody waits any more.
    pub fn is_over(&mut self) {
        self.since = None;
    }

    /// What to do after a look that found nothing.
    pub fn pause(&mut self, now: f64) -> Pause {
        let waited = now - *self.since.get_or_insert(now);
        if now >= self.shared_until && waited < EAGER_SECONDS {
            return Pause::GiveWay;
        }
        let nap = Duration::from_secs_f64((NAP_PART * waited).max(0.0));
        Pause::Nap(nap.clamp(NAP_LEAST, NAP_MOST))
    }

    /// The core was given away at `start` and is back at `now`.
    pub fn gave_way(&mut self, start: f64, now: f64) {
        if now - start > OTHERS_RAN_SECONDS {
            self.shared_until = now + SHARED_SECONDS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_with_a_core_of_its_own_asks_without_a_pause_and_naps_at_last() {
        let mut waiting = Waiting::default();
        for now in [10.0, 10.000_001, 10.003_9] {
            assert_eq!(waiting.pause(now), Pause::GiveWay);
            waiting.gave_way(now, now + 1e-6);
        }
        assert_eq!(waiting.pause(10.01), Pause::Nap(NAP_MOST));
        waiting.is_over();
        assert_eq!(waiting.pause(10.02), Pause::GiveWay);
    }

    #[test]
    fn on_a_shared_core_naps_grow_with_the_wait_until_sharing_is_forgotten() {
        let mut waiting = Waiting::default();
        assert_eq!(waiting.pause(1.0), Pause::GiveWay);
        waiting.gave_way(1.0, 1.001);
        assert_eq!(
            waiting.pause(1.001),
            Pause::Nap(NAP_MOST),
            "the wait began before the core was given away"
        );
        waiting.is_over();
        assert_eq!(waiting.pause(1.2), Pause::Nap(NAP_LEAST));
        assert!(matches!(waiting.pause(1.2004), Pause::Nap(nap) if nap > NAP_LEAST && nap < NAP_MOST));
        waiting.is_over();
        assert_eq!(waiting.pause(1.001 + SHARED_SECONDS), Pause::GiveWay);
    }
}
