//! Records whose time is too far from that of the others: a time in microseconds, or a clock that is wrong.
//!
//! Such a record would close every window at once, so it moves no time. It is set aside, by its number, and taken when time has come
//! near it. When as many impressions as [`AGREEING`] follow each other so far ahead and none between them, it is the stream itself that
//! has moved on, over a night or a weekend: then they are believed, and taken in the order of their time. If as many follow each other
//! so far *behind*, time was ahead of them by mistake, and is put back.
//!
//! ```text
//!   time of records      . . . . . . . .  x  . . . . . .        x: set aside
//!                        . . . . .            x x x … x         so many in a row: believed
//! ```

use std::collections::BTreeSet;

use super::Joiner;
use crate::{
    log::{LogError, Offset, Records},
    stage::{Again, Arrival, Outgoing, StageError},
};

/// Times of impressions, one after the other, that are believed when they agree against what came before.
const AGREEING: usize = 32;
/// Records that may wait; of more, those furthest ahead are given up.
const WAITING_MAX: usize = 4096;

/// What is set aside.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Ahead {
    /// By time: the input and the number of a record.
    pub waiting: BTreeSet<(u64, u64, Offset)>,
    /// The newest time that was believed, and 0 before the first record.
    pub newest_ms: u64,
    /// By input that brings impressions: behind the last one whose time was not too far ahead.
    pub after_believed: Vec<Offset>,
    /// Impressions in a row that were too far behind, and the newest time of them.
    pub behind: u64,
    pub behind_ms: u64,
}

impl Ahead {
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether one more would make one go.
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING_MAX
    }

    /// The time from which on records that wait are believed: time has come near the first, or enough impressions agree.
    fn believable(&self, jump_ms: u64) -> Option<u64> {
        let first_ms = self.waiting.first()?.0;
        if first_ms <= self.newest_ms.saturating_add(jump_ms) {
            return Some(first_ms);
        }
        // The candidates of one request have one time, and agree on nothing.
        let mut in_a_row: Vec<u64> = self
            .waiting
            .iter()
            .filter(|(_, input, offset)| {
                self.after_believed.get(*input as usize).is_some_and(|after| offset >= after)
            })
            .map(|(time_ms, ..)| *time_ms)
            .collect();
        in_a_row.dedup();
        let agree = |times: &&[u64]| times[AGREEING - 1] - times[0] <= jump_ms;
        in_a_row.windows(AGREEING).find(agree).map(|times| times[0])
    }
}

impl Joiner {
    /// Whether a record moves time and is taken now; otherwise it is set aside.
    pub(super) fn is_believed(&mut self, arrival: &Arrival<'_>) -> bool {
        let (time_ms, jump_ms) = (arrival.time_ms, self.options.jump_ms);
        let ahead = &mut self.ahead;
        let is_impression = arrival.input < self.options.impression_inputs;
        ahead.after_believed.resize(self.options.impression_inputs, 0);
        if ahead.newest_ms > 0 && time_ms > ahead.newest_ms.saturating_add(jump_ms) {
            ahead.waiting.insert((time_ms, arrival.input as u64, arrival.offset));
            self.counts.set_aside += 1;
            if ahead.len() > WAITING_MAX {
                ahead.waiting.pop_last();
                self.counts.set_aside -= 1;
                self.counts.lost_ahead += 1;
            }
            return false;
        }
        if is_impression {
            let after = &mut ahead.after_believed[arrival.input];
            *after = (*after).max(arrival.offset + 1);
            if time_ms.saturating_add(jump_ms) < ahead.newest_ms {
                ahead.behind += u64::from(time_ms != ahead.behind_ms);
                ahead.behind_ms = ahead.behind_ms.max(time_ms);
            } else {
                (ahead.behind, ahead.behind_ms) = (0, 0);
            }
        }
        ahead.newest_ms = ahead.newest_ms.max(time_ms);
        true
    }

    /// Takes what was set aside and is believed now, at the end of a turn; or puts time back.
    pub(super) fn take_set_aside(&mut self, again: Again<'_>, out: &mut Outgoing) -> Result<(), StageError> {
        if self.ahead.behind >= AGREEING as u64 {
            self.ahead.newest_ms = self.ahead.behind_ms;
            self.now_ms = self.ahead.behind_ms.saturating_sub(self.options.disorder_ms);
            (self.ahead.behind, self.ahead.behind_ms) = (0, 0);
        }
        let mut records = Records::default();
        while let Some(from_ms) = self.ahead.believable(self.options.jump_ms) {
            let Some(&(time_ms, input, offset)) = self.ahead.waiting.range((from_ms, 0, 0)..).next() else {
                break;
            };
            self.ahead.waiting.remove(&(time_ms, input, offset));
            self.ahead.newest_ms = self.ahead.newest_ms.max(time_ms);
            match again(input as usize, offset, &mut records) {
                // Retention was faster.
                Err(LogError::Gone { .. }) => {
                    self.counts.set_aside -= 1;
                    self.counts.lost_ahead += 1;
                    continue;
                }
                read => read?,
            }
            if let Some(record) = records.iter().find(|record| record.offset == offset) {
                let arrival = Arrival { input: input as usize, offset, time_ms, payload: record.payload };
                self.take_in_time(&arrival, again, out)?;
            }
        }
        Ok(())
    }
}
