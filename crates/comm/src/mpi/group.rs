//! Letters of one group of ranks, put in order.
//!
//! MPI keeps the order of the messages between two ranks that have the same tag, and all ranks of a group start
//! their exchanges in the same order. So the n-th letter from a rank belongs to the n-th exchange that expects one
//! from it, and no message needs a header. A letter longer than a piece comes as several: a piece of full length
//! means that another follows.

use std::collections::BTreeMap;

use super::pool::Pool;
use crate::Buffer;

/// The letters between this rank and the others of a group.
pub struct Group {
    /// Ranks of the world, by place.
    pub members: Vec<usize>,
    /// This rank's place.
    pub place: usize,
    sources: Vec<Source>,
    owing: usize,
}

/// The letters from one rank.
#[derive(Default)]
struct Source {
    /// Letters expected, and letters whose last piece has been found.
    expected: u64,
    found: u64,
    /// Pieces found of the letter that is being found.
    pieces_found: usize,
    /// By letter number: whose it is.
    waiting: BTreeMap<u64, u64>,
    /// Letters that came before they were expected.
    early: BTreeMap<u64, Buffer>,
    /// Letters under transfer.
    open: BTreeMap<u64, Letter>,
}

#[derive(Default)]
struct Letter {
    pieces: Vec<Option<Buffer>>,
    missing: usize,
    is_whole: bool,
}

/// Where a piece belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaceOfPiece {
    /// The sender's place in the group.
    pub source: usize,
    letter: u64,
    piece: usize,
}

impl Group {
    /// A group in which nothing was sent yet.
    ///
    /// # Panics
    /// If `rank` is not among the members.
    pub fn new(members: Vec<usize>, rank: usize) -> Group {
        let place = members.iter().position(|&member| member == rank);
        let place = place.unwrap_or_else(|| panic!("rank {rank} is not among {members:?}"));
        let sources = members.iter().map(|_| Source::default()).collect();
        Group { members, place, sources, owing: 0 }
    }

    /// Whether a letter is expected that was not found yet.
    pub fn is_owed(&self) -> bool {
        self.owing > 0
    }

    /// Exchange `owner` expects a letter from `source`; returns it if it came before.
    pub fn expect(&mut self, source: usize, owner: u64) -> Option<Buffer> {
        let from = &mut self.sources[source];
        let letter = from.expected;
        from.expected += 1;
        // It owes from now on, unless it did before or the letter is here already.
        self.owing += usize::from(letter == from.found);
        let early = from.early.remove(&letter);
        if early.is_none() {
            from.waiting.insert(letter, owner);
        }
        early
    }

    /// The next piece from `source` was found; `is_last` says whether it ends the letter.
    pub fn find(&mut self, source: usize, is_last: bool) -> PlaceOfPiece {
        let from = &mut self.sources[source];
        let place = PlaceOfPiece { source, letter: from.found, piece: from.pieces_found };
        let letter = from.open.entry(from.found).or_default();
        letter.pieces.push(None);
        letter.missing += 1;
        letter.is_whole = is_last;
        from.pieces_found += 1;
        if is_last {
            from.pieces_found = 0;
            from.found += 1;
            // It owes no more, if this was the only letter that it owed.
            self.owing -= usize::from(from.expected == from.found);
        }
        place
    }

    /// A piece has been received. Where that completes an expected letter, returns whose it is, and the letter.
    /// A letter of several pieces is put together in memory of the pool, which gets that of the pieces.
    pub fn receive(&mut self, place: PlaceOfPiece, buffer: Buffer, pool: &mut Pool) -> Option<(u64, Buffer)> {
        let from = &mut self.sources[place.source];
        let letter = from.open.get_mut(&place.letter)?;
        letter.pieces[place.piece] = Some(buffer);
        letter.missing -= 1;
        if letter.missing > 0 || !letter.is_whole {
            return None;
        }
        let whole = joined(from.open.remove(&place.letter)?, pool);
        match from.waiting.remove(&place.letter) {
            Some(owner) => Some((owner, whole)),
            None => {
                from.early.insert(place.letter, whole);
                None
            }
        }
    }

    /// Exchanges that wait for a letter of `source`.
    pub fn waiting_for(&self, source: usize) -> Vec<u64> {
        self.sources[source].waiting.values().copied().collect()
    }
}

