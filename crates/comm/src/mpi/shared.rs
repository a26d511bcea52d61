//! What the ranks' own threads and the thread that talks to MPI share: orders one way, answers the other.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{Buffer, CommError};

/// Orders for the thread that talks to MPI. Not more can wait than the callers have exchanges under way.
pub enum Order {
    /// A new group: its tag and its members, as ranks of the world.
    Form(u16, Vec<usize>),
    /// A group that is not used any more.
    Dissolve(u16),
    /// An exchange.
    Start(Start),
    /// The end: without a word, or with the reason why this rank gives up.
    Leave(Option<Failure>),
}

/// An exchange to start.
pub struct Start {
    /// The group.
    pub tag: u16,
    /// What this rank sends.
    pub outgoing: Outgoing,
    /// From whom it waits for an answer, itself aside.
    pub expects: Expects,
    /// What it sends to itself, if that is not among the outgoing parts.
    pub own: Buffer,
    /// Where the answer goes.
    pub answer: Arc<Answer>,
}

/// Parts to send, by place in the group.
pub enum Outgoing {
    /// One for each.
    Each(Vec<Buffer>),
    /// The same for all others.
    Same(Buffer),
    /// Only to one.
    Only(usize, Buffer),
    /// Nothing.
    Nothing,
}

/// From whom parts will come.
#[derive(Clone, Copy)]
pub enum Expects {
    /// From all others.
    All,
    /// From one.
    Only(usize),
    /// From nobody.
    Nobody,
}

/// Who failed, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The rank, in the world.
    pub rank: usize,
    /// Its reason.
    pub message: String,
}

/// Both sides' view.
#[derive(Default)]
pub struct Shared {
    orders: Mutex<VecDeque<Order>>,
    kick: Condvar,
    order_count: AtomicUsize,
    waiters: AtomicUsize,
    exchanges: AtomicU64,
    failure: Mutex<Option<Failure>>,
}

impl Shared {
    /// Hands over an order, and wakes the other side.
    pub fn order(&self, order: Order) {
        lock(&self.orders).push_back(order);
        self.order_count.fetch_add(1, Ordering::Release);
        self.kick.notify_one();
    }

    /// The next order, if there is one.
    pub fn next_order(&self) -> Option<Order> {
        if self.order_count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let order = lock(&self.orders).pop_front();
        self.order_count.fetch_sub(usize::from(order.is_some()), Ordering::AcqRel);
        order
    }

    /// Sleeps until there is an order or somebody starts to wait, at most for `time` where one is given.
    pub fn sleep(&self, time: Option<Duration>) {
        let orders = lock(&self.orders);
        let nothing = |orders: &mut VecDeque<Order>| orders.is_empty() && !self.is_waited_for();
        match time {
            None => drop(self.kick.wait_while(orders, nothing)),
            Some(time) => drop(self.kick.wait_timeout_while(orders, time, nothing)),
        }
    }

    /// Sleeps for `time`, or until there is an order.
    pub fn nap(&self, time: Duration) {
        drop(self.kick.wait_timeout_while(lock(&self.orders), time, |orders| orders.is_empty()));
    }

    /// Whether a rank's thread waits for an answer.
    pub fn is_waited_for(&self) -> bool {
        self.waiters.load(Ordering::Acquire) > 0
    }

    /// Exchanges completed.
    pub fn exchanges(&self) -> u64 {
        self.exchanges.load(Ordering::Relaxed)
    }

    /// An exchange in a group of one rank: its own parts, unless somebody has failed. Nobody has to be woken for it.
    pub fn alone(&self, parts: Vec<Buffer>) -> Result<Vec<Buffer>, CommError> {
        self.exchanges.fetch_add(1, Ordering::Relaxed);
        match self.failure() {
            Some(Failure { rank, message }) => Err(CommError::RankFailed { rank, message }),
            None => Ok(parts),
        }
    }

    /// Notes the first failure that this rank heard of; later ones are its echo.
    pub fn fail(&self, failure: Failure) {
        lock(&self.failure).get_or_insert(failure);
    }

    /// The first failure that this rank heard of.
    pub fn failure(&self) -> Option<Failure> {
        lock(&self.failure).clone()
    }
}

/// Where one exchange's parts appear.
#[derive(Default)]
pub struct Answer {
    parts: Mutex<Option<Result<Vec<Buffer>, CommError>>>,
    ready: Condvar,
}

impl Answer {
    /// The exchange has ended.
    pub fn give(&self, shared: &Shared, parts: Result<Vec<Buffer>, CommError>) {
        *lock(&self.parts) = Some(parts);
        shared.exchanges.fetch_add(1, Ordering::Relaxed);
        self.ready.notify_all();
    }

    /// Waits for the end of the exchange.
    pub fn wait(&self, shared: &Shared) -> Result<Vec<Buffer>, CommError> {
        if let Some(parts) = lock(&self.parts).take() {
            return parts;
        }
        shared.waiters.fetch_add(1, Ordering::AcqRel);
        // The lock is taken for a moment so that the other side cannot fall asleep between looking and sleeping.
        drop(lock(&shared.orders));
        shared.kick.notify_one();
        let mut parts = lock(&self.parts);
        let answer = loop {
            if let Some(answer) = parts.take() {
                break answer;
            }
            parts = self.ready.wait(parts).unwrap_or_else(PoisonError::into_inner);
        };
        shared.waiters.fetch_sub(1, Ordering::AcqRel);
        answer
    }
}

// A poisoned lock only says that a thread panicked elsewhere; what it guards is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
