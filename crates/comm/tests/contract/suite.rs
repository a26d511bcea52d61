//! What every backend of the communicator must do, as programs that all ranks run.

use campanile_comm::{Buffer, CommError, Communicator};

/// A program that every rank of a group runs.
pub type Program = fn(&dyn Communicator) -> Result<(), CommError>;

/// All of them, by name.
pub const PROGRAMS: &[(&str, Program)] = &[
    ("every rank gets what every rank sent it", parts_arrive),
    ("lengths differ and may be nothing", lengths_differ),
    ("several exchanges are waited for in any order", any_order),
    ("a rank may be ahead of the others", one_ahead),
    ("gathering and spreading", gather_and_broadcast),
    ("groups split by colour, and again", groups),
    ("groups split by host", hosts),
    ("exchanges of several groups at once", groups_at_once),
    ("members and peers take turns", members_and_peers),
    ("anything in any order", anything),
    ("agreeing", agreement),
];

fn letter(round: usize, from: usize, to: usize) -> Buffer {
    Buffer::of(format!("{round}:{from}>{to}").as_bytes())
}

fn parts(comm: &dyn Communicator, round: usize) -> Vec<Buffer> {
    (0..comm.rank_count()).map(|to| letter(round, comm.rank(), to)).collect()
}

fn check_parts(comm: &dyn Communicator, round: usize, heard: &[Buffer]) {
    assert_eq!(heard.len(), comm.rank_count());
    for (from, heard) in heard.iter().enumerate() {
        assert_eq!(heard.bytes(), letter(round, from, comm.rank()).bytes(), "round {round} from {from}");
    }
}

fn parts_arrive(comm: &dyn Communicator) -> Result<(), CommError> {
    for round in 0..50 {
        let heard = comm.all_to_all(parts(comm, round))?;
        check_parts(comm, round, &heard);
    }
    Ok(())
}

/// A part whose length and bytes follow from who sends it to whom and when.
fn long_part(round: usize, from: usize, to: usize) -> Buffer {
    const LENGTHS: [usize; 8] = [0, 1, 63, 64, 4_000, 999, 70_000, 1_300_000];
    let length = LENGTHS[(round + 3 * from + 5 * to) % LENGTHS.len()];
    let byte = |place: usize| (place.wrapping_mul(31) ^ (round + 7 * from + 11 * to)) as u8;
    Buffer::of(&(0..length).map(byte).collect::<Vec<u8>>())
}

fn lengths_differ(comm: &dyn Communicator) -> Result<(), CommError> {
    for round in 0..16 {
        let send = (0..comm.rank_count()).map(|to| long_part(round, comm.rank(), to)).collect();
        for (from, heard) in comm.all_to_all(send)?.iter().enumerate() {
            assert!(
                heard.bytes() == long_part(round, from, comm.rank()).bytes(),
                "round {round} from {from}"
            );
        }
    }
    Ok(())
}

fn any_order(comm: &dyn Communicator) -> Result<(), CommError> {
    let mut pending = Vec::new();
    for round in 0..6 {
        pending.push((round, comm.start_all_to_all(parts(comm, round))?));
    }
    for place in [3, 0, 2, 2, 1, 0] {
        let (round, exchange) = pending.remove(place);
        check_parts(comm, round, &exchange.wait()?);
    }
    Ok(())
}

fn one_ahead(comm: &dyn Communicator) -> Result<(), CommError> {
    let leader = comm.rank() == comm.rank_count() - 1;
    let mut pending = std::collections::VecDeque::new();
    for round in 0..20 {
        pending.push_back((round, comm.start_all_to_all(parts(comm, round))?));
        // One rank starts five before it waits for the first, the others wait for each.
        while pending.len() > if leader { 5 } else { 0 } {
            let Some((round, exchange)) = pending.pop_front() else { break };
            check_parts(comm, round, &exchange.wait()?);
        }
    }
    for (round, exchange) in pending {
        check_parts(comm, round, &exchange.wait()?);
    }
    Ok(())
}

fn gather_and_broadcast(comm: &dyn Communicator) -> Result<(), CommError> {
    let (rank, count) = (comm.rank(), comm.rank_count());
    for root in 0..count {
        let gathered = comm.gather(root, letter(1, rank, root))?;
        for (from, heard) in gathered.iter().enumerate() {
            let want = if rank == root { letter(1, from, root) } else { Buffer::new() };
            assert_eq!(heard.bytes(), want.bytes());
        }
        let told = comm.broadcast(root, letter(2, rank, rank))?;
        assert_eq!(told.bytes(), letter(2, root, root).bytes());
        for (from, heard) in comm.all_gather(letter(3, rank, 0))?.iter().enumerate() {
            assert_eq!(heard.bytes(), letter(3, from, 0).bytes());
        }
        comm.barrier()?;
    }
    Ok(())
}

