//! Dense gradients: exchange, add in tree order, gather.
//!
//! Every rank comes with its node of the tree over grains (see `spec::grain`), or, where a tower's ranks work on the samples
//! of all their peers, with the nodes of all peers. Each owns a share of the flat weights ([`Shares`]), receives that share of
//! all nodes, and adds them pairwise: the rest of the tree. Then it updates its share, and the new weights go to everyone.
//! The bytes are those of a ring; the order of additions is ours, and the same for every number of ranks.

use std::mem::take;

use campanile_comm::{Buffer, CommError, Communicator, Pending};

use crate::Shares;

/// One rank's part in the reduction.
pub struct Reduction {
    shares: Shares,
    parts: Vec<Buffer>,
    weights: Vec<Buffer>,
}

impl Reduction {
    /// For the shares of some ranks.
    pub fn new(shares: Shares) -> Reduction {
        let parts = vec![Buffer::new(); shares.rank_count()];
        Reduction { shares, weights: parts.clone(), parts }
    }

    /// Starts to send the other ranks their shares of `gradient`, which may not change until the sum is finished.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn start_sum<'c>(
        &mut self,
        comm: &'c dyn Communicator,
        gradient: &[f32],
    ) -> Result<Option<Pending<'c>>, CommError> {
        if self.shares.rank_count() == 1 {
            return Ok(None);
        }
        let own = comm.rank();
        let mut parts = take(&mut self.parts);
        for (rank, part) in parts.iter_mut().enumerate() {
            let stays = self.adds_in_place() && rank == own;
            self.pack(if stays { None } else { Some(rank) }, &[gradient], part);
        }
        comm.start_all_to_all(parts).map(Some)
    }

    /// Waits for the shares of the others and adds them to this rank's, along the tree; the rest of `gradient` keeps
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
        self.parts = pending.wait()?;
        if self.adds_in_place() {
            let mut from = self.parts[1 - own].values::<f32>();
            for range in self.shares.of(own) {
                let (values, rest) = from.split_at(range.len());
                add(&mut gradient[range.clone()], values);
                from = rest;
            }
        } else {
            let mut nodes: Vec<&mut [f32]> = self.parts.iter_mut().map(|part| part.values_mut()).collect();
            let sum = sum_along_tree(&mut nodes);
            unpack(&self.shares, own, sum, gradient);
        }
        Ok(())
    }

    /// Starts to add the nodes of all peers of all ranks: every rank comes with `nodes`, one for each peer, and its node of
    /// peer `h` is number `h * ranks + rank` among the leaves of the tree.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn start_sum_of_peers<'c>(
        &mut self,
        comm: &'c dyn Communicator,
        nodes: &[&[f32]],
    ) -> Result<Pending<'c>, CommError> {
        let mut parts = take(&mut self.parts);
        for (rank, part) in parts.iter_mut().enumerate() {
            self.pack(Some(rank), nodes, part);
        }
        comm.start_all_to_all(parts)
    }

    /// Waits for the nodes of so many peers, and leaves this rank's share of their sum in `gradient`.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn finish_sum_of_peers(
        &mut self,
        comm: &dyn Communicator,
        (pending, peers_count): (Pending<'_>, usize),
        gradient: &mut [f32],
    ) -> Result<(), CommError> {
        self.parts = pending.wait()?;
        let own = comm.rank();
        let floats = self.shares.len_of(own);
        if floats == 0 {
            return Ok(());
        }
        let mut peers: Vec<_> =
            self.parts.iter_mut().map(|part| part.values_mut::<f32>().chunks_mut(floats)).collect();
        let mut leaves: Vec<&mut [f32]> = Vec::new();
        for _ in 0..peers_count {
            leaves.extend(peers.iter_mut().filter_map(Iterator::next));
        }
        let sum = sum_along_tree(&mut leaves);
        unpack(&self.shares, own, sum, gradient);
        Ok(())
    }

    /// Of two ranks each adds what came to what it has: a sum of two does not know their order.
    fn adds_in_place(&self) -> bool {
        self.shares.rank_count() == 2
    }

    /// A rank's share of some vectors, one after the other; or nothing.
    fn pack(&self, rank: Option<usize>, vectors: &[&[f32]], part: &mut Buffer) {
        let ranges = rank.map_or(&[][..], |rank| self.shares.of(rank));
        let floats: usize = ranges.iter().map(std::ops::Range::len).sum();
        part.resize(floats * vectors.len() * size_of::<f32>());
        let mut to = part.values_mut::<f32>();
        for vector in vectors {
            for range in ranges {
                let (own, rest) = to.split_at_mut(range.len());
                own.copy_from_slice(&vector[range.clone()]);
                to = rest;
            }
        }
    }

    /// Starts to give every other rank the share of `weights` that this one has updated.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn start_gather<'c>(
        &mut self,
        comm: &'c dyn Communicator,
        weights: &[f32],
    ) -> Result<Option<Pending<'c>>, CommError> {
        if self.shares.rank_count() == 1 {
            return Ok(None);
        }
        let (mut parts, own) = (take(&mut self.weights), comm.rank());
        for (rank, part) in parts.iter_mut().enumerate() {
            self.pack((rank != own).then_some(own), &[weights], part);
        }
        comm.start_all_to_all(parts).map(Some)
    }

    /// Waits for the shares that the others have updated, and puts them into `weights`.
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
                unpack(&self.shares, rank, part.values(), weights);
            }
        }
        Ok(())
    }
}

