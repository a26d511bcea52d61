//! Exact counts of ids in bounded memory.
//!
//! Ids are counted in hash tables; when these would outgrow their share of memory they are written to a *run*, a
//! file of (key, count) pairs in rising key order, and emptied. At the end the runs are merged, one column after
//! another, and counts of the same key are added. Which counts are in which run does not matter, so threads and
//! interruptions cannot change the sum.
//!
//! A run holds the pairs of all columns one after another, then the cumulative number of pairs per column.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fs::{self, File},
    io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    error::{DataError, IoContext},
    value::mix,
};

const PAIR_BYTES: u64 = 16;
const FIRST_SLOTS: usize = 64;
const MERGE_BUFFER_BYTES: usize = 8 << 10;

/// Runs are merged into one when there are this many, so that a merge never opens more files.
pub(crate) const RUNS_MAX: usize = 64;

/// Counts of one column's keys: open addressing, a count of 0 marks a free slot.
#[derive(Debug)]
struct CountTable {
    slots: Vec<(u64, u64)>,
    used: usize,
}

impl CountTable {
    fn new() -> CountTable {
        CountTable { slots: vec![(0, 0); FIRST_SLOTS], used: 0 }
    }

    /// Adds to a key's count; false when the table is full and must grow first.
    fn add(&mut self, key: u64, count: u64) -> bool {
        let mask = self.slots.len() - 1;
        let mut slot = mix(key) as usize & mask;
        loop {
            let (held, sum) = &mut self.slots[slot];
            if *sum == 0 {
                if self.used * 10 >= (mask + 1) * 7 {
                    return false;
                }
                (*held, *sum) = (key, count);
                self.used += 1;
                return true;
            }
            if *held == key {
                *sum += count;
                return true;
            }
            slot = (slot + 1) & mask;
        }
    }

    fn grow(&mut self) {
        let larger = vec![(0, 0); self.slots.len() * 2];
        let old = std::mem::replace(&mut self.slots, larger);
        self.used = 0;
        for (key, count) in old {
            if count > 0 {
                self.add(key, count);
            }
        }
    }

    /// The pairs in rising key order, in the table's own memory; the table is empty afterwards.
    fn take_sorted(&mut self) -> Vec<(u64, u64)> {
        self.used = 0;
        let mut pairs = std::mem::replace(&mut self.slots, vec![(0, 0); FIRST_SLOTS]);
        pairs.retain(|pair| pair.1 > 0);
        pairs.sort_unstable();
        pairs
    }

    fn bytes(&self) -> u64 {
        self.slots.len() as u64 * PAIR_BYTES
    }
}

/// One worker's counts of all vocabulary columns.
#[derive(Debug)]
pub(crate) struct IdCounter {
    tables: Vec<CountTable>,
    bytes_max: u64,
    dir: PathBuf,
    next_run: Arc<AtomicU64>,
    /// Runs written since they were last taken.
    runs: Vec<String>,
}

impl IdCounter {
    /// Counts `columns` columns in at most `bytes_max` bytes; runs are numbered from a counter that all workers
    /// share.
    pub fn new(columns: usize, bytes_max: u64, dir: &Path, next_run: &Arc<AtomicU64>) -> IdCounter {
        IdCounter {
            tables: (0..columns).map(|_| CountTable::new()).collect(),
            bytes_max,
            dir: dir.to_path_buf(),
            next_run: Arc::clone(next_run),
            runs: Vec::new(),
        }
    }

    /// Counts keys of one column.
    pub fn add(&mut self, column: usize, keys: &[u64]) -> Result<(), DataError> {
        for &key in keys {
            while !self.tables[column].add(key, 1) {
                let bytes: u64 = self.tables.iter().map(CountTable::bytes).sum();
                // Growing holds the old and the new table for a moment.
                if bytes + 2 * self.tables[column].bytes() > self.bytes_max
                    && self.tables[column].used > FIRST_SLOTS
                {
                    self.spill()?;
                } else {
                    self.tables[column].grow();
                }
            }
        }
        Ok(())
    }

    /// Writes all counts to a run and forgets them.
    pub fn spill(&mut self) -> Result<(), DataError> {
        if self.tables.iter().all(|table| table.used == 0) {
            return Ok(());
        }
        let name = run_name(&self.next_run);
        let mut run = RunWriter::create(&self.dir.join(&name))?;
        for table in &mut self.tables {
            for (key, count) in table.take_sorted() {
                run.push(key, count)?;
            }
            run.end_column();
        }
        run.finish()?;
        self.runs.push(name);
        Ok(())
    }

    /// The runs written since the last call.
    pub fn take_runs(&mut self) -> Vec<String> {
        std::mem::take(&mut self.runs)
    }
}

fn run_name(next_run: &AtomicU64) -> String {
    format!("counts-{:06}.run", next_run.fetch_add(1, Ordering::Relaxed))
}

struct RunWriter {
    path: PathBuf,
    file: BufWriter<File>,
    pairs: u64,
    ends: Vec<u64>,
}

impl RunWriter {
    fn create(path: &Path) -> Result<RunWriter, DataError> {
        let file = BufWriter::with_capacity(64 << 10, File::create(path).context("create", path)?);
        Ok(RunWriter { path: path.to_path_buf(), file, pairs: 0, ends: Vec::new() })
    }

    fn push(&mut self, key: u64, count: u64) -> Result<(), DataError> {
        let mut pair = [0; PAIR_BYTES as usize];
        pair[..8].copy_from_slice(&key.to_le_bytes());
        pair[8..].copy_from_slice(&count.to_le_bytes());
        self.pairs += 1;
        self.file.write_all(&pair).context("write", &self.path)
    }

