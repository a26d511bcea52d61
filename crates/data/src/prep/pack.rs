//! The last pass: rows into packed files.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use campanile_spec::data::SplitSpec;

use super::{
    Preparation,
    cache::{Manifest, SplitRows},
    id_counts::RowShares,
    journal::Journal,
    rows_of_shares,
};
use crate::{
    decode::{Decoded, Decoder},
    error::{DataError, IoContext},
    packed::{Header, PackedWriter},
    source::Chunk,
};

/// The most segments that a run keeps apart.
pub(crate) const SEGMENTS_MAX: usize = 4096;

pub(super) const SPLIT_FILES: [&str; 3] = ["train.pack", "valid.pack", "test.pack"];

impl Preparation<'_> {
    /// Writes the packed files and the manifest, all complete.
    pub(super) fn pack(&mut self, decoder: &Decoder) -> Result<(), DataError> {
        let mut writers = self.open_writers(decoder)?;
        let mut segments = Segments::new(&self.journal.segments, self.data.columns.segment.as_deref());
        let mut chunks = self.chunks(decoder);
        let spare = Arc::clone(&self.spare);
        let mut workers = vec![(); self.workers];
        let (mut order, mut ids) = (self.journal.order.clone(), self.journal.ids.clone());
        let shares = self.row_shares();
        let work = |_: &mut (), _: u64, chunk: &Chunk| {
            let mut decoded = spare.take(decoder);
            chunk.decode(decoder, &mut decoded);
            (chunk.file, decoded)
        };
        loop {
            let more = self.round(&mut chunks, decoder, &mut workers, work, |(file, mut decoded)| {
                segments.renumber(&mut decoded)?;
                order.add(file, &decoded.splits, decoder.schema.block_rows());
                let how = (&decoder.schema, &*decoder.transforms);
                ids.add(&decoded.splits, how, shares, writers[0].row_count());
                for (writer, rows) in writers.iter_mut().zip(&decoded.splits) {
                    writer.append(rows)?;
                }
                Ok(decoded)
            })?;
            if !more {
                break;
            }
            self.journal.segments.clone_from(&segments.names);
            self.journal.order.clone_from(&order);
            self.journal.ids.clone_from(&ids);
            self.suspend(&mut writers)?;
        }
        (self.journal.segments, self.journal.order, self.journal.ids) = (segments.names, order, ids);
        self.finish(writers)
    }

    fn header(&self, decoder: &Decoder) -> Header {
        Header {
            block_rows: decoder.schema.block_rows(),
            schema: decoder.schema.clone(),
            transforms: decoder.transforms.fingerprint(),
        }
    }

    fn open_writers(&self, decoder: &Decoder) -> Result<Vec<PackedWriter>, DataError> {
        let sequence = self.journal.sequence;
        let open = |(index, name): (usize, &&str)| {
            let path = self.dir.join(name);
            match self.journal.packed.get(index) {
                None => PackedWriter::create(&path, self.header(decoder)),
                Some(from) => {
                    let tail = tail_path(&self.dir, sequence, index);
                    PackedWriter::resume(&path, &tail, self.header(decoder), from)
                }
            }
        };
        SPLIT_FILES.iter().enumerate().map(open).collect()
    }

    /// Makes everything so far survive a crash.
    fn suspend(&mut self, writers: &mut [PackedWriter]) -> Result<(), DataError> {
        let last = self.journal.sequence;
        self.journal.sequence += 1;
        self.journal.packed = writers
            .iter_mut()
            .enumerate()
            .map(|(index, writer)| writer.suspend(&tail_path(&self.dir, self.journal.sequence, index)))
            .collect::<Result<_, _>>()?;
        self.journal.save(&self.dir)?;
        remove_tails(&self.dir, last)
    }

    /// Where the place of a row decides its split, and has to be known for vocabularies: how.
    fn row_shares(&self) -> Option<RowShares> {
        match self.data.split {
            SplitSpec::ByRow { valid, test } => {
                Some(RowShares { total: self.journal.row_total, valid, test })
            }
            _ => None,
        }
    }

    fn finish(&mut self, writers: Vec<PackedWriter>) -> Result<(), DataError> {
        let counts: Vec<u64> = writers.iter().map(PackedWriter::row_count).collect();
        let splits = match self.data.split {
            SplitSpec::ByRow { valid, test } => {
                let [train, valid, test] = rows_of_shares(counts[0], valid, test);
                let starts = [0, train, train + valid];
                [train, valid, test]
                    .into_iter()
                    .zip(starts)
                    .map(|(rows, start)| SplitRows { file: 0, start, rows })
                    .collect()
            }
            _ => counts
                .iter()
                .enumerate()
                .map(|(file, &rows)| SplitRows { file, start: 0, rows })
                .collect::<Vec<_>>(),
        };
        let pass = &self.journal.pass;
        if splits[0].rows == 0 {
            let (read, skipped) = (pass.rows_read, pass.skipped.total);
            let why = match self.times_beside_split() {
                Some(times) => format!("; {times}"),
                None => String::new(),
            };
            return Err(DataError::NoRows { read, skipped, why });
        }
        if let (Some(times), 0, 0) = (self.times_beside_split(), splits[1].rows, splits[2].rows) {
            return Err(DataError::NothingHeldOut { times });
        }
        for (index, writer) in writers.into_iter().enumerate() {
            // Empty ones go when the set is published: until the manifest stands, the journal names them.
            if counts[index] > 0 {
                writer.finish()?;
            }
        }
        let (skipped, observed, rows_read) = (pass.skipped.clone(), pass.observed.clone(), pass.rows_read);
        let Journal { segments, order, ids, .. } = self.journal.clone();
        Manifest { splits, skipped, segments, order, ids, rows_read, observed }.save(&self.dir)
    }

    /// For a split by time: what the times are, and where it cuts them.
    fn times_beside_split(&self) -> Option<String> {
        let SplitSpec::ByTime { valid_from, test_from } = &self.data.split else { return None };
        let (earliest, latest) = self.journal.pass.observed.times?;
        let column = self.data.columns.time.as_deref().unwrap_or_default();
        Some(format!(
            "the times of `{column}` are from {earliest} to {latest}, valid_from is {valid_from} and test_from \
             {test_from}; do they count the same unit?"
        ))
    }
}

