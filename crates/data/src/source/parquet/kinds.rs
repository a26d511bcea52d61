//! What the bits of a Parquet column mean, and which roles they can play.

use campanile_spec::moment::TimeUnit;
use parquet::{
    basic::{ConvertedType, LogicalType, TimeUnit as ParquetUnit, Type as PhysicalType},
    data_type::{ByteArray, Int96},
    schema::types::ColumnDescriptor,
};

use crate::decode::Role;

/// Digits of a decimal that fit in 128 bits.
const DECIMAL_DIGITS_MAX: i32 = 38;

/// The first day of 1970 as INT96 counts days.
const JULIAN_DAY_OF_1970: i64 = 2_440_588;

const NANOSECONDS_OF_DAY: i64 = 86_400_000_000_000;

/// What the values of a leaf are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// As the physical type says.
    Plain,
    /// Integers without a sign.
    Unsigned,
    /// Units of a power of ten: as text, so that they mean what they mean in a CSV file.
    Decimal { scale: usize },
    /// Floats of 16 bits.
    Half,
    /// Bytes that are no text: their hexadecimal digits are.
    Bytes,
    /// The same, with the dashes of a UUID.
    Uuid,
    /// Julian days and nanoseconds.
    Int96,
}

/// What a column counts, if it is one of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    /// Nothing that the file says.
    Integers,
    Days,
    Milliseconds,
    Microseconds,
    Nanoseconds,
}

impl Counted {
    pub fn of(column: &ColumnDescriptor) -> Counted {
        match (column.logical_type_ref(), column.converted_type()) {
            _ if column.physical_type() == PhysicalType::INT96 => Counted::Nanoseconds,
            (Some(LogicalType::Timestamp(time)), _) => match time.unit {
                ParquetUnit::MILLIS => Counted::Milliseconds,
                ParquetUnit::MICROS => Counted::Microseconds,
                ParquetUnit::NANOS => Counted::Nanoseconds,
            },
            (_, ConvertedType::TIMESTAMP_MILLIS) => Counted::Milliseconds,
            (_, ConvertedType::TIMESTAMP_MICROS) => Counted::Microseconds,
            (_, ConvertedType::DATE) => Counted::Days,
            _ => Counted::Integers,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Counted::Integers => "plain integers",
            Counted::Days => "days",
            Counted::Milliseconds => "milliseconds",
            Counted::Microseconds => "microseconds",
            Counted::Nanoseconds => "nanoseconds",
        }
    }

    fn nanoseconds(self) -> Option<i64> {
        match self {
            Counted::Integers => None,
            Counted::Days => Some(NANOSECONDS_OF_DAY),
            Counted::Milliseconds => Some(1_000_000),
            Counted::Microseconds => Some(1_000),
            Counted::Nanoseconds => Some(1),
        }
    }
}

/// From what a file counts to what the job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TimeScale {
    multiply: i64,
    divide: i64,
}

impl TimeScale {
    pub fn new(file: Counted, job: Option<TimeUnit>) -> TimeScale {
        match (file.nanoseconds(), job.map(TimeUnit::nanoseconds)) {
            (Some(file), Some(job)) if file >= job => TimeScale { multiply: file / job, divide: 1 },
            (Some(file), Some(job)) => TimeScale { multiply: 1, divide: job / file },
            _ => TimeScale { multiply: 1, divide: 1 },
        }
    }

    /// A time within the unit is the unit's; one that no count reaches is the last.
    pub fn apply(self, value: i64) -> i64 {
        value.saturating_mul(self.multiply).div_euclid(self.divide)
    }
}

impl Kind {
    pub fn of(column: &ColumnDescriptor) -> Kind {
        match (column.logical_type_ref(), column.converted_type()) {
            _ if column.physical_type() == PhysicalType::INT96 => Kind::Int96,
            _ if is_decimal(column) => Kind::Decimal { scale: column.type_scale().max(0) as usize },
            (Some(LogicalType::Integer(integer)), _) if !integer.is_signed => Kind::Unsigned,
            (_, ConvertedType::UINT_32 | ConvertedType::UINT_64) => Kind::Unsigned,
            (Some(LogicalType::Float16), _) => Kind::Half,
            (Some(LogicalType::Uuid), _) => Kind::Uuid,
            _ if column.physical_type() == PhysicalType::FIXED_LEN_BYTE_ARRAY => Kind::Bytes,
            _ => Kind::Plain,
        }
    }
}

fn is_decimal(column: &ColumnDescriptor) -> bool {
    matches!(column.logical_type_ref(), Some(LogicalType::Decimal(_)))
        || matches!(column.converted_type(), ConvertedType::DECIMAL)
}

fn is_time_of_day(column: &ColumnDescriptor) -> bool {
    matches!(column.logical_type_ref(), Some(LogicalType::Time(_)))
        || matches!(column.converted_type(), ConvertedType::TIME_MILLIS | ConvertedType::TIME_MICROS)
}

