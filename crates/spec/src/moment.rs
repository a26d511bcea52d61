//! Moments in a job: as the time column counts them, or as a date.

use std::fmt;

use serde::{Deserialize, Serialize};
use toml::{de::DeValue, value::Datetime};

use crate::config::{
    error::Problem,
    keys::{Form, Given, Node, Value, words},
};

words! {
    /// What a time column counts, from the beginning of 1970 in UTC.
    pub enum TimeUnit {
        /// Seconds.
        Seconds,
        /// Thousandths of a second.
        Milliseconds,
        /// Millionths of a second.
        Microseconds,
        /// Billionths of a second.
        Nanoseconds,
    }
}

impl TimeUnit {
    /// Nanoseconds in one.
    pub fn nanoseconds(self) -> i64 {
        match self {
            TimeUnit::Seconds => 1_000_000_000,
            TimeUnit::Milliseconds => 1_000_000,
            TimeUnit::Microseconds => 1_000,
            TimeUnit::Nanoseconds => 1,
        }
    }
}

/// A moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Moment {
    /// As the time column counts.
    Count(i64),
    /// A date with its time and zone.
    Date(Date),
}

/// A date with its time, in UTC, to the nanosecond; years 1678 to 2261.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Date {
    nanoseconds: i64,
}

/// How a date is written.
const EXAMPLE: &str = "\"2026-11-18T00:00:00Z\"";

impl From<i64> for Moment {
    fn from(count: i64) -> Moment {
        Moment::Count(count)
    }
}

impl Moment {
    /// As a column of this unit counts it: the first count that is not before it. `None` for a date without a unit.
    pub fn count(self, unit: Option<TimeUnit>) -> Option<i64> {
        match self {
            Moment::Count(count) => Some(count),
            Moment::Date(date) => {
                let unit = unit?.nanoseconds();
                Some(date.nanoseconds.div_euclid(unit) + i64::from(date.nanoseconds.rem_euclid(unit) != 0))
            }
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Moment::Count(count) => count.fmt(out),
            Moment::Date(date) => date.fmt(out),
        }
    }
}

impl TryFrom<String> for Date {
    type Error = String;

    fn try_from(text: String) -> Result<Date, String> {
        let given: Datetime = text.parse().map_err(|_| format!("`{text}` is no date such as {EXAMPLE}"))?;
        Date::of(given)
    }
}

impl From<Date> for String {
    fn from(date: Date) -> String {
        date.to_string()
    }
}

impl Date {
    fn of(given: Datetime) -> Result<Date, String> {
        let (Some(date), Some(time), Some(offset)) = (given.date, given.time, given.offset) else {
            return Err(format!("a date with its time and zone, such as {EXAMPLE}"));
        };
        let days = days_before(i64::from(date.year), i64::from(date.month), i64::from(date.day));
        let minutes = match offset {
            toml::value::Offset::Z => 0,
            toml::value::Offset::Custom { minutes } => i64::from(minutes),
        };
        let of_day = i64::from(time.hour) * 3600 + i64::from(time.minute) * 60;
        let seconds = days * 86_400 + of_day + i64::from(time.second.unwrap_or(0)) - minutes * 60;
        let all = i128::from(seconds) * 1_000_000_000 + i128::from(time.nanosecond.unwrap_or(0));
        let nanoseconds = i64::try_from(all).map_err(|_| "a date from 1678 to 2261".to_owned())?;
        Ok(Date { nanoseconds })
    }
}

impl fmt::Display for Date {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, rest) =
            (self.nanoseconds.div_euclid(1_000_000_000), self.nanoseconds.rem_euclid(1_000_000_000));
        let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        if rest > 0 {
            write!(out, ".{rest:09}")?;
        }
        out.write_str("Z")
    }
}

/// Days from the beginning of 1970 to a date; years are counted from March, so that a leap day comes last.
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year - era * 400;
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The date so many days after the beginning of 1970.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days - era * 146_097;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

impl Value for Moment {
    fn form() -> Form {
        Form::Plain("whole number, or a date such as `\"2026-11-18T00:00:00Z\"`")
    }

    fn read(given: &Given<'_>) -> Result<Moment, Problem> {
        let wrong = || {
            given.wrong(format!(
                "a whole number as in the time column, or a date with its zone such as {EXAMPLE}"
            ))
        };
        let date = match given.value {
            DeValue::Integer(_) => return i64::read(given).map(Moment::Count),
            DeValue::Datetime(date) => Date::of(*date),
            DeValue::String(text) => Date::try_from(text.to_string()),
            _ => return Err(wrong()),
        };
        date.map(Moment::Date).map_err(|_| wrong())
    }

    fn write(&self) -> Node {
        match self {
            Moment::Count(count) => count.write(),
            Moment::Date(date) => Node::Inline(format!("\"{date}\"")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn date(text: &str) -> Moment {
        Moment::Date(Date::try_from(text.to_owned()).unwrap())
    }

    #[test]
    fn dates_are_counted_in_the_unit_of_the_column() {
        let unit = Some(TimeUnit::Seconds);
        assert_eq!(date("1970-01-01T00:00:00Z").count(unit), Some(0));
        assert_eq!(date("2000-02-29T12:00:00Z").count(unit), Some(951_825_600));
        assert_eq!(date("2026-11-18T00:00:00+02:00").count(unit), Some(1_794_952_800));
        assert_eq!(
            date("2026-11-18T00:00:00.5Z").count(Some(TimeUnit::Milliseconds)),
            Some(1_794_960_000_500)
        );
        // A row in the same second, but before it, is not held out.
        assert_eq!(date("1970-01-01T00:00:00.5Z").count(unit), Some(1));
        assert_eq!(date("1969-12-31T23:59:59.5Z").count(unit), Some(0));
        assert_eq!(date("2026-11-18T00:00:00Z").count(None), None);
        assert_eq!(Moment::Count(7).count(None), Some(7));
    }

    #[test]
    fn dates_are_written_back() {
        for days in (-100_000..100_000).step_by(97) {
            let (year, month, day) = civil(days);
            assert_eq!(days_before(year, month, day), days);
        }
        for (given, want) in [
            ("2026-11-18T01:30:00+02:00", "2026-11-17T23:30:00Z"),
            ("1999-12-31T23:59:59.25Z", "1999-12-31T23:59:59.250000000Z"),
        ] {
            assert_eq!(date(given).to_string(), want);
            assert_eq!(date(want), date(given));
        }
        for wrong in ["2026-11-18", "2026-11-18T00:00:00", "00:00:00", "1500-01-01T00:00:00Z", "yesterday"] {
            assert!(Date::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
    }
}
