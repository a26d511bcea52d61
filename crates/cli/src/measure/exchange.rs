//! Exchanges between ranks: of one host, and of different ones.
//!
//! A message is written into its buffer before it travels and read after it has come, and both are part of what an
//! exchange costs: between threads, where a buffer only changes hands, they are nearly all of it. All ranks exchange at once,
//! for the ranks of a host share its link and its processors.
//!
//! Then exchanges are under way while ranks compute, about as long as an exchange takes. What both take less than one after
//! the other is what hides:
//!
//! ```text
//!   exchange        ████████              of a rate's bytes
//!   compute                 ████████
//!   both at once    ███████████           hidden: 5 of 8, the rest was work of processors
//! ```
//!
//! Last, small messages go between chunks of computing, as in a pipeline: what that takes longer is the price of a message.

use std::{collections::VecDeque, time::Instant};

use campanile_comm::{Buffer, CommError, Communicator};
use campanile_spec::topology::Link;

use super::{median, products::Work};

/// To each rank of other hosts goes this part of the bytes.
const CROSS_HOST_PART: usize = 8;

/// Exchanges without content, of which the one in the middle counts.
const SMALL: usize = 101;

/// Exchanges with content, of which the one in the middle counts.
const LARGE: usize = 5;

/// Messages among computing, as the chunks of a pipeline are: so many, each after so many turns of work, and the one before
/// the last still on its way.
const CHUNKS: usize = 48;
const CHUNK_TURNS: usize = 1;
const UNDER_WAY: usize = 2;

/// The link inside a host, and the one between hosts where there are several.
pub fn links(comm: &dyn Communicator, bytes: usize) -> Result<Vec<Link>, CommError> {
    let here = comm.split_by_host()?;
    let mut links = vec![Bench::new(comm, &*here, bytes / here.rank_count(), true).link()?];
    if here.rank_count() < comm.rank_count() {
        let peers = comm.split(here.rank() as u32)?;
        links.push(Bench::new(comm, &*peers, bytes / CROSS_HOST_PART, false).link()?);
    }
    Ok(links)
}

/// Exchanges in groups that all work at once.
struct Bench<'a> {
    all: &'a dyn Communicator,
    group: &'a dyn Communicator,
    /// Bytes for each rank of the group, and whether those that a rank keeps count.
    part: usize,
    with_own: bool,
    messages: Vec<Buffer>,
    from: Vec<u8>,
    to: Vec<u8>,
}

impl<'a> Bench<'a> {
    fn new(all: &'a dyn Communicator, group: &'a dyn Communicator, part: usize, with_own: bool) -> Bench<'a> {
        let bytes = part * group.rank_count();
        let messages = vec![Buffer::new(); group.rank_count()];
        Bench { all, group, part, with_own, messages, from: vec![1; bytes], to: vec![0; bytes] }
    }

    fn link(mut self) -> Result<Link, CommError> {
        let mut small = Vec::new();
        self.messages.iter_mut().for_each(|message| message.resize(64));
        for _ in 0..SMALL {
            let start = Instant::now();
            self.messages = self.group.all_to_all(std::mem::take(&mut self.messages))?;
            small.push(start.elapsed().as_secs_f64());
        }
        let latency_seconds = median(small);
        self.exchange(|| ())?; // asks for memory
        let alone = self.median_of(|bench| bench.exchange(|| ()))?;
        let mut work = Work::default();
        let turns = work.turns_in(alone);
        let computing = self.median_of(|bench| {
            bench.all.barrier()?;
            let start = Instant::now();
            work.run(turns);
            Ok(start.elapsed().as_secs_f64())
        })?;
        let both = self.median_of(|bench| bench.exchange(|| work.run(turns)))?;
        let hidden = (alone + computing - both) / alone.min(computing);
        let ranks = self.group.rank_count() - usize::from(!self.with_own);
        let seconds = (alone - latency_seconds).max(1e-9);
        let others = (self.group.rank_count() - 1).max(1) as f64;
        let computing = self.median_of(|bench| bench.chunks(&mut work, false))?;
        let among = self.median_of(|bench| bench.chunks(&mut work, true))?;
        Ok(Link {
            latency_seconds,
            bytes_per_second: (self.part * ranks) as f64 / seconds,
            hidden_share: hidden.clamp(0.0, 1.0),
            message_seconds: ((among - computing) / (CHUNKS as f64 * others)).max(0.0),
        })
    }

    /// Seconds of some work in chunks, with or without a small exchange after each.
    fn chunks(&mut self, work: &mut Work, with_messages: bool) -> Result<f64, CommError> {
        self.all.barrier()?;
        let start = Instant::now();
        let mut under_way = VecDeque::new();
        for _ in 0..CHUNKS {
            work.run(CHUNK_TURNS);
            if with_messages {
                let messages = vec![Buffer::of(&[0u64; 8]); self.group.rank_count()];
                under_way.push_back(self.group.start_all_to_all(messages)?);
            }
            if under_way.len() > UNDER_WAY
                && let Some(first) = under_way.pop_front()
            {
                first.wait()?;
            }
        }
        under_way.into_iter().try_for_each(|pending| pending.wait().map(drop))?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// The middle of some measurements, the same on all ranks: the mean over them.
    fn median_of(
        &mut self,
        mut one: impl FnMut(&mut Self) -> Result<f64, CommError>,
    ) -> Result<f64, CommError> {
        let mut all = Vec::new();
        for _ in 0..LARGE {
            all.push(one(self)?);
        }
        let told = self.all.all_gather(Buffer::of(&[median(all)]))?;
        Ok(told.iter().map(|rank| rank.values::<f64>()[0]).sum::<f64>() / told.len() as f64)
    }

    /// Seconds of an exchange with all bytes, while something else is done.
    fn exchange(&mut self, meanwhile: impl FnOnce()) -> Result<f64, CommError> {
        self.all.barrier()?;
        let start = Instant::now();
        let mut messages = std::mem::take(&mut self.messages);
        for (message, words) in messages.iter_mut().zip(self.from.chunks_exact(self.part)) {
            message.resize(self.part);
            message.bytes_mut().copy_from_slice(words);
        }
        let pending = self.group.start_all_to_all(messages)?;
        meanwhile();
        self.messages = pending.wait()?;
        for (message, words) in self.messages.iter().zip(self.to.chunks_exact_mut(self.part)) {
            words.copy_from_slice(message.bytes());
        }
        std::hint::black_box(&self.to);
        Ok(start.elapsed().as_secs_f64())
    }
}