/// Whether a column can play a role.
pub(super) fn fits(column: &ColumnDescriptor, role: Role) -> bool {
    let kind = Kind::of(column);
    let text = match kind {
        Kind::Bytes | Kind::Uuid => true,
        Kind::Plain => column.physical_type() == PhysicalType::BYTE_ARRAY,
        _ => false,
    };
    let number = !(text || is_decimal(column) && column.type_precision() > DECIMAL_DIGITS_MAX);
    let integer = matches!(kind, Kind::Plain | Kind::Unsigned | Kind::Int96)
        && matches!(column.physical_type(), PhysicalType::INT32 | PhysicalType::INT64 | PhysicalType::INT96);
    let (list, flat) = (column.max_rep_level() == 1, column.max_rep_level() == 0);
    match role {
        Role::Label | Role::Dense | Role::Bucket | Role::SampleWeight | Role::Teacher => number && flat,
        Role::IdWeights { list: wanted } => number && list == wanted && (list || flat),
        Role::Id | Role::Key => (number || text) && flat,
        Role::IdList => (number || text) && (list || flat),
        // A time of day is no point in time.
        Role::Time => integer && flat && !is_time_of_day(column),
    }
}

/// A column's type in words.
pub(super) fn describe(column: &ColumnDescriptor) -> String {
    let item = match (Kind::of(column), column.physical_type()) {
        (Kind::Decimal { .. }, _) if column.type_precision() > DECIMAL_DIGITS_MAX => {
            "decimal of more than 38 digits"
        }
        (Kind::Decimal { .. }, _) => "decimal",
        (Kind::Half, _) => "float16",
        (Kind::Uuid, _) => "uuid",
        _ if is_time_of_day(column) => "time of day",
        (_, PhysicalType::BOOLEAN) => "boolean",
        (_, PhysicalType::INT32) => "int32",
        (_, PhysicalType::INT64) => "int64",
        (_, PhysicalType::INT96) => "int96",
        (_, PhysicalType::FLOAT) => "float",
        (_, PhysicalType::DOUBLE) => "double",
        (_, PhysicalType::BYTE_ARRAY) => "string",
        (_, PhysicalType::FIXED_LEN_BYTE_ARRAY) => "fixed-length bytes",
    };
    match column.max_rep_level() {
        0 => item.to_string(),
        1 => format!("list of {item}"),
        _ => format!("nested list of {item}"),
    }
}

/// Units of a power of ten as a decimal number.
pub(super) fn decimal_text(units: i128, scale: usize) -> ByteArray {
    let digits = format!("{:0>width$}", units.unsigned_abs(), width = scale + 1);
    let (whole, rest) = digits.split_at(digits.len() - scale);
    let sign = if units < 0 { "-" } else { "" };
    let point = if scale > 0 { "." } else { "" };
    ByteArray::from(format!("{sign}{whole}{point}{rest}").into_bytes())
}

/// A whole number from its bytes, the highest first, with a sign; at most 128 bits of it.
pub(super) fn big_endian(bytes: &[u8]) -> i128 {
    let sign = if bytes.first().is_some_and(|&byte| byte >= 0x80) { -1 } else { 0 };
    bytes.iter().fold(sign, |value: i128, &byte| value << 8 | i128::from(byte))
}

/// Bytes as their hexadecimal digits, those of a UUID with its dashes.
pub(super) fn hexadecimal(bytes: &[u8], is_uuid: bool) -> ByteArray {
    let mut text = String::with_capacity(bytes.len() * 2 + 4);
    for (place, byte) in bytes.iter().enumerate() {
        if is_uuid && matches!(place, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    ByteArray::from(text.into_bytes())
}

/// Nanoseconds since 1970; a time that no 64 bits count is the first or the last.
pub(super) fn nanoseconds(time: &Int96) -> i64 {
    let [low, high, day] = [0, 1, 2].map(|place| time.data().get(place).copied().unwrap_or_default());
    let of_day = i128::from(u64::from(high) << 32 | u64::from(low));
    let days = i128::from(day as i32) - i128::from(JULIAN_DAY_OF_1970);
    let all = days * i128::from(NANOSECONDS_OF_DAY) + of_day;
    all.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_written_as_in_text() {
        let text = |units, scale| String::from_utf8(decimal_text(units, scale).data().to_vec()).unwrap();
        assert_eq!([text(4250, 2), text(-5, 2), text(7, 0), text(0, 3)], ["42.50", "-0.05", "7", "0.000"]);
        assert_eq!([big_endian(&[0xff, 0x38]), big_endian(&[0, 200]), big_endian(&[])], [-200, 200, 0]);
        assert_eq!(big_endian(&[0x80; 16]), i128::from_be_bytes([0x80; 16]));
    }

    #[test]
    fn times_go_from_unit_to_unit() {
        let scale = |file| TimeScale::new(file, Some(TimeUnit::Seconds));
        assert_eq!(scale(Counted::Milliseconds).apply(-1), -1);
        assert_eq!(scale(Counted::Nanoseconds).apply(1_999_999_999), 1);
        assert_eq!(scale(Counted::Days).apply(2), 172_800);
        assert_eq!(scale(Counted::Integers).apply(5), 5);
        assert_eq!(TimeScale::new(Counted::Days, None).apply(2), 2);
        let mut time = Int96::new();
        time.set_data(1_000_000_005, 0, 2_440_589);
        assert_eq!(nanoseconds(&time), NANOSECONDS_OF_DAY + 1_000_000_005);
        time.set_data(0, 0, 0);
        assert_eq!(nanoseconds(&time), i64::MIN);
    }
}
