//! What a joiner remembers, and how it is saved: everything but features, which are read again from the log.

use super::{JoinCounts, Joiner};
use crate::log::Offset;

/// An impression whose windows are not over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Open {
    pub time_ms: u64,
    pub closes_ms: u64,
    /// Where its features are.
    pub input: u32,
    pub offset: Offset,
    pub labels: u32,
    /// Tasks with feedback outside their window.
    pub late: u32,
}

/// An impression whose example was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Closed {
    pub time_ms: u64,
    pub forget_ms: u64,
    pub labels: u32,
}

/// Feedback that came before its impression.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Early {
    pub forget_ms: u64,
    /// Task and time.
    pub feedback: Vec<(u16, u64)>,
}

pub(super) fn save(joiner: &Joiner, out: &mut Vec<u8>) {
    let mut word = |value: u64| out.extend_from_slice(&value.to_le_bytes());
    let JoinCounts { impressions, repeated, feedback, orphans, examples, corrections } = joiner.counts;
    let counts = [joiner.now_ms, impressions, repeated, feedback, orphans, examples, corrections];
    counts.into_iter().for_each(&mut word);
    word(joiner.open.len() as u64);
    for (_, id) in &joiner.closing {
        if let Some(open) = joiner.open.get(id) {
            let bits = u64::from(open.labels) | u64::from(open.late) << 32;
            let words = [*id, open.time_ms, open.closes_ms, u64::from(open.input), open.offset, bits];
            words.into_iter().for_each(&mut word);
        }
    }
    word(joiner.forgetting.len() as u64);
    for (forget_ms, id) in &joiner.forgetting {
        // An id is either closed or waits for its impression.
        word(*id);
        word(*forget_ms);
        match (joiner.closed.get(id), joiner.early.get(id)) {
            (Some(closed), _) => [0, closed.time_ms, u64::from(closed.labels)].iter().for_each(|v| word(*v)),
            (None, early) => {
                let feedback = early.map_or(&[][..], |early| &early.feedback);
                word(1 + feedback.len() as u64);
                for (task, at_ms) in feedback {
                    word(u64::from(*task));
                    word(*at_ms);
                }
            }
        }
    }
}

pub(super) fn restore(joiner: &mut Joiner, bytes: &[u8]) -> Result<(), String> {
    let mut words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(std::array::from_fn(|at| word[at])));
    let mut word = || words.next().ok_or_else(|| "it is cut short".to_owned());
    let mut fresh = Joiner::new(joiner.options.clone());
    fresh.now_ms = word()?;
    fresh.counts = JoinCounts {
        impressions: word()?,
        repeated: word()?,
        feedback: word()?,
        orphans: word()?,
        examples: word()?,
        corrections: word()?,
    };
    for _ in 0..word()? {
        let id = word()?;
        let (time_ms, closes_ms) = (word()?, word()?);
        let (input, offset, bits) = (word()? as u32, word()?, word()?);
        let open = Open { time_ms, closes_ms, input, offset, labels: bits as u32, late: (bits >> 32) as u32 };
        fresh.closing.insert((open.closes_ms, id));
        fresh.open.insert(id, open);
    }
    for _ in 0..word()? {
        let (id, forget_ms, kind) = (word()?, word()?, word()?);
        fresh.forgetting.insert((forget_ms, id));
        if kind == 0 {
            let (time_ms, labels) = (word()?, word()? as u32);
            fresh.closed.insert(id, Closed { time_ms, forget_ms, labels });
        } else {
            let mut early = Early { forget_ms, feedback: Vec::new() };
            for _ in 1..kind {
                early.feedback.push((word()? as u16, word()?));
            }
            fresh.early.insert(id, early);
        }
    }
    if words.next().is_some() {
        return Err("it has bytes too many".to_owned());
    }
    *joiner = fresh;
    Ok(())
}
