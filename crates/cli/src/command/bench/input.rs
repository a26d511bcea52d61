//! What the input costs: samples of a configuration's shape, packed as `campanile prep` does, and read back.
//!
//! Training reads on a thread of its own while a step computes, so this is the share of another core, or, where all
//! cores train, what reading takes from them.

use std::{fmt::Write as _, fs, hint::black_box, path::Path, time::Instant};

use anyhow::{Context, Result};
use campanile_data::{Dataset, PrepOptions, prepare};
use campanile_spec::{
    Batch,
    config::DataFiles,
    data::{
        BadRows, BagShape, Columns, DataSpec, DenseColumn, IdMap, Keep, LabelColumn, SourceSpec,
        SparseColumn, SplitSpec,
    },
};

use super::workload::{self, DENSE, TABLES};

/// Samples that are packed.
const SAMPLES: usize = 16_384;
/// Passes over them; the best counts.
const ROUNDS: usize = 5;

/// Seconds in which one thread reads and decodes a sample, in the order of a shuffled epoch.
pub fn seconds_per_sample(batches: &[Batch], ids: usize) -> Result<f64> {
    let directory = std::env::temp_dir().join(format!("campanile-bench-{}", std::process::id()));
    fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let measured = measure(batches, ids, &directory);
    fs::remove_dir_all(&directory).with_context(|| format!("cannot remove {}", directory.display()))?;
    measured
}

fn measure(batches: &[Batch], ids: usize, directory: &Path) -> Result<f64> {
    let raw = directory.join("samples.csv");
    fs::write(&raw, text(batches)).with_context(|| format!("cannot write {}", raw.display()))?;
    let files = DataFiles { train: vec![raw.display().to_string()], ..DataFiles::default() };
    let options = PrepOptions::new(directory.join("packed"), 1);
    let prepared = prepare(&description(ids), &files, &options, &mut |_| ())?;
    let mut best = f64::INFINITY;
    for epoch in 0..ROUNDS {
        let start = Instant::now();
        read_through(&prepared.train, epoch as u64, batches[0].sample_count)?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best / prepared.train.row_count() as f64)
}

fn read_through(dataset: &Dataset, epoch: u64, batch_size: usize) -> Result<()> {
    let (mut reader, mut batch) = (dataset.reader()?, Batch::default());
    for start in (0..dataset.row_count()).step_by(batch_size) {
        let end = (start + batch_size as u64).min(dataset.row_count());
        reader.read(epoch, start..end, &mut batch)?;
        black_box(&batch);
    }
    Ok(())
}

/// The benchmark's own samples as text, with a header.
fn text(batches: &[Batch]) -> String {
    let mut text = String::from("label");
    (0..DENSE).for_each(|input| text += &format!(",d{input}"));
    (0..TABLES).for_each(|table| text += &format!(",t{table}"));
    text.push('\n');
    let samples = batches.iter().flat_map(|batch| (0..batch.sample_count).map(move |sample| (batch, sample)));
    for (batch, sample) in samples.take(SAMPLES) {
        // Writing to a string cannot fail.
        let _ = write!(text, "{}", batch.labels[sample]);
        for value in &batch.dense[sample * DENSE..][..DENSE] {
            let _ = write!(text, ",{value}");
        }
        for table in 0..TABLES {
            for (place, row) in batch.bags.feature(table).bag(sample).iter().enumerate() {
                let _ = write!(text, "{}{row}", if place == 0 { ',' } else { ' ' });
            }
        }
        text.push('\n');
    }
    text
}

fn description(ids: usize) -> DataSpec {
    let dense = |input| DenseColumn { name: format!("d{input}"), missing: 0.0, transforms: Vec::new() };
    let sparse = |(table, row_count)| SparseColumn {
        name: format!("t{table}"),
        shape: if ids == 1 { BagShape::One } else { BagShape::List { separator: ' ' } },
        bag_max: ids,
        keep: Keep::First,
        map: IdMap::Direct,
        row_count,
        weights: None,
    };
    DataSpec {
        source: SourceSpec::Csv { delimiter: ',', quotes: true },
        columns: Columns {
            labels: vec![LabelColumn { name: "label".into(), at_least: None, teacher: None }],
            dense: (0..DENSE).map(dense).collect(),
            sparse: workload::rows().into_iter().enumerate().map(sparse).collect(),
            ..Columns::default()
        },
        split: SplitSpec::ByFile,
        bad_rows: BadRows::Fail,
        shuffle: true,
        unknown_share: 0.0,
    }
}
