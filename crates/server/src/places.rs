//! Places for connections, and what each connection is doing with its own.
//!
//! ```text
//!   never asked ──► a request arrives ──► it is answered ──► its answer leaves ──► nothing under way
//!   closed soon     closed when slow                         closed when not read  closed later
//! ```
//!
//! When all places are taken, a newcomer gets the place of whoever needs it least: first of those who never asked for
//! anything, then of those who are asking nothing now, then of those who are slow to send or to read, the longest silent
//! first. A connection whose request is being answered keeps its place. So idle and slow clients, however many, lock out
//! nobody.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::clock;

/// How long clients may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// For the handshake, for the headers of a request, and for the first request.
    pub headers: Duration,
    /// For the body of a request over REST.
    pub body: Duration,
    /// For a gRPC call from its first byte on, its message included.
    pub call: Duration,
    /// For reading an answer.
    pub answer: Duration,
    /// Between two requests.
    pub idle: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        let seconds = Duration::from_secs;
        Patience {
            headers: seconds(10),
            body: seconds(30),
            call: seconds(60),
            answer: seconds(60),
            idle: seconds(75),
        }
    }
}

/// How far a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Arriving,
    Answering,
    Leaving,
}

/// What a connection is doing.
#[derive(Debug)]
pub struct Activity {
    doing: Mutex<Doing>,
    evicted: Notify,
}

#[derive(Debug)]
struct Doing {
    /// Requests under way by number, and since when each is in its phase.
    requests: BTreeMap<u64, (Phase, Instant)>,
    begun: u64,
    /// When the connection came, or its last request ended.
    last: Instant,
}

/// A request under way; whatever happens to it, it ends.
#[derive(Debug)]
pub struct UnderWay {
    activity: Arc<Activity>,
    number: u64,
}

impl UnderWay {
    /// All of it is there.
    pub fn arrived(&self) {
        self.enter(Phase::Answering);
    }

    /// Its answer begins to leave.
    pub fn answered(&self) {
        self.enter(Phase::Leaving);
    }

    fn enter(&self, phase: Phase) {
        let mut doing = self.activity.doing();
        if let Some(request) = doing.requests.get_mut(&self.number).filter(|(before, _)| *before != phase) {
            *request = (phase, clock::timer_now());
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut doing = self.activity.doing();
        doing.requests.remove(&self.number);
        doing.last = clock::timer_now();
    }
}

impl Activity {
    /// Of a connection that came now.
    pub fn new() -> Arc<Activity> {
        let doing = Doing { requests: BTreeMap::new(), begun: 0, last: clock::timer_now() };
        Arc::new(Activity { doing: Mutex::new(doing), evicted: Notify::new() })
    }

    /// A request arrives.
    pub fn begin(self: &Arc<Activity>) -> Arc<UnderWay> {
        let mut doing = self.doing();
        let number = doing.begun;
        doing.begun += 1;
        doing.requests.insert(number, (Phase::Arriving, clock::timer_now()));
        drop(doing);
        Arc::new(UnderWay { activity: Arc::clone(self), number })
    }

    /// Whether a request is under way.
    pub fn is_busy(&self) -> bool {
        !self.doing().requests.is_empty()
    }

    /// Ends when the connection must: nothing was asked for too long, an answer is not read, or its place went to another.
    pub async fn over(&self, patience: &Patience) {
        tokio::select! {
            () = self.evicted.notified() => {}
            () = self.overdue(patience) => {}
        }
    }

    async fn overdue(&self, patience: &Patience) {
        loop {
            let (now, end) = (clock::timer_now(), self.doing().end(patience));
            match end {
                Some(end) if end <= now => return,
                // What is under way may change at any moment, and then so does the end.
                end => {
                    let look = now + Duration::from_secs(1);
                    tokio::time::sleep_until(end.map_or(look, |end| end.min(look))).await;
                }
            }
        }
    }

    fn doing(&self) -> MutexGuard<'_, Doing> {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Doing {
    /// When the connection must end, as far as its client decides that; who reads a request sees to its arrival.
    fn end(&self, patience: &Patience) -> Option<Instant> {
        match (self.requests.is_empty(), self.begun) {
            (true, 0) => Some(self.last + patience.headers),
            (true, _) => Some(self.last + patience.idle),
            (false, _) => {
                let leaving = self.requests.values().filter(|(phase, _)| *phase == Phase::Leaving);
                leaving.map(|(_, since)| *since + patience.answer).min()
            }
        }
    }

