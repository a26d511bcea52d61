//! What ranks can do together.

use thiserror::Error;

use crate::Buffer;

/// Why ranks could not move data together. Ranks have the numbers that they have among all ranks, in groups too.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CommError {
    /// A rank ended while others waited for it.
    #[error("rank {rank} ended before the others")]
    RankLeft {
        /// Who.
        rank: usize,
    },
    /// A rank gave up, and said why; every rank returns the same error.
    #[error("rank {rank}: {message}")]
    RankFailed {
        /// The first rank, by number, that gave up.
        rank: usize,
        /// Its reason.
        message: String,
    },
    /// A rank sent another message than this one waits for.
    #[error(
        "rank {rank} is elsewhere in the run: it sent another message than the one that is waited for; start all ranks with the \
         same program, job file and plan"
    )]
    OtherMessage {
        /// Who sent it.
        rank: usize,
    },
    /// The library that carries the messages does not work.
    #[error("MPI: {reason}")]
    Library {
        /// Why.
        reason: String,
    },
    /// Groups were split off again and again.
    #[error("more than {limit} groups of ranks were made in one run")]
    TooManyGroups {
        /// The most.
        limit: usize,
    },
}

/// A started exchange; [`Pending::wait`] ends it. It owns the sent buffers, so that the caller can compute
/// meanwhile and cannot touch them.
#[must_use = "an exchange that is not waited for leaves the other ranks without an answer"]
pub struct Pending<'a>(Box<dyn FnOnce() -> Result<Vec<Buffer>, CommError> + 'a>);

impl<'a> Pending<'a> {
    /// An exchange that `finish` completes.
    pub fn new(finish: impl FnOnce() -> Result<Vec<Buffer>, CommError> + 'a) -> Pending<'a> {
        Pending(Box::new(finish))
    }

    /// Waits for all parts. Part `s` of the answer is what rank `s` sent to this one.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn wait(self) -> Result<Vec<Buffer>, CommError> {
        (self.0)()
    }
}

/// A group of ranks that move data together.
///
/// Every method is *collective*: all ranks of the group call the same methods in the same order. A rank that
/// must give up says so with [`Communicator::agree`]; it never just returns between two collectives, for the
/// others would wait for it (a rank that ends all the same is noticed: [`CommError::RankLeft`]).
pub trait Communicator: Send {
    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// How many ranks.
    fn rank_count(&self) -> usize;

    /// The number among all ranks of the rank at a place of this group.
    fn number(&self, place: usize) -> usize;

    /// The machine that this rank runs on.
    fn host_name(&self) -> String {
        crate::host_name()
    }

    /// Whether ranks are processes, between which messages take time; false for threads.
    fn crosses_processes(&self) -> bool {
        true
    }

    /// Starts to send part `r` of `send` to rank `r`. Several exchanges may be under way at once, and they may be
    /// waited for in any order.
    ///
    /// # Errors
    /// When a rank has left.
    ///
    /// # Panics
    /// If there is not one part per rank.
    fn start_all_to_all(&self, send: Vec<Buffer>) -> Result<Pending<'_>, CommError>;

    /// The sub-group of the ranks that pass the same `color`, in the order of their ranks here.
    ///
    /// # Errors
    /// When a rank has left.
    fn split(&self, color: u32) -> Result<Box<dyn Communicator>, CommError>;

    /// The sub-group of the ranks on this rank's host, which share its memory, in the order of their ranks here.
    ///
    /// # Errors
    /// When a rank has left.
    fn split_by_host(&self) -> Result<Box<dyn Communicator>, CommError> {
        let names = self.all_gather(Buffer::of(self.host_name().as_bytes()))?;
        let mine = &names[self.rank()];
        let first = names.iter().position(|name| name.bytes() == mine.bytes()).unwrap_or_default();
        self.split(first as u32)
    }

    /// Sends part `r` to rank `r` and waits for what every rank sent here.
    ///
    /// # Errors
    /// When a rank has left.
    fn all_to_all(&self, send: Vec<Buffer>) -> Result<Vec<Buffer>, CommError> {
        self.start_all_to_all(send)?.wait()
    }

    /// Gives every rank the part of every rank.
    ///
    /// # Errors
    /// When a rank has left.
    fn all_gather(&self, part: Buffer) -> Result<Vec<Buffer>, CommError> {
        self.all_to_all(vec![part; self.rank_count()])
    }

    /// Gives `root` the part of every rank; the others get empty parts.
    ///
    /// # Errors
    /// When a rank has left.
    fn gather(&self, root: usize, part: Buffer) -> Result<Vec<Buffer>, CommError> {
        let mut parts = vec![Buffer::new(); self.rank_count()];
        parts[root] = part;
        self.all_to_all(parts)
    }

    /// Gives every rank the part of `root`; what the others pass is not looked at.
    ///
    /// # Errors
    /// When a rank has left.
    fn broadcast(&self, root: usize, part: Buffer) -> Result<Buffer, CommError> {
        let sends = self.rank() == root;
        let parts =
            if sends { vec![part; self.rank_count()] } else { vec![Buffer::new(); self.rank_count()] };
        Ok(self.all_to_all(parts)?.swap_remove(root))
    }

    /// Returns when every rank has come here.
    ///
    /// # Errors
    /// When a rank has left.
    fn barrier(&self) -> Result<(), CommError> {
        self.all_to_all(vec![Buffer::new(); self.rank_count()]).map(drop)
    }

    /// How a stage fails together: every rank says how it fared, and all return the first failure, if any.
    ///
    /// # Errors
    /// [`CommError::RankFailed`] with the message of the lowest failing rank, on all ranks.
    fn agree(&self, outcome: Result<(), String>) -> Result<(), CommError> {
        agree(self, outcome)
    }
}

/// [`Communicator::agree`], for backends that do something more with the outcome.
pub(crate) fn agree<C: Communicator + ?Sized>(
    comm: &C,
    outcome: Result<(), String>,
) -> Result<(), CommError> {
    if comm.rank_count() == 1 {
        return outcome.map_err(|message| CommError::RankFailed { rank: comm.number(0), message });
    }
    let words = match &outcome {
        Ok(()) => Buffer::new(),
        Err(message) => Buffer::of(format!("!{message}").as_bytes()),
    };
    for (rank, words) in comm.all_gather(words)?.iter().enumerate() {
        if !words.is_empty() {
            // Only why a rank gave up begins so; anything else was meant for another place.
            if words.bytes()[0] != b'!' {
                return Err(CommError::OtherMessage { rank: comm.number(rank) });
            }
            let message = String::from_utf8_lossy(&words.bytes()[1..]).into_owned();
            return Err(CommError::RankFailed { rank: comm.number(rank), message });
        }
    }
    Ok(())
}
