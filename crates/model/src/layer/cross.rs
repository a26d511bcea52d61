//! The elementwise half of a cross layer: `y = x0 * u + x`, where a linear layer made `u` of `x`.
//!
//! Backwards, `x`'s gradient begins as `y`'s. In the first layer `x` is `x0` and it is added there; in the
//! others the two gradients are one buffer (the graph sees to that), and nothing has to move.

use campanile_kernels::{
    cross::{self, Saved},
    elementwise,
    matrix::Store,
};

use super::{Backward, Forward, Read};
use crate::workspace::Place;

/// `y = x0 * u + x`.
#[derive(Debug)]
pub(crate) struct Cross {
    pub x0: Read,
    pub u: Read,
    pub x: Read,
    pub y: Place,
}

impl Cross {
    /// Whether `x` is `x0`.
    pub fn is_first(&self) -> bool {
        self.x.place == self.x0.place
    }

    pub fn forward(&self, pass: &mut Forward<'_>) {
        let isa = pass.isa;
        pass.values.write(self.y, |values, y| {
            let read = |read: Read| values.read(read.place);
            cross::forward(isa, read(self.x0), read(self.u), read(self.x), y);
        });
    }

    pub fn backward(&self, pass: &mut Backward<'_>) {
        let Backward { isa, values, gradients, .. } = pass;
        let saved = Saved { x0: values.read(self.x0.place), u: values.read(self.u.place) };
        assert_eq!(self.u.store, Store::Replace, "a cross layer's linear part has one reader");
        gradients.write_two(self.u.place, self.x0.place, |gradients, du, mut dx0| {
            let (g, samples) = (gradients.read(self.y), gradients.samples);
            if self.x0.store == Store::Replace {
                (0..samples).for_each(|sample| dx0.row(sample).fill(0.0));
            }
            cross::backward(*isa, saved, g, du, dx0.lend());
            if self.is_first() {
                (0..samples).for_each(|sample| elementwise::add(*isa, dx0.row(sample), g.row(sample)));
            }
        });
    }
}
