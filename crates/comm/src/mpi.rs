//! Ranks as processes of an MPI job, on one host or many.
//!
//! ```text
//!   rank's thread ──orders──► thread of this module ──► MPI ──► other processes
//!                 ◄─answers──
//! ```
//!
//! Every exchange is a set of point-to-point messages, one per pair of ranks, of lengths that the receiver need
//! not know: it looks what has arrived, takes memory for it, and receives. MPI's own collectives are not used: their
//! order of addition is theirs, and they cannot be left when a rank fails. All groups share one MPI communicator and
//! differ in their tag.
//!
//! A rank ends with [`World::leave`]. One that fails tells all others why, and then nobody waits for anybody: every
//! exchange under way ends with that rank's message. A rank that does not hear it within seconds (its thread hangs in
//! a system call, say) is ended by mpirun, when the first of the others exits.

mod engine;
mod group;
mod library;
mod pool;
mod shared;
mod waiting;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
        mpsc::sync_channel,
    },
    thread::JoinHandle,
};

pub use self::shared::Failure;
use self::shared::{Answer, Expects, Order, Outgoing, Shared, Start};
use crate::{Buffer, CommError, Communicator, Pending, communicator::agree};

/// The tag of the group of all ranks.
const WORLD_TAG: u16 = 1;

/// The largest tag that every MPI library allows.
const TAG_MAX: u32 = 32_767;

/// How the messages are cut.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The most bytes of one MPI message; longer ones travel in pieces. MPI counts up to 2 GiB, but
    /// short ones move by themselves: ADR 10.
    pub piece_bytes_max: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { piece_bytes_max: library::EAGER_BYTES / 2 }
    }
}

/// This process's part in an MPI job.
pub struct World {
    shared: Arc<Shared>,
    next_tag: Arc<AtomicU32>,
    thread: JoinHandle<()>,
    rank: usize,
    rank_count: usize,
}

impl World {
    /// Joins the other processes that `mpirun` started. Once in a process.
    ///
    /// # Errors
    /// When the MPI library refuses.
    pub fn join(settings: Settings) -> Result<World, CommError> {
        assert!((1..=1 << 30).contains(&settings.piece_bytes_max), "pieces of {settings:?}");
        let shared = Arc::new(Shared::default());
        let (greeting, greeted) = sync_channel(1);
        let of_thread = Arc::clone(&shared);
        let body = move || engine::run(of_thread, settings, &greeting);
        let thread = std::thread::Builder::new().name("mpi".to_owned()).spawn(body);
        let thread = thread.map_err(|error| CommError::Library { reason: error.to_string() })?;
        let silence =
            || CommError::Library { reason: "the MPI library ended this process's thread".to_owned() };
        let (rank, rank_count) = greeted.recv().unwrap_or_else(|_| Err(silence()))?;
        shared.order(Order::Form(WORLD_TAG, (0..rank_count).collect()));
        let next_tag = Arc::new(AtomicU32::new(u32::from(WORLD_TAG) + 1));
        Ok(World { shared, next_tag, thread, rank, rank_count })
    }

    /// The group of all processes.
    pub fn all_ranks(&self) -> MpiRank {
        MpiRank {
            shared: Arc::clone(&self.shared),
            next_tag: Arc::clone(&self.next_tag),
            tag: WORLD_TAG,
            place: self.rank,
            members: (0..self.rank_count).collect(),
        }
    }

    /// The first failure that this rank knows of, its own or another's.
    pub fn failure(&self) -> Option<Failure> {
        self.shared.failure()
    }

    /// A view for somebody who watches whether this rank still moves.
    pub fn activity(&self) -> Activity {
        Activity(Arc::clone(&self.shared))
    }

    /// Ends this rank's part and waits for the others to end theirs. With a message, it gives up: all others learn
    /// why, and a process that does not leave within seconds is ended, this one too.
    ///
    /// # Errors
    /// When this rank or another one has failed.
    pub fn leave(self, outcome: Result<(), String>) -> Result<(), Failure> {
        if let Err(message) = outcome {
            self.shared.fail(Failure { rank: self.rank, message });
        }
        self.shared.order(Order::Leave(self.shared.failure()));
        // The thread does not panic by itself; should it all the same, the process is about to end anyway.
        let _ = self.thread.join();
        self.shared.failure().map_or(Ok(()), Err)
    }
}

/// Whether a rank moves, and whether it waits for others.
#[derive(Clone)]
pub struct Activity(Arc<Shared>);

