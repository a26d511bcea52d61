//! Criteo's lines in one pass: no list of cells, up to eight digits of a number at once.
//!
//! Lines are taken in groups: keys are collected column by column, and each column is then mapped to rows in one
//! loop, which the processor overlaps where a call per cell would not be. It takes only lines that are exactly as
//! published; any other line is left to the general path, which accepts more and says what is wrong with the rest.

use campanile_spec::data::{BagShape, IdMap};

use crate::{
    decode::{Counts, Decoder, count},
    rows::RowBuffer,
    transforms::Transforms,
    value::{MISSING_KEY, parse_hex_eight},
};

const DENSE: usize = 13;
const SPARSE: usize = 26;

/// Whether the job's columns are all of Criteo's, in their order, each with one row, and nothing else.
pub(super) fn applies(decoder: &Decoder) -> bool {
    let transforms = &decoder.transforms;
    let plain = |column: usize| {
        let spec = transforms.sparse_column(column);
        spec.name == format!("C{}", column + 1)
            && spec.shape == BagShape::One
            && spec.weights.is_none()
            && matches!(spec.map, IdMap::Hash { .. } | IdMap::Vocabulary { .. })
    };
    decoder.splits_by_file()
        && decoder.has_plain_label()
        && decoder.slots().len() == 1 + DENSE + SPARSE
        && transforms.dense_count() == DENSE
        && (0..DENSE).all(|column| transforms.dense_name(column) == format!("I{}", column + 1))
        && transforms.sparse_count() == SPARSE
        && (0..SPARSE).all(plain)
}

/// Lines of a group: the keys of a group stay in the first-level cache.
const GROUP: usize = 64;

/// Scratch space for a group of lines.
pub(super) struct Group {
    keys: Box<[[u64; GROUP]; SPARSE]>,
    /// Values of the line's numbers before they are rounded.
    wide: [f64; DENSE],
}

impl Group {
    pub fn new() -> Group {
        Group { keys: Box::new([[0; GROUP]; SPARSE]), wide: [0.0; DENSE] }
    }

    /// Adds lines from `at` on, as long as they are usual and the group has room; returns how many, and where the
    /// next one starts.
    pub fn take(
        &mut self,
        bytes: &[u8],
        at: usize,
        decoder: &Decoder,
        rows: &mut RowBuffer,
        counts: &mut Counts,
    ) -> (usize, usize) {
        let transforms = &decoder.transforms;
        let (mut lines, mut at) = (0, at);
        rows.measured.resize_with(decoder.measured().len(), Vec::new);
        while lines < GROUP
            && let Some((next, missing)) = self.line(bytes, at, lines, transforms, rows)
        {
            at = next;
            lines += 1;
            for (values, &column) in rows.measured.iter_mut().zip(decoder.measured()) {
                values.push(self.wide[column]);
            }
            // Slots are the label, the numbers, the ids.
            let mut left = missing;
            while left != 0 {
                count(&mut counts.missing, 1 + left.trailing_zeros() as usize, 1);
                left &= left - 1;
            }
        }
        for (column, (bags, keys)) in rows.bags.iter_mut().zip(self.keys.iter()).enumerate() {
            if decoder.keeps_keys() && transforms.is_counted(column) {
                bags.keys.extend_from_slice(&keys[..lines]);
                bags.rows.resize(bags.rows.len() + lines, 0);
            } else {
                transforms.rows_of_keys(column, &keys[..lines], &mut bags.rows);
            }
        }
        rows.row_count += lines;
        (lines, at)
    }

