//! Exchanges between ranks: of one host, and of different ones.
//!
//! A message is written into its buffer before it travels and read after it has come, and both are part of what an
//! exchange costs: between threads, where a buffer only changes hands, they are nearly all of it.

use std::time::Instant;

use campanile_comm::{Buffer, CommError, Communicator};
use campanile_spec::topology::Link;

/// Bytes that a rank sends in one exchange, over all ranks.
const BYTES: usize = 8 << 20;

/// Exchanges without content, of which the fastest tenth counts.
const SMALL: usize = 100;

/// Exchanges with content, of which the fastest counts: all ranks must run at once for it, and somebody else may be
/// using their cores.
const LARGE: usize = 9;

/// The link inside a host, and the one between hosts where there are several.
pub fn links(comm: &dyn Communicator) -> Result<Vec<Link>, CommError> {
    let here = comm.split_by_host()?;
    let mut links = vec![link(&*here)?];
    if here.rank_count() < comm.rank_count() {
        let peers = comm.split(here.rank() as u32)?;
        links.push(link(&*peers)?);
    }
    Ok(links)
}

fn link(comm: &dyn Communicator) -> Result<Link, CommError> {
    let mut messages = vec![Buffer::new(); comm.rank_count()];
    messages.iter_mut().for_each(|message| message.resize(64));
    let mut small = Vec::new();
    for _ in 0..SMALL {
        let start = Instant::now();
        messages = comm.all_to_all(messages)?;
        small.push(start.elapsed().as_secs_f64());
    }
    let part = BYTES / comm.rank_count();
    let (from, mut to) = (vec![1u8; BYTES], vec![0u8; BYTES]);
    let mut large = Vec::new();
    for _ in 0..=LARGE {
        comm.barrier()?;
        let start = Instant::now();
        for (message, words) in messages.iter_mut().zip(from.chunks_exact(part)) {
            message.resize(part);
            message.bytes_mut().copy_from_slice(words);
        }
        messages = comm.all_to_all(messages)?;
        for (message, words) in messages.iter().zip(to.chunks_exact_mut(part)) {
            words.copy_from_slice(message.bytes());
        }
        std::hint::black_box(&to);
        large.push(start.elapsed().as_secs_f64());
    }
    small.sort_by(f64::total_cmp);
    let latency = small[SMALL / 10];
    // The first one asks for memory.
    let fastest = large[1..].iter().copied().fold(f64::INFINITY, f64::min);
    let seconds = (fastest - latency).max(1e-9);
    Ok(Link { latency_seconds: latency, bytes_per_second: (part * comm.rank_count()) as f64 / seconds })
}
