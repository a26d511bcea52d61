//! A world's samples as rows of an event log.

use campanile_spec::Batch;

use super::World;
use crate::{logged, value::Raw};

impl World {
    /// The columns of [`World::log_row`], in order: the user, the domain, and all inputs of this view.
    pub fn logged_names(&self) -> Vec<String> {
        let columns = self.spec.columns(self.view);
        let inputs = columns.dense.into_iter().map(|dense| dense.name);
        let inputs = inputs.chain(columns.sparse.into_iter().map(|sparse| sparse.name));
        ["user".to_owned(), "domain".to_owned()].into_iter().chain(inputs).collect()
    }

    /// Appends a sample of a batch that this world gave as a row of raw values.
    ///
    /// # Panics
    /// If the batch is not one of this world as it is seen now, or has no such sample.
    pub fn log_row(&self, batch: &Batch, sample: usize, out: &mut Vec<u8>) {
        logged::put(out, Raw::Int(batch.groups[sample] as i64));
        logged::put(out, Raw::Int(i64::from(batch.segments[sample])));
        let width = self.spec.dense_seen(self.view);
        for value in &batch.dense[sample * width..(sample + 1) * width] {
            logged::put(out, Raw::Float(f64::from(*value)));
        }
        for (place, &feature) in self.seen.iter().enumerate() {
            let bag = batch.bags.feature(place);
            let ids = bag.bag(sample).iter().map(|row| Raw::Int(i64::from(*row)));
            if self.spec.bag_max.at(feature) == 1 {
                logged::put(out, ids.into_iter().next().unwrap_or(Raw::Missing));
            } else {
                logged::put_list(out, ids);
            }
        }
    }
}
