//! Ranks as threads of this process.
//!
//! A message changes hands by moving its buffer through a mailbox, one per ordered pair of ranks, so nothing is
//! copied. A receiver spins for some microseconds and then sleeps: within a step the answer is mostly there
//! already, while on a busy machine a sleeping rank gives its core to the one that it waits for.
//!
//! Every collective puts exactly one message in each mailbox, so the number of a message there is the number of its
//! collective, and collectives cannot be mixed up in whatever order they are waited for. Mailboxes are bounded by the
//! protocol: a rank cannot start a second exchange with another before it has received the answer of the first, but
//! for the ones it has pending.

use std::{
    cell::Cell,
    collections::{BTreeMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use crate::{Buffer, CommError, Communicator, Pending};

/// How often a receiver looks before it sleeps: some ten microseconds.
const SPINS: u32 = 4_000;

struct Mailbox {
    /// How many letters were posted so far.
    posted: AtomicU64,
    letters: Mutex<Letters>,
    arrival: Condvar,
}

#[derive(Default)]
struct Letters {
    /// From letter number `first` on; taken ones are `None`, and never at the front.
    queue: VecDeque<Option<Buffer>>,
    first: u64,
    sender_left: bool,
}

struct World {
    rank_count: usize,
    /// The number that each rank has among all.
    numbers: Vec<usize>,
    /// Mailbox of (from, to) at `from * rank_count + to`.
    mailboxes: Vec<Mailbox>,
    /// Sub-groups being formed, by (how many splits came before, color).
    groups: Mutex<BTreeMap<(u64, u32), Arc<World>>>,
}

/// One rank of a group of threads.
pub struct ThreadRank {
    world: Arc<World>,
    rank: usize,
    /// Whether this is the group of all ranks.
    is_first: bool,
    splits: Cell<u64>,
    started: Cell<u64>,
}

/// Makes a group of `rank_count` ranks, one for each thread that is to take part.
pub fn group(rank_count: usize) -> Vec<ThreadRank> {
    let world = Arc::new(World::new((0..rank_count).collect()));
    (0..rank_count).map(|rank| ThreadRank::new(world.clone(), rank, true)).collect()
}

/// Runs `body` on `rank_count` threads, one rank each, and returns the answers in rank order.
///
/// # Errors
/// The error of the rank that failed first, for the others' errors may be no more than its echo; a panic in a
/// rank counts as its error.
pub fn run<T, E, F>(rank_count: usize, body: F) -> Result<Vec<T>, E>
where
    T: Send,
    E: Send + From<CommError>,
    F: Fn(&ThreadRank) -> Result<T, E> + Sync,
{
    let failures = AtomicUsize::new(0);
    // The rank is dropped, which wakes those who wait for it, only after its failure has taken its place.
    let whole = |rank: ThreadRank| -> Result<T, (usize, E)> {
        let place = || failures.fetch_add(1, Ordering::SeqCst);
        match catch_unwind(AssertUnwindSafe(|| body(&rank))) {
            Ok(outcome) => outcome.map_err(|error| (place(), error)),
            Err(panic) => {
                let message = format!("internal error: {}", panic_message(&*panic));
                Err((place(), CommError::RankFailed { rank: rank.rank, message }.into()))
            }
        }
    };
    let outcomes: Vec<Result<T, (usize, E)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = group(rank_count).into_iter().map(|rank| scope.spawn(|| whole(rank))).collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| unreachable!("ranks catch panics"))).collect()
    });
    let mut values = Vec::with_capacity(rank_count);
    let mut first: Option<(usize, E)> = None;
    for outcome in outcomes {
        match outcome {
            Ok(value) => values.push(value),
            Err(failure) if first.as_ref().is_none_or(|first| failure.0 < first.0) => first = Some(failure),
            Err(_) => {}
        }
    }
    first.map_or(Ok(values), |(_, error)| Err(error))
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panicked".to_owned())
}

impl World {
    fn new(numbers: Vec<usize>) -> World {
        let rank_count = numbers.len();
        assert!(rank_count > 0, "a group needs a rank");
        let mailbox = || Mailbox {
            posted: AtomicU64::new(0),
            letters: Mutex::new(Letters::default()),
            arrival: Condvar::new(),
        };
        let mailboxes = (0..rank_count * rank_count).map(|_| mailbox()).collect();
        World { rank_count, numbers, mailboxes, groups: Mutex::new(BTreeMap::new()) }
    }

