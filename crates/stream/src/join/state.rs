//! What a joiner remembers, and how it is saved: everything but features, which are read again from the log.

use std::collections::BTreeSet;

use super::{Ahead, JoinCounts, Joiner};
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
    /// Where its features are, if its example may have to come once more.
    pub place: Option<(u32, Offset)>,
}

/// Stands before a state that says what was set aside; earlier programs set nothing aside.
const WITH_AHEAD: u64 = u64::MAX;

/// Says that a closed impression follows with the place of its features; without the place it is 0.
const CLOSED_WITH_PLACE: u64 = u64::MAX;

/// Feedback, or a word, that came before its impression.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Early {
    pub forget_ms: u64,
    /// Task and time.
    pub feedback: Vec<(u16, u64)>,
    pub word: Option<Vec<u8>>,
}

pub(super) fn save(joiner: &Joiner, out: &mut Vec<u8>) {
    let mut word = |value: u64| out.extend_from_slice(&value.to_le_bytes());
    word(WITH_AHEAD);
    let JoinCounts {
        impressions,
        repeated,
        feedback,
        orphans,
        examples,
        corrections,
        with_word,
        words_dropped,
        set_aside,
        lost_ahead,
        forgotten,
    } = joiner.counts;
    let counts = [joiner.now_ms, impressions, repeated, feedback, orphans, examples, corrections];
    let more = [with_word, words_dropped, set_aside, lost_ahead, forgotten];
    counts.into_iter().chain(more).for_each(&mut word);
    save_ahead(&joiner.ahead, &mut word);
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
            (Some(closed), _) => {
                word(if closed.place.is_some() { CLOSED_WITH_PLACE } else { 0 });
                [closed.time_ms, u64::from(closed.labels)].into_iter().for_each(&mut word);
                let place = closed.place.map(|(input, offset)| [u64::from(input), offset]);
                place.into_iter().flatten().for_each(&mut word);
            }
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
    save_words(joiner, out);
}

fn save_ahead(ahead: &Ahead, word: &mut impl FnMut(u64)) {
    let Ahead { waiting, newest_ms, after_believed, behind, behind_ms } = ahead;
    [*newest_ms, *behind, *behind_ms, after_believed.len() as u64].into_iter().for_each(&mut *word);
    after_believed.iter().copied().for_each(&mut *word);
    word(waiting.len() as u64);
    let waiting = waiting.iter().flat_map(|&(time_ms, input, offset)| [time_ms, input, offset]);
    waiting.for_each(word);
}

fn restore_ahead(word: &mut impl FnMut() -> Result<u64, String>) -> Result<Ahead, String> {
    let (newest_ms, behind, behind_ms) = (word()?, word()?, word()?);
    let after_believed = (0..word()?).map(|_| word()).collect::<Result<_, _>>()?;
    let mut waiting = BTreeSet::new();
    for _ in 0..word()? {
        waiting.insert((word()?, word()?, word()?));
    }
    Ok(Ahead { waiting, newest_ms, after_believed, behind, behind_ms })
}

/// Words on open impressions and on those that have not come yet, by id: lengths first, then the bytes, filled up to
/// whole eights.
fn save_words(joiner: &Joiner, out: &mut Vec<u8>) {
    let early = joiner.early.iter().filter_map(|(id, early)| Some((*id, early.word.as_ref()?)));
    let mut words: Vec<(u64, &Vec<u8>)> = joiner.words.iter().map(|(id, word)| (*id, word)).collect();
    words.extend(early);
    words.sort_unstable_by_key(|(id, _)| *id);
    out.extend_from_slice(&(words.len() as u64).to_le_bytes());
    for (id, word) in words {
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&(word.len() as u64).to_le_bytes());
        out.extend_from_slice(word);
        out.resize(out.len().next_multiple_of(8), 0);
    }
}

pub(super) fn restore(joiner: &mut Joiner, bytes: &[u8]) -> Result<(), String> {
    let mut words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(std::array::from_fn(|at| word[at])));
    let mut word = || words.next().ok_or_else(|| "it is cut short".to_owned());
    let mut fresh = Joiner::new(joiner.options.clone());
    let first = word()?;
    let has_ahead = first == WITH_AHEAD;
    fresh.now_ms = if has_ahead { word()? } else { first };
    fresh.counts = JoinCounts {
        impressions: word()?,
        repeated: word()?,
        feedback: word()?,
        orphans: word()?,
        examples: word()?,
        corrections: word()?,
        with_word: word()?,
        words_dropped: word()?,
        ..JoinCounts::default()
    };
    if has_ahead {
        let counts = &mut fresh.counts;
        (counts.set_aside, counts.lost_ahead, counts.forgotten) = (word()?, word()?, word()?);
        fresh.ahead = restore_ahead(&mut word)?;
    } else if fresh.now_ms > 0 {
        fresh.ahead.newest_ms = fresh.now_ms.saturating_add(fresh.options.disorder_ms);
    }
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
        if kind == 0 || kind == CLOSED_WITH_PLACE {
            let (time_ms, labels) = (word()?, word()? as u32);
            let place = if kind == 0 { None } else { Some((word()? as u32, word()?)) };
            fresh.closed.insert(id, Closed { time_ms, forget_ms, labels, place });
        } else {
            let mut early = Early { forget_ms, ..Early::default() };
            for _ in 1..kind {
                early.feedback.push((word()? as u16, word()?));
            }
            fresh.early.insert(id, early);
        }
    }
    for _ in 0..word()? {
        let (id, length) = (word()?, word()? as usize);
        let mut bytes = Vec::with_capacity(length.min(1 << 16));
        while bytes.len() < length {
            bytes.extend_from_slice(&word()?.to_le_bytes());
        }
        bytes.truncate(length);
        match fresh.early.get_mut(&id) {
            Some(early) => early.word = Some(bytes),
            None => drop(fresh.words.insert(id, bytes)),
        }
    }
    if words.next().is_some() {
        return Err("it has bytes too many".to_owned());
    }
    *joiner = fresh;
    Ok(())
}