fn unpack(shares: &Shares, rank: usize, mut values: &[f32], to: &mut [f32]) {
    for range in shares.of(rank) {
        let (own, rest) = values.split_at(range.len());
        to[range.clone()].copy_from_slice(own);
        values = rest;
    }
}

/// Neighbours, then neighbours of neighbours: ((0+1)+(2+3))+... The number of nodes is a power of two.
fn sum_along_tree<'a>(nodes: &'a mut [&mut [f32]]) -> &'a [f32] {
    assert!(nodes.len().is_power_of_two(), "{} nodes do not make a tree", nodes.len());
    let mut distance = 1;
    while distance < nodes.len() {
        for left in (0..nodes.len()).step_by(2 * distance) {
            let (lower, upper) = nodes.split_at_mut(left + distance);
            add(&mut lower[left][..], &upper[0][..]);
        }
        distance *= 2;
    }
    &*nodes[0]
}

fn add(sum: &mut [f32], values: &[f32]) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum += value;
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use campanile_comm::threads;

    use super::*;
    use crate::shares::BLOCK;

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
        let segments = [0..17, 17..length];
        for ranks in [1, 2, 4, 8] {
            let sums = threads::run(ranks, |me| -> Result<_, CommError> {
                let each = 8 / ranks;
                let mut values = tree(me.rank() * each..(me.rank() + 1) * each, length);
                let mut reduction = Reduction::new(Shares::even(&segments, ranks));
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

    /// A group's members, each with the nodes of its peers, come to the sum over all ranks.
    #[test]
    fn nodes_of_peers_make_the_same_tree() {
        let length = BLOCK + 5;
        let want = tree(0..8, length);
        for (peers, members) in [(4, 2), (2, 4), (8, 1), (2, 2), (1, 8)] {
            let each = 8 / (peers * members);
            let sums = threads::run(members, |me| -> Result<_, CommError> {
                let node = |peer: usize| {
                    let rank = peer * members + me.rank();
                    tree(rank * each..(rank + 1) * each, length)
                };
                let nodes: Vec<Vec<f32>> = (0..peers).map(node).collect();
                let nodes: Vec<&[f32]> = nodes.iter().map(Vec::as_slice).collect();
                let mut reduction = Reduction::new(Shares::even(&[Range { start: 0, end: length }], members));
                let mut sum = vec![f32::NAN; length];
                let pending = reduction.start_sum_of_peers(me, &nodes)?;
                reduction.finish_sum_of_peers(me, (pending, peers), &mut sum)?;
                let pending = reduction.start_gather(me, &sum)?;
                reduction.finish_gather(me, pending, &mut sum)?;
                Ok(sum)
            });
            for sum in sums.unwrap() {
                assert!(
                    sum.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()),
                    "{peers} x {members}"
                );
            }
        }
    }
}
