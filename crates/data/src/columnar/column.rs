//! One column in memory: values, and which rows they belong to.
//!
//! Rows are kept as counts of entries and entries as "there or not", whether the column is one of lists or not; so a column
//! that becomes one of lists, or of floats, keeps what it has.

use super::{ColumnType, Kind};
use crate::{logged::Cell, value::Raw};

/// The count of a row that has nothing, not even an empty list.
pub(super) const NO_ENTRIES: u32 = u32::MAX;

/// The largest integer up to which all are floats of 64 bits.
const EXACT_MAX: u64 = 1 << 53;

/// A value that a column cannot take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("column `{column}`, value `{value}`: {reason}")]
pub struct Unfit {
    /// The column.
    pub column: String,
    /// The value.
    pub value: String,
    /// Why, and what to do.
    pub reason: String,
}

/// Values without their missing neighbours.
#[derive(Debug)]
pub(super) enum Values {
    Integers(Vec<i64>),
    Floats(Vec<f64>),
    /// All bytes, and where each text ends.
    Texts(Vec<u8>, Vec<usize>),
}

/// A column that is being filled.
#[derive(Debug)]
pub struct Column {
    name: String,
    its_type: ColumnType,
    /// Whether the type was said, and does not follow the values.
    is_fixed: bool,
    pub(super) values: Values,
    /// By row: how many entries, or [`NO_ENTRIES`].
    pub(super) counts: Vec<u32>,
    /// By entry: whether it has a value.
    pub(super) present: Vec<bool>,
}

impl Column {
    /// A column whose type follows its values, from `known` on.
    pub fn new(name: String, known: ColumnType) -> Column {
        let values = empty_values(known.kind);
        Column { name, its_type: known, is_fixed: false, values, counts: Vec::new(), present: Vec::new() }
    }

