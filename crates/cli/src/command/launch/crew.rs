//! What the launcher knows of the ranks.

use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    time::Duration,
};

use serde_json::Value;

use crate::{
    awake::AwakeClock,
    heartbeat::{GO_ON, STOP_INTERRUPTED, STOP_TERMINATED},
    interrupt::Signal,
};

/// The most bytes of an unfinished line; more is not a beat.
const LINE_BYTES_MAX: usize = 1 << 16;

/// The most connections that have not shown the token yet, beside one for each rank that is still to come. Others wait in
/// the system's queue.
const STRANGERS_MAX: usize = 64;

/// How long a connection may take to show the token; ranks do so at once.
const GREETING: Duration = Duration::from_secs(5);

/// When a rank counts as hung.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Without a beat.
    pub silence: Duration,
    /// Without any rank having done anything; zero means never.
    pub stall: Duration,
    /// Without a first beat.
    pub start: Duration,
}

/// The ranks of a job.
pub struct Crew {
    token: String,
    limits: Limits,
    /// What beats are answered with.
    answer: u8,
    strangers: Vec<Stranger>,
    ranks: Vec<Option<Member>>,
    clock: AwakeClock,
    /// The present look, and the last one in which a rank had done something: times of the clock.
    now: Duration,
    moved: Duration,
}

/// A connection, and what it has said of a line.
struct Line {
    stream: TcpStream,
    text: Vec<u8>,
}

/// A connection that has not shown the token.
struct Stranger {
    line: Line,
    since: Duration,
}

/// A rank that has shown itself.
struct Member {
    line: Option<Line>,
    /// The look in which its connection was found closed.
    gone: Option<Duration>,
    host: String,
    /// None where it named none that could be.
    process: Option<u32>,
    phase: String,
    step: u64,
    moves: u64,
    is_waiting: bool,
    beat: Duration,
    goodbye: Option<Goodbye>,
}

struct Goodbye {
    has_reason: bool,
}

impl Crew {
    /// So many ranks, none of which has said anything.
    pub fn new(rank_count: usize, token: String, limits: Limits) -> Crew {
        let ranks = (0..rank_count).map(|_| None).collect();
        let (clock, now) = (AwakeClock::start(), Duration::ZERO);
        let (answer, strangers) = (GO_ON, Vec::new());
        Crew { token, limits, answer, strangers, ranks, clock, now, moved: now }
    }

    /// From now on every rank that shows itself is asked to stop; those that are here need not wait for their next beat.
    pub fn ask_to_stop(&mut self, signal: Signal) {
        let answer = match signal {
            Signal::Interrupt => STOP_INTERRUPTED,
            Signal::Terminate => STOP_TERMINATED,
        };
        if self.answer != answer {
            self.answer = answer;
            for line in self.ranks.iter_mut().flatten().filter_map(|member| member.line.as_mut()) {
                // Who does not take it now hears it in answer to a beat.
                let _ = line.stream.write(&[answer]);
            }
        }
    }

    /// Listens to all ranks; says what is wrong if one of them hangs.
    pub fn look(&mut self, listeners: &[TcpListener]) -> Option<String> {
        self.now = self.clock.look();
        self.accept(listeners);
        self.greet();
        for rank in 0..self.ranks.len() {
            self.listen(rank);
        }
        self.hung()
    }

    /// Takes new connections, as long as there is room. Who has had time to show the token, and did not, makes room.
    fn accept(&mut self, listeners: &[TcpListener]) {
        let (now, patience) = (self.now, GREETING.min(self.limits.silence / 2));
        self.strangers.retain(|stranger| now - stranger.since <= patience);
        let room = STRANGERS_MAX + self.ranks.iter().filter(|rank| rank.is_none()).count();
        for listener in listeners {
            while self.strangers.len() < room {
                let Ok((stream, _)) = listener.accept() else { break };
                if stream.set_nonblocking(true).is_ok() {
                    let line = Line { stream, text: Vec::new() };
                    self.strangers.push(Stranger { line, since: now });
                }
            }
        }
    }

    /// Makes members of the strangers who know the token.
    fn greet(&mut self) {
        for Stranger { mut line, since } in std::mem::take(&mut self.strangers) {
            let mut words = Vec::new();
            let is_open = line.read(&mut words);
            let Some(beat) = words.first() else {
                if is_open {
                    self.strangers.push(Stranger { line, since });
                }
                continue;
            };
            let rank = beat["rank"].as_u64().unwrap_or(u64::MAX) as usize;
            let is_ours = beat["token"].as_str() == Some(&self.token) && rank < self.ranks.len();
            if is_ours && self.ranks[rank].is_none() {
                let mut member = Member::new(line, beat, self.now, self.answer);
                words.iter().skip(1).for_each(|beat| member.hear(beat, self.now, self.answer));
                self.ranks[rank] = Some(member);
                self.moved = self.now;
            }
        }
    }