    fn end_column(&mut self) {
        self.ends.push(self.pairs);
    }

    fn finish(mut self) -> Result<(), DataError> {
        let ends: Vec<u8> = self.ends.iter().flat_map(|end| end.to_le_bytes()).collect();
        self.file.write_all(&ends).context("write", &self.path)?;
        let file = self
            .file
            .into_inner()
            .map_err(std::io::IntoInnerError::into_error)
            .context("write", &self.path)?;
        file.sync_data().context("sync", &self.path)
    }
}

/// The pairs of one column of one run, in key order.
struct RunReader {
    path: PathBuf,
    file: BufReader<File>,
    left: u64,
}

impl RunReader {
    fn open(path: PathBuf, column: usize, columns: usize) -> Result<RunReader, DataError> {
        let mut file = File::open(&path).context("open", &path)?;
        let mut ends = vec![0; columns * 8];
        file.seek(SeekFrom::End(-(ends.len() as i64))).context("seek in", &path)?;
        file.read_exact(&mut ends).context("read", &path)?;
        let end = |column: usize| u64::from_le_bytes(std::array::from_fn(|byte| ends[column * 8 + byte]));
        let start = if column == 0 { 0 } else { end(column - 1) };
        file.seek(SeekFrom::Start(start * PAIR_BYTES)).context("seek in", &path)?;
        let left = end(column).saturating_sub(start);
        Ok(RunReader { path, file: BufReader::with_capacity(MERGE_BUFFER_BYTES, file), left })
    }

    fn next(&mut self) -> Result<Option<(u64, u64)>, DataError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let (mut key, mut count) = ([0; 8], [0; 8]);
        self.file.read_exact(&mut key).context("read", &self.path)?;
        self.file.read_exact(&mut count).context("read", &self.path)?;
        Ok(Some((u64::from_le_bytes(key), u64::from_le_bytes(count))))
    }
}

/// Visits every key of a column in rising order with its whole count.
pub(crate) fn merge_column(
    dir: &Path,
    runs: &[String],
    column: usize,
    columns: usize,
    mut visit: impl FnMut(u64, u64) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let mut readers = Vec::new();
    let mut heads = BinaryHeap::new();
    for (index, name) in runs.iter().enumerate() {
        let mut reader = RunReader::open(dir.join(name), column, columns)?;
        if let Some((key, count)) = reader.next()? {
            heads.push(Reverse((key, index, count)));
        }
        readers.push(reader);
    }
    let mut present: Option<(u64, u64)> = None;
    while let Some(Reverse((key, index, count))) = heads.pop() {
        if let Some((key, count)) = readers[index].next()? {
            heads.push(Reverse((key, index, count)));
        }
        match &mut present {
            Some((held, sum)) if *held == key => *sum += count,
            _ => {
                if let Some((held, sum)) = present.replace((key, count)) {
                    visit(held, sum)?;
                }
            }
        }
    }
    present.map_or(Ok(()), |(key, count)| visit(key, count))
}

/// Merges runs into a new one and returns its name; the old files stay until the journal no longer names them.
pub(crate) fn merge_runs(
    dir: &Path,
    runs: &[String],
    columns: usize,
    next_run: &AtomicU64,
) -> Result<String, DataError> {
    let name = run_name(next_run);
    let mut merged = RunWriter::create(&dir.join(&name))?;
    for column in 0..columns {
        merge_column(dir, runs, column, columns, |key, count| merged.push(key, count))?;
        merged.end_column();
    }
    merged.finish()?;
    Ok(name)
}

/// Removes run files that are not in `kept`: merged ones, and those of a round that was interrupted.
pub(crate) fn remove_other_runs(dir: &Path, kept: &[String]) -> Result<(), DataError> {
    for entry in fs::read_dir(dir).context("list", dir)? {
        let entry = entry.context("list", dir)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".run") && !kept.contains(&name) {
            fs::remove_file(entry.path()).context("remove", &entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Two workers with room for almost nothing count what a map counts.
        #[test]
        fn spilled_counts_are_exact(columns in prop::collection::vec(prop::collection::vec(0_u64..300, 0..800), 1..4)) {
            let dir = tempfile::tempdir().unwrap();
            let next_run = Arc::new(AtomicU64::new(0));
            let count = columns.len();
            let mut workers = [0, 1].map(|_| IdCounter::new(count, 4096, dir.path(), &next_run));
            for (column, keys) in columns.iter().enumerate() {
                for (index, part) in keys.chunks(37).enumerate() {
                    workers[index % 2].add(column, part).unwrap();
                }
            }
            let mut runs = Vec::new();
            for worker in &mut workers {
                worker.spill().unwrap();
                runs.extend(worker.take_runs());
            }
            if runs.len() > 2 {
                let merged = merge_runs(dir.path(), &runs[1..], count, &next_run).unwrap();
                runs = vec![runs[0].clone(), merged];
                remove_other_runs(dir.path(), &runs).unwrap();
            }
            for (column, keys) in columns.iter().enumerate() {
                let mut want = BTreeMap::new();
                keys.iter().for_each(|&key| *want.entry(key).or_insert(0) += 1);
                let mut got = Vec::new();
                merge_column(dir.path(), &runs, column, count, |key, sum| { got.push((key, sum)); Ok(()) }).unwrap();
                prop_assert_eq!(got, want.into_iter().collect::<Vec<_>>());
            }
        }
    }
}
