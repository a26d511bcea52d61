//! Raw rows: CSV and Parquet, from the file to packed data.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use campanile_data::{
    PrepOptions, Raw,
    columnar::{Column, ColumnType, TableFile},
    prepare,
};
use campanile_spec::config::Job;

use crate::{campaign::Reader, model, mutate, random::Random};

/// Columns that hold lists.
const LISTS: [&str; 2] = ["tags", "scores"];

/// Files of rows.
pub struct RowFiles {
    name: &'static str,
    job: Job,
    file: PathBuf,
    cache: PathBuf,
    seeds: Vec<Vec<u8>>,
}

impl RowFiles {
    pub fn csv(folder: &Path) -> RowFiles {
        RowFiles::new("csv", folder, model::model().csv.clone().into_bytes(), model::JOB)
    }

    pub fn parquet(folder: &Path) -> RowFiles {
        let job = model::JOB.replace("kind = \"csv\"", "kind = \"parquet\"");
        RowFiles::new("parquet", folder, as_parquet(&model::model().csv, folder), &job)
    }

    fn new(name: &'static str, folder: &Path, seed: Vec<u8>, job: &str) -> RowFiles {
        let file = folder.join(format!("rows.{name}"));
        let mut job = Job::parse(job).expect("a good job");
        job.process.data.train = vec![file.display().to_string()];
        RowFiles { name, job, file, cache: folder.join("cache"), seeds: vec![seed] }
    }
}

/// The same rows as Parquet.
fn as_parquet(csv: &str, folder: &Path) -> Vec<u8> {
    let mut lines = csv.lines();
    let header = lines.next().unwrap_or_default();
    let new = |name: &str| {
        let its_type = ColumnType { kind: None, is_list: LISTS.contains(&name) };
        Column::new(name.to_owned(), its_type)
    };
    let mut columns: Vec<Column> = header.split(',').map(new).collect();
    for line in lines {
        for (column, cell) in columns.iter_mut().zip(line.split(',')) {
            let raw = |text: &str| match (text.parse::<i64>(), text.parse::<f64>()) {
                (Ok(integer), _) => Some(Raw::Int(integer)),
                (_, Ok(float)) => Some(Raw::Float(float)),
                _ => None,
            };
            let one = |text| raw(text).unwrap_or(Raw::text(str::as_bytes(text)));
            let items = cell.split('|').filter(|item| !item.is_empty()).map(one);
            let pushed = match (LISTS.contains(&column.name()), cell) {
                (true, _) => column.push_list(items),
                (_, "") => column.push(Raw::Missing),
                (_, text) => column.push(one(text)),
            };
            assert!(pushed.is_ok(), "cells of one type");
        }
    }
    let (unfinished, path) = (folder.join("rows.unfinished"), folder.join("rows.parquet"));
    let mut file = TableFile::create(&unfinished, &columns).expect("a file");
    file.append(&columns).expect("rows");
    file.publish(&path, &BTreeMap::new()).expect("a whole file");
    fs::read(path).expect("the file")
}

impl Reader for RowFiles {
    fn name(&self) -> &'static str {
        self.name
    }

    fn seeds(&self) -> &[Vec<u8>] {
        &self.seeds
    }

    fn spoil(&self, _: usize, bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        match self.name {
            "csv" => mutate::text(bytes, other, random),
            _ => mutate::bytes(bytes, other, random),
        }
    }

    fn read(&mut self, _: usize, bytes: &[u8]) -> Result<(), String> {
        fs::write(&self.file, bytes).map_err(|error| error.to_string())?;
        if self.cache.exists() {
            fs::remove_dir_all(&self.cache).map_err(|error| error.to_string())?;
        }
        let options = PrepOptions { memory_mib: 64, ..PrepOptions::new(&self.cache, 1) };
        let prepared = prepare(&self.job.run.data, &self.job.process.data, &options, &mut |_| ());
        prepared.map(drop).map_err(|error| error.to_string())
    }

    fn told(&self) -> &str {
        self.file.to_str().unwrap_or_default()
    }

    fn memory_max(&self, input: usize) -> usize {
        (128 << 20) + 100 * input
    }
}
