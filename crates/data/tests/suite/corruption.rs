//! Damage to packed files is noticed and named.

use std::fs;

use campanile_data::{Prepared, inspect};
use campanile_spec::{Batch, data::IdMap};

use crate::fixture::{Place, criteo, criteo_lines};

/// Reads everything; the first error's text.
fn read_back(place: &Place, file: &str) -> Option<String> {
    let data = criteo(|salt| IdMap::Hash { salt });
    let read = |prepared: Prepared| {
        let mut batch = Batch::default();
        prepared.train.reader()?.read(0, 0..prepared.train.row_count(), &mut batch)
    };
    place.prepare(&data, &[file.to_string()]).and_then(read).err().map(|error| error.to_string())
}

#[test]
fn a_flipped_byte_anywhere_names_the_file() {
    let place = Place::new();
    let file = place.write("day.tsv", criteo_lines(20_000, 21));
    assert_eq!(read_back(&place, &file), None);
    let set = fs::read_dir(place.path("cache"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.is_dir());
    for name in ["train.pack", "transforms.bin"] {
        let path = set.clone().unwrap().join(name);
        let sound = fs::read(&path).unwrap();
        let tried: Vec<usize> = (0..8).chain((8..sound.len()).step_by(sound.len() / 40)).collect();
        for place_of_flip in tried {
            let mut damaged = sound.clone();
            damaged[place_of_flip] ^= 0x10;
            fs::write(&path, damaged).unwrap();
            let error = read_back(&place, &file).unwrap_or_else(|| panic!("byte {place_of_flip} of {name}"));
            assert!(error.contains(name), "{error}");
        }
        fs::write(&path, &sound[..sound.len() - 1]).unwrap();
        assert!(read_back(&place, &file).unwrap().contains(name));
        fs::write(&path, &sound).unwrap();
    }
    assert_eq!(read_back(&place, &file), None);
}

#[test]
fn inspect_reads_every_block_and_names_the_bad_one() {
    let place = Place::new();
    let file = place.write("day.tsv", criteo_lines(20_000, 22));
    assert_eq!(read_back(&place, &file), None);
    let set = fs::read_dir(place.path("cache"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.is_dir());
    let path = set.unwrap().join("train.pack");
    let summary = inspect(&path).unwrap();
    assert_eq!((summary.row_count, summary.block_rows, summary.blocks.len()), (20_000, 8192, 3));
    assert_eq!((summary.dense.len(), summary.features.len(), summary.tasks.len()), (13, 26, 1));
    let mut bytes = fs::read(&path).unwrap();
    bytes[summary.blocks[1].offset as usize + 5000] ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = inspect(&path).unwrap_err().to_string();
    assert!(error.contains("train.pack: block 1 does not match its checksum"), "{error}");
}
