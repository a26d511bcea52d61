//! Criteo's lines in one pass: no list of cells, eight hexadecimal digits at once.
//!
//! It takes only lines that are exactly as published; any other line is left to the general path, which accepts
//! more and says what is wrong with the rest.

use campanile_spec::data::{BagShape, IdMap};

use crate::{
    decode::Decoder,
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
        && !decoder.keeps_keys()
        && decoder.has_plain_label()
        && decoder.slots().len() == 1 + DENSE + SPARSE
        && transforms.dense_count() == DENSE
        && (0..DENSE).all(|column| transforms.dense_name(column) == format!("I{}", column + 1))
        && transforms.sparse_count() == SPARSE
        && (0..SPARSE).all(plain)
}

/// Adds the line at `at` and returns where the next one starts, or adds nothing when the line is unusual.
#[inline]
pub(super) fn fast_line(
    bytes: &[u8],
    at: usize,
    transforms: &Transforms,
    rows: &mut RowBuffer,
) -> Option<usize> {
    let &[label @ (b'0' | b'1'), b'\t'] = bytes.get(at..)?.first_chunk()? else { return None };
    let mut at = at + 2;
    let mut dense = [0.0; DENSE];
    for (column, value) in dense.iter_mut().enumerate() {
        let (number, next) = small_number(bytes, at)?;
        *value = transforms.dense_number(column, number);
        at = next;
    }
    let mut keys = [MISSING_KEY; SPARSE];
    let (last, others) = keys.split_last_mut()?;
    for key in others {
        if *bytes.get(at)? == b'\t' {
            at += 1;
            continue;
        }
        let &[a, b, c, d, e, f, g, h, b'\t'] = bytes.get(at..)?.first_chunk()? else { return None };
        *key = u64::from(parse_hex_eight(u64::from_le_bytes([a, b, c, d, e, f, g, h]))?);
        at += 9;
    }
    if *bytes.get(at)? != b'\n' {
        let &[a, b, c, d, e, f, g, h, b'\n'] = bytes.get(at..)?.first_chunk()? else { return None };
        *last = u64::from(parse_hex_eight(u64::from_le_bytes([a, b, c, d, e, f, g, h]))?);
        at += 8;
    }
    rows.labels[0].push(label - b'0');
    rows.dense.extend_from_slice(&dense);
    for (column, (bags, key)) in rows.bags.iter_mut().zip(keys).enumerate() {
        bags.rows.push(transforms.row_of_key(column, key));
    }
    rows.row_count += 1;
    Some(at + 1)
}

/// An integer of at most nine digits, or nothing, up to its tab; and where the next cell starts.
#[inline]
fn small_number(bytes: &[u8], at: usize) -> Option<(Option<f32>, usize)> {
    let mut at = at;
    let negative = *bytes.get(at)? == b'-';
    at += usize::from(negative);
    let first = at;
    let mut value = 0_i32;
    loop {
        let byte = *bytes.get(at)?;
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            if byte != b'\t' || (at == first && negative) {
                return None;
            }
            let number = if negative { -value } else { value };
            return Some(((at > first).then_some(number as f32), at + 1));
        }
        if at - first == 9 {
            return None;
        }
        value = value * 10 + i32::from(digit);
        at += 1;
    }
}
