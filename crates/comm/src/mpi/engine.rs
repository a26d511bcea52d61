//! The one thread that talks to MPI.
//!
//! Open MPI moves data only while somebody calls it, so this thread keeps calling: again and again while a rank's
//! own thread waits for an answer ([`Waiting`]), now and then while that thread computes (it must not lose its core), and
//! not at all while nothing is under way. The ranks' own threads never call MPI.

use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc::SyncSender},
    time::Duration,
};

use super::{
    Settings,
    group::{Group, PlaceOfPiece},
    library::{Arrived, Ended, Library, Transfers},
    pool::Pool,
    shared::{Answer, Expects, Failure, Order, Outgoing, Shared, Start},
    waiting::{Pause, Waiting},
};
use crate::{Buffer, CommError};

/// Tag of the words between these threads themselves; groups have tags above.
const CONTROL: u16 = 0;

/// A pause while a rank's thread computes.
const LONG_PAUSE: Duration = Duration::from_micros(200);

/// Words of other ranks are looked for once in so many polls, and after every nap.
const POLLS_PER_CONTROL: u32 = 16;

/// How long a rank that gives up waits for the others to do so too; then it ends them.
const FAREWELL_SECONDS: f64 = 3.0;

/// What a transfer is.
enum Label {
    Piece(u16, PlaceOfPiece),
    Words(usize),
    Sent,
}

/// An exchange under way.
struct Exchange {
    answer: Arc<Answer>,
    parts: Vec<Buffer>,
    missing: usize,
}

/// What is known of another rank's end.
enum Presence {
    Here,
    /// Left after it had sent us so many pieces, by tag. They may still be on their way, for as long as its machine is
    /// busy with other things; once all are here, what we still wait for will never come.
    Left(BTreeMap<u16, u64>),
}

/// Pieces to or from other ranks, by rank and tag.
type PieceCounts = BTreeMap<(usize, u16), u64>;

/// This rank's end. Where some rank has failed, it does not wait for ever.
struct Farewell {
    deadline: Option<f64>,
}

/// Everything that is under way.
pub struct Engine {
    library: Library,
    shared: Arc<Shared>,
    settings: Settings,
    groups: BTreeMap<u16, Group>,
    exchanges: BTreeMap<u64, Exchange>,
    next_exchange: u64,
    transfers: Transfers<Label>,
    pool: Pool,
    sent: PieceCounts,
    received: PieceCounts,
    others: Vec<Presence>,
    farewell: Option<Farewell>,
    waiting: Waiting,
    has_napped: bool,
    polls: u32,
}

/// What the thread tells when MPI is up: this rank, and how many there are.
pub type Greeting = Result<(usize, usize), CommError>;

/// The body of the thread.
pub fn run(shared: Arc<Shared>, settings: Settings, greeting: &SyncSender<Greeting>) {
    let library = match Library::start() {
        Ok(library) => library,
        Err(refused) => {
            // The other side waits for this; if it is gone, there is nobody to tell.
            let _ = greeting.send(Err(CommError::Library { reason: refused.0.to_owned() }));
            return;
        }
    };
    let (rank, rank_count) = (library.rank(), library.rank_count());
    let _ = greeting.send(Ok((rank, rank_count)));
    let engine = Engine {
        library,
        shared,
        settings,
        groups: BTreeMap::new(),
        exchanges: BTreeMap::new(),
        next_exchange: 0,
        transfers: Transfers::new(),
        pool: Pool::default(),
        sent: PieceCounts::new(),
        received: PieceCounts::new(),
        others: (0..rank_count).map(|_| Presence::Here).collect(),
        farewell: None,
        waiting: Waiting::default(),
        has_napped: false,
        polls: 0,
    };
    engine.run();
}

impl Engine {
    fn run(mut self) {
        loop {
            let mut has_moved = false;
            while let Some(order) = self.shared.next_order() {
                self.follow(order);
                has_moved = true;
            }
            has_moved |= self.poll();
            if has_moved {
                self.waiting.is_over();
            }
            if let Some(farewell) = &self.farewell {
                let all_left = self.others.iter().all(|other| !matches!(other, Presence::Here));
                let is_late = farewell.deadline.is_some_and(|deadline| self.library.seconds() > deadline);
                if all_left && self.transfers.len() == 0 {
                    return self.library.finish();
                }
                if is_late || (all_left && farewell.deadline.is_some()) {
                    // The library may not be ended while transfers are under way that nobody will complete. When a
                    // process ends like this, mpirun ends those that are left. (MPI_Abort says the same, but several
                    // at once can leave mpirun 4.1 waiting for ever.)
                    std::process::exit(1);
                }
            }
            self.pause();
        }
    }

    fn pause(&mut self) {
        self.has_napped = true;
        let is_idle = self.transfers.len() == 0 && self.exchanges.is_empty() && self.farewell.is_none();
        if is_idle {
            self.waiting.is_over();
            self.shared.sleep(None);
        } else if self.shared.is_waited_for() || self.farewell.is_some() {
            let now = self.library.seconds();
            match self.waiting.pause(now) {
                Pause::GiveWay => {
                    std::thread::yield_now();
                    self.waiting.gave_way(now, self.library.seconds());
                    self.has_napped = false;
                }
                Pause::Nap(time) => self.shared.nap(time),
            }
        } else {
            self.waiting.is_over();
            self.shared.sleep(Some(LONG_PAUSE));
        }
    }

