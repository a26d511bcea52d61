//! Raw values, before any transform: what a cell of a text or Parquet file, or a field of a request, holds.
//!
//! Ids are reduced to 64-bit keys, so that one vocabulary serves text, integers and requests alike: an integer
//! is its own key, whether it came as the number 42 or as the text `42`, ` 42` or `42.0`; a fraction has the key of
//! its value, `true` and `false` are 1 and 0, blanks around text do not count, and any other text is hashed. Two of a hundred
//! million texts share a key with a probability of about 0.03 %, and then they share a row, no more.

use crate::error::BadReason;

/// A raw value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Raw<'a> {
    /// An empty cell or a null.
    Missing,
    /// An integer or a truth value.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// Text, not yet checked; never empty.
    Text(&'a [u8]),
}

/// The key of a missing id: an id of its own.
pub(crate) const MISSING_KEY: u64 = 0xa5c1_7b0e_3d92_4f68;

impl<'a> Raw<'a> {
    /// Text without the blanks around it, or missing when nothing else is there.
    pub fn text(bytes: &'a [u8]) -> Raw<'a> {
        let bytes = bytes.trim_ascii();
        if bytes.is_empty() { Raw::Missing } else { Raw::Text(bytes) }
    }

    /// The ids of a cell of a list column: text is cut at the separator, anything else is one id. A missing cell has
    /// none; an empty piece between two separators is a missing id.
    pub fn items(self, separator: u8) -> impl Iterator<Item = Raw<'a>> {
        let (text, one) = match self {
            Raw::Missing => (None, None),
            Raw::Text(text) => (Some(text.split(move |&byte| byte == separator).map(Raw::text)), None),
            one => (None, Some(one)),
        };
        text.into_iter().flatten().chain(one)
    }

    /// The value as shown in an error, shortened to 60 characters.
    pub fn shown(self) -> String {
        let full = match self {
            Raw::Missing => String::new(),
            Raw::Int(value) => value.to_string(),
            Raw::Float(value) => value.to_string(),
            Raw::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => text.to_string(),
                Err(_) => bytes.escape_ascii().to_string(),
            },
        };
        match full.char_indices().nth(60) {
            Some((end, _)) => format!("{}…", &full[..end]),
            None => full,
        }
    }

    /// A number that may be missing.
    pub(crate) fn number(self) -> Result<Option<f32>, BadReason> {
        let value = match self {
            Raw::Missing => return Ok(None),
            Raw::Int(value) => value as f32,
            Raw::Float(value) => value as f32,
            Raw::Text(bytes) => match parse_small(bytes) {
                Some(value) => value as f32,
                None => parse_text(bytes, BadReason::NotANumber)?,
            },
        };
        if value.is_finite() { Ok(Some(value)) } else { Err(BadReason::NotFinite) }
    }

    /// A number in full precision that may be missing.
    pub(crate) fn wide_number(self) -> Result<Option<f64>, BadReason> {
        let value = match self {
            Raw::Missing => return Ok(None),
            Raw::Int(value) => value as f64,
            Raw::Float(value) => value,
            Raw::Text(bytes) => parse_text(bytes, BadReason::NotANumber)?,
        };
        if value.is_finite() { Ok(Some(shortest(value))) } else { Err(BadReason::NotFinite) }
    }

    /// An integer that may be missing.
    pub(crate) fn integer(self) -> Result<Option<i64>, BadReason> {
        match self {
            Raw::Missing => Ok(None),
            Raw::Int(value) => Ok(Some(value)),
            Raw::Float(value) => whole(value).map(Some).ok_or(BadReason::NotAnInteger),
            // pandas writes whole numbers as `27.0` when the column has a missing value.
            Raw::Text(bytes) => parse_text(without_zeros(bytes), BadReason::NotAnInteger).map(Some),
        }
    }

    /// The key of an id.
    pub(crate) fn key(self) -> Result<u64, BadReason> {
        match self {
            Raw::Missing => Ok(MISSING_KEY),
            Raw::Int(value) => Ok(value as u64),
            Raw::Float(value) if value.is_nan() => Ok(MISSING_KEY),
            Raw::Float(value) => Ok(float_key(value)),
            Raw::Text(bytes) => match text_key(bytes.trim_ascii()) {
                Some(key) => Ok(key),
                None if std::str::from_utf8(bytes).is_err() => Err(BadReason::InvalidUtf8),
                None => Ok(hash_bytes(bytes.trim_ascii())),
            },
        }
    }

    /// The key of an id whose text is hexadecimal, as in Criteo's logs.
    pub(crate) fn hex_key(self) -> Result<u64, BadReason> {
        match self {
            Raw::Text(bytes) => match parse_hex(bytes) {
                Some(value) => Ok(u64::from(value)),
                None if std::str::from_utf8(bytes).is_err() => Err(BadReason::InvalidUtf8),
                None => Err(BadReason::NotHex),
            },
            other => other.key(),
        }
    }
}

