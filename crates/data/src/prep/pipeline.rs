//! Chunks decoded by several threads, committed in file order.
//!
//! The calling thread reads and commits, the workers decode. At most `in_flight` chunks exist at once, which
//! bounds memory; commits see chunks in the order of the files, so nothing depends on the number of threads.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Mutex, PoisonError, mpsc::sync_channel},
    thread,
};

use crate::{
    error::DataError,
    source::{Chunk, ChunkReader},
};

/// How much may happen in one round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RoundLimits {
    /// Chunks that exist at once.
    pub in_flight: usize,
    /// Chunks until the round ends.
    pub chunks: u64,
    /// Number of the round's first chunk.
    pub first_chunk: u64,
}

/// Works through chunks until the limit or the end of the data; returns whether there may be more.
pub(crate) fn round<W: Send, T: Send>(
    chunks: &mut ChunkReader<'_>,
    workers: &mut [W],
    limits: RoundLimits,
    work: impl Fn(&mut W, u64, &Chunk) -> T + Sync,
    mut commit: impl FnMut(&Chunk, T) -> Result<(), DataError>,
) -> Result<bool, DataError> {
    if let [worker] = workers {
        for number in limits.first_chunk..limits.first_chunk + limits.chunks {
            let Some(chunk) = chunks.next()? else { return Ok(false) };
            let result = work(worker, number, &chunk);
            commit(&chunk, result)?;
            chunks.recycle(chunk);
        }
        return Ok(true);
    }
    let (send_chunk, chunk_queue) = sync_channel::<(u64, Chunk)>(limits.in_flight);
    let (chunk_queue, work) = (&Mutex::new(chunk_queue), &work);
    thread::scope(|scope| {
        // Both ends go when this closure ends, however it does, and that ends the workers.
        let send_chunk = send_chunk;
        let (send_result, results) = sync_channel(limits.in_flight);
        for worker in workers {
            let send_result = send_result.clone();
            scope.spawn(move || {
                loop {
                    let next = chunk_queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((number, chunk)) = next else { break };
                    // A panic travels to the committing thread, which would otherwise wait for ever.
                    let result = catch_unwind(AssertUnwindSafe(|| work(worker, number, &chunk)));
                    if send_result.send((number, chunk, result)).is_err() {
                        break;
                    }
                }
            });
        }
        let (mut issued, mut committed) = (0, 0);
        let mut more = true;
        let mut ready = BTreeMap::new();
        loop {
            while more && issued < limits.chunks && issued - committed < limits.in_flight as u64 {
                match chunks.next()? {
                    Some(chunk) => {
                        let sent = send_chunk.send((limits.first_chunk + issued, chunk));
                        assert!(sent.is_ok(), "the queue is open as long as this scope lives");
                        issued += 1;
                    }
                    None => more = false,
                }
            }
            if committed == issued {
                return Ok(more);
            }
            let wanted = limits.first_chunk + committed;
            while !ready.contains_key(&wanted) {
                let Ok((number, chunk, result)) = results.recv() else {
                    unreachable!("workers answer every chunk they take");
                };
                ready.insert(number, (chunk, result));
            }
            if let Some((chunk, result)) = ready.remove(&wanted) {
                commit(&chunk, result.unwrap_or_else(|panic| resume_unwind(panic)))?;
                chunks.recycle(chunk);
                committed += 1;
            }
        }
    })
}
