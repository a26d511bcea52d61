//! Memory that requests under way may take, over all connections and streams.
//!
//! ```text
//!   Budget ─┬─ Share of a connection ─┬─ Lease of a request: its headers, its body, what it expands to, its answer
//!           │                         └─ Lease
//!           └─ Share ─── Lease
//! ```
//!
//! A connection may have no more than what is left for all others. So one client alone may send what is large, and a crowd
//! that sends as much as it can leaves room for whoever comes with something small: with `n` greedy connections the budget
//! divided by `n + 1`, of which a newcomer may have half.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// The whole.
#[derive(Debug)]
pub struct Budget {
    bytes_max: u64,
    taken: AtomicU64,
}

/// What the requests of one connection have taken.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    taken: AtomicU64,
}

/// What one request has taken; given back with it.
#[derive(Debug)]
pub struct Lease {
    share: Arc<Share>,
    taken: AtomicU64,
}

/// There is no room for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spent;

impl Budget {
    /// So many bytes, of which nothing is taken.
    pub fn new(bytes_max: u64) -> Arc<Budget> {
        Arc::new(Budget { bytes_max, taken: AtomicU64::new(0) })
    }

    /// Bytes that requests have now.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// A share for a connection.
    pub fn share(self: &Arc<Budget>) -> Arc<Share> {
        Arc::new(Share { budget: Arc::clone(self), taken: AtomicU64::new(0) })
    }
}

impl Share {
    /// A lease for a request.
    pub fn lease(self: &Arc<Share>) -> Arc<Lease> {
        Arc::new(Lease { share: Arc::clone(self), taken: AtomicU64::new(0) })
    }
}

impl Lease {
    /// Takes more.
    ///
    /// # Errors
    /// When the connection would have more than what is left for others; then nothing is taken.
    pub fn grow(&self, bytes: u64) -> Result<(), Spent> {
        let (budget, share) = (&*self.share.budget, &*self.share);
        let own = share.taken.load(Ordering::Relaxed).saturating_add(bytes);
        let fits = |taken: u64| {
            let after = taken.checked_add(bytes)?;
            (own <= budget.bytes_max.checked_sub(after)?).then_some(after)
        };
        budget.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map_err(|_| Spent)?;
        share.taken.fetch_add(bytes, Ordering::Relaxed);
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Gives some of it back.
    pub fn shrink(&self, bytes: u64) {
        let bytes = bytes.min(self.taken.load(Ordering::Relaxed));
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
        self.share.taken.fetch_sub(bytes, Ordering::Relaxed);
        self.share.budget.taken.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shrink(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_alone_may_have_half_and_a_crowd_leaves_room_for_the_small() {
        let budget = Budget::new(1000);
        let alone = budget.share();
        let large = alone.lease();
        assert_eq!((large.grow(501), large.grow(500)), (Err(Spent), Ok(())));
        // Another request of the same connection gets nothing more; one of another connection a half of the rest.
        assert_eq!(alone.lease().grow(1), Err(Spent));
        let other = budget.share().lease();
        assert_eq!((other.grow(251), other.grow(250)), (Err(Spent), Ok(())));
        drop((large, other));
        assert_eq!(budget.taken(), 0);
        let greedy: Vec<_> = (0..99).map(|_| budget.share().lease()).collect();
        for _ in 0..1000 {
            for lease in &greedy {
                let _ = lease.grow(1);
            }
        }
        assert_eq!(budget.taken(), 990);
        assert_eq!((budget.share().lease().grow(6), budget.share().lease().grow(5)), (Err(Spent), Ok(())));
        greedy[0].shrink(2);
        assert_eq!(budget.share().lease().grow(6), Ok(()));
    }
}