/// One copy of every byte, and no memory that was not there before.
fn joined(letter: Letter, pool: &mut Pool) -> Buffer {
    let mut pieces: Vec<Buffer> = letter.pieces.into_iter().flatten().collect();
    if pieces.len() == 1
        && let Some(whole) = pieces.pop()
    {
        return whole;
    }
    let bytes = pieces.iter().map(Buffer::len).sum();
    let mut whole = pool.take(bytes);
    whole.resize(bytes);
    let mut start = 0;
    for piece in pieces {
        whole.bytes_mut()[start..start + piece.len()].copy_from_slice(piece.bytes());
        start += piece.len();
        pool.give(piece);
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(buffer: &Buffer) -> String {
        String::from_utf8_lossy(buffer.bytes()).into_owned()
    }

    #[test]
    fn letters_go_to_their_exchanges_in_order_early_or_late() {
        let mut group = Group::new(vec![3, 5], 3);
        assert!(!group.is_owed());
        assert!(group.expect(1, 100).is_none());
        assert!(group.is_owed());
        let first = group.find(1, true);
        assert!(!group.is_owed());
        // The other rank is one exchange ahead, and its second letter is there before its first.
        let second = group.find(1, true);
        assert!(!group.is_owed());
        assert_eq!(
            group.receive(second, Buffer::of(b"second"), &mut Pool::default()).map(|(owner, _)| owner),
            None
        );
        let (owner, letter) = group.receive(first, Buffer::of(b"first"), &mut Pool::default()).unwrap();
        assert_eq!((owner, text(&letter).as_str()), (100, "first"));
        assert_eq!(group.expect(1, 101).map(|letter| text(&letter)), Some("second".to_owned()));
        assert!(!group.is_owed());
        assert!(group.expect(1, 102).is_none());
        assert_eq!(group.waiting_for(1), [102]);
        assert!(group.is_owed());
    }

    #[test]
    fn an_early_rank_does_not_hide_a_late_one() {
        let mut group = Group::new(vec![0, 1, 2], 0);
        group.find(1, true);
        assert!(group.expect(1, 1).is_none() && group.expect(2, 1).is_none());
        assert!(group.is_owed());
    }

    #[test]
    fn pieces_are_joined_whatever_order_they_come_in() {
        let mut group = Group::new(vec![0, 1], 0);
        assert!(group.expect(1, 7).is_none());
        let places = [group.find(1, false), group.find(1, false)];
        assert!(group.is_owed(), "the letter is not whole");
        assert!(group.receive(places[1], Buffer::of(b"56789"), &mut Pool::default()).is_none());
        let last = group.find(1, true);
        assert!(group.receive(last, Buffer::of(b"a"), &mut Pool::default()).is_none());
        let (owner, letter) = group.receive(places[0], Buffer::of(b"01234"), &mut Pool::default()).unwrap();
        assert_eq!((owner, text(&letter).as_str()), (7, "0123456789a"));
    }

    /// A step sends the same letters round and round: after the first turn no memory is asked for.
    #[test]
    fn long_letters_use_the_same_memory_again() {
        let mut group = Group::new(vec![0, 1], 0);
        let mut pool = Pool::default();
        let mut memories = Vec::new();
        for turn in 0..4u64 {
            assert!(group.expect(1, turn).is_none());
            let mut letter = None;
            for piece in 0..3 {
                let place = group.find(1, piece == 2);
                let mut buffer = pool.take(1000);
                buffer.resize(if piece == 2 { 10 } else { 1000 });
                buffer.bytes_mut().fill(piece as u8 + 1);
                letter = group.receive(place, buffer, &mut pool);
            }
            let (owner, letter) = letter.expect("the last piece makes it whole");
            assert_eq!((owner, letter.len()), (turn, 2010));
            assert!([1, 1001, 2009].iter().zip(1..).all(|(at, piece)| letter.bytes()[*at] == piece));
            memories.push(letter.bytes().as_ptr());
            // It is read, and what takes its place is sent from the same memory, which comes back.
            pool.give(letter);
        }
        assert!(memories.iter().all(|memory| *memory == memories[0]), "{memories:?}");
    }
}
