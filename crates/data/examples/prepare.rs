//! Packs files as a data section in JSON says, and prints the first rows of each split.
//!
//! Run with `cargo run -p campanile-data --features parquet --example prepare -- DATA.json CACHE FILE...`;
//! `DATA.json` holds a `campanile_spec::data::DataSpec`. The `campanile` binary reads the same from a job file.

use std::{env, error::Error, fs};

use campanile_data::{Dataset, PrepOptions, prepare};
use campanile_spec::{Batch, config::DataFiles, data::DataSpec};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [data, cache, files @ ..] = &arguments[..] else {
        return Err("three arguments at least: DATA.json CACHE FILE...".into());
    };
    let data: DataSpec = serde_json::from_slice(&fs::read(data)?)?;
    let files = DataFiles { train: files.to_vec(), ..DataFiles::default() };
    let options = PrepOptions { threads: 2, ..PrepOptions::new(cache, 1) };
    let prepared = prepare(&data, &files, &options, &mut |_| ())?;
    println!("fingerprint {}, {} rows skipped", prepared.fingerprint, prepared.skipped.total);
    show("train", &prepared.train)?;
    for (name, split) in [("valid", &prepared.valid), ("test", &prepared.test)] {
        if let Some(split) = split {
            show(name, split)?;
        }
    }
    Ok(())
}

fn show(name: &str, split: &Dataset) -> Result<(), Box<dyn Error>> {
    let mut batch = Batch::default();
    split.reader()?.read(0, 0..split.row_count().min(8), &mut batch)?;
    println!("{name}: {} rows", split.row_count());
    for row in 0..batch.sample_count {
        let cut = batch.slice(row..row + 1);
        let bags: Vec<&[u32]> =
            (0..cut.bags.feature_count()).map(|feature| cut.bags.feature(feature).bag(0)).collect();
        println!(
            "  labels {:?} dense {:?} bags {bags:?} weights {:?}",
            cut.labels,
            cut.dense,
            cut.bags.weights()
        );
        println!("    sample weight {:?} time {:?} segment {:?}", cut.weights, cut.times, cut.segments);
    }
    Ok(())
}
