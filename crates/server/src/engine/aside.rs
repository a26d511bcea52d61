//! Long work on a thread of the network, beside which the others go on.
//!
//! Reading a request of megabytes takes a thread tens of milliseconds, and whoever waits for that thread as long. So for
//! such work the thread hands all else to another one; the cores are then shared by the system, and small requests pass.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Handle, RuntimeFlavor};

use super::Engine;

/// Bytes that are read in so little time that nobody notices.
const SMALL_BYTES_MAX: usize = 64 << 10;

/// Threads that may be at such work; more would only wait for cores.
const ASIDE_MAX: usize = 8;

/// A place that is given back whatever happens.
struct Seat<'a>(&'a AtomicUsize);

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Engine {
    /// Does work on so many bytes; a thread of the network steps aside for it where it is long.
    pub fn aside<T>(&self, bytes: usize, work: impl FnOnce() -> T) -> T {
        let is_network =
            || Handle::try_current().is_ok_and(|now| now.runtime_flavor() == RuntimeFlavor::MultiThread);
        if bytes <= SMALL_BYTES_MAX || !is_network() {
            return work();
        }
        let _seat = Seat(&self.aside);
        if self.aside.fetch_add(1, Ordering::Relaxed) < ASIDE_MAX {
            tokio::task::block_in_place(work)
        } else {
            work()
        }
    }
}
