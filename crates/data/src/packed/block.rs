//! One block: its own header, then the columns one after another, each padded to eight bytes.
//!
//! ```text
//!   "BLOK" rows bytes checksum | dense [row][column] f32 | labels u8 per task | weight f32 | time i64
//!   | group u64 | segment u32 | teacher f32 per task | teacher's age f32 | per feature: one-id: rows u32 (, weights f32)
//!   |                                         list: offsets u32 [rows + 1], rows u32 (, weights f32)
//! ```

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};

use super::BlockEntry;
use crate::rows::{BagStore, Feature, NO_ROW, RowBuffer, Schema};

const BLOCK_MAGIC: &[u8; 4] = b"BLOK";

/// Bytes of a block's own header.
pub(crate) const BLOCK_HEADER_BYTES: usize = 16;

/// Writes the block's header and payload into `out`, which is emptied first.
pub(crate) fn encode(rows: &RowBuffer, schema: &Schema, out: &mut Vec<u8>) -> BlockEntry {
    out.clear();
    out.resize(BLOCK_HEADER_BYTES, 0);
    push_column(out, &rows.dense);
    rows.labels.iter().for_each(|column| push_column(out, column));
    push_column(out, &rows.weights);
    push_column(out, &rows.times);
    push_column(out, &rows.groups);
    push_column(out, &rows.segments);
    rows.teacher.iter().for_each(|column| push_column(out, column));
    push_column(out, &rows.teacher_delays);
    for (bags, feature) in rows.bags.iter().zip(&schema.features) {
        if feature.bags == BagStore::List {
            // The leading zero makes every bag a difference of neighbours, also the first.
            out.extend_from_slice(&0_u32.to_le_bytes());
            push_column(out, &bags.ends);
        }
        push_column(out, &bags.rows);
        push_column(out, &bags.weights);
    }
    let payload = &out[BLOCK_HEADER_BYTES..];
    let (bytes, checksum) = (payload.len() as u32, crc32c::crc32c(payload));
    let header: Vec<u8> = [u32::from_le_bytes(*BLOCK_MAGIC), rows.row_count as u32, bytes, checksum]
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect();
    out[..BLOCK_HEADER_BYTES].copy_from_slice(&header);
    BlockEntry { offset: 0, bytes, rows: rows.row_count as u32, checksum }
}

fn push_column<T: bytemuck::NoUninit>(out: &mut Vec<u8>, values: &[T]) {
    out.extend_from_slice(cast_slice(values));
    out.resize(out.len().next_multiple_of(8), 0);
}

/// Reads a block's own header; `None` when it is not one.
pub(crate) fn parse_header(header: &[u8; BLOCK_HEADER_BYTES], offset: u64) -> Option<BlockEntry> {
    let word = |index: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| header[index * 4 + byte]));
    (&header[..4] == BLOCK_MAGIC).then(|| BlockEntry {
        offset,
        rows: word(1),
        bytes: word(2),
        checksum: word(3),
    })
}

/// A block in memory; the buffer is reused for the next one.
#[derive(Debug, Default)]
pub(crate) struct Block {
    /// `u64` words, so that every column may be looked at in place.
    words: Vec<u64>,
    row_count: usize,
    dense: Range<usize>,
    labels: Vec<Range<usize>>,
    weights: Range<usize>,
    times: Range<usize>,
    groups: Range<usize>,
    segments: Range<usize>,
    teacher: Vec<Range<usize>>,
    teacher_delays: Range<usize>,
    bags: Vec<BagRanges>,
}

#[derive(Debug, Default, Clone)]
struct BagRanges {
    offsets: Range<usize>,
    rows: Range<usize>,
    weights: Range<usize>,
}

impl Block {
    /// Room for a payload of `bytes` bytes, to be filled before [`Block::find_columns`].
    pub fn payload_mut(&mut self, bytes: usize) -> &mut [u8] {
        self.words.resize(bytes.div_ceil(8), 0);
        &mut cast_slice_mut(&mut self.words)[..bytes]
    }

    /// Notes where each column lies; false when the payload does not have the schema's shape, or names a row that a table
    /// does not have: a checksum that fits does not say who wrote the block.
    pub fn find_columns(&mut self, schema: &Schema, row_count: usize, bytes: usize) -> bool {
        let mut at = 0;
        let mut column = |size: usize| {
            let range = at..at + size;
            at = range.end.next_multiple_of(8);
            range
        };
        let optional = |there: bool, size: usize| if there { size * row_count } else { 0 };
        self.row_count = row_count;
        self.dense = column(4 * row_count * schema.dense.len());
        self.labels.clear();
        self.labels.extend(schema.tasks.iter().map(|_| column(row_count)));
        self.weights = column(optional(schema.sample_weight, 4));
        self.times = column(optional(schema.time, 8));
        self.groups = column(optional(schema.group, 8));
        self.segments = column(optional(schema.segment, 4));
        self.teacher.clear();
        self.teacher.extend(schema.teacher.iter().map(|&there| column(optional(there, 4))));
        self.teacher_delays = column(optional(schema.teacher_delay, 4));
        self.bags.clear();
        let payload: &[u8] = &cast_slice(&self.words)[..bytes];
        for feature in &schema.features {
            let mut ranges = BagRanges::default();
            let mut ids = row_count;
            if feature.bags == BagStore::List {
                ranges.offsets = column(4 * (row_count + 1));
                let Some(last) =
                    payload.get(ranges.offsets.clone()).and_then(|offsets| offsets.last_chunk::<4>())
                else {
                    return false;
                };
                ids = u32::from_le_bytes(*last) as usize;
            }
            ranges.rows = column(4 * ids);
            ranges.weights = column(if feature.weighted { 4 * ids } else { 0 });
            self.bags.push(ranges);
        }
        at == bytes && (0..schema.features.len()).all(|feature| self.bags_are_sound(schema, feature))
    }