    fn listen(&mut self, rank: usize) {
        let Some(member) = &mut self.ranks[rank] else { return };
        let Some(line) = &mut member.line else { return };
        let mut beats = Vec::new();
        let is_open = line.read(&mut beats);
        for beat in beats {
            let moves = member.moves;
            member.hear(&beat, self.now, self.answer);
            if member.moves != moves {
                self.moved = self.now;
            }
        }
        if !is_open {
            member.line = None;
            member.gone = Some(self.now);
        }
    }

    /// Who hangs, in words.
    fn hung(&self) -> Option<String> {
        let is_silent = |member: &&Member| {
            let silence = self.now - member.beat;
            member.line.is_some() && member.goodbye.is_none() && silence > self.limits.silence
        };
        let members = || self.ranks.iter().enumerate().filter_map(|(rank, m)| Some((rank, m.as_ref()?)));
        if let Some((rank, member)) = members().find(|(_, member)| is_silent(member)) {
            let seconds = self.limits.silence.as_secs();
            return Some(format!("{} has not been heard of for {seconds} s: ended", member.words(rank)));
        }
        let absent: Vec<String> =
            (0..self.ranks.len()).filter(|&rank| self.ranks[rank].is_none()).map(|r| r.to_string()).collect();
        if !absent.is_empty() && self.now > self.limits.start {
            let seconds = self.limits.start.as_secs();
            return Some(format!("rank {} has not started within {seconds} s: ended", absent.join(", ")));
        }
        let may_stall = !self.limits.stall.is_zero() && absent.is_empty();
        if may_stall && self.now - self.moved > self.limits.stall {
            // Who waits, waits for somebody who does not.
            let stuck: Vec<String> = members()
                .filter(|(_, member)| !member.is_waiting && member.goodbye.is_none())
                .map(|(rank, member)| member.words(rank))
                .collect();
            let stuck =
                if stuck.is_empty() { "every rank waits for another".to_owned() } else { stuck.join(", ") };
            return Some(format!("nothing has moved for {} s ({stuck}): ended", self.limits.stall.as_secs()));
        }
        None
    }

    /// The rank that has gone without saying goodbye, in words. Where one dies, mpirun ends the others: the first that was
    /// missed is the one. Those that were missed in the same look cannot be told apart.
    pub fn lost(&self) -> Option<String> {
        let gone = |member: &Member| member.gone.filter(|_| member.goodbye.is_none());
        let members = || self.ranks.iter().enumerate().filter_map(|(rank, m)| Some((rank, m.as_ref()?)));
        let first = members().filter_map(|(_, member)| gone(member)).min()?;
        let names: Vec<String> = members()
            .filter(|(_, member)| gone(member) == Some(first))
            .map(|(rank, member)| member.words(rank))
            .collect();
        Some(format!("{} died without a word (was it killed, or out of memory?): ended", names.join(" or ")))
    }

    /// Whether a rank has told why it failed.
    pub fn has_told_a_reason(&self) -> bool {
        self.ranks.iter().flatten().any(|member| member.goodbye.as_ref().is_some_and(|bye| bye.has_reason))
    }

    /// The processes that ranks on a host say they are.
    pub fn processes_on(&self, host: &str) -> Vec<u32> {
        let here = self.ranks.iter().flatten().filter(|member| member.host == host);
        here.filter(|member| member.goodbye.is_none()).filter_map(|member| member.process).collect()
    }

    /// The secret of this launch.
    pub fn token(&self) -> &str {
        &self.token
    }
}

impl Member {
    fn new(line: Line, beat: &Value, now: Duration, answer: u8) -> Member {
        let mut member = Member {
            line: Some(line),
            gone: None,
            host: beat["host"].as_str().unwrap_or_default().to_owned(),
            process: beat["pid"].as_u64().and_then(process_of),
            phase: String::new(),
            step: 0,
            moves: 0,
            is_waiting: false,
            beat: now,
            goodbye: None,
        };
        member.hear(beat, now, answer);
        member
    }

