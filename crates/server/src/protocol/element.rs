//! Elements of tensors: their types, and reading them out of little-endian bytes.
//!
//! Reading converts as long as nothing is lost that a model could want: any number to `f32`, any whole number that
//! is at least zero to an id. What cannot be converted is an error that names the element.

use super::{ProtocolError, Tensor};

/// The types of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the protocol's own names")]
pub enum Datatype {
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Fp16,
    Bf16,
    Fp32,
    Fp64,
    Bytes,
}

/// Every type with its name in the protocol and the bytes of an element; a string has no fixed number.
const DATATYPES: &[(Datatype, &str, Option<usize>)] = &[
    (Datatype::Bool, "BOOL", Some(1)),
    (Datatype::Uint8, "UINT8", Some(1)),
    (Datatype::Uint16, "UINT16", Some(2)),
    (Datatype::Uint32, "UINT32", Some(4)),
    (Datatype::Uint64, "UINT64", Some(8)),
    (Datatype::Int8, "INT8", Some(1)),
    (Datatype::Int16, "INT16", Some(2)),
    (Datatype::Int32, "INT32", Some(4)),
    (Datatype::Int64, "INT64", Some(8)),
    (Datatype::Fp16, "FP16", Some(2)),
    (Datatype::Bf16, "BF16", Some(2)),
    (Datatype::Fp32, "FP32", Some(4)),
    (Datatype::Fp64, "FP64", Some(8)),
    (Datatype::Bytes, "BYTES", None),
];

impl Datatype {
    /// The type of this name.
    pub fn parse(name: &str) -> Option<Datatype> {
        DATATYPES.iter().find(|(_, known, _)| *known == name).map(|(datatype, _, _)| *datatype)
    }

    /// The type of this number, as a feature log has it.
    pub fn numbered(number: u8) -> Option<Datatype> {
        DATATYPES.get(usize::from(number)).map(|(datatype, _, _)| *datatype)
    }

    /// Whether elements are whole numbers.
    pub fn is_whole(self) -> bool {
        self as usize >= Datatype::Uint8 as usize && self as usize <= Datatype::Int64 as usize
    }

    /// Its name in the protocol.
    pub fn name(self) -> &'static str {
        DATATYPES[self as usize].1
    }

    /// Bytes of one element; `None` for strings.
    pub fn element_bytes(self) -> Option<usize> {
        DATATYPES[self as usize].2
    }
}

/// How many strings stand one after the other; `None` when the last one is cut.
pub fn count_strings(mut data: &[u8]) -> Option<usize> {
    let mut count = 0;
    while !data.is_empty() {
        let (length, rest) = data.split_first_chunk::<4>()?;
        data = rest.get(u32::from_le_bytes(*length) as usize..)?;
        count += 1;
    }
    Some(count)
}

