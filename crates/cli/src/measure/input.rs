//! Reading: what a column of a sample and an id cost the thread that reads ahead, in the order of a shuffled epoch.
//!
//! Two small worlds are packed as `campanile prep` does, one with an id in every bag and one with many, and read back; the
//! difference is what ids cost, and the rest what columns do.

use std::{
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use campanile_data::{DataError, PrepOptions, prepare};
use campanile_spec::{Batch, config::Job};
use campanile_train::TrainError;

use super::clock::seconds_each;

const SAMPLES: u64 = 4096;
const FEATURES: usize = 8;
const DENSE: usize = 8;
/// The features, the dense inputs and a label.
const COLUMNS: usize = FEATURES + DENSE + 1;
const FEW_IDS: usize = 1;
const MANY_IDS: usize = 16;

/// Samples that are read at once.
const BATCH: u64 = 1024;

/// Worlds that were packed; ranks may be threads of one process, and each has its own.
static PACKED: AtomicU64 = AtomicU64::new(0);

/// Nanoseconds of a column of a sample, and of an id.
///
/// # Errors
/// When the worlds cannot be written to the folder for temporary files.
pub fn read_ns() -> Result<[f64; 2], TrainError> {
    let (few, many) = (seconds_per_sample(FEW_IDS)?, seconds_per_sample(MANY_IDS)?);
    let id = ((many - few) / (FEATURES * (MANY_IDS - FEW_IDS)) as f64).max(0.0);
    let column = ((few - id * (FEATURES * FEW_IDS) as f64) / COLUMNS as f64).max(0.0);
    Ok([column * 1e9, id * 1e9])
}

fn seconds_per_sample(ids: usize) -> Result<f64, TrainError> {
    let number = PACKED.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("campanile-measure-{}-{number}", std::process::id()));
    let seconds = read_back(ids, &folder);
    // What is left behind where this fails is in the folder for temporary files.
    let _ = std::fs::remove_dir_all(&folder);
    Ok(seconds?)
}

fn read_back(ids: usize, folder: &Path) -> Result<f64, DataError> {
    let text = format!(
        "[run]\n[run.data]\nkind = \"synthetic\"\n[run.data.world]\ntrain_samples = {SAMPLES}\nvalid_samples = 0\n\
         test_samples = 0\ndense_count = {DENSE}\nsparse_count = {FEATURES}\nvocabulary = 100000\nbag_min = {ids}\n\
         bag_max = {ids}\n[run.tables]\ndim = 4\n[run.model]\nkind = \"dlrm\"\nbottom = [4]\ntop = [4]\n[run.sparse]\n\
         optimizer = \"sgd\"\nlearning_rate = 0.1\n[run.dense]\noptimizer = \"sgd\"\nlearning_rate = 0.1\n"
    );
    let job = Job::parse(&text).expect("the world of this module is a sound one");
    let prepared =
        prepare(&job.run.data, &job.process.data, &PrepOptions::new(folder, job.run.seed), &mut |_| ())?;
    let (mut reader, mut batch, mut epoch) = (prepared.train.reader()?, Batch::default(), 0);
    let mut outcome = Ok(());
    let seconds = seconds_each(|| {
        epoch += 1;
        for start in (0..SAMPLES).step_by(BATCH as usize) {
            if outcome.is_ok() {
                outcome = reader.read(epoch, start..start + BATCH, &mut batch);
            }
        }
    });
    outcome?;
    Ok(seconds / SAMPLES as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_and_ids_cost_something() {
        let [column, id] = read_ns().unwrap();
        assert!(column > 0.0 && id >= 0.0);
    }
}