    /// A column of a type that was said.
    pub fn fixed(name: String, its_type: ColumnType) -> Column {
        Column { is_fixed: true, ..Column::new(name, its_type) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its type so far.
    pub fn its_type(&self) -> ColumnType {
        self.its_type
    }

    /// Rows.
    pub fn row_count(&self) -> usize {
        self.counts.len()
    }

    /// Forgets all rows, not the type.
    pub fn clear(&mut self) {
        self.counts.clear();
        self.present.clear();
        match &mut self.values {
            Values::Integers(values) => values.clear(),
            Values::Floats(values) => values.clear(),
            Values::Texts(bytes, ends) => {
                bytes.clear();
                ends.clear();
            }
        }
    }

    /// Adds a row with a cell of a logged row.
    ///
    /// # Errors
    /// When the value does not go with the others, or with the type that was said; the column is of no use then.
    pub fn push_cell(&mut self, cell: Cell<'_>) -> Result<(), Unfit> {
        match cell {
            Cell::One(raw) => self.push(raw),
            Cell::List(items) => self.push_list(items),
        }
    }

    /// Adds a row with one value.
    ///
    /// # Errors
    /// As [`Column::push_cell`].
    pub fn push(&mut self, raw: Raw<'_>) -> Result<(), Unfit> {
        if raw == Raw::Missing {
            self.counts.push(NO_ENTRIES);
            return Ok(());
        }
        self.counts.push(1);
        self.push_entry(raw)
    }

    /// Adds a row with a list.
    ///
    /// # Errors
    /// As [`Column::push_cell`].
    pub fn push_list<'a>(&mut self, items: impl Iterator<Item = Raw<'a>>) -> Result<(), Unfit> {
        if self.is_fixed && !self.its_type.is_list {
            let shown = items.map(Raw::shown).collect::<Vec<_>>().join(", ");
            let (name, its_type) = (&self.name, self.its_type);
            let reason = format!(
                "a list cannot be written as {its_type}, as --type says; write `--type {name}={its_type}-list`"
            );
            return Err(self.unfit(Raw::Text(shown.as_bytes()), reason));
        }
        self.its_type.is_list = true;
        let before = self.present.len();
        for item in items {
            self.push_entry(item)?;
        }
        self.counts.push((self.present.len() - before) as u32);
        Ok(())
    }

    fn push_entry(&mut self, raw: Raw<'_>) -> Result<(), Unfit> {
        self.present.push(raw != Raw::Missing);
        if raw == Raw::Missing { Ok(()) } else { self.push_value(raw) }
    }

    fn push_value(&mut self, raw: Raw<'_>) -> Result<(), Unfit> {
        let kind = self.kind_for(raw)?;
        match (&mut self.values, raw) {
            (Values::Integers(values), Raw::Int(value)) => values.push(value),
            (Values::Integers(values), Raw::Float(value)) if as_integer(value).is_some() => {
                values.extend(as_integer(value));
            }
            (Values::Floats(values), Raw::Float(value)) => values.push(value),
            (Values::Floats(values), Raw::Int(value)) if value.unsigned_abs() <= EXACT_MAX => {
                values.push(value as f64);
            }
            (Values::Floats(_), Raw::Int(value)) => return Err(self.inexact(value)),
            (Values::Texts(bytes, ends), Raw::Text(text)) => {
                if kind == Kind::Text && std::str::from_utf8(text).is_err() {
                    let reason = format!("it is not UTF-8; `--type {}=bytes` writes it as it is", self.name);
                    return Err(self.unfit(raw, reason));
                }
                bytes.extend_from_slice(text);
                ends.push(bytes.len());
            }
            (Values::Integers(_) | Values::Floats(_), Raw::Unsigned(_)) => {
                let reason = format!("it is above 2^63 - 1; `--type {}=text` writes it as text", self.name);
                return Err(self.unfit(raw, reason));
            }
            (Values::Texts(bytes, ends), Raw::Int(_) | Raw::Unsigned(_) | Raw::Float(_)) => {
                // Not `shown`, which shortens.
                let text = match raw {
                    Raw::Int(value) => value.to_string(),
                    Raw::Unsigned(value) => value.to_string(),
                    Raw::Float(value) => value.to_string(),
                    _ => String::new(),
                };
                bytes.extend_from_slice(text.as_bytes());
                ends.push(bytes.len());
            }
            _ => {
                return Err(self.unfit(raw, format!("it cannot be written as {kind}, as --type says")));
            }
        }
        Ok(())
    }

    /// The kind that the column has when it takes this value.
    fn kind_for(&mut self, raw: Raw<'_>) -> Result<Kind, Unfit> {
        let own = match raw {
            Raw::Int(_) | Raw::Unsigned(_) | Raw::Missing => Kind::Integer,
            Raw::Float(_) => Kind::Float,
            Raw::Text(_) => Kind::Text,
        };
        let is_text = |kind: Kind| matches!(kind, Kind::Text | Kind::Bytes);
        match self.its_type.kind {
            None => {
                self.its_type.kind = Some(own);
                self.values = empty_values(Some(own));
                Ok(own)
            }
            Some(kind) if self.is_fixed => Ok(kind),
            Some(Kind::Integer) if own == Kind::Float => {
                self.become_floats()?;
                Ok(Kind::Float)
            }
            Some(kind) if is_text(kind) != is_text(own) => {
                let name = &self.name;
                let reason = format!(
                    "until now the column had values of type {kind}, and text does not mix with numbers; \
                     `--type {name}=text`, into a new directory, writes all of them as text"
                );
                Err(self.unfit(raw, reason))
            }
            Some(kind) => Ok(kind),
        }
    }

    fn become_floats(&mut self) -> Result<(), Unfit> {
        if let Values::Integers(values) = &self.values {
            if let Some(value) = values.iter().find(|value| value.unsigned_abs() > EXACT_MAX) {
                return Err(self.inexact(*value));
            }
            self.values = Values::Floats(values.iter().map(|value| *value as f64).collect());
        }
        self.its_type.kind = Some(Kind::Float);
        Ok(())
    }

    fn inexact(&self, value: i64) -> Unfit {
        let reason = format!(
            "the column has floats, among which this integer does not stand exactly; `--type {}=text`, into a new \
             directory, writes all of them as text",
            self.name
        );
        self.unfit(Raw::Int(value), reason)
    }

    fn unfit(&self, raw: Raw<'_>, reason: String) -> Unfit {
        Unfit { column: self.name.clone(), value: raw.shown(), reason }
    }
}

fn empty_values(kind: Option<Kind>) -> Values {
    match kind {
        Some(Kind::Float | Kind::Single) => Values::Floats(Vec::new()),
        Some(Kind::Text | Kind::Bytes) => Values::Texts(Vec::new(), Vec::new()),
        _ => Values::Integers(Vec::new()),
    }
}

/// The integer that a float is, if it is one.
fn as_integer(value: f64) -> Option<i64> {
    (value.fract() == 0.0 && value.abs() <= EXACT_MAX as f64).then_some(value as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(mut column: Column, values: &[Raw<'_>]) -> Result<Column, String> {
        values.iter().try_for_each(|raw| column.push(*raw)).map_err(|unfit| unfit.to_string())?;
        Ok(column)
    }

    fn any() -> Column {
        Column::new("x".to_owned(), ColumnType::default())
    }

    #[test]
    fn a_type_follows_the_values() {
        let of = |values: &[Raw<'_>]| filled(any(), values).unwrap().its_type().to_string();
        assert_eq!(of(&[Raw::Missing]), "missing");
        assert_eq!(of(&[Raw::Missing, Raw::Int(-7)]), "integer");
        assert_eq!(of(&[Raw::Int(7), Raw::Float(0.5), Raw::Int(8)]), "float");
        assert_eq!(of(&[Raw::Text(b"7"), Raw::Missing]), "text");
        let mut column = filled(any(), &[Raw::Int(1), Raw::Missing]).unwrap();
        column.push_list([Raw::Float(0.5), Raw::Missing].into_iter()).unwrap();
        column.push_list([].into_iter()).unwrap();
        assert_eq!(column.its_type().to_string(), "float-list");
        assert_eq!(column.counts, [1, NO_ENTRIES, 2, 0]);
        assert_eq!(column.present, [true, true, false]);
        assert!(matches!(&column.values, Values::Floats(values) if values[..] == [1.0, 0.5]));
        // What was learnt stays.
        column.clear();
        assert_eq!((column.its_type().to_string().as_str(), column.row_count()), ("float-list", 0));
    }

    #[test]
    fn what_does_not_mix_is_named() {
        let wrong = |values: &[Raw<'_>]| filled(any(), values).unwrap_err();
        let words = wrong(&[Raw::Int(7), Raw::Text(b"red")]);
        assert!(
            words.starts_with("column `x`, value `red`: until now the column had values of type integer")
        );
        assert!(words.contains("`--type x=text`"), "{words}");
        assert!(wrong(&[Raw::Text(b"red"), Raw::Float(0.5)]).contains("value `0.5`"));
        let large = (1 << 53) + 1;
        assert!(wrong(&[Raw::Int(large), Raw::Float(0.5)]).contains("value `9007199254740993`"));
        assert!(wrong(&[Raw::Float(0.5), Raw::Int(large)]).contains("does not stand exactly"));
        assert!(wrong(&[Raw::Text(b"\xff")]).contains("`--type x=bytes`"));
    }

    #[test]
    fn a_type_that_was_said_holds() {
        let said = |text: &str| Column::fixed("x".to_owned(), text.parse().unwrap());
        let text = filled(said("text"), &[Raw::Int(42), Raw::Float(42.0), Raw::Float(0.5)]).unwrap();
        assert!(
            matches!(&text.values, Values::Texts(bytes, ends) if bytes == b"42420.5" && ends[..] == [2, 4, 7])
        );
        assert_eq!(filled(said("float"), &[Raw::Int(1)]).unwrap().its_type().to_string(), "float");
        let whole = filled(said("integer"), &[Raw::Float(3.0)]).unwrap();
        assert!(matches!(&whole.values, Values::Integers(values) if values[..] == [3]));
        let words = filled(said("integer"), &[Raw::Float(0.5)]).unwrap_err();
        assert!(words.contains("cannot be written as integer, as --type says"), "{words}");
        assert!(filled(said("integer"), &[Raw::Text(b"7")]).is_err());
        assert!(filled(said("bytes"), &[Raw::Text(b"\xff")]).is_ok());
        let words =
            said("integer").push_list([Raw::Int(1), Raw::Int(2)].into_iter()).unwrap_err().to_string();
        assert!(words.contains("value `1, 2`") && words.contains("`--type x=integer-list`"), "{words}");
        assert!("integers".parse::<ColumnType>().unwrap_err().contains("`integers` is no type of a column"));
        for name in ["integer", "float-list", "text", "bytes-list"] {
            assert_eq!(name.parse::<ColumnType>().unwrap().to_string(), name);
        }
    }
}