    fn follow(&mut self, order: Order) {
        match order {
            Order::Form(tag, members) => {
                self.groups.insert(tag, Group::new(members, self.library.rank()));
            }
            Order::Dissolve(tag) => drop(self.groups.remove(&tag)),
            Order::Start(start) => self.start(start),
            Order::Leave(failure) => self.leave(failure),
        }
    }

    fn start(&mut self, start: Start) {
        if let Some(Failure { rank, message }) = self.shared.failure() {
            return start.answer.give(&self.shared, Err(CommError::RankFailed { rank, message }));
        }
        let Some(group) = self.groups.get_mut(&start.tag) else {
            unreachable!("group {} was formed before it is used", start.tag)
        };
        let place = group.place;
        let places = 0..group.members.len();
        let mut parts = vec![Buffer::new(); group.members.len()];
        let mut missing = 0;
        let id = self.next_exchange;
        self.next_exchange += 1;
        for source in places.clone().filter(|&source| source != place) {
            let expected = match start.expects {
                Expects::All => true,
                Expects::Only(only) => only == source,
                Expects::Nobody => false,
            };
            if expected {
                match group.expect(source, id) {
                    Some(letter) => parts[source] = letter,
                    None => missing += 1,
                }
            }
        }
        parts[place] = start.own;
        let members = group.members.clone();
        match start.outgoing {
            Outgoing::Nothing => {}
            Outgoing::Only(to, buffer) => self.send(members[to], start.tag, Arc::new(buffer)),
            Outgoing::Same(buffer) => {
                let buffer = Arc::new(buffer);
                for to in places.filter(|&to| to != place) {
                    self.send(members[to], start.tag, Arc::clone(&buffer));
                }
            }
            Outgoing::Each(buffers) => {
                for (to, buffer) in buffers.into_iter().enumerate() {
                    if to == place {
                        parts[place] = buffer;
                    } else {
                        self.send(members[to], start.tag, Arc::new(buffer));
                    }
                }
            }
        }
        if missing == 0 {
            start.answer.give(&self.shared, Ok(parts));
        } else {
            self.exchanges.insert(id, Exchange { answer: start.answer, parts, missing });
        }
    }

    /// Sends full pieces, and last one that is shorter than full, so that the receiver knows the end.
    fn send(&mut self, to: usize, tag: u16, buffer: Arc<Buffer>) {
        let full = self.settings.piece_bytes_max;
        let mut start = 0;
        loop {
            let end = buffer.len().min(start + full);
            self.transfers.send(&self.library, to, tag, Arc::clone(&buffer), start..end, Label::Sent);
            *self.sent.entry((to, tag)).or_default() += 1;
            if end - start < full {
                return;
            }
            start = end;
        }
    }

    /// Lets the library work once, and deals with what has come; says whether anything has.
    fn poll(&mut self) -> bool {
        let mut has_moved = false;
        self.polls = self.polls.wrapping_add(1);
        let owed: Vec<u16> =
            self.groups.iter().filter(|(_, group)| group.is_owed()).map(|(tag, _)| *tag).collect();
        for tag in owed {
            while let Some(arrived) = self.library.arrived(tag) {
                self.receive(tag, arrived);
                has_moved = true;
            }
        }
        if self.polls.is_multiple_of(POLLS_PER_CONTROL) || self.has_napped {
            while let Some(arrived) = self.library.arrived(CONTROL) {
                let label = Label::Words(arrived.source);
                self.transfers.receive(&self.library, arrived, Buffer::new(), label);
                has_moved = true;
            }
            self.give_up_on_those_who_left();
        }
        let mut ended = Vec::new();
        self.transfers.ended(&self.library, |transfer| ended.push(transfer));
        has_moved |= !ended.is_empty();
        for transfer in ended {
            match transfer {
                Ended::Sent(_, buffer) => {
                    if let Some(buffer) = Arc::into_inner(buffer) {
                        self.pool.give(buffer);
                    }
                }
                Ended::Received(Label::Piece(tag, place), buffer) => self.deliver(tag, place, buffer),
                Ended::Received(Label::Words(source), buffer) => self.hear(source, &buffer),
                Ended::Received(Label::Sent, _) => unreachable!("a received buffer was not sent"),
            }
        }
        has_moved
    }

    fn receive(&mut self, tag: u16, arrived: Arrived) {
        let Some(group) = self.groups.get_mut(&tag) else { return };
        let source = group.members.iter().position(|&member| member == arrived.source);
        let Some(source) = source else { unreachable!("rank {} is not in group {tag}", arrived.source) };
        let place = group.find(source, arrived.bytes < self.settings.piece_bytes_max);
        let buffer = self.pool.take(arrived.bytes);
        self.transfers.receive(&self.library, arrived, buffer, Label::Piece(tag, place));
    }

