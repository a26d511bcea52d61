//! Numbers in their one form, from text and from floats of any width.

use super::bits::{hash_bytes, mix};
use crate::{error::BadReason, half};

/// Floats up to here hold every integer.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// 2^63 and 2^64.
const SIGNED_END: f64 = 9_223_372_036_854_775_808.0;
const UNSIGNED_END: f64 = 18_446_744_073_709_551_616.0;

/// Powers of ten by which 24 bits can be multiplied exactly.
const TENS: [f64; 12] = [1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12];

/// The integer that a float surely stands for.
pub(super) fn whole(value: f64) -> Option<i64> {
    (value.abs() <= EXACT_MAX && value.fract() == 0.0).then_some(value as i64)
}

/// The number that a float of 16 bits stands for: 0.7 for the half nearest to it.
pub(super) fn from_f16(bits: u16) -> f64 {
    let value = f64::from(half::to_f32(bits));
    shortest_of(value, |near| half::from_f32(near as f32) == bits)
}

/// The number that the upper half of a float of 32 bits stands for.
pub(super) fn from_bf16(bits: u16) -> f64 {
    let nearest = |value: f32| {
        let all = value.to_bits();
        ((u64::from(all) + 0x7fff + u64::from(all >> 16 & 1)) >> 16) as u16
    };
    let value = f64::from(f32::from_bits(u32::from(bits) << 16));
    shortest_of(value, |near| nearest(near as f32) == bits)
}

/// The number that a float stands for: where 32 bits hold it, the shortest decimal that they are nearest to, so that
/// 0.7 is the same number as text, in 32 and in 64 bits. Whole numbers, and all others, stay as they are.
pub(crate) fn shortest(value: f64) -> f64 {
    let single = value as f32;
    if value.fract() == 0.0 || f64::from(single).to_bits() != value.to_bits() {
        return value;
    }
    shortest_of(value, |near| near as f32 == single)
}

/// The decimal with the fewest digits behind the point that is still the `same` float of fewer bits. A decimal of up to
/// 53 bits over a power of ten is the float nearest to it, as if its text had been read.
fn shortest_of(value: f64, same: impl Fn(f64) -> bool) -> f64 {
    if !value.is_finite() || value.fract() == 0.0 {
        return value;
    }
    for tens in TENS {
        let near = (value * tens).round() / tens;
        if same(near) {
            return near;
        }
    }
    // Below a billionth or so: by way of text, which is as short.
    let text = (value as f32).to_string();
    text.parse().ok().filter(|near| same(*near)).unwrap_or(value)
}

/// The key of an integer above `i64::MAX`: that of its text.
pub(super) fn unsigned_key(value: u64) -> u64 {
    hash_bytes(value.to_string().as_bytes())
}

/// The key of a number: whole ones have the key of the integer.
pub(super) fn float_key(value: f64) -> u64 {
    if value.fract() != 0.0 {
        return mix(shortest(value).to_bits());
    }
    match value {
        _ if (-SIGNED_END..SIGNED_END).contains(&value) => value as i64 as u64,
        _ if (SIGNED_END..UNSIGNED_END).contains(&value) => unsigned_key(value as u64),
        _ => mix(value.to_bits()),
    }
}

/// A float as text, in the form that [`canonical_text`] gives the same number.
pub(super) fn float_text(value: f64) -> String {
    match value {
        _ if value.fract() == 0.0 && (-SIGNED_END..SIGNED_END).contains(&value) => (value as i64).to_string(),
        _ if value.fract() == 0.0 && (0.0..UNSIGNED_END).contains(&value) => (value as u64).to_string(),
        _ => shortest(value).to_string(),
    }
}

/// The key of text that is a number or a truth value, written as programs write them.
pub(super) fn text_key(bytes: &[u8]) -> Option<u64> {
    match Number::read(bytes)? {
        Number::Int(value) => Some(value as u64),
        Number::Digits(digits) => Some(hash_bytes(digits)),
        Number::Float(value) => Some(float_key(value)),
    }
}

/// The one form of text that is a number or a truth value; `None` for other text.
pub(super) fn canonical_text(bytes: &[u8]) -> Option<String> {
    match Number::read(bytes.trim_ascii())? {
        Number::Int(value) => Some(value.to_string()),
        Number::Digits(digits) => Some(String::from_utf8_lossy(digits).into_owned()),
        Number::Float(value) => Some(float_text(value)),
    }
}

/// Text that is a number.
enum Number<'a> {
    Int(i64),
    /// An integer beyond 64 bits with a sign, as it is written.
    Digits(&'a [u8]),
    Float(f64),
}