/// A bijection of 64 bits in which every input bit reaches every output bit.
#[inline]
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A number below `count` from 64 random bits, without a division.
#[inline]
pub(crate) fn scale(bits: u64, count: u64) -> u64 {
    ((u128::from(bits) * u128::from(count)) >> 64) as u64
}

/// 64 bits that follow from the bytes.
pub(crate) fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hash = mix(bytes.len() as u64 ^ 0x2d35_8dcc_aa6c_78a5);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        hash = fold(hash ^ u64::from_le_bytes(*word), 0x8bb8_4b93_962e_acc9);
    }
    let mut tail = [0; 8];
    tail[..rest.len()].copy_from_slice(rest);
    mix(fold(hash ^ u64::from_le_bytes(tail), 0x4b33_a62e_d433_d4a3))
}

/// Both halves of a 128-bit product, added without carry; the addition of `a` keeps a zero factor harmless.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64 ^ (product >> 64) as u64).wrapping_add(a.rotate_left(29))
}

/// A fingerprint of bytes as 32 hexadecimal digits: for telling contents apart, not against an adversary.
pub(crate) fn fingerprint(bytes: &[u8]) -> String {
    let first = hash_bytes(bytes);
    let second = mix(first ^ u64::from(crc32c::crc32c(bytes)) << 16 ^ bytes.len() as u64);
    format!("{first:016x}{second:016x}")
}

fn whole(value: f64) -> Option<i64> {
    const LIMIT: f64 = 9_007_199_254_740_992.0;
    (value.abs() <= LIMIT && value.fract() == 0.0).then_some(value as i64)
}

/// The float of 64 bits with the shortest decimal that a float of 32 bits has: 0.7 for `0.7_f32`, so that a number
/// is the same whether it came as text, in 32 or in 64 bits. Whole numbers, and all others, stay as they are.
fn shortest(value: f64) -> f64 {
    let single = value as f32;
    if value.fract() == 0.0 || f64::from(single).to_bits() != value.to_bits() {
        return value;
    }
    single.to_string().parse().unwrap_or(value)
}

/// The key of a number that may have a fraction.
fn float_key(value: f64) -> u64 {
    whole(value).map_or_else(|| mix(shortest(value).to_bits()), |whole| whole as u64)
}

/// The key of text that is a number or a truth value, written as programs write them.
fn text_key(bytes: &[u8]) -> Option<u64> {
    if let Some(value) = canonical_integer(bytes) {
        return Some(value as u64);
    }
    match bytes {
        b"true" | b"True" | b"TRUE" => return Some(1),
        b"false" | b"False" | b"FALSE" => return Some(0),
        _ => {}
    }
    // A decimal point with digits on its left and nothing but digits around it; `007.0` stays text as `007` does.
    let point = memchr::memchr(b'.', bytes)?;
    let (left, right) = (&bytes[..point], &bytes[point + 1..]);
    if left != b"-0" {
        canonical_integer(left)?;
    }
    if !right.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // Zeros alone say that it is an integer, which may be larger than a float holds exactly.
    if right.iter().all(|digit| *digit == b'0') {
        return canonical_integer(left).map_or(Some(0), |value| Some(value as u64));
    }
    std::str::from_utf8(bytes).ok()?.parse().ok().map(float_key)
}

/// Text without a decimal point that only zeros follow.
fn without_zeros(bytes: &[u8]) -> &[u8] {
    let bytes = bytes.trim_ascii();
    match memchr::memchr(b'.', bytes) {
        Some(point) if point > 0 && bytes[point + 1..].iter().all(|digit| *digit == b'0') => &bytes[..point],
        _ => bytes,
    }
}

fn parse_text<T: std::str::FromStr>(bytes: &[u8], wrong: BadReason) -> Result<T, BadReason> {
    let text = std::str::from_utf8(bytes).map_err(|_| BadReason::InvalidUtf8)?;
    text.trim_matches(' ').parse().map_err(|_| wrong)
}

