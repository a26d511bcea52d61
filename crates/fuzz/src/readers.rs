//! The readers, each with good input of its own and the ways in which it is spoilt.

mod cache;
mod job;
mod log;
mod manifest;
mod registry;
mod request;
mod rows;
mod table_file;
mod transforms;

use std::path::Path;

use crate::{
    campaign::Reader,
    mutate::{self, tree},
    random::Random,
};

/// Makes a reader that keeps its files in a folder.
pub type Open = fn(&Path) -> Box<dyn Reader>;

/// All readers by name.
pub const ALL: &[(&str, Open)] = &[
    ("job", |_| Box::new(job::Jobs::new())),
    ("live-file", |_| Box::new(job::LiveFiles::new())),
    ("manifest", |folder| Box::new(manifest::Manifests::new(folder))),
    ("safetensors", |folder| Box::new(table_file::TableFiles::of_checkpoint(folder))),
    ("release", |folder| Box::new(registry::Releases::new(folder))),
    ("delta", |folder| Box::new(table_file::TableFiles::of_delta(folder))),
    ("transforms", |_| Box::new(transforms::TransformFiles::new())),
    ("packed", |folder| Box::new(cache::PackedFiles::new(folder))),
    ("segment", |folder| Box::new(log::Segments::new(folder))),
    ("records", |_| Box::new(log::Payloads::new())),
    ("rest", |folder| Box::new(request::Requests::rest(folder))),
    ("tensors", |folder| Box::new(request::Requests::tensors(folder))),
    ("grpc", |folder| Box::new(request::Requests::grpc(folder))),
    ("csv", |folder| Box::new(rows::RowFiles::csv(folder))),
    ("parquet", |folder| Box::new(rows::RowFiles::parquet(folder))),
];

/// The last line of a JSON file that guards itself.
const SEAL_BYTES: usize = ",\n  \"crc32c\": \"00000000\"\n}\n".len();

/// Ends a JSON object with the checksum of all that stands before, in place of the one that it has.
pub fn sealed(text: &mut Vec<u8>) {
    let has_one = text.ends_with(b"\"\n}\n") && text.len() >= SEAL_BYTES;
    let end = match has_one {
        true => text.len() - SEAL_BYTES,
        false => text.iter().rposition(|byte| *byte == b'}').map_or(text.len(), |brace| {
            text[..brace].iter().rposition(|byte| !byte.is_ascii_whitespace()).map_or(0, |last| last + 1)
        }),
    };
    text.truncate(end);
    let seal = format!(",\n  \"crc32c\": \"{:08x}\"\n}}\n", crc32c::crc32c(text));
    text.extend(seal.into_bytes());
}

/// Spoils such a file: mostly its tree or its text, with the checksum put right; sometimes just its bytes.
fn spoil_sealed(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    match random.below(8) {
        0 => return mutate::bytes(bytes, other, random),
        1 | 2 => mutate::text(bytes, other, random),
        _ => tree::json(bytes, random),
    }
    sealed(bytes);
}

/// Spoils a length of eight or four bytes, so many bytes of JSON, and what follows; the length is put right unless it is
/// what is odd.
fn spoil_headed(bytes: &mut Vec<u8>, start: usize, width: usize, random: &mut Random) {
    let mut length = [0; 8];
    let Some(own) = bytes.get(start..start + width) else { return };
    length[..width].copy_from_slice(own);
    let head = start + if width == 8 { 8 } else { 8 + width - 4 };
    let end = head.saturating_add(u64::from_le_bytes(length) as usize);
    let Some(json) = bytes.get(head..end) else { return };
    let mut json = json.to_vec();
    match random.below(4) {
        0 => mutate::text(&mut json, &[], random),
        _ => tree::json(&mut json, random),
    }
    let odd = random.one_in(8);
    let said = if odd { *random.pick(&mutate::EXTREMES) } else { json.len() as u64 };
    bytes.splice(head..end, json);
    bytes[start..start + width].copy_from_slice(&said.to_le_bytes()[..width]);
}
