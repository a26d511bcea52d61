//! What the launcher knows of the ranks.

use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    time::Duration,
};

use serde_json::Value;

use crate::awake::AwakeClock;

/// The most bytes of an unfinished line; more is not a beat.
const LINE_BYTES_MAX: usize = 1 << 16;

/// The most connections that have not shown the token yet.
const STRANGERS_MAX: usize = 64;

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
    strangers: Vec<Line>,
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

/// A rank that has shown itself.
struct Member {
    line: Option<Line>,
    host: String,
    process: u32,
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
        Crew { token, limits, strangers: Vec::new(), ranks, clock, now, moved: now }
    }

    /// Listens to all ranks; says what is wrong if one of them hangs.
    pub fn look(&mut self, listener: &TcpListener) -> Option<String> {
        self.now = self.clock.look();
        while let Ok((stream, _)) = listener.accept() {
            if self.strangers.len() < STRANGERS_MAX && stream.set_nonblocking(true).is_ok() {
                self.strangers.push(Line { stream, text: Vec::new() });
            }
        }
        self.greet();
        for rank in 0..self.ranks.len() {
            self.listen(rank);
        }
        self.hung()
    }

    /// Makes members of the strangers who know the token.
    fn greet(&mut self) {
        for mut line in std::mem::take(&mut self.strangers) {
            let mut words = Vec::new();
            let is_open = line.read(&mut words);
            let Some(beat) = words.first() else {
                if is_open {
                    self.strangers.push(line);
                }
                continue;
            };
            let rank = beat["rank"].as_u64().unwrap_or(u64::MAX) as usize;
            let is_ours = beat["token"].as_str() == Some(&self.token) && rank < self.ranks.len();
            if is_ours && self.ranks[rank].is_none() {
                let mut member = Member::new(line, beat, self.now);
                words.iter().skip(1).for_each(|beat| member.hear(beat, self.now));
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
            member.hear(&beat, self.now);
            if member.moves != moves {
                self.moved = self.now;
            }
        }
        if !is_open {
            member.line = None;
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

    /// The rank that has gone without saying goodbye, in words.
    pub fn lost(&self) -> Option<String> {
        let mut members = self.ranks.iter().enumerate().filter_map(|(rank, m)| Some((rank, m.as_ref()?)));
        let is_gone = |member: &Member| member.line.is_none() && member.goodbye.is_none();
        let (rank, member) = members.find(|(_, member)| is_gone(member))?;
        Some(format!("{} died without a word (was it killed, or out of memory?): ended", member.words(rank)))
    }

    /// Whether a rank has told why it failed.
    pub fn has_told_a_reason(&self) -> bool {
        self.ranks.iter().flatten().any(|member| member.goodbye.as_ref().is_some_and(|bye| bye.has_reason))
    }

    /// The processes of the ranks on a host.
    pub fn processes_on(&self, host: &str) -> Vec<u32> {
        let here = self.ranks.iter().flatten().filter(|member| member.host == host);
        here.filter(|member| member.goodbye.is_none()).map(|member| member.process).collect()
    }
}

impl Member {
    fn new(line: Line, beat: &Value, now: Duration) -> Member {
        let mut member = Member {
            line: Some(line),
            host: beat["host"].as_str().unwrap_or_default().to_owned(),
            process: beat["pid"].as_u64().unwrap_or_default() as u32,
            phase: String::new(),
            step: 0,
            moves: 0,
            is_waiting: false,
            beat: now,
            goodbye: None,
        };
        member.hear(beat, now);
        member
    }

    fn hear(&mut self, beat: &Value, now: Duration) {
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
            let _ = line.stream.write(b".");
        }
    }

    fn words(&self, rank: usize) -> String {
        let phase = if self.phase.is_empty() { "start" } else { &self.phase };
        format!(
            "rank {rank} (host {}, process {}, at `{phase}`, step {})",
            self.host, self.process, self.step
        )
    }
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

    fn crew(limits: Limits) -> (Crew, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        (Crew::new(2, "secret".to_owned(), limits), listener)
    }

    fn say(stream: &mut TcpStream, token: &str, rank: u32, rest: &str) {
        let line = format!(
            "{{\"token\":\"{token}\",\"rank\":{rank},\"host\":\"red\",\"pid\":7,\"phase\":\"train\",\"step\":3{rest}}}\n"
        );
        stream.write_all(line.as_bytes()).unwrap();
    }

    /// Looks until something is true.
    fn until(crew: &mut Crew, listener: &TcpListener, what: impl Fn(&Crew) -> bool) {
        while !what(crew) {
            assert_eq!(crew.look(listener), None);
        }
    }

    #[test]
    fn who_goes_without_goodbye_is_lost_and_strangers_are_not_heard() {
        let (mut crew, listener) = crew(Limits { silence: HOUR, stall: HOUR, start: HOUR });
        let connect = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut stranger, mut first, mut second) = (connect(), connect(), connect());
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
        let connect = |listener: &TcpListener| TcpStream::connect(listener.local_addr().unwrap()).unwrap();
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
}
