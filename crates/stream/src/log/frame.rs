//! A frame: records that were appended together, under one checksum.
//!
//! ```text
//!   checksum u64 | bytes behind this head u32 | records u32 | earliest time u64 | by record: time after it u32, length u32 | payloads
//! ```
//!
//! Numbers are little-endian; the checksum covers everything behind itself. One checksum for many records is what makes
//! reading fast: for each by itself, a record of 200 bytes would cost more to check than to copy. A frame is bounded, so that
//! whoever wants one record checks no more than that.

use super::{Entry, PAYLOAD_BYTES_MAX, Record, checksum::checksum};

/// Bytes of a frame's head.
pub(super) const HEAD_BYTES: usize = 24;
/// Bytes that a record has in the table.
const ROW_BYTES: usize = 8;
/// A frame ends before it has more than these bytes behind its head, unless it is a single record.
pub(super) const BODY_BYTES: usize = 64 << 10;
/// The most that a single record makes of it.
const BODY_BYTES_MAX: usize = PAYLOAD_BYTES_MAX + ROW_BYTES;

/// Adds records, in as many frames as they take, to bytes that will be written at once.
pub(super) fn encode(mut records: &[Record<'_>], out: &mut Vec<u8>) {
    while !records.is_empty() {
        let (frame, rest) = records.split_at(fitting(records));
        encode_one(frame, out);
        records = rest;
    }
}

/// How many of the records the next frame takes: at least one.
fn fitting(records: &[Record<'_>]) -> usize {
    let (mut bytes, mut earliest, mut latest) = (0, u64::MAX, 0);
    for (place, record) in records.iter().enumerate() {
        bytes += ROW_BYTES + record.payload.len();
        (earliest, latest) = (earliest.min(record.time_ms), latest.max(record.time_ms));
        if place > 0 && (bytes > BODY_BYTES || latest - earliest > u64::from(u32::MAX)) {
            return place;
        }
    }
    records.len()
}

fn encode_one(records: &[Record<'_>], out: &mut Vec<u8>) {
    let start = out.len();
    let earliest = records.iter().map(|record| record.time_ms).min().unwrap_or(0);
    let bytes: usize = records.iter().map(|record| ROW_BYTES + record.payload.len()).sum();
    out.reserve(HEAD_BYTES + bytes);
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&(bytes as u32).to_le_bytes());
    out.extend_from_slice(&(records.len() as u32).to_le_bytes());
    out.extend_from_slice(&earliest.to_le_bytes());
    for record in records {
        out.extend_from_slice(&((record.time_ms - earliest) as u32).to_le_bytes());
        out.extend_from_slice(&(record.payload.len() as u32).to_le_bytes());
    }
    records.iter().for_each(|record| out.extend_from_slice(record.payload));
    let sum = checksum(&out[start + 8..]).to_le_bytes();
    out[start..start + 8].copy_from_slice(&sum);
}

/// What bytes at the place of a frame are.
pub(super) enum Parsed<'a> {
    Frame(Frame<'a>),
    /// So many bytes are needed to say more.
    Short(usize),
    /// What is wrong, and the bytes that the frame claims.
    Wrong(&'static str, usize),
}

/// A frame whose checksum fits.
#[derive(Clone, Copy)]
pub(super) struct Frame<'a> {
    earliest_ms: u64,
    table: &'a [[u8; ROW_BYTES]],
    payloads: &'a [u8],
}

/// Reads the frame at the beginning of some bytes.
pub(super) fn parse(bytes: &[u8]) -> Parsed<'_> {
    let Some(head) = bytes.first_chunk::<HEAD_BYTES>() else { return Parsed::Short(HEAD_BYTES) };
    let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|place| head[at + place]));
    let (sum, sizes, earliest_ms) = (long(0), long(8), long(16));
    let (body, count) = (sizes as u32 as usize, (sizes >> 32) as usize);
    if body > BODY_BYTES_MAX {
        return Parsed::Wrong("a frame's length is above the limit", 0);
    }
    let Some(covered) = bytes.get(8..HEAD_BYTES + body) else { return Parsed::Short(HEAD_BYTES + body) };
    if checksum(covered) != sum {
        return Parsed::Wrong("a frame's checksum does not fit", HEAD_BYTES + body);
    }
    let body_bytes = &covered[HEAD_BYTES - 8..];
    let Some((table, payloads)) = body_bytes.split_at_checked(count * ROW_BYTES) else {
        return Parsed::Wrong("a frame has less bytes than its records need", HEAD_BYTES + body);
    };
    let table = table.as_chunks().0;
    if count == 0 || table.iter().map(|row| u64::from(row_of(row).1)).sum::<u64>() != payloads.len() as u64 {
        return Parsed::Wrong("a frame's records do not fill it", HEAD_BYTES + body);
    }
    Parsed::Frame(Frame { earliest_ms, table, payloads })
}