/// Integers of at most seven digits, the common case; they are exact in `f32`.
#[inline]
fn parse_small(bytes: &[u8]) -> Option<i32> {
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

/// An integer written the one usual way: no plus, no leading zero, no `-0`.
fn canonical_integer(bytes: &[u8]) -> Option<i64> {
    let digits = bytes.strip_prefix(b"-").unwrap_or(bytes);
    let leading_zero = digits.first() == Some(&b'0') && bytes.len() > 1;
    if digits.is_empty() || digits.len() > 19 || leading_zero || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// One to eight hexadecimal digits.
fn parse_hex(bytes: &[u8]) -> Option<u32> {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_integer_has_one_key_however_it_is_written() {
        for raw in [Raw::Int(42), Raw::Float(42.0), Raw::Text(b"42")] {
            assert_eq!(raw.key(), Ok(42), "{raw:?}");
        }
        for text in ["42.0", "42.", " 42", "42 ", "\t42.00 "] {
            assert_eq!(Raw::text(text.as_bytes()).key(), Ok(42), "{text:?}");
            assert_eq!(Raw::Text(text.as_bytes()).key(), Ok(42), "{text:?}");
        }
        assert_eq!(Raw::Text(b"-0.0").key(), Raw::Float(-0.0).key());
        assert_eq!(Raw::Text(b"9007199254740993.0").key(), Ok(9_007_199_254_740_993));
        assert_eq!(Raw::Text(b"True").key(), Raw::Int(1).key());
        assert_eq!(Raw::Text(b" blue").key(), Raw::Text(b"blue").key());
        assert_eq!(Raw::text(b"  "), Raw::Missing);
        for value in [0.7_f32, -1.5, 1e-3] {
            let text = value.to_string();
            let key = Raw::Text(text.as_bytes()).key();
            assert_eq!(key, Raw::Float(f64::from(value)).key(), "{text} in 32 bits");
            assert_eq!(key, Raw::Float(text.parse().unwrap()).key(), "{text} in 64 bits");
            assert_eq!(Raw::Float(f64::from(value)).wide_number(), Raw::Text(text.as_bytes()).wide_number());
        }
        assert_eq!(Raw::Text(b"27.0").integer(), Ok(Some(27)));
        assert_eq!(Raw::Text(b"27.5").integer(), Err(BadReason::NotAnInteger));
        assert_ne!(Raw::Text(b"1.2.3").key(), Raw::Text(b"1.2").key());
        assert_ne!(Raw::Text(b"042").key(), Ok(42));
        assert_eq!(Raw::Text(b"-7").key(), Ok((-7_i64) as u64));
        assert_eq!(Raw::Text(b"0").key(), Ok(0));
    }

    #[test]
    fn a_cell_of_a_list_is_cut_into_its_ids() {
        let items = |raw: Raw<'static>| raw.items(b'|').collect::<Vec<_>>();
        assert_eq!(items(Raw::text(b"a|b")), [Raw::Text(b"a"), Raw::Text(b"b")]);
        assert_eq!(items(Raw::text(b"a||7")), [Raw::Text(b"a"), Raw::Missing, Raw::Text(b"7")]);
        assert_eq!(items(Raw::Int(7)), [Raw::Int(7)]);
        assert_eq!(items(Raw::Missing), []);
    }

    #[test]
    fn numbers_that_are_not_finite_are_refused() {
        assert_eq!(Raw::Text(b"nan").number(), Err(BadReason::NotFinite));
        assert_eq!(Raw::Float(f64::INFINITY).number(), Err(BadReason::NotFinite));
        assert_eq!(Raw::Text(b"1e99").number(), Err(BadReason::NotFinite));
        assert_eq!(Raw::Text(b"x").number(), Err(BadReason::NotANumber));
        assert_eq!(Raw::Text(b"-12").number(), Ok(Some(-12.0)));
        assert_eq!(Raw::Text(b" 1.5").number(), Ok(Some(1.5)));
    }

    #[test]
    fn a_wide_number_that_is_not_finite_is_refused() {
        for raw in [Raw::Text(b"nan"), Raw::Text(b"inf"), Raw::Float(f64::NEG_INFINITY)] {
            assert_eq!(raw.wide_number(), Err(BadReason::NotFinite), "{raw:?}");
        }
        assert_eq!(Raw::Missing.wide_number(), Ok(None));
    }

    #[test]
    fn a_long_value_is_shortened_in_messages() {
        let long = "é".repeat(100);
        assert_eq!(Raw::Text(long.as_bytes()).shown(), format!("{}…", "é".repeat(60)));
    }

    proptest! {
        #[test]
        fn hexadecimal_matches_the_standard_library(value: u32, upper: bool) {
            let text = if upper { format!("{value:08X}") } else { format!("{value:08x}") };
            prop_assert_eq!(parse_hex(text.as_bytes()), Some(value));
        }

        #[test]
        fn eight_bytes_are_hexadecimal_when_each_of_them_is(bytes: [u8; 8]) {
            let text = bytes.iter().all(u8::is_ascii_hexdigit);
            prop_assert_eq!(parse_hex_eight(u64::from_le_bytes(bytes)).is_some(), text);
        }

        #[test]
        fn one_wrong_byte_among_eight_is_noticed(value: u32, place in 0_usize..8, byte: u8) {
            let mut text = format!("{value:08x}").into_bytes();
            text[place] = byte;
            let word = u64::from_le_bytes(text.clone().try_into().unwrap());
            let want = std::str::from_utf8(&text).ok().filter(|text| !text.starts_with('+'));
            prop_assert_eq!(parse_hex_eight(word), want.and_then(|text| u32::from_str_radix(text, 16).ok()));
        }

        #[test]
        fn small_integers_match_the_standard_library(text in "-?[0-9]{0,9}[x.]?") {
            let want = text.parse::<f32>().ok();
            prop_assert_eq!(Raw::text(text.as_bytes()).number().ok().flatten(), want);
        }
    }
}