    /// How much the place is needed, and since when nothing happened; `None` if it cannot be taken away.
    fn need(&self) -> Option<(u8, Instant)> {
        let since = self.requests.values().map(|(_, since)| *since).min();
        match since {
            None => Some((u8::from(self.begun > 0), self.last)),
            Some(since) => {
                let is_answered = self.requests.values().any(|(phase, _)| *phase == Phase::Answering);
                (!is_answered).then_some((2, since))
            }
        }
    }
}

/// Places of one address.
#[derive(Debug)]
pub struct Places {
    taken: Mutex<BTreeMap<u64, Arc<Activity>>>,
    places_max: usize,
    came: std::sync::atomic::AtomicU64,
    emptied: Notify,
}

/// A place that is given back whatever happens.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    number: u64,
    /// What is done with it.
    pub activity: Arc<Activity>,
    /// Whether somebody lost it for this.
    pub is_anothers: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.remove(&self.number);
        if taken.is_empty() {
            self.places.emptied.notify_waiters();
        }
    }
}

impl Places {
    /// So many, at least one.
    pub fn new(places_max: usize) -> Arc<Places> {
        let (taken, places_max) = (Mutex::default(), places_max.max(1));
        Arc::new(Places { taken, places_max, came: Default::default(), emptied: Notify::new() })
    }

    /// A place for a newcomer: a free one, or that of whoever needs it least.
    pub fn take(self: &Arc<Places>) -> Option<Place> {
        let mut taken = self.taken();
        let is_anothers = taken.len() >= self.places_max;
        if is_anothers {
            let need = |(number, activity): (&u64, &Arc<Activity>)| Some((activity.doing().need()?, *number));
            let (_, least) = taken.iter().filter_map(need).min()?;
            let loser = taken.remove(&least)?;
            loser.evicted.notify_one();
        }
        let number = self.came.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let activity = Activity::new();
        taken.insert(number, Arc::clone(&activity));
        drop(taken);
        Some(Place { places: Arc::clone(self), number, activity, is_anothers })
    }

    /// Ends when every place is free.
    pub async fn emptied(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.taken().is_empty() {
                return;
            }
            emptied.await;
        }
    }

    fn taken(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Activity>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether its connection was told to end.
    async fn lost(place: &Place) -> bool {
        let patience = Patience::default();
        tokio::select! {
            biased;
            () = place.activity.over(&patience) => true,
            () = std::future::ready(()) => false,
        }
    }

    #[tokio::test]
    async fn a_newcomer_gets_the_place_that_is_needed_least_and_never_one_that_is_answered() {
        let places = Places::new(4);
        let place = || places.take().unwrap();
        let (answered, asked, slow, silent) = (place(), place(), place(), place());
        let under_way = answered.activity.begin();
        under_way.arrived();
        drop(asked.activity.begin());
        let _arriving = slow.activity.begin();
        // In this order they lose their places; the newcomers stay, because they are asking.
        let mut newcomers = Vec::new();
        for loser in [&silent, &asked, &slow] {
            assert!(!lost(loser).await);
            let newcomer = place();
            let request = newcomer.activity.begin();
            request.arrived();
            assert!(newcomer.is_anothers && lost(loser).await);
            newcomers.push((newcomer, request));
        }
        assert!(!lost(&answered).await);
        assert!(places.take().is_none(), "all are being answered");
        drop(newcomers);
        assert!(places.take().is_some_and(|place| !place.is_anothers));
    }

    #[tokio::test]
    async fn silence_ends_a_connection_and_so_does_an_answer_that_is_not_read() {
        const LONG: Duration = Duration::from_secs(3600);
        let none = Patience { headers: LONG, body: LONG, call: LONG, answer: LONG, idle: LONG };
        let short = Duration::from_millis(1);
        let activity = Activity::new();
        let ends = async |patience: Patience| {
            let ended = tokio::time::timeout(Duration::from_secs(60), activity.over(&patience)).await;
            assert!(ended.is_ok(), "{patience:?}");
        };
        ends(Patience { headers: short, ..none }).await;
        drop(activity.begin());
        ends(Patience { idle: short, ..none }).await;
        // However often it asks meanwhile, the first answer must be read in time.
        let request = activity.begin();
        request.arrived();
        request.answered();
        let asking = async {
            loop {
                drop(activity.begin());
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = ends(Patience { answer: short, ..none }) => {}
            () = asking => {}
        }
    }
}