impl Number<'_> {
    /// Reads digits, perhaps with a sign, a decimal point and an exponent. Not a number here, and so different from
    /// it: `007`, `+7`, `.5`, `1e5` (an exponent without point or sign may be part of a name), `0x7`.
    fn read(bytes: &[u8]) -> Option<Number<'_>> {
        if !matches!(bytes.first()?, b'0'..=b'9' | b'-') {
            return truth(bytes).map(Number::Int);
        }
        if let Some(value) = canonical_integer(bytes) {
            return Some(Number::Int(value));
        }
        let (mantissa, exponent) = match bytes.iter().position(|byte| matches!(byte, b'e' | b'E')) {
            Some(at) => (&bytes[..at], Some(&bytes[at + 1..])),
            None => (bytes, None),
        };
        let (left, right) = match memchr::memchr(b'.', mantissa) {
            Some(point) => (&mantissa[..point], Some(&mantissa[point + 1..])),
            None => (mantissa, None),
        };
        let is_digits = |bytes: &[u8]| bytes.iter().all(u8::is_ascii_digit);
        let digits = left.strip_prefix(b"-").unwrap_or(left);
        if digits.is_empty() || !is_digits(digits) || (digits.len() > 1 && digits[0] == b'0') {
            return None;
        }
        if !right.is_none_or(is_digits) {
            return None;
        }
        match exponent {
            None => {
                // Zeros alone say that it is an integer, which may be larger than a float holds exactly.
                if right?.iter().all(|digit| *digit == b'0') {
                    return Some(canonical_integer(left).map_or(Number::Digits(left), Number::Int));
                }
            }
            Some([b'-' | b'+', digits @ ..]) if is_exponent(digits) => {}
            Some(digits) if right.is_some() && is_exponent(digits) => {}
            Some(_) => return None,
        }
        let value: f64 = std::str::from_utf8(bytes).ok()?.parse().ok()?;
        value.is_finite().then_some(Number::Float(value))
    }
}

fn is_exponent(digits: &[u8]) -> bool {
    (1..=3).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit)
}

/// A truth value, as programs write them.
fn truth(bytes: &[u8]) -> Option<i64> {
    match bytes {
        b"true" | b"True" | b"TRUE" => Some(1),
        b"false" | b"False" | b"FALSE" => Some(0),
        _ => None,
    }
}

/// A number in 64 bits, from text that must be one.
pub(super) fn parse_float(bytes: &[u8]) -> Result<f64, BadReason> {
    match truth(bytes) {
        Some(truth) => Ok(truth as f64),
        None => parse_text(bytes, BadReason::NotANumber),
    }
}

/// An integer, from text that must be one; pandas writes whole numbers as `27.0` when the column has a missing value.
pub(super) fn parse_integer(bytes: &[u8]) -> Result<i64, BadReason> {
    let bytes = bytes.trim_ascii();
    if let Some(truth) = truth(bytes) {
        return Ok(truth);
    }
    let whole = match memchr::memchr(b'.', bytes) {
        Some(point) if point > 0 && bytes[point + 1..].iter().all(|digit| *digit == b'0') => &bytes[..point],
        _ => bytes,
    };
    parse_text(whole, BadReason::NotAnInteger)
}

fn parse_text<T: std::str::FromStr>(bytes: &[u8], wrong: BadReason) -> Result<T, BadReason> {
    let text = std::str::from_utf8(bytes).map_err(|_| BadReason::InvalidUtf8)?;
    text.trim_ascii().parse().map_err(|_| wrong)
}

/// Integers of at most seven digits, the common case; they are exact in `f32`.
#[inline]
pub(super) fn parse_small(bytes: &[u8]) -> Option<i32> {
    let (negative, digits) = match bytes {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, bytes),
    };
    if digits.is_empty() || digits.len() > 7 {
        return None;
    }
    let mut value = 0;
    for &digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + i32::from(digit);
    }
    Some(if negative { -value } else { value })
}

/// An integer written the one usual way: no plus, no leading zero; `-0` is 0.
fn canonical_integer(bytes: &[u8]) -> Option<i64> {
    let digits = bytes.strip_prefix(b"-").unwrap_or(bytes);
    let leading_zero = digits.first() == Some(&b'0') && digits.len() > 1;
    if digits.is_empty() || digits.len() > 19 || leading_zero || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// One to eight hexadecimal digits.
pub(super) fn parse_hex(bytes: &[u8]) -> Option<u32> {
    if let Ok(eight) = bytes.try_into() {
        return parse_hex_eight(u64::from_le_bytes(eight));
    }
    if bytes.is_empty() || bytes.len() > 8 || !bytes.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u32::from_str_radix(std::str::from_utf8(bytes).ok()?, 16).ok()
}

/// Eight hexadecimal digits at once, the first in the lowest byte.
#[inline]
pub(crate) fn parse_hex_eight(word: u64) -> Option<u32> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let letters = (word >> 6) & ONES; // 1 where the byte could be a letter: digits have bit 6 clear
    let nibbles = (word & (ONES * 0x0f)) + letters * 9;
    // Encoding the digits again must give the text back, in lower case; that refuses everything else.
    let big = ((nibbles + ONES * 6) >> 4) & ONES;
    let again = nibbles + ONES * 0x30 + big * 0x27;
    if again != word | (letters << 5) || nibbles & (ONES * 0xf0) != 0 {
        return None;
    }
    let pairs = ((nibbles << 4) | (nibbles >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs | (pairs >> 8)) & 0x0000_ffff_0000_ffff;
    Some(((fours | (fours >> 16)) as u32).swap_bytes())
}
