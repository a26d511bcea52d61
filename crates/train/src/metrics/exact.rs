//! A float that survives JSON to the bit.
//!
//! Whole numbers are written as such, which keeps histograms of counts short; any other value as its bits in
//! hexadecimal, because readers of decimal fractions may differ in the last place.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// A float that survives JSON to the bit.
#[derive(Debug, Clone, Copy, Default)]
pub struct Exact(pub f64);

/// Equal means the same bits, so a value that is not a number equals itself.
impl PartialEq for Exact {
    fn eq(&self, other: &Exact) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a whole number or 16 hexadecimal digits")]
enum Written {
    Whole(i64),
    Bits(String),
}

impl Serialize for Exact {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let whole = self.0 as i64;
        let is_whole = (whole as f64).to_bits() == self.0.to_bits() && whole.unsigned_abs() < 1 << 53;
        let written = if is_whole {
            Written::Whole(whole)
        } else {
            Written::Bits(format!("{:016x}", self.0.to_bits()))
        };
        written.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Exact {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Exact, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Whole(whole) => Ok(Exact(whole as f64)),
            Written::Bits(text) => u64::from_str_radix(&text, 16)
                .map(|bits| Exact(f64::from_bits(bits)))
                .map_err(|_| D::Error::custom(format!("`{text}` is not the bits of a float"))),
        }
    }
}