    /// Whether the offsets of a feature's bags rise from 0, and all rows are in its table.
    fn bags_are_sound(&self, schema: &Schema, feature: usize) -> bool {
        let Feature { row_count, bags, .. } = schema.features[feature];
        let offsets = self.bag_offsets(feature);
        let no_row = if bags == BagStore::OneOrNone { NO_ROW } else { 0 };
        // All are looked at, so that many are looked at at once.
        let is_inside = |sound: bool, row: &u32| sound & ((u64::from(*row) < row_count) | (*row == no_row));
        offsets.first().is_none_or(|first| *first == 0)
            && offsets.is_sorted()
            && row_count > 0
            && self.bag_rows(feature).iter().fold(true, is_inside)
    }

    pub fn dense(&self) -> &[f32] {
        self.column(&self.dense)
    }

    pub fn labels(&self, task: usize) -> &[u8] {
        self.column(&self.labels[task])
    }

    pub fn weights(&self) -> &[f32] {
        self.column(&self.weights)
    }

    pub fn times(&self) -> &[i64] {
        self.column(&self.times)
    }

    pub fn groups(&self) -> &[u64] {
        self.column(&self.groups)
    }

    pub fn segments(&self) -> &[u32] {
        self.column(&self.segments)
    }

    /// The teacher's logits of a task; empty where it has none.
    pub fn teacher(&self, task: usize) -> &[f32] {
        self.column(&self.teacher[task])
    }

    pub fn teacher_delays(&self) -> &[f32] {
        self.column(&self.teacher_delays)
    }

    /// `row_count + 1` offsets of a list feature; empty for others.
    pub fn bag_offsets(&self, feature: usize) -> &[u32] {
        self.column(&self.bags[feature].offsets)
    }

    pub fn bag_rows(&self, feature: usize) -> &[u32] {
        self.column(&self.bags[feature].rows)
    }

    pub fn bag_weights(&self, feature: usize) -> &[f32] {
        self.column(&self.bags[feature].weights)
    }

    fn column<T: bytemuck::AnyBitPattern>(&self, range: &Range<usize>) -> &[T] {
        let bytes: &[u8] = cast_slice(&self.words);
        cast_slice(&bytes[range.clone()])
    }

    /// The block's rows as a buffer that can grow again.
    pub fn to_rows(&self, schema: &Schema) -> RowBuffer {
        let mut rows = RowBuffer::new(schema);
        rows.row_count = self.row_count;
        rows.dense.extend_from_slice(self.dense());
        for (task, column) in rows.labels.iter_mut().enumerate() {
            column.extend_from_slice(self.labels(task));
        }
        rows.weights.extend_from_slice(self.weights());
        rows.times.extend_from_slice(self.times());
        rows.groups.extend_from_slice(self.groups());
        rows.segments.extend_from_slice(self.segments());
        for (task, column) in rows.teacher.iter_mut().enumerate() {
            column.extend_from_slice(self.teacher(task));
        }
        rows.teacher_delays.extend_from_slice(self.teacher_delays());
        for (feature, bags) in rows.bags.iter_mut().enumerate() {
            bags.ends.extend(self.bag_offsets(feature).iter().skip(1));
            bags.rows.extend_from_slice(self.bag_rows(feature));
            bags.weights.extend_from_slice(self.bag_weights(feature));
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_with_a_row_beyond_its_table_or_offsets_that_fall_is_none() {
        let feature = |bags| Feature { name: "f".to_owned(), row_count: 5, bags, weighted: false };
        let schema = Schema {
            tasks: Vec::new(),
            dense: Vec::new(),
            features: vec![feature(BagStore::List), feature(BagStore::OneOrNone)],
            sample_weight: false,
            time: false,
            group: false,
            segment: false,
            teacher: Vec::new(),
            teacher_delay: false,
        };
        let mut rows = RowBuffer::new(&schema);
        rows.row_count = 2;
        rows.bags[0].ends.extend([1, 3]);
        rows.bags[0].rows.extend([1, 4, 0]);
        rows.bags[1].rows.extend([NO_ROW, 4]);
        let mut bytes = Vec::new();
        encode(&rows, &schema, &mut bytes);
        let is_sound = |place: usize, byte: Option<u8>| {
            let mut payload = bytes[BLOCK_HEADER_BYTES..].to_vec();
            payload[place] = byte.unwrap_or(payload[place]);
            let mut block = Block::default();
            block.payload_mut(payload.len()).copy_from_slice(&payload);
            block.find_columns(&schema, 2, payload.len())
        };
        assert!(is_sound(0, None));
        // Offsets 0, 1, 3 and padding; rows 1, 4, 0 and padding; no row, 4.
        for (place, byte, problem) in [
            (0, 1, "the first offset is not 0"),
            (4, 4, "offsets fall"),
            (20, 5, "a row beyond the table in a list"),
            (32, 0xfe, "a row that is almost none"),
            (36, 5, "a row beyond the table"),
        ] {
            assert!(!is_sound(place, Some(byte)), "{problem}");
        }
    }
}
