//! `transforms.bin`.

use std::path::Path;

use campanile_data::{Raw, Transforms};

use super::spoil_headed;
use crate::{campaign::Reader, model, mutate, random::Random};

const MAGIC_BYTES: usize = 8;

/// Transforms with measured columns and vocabularies.
pub struct TransformFiles(Vec<Vec<u8>>);

impl TransformFiles {
    pub fn new() -> TransformFiles {
        TransformFiles(vec![model::model().transforms.clone()])
    }
}

impl Reader for TransformFiles {
    fn name(&self) -> &'static str {
        "transforms"
    }

    fn seeds(&self) -> &[Vec<u8>] {
        &self.0
    }

    fn spoil(&self, _: usize, bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        match random.below(8) {
            0 => return mutate::bytes(bytes, other, random),
            1 | 2 => mutate::bytes(bytes, other, random),
            _ => spoil_headed(bytes, MAGIC_BYTES, 8, random),
        }
        if let Some(end) = bytes.len().checked_sub(4) {
            let checksum = crc32c::crc32c(&bytes[..end]).to_le_bytes();
            bytes[end..].copy_from_slice(&checksum);
        }
    }

    fn read(&mut self, _: usize, bytes: &[u8]) -> Result<(), String> {
        let transforms = Transforms::from_bytes(bytes, Path::new("the transforms.bin"));
        let transforms = transforms.map_err(|error| error.to_string())?;
        let raws = [Raw::Missing, Raw::Int(-1), Raw::Int(7), Raw::Float(0.5), Raw::text(b"de")];
        for raw in raws {
            for column in 0..transforms.dense_count() {
                let _ = transforms.dense(column, raw);
            }
            for column in 0..transforms.sparse_count() {
                let _ =
                    (transforms.row(column, raw), transforms.separator(column), transforms.bag_max(column));
            }
        }
        let again = Transforms::from_bytes(&transforms.to_bytes(), Path::new("again"));
        assert_eq!(again.map(|again| again.fingerprint()).ok(), Some(transforms.fingerprint()));
        Ok(())
    }

    fn told(&self) -> &str {
        "the transforms.bin"
    }
}
