//! Copies columns for a head whose gradient counts more, or less, in the layers below: the same forward, a factor
//! backward.

use campanile_kernels::matrix::Store;

use super::{Backward, Forward, Read};
use crate::workspace::{Place, Source};

/// `to = from`, with `factor` times the gradient.
#[derive(Debug)]
pub(crate) struct Scaled {
    pub from: Read,
    pub to: Place,
    pub factor: f32,
}

impl Scaled {
    pub fn forward(&self, pass: &mut Forward<'_>) {
        pass.values.write(self.to, |values, mut to| {
            let from = values.read(self.from.place);
            for sample in 0..values.samples {
                to.row(sample).copy_from_slice(from.row(sample));
            }
        });
    }

    pub fn backward(&self, pass: &mut Backward<'_>) {
        if self.from.place.source == Source::Dense {
            return;
        }
        pass.gradients.write(self.from.place, |gradients, mut from| {
            let to = gradients.read(self.to);
            for sample in 0..gradients.samples {
                let pairs = from.row(sample).iter_mut().zip(to.row(sample));
                match self.from.store {
                    Store::Replace => pairs.for_each(|(from, to)| *from = self.factor * to),
                    Store::Add => pairs.for_each(|(from, to)| *from += self.factor * to),
                }
            }
        });
    }
}
