//! Cutting a length into nearly equal pieces: 16 rows become tiles of 6, 5 and 5, not of 6, 6 and 4.
//!
//! Equal pieces keep enough accumulators busy in the last tile too.

use std::ops::Range;

/// `total` cut into as few pieces of at most `max` as there can be, the longer ones first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cuts {
    pieces: usize,
    shorter: usize,
    longer_pieces: usize,
}

/// One piece: where it starts and how long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub start: usize,
    pub length: usize,
}

/// Neighbouring pieces of one length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub first: Piece,
    pub count: usize,
}

impl Cuts {
    pub(crate) fn new(total: usize, max: usize) -> Cuts {
        let pieces = total.div_ceil(max);
        match pieces {
            0 => Cuts { pieces, shorter: 0, longer_pieces: 0 },
            _ => Cuts { pieces, shorter: total / pieces, longer_pieces: total % pieces },
        }
    }

    /// The length that was cut.
    pub(crate) fn total(&self) -> usize {
        self.pieces * self.shorter + self.longer_pieces
    }

    pub(crate) fn len(&self) -> usize {
        self.pieces
    }

    pub(crate) fn get(&self, index: usize) -> Piece {
        debug_assert!(index < self.pieces);
        let start = index * self.shorter + index.min(self.longer_pieces);
        Piece { start, length: self.shorter + usize::from(index < self.longer_pieces) }
    }

    /// The pieces of `range`, as runs of equal length: two at most.
    pub(crate) fn runs(self, range: Range<usize>) -> impl Iterator<Item = Run> {
        let border = self.longer_pieces.clamp(range.start, range.end);
        let runs = [range.start..border, border..range.end].into_iter().filter(|run| !run.is_empty());
        runs.map(move |run| Run { first: self.get(run.start), count: run.len() })
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Piece> {
        (0..self.pieces).map(move |index| self.get(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_one_another_and_differ_by_one_at_most() {
        for (total, max) in (0..100).flat_map(|total| (1..10).map(move |max| (total, max))) {
            let pieces: Vec<Piece> = Cuts::new(total, max).iter().collect();
            let mut end = 0;
            for piece in &pieces {
                assert_eq!(piece.start, end);
                assert!(piece.length >= 1 && piece.length <= max);
                assert!(pieces[0].length - piece.length <= 1);
                end += piece.length;
            }
            let runs = Cuts::new(total, max).runs(0..pieces.len());
            let again = runs.flat_map(|Run { first: Piece { start, length }, count }| {
                (0..count).map(move |i| Piece { start: start + i * length, length })
            });
            assert_eq!(again.collect::<Vec<_>>(), pieces);
            assert_eq!(
                (end, pieces.len(), Cuts::new(total, max).total()),
                (total, total.div_ceil(max), total)
            );
        }
    }
}
