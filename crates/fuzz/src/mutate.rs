//! Ways to spoil good input: bytes, text, and trees of JSON, TOML and protocol buffers.

pub mod protobuf;
pub mod tree;

use crate::random::Random;

/// Numbers that have broken readers before.
pub const EXTREMES: [u64; 22] = [
    0,
    1,
    2,
    3,
    7,
    8,
    127,
    128,
    255,
    65_535,
    65_536,
    i32::MAX as u64,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 40,
    1 << 61,
    1 << 62,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

/// Pieces of text that have broken readers before.
pub const AWKWARD: [&str; 26] = [
    "-1",
    "0",
    "1e999",
    "-0.0",
    "1e38",
    "NaN",
    "inf",
    "null",
    "true",
    "[]",
    "{}",
    "\"\"",
    "[[[[",
    "]]]]",
    "\"\\u0000\"",
    "18446744073709551615",
    "9223372036854775807",
    "-9223372036854775808",
    "4611686018427387904",
    "2147483648",
    "\"BYTES\"",
    "\"INT64\"",
    ".lengths",
    "../..",
    "\u{1b}[31m",
    "\u{202e}\u{0}",
];

/// Does one to four things to some bytes; `other` is another good input, for splicing.
pub fn bytes(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..=random.below(4) {
        let place = random.below(bytes.len() + 1);
        match random.below(10) {
            0 if place < bytes.len() => bytes[place] ^= 1 << random.below(8),
            1 if place < bytes.len() => bytes[place] = random.number() as u8,
            2 => bytes.truncate(place),
            3 => {
                let end = (place + 1 + random.below(64)).min(bytes.len());
                bytes.drain(place.min(end)..end);
            }
            4 => {
                let end = (place + random.below(64)).min(bytes.len());
                let again = bytes[place.min(end)..end].repeat(1 + random.below(3));
                bytes.splice(place..place, again);
            }
            5 if !other.is_empty() => {
                let start = random.below(other.len());
                let end = (start + random.below(256)).min(other.len());
                let until = (place + random.below(256)).min(bytes.len());
                bytes.splice(place..until, other[start..end].iter().copied());
            }
            6 | 7 => number(bytes, place, random),
            8 => {
                let until = (place + random.below(8)).min(bytes.len());
                bytes.splice(place..until, random.pick(&AWKWARD).bytes());
            }
            _ => digits(bytes, place, random),
        }
    }
}

/// Writes an extreme number over the bytes from a place on, four or eight of them.
fn number(bytes: &mut [u8], place: usize, random: &mut Random) {
    // Most formats keep their numbers aligned.
    let place = if random.one_in(3) { place } else { place / 4 * 4 };
    let width = *random.pick(&[2, 4, 8]);
    let number = match random.below(4) {
        0 => random.number() >> random.below(64),
        _ => *random.pick(&EXTREMES),
    };
    if let Some(bytes) = bytes.get_mut(place..place + width) {
        bytes.copy_from_slice(&number.to_le_bytes()[..width]);
    }
}

/// Puts another number where the next digits stand.
fn digits(bytes: &mut Vec<u8>, from: usize, random: &mut Random) {
    let Some(start) = bytes.iter().skip(from).position(u8::is_ascii_digit).map(|offset| from + offset) else {
        return;
    };
    let length = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = match random.below(3) {
        0 => (random.number() % 1000).to_string(),
        1 => format!("-{}", random.pick(&EXTREMES)),
        _ => random.pick(&EXTREMES).to_string(),
    };
    bytes.splice(start..start + length, number.into_bytes());
}

/// Spoils lines of text: one goes, comes twice, or changes places with another; or its bytes are spoilt.
pub fn text(text: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    if random.one_in(2) {
        return bytes(text, other, random);
    }
    let mut lines: Vec<Vec<u8>> = text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    for _ in 0..=random.below(3) {
        let (place, second) = (random.below(lines.len()), random.below(lines.len()));
        match random.below(4) {
            0 if lines.len() > 1 => drop(lines.remove(place)),
            1 => lines.insert(second, lines[place].clone()),
            2 => lines.swap(place, second),
            _ => digits(&mut lines[place], 0, random),
        }
    }
    *text = lines.join(&b'\n');
}
