//! Data sections, files and readers that many tests need.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use campanile_data::{DataError, Dataset, PrepOptions, Prepared, prepare};
use campanile_spec::{
    Batch,
    config::DataFiles,
    data::{
        BadRows, BagShape, Columns, DataSpec, DenseColumn, DenseTransform, IdMap, Keep, LabelColumn,
        SourceSpec, SparseColumn, SplitSpec,
    },
};

/// A seeded stream of numbers.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 29)
    }

    pub fn below(&mut self, count: u64) -> u64 {
        self.next() % count
    }
}

/// A directory that goes when the test ends, with files and a cache in it.
pub struct Place {
    pub dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Place {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        fs::write(self.path(name), bytes).unwrap();
        self.path(name).display().to_string()
    }

    pub fn options(&self) -> PrepOptions {
        PrepOptions {
            threads: 2,
            memory_mib: 64,
            journal_every_mib: 1,
            ..PrepOptions::new(self.path("cache"), 7)
        }
    }

    pub fn prepare(&self, data: &DataSpec, files: &[String]) -> Result<Prepared, DataError> {
        prepare(data, &train_files(files), &self.options(), &mut |_| ())
    }

    /// The error's text, with the directory taken out.
    pub fn error(&self, data: &DataSpec, files: &[String]) -> String {
        let error = self.prepare(data, files).expect_err("this input is bad");
        error.to_string().replace(&format!("{}/", self.dir.path().display()), "")
    }
}

pub fn train_files(files: &[String]) -> DataFiles {
    DataFiles { train: files.to_vec(), ..DataFiles::default() }
}

pub fn label(name: &str) -> LabelColumn {
    LabelColumn { name: name.into(), at_least: None, teacher: None }
}

pub fn dense(name: &str, transforms: &[DenseTransform]) -> DenseColumn {
    DenseColumn { name: name.into(), missing: 0.0, transforms: transforms.to_vec() }
}

pub fn sparse(name: &str, map: IdMap, row_count: u64) -> SparseColumn {
    let (name, shape, keep) = (name.into(), BagShape::One, Keep::First);
    SparseColumn { name, shape, bag_max: 100, keep, map, row_count, weights: None }
}

pub fn list(name: &str, map: IdMap, row_count: u64) -> SparseColumn {
    SparseColumn { shape: BagShape::List { separator: '|' }, ..sparse(name, map, row_count) }
}

pub fn data(source: SourceSpec, columns: Columns) -> DataSpec {
    DataSpec {
        source,
        columns,
        split: SplitSpec::ByFile,
        bad_rows: BadRows::Fail,
        shuffle: false,
        unknown_share: 0.0,
    }
}

pub fn csv(columns: Columns) -> DataSpec {
    data(SourceSpec::Csv { delimiter: ',', quotes: true }, columns)
}

/// All of Criteo's columns: logarithms, and one map for all ids.
pub fn criteo(map: impl Fn(u64) -> IdMap) -> DataSpec {
    let columns = Columns {
        labels: vec![label("label")],
        dense: (1..=13).map(|number| dense(&format!("I{number}"), &[DenseTransform::Log1p])).collect(),
        sparse: (1..=26).map(|number| sparse(&format!("C{number}"), map(number), 1000)).collect(),
        ..Columns::default()
    };
    data(SourceSpec::CriteoTsv, columns)
}

/// Lines like Criteo's: empty and negative numbers, empty ids, few and many different ids.
pub fn criteo_lines(rows: usize, seed: u64) -> String {
    let mut numbers = Numbers(seed);
    let mut text = String::new();
    for _ in 0..rows {
        text += &numbers.below(2).to_string();
        for column in 0..13 {
            text.push('\t');
            match numbers.below(8) {
                0 => {}
                1 => text += &format!("-{}", numbers.below(3)),
                _ => text += &numbers.below(1 << (1 + column)).to_string(),
            }
        }
        for column in 0..26 {
            text.push('\t');
            if numbers.below(9) > 0 {
                let id = numbers.below(4 << (column / 2)) as u32;
                text += &format!("{:08x}", id.wrapping_mul(0x9e37_79b9));
            }
        }
        text.push('\n');
    }
    text
}

/// All rows of a split in one batch.
pub fn read_all(dataset: &Dataset) -> Batch {
    let mut batch = Batch::default();
    dataset.reader().unwrap().read(0, 0..dataset.row_count(), &mut batch).unwrap();
    batch
}

/// Lengths and checksums of the files of the one finished set in a cache.
pub fn packed_files(cache: &Path) -> BTreeMap<String, (usize, u32)> {
    let mut sets =
        fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let set = sets.next().expect("there is a finished set");
    assert!(sets.next().is_none() && set.extension().is_none(), "one finished set, nothing partial");
    fs::read_dir(set)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, (bytes.len(), crc32c::crc32c(&bytes)))
        })
        .collect()
}