    /// Tells everyone who may still wait for a rank, here or in a group that was split off, that nothing more will come.
    fn leave(&self, number: usize) {
        let Some(rank) = self.numbers.iter().position(|other| *other == number) else { return };
        for mailbox in &self.mailboxes[rank * self.rank_count..][..self.rank_count] {
            mailbox.lock().sender_left = true;
            mailbox.arrival.notify_all();
        }
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.values().for_each(|group| group.leave(number));
    }
}

impl Mailbox {
    // A poisoned lock only says that a rank panicked elsewhere; the queue itself is whole.
    fn lock(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(&self, letter: Buffer) {
        self.lock().queue.push_back(Some(letter));
        self.posted.fetch_add(1, Ordering::Release);
        self.arrival.notify_one();
    }

    fn receive(&self, from: usize, number: u64) -> Result<Buffer, CommError> {
        for _ in 0..SPINS {
            if self.posted.load(Ordering::Acquire) > number {
                break;
            }
            std::hint::spin_loop();
        }
        let mut letters = self.lock();
        loop {
            if let Some(letter) = letters.take(number) {
                return Ok(letter);
            }
            if letters.sender_left {
                return Err(CommError::RankLeft { rank: from });
            }
            letters = self.arrival.wait(letters).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Letters {
    fn take(&mut self, number: u64) -> Option<Buffer> {
        let place = number - self.first;
        let letter = self.queue.get_mut(place as usize)?.take();
        while let Some(None) = self.queue.front() {
            self.queue.pop_front();
            self.first += 1;
        }
        letter
    }
}

impl ThreadRank {
    fn new(world: Arc<World>, rank: usize, is_first: bool) -> ThreadRank {
        ThreadRank { world, rank, is_first, splits: Cell::new(0), started: Cell::new(0) }
    }

    fn mailbox(&self, from: usize, to: usize) -> &Mailbox {
        &self.world.mailboxes[from * self.world.rank_count + to]
    }
}

impl Communicator for ThreadRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn rank_count(&self) -> usize {
        self.world.rank_count
    }

    fn number(&self, place: usize) -> usize {
        self.world.numbers[place]
    }

    fn crosses_processes(&self) -> bool {
        false
    }

    fn start_all_to_all(&self, send: Vec<Buffer>) -> Result<Pending<'_>, CommError> {
        assert_eq!(send.len(), self.rank_count(), "one part per rank");
        for (to, part) in send.into_iter().enumerate() {
            self.mailbox(self.rank, to).post(part);
        }
        let number = self.started.replace(self.started.get() + 1);
        Ok(Pending::new(move || {
            let receive = |from| self.mailbox(from, self.rank).receive(self.number(from), number);
            (0..self.rank_count()).map(receive).collect()
        }))
    }

    fn split(&self, color: u32) -> Result<Box<dyn Communicator>, CommError> {
        let colors = self.all_gather(Buffer::of(&[color]))?;
        let members: Vec<usize> =
            (0..self.rank_count()).filter(|&rank| colors[rank].values::<u32>()[0] == color).collect();
        let key = (self.splits.replace(self.splits.get() + 1), color);
        let mut groups = self.world.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let numbers = || members.iter().map(|member| self.number(*member)).collect();
        let world = groups.entry(key).or_insert_with(|| Arc::new(World::new(numbers()))).clone();
        drop(groups);
        let rank = members.iter().filter(|&&member| member < self.rank).count();
        Ok(Box::new(ThreadRank::new(world, rank, false)))
    }
}

impl Drop for ThreadRank {
    /// A rank ends with its place among all. What it has of groups goes earlier, with all that its thread holds when it
    /// fails: its neighbours there must not fail of that before its own failure is noted.
    fn drop(&mut self) {
        if self.is_first {
            self.world.leave(self.world.numbers[self.rank]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(buffer: &Buffer) -> String {
        String::from_utf8_lossy(buffer.bytes()).into_owned()
    }

    #[test]
    fn every_rank_gets_what_every_rank_sent_it() {
        for ranks in [1, 2, 3, 8] {
            let heard = run(ranks, |me| -> Result<_, CommError> {
                let mut all = Vec::new();
                for round in 0..20 {
                    let parts = (0..ranks)
                        .map(|to| Buffer::of(format!("{round}:{}>{to}", me.rank()).as_bytes()))
                        .collect();
                    all.extend(me.all_to_all(parts)?.iter().map(text));
                }
                Ok(all)
            });
            for (to, heard) in heard.unwrap().into_iter().enumerate() {
                let want: Vec<String> =
                    (0..20).flat_map(|r| (0..ranks).map(move |from| format!("{r}:{from}>{to}"))).collect();
                assert_eq!(heard, want);
            }
        }
    }

    #[test]
    fn two_exchanges_may_be_under_way_at_once() {
        let heard = run(2, |me| -> Result<_, CommError> {
            let ids = me.start_all_to_all(vec![Buffer::of(b"ids"); 2])?;
            let vectors = me.start_all_to_all(vec![Buffer::of(b"vectors"); 2])?;
            let first = ids.wait()?;
            let second = vectors.wait()?;
            Ok((text(&first[0]), text(&second[1])))
        });
        assert_eq!(heard.unwrap(), vec![("ids".to_owned(), "vectors".to_owned()); 2]);
    }

    #[test]
    fn ranks_fail_together_with_the_first_failure() {
        let outcome = run(4, |me| -> Result<(), CommError> {
            me.agree(Ok(()))?;
            me.agree(if me.rank() >= 2 { Err(format!("bad batch on {}", me.rank())) } else { Ok(()) })?;
            unreachable!("all ranks leave at the failed agreement");
        });
        assert_eq!(outcome.unwrap_err().to_string(), "rank 2: bad batch on 2");
    }

    #[test]
    fn a_rank_that_ends_does_not_leave_the_others_waiting() {
        let outcome = run(3, |me| -> Result<(), CommError> {
            if me.rank() == 1 {
                return Ok(());
            }
            me.all_gather(Buffer::new()).map(drop)
        });
        assert_eq!(outcome.unwrap_err(), CommError::RankLeft { rank: 1 });
    }

    #[test]
    fn a_panic_is_told_by_its_own_message() {
        let outcome = run(2, |me| -> Result<(), CommError> {
            assert!(me.rank() == 0, "row 7 of 3");
            me.all_gather(Buffer::new()).map(drop)
        });
        assert_eq!(outcome.unwrap_err().to_string(), "rank 1: internal error: row 7 of 3");
    }

    /// In a group too, whoever panics or fails is told by its own words, and who has left by its number among all.
    #[test]
    fn groups_tell_the_failing_rank_and_its_words() {
        for _ in 0..50 {
            let outcome = run(6, |me| -> Result<(), CommError> {
                let pair = me.split((me.rank() / 2) as u32)?;
                assert!(me.rank() != 3, "row 7 of 3");
                pair.all_gather(Buffer::new())?;
                me.barrier()
            });
            assert_eq!(outcome.unwrap_err().to_string(), "rank 3: internal error: row 7 of 3");
            let outcome = run(6, |me| -> Result<(), CommError> {
                let pair = me.split((me.rank() / 2) as u32)?;
                if me.rank() == 3 {
                    return Err(CommError::Library { reason: "no disk".to_owned() });
                }
                pair.all_gather(Buffer::new())?;
                me.barrier()
            });
            assert_eq!(outcome.unwrap_err().to_string(), "MPI: no disk");
        }
        let outcome = run(6, |me| -> Result<(), CommError> {
            let pair = me.split((me.rank() / 2) as u32)?;
            if me.rank() == 5 {
                return Ok(());
            }
            if me.rank() == 4 {
                return pair.all_gather(Buffer::new()).map(drop);
            }
            Ok(())
        });
        assert_eq!(outcome.unwrap_err(), CommError::RankLeft { rank: 5 });
        let outcome = run(4, |me| -> Result<(), CommError> {
            let pair = me.split((me.rank() / 2) as u32)?;
            pair.agree(if me.rank() == 3 { Err("bad".to_owned()) } else { Ok(()) })
        });
        assert_eq!(outcome.unwrap_err().to_string(), "rank 3: bad");
    }

    #[test]
    fn a_group_splits_by_color() {
        let heard = run(5, |me| -> Result<_, CommError> {
            let odd = me.split((me.rank() % 2) as u32)?;
            let again = odd.split(0)?;
            let names = again.all_gather(Buffer::of(me.rank().to_string().as_bytes()))?;
            Ok((odd.rank(), names.iter().map(text).collect::<Vec<_>>().join(",")))
        });
        let heard: Vec<_> = heard.unwrap().into_iter().map(|(r, s)| format!("{r} {s}")).collect();
        assert_eq!(heard, ["0 0,2,4", "0 1,3", "1 0,2,4", "1 1,3", "2 0,2,4"]);
    }
}