impl Tensor {
    /// Every element as a float.
    ///
    /// # Errors
    /// For strings.
    pub fn floats(&self) -> Result<Vec<f32>, ProtocolError> {
        fn read<const N: usize>(data: &[u8], float: fn([u8; N]) -> f32) -> Vec<f32> {
            data.as_chunks::<N>().0.iter().map(|bytes| float(*bytes)).collect()
        }
        let data = self.data();
        Ok(match self.datatype() {
            Datatype::Bool | Datatype::Uint8 => read(data, |[byte]| f32::from(byte)),
            Datatype::Uint16 => read(data, |bytes| f32::from(u16::from_le_bytes(bytes))),
            Datatype::Uint32 => read(data, |bytes| u32::from_le_bytes(bytes) as f32),
            Datatype::Uint64 => read(data, |bytes| u64::from_le_bytes(bytes) as f32),
            Datatype::Int8 => read(data, |bytes| f32::from(i8::from_le_bytes(bytes))),
            Datatype::Int16 => read(data, |bytes| f32::from(i16::from_le_bytes(bytes))),
            Datatype::Int32 => read(data, |bytes| i32::from_le_bytes(bytes) as f32),
            Datatype::Int64 => read(data, |bytes| i64::from_le_bytes(bytes) as f32),
            Datatype::Fp16 => read(data, |bytes| half_to_float(u16::from_le_bytes(bytes))),
            Datatype::Bf16 => read(data, |bytes| f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)),
            Datatype::Fp32 => read(data, f32::from_le_bytes),
            Datatype::Fp64 => read(data, |bytes| f64::from_le_bytes(bytes) as f32),
            Datatype::Bytes => return Err(self.not("numbers")),
        })
    }

    /// Every element of a tensor of floats, in full precision.
    ///
    /// # Errors
    /// For strings.
    pub fn doubles(&self) -> Result<Vec<f64>, ProtocolError> {
        match self.datatype() {
            Datatype::Fp64 => {
                Ok(self.data().as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect())
            }
            _ => Ok(self.floats()?.into_iter().map(f64::from).collect()),
        }
    }

    /// Every element as a whole number.
    ///
    /// # Errors
    /// For floats and strings, and for numbers beyond `i64`.
    pub fn integers(&self) -> Result<Vec<i64>, ProtocolError> {
        fn read<const N: usize>(data: &[u8], integer: fn([u8; N]) -> i64) -> Vec<i64> {
            data.as_chunks::<N>().0.iter().map(|bytes| integer(*bytes)).collect()
        }
        let data = self.data();
        Ok(match self.datatype() {
            Datatype::Bool | Datatype::Uint8 => read(data, |[byte]| i64::from(byte)),
            Datatype::Uint16 => read(data, |bytes| i64::from(u16::from_le_bytes(bytes))),
            Datatype::Uint32 => read(data, |bytes| i64::from(u32::from_le_bytes(bytes))),
            Datatype::Int8 => read(data, |bytes| i64::from(i8::from_le_bytes(bytes))),
            Datatype::Int16 => read(data, |bytes| i64::from(i16::from_le_bytes(bytes))),
            Datatype::Int32 => read(data, |bytes| i64::from(i32::from_le_bytes(bytes))),
            Datatype::Int64 => read(data, i64::from_le_bytes),
            Datatype::Uint64 => {
                let chunks = data.as_chunks::<8>().0;
                let checked = chunks.iter().enumerate().map(|(index, bytes)| {
                    let value = u64::from_le_bytes(*bytes);
                    i64::try_from(value).map_err(|_| ProtocolError::Element {
                        input: self.name().to_owned(),
                        problem: format!("element {index} is {value}; the largest is {}", i64::MAX),
                    })
                });
                checked.collect::<Result<_, _>>()?
            }
            _ => return Err(self.not("whole numbers")),
        })
    }

    /// Every element as bytes; only for strings.
    ///
    /// # Errors
    /// For numbers.
    pub fn strings(&self) -> Result<Vec<&[u8]>, ProtocolError> {
        if self.datatype() != Datatype::Bytes {
            return Err(self.not("strings"));
        }
        let mut data: &[u8] = self.data();
        let mut strings = Vec::with_capacity(self.element_count());
        while let Some((length, rest)) = data.split_first_chunk::<4>() {
            let (string, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
            strings.push(string);
            data = rest;
        }
        Ok(strings)
    }

    fn not(&self, wanted: &str) -> ProtocolError {
        ProtocolError::Element {
            input: self.name().to_owned(),
            problem: format!("{} came where {wanted} are needed", self.datatype().name()),
        }
    }
}

/// IEEE half precision to single; every value is exact.
fn half_to_float(half: u16) -> f32 {
    let sign = u32::from(half >> 15) << 31;
    let exponent = u32::from(half >> 10) & 31;
    let fraction = u32::from(half) & 1023;
    match exponent {
        // Zero and the numbers below the smallest normal one.
        0 => {
            let magnitude = fraction as f32 / (1 << 24) as f32;
            f32::from_bits(sign | magnitude.to_bits())
        }
        31 => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_stands_at_its_own_place_of_the_table() {
        for (place, (datatype, name, _)) in DATATYPES.iter().enumerate() {
            assert_eq!(*datatype as usize, place);
            assert_eq!(Datatype::parse(name), Some(*datatype));
        }
    }

    #[test]
    fn half_precision_reads_as_the_same_number() {
        let known =
            [(0x3c00, 1.0), (0xc000, -2.0), (0x7bff, 65504.0), (0x0001, 2f32.powi(-24)), (0x8000, -0.0)];
        for (half, float) in known {
            assert_eq!(half_to_float(half).to_bits(), f32::to_bits(float), "{half:#x}");
        }
        assert_eq!(half_to_float(0x7c00), f32::INFINITY);
        assert!(half_to_float(0x7e00).is_nan());
    }
}
