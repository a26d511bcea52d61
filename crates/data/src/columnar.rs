//! Rows out: raw values as columns of Parquet files, for programs that are not ours.
//!
//! A [`Column`] takes cells as they come and finds its type from them; a [`TableFile`] writes columns in row groups and
//! is there under its name only when it is whole.
//!
//! ```text
//!   nothing but missing cells ─► integer ─► float        as far as every integer stands exactly among floats
//!                             └─► text                   numbers and text do not mix, unless the type was said: text
//!   a value                   ─► list                    a single value is then a list of one
//! ```
//!
//! A type only ever grows along these arrows, so what was read from one file is never contradicted by the next.

mod column;
mod file;

use std::{fmt, str::FromStr};

pub use column::{Column, Unfit};
pub use file::{TableFile, notes};

/// What the values of a column are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// 64 bits with a sign.
    Integer,
    /// 64 bits without one; given and kept as the same bits with a sign.
    Unsigned,
    /// Milliseconds since 1970, UTC.
    Time,
    /// 0 or 1.
    Label,
    /// Whether, as 0 or 1.
    Boolean,
    /// 64 bits.
    Float,
    /// 32 bits.
    Single,
    /// UTF-8.
    Text,
    /// Text in no known encoding.
    Bytes,
}

/// The kinds that a user can name.
const NAMED: [(&str, Kind); 4] =
    [("integer", Kind::Integer), ("float", Kind::Float), ("text", Kind::Text), ("bytes", Kind::Bytes)];

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ColumnType {
    /// What its values are; nothing where there was none yet.
    pub kind: Option<Kind>,
    /// Whether a row has a list of them.
    pub is_list: bool,
}

impl ColumnType {
    /// One value of a kind.
    pub fn one(kind: Kind) -> ColumnType {
        ColumnType { kind: Some(kind), is_list: false }
    }

    /// A list of values of a kind.
    pub fn list(kind: Kind) -> ColumnType {
        ColumnType { kind: Some(kind), is_list: true }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Integer => "integer",
            Kind::Unsigned => "unsigned",
            Kind::Time => "time",
            Kind::Label => "label",
            Kind::Boolean => "boolean",
            Kind::Float => "float",
            Kind::Single => "single",
            Kind::Text => "text",
            Kind::Bytes => "bytes",
        })
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Some(kind) => write!(f, "{kind}")?,
            None => f.write_str("missing")?,
        }
        f.write_str(if self.is_list { "-list" } else { "" })
    }
}

impl FromStr for ColumnType {
    type Err = String;

    fn from_str(text: &str) -> Result<ColumnType, String> {
        let (name, is_list) = match text.strip_suffix("-list") {
            Some(name) => (name, true),
            None => (text, false),
        };
        let found = NAMED.iter().find(|(known, _)| *known == name);
        let (_, kind) = found.ok_or_else(|| {
            format!("`{text}` is no type of a column; write integer, float, text or bytes, or one of them with -list behind")
        })?;
        Ok(ColumnType { kind: Some(*kind), is_list })
    }
}
