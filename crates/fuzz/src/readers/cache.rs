//! Packed rows: a `.pack` file and what stands beside it in the cache.

use std::{
    fs,
    path::{Path, PathBuf},
};

use campanile_data::{DataError, PrepOptions, Prepared, inspect, prepare};
use campanile_spec::{Batch, config::Job};

use crate::{
    campaign::Reader,
    model,
    mutate::{self, tree},
    random::Random,
};

const HEAD_BYTES: usize = 16;
const BLOCK_HEAD_BYTES: usize = 16;
const ENTRY_BYTES: usize = 24;
const TRAILER_BYTES: usize = 40;

/// A finished set, file by file.
pub struct PackedFiles {
    job: Job,
    options: PrepOptions,
    /// The set's own directory.
    set: PathBuf,
    seeds: Vec<Vec<u8>>,
}

/// The files of the set: packed rows, and what is said of them.
const FILES: [&str; 2] = ["train.pack", "prepared.json"];

impl PackedFiles {
    /// Prepares the rows anew: the set's name follows from the time of the file with the raw ones.
    pub fn new(folder: &Path) -> PackedFiles {
        let file = folder.join("rows.csv");
        fs::write(&file, &model::model().csv).expect("a file can be written");
        let mut job = Job::parse(model::JOB).expect("a good job");
        job.process.data.train = vec![file.display().to_string()];
        let options = PrepOptions::new(folder.join("cache"), job.run.seed);
        prepare(&job.run.data, &job.process.data, &options, &mut |_| ()).expect("good rows");
        let files = model::read(&options.cache_dir);
        let own = files.keys().find(|path| path.ends_with(FILES[0])).expect("packed rows");
        let set = options.cache_dir.join(own.parent().unwrap_or(own));
        let seeds = FILES.iter().map(|name| fs::read(set.join(name)).expect("a file of the set")).collect();
        PackedFiles { job, options, set, seeds }
    }

    fn all(&self) -> Result<(), DataError> {
        inspect(&self.set.join(FILES[0]))?;
        let (run, process) = (&self.job.run, &self.job.process);
        let prepared = prepare(&run.data, &process.data, &self.options, &mut |_| ())?;
        let Prepared { train, valid, test, .. } = &prepared;
        let mut batch = Batch::default();
        for dataset in [Some(train), valid.as_ref(), test.as_ref()].into_iter().flatten() {
            let rows = dataset.row_count();
            dataset.reader()?.read(1, rows.saturating_sub(100)..rows, &mut batch)?;
            for feature in 0..batch.bags.feature_count().min(run.model.features.len()) {
                let table = run.model.features[feature].table.0 as usize;
                let row_count = run.model.tables[table].row_count;
                let inside = |row: &u32| u64::from(*row) < row_count;
                assert!(batch.bags.feature(feature).rows.iter().all(inside), "a row beyond its table");
            }
        }
        Ok(())
    }
}

impl Reader for PackedFiles {
    fn name(&self) -> &'static str {
        "packed"
    }

    fn seeds(&self) -> &[Vec<u8>] {
        &self.seeds
    }

    fn spoil(&self, seed: usize, bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        if seed == 1 {
            return match random.below(3) {
                0 => mutate::text(bytes, other, random),
                _ => tree::json(bytes, random),
            };
        }
        match Parts::of(bytes).filter(|_| !random.one_in(6)) {
            Some(mut parts) => {
                parts.spoil(random);
                *bytes = parts.together();
            }
            None => mutate::bytes(bytes, other, random),
        }
    }

    fn read(&mut self, seed: usize, bytes: &[u8]) -> Result<(), String> {
        let path = self.set.join(FILES[seed]);
        fs::write(&path, bytes).map_err(|error| error.to_string())?;
        let read = self.all().map_err(|error| error.to_string());
        fs::write(&path, &self.seeds[seed]).map_err(|error| error.to_string())?;
        read
    }

    fn told(&self) -> &str {
        self.set.to_str().unwrap_or_default()
    }

    fn memory_max(&self, input: usize) -> usize {
        (16 << 20) + 100 * input
    }
}

/// A `.pack` file taken apart, to be put together with checksums and places that fit.
struct Parts {
    header: Vec<u8>,
    /// Rows, and the payload.
    blocks: Vec<(u32, Vec<u8>)>,
    /// Written over the index when it is odd itself: which of its numbers, and what it says.
    odd: Option<(usize, u64)>,
    row_count: u64,
}

impl Parts {
    fn of(bytes: &[u8]) -> Option<Parts> {
        let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        let long = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let header = bytes.get(HEAD_BYTES..HEAD_BYTES + word(8)? as usize)?.to_vec();
        let trailer = bytes.len().checked_sub(TRAILER_BYTES)?;
        let (index, row_count) = (long(trailer)? as usize, long(trailer + 16)?);
        let mut blocks = Vec::new();
        for entry in (index..trailer).step_by(ENTRY_BYTES) {
            let (start, length) = (long(entry)? as usize + BLOCK_HEAD_BYTES, word(entry + 8)? as usize);
            blocks.push((word(entry + 12)?, bytes.get(start..start + length)?.to_vec()));
        }
        Some(Parts { header, blocks, odd: None, row_count })
    }

    fn spoil(&mut self, random: &mut Random) {
        for _ in 0..=random.below(2) {
            let block = random.below(self.blocks.len());
            match random.below(8) {
                0..3 => tree::json(&mut self.header, random),
                3..6 => mutate::bytes(&mut self.blocks[block].1, &[], random),
                6 => self.odd = Some((random.below(6), *random.pick(&mutate::EXTREMES))),
                _ => self.blocks[block].0 = *random.pick(&mutate::EXTREMES) as u32,
            }
        }
    }

    fn together(&self) -> Vec<u8> {
        let mut out = b"CAMPACK1".to_vec();
        out.extend((self.header.len() as u32).to_le_bytes());
        out.extend(crc32c::crc32c(&self.header).to_le_bytes());
        out.extend(&self.header);
        out.resize(out.len().next_multiple_of(8), 0);
        let mut index = Vec::new();
        for (rows, payload) in &self.blocks {
            let checksum = crc32c::crc32c(payload);
            index.extend((out.len() as u64).to_le_bytes());
            let sizes = [payload.len() as u32, *rows, checksum, 0];
            sizes.iter().for_each(|word| index.extend(word.to_le_bytes()));
            out.extend(b"BLOK");
            let sizes = [*rows, payload.len() as u32, checksum];
            sizes.iter().for_each(|word| out.extend(word.to_le_bytes()));
            out.extend(payload);
        }
        let mut numbers = [out.len() as u64, self.blocks.len() as u64, self.row_count];
        match self.odd {
            Some((place @ 0..3, number)) => {
                index[8 * place..8 * place + 8].copy_from_slice(&number.to_le_bytes())
            }
            Some((place, number)) => numbers[place - 3] = number,
            None => {}
        }
        let checksum = crc32c::crc32c(&index);
        out.extend(index);
        numbers.iter().for_each(|number| out.extend(number.to_le_bytes()));
        out.extend(checksum.to_le_bytes());
        out.extend([0; 4]);
        out.extend(b"CAMPEND1");
        out
    }
}