    fn hear(&mut self, beat: &Value, now: Duration, answer: u8) {
        self.phase = beat["phase"].as_str().unwrap_or_default().to_owned();
        self.step = beat["step"].as_u64().unwrap_or_default();
        self.moves = beat["moves"].as_u64().unwrap_or_default();
        self.is_waiting = beat["waiting"].as_bool().unwrap_or_default();
        self.beat = now;
        if beat["goodbye"].is_object() {
            self.goodbye = Some(Goodbye { has_reason: beat["goodbye"]["reason"].is_string() });
        }
        if let Some(line) = &mut self.line {
            // A rank that does not take the answer will be missed soon.
            let _ = line.stream.write(&[answer]);
        }
    }

    fn words(&self, rank: usize) -> String {
        let phase = if self.phase.is_empty() { "start" } else { &self.phase };
        let process = self.process.map_or_else(|| "unknown".to_owned(), |process| process.to_string());
        format!("rank {rank} (host {}, process {process}, at `{phase}`, step {})", self.host, self.step)
    }
}

/// A number as that of one process: 0 stands for the caller's own group, 1 is the system's first process, and what is
/// negative to the system stands for many.
fn process_of(number: u64) -> Option<u32> {
    u32::try_from(number).ok().filter(|number| (2..=i32::MAX as u32).contains(number))
}

