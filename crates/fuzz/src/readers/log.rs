//! The event log: its files, and the payloads of its records.

use std::{
    fs,
    path::{Path, PathBuf},
};

use campanile_data::{
    Raw, Transforms,
    logged::{self, LoggedRows},
};
use campanile_spec::config::Job;
use campanile_stream::{
    log::{DirectoryLog, Limit, Log, LogError, Record, Records, TopicOptions, checksum},
    records::{Correction, Example, Feedback, Impression, Word},
};

use crate::{campaign::Reader, model, mutate, random::Random};

const TOPIC: &str = "t";
const GROUP: &str = "g";
/// The last segment, the first one, the note of what is on disk for certain, the options, a cursor.
const FILES: [&str; 5] = [
    "topics/t/0/00000000000000000070.log",
    "topics/t/0/00000000000000000000.log",
    "topics/t/0/lock",
    "topics/t/options",
    "groups/g/t.0",
];
const SEGMENT_HEAD_BYTES: usize = 16;
const FRAME_HEAD_BYTES: usize = 24;

/// Files of one log.
pub struct Segments {
    folder: PathBuf,
    seeds: Vec<Vec<u8>>,
}

impl Segments {
    pub fn new(folder: &Path) -> Segments {
        let log = DirectoryLog::open(folder).expect("a log");
        let options = TopicOptions { segment_bytes: 3000, ..TopicOptions::default() };
        log.create(TOPIC, options).expect("a topic");
        for append in 0..8u64 {
            let payloads: Vec<Vec<u8>> = (0..10).map(|place| vec![place; 30 + place as usize]).collect();
            let records: Vec<Record<'_>> =
                payloads.iter().map(|payload| Record { time_ms: 1000 * append, payload }).collect();
            log.append(TOPIC, 0, &records).expect("records");
        }
        log.commit(GROUP, TOPIC, 0, 17).expect("a cursor");
        log.sync().expect("on disk");
        drop(log);
        let read =
            |file: &&str| fs::read(folder.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let seeds = FILES.iter().map(read);
        Segments { seeds: seeds.collect(), folder: folder.to_owned() }
    }

    /// Reads all, appends, reads that, and lets go of the old.
    fn all(&self) -> Result<(), LogError> {
        let log = DirectoryLog::open(&self.folder)?;
        let mut records = Records::default();
        let mut next = log.committed(GROUP, TOPIC, 0)?;
        let range = log.range(TOPIC, 0)?;
        assert!(range.start <= range.end);
        next = next.clamp(range.start, range.end);
        while next < range.end {
            log.read(TOPIC, 0, next, Limit { records: 7, bytes: 500 }, &mut records)?;
            let Some(last) = records.last() else { break };
            assert!(last.offset >= next);
            next = last.offset + 1;
        }
        log.last(TOPIC, 0, &mut records)?;
        let own = log.append(TOPIC, 0, &[Record { time_ms: 5, payload: b"own" }])?;
        log.read(TOPIC, 0, own, Limit { records: 1, bytes: 1 }, &mut records)?;
        assert_eq!(records.last().map(|record| record.payload.to_vec()), Some(b"own".to_vec()));
        log.retain(u64::MAX)?;
        log.trim(TOPIC, 0, own)?;
        Ok(())
    }

    fn restore(&self) -> Result<(), String> {
        let partition = self.folder.join("topics/t/0");
        for entry in fs::read_dir(&partition).map_err(|error| error.to_string())?.flatten() {
            fs::remove_file(entry.path()).map_err(|error| error.to_string())?;
        }
        for (file, bytes) in FILES.iter().zip(&self.seeds) {
            fs::write(self.folder.join(file), bytes).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

impl Reader for Segments {
    fn name(&self) -> &'static str {
        "segment"
    }

    fn seeds(&self) -> &[Vec<u8>] {
        &self.seeds
    }

    fn spoil(&self, seed: usize, bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        match seed {
            0 | 1 => {
                mutate::bytes(bytes, other, random);
                if !random.one_in(4) {
                    seal_frames(bytes);
                }
            }
            _ => mutate::text(bytes, other, random),
        }
    }

    fn read(&mut self, seed: usize, bytes: &[u8]) -> Result<(), String> {
        self.restore()?;
        fs::write(self.folder.join(FILES[seed]), bytes).map_err(|error| error.to_string())?;
        self.all().map_err(|error| error.to_string())
    }

    fn told(&self) -> &str {
        self.folder.to_str().unwrap_or_default()
    }

    fn memory_max(&self, input: usize) -> usize {
        // The most partitions that are believed.
        (32 << 20) + 100 * input
    }
}

/// Puts the checksum of every frame right, as far as lengths lead from one to the next.
fn seal_frames(bytes: &mut [u8]) {
    let mut at = SEGMENT_HEAD_BYTES;
    while let Some(head) = bytes.get(at..at + FRAME_HEAD_BYTES) {
        let length = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let end = at + FRAME_HEAD_BYTES + length;
        let Some(covered) = bytes.get(at + 8..end) else { return };
        let sum = checksum(covered).to_le_bytes();
        bytes[at..at + 8].copy_from_slice(&sum);
        at = end;
    }
}

/// Payloads of every kind of record, and rows of raw values.
pub struct Payloads {
    seeds: Vec<Vec<u8>>,
    rows: LoggedRows,
    names: usize,
}

impl Payloads {
    pub fn new() -> Payloads {
        let job = Job::parse(model::JOB).expect("a good job");
        let transforms = Transforms::from_bytes(&model::model().transforms, Path::new("transforms.bin"));
        let transforms = transforms.expect("good transforms");
        let names =
            ["price", "hour", "slot", "age", "user", "item", "tags", "scores", "country"].map(str::to_owned);
        let mut rows = LoggedRows::new(&job.run.data, transforms).expect("columns that can be read");
        rows.set_columns(&names).expect("every column");
        let mut row = 7u32.to_le_bytes().to_vec();
        for raw in [Raw::Float(3.5), Raw::Float(7.0), Raw::Int(7), Raw::Int(33), Raw::Int(-12)] {
            logged::put(&mut row, raw);
        }
        logged::put(&mut row, Raw::text(b"item-3"));
        logged::put_list(&mut row, [Raw::text(b"t1"), Raw::text(b"t2")]);
        logged::put_list(&mut row, [Raw::Float(0.5), Raw::Float(0.1)]);
        logged::put(&mut row, Raw::text(b"de"));
        let word =
            Word { id: 9, schema: 5, version: 3, data_time_ms: -1, logits: &[0, 60, 1, 188], embedding: &[] };
        let embedded = Word { embedding: &[1, 2, 3, 4], ..word };
        let example = Example { id: 9, tasks: 2, labels: 1, known: 3, word: None, features: &row };
        let encoded = |encode: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            encode(&mut out);
            out
        };
        let seeds = vec![
            encoded(&|out| Impression { id: 9, features: &row }.encode(out)),
            encoded(&|out| example.encode(out)),
            encoded(&|out| Example { word: Some(embedded), ..example }.encode(out)),
            encoded(&|out| example.encode_late(out)),
            encoded(&|out| word.encode(out)),
            encoded(&|out| Feedback { id: 9, task: 1 }.encode(out)),
            encoded(&|out| Correction { id: 9, task: 1, in_window: true }.encode(out)),
        ];
        Payloads { seeds, rows, names: names.len() }
    }

    fn features(&mut self, features: &[u8]) -> Result<(), String> {
        let (_, row) = features.split_first_chunk::<4>().ok_or("no schema")?;
        let mut starts = Vec::new();
        let found = logged::find_cells(row, self.names, &mut starts);
        for place in 0..=self.names {
            let _ = logged::cell(row, place).map(|raw| raw.shown());
        }
        self.rows.clear();
        self.rows.push(row, &[Some(true), None], 5).map_err(|error| error.to_string())?;
        found.map_err(|error| error.to_string())?;
        let mut batch = campanile_spec::Batch::default();
        self.rows.write(&mut batch);
        assert_eq!(batch.sample_count, 1);
        Ok(())
    }
}

impl Reader for Payloads {
    fn name(&self) -> &'static str {
        "records"
    }

    fn seeds(&self) -> &[Vec<u8>] {
        &self.seeds
    }

    fn spoil(&self, _: usize, bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        mutate::bytes(bytes, other, random);
    }

    fn read(&mut self, _: usize, bytes: &[u8]) -> Result<(), String> {
        if let Some(word) = Word::decode(bytes) {
            assert!(word.halves().len() + word.embedding_halves().len() < bytes.len());
            return Ok(());
        }
        if Feedback::decode(bytes).is_some() || Correction::decode(bytes).is_some() {
            return Ok(());
        }
        if let Some(impression) = Impression::decode(bytes) {
            return self.features(impression.features);
        }
        let example = Example::decode(bytes).or_else(|| Example::decode_late(bytes)).ok_or("no record")?;
        for task in 0..example.tasks.min(32) {
            let _ = example.label(task);
        }
        self.features(example.features)
    }
}
