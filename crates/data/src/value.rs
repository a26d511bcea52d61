//! Raw values, before any transform: what a cell of a text or Parquet file, or a field of a request, holds.
//!
//! A value is what it says, however it came: one form for files, logs and requests.
//!
//! ```text
//!   number 42    "42"  " 42 "  42.0  "42.0"  "4.2e+1"      a number that is whole is that integer
//!   number 0.7   "0.7" and 0.7 in 16, 32 or 64 bits        the shortest decimal that those bits stand for
//!   1, 0         true, "true", "True", "TRUE", ...
//!   missing      an empty or blank cell, null, nan as an id, and the words of `missing_values`
//! ```
//!
//! Ids are reduced to 64-bit keys, so that one vocabulary serves all of them: an integer is its own key, any other
//! number has the key of its value, any other text is hashed. Two of a hundred million texts share a key with a
//! probability of about 0.03 %, and then they share a row, no more.

mod bits;
mod number;

use std::borrow::Cow;

use crate::error::BadReason;
pub(crate) use bits::{fingerprint, hash_bytes, mix, scale};
pub(crate) use number::{parse_hex_eight, shortest};

/// A raw value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Raw<'a> {
    /// An empty cell or a null.
    Missing,
    /// An integer or a truth value.
    Int(i64),
    /// An integer above `i64::MAX`; see [`Raw::unsigned`].
    Unsigned(u64),
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

    /// An integer without a sign.
    pub fn unsigned(value: u64) -> Raw<'a> {
        i64::try_from(value).map_or(Raw::Unsigned(value), Raw::Int)
    }

    /// A float of 16 bits, as the number that it stands for.
    pub fn from_f16(bits: u16) -> Raw<'a> {
        Raw::Float(number::from_f16(bits))
    }

    /// The upper half of a float of 32 bits, as the number that it stands for.
    pub fn from_bf16(bits: u16) -> Raw<'a> {
        Raw::Float(number::from_bf16(bits))
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

    /// The value as shown in an error: at most 60 characters, none of which a terminal would obey.
    pub fn shown(self) -> String {
        let full = match self {
            Raw::Missing => String::new(),
            Raw::Int(value) => value.to_string(),
            Raw::Unsigned(value) => value.to_string(),
            Raw::Float(value) => value.to_string(),
            Raw::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) if !text.contains(char::is_control) => text.to_string(),
                _ => bytes.escape_ascii().to_string(),
            },
        };
        match full.char_indices().nth(60) {
            Some((end, _)) => format!("{}…", &full[..end]),
            None => full,
        }
    }

    /// The name of a value that stands for itself, such as a segment: numbers in their one form, text as it is.
    pub(crate) fn name(self) -> Cow<'a, str> {
        match self {
            Raw::Missing => Cow::Borrowed(""),
            Raw::Int(value) => Cow::Owned(value.to_string()),
            Raw::Unsigned(value) => Cow::Owned(value.to_string()),
            Raw::Float(value) => Cow::Owned(number::float_text(value)),
            Raw::Text(bytes) => match number::canonical_text(bytes) {
                Some(text) => Cow::Owned(text),
                None => String::from_utf8_lossy(bytes),
            },
        }
    }

    /// The value as an id: nan is a missing one, as a null is.
    pub(crate) fn as_id(self) -> Raw<'a> {
        match self {
            Raw::Float(value) if value.is_nan() => Raw::Missing,
            other => other,
        }
    }

    /// A number that may be missing, rounded to 32 bits.
    pub(crate) fn number(self) -> Result<Option<f32>, BadReason> {
        let value = match self {
            Raw::Missing => return Ok(None),
            Raw::Int(value) => value as f32,
            Raw::Unsigned(value) => value as f32,
            Raw::Float(value) => value as f32,
            Raw::Text(bytes) => match number::parse_small(bytes) {
                Some(value) => value as f32,
                // By way of 64 bits, as a float of a Parquet file or of a request comes.
                None => number::parse_float(bytes)? as f32,
            },
        };
        if value.is_finite() { Ok(Some(value)) } else { Err(BadReason::NotFinite) }
    }

    /// A number in full precision that may be missing.
    pub(crate) fn wide_number(self) -> Result<Option<f64>, BadReason> {
        let value = match self {
            Raw::Missing => return Ok(None),
            Raw::Int(value) => value as f64,
            Raw::Unsigned(value) => value as f64,
            Raw::Float(value) => value,
            Raw::Text(bytes) => number::parse_float(bytes)?,
        };
        if value.is_finite() { Ok(Some(shortest(value))) } else { Err(BadReason::NotFinite) }
    }

    /// An integer that may be missing.
    pub(crate) fn integer(self) -> Result<Option<i64>, BadReason> {
        match self {
            Raw::Missing => Ok(None),
            Raw::Int(value) => Ok(Some(value)),
            Raw::Unsigned(_) => Err(BadReason::LargeInteger),
            Raw::Float(value) => number::whole(value).map(Some).ok_or(BadReason::NotAnInteger),
            Raw::Text(bytes) => number::parse_integer(bytes).map(Some),
        }
    }

    /// The key of an id.
    pub(crate) fn key(self) -> Result<u64, BadReason> {
        match self.as_id() {
            Raw::Missing => Ok(MISSING_KEY),
            Raw::Int(value) => Ok(value as u64),
            Raw::Unsigned(value) => Ok(number::unsigned_key(value)),
            Raw::Float(value) => Ok(number::float_key(value)),
            Raw::Text(bytes) => match number::text_key(bytes.trim_ascii()) {
                Some(key) => Ok(key),
                None if std::str::from_utf8(bytes).is_err() => Err(BadReason::InvalidUtf8),
                None => Ok(hash_bytes(bytes.trim_ascii())),
            },
        }
    }

    /// The key of an id whose text is hexadecimal, as in Criteo's logs.
    pub(crate) fn hex_key(self) -> Result<u64, BadReason> {
        match self {
            Raw::Text(bytes) => match number::parse_hex(bytes) {
                Some(value) => Ok(u64::from(value)),
                None if std::str::from_utf8(bytes).is_err() => Err(BadReason::InvalidUtf8),
                None => Err(BadReason::NotHex),
            },
            other => other.key(),
        }
    }
}

#[cfg(test)]
mod tests;