fn groups(comm: &dyn Communicator) -> Result<(), CommError> {
    let parity = comm.rank() % 2;
    for _ in 0..3 {
        let half = comm.split(parity as u32)?;
        let members: Vec<usize> = (0..comm.rank_count()).filter(|rank| rank % 2 == parity).collect();
        assert_eq!((half.rank(), half.rank_count()), (comm.rank() / 2, members.len()));
        let heard = half.all_gather(Buffer::of(&[comm.rank() as u64]))?;
        let heard: Vec<usize> = heard.iter().map(|words| words.values::<u64>()[0] as usize).collect();
        assert_eq!(heard, members);
        let alone = half.split(half.rank() as u32)?;
        assert_eq!((alone.rank(), alone.rank_count()), (0, 1));
        // Nobody else takes part, but every collective works, and exchanges may be waited for in any order.
        assert_eq!(alone.all_gather(Buffer::of(b"me"))?[0].bytes(), b"me");
        assert_eq!(alone.gather(0, Buffer::of(b"me"))?[0].bytes(), b"me");
        assert_eq!(alone.broadcast(0, Buffer::of(b"me"))?.bytes(), b"me");
        alone.barrier()?;
        let [first, second] =
            [b"first", b"later"].map(|words| alone.start_all_to_all(vec![Buffer::of(words)]));
        assert_eq!(second?.wait()?[0].bytes(), b"later");
        assert_eq!(first?.wait()?[0].bytes(), b"first");
        let whole = half.split(7)?;
        check_parts(&*whole, 4, &whole.all_to_all(parts(&*whole, 4))?);
    }
    Ok(())
}

fn hosts(comm: &dyn Communicator) -> Result<(), CommError> {
    let host = comm.split_by_host()?;
    let names = host.all_gather(Buffer::of(comm.host_name().as_bytes()))?;
    assert!(names.iter().all(|name| name.bytes() == comm.host_name().as_bytes()));
    let all = comm.all_gather(Buffer::of(comm.host_name().as_bytes()))?;
    assert_eq!(names.len(), all.iter().filter(|name| name.bytes() == comm.host_name().as_bytes()).count());
    Ok(())
}

fn groups_at_once(comm: &dyn Communicator) -> Result<(), CommError> {
    let half = comm.split((comm.rank() % 2) as u32)?;
    let same = comm.split(0)?;
    for round in 0..10 {
        let in_all = comm.start_all_to_all(parts(comm, round))?;
        let in_half = half.start_all_to_all(parts(&*half, round + 100))?;
        let in_same = same.start_all_to_all(parts(&*same, round + 200))?;
        check_parts(&*same, round + 200, &in_same.wait()?);
        check_parts(comm, round, &in_all.wait()?);
        check_parts(&*half, round + 100, &in_half.wait()?);
    }
    Ok(())
}

/// Ranks in rows and columns, as towers sit: long letters among members and among peers, several of each under way at once,
/// and those waited for first that were started last.
fn members_and_peers(comm: &dyn Communicator) -> Result<(), CommError> {
    let each = if comm.rank_count().is_multiple_of(2) { 2 } else { 1 };
    let members = comm.split((comm.rank() / each) as u32)?;
    let peers = comm.split((comm.rank() % each) as u32)?;
    assert_eq!((members.rank_count(), peers.rank_count()), (each, comm.rank_count() / each));
    let send = |circle: &dyn Communicator, round| {
        (0..circle.rank_count()).map(|to| long_part(round, circle.rank(), to)).collect()
    };
    let check = |circle: &dyn Communicator, round, heard: Vec<Buffer>| {
        for (from, heard) in heard.iter().enumerate() {
            assert!(heard.bytes() == long_part(round, from, circle.rank()).bytes(), "{round} from {from}");
        }
    };
    let circles = [&*members, &*peers];
    for round in 0..4 {
        let mut pending = Vec::new();
        for chunk in 0..3 {
            for (place, circle) in circles.iter().enumerate() {
                let number = 6 * round + 2 * chunk + place;
                pending.push((place, number, circle.start_all_to_all(send(*circle, number))?));
            }
        }
        while let Some((place, number, exchange)) = pending.pop() {
            check(circles[place], number, exchange.wait()?);
        }
    }
    Ok(())
}

/// A long mixture of operations drawn from a seed that all ranks share.
fn anything(comm: &dyn Communicator) -> Result<(), CommError> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut pending = Vec::new();
    for round in 0..300 {
        let root = draw(comm.rank_count());
        match draw(6) {
            0 => check_parts(comm, round, &comm.all_to_all(parts(comm, round))?),
            1 if pending.len() < 4 => pending.push((round, comm.start_all_to_all(parts(comm, round))?)),
            2 if !pending.is_empty() => {
                let (round, exchange) = pending.swap_remove(draw(pending.len()));
                check_parts(comm, round, &exchange.wait()?);
            }
            3 => drop(comm.gather(root, letter(round, comm.rank(), root))?),
            4 => {
                let told = comm.broadcast(root, letter(round, comm.rank(), 0))?;
                assert_eq!(told.bytes(), letter(round, root, 0).bytes());
            }
            _ => comm.agree(Ok(()))?,
        }
    }
    for (round, exchange) in pending {
        check_parts(comm, round, &exchange.wait()?);
    }
    Ok(())
}

fn agreement(comm: &dyn Communicator) -> Result<(), CommError> {
    for _ in 0..20 {
        comm.agree(Ok(()))?;
    }
    Ok(())
}
