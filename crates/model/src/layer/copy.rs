//! Copies columns to where another layer wants them beside others.

use campanile_kernels::{elementwise, matrix::Store};

use super::{Backward, Forward, Read};
use crate::workspace::{Place, Source};

/// `to = from`.
#[derive(Debug)]
pub(crate) struct Copy {
    pub from: Read,
    pub to: Place,
}

impl Copy {
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
        let isa = pass.isa;
        pass.gradients.write(self.from.place, |gradients, mut from| {
            let to = gradients.read(self.to);
            for sample in 0..gradients.samples {
                match self.from.store {
                    Store::Replace => from.row(sample).copy_from_slice(to.row(sample)),
                    Store::Add => elementwise::add(isa, from.row(sample), to.row(sample)),
                }
            }
        });
    }
}
