//! A thread of the network stays awake for a moment after each answer.
//!
//! Waking a thread that sleeps on its sockets takes tens of microseconds, and it finds its caches cold. Clients that rank
//! page after page ask again at once; for them a thread looks at the sockets without sleeping for a short while. The
//! price is a part of a core: at most the time given, per answer.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use crate::clock;

/// Who keeps the network awake, and until when.
#[derive(Debug)]
pub struct Awake {
    time: Duration,
    since: Instant,
    /// Microseconds from `since` to the end of the last time.
    until_us: AtomicU64,
    stirred: Notify,
}

impl Awake {
    /// Awake for so long after each answer; zero means that the network sleeps at once.
    pub fn new(time: Duration) -> Awake {
        Awake { time, since: clock::now(), until_us: AtomicU64::new(0), stirred: Notify::new() }
    }

    /// An answer was given.
    pub fn stir(&self) {
        if self.time.is_zero() {
            return;
        }
        let until = clock::us_between(self.since, clock::now() + self.time);
        self.until_us.fetch_max(until, Ordering::Relaxed);
        self.stirred.notify_one();
    }

    /// Keeps one thread of the runtime from sleeping, whenever somebody stirs; for as long as the server runs.
    pub async fn watch(&self) {
        loop {
            self.stirred.notified().await;
            while clock::us_between(self.since, clock::now()) < self.until_us.load(Ordering::Relaxed) {
                // Yielding lets the runtime look at its sockets, without waiting for them.
                tokio::task::yield_now().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_is_stirred_looks_around_until_the_time_is_over() {
        let awake = std::sync::Arc::new(Awake::new(Duration::from_millis(20)));
        let watched = tokio::spawn({
            let awake = std::sync::Arc::clone(&awake);
            async move { awake.watch().await }
        });
        awake.stir();
        let start = clock::now();
        // This task gets its turns while the other one is awake.
        while clock::us_between(start, clock::now()) < 5_000 {
            tokio::task::yield_now().await;
        }
        assert!(awake.until_us.load(Ordering::Relaxed) >= 20_000);
        watched.abort();
    }

    #[test]
    fn without_a_time_nobody_is_stirred() {
        let awake = Awake::new(Duration::ZERO);
        awake.stir();
        assert_eq!(awake.until_us.load(Ordering::Relaxed), 0);
    }
}