impl Line {
    /// Takes the lines that have come; says whether more can come.
    fn read(&mut self, beats: &mut Vec<Value>) -> bool {
        let mut bytes = [0u8; 4096];
        let is_open = loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => break false,
                Ok(count) => self.text.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break false,
            }
            if self.text.len() > LINE_BYTES_MAX {
                break false;
            }
        };
        while let Some(end) = self.text.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.text.drain(..=end).collect();
            beats.extend(serde_json::from_slice::<Value>(&line));
        }
        is_open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn crew(limits: Limits) -> (Crew, [TcpListener; 1]) {
        crew_of(2, limits)
    }

    fn crew_of(ranks: usize, limits: Limits) -> (Crew, [TcpListener; 1]) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        (Crew::new(ranks, "secret".to_owned(), limits), [listener])
    }

    fn connect(listener: &[TcpListener]) -> TcpStream {
        TcpStream::connect(listener[0].local_addr().unwrap()).unwrap()
    }

    fn say(stream: &mut TcpStream, token: &str, rank: u32, rest: &str) {
        let line = format!(
            "{{\"token\":\"{token}\",\"rank\":{rank},\"host\":\"red\",\"pid\":7,\"phase\":\"train\",\"step\":3{rest}}}\n"
        );
        stream.write_all(line.as_bytes()).unwrap();
    }

    /// Looks until something is true.
    fn until(crew: &mut Crew, listener: &[TcpListener], what: impl Fn(&Crew) -> bool) {
        while !what(crew) {
            assert_eq!(crew.look(listener), None);
        }
    }

    #[test]
    fn who_goes_without_goodbye_is_lost_and_strangers_are_not_heard() {
        let (mut crew, listener) = crew(Limits { silence: HOUR, stall: HOUR, start: HOUR });
        let [mut stranger, mut first, mut second] = [0; 3].map(|_| connect(&listener));
        say(&mut stranger, "guess", 0, "");
        say(&mut first, "secret", 0, "");
        // A rank may say everything at once.
        say(&mut second, "secret", 1, "");
        say(&mut second, "secret", 1, ",\"goodbye\":{\"fine\":false,\"reason\":\"no disk\"}");
        until(&mut crew, &listener, |crew| {
            crew.ranks.iter().all(Option::is_some) && crew.has_told_a_reason()
        });
        assert_eq!(crew.processes_on("red"), [7]);
        assert_eq!(crew.processes_on("blue"), [0; 0]);
        drop((stranger, second));
        until(&mut crew, &listener, |crew| crew.ranks[1].as_ref().is_some_and(|rank| rank.line.is_none()));
        assert_eq!(crew.lost(), None);
        drop(first);
        until(&mut crew, &listener, |crew| crew.lost().is_some());
        assert_eq!(
            crew.lost().unwrap(),
            "rank 0 (host red, process 7, at `train`, step 3) died without a word (was it killed, or out of memory?): \
             ended"
        );
    }

    #[test]
    fn silence_and_standstill_are_noticed() {
        let trouble = |limits: Limits, waiting: [bool; 2]| {
            let (mut crew, listener) = crew(limits);
            let mut streams = [connect(&listener), connect(&listener)];
            for (rank, stream) in streams.iter_mut().enumerate() {
                say(stream, "secret", rank as u32, &format!(",\"waiting\":{}", waiting[rank]));
            }
            loop {
                if let Some(words) = crew.look(&listener) {
                    return words;
                }
            }
        };
        let limits = Limits { silence: Duration::ZERO, stall: HOUR, start: HOUR };
        assert!(trouble(limits, [true; 2]).contains("has not been heard of for 0 s"));
        let limits = Limits { silence: HOUR, stall: Duration::from_nanos(1), start: HOUR };
        let words = trouble(limits, [true, false]);
        assert!(words.contains("nothing has moved") && words.contains("(rank 1 (host red"), "{words}");
        let (mut crew, listener) = crew(Limits { silence: HOUR, stall: HOUR, start: Duration::ZERO });
        assert_eq!(crew.look(&listener).unwrap(), "rank 0, 1 has not started within 0 s: ended");
    }

    /// mpirun ends the ranks that are left within moments: what counts is who was missed first.
    #[test]
    fn the_first_rank_that_was_missed_is_the_one_that_is_named() {
        for victim in 0..4 {
            let (mut crew, listener) = crew_of(4, Limits { silence: HOUR, stall: HOUR, start: HOUR });
            let mut streams: Vec<Option<TcpStream>> = (0..4).map(|_| Some(connect(&listener))).collect();
            for (rank, stream) in streams.iter_mut().enumerate() {
                say(stream.as_mut().unwrap(), "secret", rank as u32, "");
            }
            until(&mut crew, &listener, |crew| crew.ranks.iter().all(Option::is_some));
            streams[victim] = None;
            until(&mut crew, &listener, |crew| crew.lost().is_some());
            streams.clear();
            until(&mut crew, &listener, |crew| {
                crew.ranks.iter().flatten().all(|member| member.line.is_none())
            });
            let words = crew.lost().unwrap();
            assert!(
                words.starts_with(&format!("rank {victim} (host red")) && !words.contains(" or rank"),
                "{words}"
            );
        }
    }

    #[test]
    fn ranks_that_were_missed_together_are_all_named() {
        let (mut crew, listener) = crew_of(3, Limits { silence: HOUR, stall: HOUR, start: HOUR });
        let mut streams = [0; 3].map(|_| connect(&listener));
        for (rank, stream) in streams.iter_mut().enumerate() {
            say(stream, "secret", rank as u32, "");
        }
        until(&mut crew, &listener, |crew| crew.ranks.iter().all(Option::is_some));
        for rank in [1, 2] {
            let member = crew.ranks[rank].as_mut().unwrap();
            (member.line, member.gone) = (None, Some(Duration::from_secs(9)));
        }
        let words = crew.lost().unwrap();
        assert!(words.starts_with("rank 1 (host red") && words.contains(") or rank 2 (host red"), "{words}");
    }

    /// More ranks than there is room for strangers, behind as many who say nothing.
    #[test]
    fn neither_many_ranks_nor_idle_strangers_keep_a_rank_out() {
        let ranks = STRANGERS_MAX + 20;
        let (mut crew, listener) = crew_of(ranks, Limits { silence: HOUR, stall: HOUR, start: HOUR });
        let _idle: Vec<TcpStream> = (0..STRANGERS_MAX).map(|_| connect(&listener)).collect();
        until(&mut crew, &listener, |crew| crew.strangers.len() == STRANGERS_MAX);
        let mut streams: Vec<TcpStream> = Vec::new();
        for rank in 0..ranks {
            streams.push(connect(&listener));
            say(&mut streams[rank], "secret", rank as u32, "");
        }
        until(&mut crew, &listener, |crew| crew.ranks.iter().all(Option::is_some));
        // A stranger is sent away when it has had time enough, and others may come.
        let (mut crew, listener) = crew_of(1, Limits { silence: Duration::ZERO, stall: HOUR, start: HOUR });
        let _idle: Vec<TcpStream> = (0..3 * STRANGERS_MAX / 2).map(|_| connect(&listener)).collect();
        let mut rank = connect(&listener);
        say(&mut rank, "secret", 0, "");
        while crew.ranks[0].is_none() {
            crew.look(&listener);
        }
    }

    #[test]
    fn a_number_that_is_no_process_is_never_ended() {
        for (pid, process) in [
            ("0", None),
            ("1", None),
            ("4294967295", None),
            ("4294967303", None),
            ("\"x\"", None),
            ("7", Some(7)),
        ] {
            let (mut crew, listener) = crew_of(1, Limits { silence: HOUR, stall: HOUR, start: HOUR });
            let mut rank = connect(&listener);
            let line = format!("{{\"token\":\"secret\",\"rank\":0,\"host\":\"red\",\"pid\":{pid}}}\n");
            rank.write_all(line.as_bytes()).unwrap();
            until(&mut crew, &listener, |crew| crew.ranks[0].is_some());
            assert_eq!(crew.processes_on("red"), Vec::from_iter(process), "{pid}");
        }
    }
}