/// The time after the earliest, and the length.
fn row_of(row: &[u8; ROW_BYTES]) -> (u32, u32) {
    let both = u64::from_le_bytes(*row);
    (both as u32, (both >> 32) as u32)
}

impl<'a> Frame<'a> {
    /// How many records.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Bytes of the whole frame.
    pub fn bytes(&self) -> usize {
        HEAD_BYTES + size_of_val(self.table) + self.payloads.len()
    }

    /// Bytes of all payloads.
    pub fn payload_bytes(&self) -> usize {
        self.payloads.len()
    }

    /// Where its records stand, for a frame that begins at `start` of a buffer.
    pub fn entries(&self, start: usize) -> impl ExactSizeIterator<Item = Entry> + use<'a> {
        let mut next = start + HEAD_BYTES + size_of_val(self.table);
        let earliest_ms = self.earliest_ms;
        self.table.iter().map(move |row| {
            let (after_ms, length) = row_of(row);
            let start = next;
            next += length as usize;
            Entry { time_ms: earliest_ms.saturating_add(u64::from(after_ms)), start, length }
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Everything that frames one behind the other hold.
    fn decode(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut all = Vec::new();
        while !bytes.is_empty() {
            let Parsed::Frame(frame) = parse(bytes) else {
                panic!("no frame at {} from the end", bytes.len())
            };
            assert!(frame.len() == 1 || frame.bytes() <= HEAD_BYTES + BODY_BYTES);
            let payload = |entry: &Entry| bytes[entry.start..entry.start + entry.length as usize].to_vec();
            all.extend(frame.entries(0).map(|entry| (entry.time_ms, payload(&entry))));
            bytes = &bytes[frame.bytes()..];
        }
        all
    }

    proptest! {
        /// What was encoded is what is decoded, however long payloads are and however far apart times.
        #[test]
        fn records_come_back(records in prop::collection::vec((any::<u64>(), 0usize..40_000), 1..12), near in any::<bool>()) {
            let records: Vec<(u64, Vec<u8>)> = records
                .iter()
                .map(|&(time, length)| (if near { time % 1000 } else { time }, vec![time as u8; length]))
                .collect();
            let given: Vec<Record<'_>> =
                records.iter().map(|(time_ms, payload)| Record { time_ms: *time_ms, payload }).collect();
            let mut bytes = Vec::new();
            encode(&given, &mut bytes);
            prop_assert_eq!(decode(&bytes), records);
        }

        /// A frame that is cut short asks for more, and one with a wrong byte is refused.
        #[test]
        fn nothing_but_whole_frames_is_taken(cut in 0usize..300, place in 0usize..300, bit in 0u32..8) {
            let mut bytes = Vec::new();
            let payload = [7; 30];
            encode(&[Record { time_ms: 5, payload: &payload }; 7], &mut bytes);
            let cut = cut % bytes.len();
            prop_assert!(matches!(parse(&bytes[..cut]), Parsed::Short(needed) if needed > cut));
            let place = place % bytes.len();
            bytes[place] ^= 1 << bit;
            prop_assert!(!matches!(parse(&bytes), Parsed::Frame(_)));
        }
    }
}
