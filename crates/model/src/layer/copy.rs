//! Copies columns to where another layer wants them beside others.
//!
//! Vectors that leave a tower are rounded on the way as their format on the wire says, and their gradients on the way
//! back: every one of them, whether or not it travels, so that no result can show where a tower lives.

use campanile_kernels::{Isa, codec::Codec, elementwise, matrix::Store};

use super::{Backward, Forward, Read};
use crate::workspace::{Place, Source};

/// `to = from`.
#[derive(Debug)]
pub(crate) struct Copy {
    pub from: Read,
    pub to: Place,
    /// What the journey does to each vector of so many floats.
    pub journey: Option<(Journey, usize)>,
}

/// How vectors travel that leave a tower, and their gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Journey {
    /// Of the vectors.
    pub forward: Codec,
    /// Of their gradients.
    pub backward: Codec,
}

impl Default for Journey {
    fn default() -> Journey {
        Journey { forward: Codec::F32, backward: Codec::F32 }
    }
}

fn round(isa: Isa, codec: Codec, row: &mut [f32], width: usize) {
    row.chunks_exact_mut(width).for_each(|vector| codec.round(isa, vector));
}

impl Copy {
    pub fn forward(&self, pass: &mut Forward<'_>) {
        let isa = pass.isa;
        pass.values.write(self.to, |values, mut to| {
            let from = values.read(self.from.place);
            for sample in 0..values.samples {
                to.row(sample).copy_from_slice(from.row(sample));
                if let Some((journey, width)) = self.journey {
                    round(isa, journey.forward, to.row(sample), width);
                }
            }
        });
    }

    pub fn backward(&self, pass: &mut Backward<'_>) {
        if self.from.place.source == Source::Dense {
            return;
        }
        let isa = pass.isa;
        if let Some((journey, width)) = self.journey {
            // Nobody else reads a copy's gradient, so it is rounded where it is.
            pass.gradients.write(self.to, |gradients, mut to| {
                (0..gradients.samples).for_each(|n| round(isa, journey.backward, to.row(n), width));
            });
        }
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
