//! Protocol buffers, spoilt field by field: lengths are put right afterwards, so that the odd field is found.

use super::EXTREMES;
use crate::random::Random;

/// How deep a message is taken apart.
const DEPTH_MAX: usize = 4;

struct Field {
    key: u64,
    value: Wire,
}

enum Wire {
    Number(u64),
    Fixed(Vec<u8>),
    Bytes(Vec<u8>),
}

/// Does one to three things to a message; what is none stays as it is.
pub fn message(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(3) {
        if let Some(spoilt) = spoil(bytes, random, DEPTH_MAX) {
            *bytes = spoilt;
        }
    }
}

fn spoil(bytes: &[u8], random: &mut Random, depth: usize) -> Option<Vec<u8>> {
    let mut fields = parse(bytes)?;
    if fields.is_empty() {
        return None;
    }
    let place = random.below(fields.len());
    if depth > 0
        && !random.one_in(3)
        && let Wire::Bytes(inner) = &mut fields[place].value
        && let Some(spoilt) = spoil(inner, random, depth - 1)
    {
        *inner = spoilt;
        return Some(written(&fields));
    }
    match random.below(5) {
        0 => drop(fields.remove(place)),
        1 => {
            let again = written(&fields[place..=place]).repeat(1 + random.below(3));
            let mut bytes = written(&fields);
            bytes.extend(again);
            return Some(bytes);
        }
        2 => fields[place].key = fields[place].key.wrapping_add(8 * (random.number() % 8)),
        _ => match &mut fields[place].value {
            Wire::Number(number) => *number = *random.pick(&EXTREMES),
            Wire::Fixed(bytes) => bytes.fill(*random.pick(&[0, 0x7f, 0x80, 0xff])),
            Wire::Bytes(inner) => super::bytes(inner, &[0xff; 16], random),
        },
    }
    Some(written(&fields))
}

fn parse(mut bytes: &[u8]) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let value = match key & 7 {
            0 => Wire::Number(varint(&mut bytes)?),
            1 => Wire::Fixed(cut(&mut bytes, 8)?),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                Wire::Bytes(cut(&mut bytes, length)?)
            }
            5 => Wire::Fixed(cut(&mut bytes, 4)?),
            _ => return None,
        };
        fields.push(Field { key, value });
    }
    Some(fields)
}

fn cut(bytes: &mut &[u8], length: usize) -> Option<Vec<u8>> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken.to_vec())
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn put(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn written(fields: &[Field]) -> Vec<u8> {
    let mut out = Vec::new();
    for field in fields {
        put(field.key, &mut out);
        match &field.value {
            Wire::Number(number) => put(*number, &mut out),
            Wire::Fixed(bytes) => out.extend(bytes),
            Wire::Bytes(bytes) => {
                put(bytes.len() as u64, &mut out);
                out.extend(bytes);
            }
        }
    }
    out
}