    /// Takes one line in and returns where the next one starts, with a bit for each missing number and id, or takes
    /// nothing when the line is unusual.
    #[inline]
    fn line(
        &mut self,
        bytes: &[u8],
        at: usize,
        line: usize,
        transforms: &Transforms,
        rows: &mut RowBuffer,
    ) -> Option<(usize, u64)> {
        let &[label @ (b'0' | b'1'), b'\t'] = bytes.get(at..)?.first_chunk()? else { return None };
        let mut at = at + 2;
        let mut missing = 0;
        for (column, value) in self.wide.iter_mut().enumerate() {
            let (number, next) = number(bytes, at)?;
            *value = transforms.dense_number(column, number);
            missing |= u64::from(number.is_none()) << column;
            at = next;
        }
        let (last, others) = self.keys.split_last_mut()?;
        for (column, keys) in others.iter_mut().enumerate() {
            let (key, next) = id(bytes, at, b'\t')?;
            missing |= u64::from(next == at + 1) << (DENSE + column);
            keys[line] = key;
            at = next;
        }
        let (key, next) = id(bytes, at, b'\n')?;
        missing |= u64::from(next == at + 1) << (DENSE + SPARSE - 1);
        last[line] = key;
        rows.labels[0].push(label - b'0');
        rows.dense.extend(self.wide.iter().map(|value| *value as f32));
        Some((next, missing))
    }
}

/// The key of an id up to `end`, and where the next cell starts.
#[inline]
fn id(bytes: &[u8], at: usize, end: u8) -> Option<(u64, usize)> {
    if *bytes.get(at)? == end {
        return Some((MISSING_KEY, at + 1));
    }
    let &[a, b, c, d, e, f, g, h, after] = bytes.get(at..)?.first_chunk()?;
    let value = parse_hex_eight(u64::from_le_bytes([a, b, c, d, e, f, g, h]))?;
    (after == end).then_some((u64::from(value), at + 9))
}

/// An integer or nothing, up to its tab, and where the next cell starts.
#[inline]
fn number(bytes: &[u8], at: usize) -> Option<(Option<f64>, usize)> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let word = u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?);
    let tabs = word ^ (ONES * u64::from(b'\t'));
    let found = tabs.wrapping_sub(ONES) & !tabs & (ONES * 0x80);
    if found == 0 {
        return slow_number(bytes, at);
    }
    let digits = found.trailing_zeros() / 8;
    if digits == 0 {
        return Some((None, at + 1));
    }
    // The digits move to the high bytes, the last one highest; zeros come in below, as leading zeros.
    let values = (word ^ (ONES * u64::from(b'0'))) << (64 - 8 * digits);
    if (values.wrapping_add(ONES * 0x76) | values) & (ONES * 0x80) != 0 {
        return slow_number(bytes, at);
    }
    // Ones and tens of every pair, then hundreds and tens of thousands.
    let pairs = values.wrapping_mul(10).wrapping_add(values >> 8);
    let odd = (pairs & 0x0000_00ff_0000_00ff).wrapping_mul(0x000f_4240_0000_0064);
    let even = ((pairs >> 16) & 0x0000_00ff_0000_00ff).wrapping_mul(0x0000_2710_0000_0001);
    let value = (odd.wrapping_add(even) >> 32) as u32;
    Some((Some(f64::from(value)), at + digits as usize + 1))
}

/// The same for negative and long numbers, of nine digits at most.
#[cold]
fn slow_number(bytes: &[u8], at: usize) -> Option<(Option<f64>, usize)> {
    let length = bytes.get(at..)?.iter().take(11).position(|&byte| byte == b'\t')?;
    let text = &bytes[at..at + length];
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || digits.len() > 9 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = digits.iter().fold(0, |value, digit| value * 10 + i32::from(digit - b'0'));
    Some((Some(f64::from(if negative { -value } else { value })), at + length + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_match_the_standard_library(text in "-?[0-9]{0,10}[x.]?") {
            let line = format!("{text}\tand what follows");
            let want = match text.as_str() {
                "" => Some((None, 1)),
                _ if text.trim_start_matches('-').len() > 9 || text.ends_with('.') => None,
                text => text.parse::<i32>().ok().map(|value| (Some(f64::from(value)), text.len() + 1)),
            };
            prop_assert_eq!(number(line.as_bytes(), 0), want);
        }
    }
}
