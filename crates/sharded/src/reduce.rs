//! Dense gradients: exchange, add in tree order, gather.
//!
//! Every rank comes with its node of the tree over grains (see `spec::grain`). Each owns a slice of the flat
//! parameter vector, receives that slice of all ranks' nodes, and adds them pairwise: the rest of the tree.
//! Then it updates its slice, and the new weights go to everyone. The bytes are those of a ring; the order of
//! additions is ours, and the same for every number of ranks.

use std::{mem::take, ops::Range};

use campanile_comm::{Buffer, CommError, Communicator, Pending};

/// Slices begin at multiples of this many floats, so that sums over blocks of that size (the gradient's norm)
/// are formed by one rank each, in the same order for every number of ranks.
pub const BLOCK: usize = 4096;

/// One rank's part in the reduction.
pub struct Reduction {
    parameter_count: usize,
    rank_count: usize,
    parts: Vec<Buffer>,
    weights: Vec<Buffer>,
}

/// The slice of a flat vector that a rank updates.
pub fn slice_of(parameter_count: usize, rank: usize, rank_count: usize) -> Range<usize> {
    let blocks = parameter_count.div_ceil(BLOCK);
    let cut = |rank: usize| (blocks * rank / rank_count * BLOCK).min(parameter_count);
    cut(rank)..cut(rank + 1)
}

impl Reduction {
    /// For a flat vector of `parameter_count` floats on `rank_count` ranks.
    pub fn new(parameter_count: usize, rank_count: usize) -> Reduction {
        assert!(rank_count.is_power_of_two(), "{rank_count} ranks do not divide a tree");
        let parts = vec![Buffer::new(); rank_count];
        Reduction { parameter_count, rank_count, weights: parts.clone(), parts }
    }

    /// Starts to send the other ranks their slices of `gradient`, which may not change until the sum is finished.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn start_sum<'c>(
        &mut self,
        comm: &'c dyn Communicator,
        gradient: &[f32],
    ) -> Result<Option<Pending<'c>>, CommError> {
        assert_eq!(gradient.len(), self.parameter_count);
        if self.rank_count == 1 {
            return Ok(None);
        }
        let own = comm.rank();
        let mut parts = take(&mut self.parts);
        for (rank, part) in parts.iter_mut().enumerate() {
            let stays = self.adds_in_place() && rank == own;
            let slice = if stays { &[] } else { &gradient[self.slice(rank)] };
            part.resize(size_of_val(slice));
            part.values_mut().copy_from_slice(slice);
        }
        comm.start_all_to_all(parts).map(Some)
    }

    /// Waits for the slices of the others and adds them to this rank's, along the tree; the rest of `gradient` keeps
    /// the rank's own part.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn finish_sum(
        &mut self,
        comm: &dyn Communicator,
        pending: Option<Pending<'_>>,
        gradient: &mut [f32],
    ) -> Result<(), CommError> {
        let Some(pending) = pending else { return Ok(()) };
        let own = comm.rank();
        let mut parts = pending.wait()?;
        if self.adds_in_place() {
            add(&mut gradient[self.slice(own)], parts[1 - own].values());
        } else {
            // Neighbours, then neighbours of neighbours: ((0+1)+(2+3))+...
            let mut distance = 1;
            while distance < self.rank_count {
                for left in (0..self.rank_count).step_by(2 * distance) {
                    let (lower, upper) = parts.split_at_mut(left + distance);
                    add(lower[left].values_mut(), upper[0].values());
                }
                distance *= 2;
            }
            gradient[self.slice(own)].copy_from_slice(parts[0].values());
        }
        self.parts = parts;
        Ok(())
    }

    /// Of two ranks each adds what came to what it has: a sum of two does not know their order.
    fn adds_in_place(&self) -> bool {
        self.rank_count == 2
    }

    fn slice(&self, rank: usize) -> Range<usize> {
        slice_of(self.parameter_count, rank, self.rank_count)
    }

    /// Starts to give every other rank the slice of `weights` that this one has updated.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn start_gather<'c>(
        &mut self,
        comm: &'c dyn Communicator,
        weights: &[f32],
    ) -> Result<Option<Pending<'c>>, CommError> {
        assert_eq!(weights.len(), self.parameter_count);
        if self.rank_count == 1 {
            return Ok(None);
        }
        let mut parts = take(&mut self.weights);
        let own = &weights[self.slice(comm.rank())];
        for (rank, part) in parts.iter_mut().enumerate() {
            part.resize(if rank == comm.rank() { 0 } else { size_of_val(own) });
            if rank != comm.rank() {
                part.values_mut().copy_from_slice(own);
            }
        }
        comm.start_all_to_all(parts).map(Some)
    }

    /// Waits for the slices that the others have updated, and puts them into `weights`.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn finish_gather(
        &mut self,
        comm: &dyn Communicator,
        pending: Option<Pending<'_>>,
        weights: &mut [f32],
    ) -> Result<(), CommError> {
        let Some(pending) = pending else { return Ok(()) };
        self.weights = pending.wait()?;
        for (rank, part) in self.weights.iter().enumerate() {
            if rank != comm.rank() {
                weights[self.slice(rank)].copy_from_slice(part.values());
            }
        }
        Ok(())
    }
}

fn add(sum: &mut [f32], values: &[f32]) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum += value;
    }
}

#[cfg(test)]
mod tests {
    use campanile_comm::threads;

    use super::*;

    /// Grain `g`'s gradient: values whose sum shows the order of additions.
    fn grain(g: usize, length: usize) -> Vec<f32> {
        (0..length)
            .map(|i| ((g * 7919 + i * 104_729) % 1000) as f32 * 1e-3 + if g == 3 { 1e6 } else { 0.0 })
            .collect()
    }

    fn tree(grains: Range<usize>, length: usize) -> Vec<f32> {
        if grains.len() == 1 {
            return grain(grains.start, length);
        }
        let middle = grains.start + grains.len() / 2;
        let mut left = tree(grains.start..middle, length);
        add(&mut left, &tree(middle..grains.end, length));
        left
    }

    #[test]
    fn the_sum_is_the_same_bits_for_every_number_of_ranks() {
        let length = 3 * BLOCK + 17;
        let want = tree(0..8, length);
        let sequential = (1..8).fold(grain(0, length), |mut sum, g| {
            add(&mut sum, &grain(g, length));
            sum
        });
        assert_ne!(want, sequential, "the values must be able to show a wrong order");
        for ranks in [1, 2, 4, 8] {
            let sums = threads::run(ranks, |me| -> Result<_, CommError> {
                let each = 8 / ranks;
                let mut values = tree(me.rank() * each..(me.rank() + 1) * each, length);
                let mut reduction = Reduction::new(length, ranks);
                let pending = reduction.start_sum(me, &values)?;
                reduction.finish_sum(me, pending, &mut values)?;
                let pending = reduction.start_gather(me, &values)?;
                reduction.finish_gather(me, pending, &mut values)?;
                Ok(values)
            });
            for sum in sums.unwrap() {
                assert!(sum.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()), "{ranks} ranks");
            }
        }
    }
}