fn tail_path(dir: &Path, sequence: u64, index: usize) -> PathBuf {
    dir.join(format!("{}.tail-{sequence}", SPLIT_FILES[index]))
}

/// Removes the tails that an older journal named.
fn remove_tails(dir: &Path, sequence: u64) -> Result<(), DataError> {
    for index in 0..SPLIT_FILES.len() {
        let path = tail_path(dir, sequence, index);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).context("remove", &path);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Segments of all chunks, numbered in order of appearance.
pub(super) struct Segments {
    column: String,
    names: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Segments {
    pub fn new(names: &[String], column: Option<&str>) -> Segments {
        Segments {
            column: column.unwrap_or_default().to_string(),
            names: names.to_vec(),
            numbers: names.iter().enumerate().map(|(number, name)| (name.clone(), number as u32)).collect(),
        }
    }

    /// From the chunk's own numbers to those of the whole data.
    pub fn renumber(&mut self, decoded: &mut Decoded) -> Result<(), DataError> {
        if decoded.segments.is_empty() {
            return Ok(());
        }
        let mut numbers = Vec::with_capacity(decoded.segments.len());
        for name in decoded.segments.drain(..) {
            if let Some(&number) = self.numbers.get(&name) {
                numbers.push(number);
                continue;
            }
            if self.names.len() == SEGMENTS_MAX {
                let column = self.column.clone();
                return Err(DataError::TooManySegments { column, limit: SEGMENTS_MAX, value: name });
            }
            let number = self.names.len() as u32;
            self.numbers.insert(name.clone(), number);
            self.names.push(name);
            numbers.push(number);
        }
        for rows in &mut decoded.splits {
            rows.segments.iter_mut().for_each(|segment| *segment = numbers[*segment as usize]);
        }
        Ok(())
    }
}