impl Activity {
    /// Exchanges that have ended.
    pub fn exchanges(&self) -> u64 {
        self.0.exchanges()
    }

    /// Whether the rank waits for others at this moment.
    pub fn is_waiting(&self) -> bool {
        self.0.is_waited_for()
    }
}

/// One rank of a group of processes.
pub struct MpiRank {
    shared: Arc<Shared>,
    next_tag: Arc<AtomicU32>,
    tag: u16,
    place: usize,
    /// Ranks of the world.
    members: Vec<usize>,
}

impl MpiRank {
    fn start(&self, outgoing: Outgoing, expects: Expects, own: Buffer) -> Pending<'_> {
        if self.members.len() == 1 {
            let parts = if let Outgoing::Each(parts) = outgoing { parts } else { vec![own] };
            let outcome = self.shared.alone(parts);
            return Pending::new(move || outcome);
        }
        let answer = Arc::new(Answer::default());
        let start = Start { tag: self.tag, outgoing, expects, own, answer: Arc::clone(&answer) };
        self.shared.order(Order::Start(start));
        Pending::new(move || answer.wait(&self.shared))
    }
}

impl Communicator for MpiRank {
    fn rank(&self) -> usize {
        self.place
    }

    fn rank_count(&self) -> usize {
        self.members.len()
    }

    fn number(&self, place: usize) -> usize {
        self.members[place]
    }

    fn start_all_to_all(&self, send: Vec<Buffer>) -> Result<Pending<'_>, CommError> {
        assert_eq!(send.len(), self.rank_count(), "one part per rank");
        Ok(self.start(Outgoing::Each(send), Expects::All, Buffer::new()))
    }

    fn all_gather(&self, part: Buffer) -> Result<Vec<Buffer>, CommError> {
        let own = part.clone();
        self.start(Outgoing::Same(part), Expects::All, own).wait()
    }

    fn gather(&self, root: usize, part: Buffer) -> Result<Vec<Buffer>, CommError> {
        if self.place == root {
            return self.start(Outgoing::Nothing, Expects::All, part).wait();
        }
        self.start(Outgoing::Only(root, part), Expects::Nobody, Buffer::new()).wait()
    }

    fn broadcast(&self, root: usize, part: Buffer) -> Result<Buffer, CommError> {
        let pending = if self.place == root {
            let own = part.clone();
            self.start(Outgoing::Same(part), Expects::Nobody, own)
        } else {
            self.start(Outgoing::Nothing, Expects::Only(root), Buffer::new())
        };
        Ok(pending.wait()?.swap_remove(root))
    }

    fn agree(&self, outcome: Result<(), String>) -> Result<(), CommError> {
        let agreed = agree(self, outcome);
        if let Err(CommError::RankFailed { rank, message }) = &agreed {
            self.shared.fail(Failure { rank: *rank, message: message.clone() });
        }
        agreed
    }

    fn split(&self, color: u32) -> Result<Box<dyn Communicator>, CommError> {
        let next = self.next_tag.load(Ordering::SeqCst);
        let told = self.all_gather(Buffer::of(&[color, next]))?;
        // A tag above all that any of these ranks uses is new between any two of them.
        let first = told.iter().map(|words| words.values::<u32>()[1]).max().unwrap_or(next);
        let color_of = |place: usize| told[place].values::<u32>()[0];
        let colors: BTreeSet<u32> = (0..told.len()).map(color_of).collect();
        self.next_tag.fetch_max(first + colors.len() as u32, Ordering::SeqCst);
        let tag = first + colors.range(..color).count() as u32;
        let tag = u16::try_from(tag).ok().filter(|&tag| u32::from(tag) <= TAG_MAX);
        let tag = tag.ok_or(CommError::TooManyGroups { limit: TAG_MAX as usize })?;
        let places: Vec<usize> = (0..told.len()).filter(|&place| color_of(place) == color).collect();
        let members: Vec<usize> = places.iter().map(|&place| self.members[place]).collect();
        self.shared.order(Order::Form(tag, members.clone()));
        Ok(Box::new(MpiRank {
            shared: Arc::clone(&self.shared),
            next_tag: Arc::clone(&self.next_tag),
            tag,
            place: places.iter().filter(|&&place| place < self.place).count(),
            members,
        }))
    }
}

impl Drop for MpiRank {
    fn drop(&mut self) {
        if self.tag != WORLD_TAG {
            self.shared.order(Order::Dissolve(self.tag));
        }
    }
}
