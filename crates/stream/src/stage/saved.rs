//! A stage's state in its topic: in parts, for a broker takes no message above a megabyte and a joiner's state may be a hundred.
//!
//! ```text
//!   record   part u32 | parts u32 | bytes of the state
//! ```
//!
//! Parts are appended together, so a crash may leave the first ones of a state. Then the one before it counts, which is why that
//! one is removed only when the next is whole.

use crate::log::{Limit, Log, LogError, Offset, Record, Records};

/// Bytes of a part.
const PART_BYTES: usize = 256 << 10;
const HEAD_BYTES: usize = 8;

/// Saves a state, and removes those before it.
pub(super) fn write(log: &dyn Log, topic: &str, state: &[u8]) -> Result<(), LogError> {
    let count = state.len().div_ceil(PART_BYTES).max(1);
    let part = |number: usize| {
        let bytes = &state[number * PART_BYTES..state.len().min((number + 1) * PART_BYTES)];
        [&(number as u32).to_le_bytes()[..], &(count as u32).to_le_bytes(), bytes].concat()
    };
    let parts: Vec<Vec<u8>> = (0..count).map(part).collect();
    let records: Vec<Record<'_>> = parts.iter().map(|part| Record { time_ms: 0, payload: part }).collect();
    let first = log.append(topic, 0, &records)?;
    log.sync_topic(topic, 0)?;
    log.trim(topic, 0, first).map(drop)
}

/// The newest state that is whole, if there is one; or words on what does not fit.
pub(super) fn read(log: &dyn Log, topic: &str) -> Result<Result<Option<Vec<u8>>, String>, LogError> {
    let range = log.range(topic, 0)?;
    let mut last = Records::default();
    let mut end = range.end;
    while end > range.start {
        log.read(topic, 0, end - 1, Limit { records: 1, bytes: 1 }, &mut last)?;
        let Some((part, parts)) = last.last().and_then(|record| numbers(record.payload)) else {
            return Ok(Err(format!("record {} of its state is none", end - 1)));
        };
        let Some(first) = end.checked_sub(u64::from(part) + 1).filter(|_| part < parts) else {
            return Ok(Err(format!("record {} of its state says part {part} of {parts}", end - 1)));
        };
        if part + 1 == parts {
            return whole(log, topic, first, parts);
        }
        end = first;
    }
    Ok(Ok(None))
}

fn whole(
    log: &dyn Log,
    topic: &str,
    first: Offset,
    parts: u32,
) -> Result<Result<Option<Vec<u8>>, String>, LogError> {
    let (mut state, mut records) = (Vec::new(), Records::default());
    let mut next = 0;
    while next < parts {
        let limit = Limit { records: (parts - next) as usize, bytes: usize::MAX };
        log.read(topic, 0, first + u64::from(next), limit, &mut records)?;
        if records.is_empty() {
            return Ok(Err(format!("part {next} of {parts} of its state is missing")));
        }
        for record in records.iter() {
            if numbers(record.payload) != Some((next, parts)) {
                return Ok(Err(format!(
                    "record {} of its state is not part {next} of {parts}",
                    record.offset
                )));
            }
            state.extend_from_slice(&record.payload[HEAD_BYTES..]);
            next += 1;
        }
    }
    Ok(Ok(Some(state)))
}

/// Which part, and of how many.
fn numbers(payload: &[u8]) -> Option<(u32, u32)> {
    let both = u64::from_le_bytes(*payload.first_chunk::<HEAD_BYTES>()?);
    Some((both as u32, (both >> 32) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{DirectoryLog, TopicOptions};

    #[test]
    fn a_state_of_many_parts_comes_back_and_an_unfinished_one_does_not_count() {
        let home = tempfile::tempdir().unwrap();
        let log = DirectoryLog::open(home.path()).unwrap();
        log.create("s", TopicOptions { segment_bytes: 1000, ..TopicOptions::default() }).unwrap();
        assert_eq!(read(&log, "s").unwrap(), Ok(None));
        for length in [0, 5, PART_BYTES, PART_BYTES + 1, 5 * PART_BYTES / 2] {
            let state: Vec<u8> = (0..length).map(|place| (place % 251) as u8).collect();
            write(&log, "s", &state).unwrap();
            assert!(read(&log, "s").unwrap() == Ok(Some(state.clone())), "{length} bytes");
            // The first part of a state that a crash cut short, twice over.
            let begun = [&0u32.to_le_bytes()[..], &3u32.to_le_bytes(), b"begun"].concat();
            log.append("s", 0, &[Record { time_ms: 0, payload: &begun }]).unwrap();
            log.append("s", 0, &[Record { time_ms: 0, payload: &begun }]).unwrap();
            assert!(read(&log, "s").unwrap() == Ok(Some(state)), "{length} bytes and a rest");
        }
        let range = log.range("s", 0).unwrap();
        assert!(range.end - range.start < 8, "older states are gone: {range:?}");
        let of_another_layout = 7u64.to_le_bytes();
        log.append("s", 0, &[Record { time_ms: 0, payload: &of_another_layout }]).unwrap();
        assert!(read(&log, "s").unwrap().unwrap_err().contains("part 7 of 0"));
    }
}