    fn deliver(&mut self, tag: u16, place: PlaceOfPiece, buffer: Buffer) {
        let Some(group) = self.groups.get_mut(&tag) else { return };
        *self.received.entry((group.members[place.source], tag)).or_default() += 1;
        let Some((owner, letter)) = group.receive(place, buffer, &mut self.pool) else { return };
        let Some(exchange) = self.exchanges.get_mut(&owner) else { return };
        exchange.parts[place.source] = letter;
        exchange.missing -= 1;
        if exchange.missing == 0
            && let Some(exchange) = self.exchanges.remove(&owner)
        {
            exchange.answer.give(&self.shared, Ok(exchange.parts));
        }
    }

    /// Words of another rank: it leaves, perhaps because some rank, itself or another, has failed.
    fn hear(&mut self, source: usize, words: &Buffer) {
        let (pieces, failure) = read_farewell(words.bytes());
        self.others[source] = Presence::Left(pieces);
        let Some(Failure { rank, message }) = failure else { return };
        self.shared.fail(Failure { rank, message: message.clone() });
        for (_, exchange) in std::mem::take(&mut self.exchanges) {
            let error = CommError::RankFailed { rank, message: message.clone() };
            exchange.answer.give(&self.shared, Err(error));
        }
        if let Some(farewell) = &mut self.farewell {
            farewell.deadline.get_or_insert(self.library.seconds() + FAREWELL_SECONDS);
        }
    }

    /// Ends the exchanges that wait for a rank that has left without sending what they wait for.
    fn give_up_on_those_who_left(&mut self) {
        for (rank, presence) in self.others.iter().enumerate() {
            let Presence::Left(pieces) = presence else { continue };
            for (tag, group) in &self.groups {
                let count = |counts: Option<&u64>| counts.copied().unwrap_or(0);
                if count(self.received.get(&(rank, *tag))) < count(pieces.get(tag)) {
                    continue;
                }
                let Some(place) = group.members.iter().position(|&member| member == rank) else { continue };
                for id in group.waiting_for(place) {
                    if let Some(exchange) = self.exchanges.remove(&id) {
                        exchange.answer.give(&self.shared, Err(CommError::RankLeft { rank }));
                    }
                }
            }
        }
    }

    /// Tells all others that this rank ends, what it has sent them, and why.
    fn leave(&mut self, failure: Option<Failure>) {
        let me = self.library.rank();
        for to in (0..self.library.rank_count()).filter(|&to| to != me) {
            let pieces: Vec<(u16, u64)> =
                self.sent.range((to, 0)..=(to, u16::MAX)).map(|((_, tag), count)| (*tag, *count)).collect();
            let words = Arc::new(farewell(&pieces, failure.as_ref()));
            let whole = 0..words.len();
            self.transfers.send(&self.library, to, CONTROL, words, whole, Label::Sent);
        }
        self.others[me] = Presence::Left(BTreeMap::new());
        let failed = failure.is_some() || self.shared.failure().is_some();
        let deadline = failed.then(|| self.library.seconds() + FAREWELL_SECONDS);
        self.farewell = Some(Farewell { deadline });
    }
}

/// The last words of a rank to another: the number of tags, each tag with the pieces sent there, and for a failure
/// its rank and message.
fn farewell(pieces: &[(u16, u64)], failure: Option<&Failure>) -> Buffer {
    let mut words = (pieces.len() as u64).to_le_bytes().to_vec();
    for (tag, count) in pieces {
        words.extend_from_slice(&u64::from(*tag).to_le_bytes());
        words.extend_from_slice(&count.to_le_bytes());
    }
    if let Some(failure) = failure {
        words.extend_from_slice(&(failure.rank as u64).to_le_bytes());
        words.extend_from_slice(failure.message.as_bytes());
    }
    Buffer::of(&words)
}

fn read_farewell(words: &[u8]) -> (BTreeMap<u16, u64>, Option<Failure>) {
    let mut rest = words;
    let mut number = || {
        let (first, after) = rest.split_first_chunk::<8>()?;
        rest = after;
        Some(u64::from_le_bytes(*first))
    };
    let tags = number().unwrap_or(0);
    let pieces = (0..tags).map_while(|_| Some((number()? as u16, number()?))).collect();
    let failed = number().map(|rank| rank as usize);
    let failure = failed.map(|rank| Failure { rank, message: String::from_utf8_lossy(rest).into_owned() });
    (pieces, failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_arrive_as_they_were_said() {
        let failure = Failure { rank: 3, message: "rank 3: the disk is full".to_owned() };
        for (pieces, failure) in [(vec![], None), (vec![(1, 7), (300, 1 << 40)], Some(failure))] {
            let (told, why) = read_farewell(farewell(&pieces, failure.as_ref()).bytes());
            assert_eq!(told, pieces.into_iter().collect());
            assert_eq!(why.map(|one| (one.rank, one.message)), failure.map(|one| (one.rank, one.message)));
        }
    }
}
