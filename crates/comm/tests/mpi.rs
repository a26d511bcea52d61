//! Ranks as MPI processes keep the communicator's contract.
//!
//! This program has two lives. Started by `cargo test`, it starts itself under `mpirun` with some numbers of
//! processes; started by `mpirun`, it is one rank and runs what its first argument names.

#[path = "contract/suite.rs"]
mod suite;

use std::process::{Command, ExitCode};

use campanile_comm::{
    Buffer, CommError, Communicator,
    mpi::{Settings, World},
};

fn main() -> ExitCode {
    if std::env::var_os("OMPI_COMM_WORLD_SIZE").is_some() || std::env::var_os("PMI_SIZE").is_some() {
        return rank(&std::env::args().nth(1).unwrap_or_default());
    }
    for processes in [1, 2, 3, 4] {
        for part in ["contract", "pieces", "leaves_at_once"] {
            succeeds(processes, part);
        }
    }
    for processes in [2, 4] {
        fails(processes, "one_fails", "rank 1: the disk is full");
        fails(processes, "one_leaves", "rank 1 ended before the others");
        fails(processes, "one_hangs", "rank 0: no patience");
    }
    fails(4, "one_leaves_its_group", "rank 3 ended before the others");
    fails(4, "one_fails_in_its_group", "rank 3: the disk is full");
    ExitCode::SUCCESS
}

/// Seconds after which a program counts as hung; it takes one or two.
const PATIENCE: u64 = 60;

/// Runs a part under mpirun: its exit code, and what it said.
fn start(processes: usize, part: &str) -> (Option<i32>, String) {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", &PATIENCE.to_string(), "mpirun"]);
    command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
    command.args(["-n", &processes.to_string()]).arg(program).arg(part);
    let output = command.output().unwrap_or_else(|error| panic!("mpirun cannot be started: {error}"));
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn succeeds(processes: usize, part: &str) {
    let (code, words) = start(processes, part);
    assert_eq!(code, Some(0), "`{part}` on {processes} processes: {words}");
    println!("`{part}` on {processes} processes ... ok");
}

fn fails(processes: usize, part: &str, message: &str) {
    let (code, words) = start(processes, part);
    assert_eq!(code, Some(1), "`{part}` on {processes} processes: {words}");
    assert_eq!(words.matches(message).count(), 1, "`{part}` on {processes} processes: {words}");
    println!("`{part}` on {processes} processes ... ok");
}

/// One rank's life: runs a part, tells what went wrong if it went wrong here, and leaves.
fn rank(part: &str) -> ExitCode {
    let settings = match part {
        "pieces" => Settings { piece_bytes_max: 1_000 },
        _ => Settings::default(),
    };
    let world = World::join(settings).unwrap();
    let comm = world.all_ranks();
    let outcome = match part {
        "contract" | "pieces" => suite::PROGRAMS.iter().try_for_each(|(_, program)| program(&comm)),
        "leaves_at_once" => leaves_at_once(&comm),
        "one_fails" => one_fails(&comm),
        "one_leaves" => one_leaves(&comm),
        "one_hangs" => one_hangs(&comm),
        "one_leaves_its_group" => one_leaves_its_group(&comm),
        "one_fails_in_its_group" => one_fails_in_its_group(&comm),
        "huge" => huge(&comm),
        other => panic!("there is no part `{other}`"),
    };
    if let Err(error) = &outcome
        && world.failure().is_none_or(|failure| failure.rank == comm.rank())
    {
        eprintln!("{error}");
    }
    match world.leave(outcome.map_err(|error| error.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Rank 1 gives up between two collectives, where the others wait for it.
fn one_fails(comm: &dyn Communicator) -> Result<(), CommError> {
    comm.barrier()?;
    if comm.rank() == 1 {
        return Err(CommError::RankFailed { rank: 1, message: "the disk is full".to_owned() });
    }
    let heard = comm.all_gather(Buffer::of(&vec![7u8; 1 << 20]));
    let told = CommError::RankFailed { rank: 1, message: "rank 1: the disk is full".to_owned() };
    assert_eq!(heard.unwrap_err(), told);
    Err(told)
}

/// Rank 1 ends as if all were done. Rank 0 alone waits for it, so that one rank tells what it saw.
fn one_leaves(comm: &dyn Communicator) -> Result<(), CommError> {
    comm.barrier()?;
    match comm.rank() {
        0 => comm.gather(0, Buffer::new()).map(drop),
        1 => Ok(()),
        _ => comm.gather(0, Buffer::new()).map(drop),
    }
}

/// Rank 3 ends, and rank 2 waits for it in the group of both, where it is the one at place 1.
fn one_leaves_its_group(comm: &dyn Communicator) -> Result<(), CommError> {
    let pair = comm.split((comm.rank() / 2) as u32)?;
    comm.barrier()?;
    if comm.rank() == 2 { pair.all_gather(Buffer::new()).map(drop) } else { Ok(()) }
}

/// Rank 3 says in its group that it cannot go on; rank 2 hears it by the number among all.
fn one_fails_in_its_group(comm: &dyn Communicator) -> Result<(), CommError> {
    let pair = comm.split((comm.rank() / 2) as u32)?;
    comm.barrier()?;
    let agreed = pair.agree(if comm.rank() == 3 { Err("the disk is full".to_owned()) } else { Ok(()) });
    if comm.rank() > 1 {
        let told = CommError::RankFailed { rank: 3, message: "the disk is full".to_owned() };
        assert_eq!(agreed, Err(told));
    }
    agreed
}

/// All but rank 0 send a large letter and leave without waiting for anything: the letter arrives all the same.
fn leaves_at_once(comm: &dyn Communicator) -> Result<(), CommError> {
    let letter = Buffer::of(&vec![comm.rank() as u64; 4 << 20]);
    if comm.rank() > 0 {
        return comm.gather(0, letter).map(drop);
    }
    // Whoever left is long gone when the first letter is looked at.
    std::thread::yield_now();
    let letters = comm.gather(0, letter)?;
    for (rank, letter) in letters.iter().enumerate() {
        assert!(letter.values::<u64>().iter().all(|word| *word == rank as u64), "letter of rank {rank}");
        assert_eq!(letter.len(), 32 << 20);
    }
    Ok(())
}

/// Rank 1 does not hear that rank 0 gives up, and is ended.
fn one_hangs(comm: &dyn Communicator) -> Result<(), CommError> {
    comm.barrier()?;
    match comm.rank() {
        0 => Err(CommError::RankFailed { rank: 0, message: "no patience".to_owned() }),
        1 => loop {
            std::thread::park();
        },
        _ => comm.barrier(),
    }
}

/// A message above what MPI can count; started by hand, for it takes some gigabytes.
fn huge(comm: &dyn Communicator) -> Result<(), CommError> {
    let words = (9usize << 30) / 4 / 8;
    let mut buffer = Buffer::new();
    buffer.resize(words * 8);
    buffer.values_mut::<u64>().iter_mut().enumerate().for_each(|(place, word)| *word = place as u64);
    let told = comm.broadcast(0, if comm.rank() == 0 { buffer } else { Buffer::new() })?;
    assert!(told.values::<u64>().iter().enumerate().all(|(place, word)| *word == place as u64));
    assert_eq!(told.len(), words * 8);
    println!("rank {} has {} bytes", comm.rank(), told.len());
    Ok(())
}
